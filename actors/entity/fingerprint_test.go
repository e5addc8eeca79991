package entity_test

import (
	"bytes"
	"encoding/hex"
	"math"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"writ/actors/entity"
)

// sampleType has one field of every kind, a list, maps and a nested message.
func sampleType(tb testing.TB) protoreflect.MessageType {
	tb.Helper()
	type kind = descriptorpb.FieldDescriptorProto_Type
	field := func(name string, n int32, k kind) *descriptorpb.FieldDescriptorProto {
		return &descriptorpb.FieldDescriptorProto{
			Name: new(name), Number: new(n), Type: k.Enum(),
			Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
		}
	}
	repeated := func(f *descriptorpb.FieldDescriptorProto) *descriptorpb.FieldDescriptorProto {
		f.Label = descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum()
		return f
	}
	nested := func(f *descriptorpb.FieldDescriptorProto, typeName string) *descriptorpb.FieldDescriptorProto {
		f.TypeName = new(typeName)
		return f
	}
	entry := func(name string, key, value kind) *descriptorpb.DescriptorProto {
		v := field("value", 2, value)
		if value == descriptorpb.FieldDescriptorProto_TYPE_MESSAGE {
			v = nested(v, ".sample.M")
		}
		return &descriptorpb.DescriptorProto{
			Name: new(name), Options: &descriptorpb.MessageOptions{MapEntry: new(true)},
			Field: []*descriptorpb.FieldDescriptorProto{field("key", 1, key), v},
		}
	}
	presence := field("maybe", 30, descriptorpb.FieldDescriptorProto_TYPE_INT32)
	presence.Proto3Optional, presence.OneofIndex = new(true), proto.Int32(0)
	m := &descriptorpb.DescriptorProto{
		Name:      new("M"),
		OneofDecl: []*descriptorpb.OneofDescriptorProto{{Name: new("_maybe")}},
		NestedType: []*descriptorpb.DescriptorProto{
			entry("ByTextEntry", descriptorpb.FieldDescriptorProto_TYPE_STRING, descriptorpb.FieldDescriptorProto_TYPE_MESSAGE),
			entry("ByIntEntry", descriptorpb.FieldDescriptorProto_TYPE_SINT64, descriptorpb.FieldDescriptorProto_TYPE_STRING),
			entry("ByBoolEntry", descriptorpb.FieldDescriptorProto_TYPE_BOOL, descriptorpb.FieldDescriptorProto_TYPE_STRING),
			entry("ByUintEntry", descriptorpb.FieldDescriptorProto_TYPE_FIXED32, descriptorpb.FieldDescriptorProto_TYPE_STRING),
		},
		Field: []*descriptorpb.FieldDescriptorProto{
			presence,
			nested(field("child", 20, descriptorpb.FieldDescriptorProto_TYPE_MESSAGE), ".sample.M"),
			repeated(nested(field("children", 21, descriptorpb.FieldDescriptorProto_TYPE_MESSAGE), ".sample.M")),
			repeated(nested(field("by_text", 22, descriptorpb.FieldDescriptorProto_TYPE_MESSAGE), ".sample.M.ByTextEntry")),
			repeated(nested(field("by_int", 23, descriptorpb.FieldDescriptorProto_TYPE_MESSAGE), ".sample.M.ByIntEntry")),
			repeated(nested(field("by_bool", 24, descriptorpb.FieldDescriptorProto_TYPE_MESSAGE), ".sample.M.ByBoolEntry")),
			repeated(nested(field("by_uint", 25, descriptorpb.FieldDescriptorProto_TYPE_MESSAGE), ".sample.M.ByUintEntry")),
			repeated(field("texts", 26, descriptorpb.FieldDescriptorProto_TYPE_STRING)),
			nested(field("any", 27, descriptorpb.FieldDescriptorProto_TYPE_MESSAGE), ".google.protobuf.Any"),
		},
	}
	for k := descriptorpb.FieldDescriptorProto_TYPE_DOUBLE; k <= descriptorpb.FieldDescriptorProto_TYPE_SINT64; k++ {
		switch k {
		case descriptorpb.FieldDescriptorProto_TYPE_MESSAGE, descriptorpb.FieldDescriptorProto_TYPE_GROUP:
		case descriptorpb.FieldDescriptorProto_TYPE_ENUM:
			m.Field = append(m.Field, nested(field("an_enum", int32(k), k), ".sample.E"))
		default:
			m.Field = append(m.Field, field("f"+protoreflect.ValueOfInt32(int32(k)).String(), int32(k), k))
		}
	}
	zero := &descriptorpb.EnumValueDescriptorProto{Name: new("E_ZERO"), Number: proto.Int32(0)}
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: new("sample.proto"), Package: new("sample"), Syntax: new("proto3"),
		Dependency:  []string{"google/protobuf/any.proto"},
		EnumType:    []*descriptorpb.EnumDescriptorProto{{Name: new("E"), Value: []*descriptorpb.EnumValueDescriptorProto{zero}}},
		MessageType: []*descriptorpb.DescriptorProto{m},
	}, protoregistry.GlobalFiles)
	if err != nil {
		tb.Fatal(err)
	}
	return dynamicpb.NewMessageType(file.Messages().Get(0))
}

