package node

import "strings"

// cut shortens a text to at most n bytes of valid UTF-8, not in the middle of a
// rune: half a rune can be in no protobuf message, and is another one after JSON.
func cut(text string, n int) string {
	text = strings.ToValidUTF8(text, "?")
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n], "")
}
