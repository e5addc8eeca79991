// Package client is the Go client of Writ.
//
//	c, err := client.New(client.Config{Addresses: []string{"n1:7400", "n2:7400", "n3:7400"}})
//	defer c.Close()
//	key := client.NewKey() // one per intent: keep it, and send it again in every retry
//	out, err := c.Submit(ctx, "account", "alice", key, &accountv1.Deposit{…}, client.SubmitOptions{})
//
// Submit repeats a call with the same key, over all addresses, until it has an
// outcome, until repeating cannot help, or until its context ends. So there are
// three kinds of answers:
//
//   - an [Outcome]: executed, once, by this call or (Replayed) an earlier one;
//   - a [RejectedError]: the entity's rules refuse; this too is stored and
//     replayed, so the same key never gives another answer;
//   - an [Error]: no outcome. If Unknown is set, the command may have been
//     executed, and only the same key is safe to send again.
//
// A process that may die between attempts keeps the key and the time of its
// first attempt (SubmitOptions.IssuedAt) somewhere durable before it calls.
//
// Kinds and ids are UTF-8 strings; a key may be any bytes. Connections are direct:
// proxies named in the environment are not used.
package client
