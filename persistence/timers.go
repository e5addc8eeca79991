package persistence

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"writ/actors/entity"
	recordv1 "writ/proto/writ/record/v1"
)

// The bucket timers holds, beside each timer, a pair that stands where the timer
// is due: a zero byte, the time of its next try, the timer's own key. A tenant has
// a name, so no timer's key begins with a zero byte. Apply keeps the two together,
// and a leader finds what is due next without reading the rest.
const (
	duePrefix = "\x00"
	// timerType is the type of the payloads that are timers. Others have no time.
	timerType = "writ.record.v1.Timer"
	// timerNext is the number of the field next of a Timer.
	timerNext = 3
)

// dueValue is the value of every pair of the index: shorter than any timer.
func dueValue() []byte { return []byte{1} }

// isDue reports whether a pair of the bucket is of the index.
func isDue(key string, value []byte) bool {
	return len(key) > 1+numberSize && key[:1] == duePrefix && len(value) == 1
}

// dueKey is the key of a timer in the index; ok is false for what is no timer, and
// for a timer that waits for no time.
func dueKey(key string, value []byte) (due string, ok bool) {
	if value == nil || len(key) == 0 || key[:1] == duePrefix {
		return "", false
	}
	next := nextOf(value)
	if next <= 0 {
		return "", false
	}
	b := append(make([]byte, 0, 1+numberSize+len(key)), duePrefix...)
	return string(append(appendNumber(b, uint64(next)), key...)), true
}

// nextOf is when an encoded Payload, if it is a timer, is tried next; 0 if never.
func nextOf(payload []byte) int64 {
	if string(bytesField(payload, 1)) != timerType {
		return 0
	}
	data := bytesField(payload, 3)
	for len(data) > 0 {
		number, wire, n := protowire.ConsumeTag(data)
		if n < 0 {
			return 0
		}
		data = data[n:]
		if number == timerNext && wire == protowire.VarintType {
			v, n := protowire.ConsumeVarint(data)
			if n < 0 {
				return 0
			}
			return int64(v)
		}
		if n = protowire.ConsumeFieldValue(number, wire, data); n < 0 {
			return 0
		}
		data = data[n:]
	}
	return 0
}

// bytesField is the first field with a number among encoded fields, nil if there is
// none.
func bytesField(b []byte, want protowire.Number) []byte {
	for len(b) > 0 {
		number, wire, n := protowire.ConsumeTag(b)
		if n < 0 {
			return nil
		}
		b = b[n:]
		if number == want && wire == protowire.BytesType {
			v, _ := protowire.ConsumeBytes(b)
			return v
		}
		if n = protowire.ConsumeFieldValue(number, wire, b); n < 0 {
			return nil
		}
		b = b[n:]
	}
	return nil
}

// indexTimer keeps the index of times beside a timer that changes; nil is absent.
func (s *Store) indexTimer(key string, old, now []byte) {
	before, had := dueKey(key, old)
	after, has := dueKey(key, now)
	if had == has && before == after {
		return
	}
	if had {
		s.delete(timersBucket, before, s.apply.view.get(timersBucket, before))
	}
	if has {
		s.put(timersBucket, after, dueValue(), s.apply.view.get(timersBucket, after))
	}
}

// Timer is a timer of an entity, nil if there is none of the name.
func (s *Store) Timer(ref entity.Ref, name string) (*recordv1.Timer, error) {
	p := &recordv1.Payload{}
	if ok, err := s.value(timersBucket, string(appendPart(appendRef(nil, ref), name)), p); !ok {
		return nil, err
	}
	return timerIn(p)
}

// timerIn is the timer in a payload, nil if it is something else.
func timerIn(p *recordv1.Payload) (*recordv1.Timer, error) {
	if p.GetType() != timerType {
		return nil, nil
	}
	t := &recordv1.Timer{}
	return t, proto.Unmarshal(p.GetData(), t)
}

// TimerNames are the names of an entity's timers, in order: at most limit of them.
func (s *Store) TimerNames(ref entity.Ref, limit int) (names []string, err error) {
	prefix := string(appendRef(nil, ref))
	err = s.read(func(v *view) error {
		c := v.cursor(timersBucket, prefix)
		for ok := c.first(); ok && len(names) < limit; ok = c.next() {
			name, _, err := cutPart(c.key[len(prefix):])
			if err != nil {
				return err
			}
			names = append(names, name)
		}
		return nil
	})
	return names, err
}

// TimersAfter yields the timers of one entity, or with the zero Ref of all, in the
// order of entity and name, after a position, "" for the start: at most limit of
// them.
func (s *Store) TimersAfter(of entity.Ref, behind string, limit int, yield func(position string, ref entity.Ref, name string, t *recordv1.Timer)) error {
	prefix, from := "", after(duePrefix) // the index of times comes first
	if of != (entity.Ref{}) {
		prefix = string(appendRef(nil, of))
		from = prefix
	}
	if behind != "" {
		from = behind + "\x00"
	}
	return s.read(func(v *view) error {
		n := 0
		counted := func(position string, ref entity.Ref, name string, t *recordv1.Timer) {
			n++
			yield(position, ref, name, t)
		}
		c := v.cursor(timersBucket, prefix)
		for ok := c.seek(from); ok && n < limit; ok = c.next() {
			if err := yieldTimer(c.key, c.key, c.value, counted); err != nil {
				return err
			}
		}
		return nil
	})
}

// DueTimers yields timers that are to be tried at or before a time, earliest
// first, after a position, "" for the start: at most limit of them. Where fewer
// are left, next is the time of the first later one; 0 if there is none.
func (s *Store) DueTimers(behind string, until int64, limit int, yield func(position string, ref entity.Ref, name string, t *recordv1.Timer)) (next int64, err error) {
	err = s.read(func(v *view) error {
		c := v.cursor(timersBucket, duePrefix)
		ok, n := c.first(), 0
		if behind != "" {
			ok = c.seek(behind + "\x00")
		}
		for ; ok; ok = c.next() {
			if !isDue(c.key, c.value) {
				continue
			}
			if at := int64(number(c.key[1 : 1+numberSize])); at > until {
				next = at
				return nil
			}
			if n++; n > limit {
				return nil
			}
			key := c.key[1+numberSize:]
			if err := yieldTimer(c.key, key, v.get(timersBucket, key).value, yield); err != nil {
				return err
			}
		}
		return nil
	})
	return next, err
}

// yieldTimer yields the timer of a pair, unless the pair is something else.
func yieldTimer(position, key string, value []byte, yield func(string, entity.Ref, string, *recordv1.Timer)) error {
	ref, rest, err := cutRef(key)
	if err != nil {
		return err
	}
	name, _, err := cutPart(rest)
	if err != nil {
		return err
	}
	p := &recordv1.Payload{}
	if err := proto.Unmarshal(value, p); err != nil {
		return err
	}
	t, err := timerIn(p)
	if err != nil || t == nil {
		return err
	}
	yield(position, ref, name, t)
	return nil
}

// timers compares each timer with the index, and the index with the timers.
func (a *auditor) timers() error {
	return a.every(timersBucket, "", func(key string, value []byte) error {
		if !isDue(key, value) {
			if due, ok := dueKey(key, value); ok && !a.get(timersBucket, due).exists() {
				a.find("timer %q is not in the index of times", key)
			}
			return nil
		}
		timer := key[1+numberSize:]
		if due, ok := dueKey(timer, a.get(timersBucket, timer).value); !ok || due != key {
			a.find("the index of times has %q, which is not a timer's time", key)
		}
		return nil
	})
}
