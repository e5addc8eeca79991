package gateway_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	accountv1 "writ/proto/writ/account/v1"
	nodev1 "writ/proto/writ/node/v1"
	writv1 "writ/proto/writ/v1"
)

// unknown is an encoded field that none of the messages has.
func unknown() []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 1)
}

func TestSubmitForm(t *testing.T) {
	_, client := single(t, echoes(1))
	tests := map[string]struct {
		change func(*writv1.SubmitRequest)
		header []string // values of the metadata idempotency-key; with "-bin " before it, of idempotency-key-bin
		reason string   // "" for accepted
		texts  []string // in the message
	}{
		"good":                          {change: func(*writv1.SubmitRequest) {}},
		"no entity":                     {func(r *writv1.SubmitRequest) { r.Entity = nil }, nil, "INVALID", []string{"entity.kind"}},
		"unknown kind":                  {func(r *writv1.SubmitRequest) { r.Entity.Kind = "acount" }, nil, "INVALID", []string{`"acount"`, "registered: account"}},
		"empty id":                      {func(r *writv1.SubmitRequest) { r.Entity.Id = "" }, nil, "INVALID", []string{"1 to 255 bytes"}},
		"longest id":                    {change: func(r *writv1.SubmitRequest) { r.Entity.Id = strings.Repeat("i", 255) }},
		"id too long":                   {func(r *writv1.SubmitRequest) { r.Entity.Id = strings.Repeat("i", 256) }, nil, "TOO_LARGE", []string{"has 256", "entities.Name is 255"}},
		"odd id":                        {change: func(r *writv1.SubmitRequest) { r.Entity.Id = "a\x00/\n$\"" }},
		"no key":                        {func(r *writv1.SubmitRequest) { r.IdempotencyKey = "" }, nil, "INVALID", []string{"key is missing", "idempotency-key"}},
		"longest key":                   {change: func(r *writv1.SubmitRequest) { r.IdempotencyKey = strings.Repeat("k", 255) }},
		"key too long":                  {func(r *writv1.SubmitRequest) { r.IdempotencyKey = strings.Repeat("k", 256) }, nil, "TOO_LARGE", []string{"has 256", "entities.Key is 255"}},
		"key as metadata":               {func(r *writv1.SubmitRequest) { r.IdempotencyKey = "" }, []string{"k"}, "", nil},
		"key twice":                     {func(*writv1.SubmitRequest) {}, []string{"k"}, "", nil},
		"two keys":                      {func(*writv1.SubmitRequest) {}, []string{"other"}, "INVALID", []string{"two idempotency keys"}},
		"two keys in metadata":          {func(r *writv1.SubmitRequest) { r.IdempotencyKey = "" }, []string{"a", "b"}, "INVALID", []string{"two idempotency keys"}},
		"bytes as metadata":             {change: func(r *writv1.SubmitRequest) { r.IdempotencyKey = "" }, header: []string{"-bin \xff\x00\n"}},
		"bytes as a field":              {change: func(r *writv1.SubmitRequest) { r.IdempotencyKey, r.IdempotencyKeyBytes = "", []byte("\xff\x00\n") }},
		"bytes too long":                {func(r *writv1.SubmitRequest) { r.IdempotencyKey, r.IdempotencyKeyBytes = "", make([]byte, 256) }, nil, "TOO_LARGE", []string{"has 256", "entities.Key is 255"}},
		"text as bytes":                 {change: func(r *writv1.SubmitRequest) { r.IdempotencyKeyBytes = []byte("k") }, header: []string{"-bin k"}},
		"text and other bytes":          {func(r *writv1.SubmitRequest) { r.IdempotencyKeyBytes = []byte("l") }, nil, "INVALID", []string{"two idempotency keys"}},
		"text and other metadata":       {func(*writv1.SubmitRequest) {}, []string{"-bin l"}, "INVALID", []string{"two idempotency keys"}},
		"empty metadata":                {func(*writv1.SubmitRequest) {}, []string{""}, "INVALID", []string{"metadata idempotency-key is empty"}},
		"empty metadata and no key":     {func(r *writv1.SubmitRequest) { r.IdempotencyKey = "" }, []string{""}, "INVALID", []string{"key is missing"}},
		"no command":                    {func(r *writv1.SubmitRequest) { r.Command = nil }, nil, "INVALID", []string{"no command"}},
		"unknown command":               {func(r *writv1.SubmitRequest) { r.Command = packed(&accountv1.Balance{}) }, nil, "INVALID", []string{`"writ.account.v1.Balance"`, "registered: writ.account.v1.Deposit, writ.account.v1.Posted, writ.account.v1.Transfer"}},
		"any type url":                  {change: func(r *writv1.SubmitRequest) { r.Command.TypeUrl = "example.com/types/writ.account.v1.Deposit" }},
		"no type":                       {func(r *writv1.SubmitRequest) { r.Command = &anypb.Any{} }, nil, "INVALID", []string{"registered: writ.account.v1.Deposit"}},
		"does not decode":               {func(r *writv1.SubmitRequest) { r.Command.Value = []byte{0xff} }, nil, "INVALID", []string{"writ.account.v1.Deposit does not decode"}},
		"unknown field":                 {func(r *writv1.SubmitRequest) { r.Command.Value = append(r.Command.Value, unknown()...) }, nil, "INVALID", []string{"99", "upgrade the nodes"}},
		"unknown field in the envelope": {func(r *writv1.SubmitRequest) { r.ProtoReflect().SetUnknown(unknown()) }, nil, "INVALID", []string{"SubmitRequest", "99"}},
		"unknown field in the ref":      {func(r *writv1.SubmitRequest) { r.Entity.ProtoReflect().SetUnknown(unknown()) }, nil, "INVALID", []string{"EntityRef", "99"}},
		"at least once needs no key":    {change: func(r *writv1.SubmitRequest) { r.IdempotencyKey, r.Command = "", packed(&accountv1.Posted{}) }},
		"issued now":                    {change: func(r *writv1.SubmitRequest) { r.IssuedAt = timestamppb.Now() }},
		"issued long ago":               {change: func(r *writv1.SubmitRequest) { r.IssuedAt = timestamppb.New(time.Unix(1, 0)) }},
		"text that is not UTF-8":        {func(r *writv1.SubmitRequest) { r.Command.Value = []byte{0x12, 1, 0xff} }, nil, "INVALID", []string{"does not decode", "string field contains invalid UTF-8"}},
		"issued at no time":             {func(r *writv1.SubmitRequest) { r.IssuedAt = &timestamppb.Timestamp{Nanos: -1} }, nil, "INVALID", []string{"not a timestamp"}},
		"issued at time.Time{}":         {func(r *writv1.SubmitRequest) { r.IssuedAt = timestamppb.New(time.Time{}) }, nil, "INVALID", []string{"before 1970"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			req := deposit("k")
			tt.change(req)
			c := ctx(t)
			for _, v := range tt.header {
				header := "idempotency-key"
				if raw, binary := strings.CutPrefix(v, "-bin "); binary {
					header, v = header+"-bin", raw
				}
				c = metadata.AppendToOutgoingContext(c, header, v)
			}
			_, err := client.Submit(c, req)
			_, reason, _, _ := info(err)
			if reason != tt.reason || tt.reason == "" && err != nil {
				t.Fatalf("got %q: %v, want %q", reason, err, tt.reason)
			}
			for _, text := range tt.texts {
				if !strings.Contains(status.Convert(err).Message(), text) {
					t.Errorf("%q lacks %q", status.Convert(err).Message(), text)
				}
			}
		})
	}
}

