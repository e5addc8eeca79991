package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"writ/actors/entity"
	"writ/actors/gateway"
	writv1 "writ/proto/writ/v1"
)

// info reads what a client's program sees of an error.
func info(err error) (code codes.Code, reason string, details map[string]string, retry time.Duration) {
	st := status.Convert(err)
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			if d.GetDomain() == "writ" {
				reason, details = d.GetReason(), d.GetMetadata()
			}
		case *errdetails.RetryInfo:
			retry = d.GetRetryDelay().AsDuration()
		}
	}
	return st.Code(), reason, details, retry
}

// TestOutcomeTable reads every row as a client does, through a real connection.
func TestOutcomeTable(t *testing.T) {
	tests := []struct {
		reason  entity.Reason
		code    codes.Code
		retries bool
	}{
		{entity.Invalid, codes.InvalidArgument, false},
		{entity.TooLarge, codes.InvalidArgument, false},
		{entity.KeyReused, codes.Aborted, false},
		{entity.VersionMismatch, codes.Aborted, false},
		{entity.Cancelled, codes.FailedPrecondition, false},
		{entity.Unauthenticated, codes.Unauthenticated, false},
		{entity.Denied, codes.PermissionDenied, false},
		{entity.HandlerPanic, codes.Internal, false},
		{entity.NotExecuted, codes.Unavailable, true},
		{entity.Overloaded, codes.ResourceExhausted, true},
		{entity.InFlight, codes.Aborted, true},
		{entity.OutcomeUnknown, codes.Unavailable, true},
		{entity.Expired, codes.FailedPrecondition, false},
	}
	for _, tt := range tests {
		t.Run(string(tt.reason), func(t *testing.T) {
			inner := entity.Errorf(tt.reason, "why %d", 7).With("limit", "9")
			_, client := single(t, fails(fmt.Errorf("wrapped: %w", inner)))
			_, err := client.Submit(ctx(t), deposit("k"))
			code, reason, details, retry := info(err)
			if code != tt.code || reason != string(tt.reason) || status.Convert(err).Message() != "why 7" {
				t.Errorf("got %v %s %q, want %v %s", code, reason, status.Convert(err).Message(), tt.code, tt.reason)
			}
			if details["limit"] != "9" {
				t.Errorf("details %v lack the limit", details)
			}
			if (retry > 0) != tt.retries {
				t.Errorf("retry info %s, want some: %v", retry, tt.retries)
			}
			// And back, as another node reads it.
			var back *entity.Error
			if !errors.As(gateway.FromStatus(ctx(t), err, true), &back) || back.Reason != tt.reason || back.Message != "why 7" || back.RetryAfter != retry {
				t.Errorf("back: %+v", back)
			}
		})
	}
}

func TestErrorsWithoutReason(t *testing.T) {
	tests := map[string]struct {
		err    error
		code   codes.Code
		reason string
	}{
		"deadline in the queue":    {context.DeadlineExceeded, codes.DeadlineExceeded, ""},
		"cancelled":                {fmt.Errorf("forward: %w", context.Canceled), codes.Canceled, ""},
		"a mistake in this node":   {errors.New("secret path /var/lib/writ"), codes.Unavailable, "OUTCOME_UNKNOWN"},
		"a reason from the future": {entity.Errorf("NEW_WORD", "x"), codes.Unavailable, "OUTCOME_UNKNOWN"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, client := single(t, fails(tt.err))
			_, err := client.Submit(ctx(t), deposit("k"))
			code, reason, _, _ := info(err)
			if code != tt.code || reason != tt.reason {
				t.Errorf("got %v %q, want %v %q", code, reason, tt.code, tt.reason)
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("the text shows internals: %v", err)
			}
		})
	}
	if gateway.ToStatus(nil) != nil || gateway.FromStatus(ctx(t), nil, true) != nil {
		t.Error("no error must stay none")
	}
}

func TestRetryAfterOfTheError(t *testing.T) {
	_, client := single(t, fails(entity.Errorf(entity.Overloaded, "busy").Retry(3*time.Second)))
	_, err := client.Submit(ctx(t), deposit("k"))
	if _, _, _, retry := info(err); retry != 3*time.Second {
		t.Errorf("retry info %s", retry)
	}
}

// TestLongTexts: whatever a handler or an error says, the code arrives, with the
// 8 KiB of headers that the strictest clients accept.
func TestLongTexts(t *testing.T) {
	const size = 20 << 20
	details := map[string]string{}
	for i := range 500 {
		details[fmt.Sprintf("field-%03d", i)] = strings.Repeat("d", 1000)
	}
	for name, text := range map[string]string{
		"ascii":         strings.Repeat("x", size),
		"three bytes":   strings.Repeat("€", size/3),
		"line feeds":    strings.Repeat("\n", size),
		"percent signs": strings.Repeat("%", size),
		"invalid":       strings.Repeat("\xff", size),
	} {
		t.Run(name, func(t *testing.T) {
			for kind, host := range map[string]*fakeHost{
				"error": fails(&entity.Error{Reason: entity.TooLarge, Message: text, Details: details}),
				"rejection": rejects(&spb.Status{Code: int32(codes.OutOfRange), Message: text, Details: []*anypb.Any{
					packed(&errdetails.ErrorInfo{Reason: strings.Repeat("R", 10_000), Domain: "writ"}),
					packed(&errdetails.DebugInfo{Detail: strings.Repeat("D", 1<<20)}),
				}}),
			} {
				c, _ := single(t, host)
				strict := writv1.NewEntityServiceClient(dial(t, c.table.addresses["n1"], maxHeaders(8<<10)))
				_, err := strict.Submit(ctx(t), deposit("k"))
				code, reason, _, _ := info(err)
				want := codes.InvalidArgument
				if kind == "rejection" {
					want = codes.OutOfRange
				}
				if code != want || reason == "" {
					t.Errorf("%s: got %v %q: %.100v", kind, code, reason, err)
				}
				if n := len(status.Convert(err).Message()); n > 2048 || n < 1300 && name != "invalid" {
					t.Errorf("%s: text has %d bytes", kind, n)
				}
			}
		})
	}
}

