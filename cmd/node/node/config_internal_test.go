package node

import (
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"writ/actors/account"
	"writ/actors/entity"
	nodev1 "writ/proto/writ/node/v1"
)

func soundConfig() Config {
	return Config{
		ID: "n1", Dir: "d", GRPC: ":0", HTTP: ":0", Gossip: ":0", Raft: ":0", Cluster: "c", InitialNodes: []string{"n1"},
		Limits: DefaultLimits(),
	}.withDefaults()
}

// TestEveryNumberOfTheConfigurationIsChecked finds the numbers by itself: whoever
// adds one has to say what it may be.
func TestEveryNumberOfTheConfigurationIsChecked(t *testing.T) {
	if err := soundConfig().Validate(); err != nil {
		t.Fatal(err)
	}
	numbers := 0
	var walk func(path string, at func(*Config) reflect.Value)
	walk = func(path string, at func(*Config) reflect.Value) {
		c := soundConfig()
		v := at(&c)
		switch {
		case v.Kind() == reflect.Struct:
			for i := range v.NumField() {
				walk(path+"."+v.Type().Field(i).Name, func(c *Config) reflect.Value { return at(c).Field(i) })
			}
			return
		case v.CanInt():
			v.SetInt(-1)
		case v.CanUint():
			v.SetUint(math.MaxUint64 >> (64 - v.Type().Bits()))
		default:
			return
		}
		numbers++
		if err := c.Validate(); err == nil {
			t.Errorf("%s = %v is taken", path, v)
		}
	}
	walk("Config", func(c *Config) reflect.Value { return reflect.ValueOf(c).Elem() })
	if numbers < 20 {
		t.Errorf("only %d numbers found", numbers)
	}
}

func TestDurationsOutsideTheirBounds(t *testing.T) {
	for name, x := range map[string]struct {
		spoil func(*Config)
		word  string
	}{
		"dead grace negative":   {func(c *Config) { c.DeadNodeGrace = -5 * time.Minute }, "-5m"},
		"dead grace tiny":       {func(c *Config) { c.DeadNodeGrace = time.Millisecond }, "the least is 1s"},
		"window without end":    {func(c *Config) { c.Window = math.MaxInt64 }, "the most"},
		"horizon without end":   {func(c *Config) { c.RetryHorizon = math.MaxInt64 }, "retry horizon"},
		"audit without a pause": {func(c *Config) { c.AuditInterval = -1 }, "audit interval"},
		"free min over all":     {func(c *Config) { c.FreeMin = math.MaxUint64 }, "free min"},
	} {
		c := soundConfig()
		x.spoil(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), x.word) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A number that cannot be kept must not be taken for "not given", nor for a key's
// end that lies in the past.
func TestContractOutsideItsBounds(t *testing.T) {
	registry, err := entity.NewRegistry(account.Kinds()...)
	if err != nil {
		t.Fatal(err)
	}
	kind := registry.Kinds()[0]
	for _, d := range []time.Duration{-time.Second, math.MaxInt64} {
		for name, spoil := range map[string]func(*nodev1.Contract){
			"window":      func(c *nodev1.Contract) { c.Window = int64(d) },
			"horizon":     func(c *nodev1.Contract) { c.RetryHorizon = int64(d) },
			"kind window": func(c *nodev1.Contract) { c.WindowByKind = map[string]int64{kind: int64(d)} },
		} {
			c := soundConfig().defaultContract()
			spoil(c)
			if err := checkAmended(c, registry); err == nil {
				t.Errorf("%s of %v is taken", name, d)
			}
		}
	}
}