// The limit holds for the payload; above the limit of messages gRPC refuses.
func TestSizes(t *testing.T) {
	c, client := single(t, echoes(1))
	command := func(bytes int) *writv1.SubmitRequest {
		req := deposit("k")
		req.Command = &anypb.Any{TypeUrl: "x/writ.account.v1.Deposit"}
		frame := proto.Size(&accountv1.Deposit{Currency: strings.Repeat("x", bytes)}) - bytes
		var err error
		req.Command.Value, err = proto.Marshal(&accountv1.Deposit{Currency: strings.Repeat("x", bytes-frame)})
		must(t, err)
		return req
	}
	limit := c.limits.Command
	if _, err := client.Submit(ctx(t), command(limit)); err != nil {
		t.Errorf("at the limit: %v", err)
	}
	for _, size := range []int{limit + 1, 2 * limit, c.limits.Message - 64<<10} {
		_, err := client.Submit(ctx(t), command(size))
		code, reason, details, _ := info(err)
		if code != codes.InvalidArgument || reason != "TOO_LARGE" || details["limit"] != "gateway.Command" || details["max"] != fmt.Sprint(limit) || details["size"] != fmt.Sprint(size) {
			t.Errorf("%d bytes: %v %s %v", size, code, reason, details)
		}
	}
	if _, err := client.Submit(ctx(t), command(c.limits.Message+1)); status.Code(err) != codes.ResourceExhausted ||
		!strings.Contains(err.Error(), "received message larger than max") { // as docs/guarantee.md says
		t.Errorf("over the message limit: %v", err)
	}
}

