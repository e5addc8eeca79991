package faults_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"writ/internal/fault"
	"writ/test/faults"
)

// Every point stands in the code, and every point in the code is known and has a
// case with an outcome of every action.
func TestEveryPointHasACase(t *testing.T) {
	used := pointsInCode(t)
	for _, name := range fault.All() {
		at := slices.IndexFunc(faults.Cases(), func(c faults.Case) bool { return c.Point == name })
		if at < 0 {
			t.Errorf("point %s has no case", name)
			continue
		}
		for _, action := range fault.Actions() {
			if faults.Cases()[at].Outcomes[action] == "" {
				t.Errorf("nothing is said of the action %s at point %s", action, name)
			}
		}
		if !used[constantOf(name)] {
			t.Errorf("point %s stands nowhere in the code", name)
		}
		delete(used, constantOf(name))
	}
	for constant := range used {
		t.Errorf("fault.%s is used, but not listed in fault.All", constant)
	}
}

var pointCall = regexp.MustCompile(`fault\.Point\(fault\.(\w+)\)`)

func pointsInCode(t *testing.T) map[string]bool {
	t.Helper()
	root := filepath.Join("..", "..")
	used := map[string]bool{}
	for _, dir := range []string{"actors", "cmd", "persistence", "sharding"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			for _, m := range pointCall.FindAllStringSubmatch(string(text), -1) {
				used[m[1]] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return used
}

// constantOf is the Go name of a point: after-send is AfterSend.
func constantOf(name fault.Name) string {
	var b strings.Builder
	for part := range strings.SplitSeq(string(name), "-") {
		b.WriteString(strings.ToUpper(part[:1]) + part[1:])
	}
	return b.String()
}
