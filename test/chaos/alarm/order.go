package main

import (
	"math/rand/v2"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"writ/actors/entity"
	"writ/test/check"
)

// teller tells each listener that a command names, "tell L1 L2 …", the next number
// of those two. Its state holds the last number by listener.
func teller() entity.Definer {
	k := entity.NewKind[*structpb.Struct]("teller")
	entity.Handle(k, func(c *entity.Context, s *structpb.Struct, cmd *wrapperspb.StringValue) (*structpb.Struct, error) {
		listeners, ok := strings.CutPrefix(cmd.GetValue(), "tell ")
		if !ok {
			return nil, c.Reject(entity.OutOfRange, "MALFORMED", "tell L1 L2 …")
		}
		if s.Fields == nil {
			s.Fields = map[string]*structpb.Value{}
		}
		for id := range strings.FieldsSeq(listeners) {
			next := s.GetFields()[id].GetNumberValue() + 1
			s.Fields[id] = structpb.NewNumberValue(next)
			c.Emit(entity.To("listener", id), wrapperspb.Int64(int64(next)))
		}
		return nil, nil
	})
	return k
}

// listener keeps every number that each teller has told it, in the order in which it
// took them, as [check.Heard]. Of twenty deliveries it refuses one: the same row must
// come again before any later one does.
func listener() entity.Definer {
	k := entity.NewKind[*structpb.Struct]("listener")
	entity.On(k, func(c *entity.Context, s *structpb.Struct, number *wrapperspb.Int64Value) error {
		if rand.IntN(20) == 0 {
			return c.Reject(entity.FailedPrecondition, "NOT_NOW", "not this time")
		}
		if s.Fields == nil {
			s.Fields = map[string]*structpb.Value{}
		}
		from := c.Source().ID
		heard := check.Heard(s.GetFields()[from].GetStringValue()).Add(number.GetValue())
		s.Fields[from] = structpb.NewStringValue(string(heard))
		return nil
	})
	return k
}
