package pages_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const root = "../.."

var (
	testFunc = regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`)
	testName = regexp.MustCompile(`\bTest[A-Z]\w*…?`)
)

// A page that maps a promise to a test that is not there proves nothing: every name
// of a test on the pages is one in the tree, or with "…" the beginning of one.
func TestPagesNameTestsThatExist(t *testing.T) {
	tests := map[string]bool{}
	walk(t, root, "_test.go", func(_, text string) {
		for _, m := range testFunc.FindAllStringSubmatch(text, -1) {
			tests[m[1]] = true
		}
	})
	begins := func(with string) bool {
		for name := range tests {
			if strings.HasPrefix(name, with) {
				return true
			}
		}
		return false
	}
	named := 0
	page := func(path, text string) {
		for _, name := range testName.FindAllString(text, -1) {
			named++
			with, open := strings.CutSuffix(name, "…")
			if !tests[name] && (!open || !begins(with)) {
				t.Errorf("%s names %s, which is no test", path, name)
			}
		}
	}
	walk(t, filepath.Join(root, "docs"), ".md", page)
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	page("README.md", string(readme))
	if named < 50 {
		t.Errorf("only %d names of tests were found on the pages: the pattern fits no more", named)
	}
}

// walk shows the files below a folder whose names end so.
func walk(t *testing.T, dir, end string, show func(path, text string)) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(path, end) {
			return err
		}
		text, err := os.ReadFile(path)
		show(path, string(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
