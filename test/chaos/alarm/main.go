// Command alarm is a node that has more kinds than the released one: "alarm", an
// entity that sets timers and keeps how late each of them was; "teller", which
// numbers what it tells to each "listener", which keeps what it was told, in order.
package main

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"writ/actors/account"
	"writ/actors/entity"
	"writ/cmd/node/cli"
)

func main() { cli.Main(append(account.Kinds(), alarm(), teller(), listener())...) }

// alarm is set by one command, "set N MILLISECOND APART", to N timers from a time
// on, and its state holds a list for each of them: the microseconds by which it
// fired too late, every time that it did.
func alarm() entity.Definer {
	k := entity.NewKind[*structpb.Struct]("alarm")
	entity.Handle(k, func(c *entity.Context, s *structpb.Struct, cmd *wrapperspb.StringValue) (*structpb.Struct, error) {
		if name, fires := strings.CutPrefix(cmd.GetValue(), "fire "); fires {
			if s.Fields == nil {
				s.Fields = map[string]*structpb.Value{}
			}
			late := structpb.NewNumberValue(float64(time.Since(c.Due()).Microseconds()))
			before := s.Fields[name].GetListValue().GetValues()
			s.Fields[name] = structpb.NewListValue(&structpb.ListValue{Values: append(before, late)})
			return nil, nil
		}
		var n int
		var first, apart int64
		if _, err := fmt.Sscanf(cmd.GetValue(), "set %d %d %d", &n, &first, &apart); err != nil {
			return nil, c.Reject(entity.OutOfRange, "MALFORMED", "set N MILLISECOND APART: %v", err)
		}
		for i := range n {
			name := fmt.Sprint(i)
			c.SetTimer(name, entity.Timer{At: time.UnixMilli(first + int64(i)*apart), Command: &wrapperspb.StringValue{Value: "fire " + name}})
		}
		return nil, nil
	})
	return k
}
