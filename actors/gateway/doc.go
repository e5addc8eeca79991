// Package gateway is the edge of a node: gRPC for clients and between nodes.
//
// A call enters through [EntityService], which finds the tenant from the
// credential, checks the form of the request and hands it to the [Router]. The
// router carries it to the leader of the entity's shard: to the local [Host] or,
// in one hop, to the [NodeService] of another node. A forwarded call is never
// forwarded again; the node that accepted it follows one redirect.
//
// Contract:
//
//   - Every error that leaves this package is a gRPC status out of one table,
//     outcome.go, with google.rpc.ErrorInfo{reason, domain "writ"}. Inside the
//     process an error is an *[entity.Error] or the context's own error.
//   - NOT_EXECUTED is said only if it is certain: the leader said so, or not a
//     byte of the call was handed to a connection. Whatever fails after that is
//     OUTCOME_UNKNOWN. The router repeats a call by itself after NOT_EXECUTED. One
//     of unknown outcome it repeats in a single case, and once: the leader that
//     had it fell silent, and another one has taken over (decision 0016).
//   - Texts are cut at 2 KiB, details are bounded, so that the trailers of an
//     error fit the 8 KiB that the strictest gRPC clients accept.
//   - The tenant comes from the credential and from nowhere else.
//   - Strings of protobuf are UTF-8, and gRPC refuses others before a service
//     sees them. So kinds and ids are UTF-8. An idempotency key that is not goes
//     into idempotency_key_bytes or the metadata idempotency-key-bin.
//
// What is bounded: message size, calls and bytes in flight, commands in flight
// on one stream, streams of a connection, connections, texts and details.
// Beyond a bound the answer is RESOURCE_EXHAUSTED, and nothing was executed.
package gateway
