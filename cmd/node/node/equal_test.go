package node_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	nodev1 "writ/proto/writ/node/v1"
	testingv1 "writ/proto/writ/testing/v1"
	writv1 "writ/proto/writ/v1"
)

// sender sends an order of a client of its own; the order is always the same but
// for what is named.
type sender func(t *testing.T, key string, amount int64, discount *int64) answer

// items are the keys of the order's map.
func items() []string {
	var names []string
	for i := range 20 {
		names = append(names, fmt.Sprint("item", i))
	}
	return names
}

func orderOf(amount int64, discount *int64) *testingv1.Order {
	o := &testingv1.Order{
		AmountMinor: amount, Currency: "EUR", DiscountMinor: discount, Items: map[string]int64{},
		Notes: []string{"a", "b"}, To: &testingv1.Address{Street: "Main Street"},
	}
	for _, name := range items() {
		o.Items[name] = int64(len(name))
	}
	return o
}

// backwards encodes an order with its fields and map entries in reverse, and with
// all defaults written out.
func backwards(o *testingv1.Order) []byte {
	var b []byte
	b = protowire.AppendVarint(protowire.AppendTag(b, 7, protowire.VarintType), 0) // gift: false
	b = protowire.AppendBytes(protowire.AppendTag(b, 6, protowire.BytesType),
		protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), o.GetTo().GetStreet()))
	for _, note := range o.GetNotes() {
		b = protowire.AppendString(protowire.AppendTag(b, 5, protowire.BytesType), note)
	}
	names := slices.Sorted(maps.Keys(o.GetItems()))
	slices.Reverse(names)
	for _, name := range names {
		entry := protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.VarintType), uint64(o.GetItems()[name]))
		entry = protowire.AppendString(protowire.AppendTag(entry, 1, protowire.BytesType), name)
		b = protowire.AppendBytes(protowire.AppendTag(b, 4, protowire.BytesType), entry)
	}
	if o.DiscountMinor != nil {
		b = protowire.AppendVarint(protowire.AppendTag(b, 3, protowire.VarintType), uint64(o.GetDiscountMinor()))
	}
	b = protowire.AppendString(protowire.AppendTag(b, 2, protowire.BytesType), o.GetCurrency())
	return protowire.AppendVarint(protowire.AppendTag(b, 1, protowire.VarintType), uint64(o.GetAmountMinor()))
}

// fromJSON encodes an order as grpcurl does: from JSON, by a descriptor.
func fromJSON(t *testing.T, o *testingv1.Order) []byte {
	t.Helper()
	text, err := protojson.MarshalOptions{EmitUnpopulated: true}.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	m := dynamicpb.NewMessage(o.ProtoReflect().Descriptor())
	if err := protojson.Unmarshal(text, m); err != nil {
		t.Fatal(err)
	}
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func senders(t *testing.T, c *testCluster) map[string]sender {
	t.Helper()
	cl := writv1.NewEntityServiceClient(c.dial("n1"))
	with := func(encode func(*testingv1.Order) []byte) sender {
		return func(t *testing.T, key string, amount int64, discount *int64) answer {
			t.Helper()
			o := orderOf(amount, discount)
			req := command(t, "order", "shop", key, o)
			req.Command.Value = encode(o)
			return send(t, cl, req)
		}
	}
	all := map[string]sender{
		"go": with(func(o *testingv1.Order) []byte {
			b, err := proto.Marshal(o)
			if err != nil {
				t.Fatal(err)
			}
			return b
		}),
		"other order, defaults written out": with(backwards),
		"json and a descriptor":             with(func(o *testingv1.Order) []byte { return fromJSON(t, o) }),
	}
	if python := findPython(t); python != "" {
		all["python"] = func(t *testing.T, key string, amount int64, discount *int64) answer {
			t.Helper()
			return insist(t, func(context.Context) answer {
				return runPython(t, python, c.nodes["n1"].Addresses().GRPC, key, amount, discount)
			})
		}
	}
	return all
}

// findPython is a Python that can import grpc, "" if there is none. Debian's comes
// with the packages python3-grpcio and python3-protobuf.
func findPython(t *testing.T) string {
	t.Helper()
	for _, python := range []string{"/usr/bin/python3", "python3"} {
		if exec.CommandContext(t.Context(), python, "-c", "import grpc, google.protobuf.message_factory").Run() == nil {
			return python
		}
	}
	t.Log("SKIP python: no python3 imports grpc (Debian: python3-grpcio, python3-protobuf)")
	return ""
}

func runPython(t *testing.T, python, addr, key string, amount int64, discount *int64) answer {
	t.Helper()
	job, err := json.Marshal(map[string]any{"files": files(t), "id": "shop", "key": key, "amount": amount, "discount": discount, "items": items()})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), python, "testdata/submit.py", addr)
	cmd.Stdin = bytes.NewReader(job)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	if err != nil {
		t.Fatalf("python: %v: %s", err, stderr.String())
	}
	var out struct {
		Code, Reason string
		Replayed     bool
	}
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatalf("python: %v: %s", err, text)
	}
	a := answer{reason: out.Reason, replayed: out.Replayed, code: codes.Unknown}
	for code := codes.OK; code <= codes.Unauthenticated; code++ {
		var named codes.Code
		if err := named.UnmarshalJSON([]byte(`"` + out.Code + `"`)); err == nil && named == code {
			a.code = code
		}
	}
	return a
}

