package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"writ/cmd/node/node"
)

const deployDir = "../../../deploy"

// known are the names of all metrics that a node that has worked has.
func known(text string) map[string]bool {
	names := map[string]bool{}
	for line := range strings.Lines(text) {
		if name, ok := strings.CutPrefix(line, "# TYPE "); ok {
			fields := strings.Fields(name)
			names[fields[0]] = true
			if fields[1] == "histogram" {
				for _, part := range []string{"_bucket", "_sum", "_count"} {
					names[fields[0]+part] = true
				}
			}
		}
	}
	return names
}

// TestRulesAndDashboardNameRealMetrics covers that no alert waits for a metric that
// does not exist, and that all names promised are there.
func TestRulesAndDashboardNameRealMetrics(t *testing.T) {
	c := newCluster(t, 1, func(cfg *node.Config) { newActing().conf(cfg); cfg.AuditInterval = 50 * time.Millisecond })
	text := eventually(t, func(ctx context.Context) (string, error) {
		text := c.metrics(ctx, "n1")
		if !strings.Contains(text, "writ_audit_finished_timestamp_seconds{") {
			return "", errors.New("not recounted yet")
		}
		return text, nil
	})
	names := known(text)
	for _, promised := range []string{
		"writ_effects_total", "writ_idempotency_keys_registered_total", "writ_effect_per_key_ratio", "writ_idempotency_pending_age_seconds_bucket",
		"writ_idempotency_oldest_pending_age_seconds", "writ_idempotency_configured_ttl_seconds", "writ_guarantee_precondition_met",
		"writ_idempotency_phantom_effect_total", "writ_external_call_idempotent_replay_total", "writ_external_call_duplicate_total",
		"writ_outbox_rows", "writ_outbox_oldest_age_seconds", "writ_outbox_rows_numbered_total", "writ_rows_sent_total", "writ_lanes_parked",
		"writ_marks_refused_total", "writ_commit_seconds_bucket", "writ_flush_seconds_bucket", "writ_shard_leads", "writ_shard_term",
		"writ_shard_file_bytes", "writ_shard_file_live_bytes",
	} {
		if !names[promised] {
			t.Errorf("there is no metric %s", promised)
		}
	}
	word := regexp.MustCompile(`\bwrit_[a-z0-9_]+`)
	for _, file := range []string{"prometheus/rules.yml", "prometheus/rules_test.yml", "grafana/writ.json"} {
		content, err := os.ReadFile(filepath.Join(deployDir, file))
		if err != nil {
			t.Fatal(err)
		}
		found := word.FindAllString(string(content), -1)
		if len(found) == 0 {
			t.Errorf("%s names no metric", file)
		}
		for _, name := range found {
			if !names[name] {
				t.Errorf("%s names %s, which is no metric", file, name)
			}
		}
	}
	dashboard, err := os.ReadFile(filepath.Join(deployDir, "grafana/writ.json"))
	if err != nil {
		t.Fatal(err)
	}
	if !json.Valid(dashboard) {
		t.Error("the dashboard is no JSON")
	}
}

// TestRules runs promtool's unit tests.
func TestRules(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("SKIP promtool: it is not installed (Debian: prometheus)")
	}
	for _, args := range [][]string{{"check", "rules", "rules.yml"}, {"test", "rules", "rules_test.yml"}, {"check", "config", "prometheus.yml"}} {
		cmd := exec.CommandContext(t.Context(), promtool, args...)
		cmd.Dir = filepath.Join(deployDir, "prometheus")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
}

// TestPrometheusFiresAnAlert covers the whole way: a real Prometheus scrapes nodes,
// a quorum is lost, and the alerts fire.
func TestPrometheusFiresAnAlert(t *testing.T) {
	prometheus, err := exec.LookPath("prometheus")
	if err != nil {
		t.Skip("SKIP prometheus: it is not installed (Debian: prometheus)")
	}
	c := newCluster(t, 3, nil)
	watched := c.watchAlerts(prometheus)
	eventually(t, func(ctx context.Context) (string, error) {
		text, err := get(ctx, watched.url+"/api/v1/query?query=sum(writ_shard_leads)")
		if err == nil && !strings.Contains(text, `"4"]`) {
			err = fmt.Errorf("the four shards are not seen yet: %s", text)
		}
		return text, err
	})
	for _, name := range []string{"n2", "n3"} {
		if err := c.nodes[name].Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		delete(c.nodes, name)
	}
	broken := time.Now()
	for _, alert := range []string{"WritPreconditionUnmet", "WritShardWithoutLeader", "WritNodeDown"} {
		eventually(t, func(ctx context.Context) (string, error) {
			text, err := get(ctx, watched.url+"/api/v1/query?query=ALERTS{alertname=%22"+alert+"%22,alertstate=%22firing%22}")
			if err == nil && !strings.Contains(text, alert) {
				err = fmt.Errorf("%s does not fire: %s", alert, text)
			}
			return text, err
		})
		t.Logf("%s fires after %v", alert, time.Since(broken))
		if alert == "WritPreconditionUnmet" {
			soon(t, alert, time.Since(broken))
		}
	}
}

// alerts are a Prometheus that scrapes a cluster; nil if there is none.
type alerts struct {
	t   *testing.T
	url string
}

// await waits until the alert of a precondition fires, or does not.
func (a *alerts) await(precondition string, fires bool) {
	if a == nil {
		return
	}
	a.t.Helper()
	query := "/api/v1/query?query=" + url.QueryEscape(fmt.Sprintf(`ALERTS{alertname="WritPreconditionUnmet",alertstate="firing",precondition=%q}`, precondition))
	eventually(a.t, func(ctx context.Context) (string, error) {
		text, err := get(ctx, a.url+query)
		if err == nil && strings.Contains(text, `"WritPreconditionUnmet"`) != fires {
			err = fmt.Errorf("the alert of %s firing is not %v: %s", precondition, fires, text)
		}
		return text, err
	})
}

// watchAlerts starts a Prometheus that scrapes the cluster once a second; nil if
// there is no program.
func (c *testCluster) watchAlerts(program string) *alerts {
	t := c.t
	t.Helper()
	if program == "" {
		return nil
	}
	rules, err := filepath.Abs(filepath.Join(deployDir, "prometheus/rules.yml"))
	if err != nil {
		t.Fatal(err)
	}
	var targets []string
	for _, name := range c.names {
		targets = append(targets, c.nodes[name].Addresses().HTTP)
	}
	config := filepath.Join(t.TempDir(), "prometheus.yml")
	text := fmt.Sprintf("global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [%q]\nscrape_configs:\n  - job_name: writ\n    static_configs: [{targets: [%s]}]\n",
		rules, strings.Join(targets, ", "))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	addr := ports(t, 1)[0]
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, program, "--config.file="+config, "--storage.tsdb.path="+t.TempDir(), "--web.listen-address="+addr, "--log.level=warn")
	cmd.Stdout, cmd.Stderr = io.Discard, io.Discard
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); _ = cmd.Wait() })
	a := &alerts{t: t, url: "http://" + addr}
	eventually(t, func(ctx context.Context) (string, error) { // it begins some seconds after its start
		text, err := get(ctx, a.url+"/api/v1/query?query="+url.QueryEscape("count(up == 1)"))
		if err == nil && !strings.Contains(text, fmt.Sprintf(`"%d"]`, len(c.names))) {
			err = fmt.Errorf("not all nodes are scraped yet: %s", text)
		}
		return text, err
	})
	return a
}

func get(ctx context.Context, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	return string(text), err
}
