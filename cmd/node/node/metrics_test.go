package node_test

import (
	"context"
	"io"
	"net/http"

	"writ/actors/client"
)

func clientOptions() client.SubmitOptions { return client.SubmitOptions{} }

// metrics is what a node's /metrics says, "" if it does not answer.
func (c *testCluster) metrics(ctx context.Context, name string) string {
	c.t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.nodes[name].Addresses().HTTP+"/metrics", nil)
	if err != nil {
		c.t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return ""
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return ""
	}
	return string(text)
}
