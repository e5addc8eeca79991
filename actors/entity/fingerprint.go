package entity

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"math"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// FingerprintAlgorithm is the number stored beside every fingerprint. Another
// way to compute it gets another number.
const FingerprintAlgorithm = 1

// anyDepth bounds how deep a message in a google.protobuf.Any is looked into:
// each level is decoded anew, so without a bound a small message could cost much.
const anyDepth = 16

const anyName protoreflect.FullName = "google.protobuf.Any"

// Fingerprint is a SHA-256 over what a command means: its type and its populated
// fields. It does not depend on the serialized bytes, which differ between
// languages and even between two calls in one process.
//
// The walk goes by protobuf presence: fields by number, map entries by key, a
// zero without presence is absent, a zero with presence is there. A message in
// an Any counts by its content if its type is linked in and by its bytes if not.
// Unknown fields take no part: refuse them first with [UnknownField].
func Fingerprint(command proto.Message) []byte {
	w := &walker{sum: sha256.New()}
	m := command.ProtoReflect()
	w.text(string(m.Descriptor().FullName()))
	w.message(m, 0)
	return w.sum.Sum(nil)
}

// walker feeds a hash with a form that can be read in one way only: numbers in
// eight bytes, texts behind their length, the end of a message marked by the
// field number 0.
type walker struct {
	sum hash.Hash
	buf [8]byte
}

func (w *walker) number(n uint64) {
	binary.BigEndian.PutUint64(w.buf[:], n)
	w.sum.Write(w.buf[:]) // a hash never fails
}

func (w *walker) text(s string) {
	w.number(uint64(len(s)))
	w.sum.Write([]byte(s))
}

func (w *walker) message(m protoreflect.Message, depth int) {
	if m.Descriptor().FullName() == anyName {
		w.any(m, depth)
		return
	}
	for _, fd := range populated(m) {
		w.number(uint64(fd.Number()))
		v := m.Get(fd)
		switch {
		case fd.IsMap():
			w.entries(fd, v.Map(), depth)
		case fd.IsList():
			list := v.List()
			w.number(uint64(list.Len()))
			for i := range list.Len() {
				w.value(fd, list.Get(i), depth)
			}
		default:
			w.value(fd, v, depth)
		}
	}
	w.number(0)
}

// any writes the name of the content's type, without the host that may stand
// before it, and the content.
func (w *walker) any(m protoreflect.Message, depth int) {
	name, data := anyParts(m)
	w.text(name)
	content := anyContent(name, data)
	if content == nil || depth >= anyDepth {
		w.number(0)
		w.text(string(data))
		return
	}
	w.number(1)
	w.message(content, depth+1)
}

func (w *walker) entries(fd protoreflect.FieldDescriptor, m protoreflect.Map, depth int) {
	keys := sortedKeys(m)
	w.number(uint64(len(keys)))
	for _, k := range keys {
		w.value(fd.MapKey(), k.Value(), depth)
		w.value(fd.MapValue(), m.Get(k), depth)
	}
}

func (w *walker) value(fd protoreflect.FieldDescriptor, v protoreflect.Value, depth int) {
	switch fd.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		w.message(v.Message(), depth)
	case protoreflect.StringKind:
		w.text(v.String())
	case protoreflect.BytesKind:
		w.text(string(v.Bytes()))
	case protoreflect.BoolKind:
		if v.Bool() {
			w.number(1)
		} else {
			w.number(0)
		}
	case protoreflect.EnumKind:
		w.number(uint64(v.Enum()))
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		w.float(v.Float())
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind, protoreflect.Fixed32Kind, protoreflect.Fixed64Kind:
		w.number(v.Uint())
	case protoreflect.Int32Kind, protoreflect.Int64Kind, protoreflect.Sint32Kind, protoreflect.Sint64Kind,
		protoreflect.Sfixed32Kind, protoreflect.Sfixed64Kind:
		w.number(uint64(v.Int()))
	}
}

// float writes all values that are not a number as one.
func (w *walker) float(f float64) {
	if math.IsNaN(f) {
		f = math.NaN()
	}
	w.number(math.Float64bits(f))
}