// parse decodes wire bytes built by parts, in the order given.
func parse(tb testing.TB, typ protoreflect.MessageType, parts ...[]byte) proto.Message {
	tb.Helper()
	m := typ.New().Interface()
	if err := proto.Unmarshal(bytes.Join(parts, nil), m); err != nil {
		tb.Fatal(err)
	}
	return m
}

func number(field protowire.Number, n uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, field, protowire.VarintType), n)
}

func fixed64(field protowire.Number, n uint64) []byte {
	return protowire.AppendFixed64(protowire.AppendTag(nil, field, protowire.Fixed64Type), n)
}

func text(field protowire.Number, parts ...[]byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, field, protowire.BytesType), bytes.Join(parts, nil))
}

func b(s string) []byte { return []byte(s) }

// pack wraps content in the bytes of an Any.
func pack(url string, content ...[]byte) []byte {
	return bytes.Join([][]byte{text(1, b(url)), text(2, content...)}, nil)
}

func TestFingerprintSameMeaning(t *testing.T) {
	typ := sampleType(t)
	const duration = "type.googleapis.com/google.protobuf.Duration"
	tests := []struct {
		name string
		a, b [][]byte
	}{
		{"field order", [][]byte{number(3, 7), text(9, b("x"))}, [][]byte{text(9, b("x")), number(3, 7)}},
		{"zero sent explicitly", [][]byte{number(3, 0), text(9)}, nil},
		{"last value wins", [][]byte{number(3, 1), number(3, 7)}, [][]byte{number(3, 7)}},
		{"over-long varint", [][]byte{{3 << 3, 0x87, 0x80, 0x00}}, [][]byte{number(3, 7)}},
		{
			"map order",
			[][]byte{text(23, number(1, 2), text(2, b("one"))), text(23, number(1, 1), text(2, b("minus one")))},
			[][]byte{text(23, number(1, 1), text(2, b("minus one"))), text(23, number(1, 2), text(2, b("one")))},
		},
		{"map zero value left out", [][]byte{text(23, number(1, 2))}, [][]byte{text(23, number(1, 2), text(2))}},
		{"nested message in two parts", [][]byte{text(20, number(3, 7)), text(20, number(4, 8))}, [][]byte{text(20, number(3, 7), number(4, 8))}},
		{
			"any: field order inside",
			[][]byte{text(27, pack(duration, number(1, 5), number(2, 6)))},
			[][]byte{text(27, pack(duration, number(2, 6), number(1, 5)))},
		},
		{
			"any: another host",
			[][]byte{text(27, pack(duration, number(1, 5)))},
			[][]byte{text(27, pack("example.org/types/google.protobuf.Duration", number(1, 5)))},
		},
		{"not a number", [][]byte{fixed64(1, math.Float64bits(math.NaN()))}, [][]byte{fixed64(1, 0xfff8_0000_0000_0001)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if x, y := entity.Fingerprint(parse(t, typ, tt.a...)), entity.Fingerprint(parse(t, typ, tt.b...)); !bytes.Equal(x, y) {
				t.Errorf("%x ≠ %x", x, y)
			}
		})
	}
}

func TestFingerprintOtherMeaning(t *testing.T) {
	typ := sampleType(t)
	messages := map[string][]byte{
		"empty":             nil,
		"presence":          number(30, 0),
		"presence, one":     number(30, 1),
		"double":            fixed64(1, math.Float64bits(1)),
		"minus zero":        fixed64(1, math.Float64bits(math.Copysign(0, -1))),
		"int64":             number(3, 1),
		"uint64":            number(4, 1),
		"int64 minus one":   number(3, math.MaxUint64),
		"bool":              number(8, 1),
		"enum":              number(14, 3),
		"text":              text(9, b("ab")),
		"bytes":             text(12, b("ab")),
		"child empty":       text(20),
		"child":             text(20, number(3, 1)),
		"grandchild":        text(20, text(20, number(3, 1))),
		"child and sibling": bytes.Join([][]byte{text(20), number(30, 1)}, nil),
		"sibling in child":  text(20, number(30, 1)),
		"list":              text(26, b("ab")),
		"list split":        bytes.Join([][]byte{text(26, b("a")), text(26, b("b"))}, nil),
		"list order":        bytes.Join([][]byte{text(26, b("b")), text(26, b("a"))}, nil),
		"list, empty last":  bytes.Join([][]byte{text(26, b("ab")), text(26)}, nil),
		"map by text":       text(22, text(1, b("k")), text(2, number(3, 1))),
		"map by text, key":  text(22, text(1, b("j")), text(2, number(3, 1))),
		"map by int":        text(23, number(1, 1)),
		"map by bool":       text(24, number(1, 1)),
		"map by bool both":  bytes.Join([][]byte{text(24, number(1, 1)), text(24, number(1, 0))}, nil),
		"any":               text(27, pack("/google.protobuf.Duration", number(1, 5))),
		"any, type":         text(27, pack("/google.protobuf.Timestamp", number(1, 5))),
		"any, not linked":   text(27, pack("/not.linked.in", number(1, 5))),
		"any, content":      text(27, pack("/google.protobuf.Duration", number(1, 6))),
	}
	seen := map[string]string{}
	for name, wire := range messages {
		f := hex.EncodeToString(entity.Fingerprint(parse(t, typ, wire)))
		if other, twice := seen[f]; twice {
			t.Errorf("%q and %q have the same fingerprint", name, other)
		}
		seen[f] = name
	}
	if bytes.Equal(entity.Fingerprint(&durationpb.Duration{Seconds: 5}), entity.Fingerprint(&timestamppb.Timestamp{Seconds: 5})) {
		t.Error("the type takes no part")
	}
}

