package main

import (
	"encoding/json"
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"

	accountv1 "writ/proto/writ/account/v1"
)

func TestWorkload(t *testing.T) {
	w := workload{accounts: 3, transfers: 50, deposits: true, prefix: "p", seed: 7}
	lines := slices.Collect(w.lines())
	if !slices.Equal(lines, slices.Collect(w.lines())) {
		t.Error("the same flags gave different lines")
	}
	if len(lines) != 53 {
		t.Fatalf("%d lines, want 53", len(lines))
	}
	keys := map[string]bool{}
	for i, text := range lines {
		var line struct {
			Kind, ID, Key string
			Command       json.RawMessage
		}
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			t.Fatalf("line %d: %v", i+1, err)
		}
		var packed anypb.Any
		if err := protojson.Unmarshal(line.Command, &packed); err != nil {
			t.Fatalf("line %d: %v", i+1, err)
		}
		command, err := packed.UnmarshalNew()
		if err != nil {
			t.Fatalf("line %d: %v", i+1, err)
		}
		if _, isDeposit := command.(*accountv1.Deposit); isDeposit != (i < 3) {
			t.Errorf("line %d is a %T", i+1, command)
		}
		if transfer, ok := command.(*accountv1.Transfer); ok && transfer.GetTo() == line.ID {
			t.Errorf("line %d transfers to oneself", i+1)
		}
		if line.Kind != "account" || keys[line.Key] {
			t.Errorf("line %d: kind %q, key %q", i+1, line.Kind, line.Key)
		}
		keys[line.Key] = true
	}
}
