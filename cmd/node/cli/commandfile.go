package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/term"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
)

// lineMax bounds one line of a command file, in bytes.
const lineMax = 8 << 20

// readCommandFile reads a JSON-lines file of commands, "-" for standard input, and
// checks every line.
func readCommandFile(types *messageTypes, path string) ([]commandLine, error) {
	in := os.Stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("command file: %w", err)
		}
		defer func() { _ = f.Close() }()
		if info, err := f.Stat(); err == nil && info.IsDir() {
			return nil, fmt.Errorf("--file %s is a folder: give a file, or - for standard input", path)
		}
		in = f
	}
	lines, err := parseCommandLines(types, in)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return lines, nil
}

func parseCommandLines(types *messageTypes, r io.Reader) ([]commandLine, error) {
	var lines []commandLine
	scan := bufio.NewScanner(r)
	scan.Buffer(make([]byte, 64<<10), lineMax)
	n := 0
	for scan.Scan() {
		n++
		text := scan.Bytes()
		if n == 1 {
			text = bytes.TrimPrefix(text, []byte("\ufeff")) // some editors begin a file so
		}
		if text = bytes.TrimSpace(text); len(text) == 0 {
			continue
		}
		l, err := parseCommandLine(types, text)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w (nothing was sent)", n, err)
		}
		l.number = n
		lines = append(lines, l)
	}
	switch err := scan.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, fmt.Errorf("line %d: a line has at most %d bytes (nothing was sent)", n+1, lineMax)
	case err != nil:
		return nil, fmt.Errorf("after line %d: %w", n, err)
	}
	return lines, nil
}

func parseCommandLine(types *messageTypes, text []byte) (commandLine, error) {
	// encoding/json would take the last of two equal names, equal but for their case
	// too, and mend text that is no UTF-8: then two keys could become one.
	var line structpb.Struct
	if err := protojson.Unmarshal(text, &line); err != nil {
		return commandLine{}, fmt.Errorf("not one JSON object in UTF-8 with distinct names: %s", strings.TrimPrefix(plainText(err), "proto: "))
	}
	var raw struct {
		Kind     string          `json:"kind"`
		ID       string          `json:"id"`
		Key      string          `json:"key"`
		IssuedAt time.Time       `json:"issued_at"`
		Command  json.RawMessage `json:"command"`
	}
	for name := range line.GetFields() {
		if !slices.Contains([]string{"kind", "id", "key", "issued_at", "command"}, name) {
			return commandLine{}, fmt.Errorf("unknown field %q: a line has \"kind\", \"id\", \"key\", \"command\" and may have \"issued_at\", written so", name)
		}
	}
	if err := json.Unmarshal(text, &raw); err != nil {
		return commandLine{}, err
	}
	switch {
	case raw.Kind == "":
		return commandLine{}, errors.New(`"kind" is missing`)
	case raw.ID == "":
		return commandLine{}, errors.New(`"id" is missing`)
	case raw.Key == "":
		return commandLine{}, errors.New(`"key" is missing`)
	case len(raw.Command) == 0:
		return commandLine{}, errors.New(`"command" is missing`)
	}
	command, err := types.parseAny(raw.Command)
	if err != nil {
		return commandLine{}, fmt.Errorf(`"command": %w`, err)
	}
	return commandLine{kind: raw.Kind, id: raw.ID, key: raw.Key, issuedAt: raw.IssuedAt, command: command}, nil
}

// plainText is an error of the protobuf library, which varies its spaces so that
// nobody depends on its texts.
func plainText(err error) string { return strings.ReplaceAll(err.Error(), "\u00a0", " ") }

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
