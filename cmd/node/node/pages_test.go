package node_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"writ/cmd/node/node"
)

// Every metric that the pages name is one that a node has: what it shows, or a
// counter with labels that nothing has raised yet.
func TestPagesNameRealMetrics(t *testing.T) {
	c := newCluster(t, 1, func(cfg *node.Config) { cfg.AuditInterval = 50 * time.Millisecond })
	text := eventually(t, func(ctx context.Context) (string, error) {
		text := c.metrics(ctx, "n1")
		if !strings.Contains(text, "writ_audit_finished_timestamp_seconds{") {
			return "", errors.New("not recounted yet")
		}
		return text, nil
	})
	names := known(text)
	for name := range node.DescribedMetrics() {
		names[name] = true
	}
	word := regexp.MustCompile(`\bwrit_[a-z0-9_]*[a-z0-9](\*|_\*)?`)
	const root = "../../.."
	pages := []string{filepath.Join(root, "README.md")}
	err := filepath.WalkDir(filepath.Join(root, "docs"), func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() && strings.HasSuffix(path, ".md") {
			pages = append(pages, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range word.FindAllString(string(text), -1) {
			if name == "writ_n2_1" { // a container of the README
				continue
			}
			found++
			begin, open := strings.CutSuffix(name, "*")
			if !names[name] && (!open || !anyBegins(names, begin)) {
				t.Errorf("%s names %s, which is no metric", page, name)
			}
		}
	}
	if found < 10 {
		t.Errorf("only %d names of metrics were found on the pages: the pattern fits no more", found)
	}
}

func anyBegins(names map[string]bool, with string) bool {
	for name := range names {
		if strings.HasPrefix(name, with) {
			return true
		}
	}
	return false
}
