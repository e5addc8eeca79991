package gateway_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	accountv1 "writ/proto/writ/account/v1"
	nodev1 "writ/proto/writ/node/v1"
	writv1 "writ/proto/writ/v1"
)

func maxHeaders(n uint32) grpc.DialOption { return grpc.WithMaxHeaderListSize(n) }

// rejects answers every submit with a stored rejection; the second time and
// later it is a replay.
func rejects(st *spb.Status) *fakeHost {
	replayed := false
	return &fakeHost{forward: func(context.Context, *nodev1.ForwardRequest) (*nodev1.ForwardResponse, error) {
		r := &writv1.SubmitResponse{Rejection: st, Version: 7, AcceptedAt: timestamppb.New(time.Unix(1_700_000_000, 5)), Replayed: replayed}
		replayed = true
		return submitted(r), nil
	}}
}

func stored(code codes.Code, reason, text string) *spb.Status {
	return &spb.Status{Code: int32(code), Message: text, Details: []*anypb.Any{packed(&errdetails.ErrorInfo{Reason: reason, Domain: "writ"})}}
}

func TestRejectionIsReplayedVerbatim(t *testing.T) {
	for _, code := range []codes.Code{codes.FailedPrecondition, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied, codes.OutOfRange} {
		_, client := single(t, rejects(stored(code, "INSUFFICIENT_FUNDS", "balance is 3 EUR")))
		var answers []*spb.Status
		for replay := range 3 {
			var header, trailer metadata.MD
			resp, err := client.Submit(ctx(t), deposit("k"), grpc.Header(&header), grpc.Trailer(&trailer))
			if resp != nil || err == nil {
				t.Fatalf("got %v, want an error", resp)
			}
			answers = append(answers, status.Convert(err).Proto())
			want := ""
			if replay > 0 {
				want = "true"
			}
			for name, md := range map[string]metadata.MD{"header": header, "trailer": trailer} {
				if got := md.Get("idempotency-replayed"); len(got) > 1 || len(got) == 1 && got[0] != want || len(got) == 0 && want != "" {
					t.Errorf("answer %d: %s says replayed %q", replay, name, got)
				}
			}
		}
		if diff := cmp.Diff(answers[0], answers[2], protocmp.Transform()); diff != "" {
			t.Errorf("the replay differs: %s", diff)
		}
		gotCode, reason, details, retry := info(status.ErrorProto(answers[0]))
		if gotCode != code || reason != "INSUFFICIENT_FUNDS" || answers[0].GetMessage() != "balance is 3 EUR" || retry != 0 {
			t.Errorf("got %v %s %q, retry %s", gotCode, reason, answers[0].GetMessage(), retry)
		}
		want := map[string]string{"outcome": "rejected", "version": "7", "accepted_at": "2023-11-14T22:13:20.000000005Z"}
		if diff := cmp.Diff(want, details); diff != "" {
			t.Errorf("details: %s", diff)
		}
	}
}

// A handler may use any word as its reason, and nothing but its five codes.
func TestRejectionIsNoAnswerOfWrit(t *testing.T) {
	_, client := single(t, rejects(stored(codes.Unavailable, "NOT_EXECUTED", "really")))
	_, err := client.Submit(ctx(t), deposit("k"))
	code, _, details, retry := info(err)
	if code != codes.FailedPrecondition || details["outcome"] != "rejected" || retry != 0 {
		t.Errorf("got %v %v, retry %s", code, details, retry)
	}
}

func TestReplayedReply(t *testing.T) {
	reply := packed(&accountv1.Balance{AmountMinor: 5, Currency: "EUR"})
	_, client := single(t, &fakeHost{forward: func(_ context.Context, req *nodev1.ForwardRequest) (*nodev1.ForwardResponse, error) {
		return submitted(&writv1.SubmitResponse{Reply: reply, Version: 3, Replayed: req.GetSubmit().GetIdempotencyKey() == "again"}), nil
	}})
	for key, replayed := range map[string]bool{"first": false, "again": true} {
		var header metadata.MD
		req := deposit(key)
		req.Tag = 9
		resp, err := client.Submit(ctx(t), req, grpc.Header(&header))
		must(t, err)
		if !proto.Equal(resp.GetReply(), reply) || resp.GetVersion() != 3 || resp.GetTag() != 9 || resp.GetReplayed() != replayed {
			t.Errorf("%s: %v", key, resp)
		}
		if got := len(header.Get("idempotency-replayed")) > 0; got != replayed {
			t.Errorf("%s: header says replayed %v", key, got)
		}
	}
}
