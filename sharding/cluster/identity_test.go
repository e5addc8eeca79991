package cluster

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func openIdentity(t *testing.T, dir, name string) *Identity {
	t.Helper()
	id, err := OpenIdentity(dir, name)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func closeIdentity(t *testing.T, id *Identity) {
	t.Helper()
	if err := id.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestIdentityKeepsTheClusterName(t *testing.T) {
	dir := t.TempDir()
	id := openIdentity(t, dir, "n1")
	for _, name := range []string{"typo", "a", "a"} {
		if err := id.UseClusterName(name); err != nil {
			t.Errorf("name %q before any promise: %v", name, err)
		}
	}
	if err := id.promise("c", "hash"); err != nil {
		t.Fatal(err)
	}
	closeIdentity(t, id)
	id = openIdentity(t, dir, "n1")
	defer closeIdentity(t, id)
	if err := id.UseClusterName("a"); err != nil {
		t.Error(err)
	}
	if err := id.UseClusterName("b"); err == nil || !strings.Contains(err.Error(), `"a"`) || !strings.Contains(err.Error(), dir) {
		t.Errorf("another cluster's name: %v", err)
	}
}

func TestIdentityStaysWithItsFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "folder")
	id := openIdentity(t, dir, "n1")
	incarnation := id.Incarnation()
	if len(incarnation) != 16 || id.Name() != "n1" || id.ClusterID() != "" || id.Member() {
		t.Errorf("got %+v", id.snapshot())
	}
	if err := id.promise("c", "hash"); err != nil {
		t.Fatal(err)
	}
	if err := id.found([]Server{{"n1", incarnation, 1}, {"n2", "x", 1}}); err != nil {
		t.Fatal(err)
	}
	closeIdentity(t, id)
	id = openIdentity(t, dir, "n1")
	if id.Incarnation() != incarnation || id.ClusterID() != "c" || len(id.snapshot().Bootstrap) != 2 {
		t.Errorf("got %+v", id.snapshot())
	}
	if err := id.join("c"); err != nil {
		t.Fatal(err)
	}
	closeIdentity(t, id)
	id = openIdentity(t, dir, "n1")
	defer closeIdentity(t, id)
	if !id.Member() || id.snapshot().Bootstrap != nil {
		t.Errorf("got %+v", id.snapshot())
	}
	other := openIdentity(t, t.TempDir(), "n1")
	defer closeIdentity(t, other)
	if other.Incarnation() == incarnation {
		t.Error("two folders, one incarnation")
	}
}

func TestIdentityIsBoundOnce(t *testing.T) {
	id := openIdentity(t, t.TempDir(), "n1")
	defer closeIdentity(t, id)
	if err := id.found(nil); err == nil {
		t.Error("founded without a promise")
	}
	if err := id.promise("c", "hash"); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"same promise":  id.promise("c", "hash"),
		"other cluster": id.promise("d", "hash"),
		"other list":    id.promise("c", "other"),
		"join another":  id.join("d"),
	} {
		if (err == nil) != (name == "same promise") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// An empty folder may be a disk of its own, mounted for the log before the first start.
func TestIdentityInAFolderWithDisksOfTheirOwn(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"log", "shards/lost+found", "meta"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	closeIdentity(t, openIdentity(t, dir, "n1"))
}

func TestIdentityRefusals(t *testing.T) {
	write := func(t *testing.T, dir, name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		prepare func(t *testing.T, dir string) string
		words   []string
	}{
		"another node's folder": {func(t *testing.T, dir string) string {
			t.Helper()
			closeIdentity(t, openIdentity(t, dir, "n2"))
			return dir
		}, []string{`"n2"`, `"n1"`}},
		"another process": {func(t *testing.T, dir string) string {
			t.Helper()
			id := openIdentity(t, dir, "n1")
			t.Cleanup(func() { closeIdentity(t, id) })
			return dir
		}, []string{"in use by another process", "one folder, one process"}},
		"data without identity": {func(t *testing.T, dir string) string {
			t.Helper()
			if err := os.MkdirAll(filepath.Join(dir, "shards", "3"), 0o700); err != nil {
				t.Fatal(err)
			}
			return dir
		}, []string{"holds data (shards)", identityFile}},
		"empty file": {func(t *testing.T, dir string) string {
			t.Helper()
			write(t, dir, identityFile, "")
			return dir
		}, []string{"damaged"}},
		"no incarnation": {func(t *testing.T, dir string) string {
			t.Helper()
			write(t, dir, identityFile, `{"format":1,"name":"n1"}`)
			return dir
		}, []string{"damaged"}},
		"newer format": {func(t *testing.T, dir string) string {
			t.Helper()
			write(t, dir, identityFile, `{"format":2,"name":"n1","incarnation":"x"}`)
			return dir
		}, []string{"format 2"}},
		"not a folder": {func(t *testing.T, dir string) string {
			t.Helper()
			write(t, dir, "file", "")
			return filepath.Join(dir, "file")
		}, []string{"not a folder"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := c.prepare(t, t.TempDir())
			_, err := OpenIdentity(dir, "n1")
			if err == nil || strings.Contains(err.Error(), "\n") {
				t.Fatalf("got %v", err)
			}
			for _, word := range append(c.words, dir) {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("%q is missing in %v", word, err)
				}
			}
		})
	}
}