func TestReadForm(t *testing.T) {
	_, client := single(t, echoes(4))
	ref := &writv1.EntityRef{Kind: "account", Id: "a"}
	tests := map[string]struct {
		req    *writv1.ReadRequest
		reason string
		text   string
	}{
		"state":               {&writv1.ReadRequest{Entity: ref}, "", ""},
		"stale":               {&writv1.ReadRequest{Entity: ref, Consistency: writv1.Consistency_STALE}, "", ""},
		"query":               {&writv1.ReadRequest{Entity: ref, Query: packed(&accountv1.Total{})}, "", ""},
		"unknown query":       {&writv1.ReadRequest{Entity: ref, Query: packed(&accountv1.Deposit{})}, "INVALID", "registered: writ.account.v1.Total"},
		"unknown consistency": {&writv1.ReadRequest{Entity: ref, Consistency: 9}, "INVALID", "LINEARIZABLE or STALE"},
		"no entity":           {&writv1.ReadRequest{}, "INVALID", "entity.kind"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			resp, err := client.Read(ctx(t), tt.req)
			_, reason, _, _ := info(err)
			if reason != tt.reason || !strings.Contains(status.Convert(err).Message(), tt.text) || err == nil && resp.GetVersion() != 4 {
				t.Errorf("got %v, %v", resp, err)
			}
		})
	}
}

func TestOutcomeForm(t *testing.T) {
	var last *nodev1.ForwardRequest
	_, client := single(t, &fakeHost{forward: func(_ context.Context, req *nodev1.ForwardRequest) (*nodev1.ForwardResponse, error) {
		last = req
		return &nodev1.ForwardResponse{Answer: &nodev1.ForwardResponse_Outcome{Outcome: &writv1.OutcomeResponse{
			State:   writv1.OutcomeResponse_REJECTED,
			Outcome: &writv1.SubmitResponse{Version: 3, Rejection: stored(codes.NotFound, "NO_ACCOUNT", strings.Repeat("x", 5000))},
		}}}, nil
	}})
	ref := &writv1.EntityRef{Kind: "account", Id: "a"}
	const command = "writ.account.v1.Deposit"
	tests := map[string]struct {
		req    *writv1.OutcomeRequest
		header string
		text   string
	}{
		"good":            {&writv1.OutcomeRequest{Entity: ref, IdempotencyKey: "k", CommandType: command}, "", ""},
		"key as metadata": {&writv1.OutcomeRequest{Entity: ref, CommandType: command}, "k", ""},
		"two keys":        {&writv1.OutcomeRequest{Entity: ref, IdempotencyKey: "k", CommandType: command}, "l", "two idempotency keys"},
		"no key":          {&writv1.OutcomeRequest{Entity: ref, CommandType: command}, "", "key is missing"},
		"no command":      {&writv1.OutcomeRequest{Entity: ref, IdempotencyKey: "k"}, "", "registered: writ.account.v1.Deposit"},
		"at least once":   {&writv1.OutcomeRequest{Entity: ref, IdempotencyKey: "k", CommandType: "writ.account.v1.Posted"}, "", "at least once"},
		"issued at none":  {&writv1.OutcomeRequest{Entity: ref, IdempotencyKey: "k", CommandType: command, IssuedAt: &timestamppb.Timestamp{Nanos: -1}}, "", "not a timestamp"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for _, call := range []func(context.Context, *writv1.OutcomeRequest) (*writv1.OutcomeResponse, error){
				func(c context.Context, r *writv1.OutcomeRequest) (*writv1.OutcomeResponse, error) {
					return client.Outcome(c, r)
				},
				func(c context.Context, r *writv1.OutcomeRequest) (*writv1.OutcomeResponse, error) {
					return client.Cancel(c, r)
				},
			} {
				c := ctx(t)
				if tt.header != "" {
					c = metadata.AppendToOutgoingContext(c, "idempotency-key", tt.header)
				}
				resp, err := call(c, tt.req)
				if tt.text != "" {
					if _, reason, _, _ := info(err); reason != "INVALID" || !strings.Contains(err.Error(), tt.text) {
						t.Errorf("got %v, want %q", err, tt.text)
					}
					continue
				}
				must(t, err)
				// A stored text that was never cut is cut here too.
				if n := len(resp.GetOutcome().GetRejection().GetMessage()); resp.GetState() != writv1.OutcomeResponse_REJECTED || n > 2048 {
					t.Errorf("state %v, text of %d bytes", resp.GetState(), n)
				}
			}
			if tt.text == "" && last.GetCancel().GetIdempotencyKey() != "k" {
				t.Errorf("the host got %v", last)
			}
		})
	}
}
