package gateway

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// Bounds of what an error carries. An error travels in HTTP/2 trailers: its text
// once percent-encoded (three bytes for each byte that is not printable ASCII)
// and once more, with the details, in base64. The bounds keep the sum below
// 8 KiB, the limit of the strictest clients; a longer one would reach them as a
// broken stream, UNAVAILABLE, and be retried for ever.
const (
	textBytes        = 2 << 10
	textEncodedBytes = 4 << 10

	detailsMax       = 16
	detailNameBytes  = 64
	detailValueBytes = 256
	detailsBytes     = 768

	reasonBytes = 64
)

const ellipsis = "…"

// cutText makes s fit for a status message: valid UTF-8, at most 2 KiB, at most
// 4 KiB once percent-encoded. It cuts between runes.
func cutText(s string) string { return cut(s, textBytes, textEncodedBytes) }

// short makes s fit to be quoted within a text or used as a name.
func short(s string, limit int) string { return cut(s, limit, 3*limit) }

func cut(s string, limit, encodedLimit int) string {
	long := len(s) > limit+utf8.UTFMax
	if long {
		// Only the head matters; do not clean up megabytes.
		s = s[:limit+utf8.UTFMax]
	}
	s = strings.ToValidUTF8(s, "?")
	mark := encodedLen(ellipsis)
	encoded, end := 0, 0 // end: where s may be cut so that the mark still fits
	for i, r := range s {
		size := utf8.RuneLen(r)
		encoded += encodedLen(s[i : i+size])
		if i+size > limit || encoded > encodedLimit {
			return s[:end] + ellipsis
		}
		if i+size+len(ellipsis) <= limit && encoded+mark <= encodedLimit {
			end = i + size
		}
	}
	if long { // it had so many invalid bytes that its head became short
		return s[:end] + ellipsis
	}
	return s
}

// encodedLen is the length of s in a grpc-message header.
func encodedLen(s string) int {
	n := 0
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '%' {
			n += 3
		} else {
			n++
		}
	}
	return n
}

// boundDetails returns a copy of details within the bounds. Which ones stay does
// not depend on the order of the map.
func boundDetails(details map[string]string) map[string]string {
	if len(details) == 0 {
		return nil
	}
	names := make([]string, 0, len(details))
	for name := range details {
		if name != "" && len(name) <= detailNameBytes && utf8.ValidString(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	bounded := make(map[string]string, len(names))
	total := 0
	for _, name := range names {
		value := short(details[name], detailValueBytes)
		total += len(name) + len(value)
		if total > detailsBytes || len(bounded) == detailsMax {
			break
		}
		bounded[name] = value
	}
	return bounded
}