// files are the descriptors of the client API and the test messages, dependencies
// first.
func files(t *testing.T) string {
	t.Helper()
	set := &descriptorpb.FileDescriptorSet{}
	seen := map[string]bool{}
	var add func(protoreflect.FileDescriptor)
	add = func(f protoreflect.FileDescriptor) {
		if seen[f.Path()] {
			return
		}
		seen[f.Path()] = true
		for i := range f.Imports().Len() {
			add(f.Imports().Get(i).FileDescriptor)
		}
		set.File = append(set.File, protodesc.ToFileDescriptorProto(f))
	}
	add(writv1.File_writ_v1_entity_proto)
	add(testingv1.File_writ_testing_v1_testing_proto)
	b, err := proto.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(b)
}

// TestEqualMessages covers that equal messages replay whatever their bytes are,
// from any language, and that unequal ones are refused.
func TestEqualMessages(t *testing.T) {
	c := newCluster(t, 1, newActing().conf)
	all := senders(t, c)
	zero := new(int64)
	for first, from := range all {
		for second, to := range all {
			t.Run(first+", then "+second, func(t *testing.T) {
				key := first + second
				if got := from(t, key, 500, nil); !got.first() {
					t.Fatalf("first: %v", got)
				}
				if got := to(t, key, 500, nil); got.code != codes.OK || !got.replayed {
					t.Errorf("equal message: %v, want a replay", got)
				}
				if got := to(t, key, 501, nil); got.code != codes.Aborted || got.reason != "KEY_REUSED" {
					t.Errorf("another amount: %v, want KEY_REUSED", got)
				}
				if got := to(t, key, 500, zero); got.code != codes.Aborted || got.reason != "KEY_REUSED" {
					t.Errorf("explicit zero of an optional field that was absent: %v, want KEY_REUSED", got)
				}
				if got := from(t, key+"0", 500, zero); !got.first() {
					t.Fatalf("explicit zero: %v", got)
				}
				if got := to(t, key+"0", 500, zero); !got.replayed {
					t.Errorf("explicit zero again: %v, want a replay", got)
				}
				if got := to(t, key+"0", 500, nil); got.code != codes.Aborted || got.reason != "KEY_REUSED" {
					t.Errorf("absent where zero was explicit: %v, want KEY_REUSED", got)
				}
			})
		}
	}
}

// TestUnknownFieldStoresNothing covers that a message with a field that the node
// does not know is refused at any depth, and that its key stays free.
func TestUnknownFieldStoresNothing(t *testing.T) {
	c := newCluster(t, 1, newActing().conf)
	cl := writv1.NewEntityServiceClient(c.dial("n1"))
	unknown := protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 1)
	good, err := proto.Marshal(orderOf(1, nil))
	if err != nil {
		t.Fatal(err)
	}
	nested := protowire.AppendBytes(protowire.AppendTag(slices.Clone(good), 6, protowire.BytesType), unknown)
	inMap := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 7)
	inMap = protowire.AppendBytes(protowire.AppendTag(inMap, 2, protowire.BytesType), unknown)
	for name, value := range map[string][]byte{
		"top":    append(slices.Clone(good), unknown...),
		"nested": nested,
		"in map": protowire.AppendBytes(protowire.AppendTag(slices.Clone(good), 8, protowire.BytesType), inMap),
	} {
		t.Run(name, func(t *testing.T) {
			req := command(t, "order", "shop", "unknown "+name, &testingv1.Order{})
			req.Command.Value = value
			if got := send(t, cl, req); got.code != codes.InvalidArgument || got.reason != "INVALID" {
				t.Errorf("got %v, want INVALID", got)
			}
			out, err := patiently(t, func(ctx context.Context) (*writv1.OutcomeResponse, error) {
				return cl.Outcome(ctx, &writv1.OutcomeRequest{Entity: req.GetEntity(), IdempotencyKey: req.GetIdempotencyKey(), CommandType: "writ.testing.v1.Order"})
			})
			if err != nil || out.GetState() != writv1.OutcomeResponse_NEVER_SEEN {
				t.Errorf("outcome %v, %v; want NEVER_SEEN", out, err)
			}
			req.Command.Value = good
			if got := send(t, cl, req); !got.first() {
				t.Errorf("the same key without the field: %v", got)
			}
		})
	}
}

// TestScopeOfKeys covers that a key belongs to one entity and one command.
func TestScopeOfKeys(t *testing.T) {
	c := newCluster(t, 1, newActing().conf)
	cl := writv1.NewEntityServiceClient(c.dial("n1"))
	calls := []*writv1.SubmitRequest{
		command(t, "actor", "e1", "1", &testingv1.Act{What: "ok", Text: "one"}),
		command(t, "actor", "e2", "1", &testingv1.Act{What: "ok", Text: "two"}),
		command(t, "actor", "e1", "1", orderOf(1, nil)),
		command(t, "order", "e1", "1", orderOf(2, nil)),
	}
	for i, req := range calls {
		if got := send(t, cl, req); !got.first() {
			t.Errorf("call %d: %v, want an execution of its own", i, got)
		}
	}
	for i, req := range calls {
		if got := send(t, cl, req); got.code != codes.OK || !got.replayed {
			t.Errorf("call %d again: %v, want its replay", i, got)
		}
	}
}

// An operator's call is made again when its answer is lost: replicas are compared at
// the index of the new try, not at that of the first.
func TestAuditAskedAgain(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.settle()
	admin, last := c.admin(), uint64(0)
	for range 50 {
		res := eventually(t, func(ctx context.Context) (*nodev1.AuditShardResponse, error) {
			return compared(ctx, admin, 0, "again")
		})
		if !res.GetReplicasEqual() || len(res.GetReplicas()) != 3 {
			t.Fatalf("replicas seem to differ: %v", res.GetReplicas())
		}
		index := res.GetReplicas()[0].GetIndex()
		if index <= last {
			t.Fatalf("compared at index %d, and at %d before", index, last)
		}
		last = index
	}
}
