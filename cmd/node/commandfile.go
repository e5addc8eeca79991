package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"golang.org/x/term"
)

// lineMax bounds one line of a command file, in bytes.
const lineMax = 8 << 20

// readCommandFile reads a JSON-lines file of commands and checks every line.
func readCommandFile(types *messageTypes, path string) ([]commandLine, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("command file: %w", err)
	}
	defer func() { _ = f.Close() }()
	lines, err := parseCommandLines(types, f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return lines, nil
}

func parseCommandLines(types *messageTypes, r io.Reader) ([]commandLine, error) {
	var lines []commandLine
	scan := bufio.NewScanner(r)
	scan.Buffer(make([]byte, 64<<10), lineMax)
	for n := 1; scan.Scan(); n++ {
		text := bytes.TrimSpace(scan.Bytes())
		if len(text) == 0 {
			continue
		}
		l, err := parseCommandLine(types, text)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w (nothing was sent)", n, err)
		}
		l.number = n
		lines = append(lines, l)
	}
	if err := scan.Err(); err != nil {
		return nil, fmt.Errorf("after line %d: %w", len(lines), err)
	}
	return lines, nil
}

func parseCommandLine(types *messageTypes, text []byte) (commandLine, error) {
	var raw struct {
		Kind    string          `json:"kind"`
		ID      string          `json:"id"`
		Key     string          `json:"key"`
		Command json.RawMessage `json:"command"`
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&raw); err != nil {
		return commandLine{}, err
	}
	switch {
	case raw.Kind == "":
		return commandLine{}, fmt.Errorf(`"kind" is missing`)
	case raw.ID == "":
		return commandLine{}, fmt.Errorf(`"id" is missing`)
	case raw.Key == "":
		return commandLine{}, fmt.Errorf(`"key" is missing`)
	case len(raw.Command) == 0:
		return commandLine{}, fmt.Errorf(`"command" is missing`)
	}
	command, err := types.parseAny(raw.Command)
	if err != nil {
		return commandLine{}, fmt.Errorf(`"command": %w`, err)
	}
	return commandLine{kind: raw.Kind, id: raw.ID, key: raw.Key, command: command}, nil
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
