package actors_test

import (
	"strings"
	"testing"
	"time"

	"writ/actors"
	"writ/actors/entity"
)

func TestConfigInvalid(t *testing.T) {
	registry, err := entity.NewRegistry(kind("counter", hooks{}))
	if err != nil {
		t.Fatal(err)
	}
	limits := func(change func(*actors.Limits)) actors.Limits {
		l := actors.DefaultLimits()
		change(&l)
		return l
	}
	tests := []struct {
		name   string
		change func(*actors.Config)
		want   string // "": valid
	}{
		{"defaults", func(*actors.Config) {}, ""},
		{"no registry", func(c *actors.Config) { c.Registry = nil }, "registry"},
		{"no courier", func(c *actors.Config) { c.Courier = nil }, "courier"},
		{"negative skew", func(c *actors.Config) { c.Skew = -1 }, "skew"},
		{"negative sends", func(c *actors.Config) { c.Sends = -1 }, "sends"},
		{"falling retry", func(c *actors.Config) { c.Retry = actors.Retry{First: 2, Most: 1} }, "retry"},
		{"no rows", func(c *actors.Config) { c.Limits = limits(func(l *actors.Limits) { l.Rows = 0 }) }, "limit entities.Rows must"},
		{"small record", func(c *actors.Config) { c.Limits = limits(func(l *actors.Limits) { l.Record = l.State }) }, "limit entities.Record "},
		{"small shard", func(c *actors.Config) { c.Limits = limits(func(l *actors.Limits) { l.ShardBytes = 1 }) }, "limit entities.ShardBytes "},
		{"large entity", func(c *actors.Config) { c.Limits = limits(func(l *actors.Limits) { l.EntityCalls = l.ShardCalls + 1 }) }, "limit entities.EntityCalls "},
		{"long names", func(c *actors.Config) { c.Limits = limits(func(l *actors.Limits) { l.Name = 1 << 20 }) }, "entities.Name"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := actors.Config{Node: "n1", Registry: registry, Courier: &courier{}, Passivation: time.Minute}
			tt.change(&c)
			rt, err := actors.New(c)
			if rt != nil {
				defer func() { _ = rt.Close(t.Context()) }()
			}
			switch {
			case tt.want == "" && err != nil:
				t.Error(err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("error is %v, want one about %q", err, tt.want)
			}
		})
	}
}
