package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	nodev1 "writ/proto/writ/node/v1"
	writv1 "writ/proto/writ/v1"
)

// Links are one gRPC connection to each node, made when first needed. Not safe
// for concurrent use by the first call of a node; Dial them before sharing.
type Links struct {
	view  View
	conns map[string]*grpc.ClientConn
}

// Dial prepares a connection to every node that the view has now.
func Dial(view View) (*Links, error) {
	l := &Links{view: view, conns: map[string]*grpc.ClientConn{}}
	for _, node := range view.Nodes() {
		conn, err := dial(view.Addrs(node).GRPC)
		if err != nil {
			return nil, errors.Join(err, l.Close())
		}
		l.conns[node] = conn
	}
	return l, nil
}

// dial connects lazily and comes back quickly after a node's restart.
func dial(addr string) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient(addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(quickReconnect()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20), grpc.MaxCallSendMsgSize(64<<20)))
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", addr, err)
	}
	return conn, nil
}

// Entity is the client API of one node.
func (l *Links) Entity(node string) writv1.EntityServiceClient {
	return writv1.NewEntityServiceClient(l.conns[node])
}

// Admin is the operators' API of one node.
func (l *Links) Admin(node string) nodev1.AdminServiceClient {
	return nodev1.NewAdminServiceClient(l.conns[node])
}

// Close closes all connections.
func (l *Links) Close() error {
	var errs []error
	for _, conn := range l.conns {
		errs = append(errs, conn.Close())
	}
	return errors.Join(errs...)
}

// Status is one node's view of the cluster. A node that gives no answer is asked again
// for a while: it, or the connection to it, may only be held up.
func (l *Links) Status(ctx context.Context, node string) (*nodev1.StatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		res, err := l.StatusOnce(ctx, node)
		silent := slices.Contains([]codes.Code{codes.Unavailable, codes.DeadlineExceeded}, status.Code(err))
		if !silent || ctx.Err() != nil {
			return res, err
		}
		pause(ctx, pollInterval)
	}
}

// StatusOnce asks once, for those who expect that there may be no answer.
func (l *Links) StatusOnce(ctx context.Context, node string) (*nodev1.StatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	res, err := l.Admin(node).Status(ctx, &nodev1.StatusRequest{})
	if err != nil {
		return nil, fmt.Errorf("status of %s: %w", node, err)
	}
	return res, nil
}

// Leaders waits until the given nodes agree on a leader for every shard, one of
// themselves, and returns the leader of each shard.
func (l *Links) Leaders(ctx context.Context, nodes []string) (map[uint32]string, error) {
	var leaders map[uint32]string
	err := eventually(ctx, "a leader for each shard", func(ctx context.Context) error {
		leaders = map[uint32]string{}
		for _, node := range nodes {
			status, err := l.Status(ctx, node)
			if err != nil {
				return err
			}
			if err := mergeLeaders(leaders, status, nodes); err != nil {
				return err
			}
		}
		return nil
	})
	return leaders, err
}

func mergeLeaders(leaders map[uint32]string, status *nodev1.StatusResponse, nodes []string) error {
	if len(status.GetMeta().GetShards()) == 0 {
		return fmt.Errorf("%s knows no shards", status.GetNode())
	}
	seen := map[uint32]bool{}
	for _, s := range status.GetShards() {
		seen[s.GetShard()] = true
		before, known := leaders[s.GetShard()]
		switch {
		case !slices.Contains(nodes, s.GetLeader()):
			return fmt.Errorf("shard %d is led by %q, says %s", s.GetShard(), s.GetLeader(), status.GetNode())
		case known && before != s.GetLeader():
			return fmt.Errorf("shard %d is led by %q, but %s says %q", s.GetShard(), before, status.GetNode(), s.GetLeader())
		}
		leaders[s.GetShard()] = s.GetLeader()
	}
	for _, s := range status.GetMeta().GetShards() {
		if !seen[s.GetShard()] {
			return fmt.Errorf("%s says nothing of shard %d", status.GetNode(), s.GetShard())
		}
	}
	return nil
}

// Shards tells the shard of every entity of a kind that has emitted events.
func (l *Links) Shards(ctx context.Context, node, kind string) (map[string]uint32, error) {
	status, err := l.Status(ctx, node)
	if err != nil {
		return nil, err
	}
	home := map[string]uint32{}
	for _, s := range status.GetMeta().GetShards() {
		stream, err := l.Admin(node).AuditLanes(ctx, &nodev1.AuditLanesRequest{Shard: s.GetShard()})
		if err != nil {
			return nil, fmt.Errorf("lanes of shard %d: %w", s.GetShard(), err)
		}
		for {
			lane, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, fmt.Errorf("lanes of shard %d: %w", s.GetShard(), err)
			}
			if lane.GetSource().GetKind() == kind {
				home[lane.GetSource().GetId()] = s.GetShard()
			}
		}
	}
	return home, nil
}