// Fingerprints are stored: if this test fails the code is wrong, not the table.
func TestFingerprintGolden(t *testing.T) {
	tree, err := structpb.NewStruct(map[string]any{"b": []any{1.5, "x", nil, true}, "a": map[string]any{"deep": "ü"}})
	if err != nil {
		t.Fatal(err)
	}
	packed, err := anypb.New(wrapperspb.Int64(-9))
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		m    proto.Message
		want string
	}{
		{&durationpb.Duration{}, "3cdd5697ddd93cab480554a56304b9bc6460be3b0e193c6b50c17c96a4cfd3d2"},
		{&durationpb.Duration{Seconds: 5, Nanos: -1}, "fb40e2148138cf59dd3a5ea944003cf08749650d0a6a0e2db2d6fa6a3b421d3d"},
		{tree, "b42e71bb519889b0d75c1a2c81672353dc57fd1e0b661efe79c06f13304b3342"},
		{packed, "83f2be78e0c8844b62797640d8b3251ca3bcfead211d88c0420f97f6479fbd3c"},
		{wrapperspb.Double(0.1), "d95fa6a65aac08d482e12ad3a8a329b1aef3e1023acfa5715eb926ef04f33ae9"},
	}
	for _, tt := range tests {
		if got := hex.EncodeToString(entity.Fingerprint(tt.m)); got != tt.want {
			t.Errorf("%s{%v}: %s, want %s", tt.m.ProtoReflect().Descriptor().FullName(), tt.m, got, tt.want)
		}
	}
}

func TestUnknownField(t *testing.T) {
	typ := sampleType(t)
	strange := number(99, 1)
	deep := []byte(nil)
	for range 40 {
		deep = pack("/google.protobuf.Any", deep)
	}
	tests := []struct {
		name string
		wire []byte
		want string
	}{
		{"none", bytes.Join([][]byte{number(3, 1), text(20, number(3, 1)), text(22, text(1, b("k")), text(2, number(3, 1)))}, nil), ""},
		{"at the top", strange, "99"},
		{"nested", text(20, text(20, strange)), "child.child.99"},
		{"in a list", bytes.Join([][]byte{text(21), text(21, strange)}, nil), "children[1].99"},
		{"in a map", text(22, text(1, b("k")), text(2, strange)), "by_text[k].99"},
		{"in an any", text(27, pack("type.googleapis.com/google.protobuf.Duration", strange)), "any.(google.protobuf.Duration).99"},
		{"in an any itself", text(27, pack("/google.protobuf.Duration"), strange), "any.99"},
		{"any of a type not linked in", text(27, pack("/not.linked.in", strange)), ""},
		{"empty any", text(27), ""},
		{"any with other bytes", text(27, pack("/google.protobuf.Duration", []byte{0xff})), "any.(google.protobuf.Duration)"},
		{"anys without end", text(27, deep), "any" + repeat(".(google.protobuf.Any)", 17)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path, found := entity.UnknownField(parse(t, typ, tt.wire))
			if path != tt.want || found != (tt.want != "") {
				t.Errorf("got %q, %v, want %q", path, found, tt.want)
			}
		})
	}
}

func repeat(s string, n int) string { return string(bytes.Repeat([]byte(s), n)) }

func FuzzFingerprint(f *testing.F) {
	typ := sampleType(f)
	f.Add(bytes.Join([][]byte{number(3, 1), text(22, text(1, b("k")), text(2, number(3, 1)))}, nil))
	f.Add(text(27, pack("/google.protobuf.Struct", text(1, text(1, b("k"))))))
	f.Fuzz(func(t *testing.T, wire []byte) {
		m := typ.New().Interface()
		if proto.Unmarshal(wire, m) != nil {
			return
		}
		if _, found := entity.UnknownField(m); found {
			return
		}
		again, err := proto.Marshal(m)
		if err != nil {
			return
		}
		if !bytes.Equal(entity.Fingerprint(m), entity.Fingerprint(parse(t, typ, again))) {
			t.Error("the fingerprint changes when the message is encoded again")
		}
	})
}

func BenchmarkFingerprint(b *testing.B) {
	m := &timestamppb.Timestamp{Seconds: 5, Nanos: 6}
	b.ReportAllocs()
	for b.Loop() {
		entity.Fingerprint(m)
	}
}