func TestFromStatusOfOthers(t *testing.T) {
	unavailable := status.Error(codes.Unavailable, "connection refused")
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	bounded, cancelBounded := context.WithTimeout(t.Context(), time.Hour)
	defer cancelBounded()
	tests := map[string]struct {
		ctx  context.Context //nolint:containedctx // an argument of the test's table
		err  error
		sent bool
		want error
	}{
		"unavailable, not sent": {t.Context(), unavailable, false, &entity.Error{Reason: entity.NotExecuted}},
		"unavailable, sent":     {t.Context(), unavailable, true, &entity.Error{Reason: entity.OutcomeUnknown}},
		"deadline of the peer":  {t.Context(), status.Error(codes.DeadlineExceeded, ""), true, &entity.Error{Reason: entity.OutcomeUnknown}},
		"our deadline there":    {bounded, status.Error(codes.DeadlineExceeded, ""), true, context.DeadlineExceeded},
		"our deadline, unsent":  {bounded, status.Error(codes.DeadlineExceeded, ""), false, &entity.Error{Reason: entity.NotExecuted}},
		"pool closed":           {t.Context(), status.Error(codes.Canceled, ""), false, &entity.Error{Reason: entity.NotExecuted}},
		"internal, sent":        {t.Context(), status.Error(codes.Internal, "x"), true, &entity.Error{Reason: entity.OutcomeUnknown}},
		"not a status":          {t.Context(), errors.New("x"), true, &entity.Error{Reason: entity.OutcomeUnknown}},
		"caller gone":           {gone, status.Error(codes.Canceled, ""), true, context.Canceled},
		"another domain":        {t.Context(), withInfo(codes.InvalidArgument, "INVALID", "example.com"), true, &entity.Error{Reason: entity.OutcomeUnknown}},
		"a newer reason":        {t.Context(), withInfo(codes.InvalidArgument, "NEW_WORD", "writ"), true, &entity.Error{Reason: entity.OutcomeUnknown}},
		"ours":                  {t.Context(), withInfo(codes.Unavailable, "NOT_EXECUTED", "writ"), true, &entity.Error{Reason: entity.NotExecuted}},
		"ours, caller gone":     {gone, withInfo(codes.Unavailable, "NOT_EXECUTED", "writ"), true, &entity.Error{Reason: entity.NotExecuted}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := gateway.FromStatus(tt.ctx, tt.err, tt.sent)
			if entity.ReasonOf(got) != entity.ReasonOf(tt.want) || entity.ReasonOf(tt.want) == "" && !errors.Is(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func withInfo(code codes.Code, reason, domain string) error {
	st, err := status.New(code, "text").WithDetails(&errdetails.ErrorInfo{Reason: reason, Domain: domain})
	if err != nil {
		return err
	}
	return st.Err()
}

// FuzzFromStatus: whatever another node sends, the result is an error of this
// process within the bounds, and turning it back and forth changes nothing.
func FuzzFromStatus(f *testing.F) {
	seed, err := proto.Marshal(status.Convert(gateway.ToStatus(entity.Errorf(entity.NotExecuted, "no leader").With("leader", "n2"))).Proto())
	must(f, err)
	f.Add(seed, true)
	f.Add([]byte{}, false)
	retry, err := proto.Marshal(&spb.Status{Code: 14, Details: []*anypb.Any{packed(&errdetails.RetryInfo{RetryDelay: &durationpb.Duration{Seconds: -1 << 62}})}})
	must(f, err)
	f.Add(retry, true)
	f.Fuzz(func(t *testing.T, data []byte, sent bool) {
		st := &spb.Status{}
		if proto.Unmarshal(data, st) != nil || st.GetCode() == 0 {
			return
		}
		var first, second *entity.Error
		if !errors.As(gateway.FromStatus(t.Context(), status.ErrorProto(st), sent), &first) {
			t.Fatal("not an entity error")
		}
		if len(first.Message) > 3<<10 || len(first.Details) > 16 || first.RetryAfter < 0 {
			t.Fatalf("out of bounds: %+v", first)
		}
		wire := gateway.ToStatus(first)
		if !errors.As(gateway.FromStatus(t.Context(), wire, sent), &second) {
			t.Fatal("not an entity error")
		}
		if diff := cmp.Diff(wire.Error(), gateway.ToStatus(second).Error()); diff != "" || first.Reason != second.Reason {
			t.Fatalf("changed on the way back: %s", diff)
		}
	})
}
