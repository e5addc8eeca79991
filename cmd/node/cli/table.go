package cli

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
)

// newTable aligns what is written to it in columns. Flush it at the end.
func newTable(out io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(out, 0, 4, 2, ' ', 0) }

// row writes one row of a table.
func row(table io.Writer, cells ...any) error {
	texts := make([]string, len(cells))
	for i, cell := range cells {
		texts[i] = oneLine(fmt.Sprint(cell))
	}
	_, err := fmt.Fprintln(table, strings.Join(texts, "\t"))
	return err
}

// oneLine escapes, as Go does, what is not printed: names and reasons are anybody's
// text, which could end its cell or its line, or give orders to a terminal.
func oneLine(text string) string {
	if strings.IndexFunc(text, unprinted) < 0 {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if unprinted(r) {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// The no-break space is of use in texts that are wrapped.
func unprinted(r rune) bool { return !strconv.IsPrint(r) && r != '\u00a0' }

// shellWord quotes an argument of a command that a person is told to type.
func shellWord(text string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("@%+=:,./_-", r)
	}
	if text != "" && strings.IndexFunc(text, func(r rune) bool { return !plain(r) }) < 0 {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
