package replica

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// What is promised and not written yet counts, and nothing else.
func TestRoomIsPromisedOnce(t *testing.T) {
	free := int64(100)
	r := &room{ask: func(bytes int64) error {
		if bytes > free {
			return errors.New("full")
		}
		return nil
	}}
	promise := func(bytes int64) *promise {
		t.Helper()
		p, err := r.promise(bytes)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	first := promise(60)
	if _, err := r.promise(50); err == nil || err.Error() != "no room for a shard file: full" {
		t.Errorf("the same room was promised twice: %v", err)
	}
	second := promise(40)
	if err := first.use(60); err != nil {
		t.Error(err)
	}
	free -= 60
	if err := first.use(1); err == nil {
		t.Error("a file that is larger than it was said to be took what another has")
	}
	second.end()
	second.end()
	free = roomPiece
	if err := first.use(1); err != nil {
		t.Errorf("there is room for more of it: %v", err)
	}
	first.end()
	if r.promised != 0 {
		t.Errorf("%d bytes stay promised", r.promised)
	}
}

// Without room neither the leader copies its file nor the learner takes it, and nothing
// is left half-done. Both say why, and go on by themselves when room was made.
func TestFilesTravelWhenThereIsRoom(t *testing.T) {
	var full [2]atomic.Bool // of the leader and the learner
	var asked, attempts [2]atomic.Int64
	log := &told{}
	c := newCluster(t, 2, func(config *Config) {
		fewTrailingLogs(config)
		node := strings.Index("ab", config.Node)
		config.Room = func(bytes int64) error {
			if asked[node].Store(bytes); full[node].Load() {
				attempts[node].Add(1)
				return fmt.Errorf("%s is full", config.Node)
			}
			return nil
		}
	})
	c.logs = log
	for _, name := range c.nodes {
		c.start(name)
	}
	leader := c.open("a", shardConfig(0, 1, []Server{c.server("a", 1)}))
	for i := range 100 {
		c.write(0, fmt.Sprint("e", i), 0, strings.Repeat("x", 1<<10))
	}
	shorten(t, leader)
	full[0].Store(true)
	full[1].Store(true)
	learner := c.open("b", shardConfig(0, 2, nil))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := leader.AddLearner(ctx, c.server("b", 2)); err != nil {
		t.Fatal(err)
	}
	refused := func(node int) {
		t.Helper()
		eventually(t, "some attempts of "+c.nodes[node], func() bool { return attempts[node].Load() > 2 })
		if asked[node].Load() <= 0 {
			t.Errorf("%s asks for %d bytes", c.nodes[node], asked[node].Load())
		}
		if names := filesIn(t, filepath.Join(c.dirs[c.nodes[node]], tmpDir)); len(names) != 0 {
			t.Errorf("%s: left are %v", c.nodes[node], names)
		}
		const said = "a shard file cannot travel: it is tried again"
		if got := log.count(said); got != node+1 {
			t.Errorf("it is said %d times that there is no room, want %d", got, node+1)
		}
		if log.count(c.nodes[node]+" is full") == 0 {
			t.Error("the log does not say why")
		}
	}
	refused(0)
	full[0].Store(false)
	eventually(t, "the reason to be shown", func() bool {
		ok, reason := learner.Ready()
		return !ok && strings.HasSuffix(reason, "; no room for a shard file: b is full")
	})
	refused(1)
	full[1].Store(false)
	c.wantEverywhere(0, "e99", strings.Repeat("x", 1<<10))
	if learner.log.number(stableInstalled) == 0 {
		t.Error("the learner got the log, not the file")
	}
	if got := log.count("there is room for the shard file again"); got != 2 {
		t.Errorf("it is said %d times that there is room again, want twice", got)
	}
	eventually(t, "b to catch up", func() bool {
		_, reason := learner.Ready()
		return reason == "learner: it has caught up and has no vote yet"
	})
	for node, name := range c.nodes {
		h := c.host(name)
		h.room.mu.Lock()
		if h.room.promised != 0 || asked[node].Load() < 64<<10 {
			t.Errorf("%s: asked for %d bytes, %d stay promised", name, asked[node].Load(), h.room.promised)
		}
		h.room.mu.Unlock()
	}
}
