// Package entity holds the words of Writ and the contract between Writ and the
// developer of an entity kind. It imports the standard library and protobuf
// only, so every other package may import it.
//
// A kind is defined from its state message with [NewKind] and the functions
// [Handle] (commands), [On] (events) and [Read] (queries):
//
//	func PiggyBank() entity.Definer {
//		k := entity.NewKind[*accountv1.Balance]("piggybank")
//		entity.Handle(k, func(c *entity.Context, s *accountv1.Balance, cmd *accountv1.Deposit) (*accountv1.Balance, error) {
//			if cmd.GetAmountMinor() <= 0 {
//				return nil, c.Reject(entity.OutOfRange, "NOTHING_IN_IT", "%d is no deposit", cmd.GetAmountMinor())
//			}
//			s.AmountMinor += cmd.GetAmountMinor()
//			c.Emit(entity.To("statement", "all"), &accountv1.Posted{AmountMinor: cmd.GetAmountMinor()})
//			return s, nil
//		})
//		return k
//	}
//
// [NewRegistry] checks all kinds of a node at start. The package's example is
// this kind, complete and run as a test; actors/account is a whole domain.
//
// A handler runs on the leader only and on a copy of the state: what it changes
// counts if it returns nil, and is dropped if it rejects or panics. It may read
// the time from its context. It must not do I/O, must not keep the state or the
// message after it returns, and cannot ask another entity; it emits an event
// instead, and the other answers with an event of its own.
package entity