func TestFolderErrorsSayWhatHelps(t *testing.T) {
	for cause, words := range map[error][]string{
		&fs.PathError{Op: "open", Path: "/data/n1/lock", Err: syscall.EACCES}: {"/data/n1", "user id", "chown"},
		&fs.PathError{Op: "open", Path: "/data/n1/lock", Err: syscall.EROFS}:  {"/data/n1", "read-only"},
		syscall.ENOSPC: {"/data/n1", "no space"},
	} {
		err := folderError("/data/n1", cause)
		for _, word := range words {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%q is missing in %v", word, err)
			}
		}
		if !errors.Is(err, cause) {
			t.Errorf("%v does not wrap its cause", err)
		}
	}
}

// TestIdentityCrashAtEveryStep: after a crash the file holds the old or the new
// content, never anything else, and the process itself has not gone on.
func TestIdentityCrashAtEveryStep(t *testing.T) {
	crash := errors.New("crash")
	for _, step := range []string{"write", "rename", "sync folder"} {
		dir := t.TempDir()
		id := openIdentity(t, dir, "n1")
		id.fault = func(s string) error {
			if s == step {
				return crash
			}
			return nil
		}
		if err := id.promise("c", "hash"); !errors.Is(err, crash) || id.ClusterID() != "" {
			t.Errorf("%s: %v, cluster %q", step, err, id.ClusterID())
		}
		closeIdentity(t, id)
		again := openIdentity(t, dir, "n1")
		if again.Incarnation() != id.Incarnation() {
			t.Errorf("%s: another incarnation", step)
		}
		if got, want := again.ClusterID(), map[string]string{"sync folder": "c"}[step]; got != want {
			t.Errorf("%s: cluster %q, want %q", step, got, want)
		}
		closeIdentity(t, again)
	}
}

func TestIdentityRemembersThatItHeldData(t *testing.T) {
	dir := t.TempDir()
	id := openIdentity(t, dir, "n1")
	if id.HeldData() {
		t.Error("a new folder has held data")
	}
	if err := id.NoteData(); err != nil {
		t.Fatal(err)
	}
	closeIdentity(t, id)
	id = openIdentity(t, dir, "n1")
	defer closeIdentity(t, id)
	if !id.HeldData() {
		t.Error("forgotten at a restart")
	}
}

func TestIdentityNoticesThatItsFolderIsGone(t *testing.T) {
	for name, x := range map[string]struct {
		do   func(dir string) error
		want string
	}{
		"nothing": {func(string) error { return nil }, ""},
		"deleted": {os.RemoveAll, "was deleted or moved"},
		"moved":   {func(dir string) error { return os.Rename(dir, dir+"-away") }, "was deleted or moved"},
		"emptied": {func(dir string) error { return os.Remove(filepath.Join(dir, identityFile)) }, identityFile},
		"replaced": {func(dir string) error {
			if err := os.Rename(dir, dir+"-away"); err != nil {
				return err
			}
			return os.CopyFS(dir, os.DirFS(dir+"-away"))
		}, "was replaced"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			id := openIdentity(t, dir, "n1")
			defer closeIdentity(t, id)
			if err := id.UseClusterName("c"); err != nil { // writes the file anew
				t.Fatal(err)
			}
			if err := id.InPlace(); err != nil {
				t.Fatal(err)
			}
			if err := x.do(dir); err != nil {
				t.Fatal(err)
			}
			if err := id.InPlace(); (err == nil) != (x.want == "") || (err != nil && !strings.Contains(err.Error(), x.want)) {
				t.Errorf("it says %v, want %q", err, x.want)
			}
		})
	}
}
