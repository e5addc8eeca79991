package actors

import (
	"sync"

	"writ/actors/entity"
)

// troubles say what lanes of a shard wait for, for operators: trouble on the way costs
// no attempt, and no record in the log tells of it. Only lanes that a relay in memory
// tries in vain are in it.
type troubles struct {
	mu sync.Mutex
	by map[pair]troubleOf
}

type pair struct{ source, destination entity.Ref }

// troubleOf has the relay that said so: one that ends late takes back only its own.
type troubleOf struct {
	relay *relay
	text  string
}

func (t *troubles) note(r *relay, l *lane, text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.by == nil {
		t.by = map[pair]troubleOf{}
	}
	t.by[pair{r.ref, l.to}] = troubleOf{r, text}
}

func (t *troubles) forget(r *relay, l *lane) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if at := (pair{r.ref, l.to}); t.by[at].relay == r {
		delete(t.by, at)
	}
}

// LaneTrouble is what the rows of a lane wait for on their way, if this node leads the
// shard of the source and has tried to send them; "" if nothing is known.
func (r *Runtime) LaneTrouble(number uint32, source, destination entity.Ref) string {
	s := r.shard(number)
	if s == nil {
		return ""
	}
	s.troubles.mu.Lock()
	defer s.troubles.mu.Unlock()
	return s.troubles.by[pair{source, destination}].text
}