// UnknownField looks for content that this program does not know, at any depth:
// a field number that its message type lacks, an Any that does not hold what it
// says, or Anys nested too deep to look into. It names the place, such as
// "lines[2].7" for field 7 of the third line. An Any of a type that is not
// linked in is content like any other.
func UnknownField(m proto.Message) (path string, found bool) {
	path = unknownIn(m.ProtoReflect(), 0)
	return strings.TrimPrefix(path, "."), path != ""
}

func unknownIn(m protoreflect.Message, depth int) string {
	if raw := m.GetUnknown(); len(raw) > 0 {
		number, _, n := protowire.ConsumeTag(raw)
		if n < 0 {
			return ".?"
		}
		return "." + protoreflect.ValueOfInt32(int32(number)).String()
	}
	if m.Descriptor().FullName() == anyName {
		return unknownInAny(m, depth)
	}
	for _, fd := range populated(m) {
		if path := unknownInField(fd, m.Get(fd), depth); path != "" {
			return "." + fd.TextName() + path
		}
	}
	return ""
}

func unknownInField(fd protoreflect.FieldDescriptor, v protoreflect.Value, depth int) string {
	switch {
	case fd.IsMap():
		if fd.MapValue().Message() == nil {
			return ""
		}
		entries := v.Map()
		for _, k := range sortedKeys(entries) {
			if path := unknownIn(entries.Get(k).Message(), depth); path != "" {
				return "[" + k.String() + "]" + path
			}
		}
	case fd.Message() == nil:
		return ""
	case fd.IsList():
		for i := range v.List().Len() {
			if path := unknownIn(v.List().Get(i).Message(), depth); path != "" {
				return "[" + protoreflect.ValueOfInt64(int64(i)).String() + "]" + path
			}
		}
	default:
		return unknownIn(v.Message(), depth)
	}
	return ""
}

func unknownInAny(m protoreflect.Message, depth int) string {
	name, data := anyParts(m)
	if name == "" && len(data) == 0 {
		return ""
	}
	at := ".(" + name + ")"
	if depth >= anyDepth {
		return at
	}
	content := anyContent(name, data)
	if content == nil {
		if _, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName(name)); err == nil {
			return at // the bytes are not a message of this type
		}
		return ""
	}
	if path := unknownIn(content, depth+1); path != "" {
		return at + path
	}
	return ""
}

// anyParts reads the fields of an Any, whichever Go type stands for it.
func anyParts(m protoreflect.Message) (name string, data []byte) {
	fields := m.Descriptor().Fields()
	url := m.Get(fields.ByNumber(1)).String()
	return url[strings.LastIndexByte(url, '/')+1:], m.Get(fields.ByNumber(2)).Bytes()
}

// anyContent is the message in an Any, nil if it cannot be decoded.
func anyContent(name string, data []byte) protoreflect.Message {
	t, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName(name))
	if err != nil {
		return nil
	}
	m := t.New()
	if proto.Unmarshal(data, m.Interface()) != nil {
		return nil
	}
	return m
}

// populated lists the present fields of a message by number.
func populated(m protoreflect.Message) []protoreflect.FieldDescriptor {
	fields := make([]protoreflect.FieldDescriptor, 0, 8)
	m.Range(func(fd protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		fields = append(fields, fd)
		return true
	})
	slices.SortFunc(fields, func(a, b protoreflect.FieldDescriptor) int {
		return cmp.Compare(a.Number(), b.Number())
	})
	return fields
}

func sortedKeys(m protoreflect.Map) []protoreflect.MapKey {
	keys := make([]protoreflect.MapKey, 0, m.Len())
	m.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
		keys = append(keys, k)
		return true
	})
	slices.SortFunc(keys, compareKeys)
	return keys
}

// compareKeys orders the keys of one map, which are all of one type.
func compareKeys(a, b protoreflect.MapKey) int {
	switch x := a.Interface().(type) {
	case bool:
		switch {
		case x == b.Bool():
			return 0
		case x:
			return 1
		default:
			return -1
		}
	case int32, int64:
		return cmp.Compare(a.Int(), b.Int())
	case uint32, uint64:
		return cmp.Compare(a.Uint(), b.Uint())
	default:
		return bytes.Compare([]byte(a.String()), []byte(b.String()))
	}
}