// Serving asks a node's gRPC health for a service.
func (l *Links) Serving(ctx context.Context, node, service string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	res, err := grpc_health_v1.NewHealthClient(l.conns[node]).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: service})
	if err != nil {
		return false, fmt.Errorf("gRPC health of %s, %q: %w", node, service, err)
	}
	return res.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING, nil
}

// Readiness is what /readyz says: why the node and its shards are not ready.
type Readiness struct {
	Ready   bool              `json:"ready"`
	Reasons map[string]string `json:"reasons"`
	Shards  map[uint32]string `json:"shards"`
}

// ReadinessOf asks a node's /readyz.
func ReadinessOf(ctx context.Context, view View, node string) (Readiness, error) {
	_, text := Ready(ctx, view, node)
	var r Readiness
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return r, fmt.Errorf("readiness of %s: %s", node, text)
	}
	return r, nil
}

// Ready asks a node's /readyz: whether it is ready, and what it says.
func Ready(ctx context.Context, view View, node string) (bool, string) {
	return get(ctx, view.Addrs(node).HTTP, "/readyz")
}

// Alive asks a node's /healthz.
func Alive(ctx context.Context, view View, node string) bool {
	ok, _ := get(ctx, view.Addrs(node).HTTP, "/healthz")
	return ok
}

func get(ctx context.Context, addr, path string) (bool, string) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+path, nil)
	if err != nil {
		return false, err.Error()
	}
	// A connection of its own for each question: the process behind the address changes.
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return false, err.Error()
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 64<<10))
	if err != nil {
		return false, err.Error()
	}
	return res.StatusCode == http.StatusOK, strings.TrimSpace(string(body))
}

// AwaitReady waits until all given nodes say that they are ready; it fails at
// once when one of them has ended.
func AwaitReady(ctx context.Context, view View, nodes ...string) error {
	return eventually(ctx, "readiness", func(ctx context.Context) error {
		for _, node := range nodes {
			if !view.Running(node) {
				return &finalError{fmt.Errorf("%s has ended: %s", node, view.Logs(node, 5))}
			}
			if ok, text := Ready(ctx, view, node); !ok {
				return fmt.Errorf("%s is not ready: %s", node, text)
			}
		}
		return nil
	})
}

// AwaitMembers waits until each of the nodes sees exactly that many live members.
func (l *Links) AwaitMembers(ctx context.Context, nodes []string, want int) error {
	return eventually(ctx, fmt.Sprintf("%d live members seen by all", want), func(ctx context.Context) error {
		for _, node := range nodes {
			status, err := l.Status(ctx, node)
			if err != nil {
				return err
			}
			alive := 0
			for _, m := range status.GetMembers() {
				if m.GetAlive() {
					alive++
				}
			}
			if alive != want {
				return fmt.Errorf("%s sees %d", node, alive)
			}
		}
		return nil
	})
}

// AuditReport is what `node audit --json` prints.
type AuditReport struct {
	Keys          uint64   `json:"keys"`
	Effects       uint64   `json:"effects"`
	Ratio         float64  `json:"ratio"`
	OutboxPending uint64   `json:"outbox_pending"`
	Parked        uint64   `json:"parked"`
	Applied       uint64   `json:"applied"`
	Phantoms      uint64   `json:"phantoms"`
	Lost          uint64   `json:"lost"`
	ReplicasEqual bool     `json:"replicas_equal"`
	OK            bool     `json:"ok"`
	Findings      []string `json:"findings"`
	// Unreachable are nodes whose replicas could not be compared.
	Unreachable []string `json:"unreachable"`
}

func parseAudit(text []byte) (AuditReport, error) {
	var r AuditReport
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("audit's answer %q: %w", text, err)
	}
	return r, nil
}

// Verdict says what is wrong with an audit after all events have arrived; nil
// if nothing is.
func (r AuditReport) Verdict() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(r.OK, "audit is not ok: %s", strings.Join(r.Findings, "; "))
	check(r.Keys == r.Effects && r.Ratio == 1, "effects %d ÷ keys %d = %v", r.Effects, r.Keys, r.Ratio)
	check(r.OutboxPending == 0, "%d rows stay pending", r.OutboxPending)
	check(r.Parked == 0, "%d lanes are parked", r.Parked)
	check(r.Phantoms == 0 && r.Lost == 0, "%d phantoms, %d lost", r.Phantoms, r.Lost)
	check(r.ReplicasEqual, "replicas differ: %s", strings.Join(r.Findings, "; "))
	return errors.Join(errs...)
}
