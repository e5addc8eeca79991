package gateway_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"writ/actors/gateway"
	nodev1 "writ/proto/writ/node/v1"
	writv1 "writ/proto/writ/v1"
)

func TestParseCredentials(t *testing.T) {
	tests := map[string]struct{ table, problem string }{
		"short form":    {`{"secret-a": "a", "secret-b": "b"}`, ""},
		"long form":     {`{"secret-a": {"tenant": "a", "admin": true}}`, ""},
		"empty":         {`{}`, "no token"},
		"not an object": {`["secret-a"]`, "JSON object"},
		"nothing":       {``, "JSON object"},
		"cut off":       {`{"secret-a": "a"`, "cut off"},
		"trailing":      {`{"secret-a": "a"} {}`, "follows"},
		"twice":         {`{"secret-a": "a", "secret-a": "b"}`, "entry 2: the token is already in an earlier entry"},
		"empty token":   {`{"": "a"}`, "token is empty"},
		"empty tenant":  {`{"secret-a": ""}`, "1 to 64 bytes"},
		"long tenant":   {`{"secret-a": "` + strings.Repeat("t", 65) + `"}`, "1 to 64 bytes"},
		"number":        {`{"secret-a": 7}`, "must be a tenant"},
		"unknown field": {`{"secret-a": {"tenant": "a", "root": true}}`, "must be a tenant"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "tokens.json")
			must(t, os.WriteFile(path, []byte(tt.table), 0o600))
			_, err := gateway.LoadCredentials(path)
			if tt.problem == "" {
				must(t, err)
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.problem) {
				t.Errorf("got %v, want %q", err, tt.problem)
			}
			if err != nil && strings.Contains(err.Error(), "secret-a") {
				t.Errorf("the error quotes a token: %v", err)
			}
		})
	}
	if _, err := gateway.LoadCredentials(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("no file, no error")
	}
}

// TestTenants: the tenant is the token's, whatever the request says.
func TestTenants(t *testing.T) {
	creds, err := gateway.ParseCredentials([]byte(`{"ta": "a", "tb": {"tenant": "b"}, "to": {"tenant": "a", "admin": true}}`))
	must(t, err)
	tenants := make(chan string, 1)
	host := echoes(1)
	answer := host.forward
	host.forward = func(c context.Context, req *nodev1.ForwardRequest) (*nodev1.ForwardResponse, error) {
		tenants <- req.GetTenant()
		return answer(c, req)
	}
	cl := start(t, setup{hosts: map[string]gateway.Host{"n1": host}, leader: "n1", credentials: creds})
	client := cl.client("n1")
	tests := map[string]struct {
		authorization []string
		tenant        string
		text          string
	}{
		"tenant a":        {[]string{"Bearer ta"}, "a", ""},
		"tenant b":        {[]string{"bearer  tb "}, "b", ""},
		"admin":           {[]string{"Bearer to"}, "a", ""},
		"none":            {nil, "", "authorization: Bearer TOKEN"},
		"unknown":         {[]string{"Bearer tc"}, "", "token table"},
		"a tenant's name": {[]string{"Bearer a"}, "", "token table"},
		"another scheme":  {[]string{"Basic dGE="}, "", "Bearer TOKEN"},
		"two":             {[]string{"Bearer ta", "Bearer tb"}, "", "send one authorization"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := ctx(t)
			for _, v := range tt.authorization {
				c = metadata.AppendToOutgoingContext(c, "authorization", v)
			}
			c = metadata.AppendToOutgoingContext(c, "tenant", "evil")
			_, err := client.Submit(c, deposit("k"))
			if tt.text == "" {
				must(t, err)
				if got := <-tenants; got != tt.tenant {
					t.Errorf("tenant %q, want %q", got, tt.tenant)
				}
				return
			}
			refusedBy := map[string]error{"submit": err}
			_, refusedBy["read"] = client.Read(c, &writv1.ReadRequest{Entity: deposit("k").GetEntity()})
			_, refusedBy["outcome"] = client.Outcome(c, &writv1.OutcomeRequest{})
			_, refusedBy["cancel"] = client.Cancel(c, &writv1.OutcomeRequest{})
			stream, err := client.SubmitStream(c)
			must(t, err)
			_, refusedBy["stream"] = stream.Recv()
			for call, err := range refusedBy {
				if code, reason, _, _ := info(err); code != codes.Unauthenticated || reason != "UNAUTHENTICATED" || !strings.Contains(err.Error(), tt.text) {
					t.Errorf("%s: %v", call, err)
				}
			}
		})
	}
}

// The operators' service, which the composition root adds, is guarded here.
func TestAdmin(t *testing.T) {
	creds, err := gateway.ParseCredentials([]byte(`{"ta": "a", "to": {"tenant": "a", "admin": true}}`))
	must(t, err)
	cl := start(t, setup{hosts: map[string]gateway.Host{"n1": echoes(1)}, leader: "n1", credentials: creds, admin: true})
	admin := nodev1.NewAdminServiceClient(cl.conns["n1"])
	for token, want := range map[string]codes.Code{"": codes.Unauthenticated, "ta": codes.PermissionDenied, "to": codes.Unimplemented} {
		c := ctx(t)
		if token != "" {
			c = metadata.AppendToOutgoingContext(c, "authorization", "Bearer "+token)
		}
		_, err := admin.Status(c, &nodev1.StatusRequest{})
		if code, _, _, _ := info(err); code != want {
			t.Errorf("token %q: %v, want %v", token, err, want)
		}
		stream, err := admin.ListLanes(c, &nodev1.ListLanesRequest{})
		must(t, err)
		if _, err := stream.Recv(); status.Code(err) != want {
			t.Errorf("token %q, stream: %v, want %v", token, err, want)
		}
	}
}
