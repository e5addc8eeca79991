// Package entity holds the words of Writ and the contract between Writ and the
// developer of an entity kind. It imports the standard library and protobuf
// only, so every other package may import it.
//
// A kind is defined from its state message with [NewKind] and the functions
// [Handle] (commands), [On] (events) and [Read] (queries):
//
//	var Counter = entity.NewKind[*pb.Counter]("counter")
//
//	func init() … // or a constructor: see actors/account
//	entity.Handle(Counter, func(c *entity.Context, s *pb.Counter, cmd *pb.Add) (*pb.Counter, error) {
//		if cmd.N < 0 {
//			return nil, c.Reject(entity.OutOfRange, "NEGATIVE", "n must not be negative")
//		}
//		s.Value += cmd.N
//		c.Emit(entity.To("audit", "all"), &pb.Added{N: cmd.N})
//		return s, nil
//	})
//
// A handler runs on the leader only and on a copy of the state: what it changes
// counts if it returns nil, and is dropped if it rejects or panics. It may read
// the time from its context. It must not do I/O, must not keep the state or the
// message after it returns, and cannot ask another entity; it emits an event
// instead, and the other answers with an event of its own.
package entity
