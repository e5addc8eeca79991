package node

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"writ/internal/fault"
)

// Readiness is the answer of /readyz: why each part is not ready yet.
type Readiness struct {
	Ready   bool              `json:"ready"`
	Node    string            `json:"node"`
	Reasons map[string]string `json:"reasons,omitempty"`
	Shards  map[uint32]string `json:"shards,omitempty"`
}

// newHTTPServer serves health and metrics. Liveness says only that the process
// answers: restarting a node cures neither a lost quorum nor a full disk.
func newHTTPServer(readiness func() Readiness, started func() bool, registry *prometheus.Registry) *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]bool{"alive": true})
	})
	mux.HandleFunc("GET /startupz", func(w http.ResponseWriter, _ *http.Request) {
		ok := started()
		writeJSON(w, statusOf(ok), map[string]bool{"started": ok})
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		r := readiness()
		writeJSON(w, statusOf(r.Ready), r)
	})
	// Profiles, for whoever may reach this port: it is not meant for clients.
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	if faults := fault.Handler(); faults != nil { // a build for tests
		mux.Handle("POST /debug/fault", faults)
		mux.Handle("POST /debug/clock", faults)
	}
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	return &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
}

func statusOf(ok bool) int {
	if ok {
		return http.StatusOK
	}
	return http.StatusServiceUnavailable
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// The client may be gone; there is nobody left to tell.
	_ = json.NewEncoder(w).Encode(v)
}

// serveHTTP runs the server until it is shut down.
func serveHTTP(server *http.Server, listener net.Listener) error {
	err := server.Serve(listener)
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
