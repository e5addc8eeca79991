package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"syscall"
	"time"

	"writ/internal/durable"
)

// loss is what an identity remembers of memory that was lost: votes and
// acknowledgements that the node can no longer know of. It is noted, then the data
// is set aside and the node goes on as a new incarnation of the same name, in the
// same cluster, and last the cluster takes that one in. A crash leaves each of the
// three steps done or not done; none is taken back.
type loss struct {
	Reason string `json:"reason"`
	// Folder is where the data is, below the data folder.
	Folder string `json:"folder"`
	// Former is the incarnation that must never vote again.
	Former string `json:"former"`
	// Promised: the node was no member yet. The cluster may never have been formed.
	Promised bool `json:"promised,omitempty"`
	SetAside bool `json:"set_aside,omitempty"`
}

// quarantineDir holds, below the data folder, what was set aside, one folder each.
// Their names are NUMBER-TIME-INCARNATION: the numbers rise, whatever the clock does.
const quarantineDir = "quarantine"

// asideFolder is the form of their names; what else is there a person has put there.
var asideFolder = regexp.MustCompile(`^(\d{6})-\d{8}T\d{6}Z-[0-9a-f]{16}$`)

// asideName names the next folder after those that are there.
func asideName(there []string, incarnation string) string {
	number := 1
	if len(there) > 0 {
		last, _ := strconv.Atoi(asideFolder.FindStringSubmatch(filepath.Base(there[len(there)-1]))[1]) // six digits
		number = last + 1
	}
	return fmt.Sprintf("%06d-%s-%s", number, time.Now().UTC().Format("20060102T150405Z"), incarnation)
}

// memoryDirs are the data of an incarnation, the log first: without it, and with
// anything else, any program refuses the folder.
func memoryDirs() []string { return []string{"log", "shards", "meta"} }

// reasonFile says in a folder of the quarantine why it is there.
const reasonFile = "REASON.txt"

// NoteLoss notes, for good, that this incarnation's memory is lost. The next
// OpenIdentity sets the data aside.
func (id *Identity) NoteLoss(reason string) error {
	if err := id.InPlace(); err != nil {
		return err
	}
	return id.change(func(r *identityRecord) error {
		switch {
		case r.Loss != nil && !r.Loss.SetAside:
			return nil // noted already
		case r.ClusterID == "":
			return errors.New("the node belongs to no cluster that could take it in anew")
		case r.rejoins():
			return fmt.Errorf("the data folder %s was damaged again before the cluster has taken the node in: is its disk sound?", id.dir)
		}
		there, err := id.Quarantine()
		if err != nil {
			return fmt.Errorf("the quarantine cannot be read: %w", err)
		}
		name := asideName(there, r.Incarnation)
		r.Loss = &loss{Reason: reason, Folder: filepath.Join(quarantineDir, name), Former: r.Incarnation, Promised: !r.Member}
		return nil
	})
}

// Loss says why the node waits to be taken in anew, and where its former data is;
// ok is false if it does not.
func (id *Identity) Loss() (reason, folder string, ok bool) {
	r := id.snapshot()
	if !r.rejoins() {
		return "", "", false
	}
	return r.Loss.Reason, filepath.Join(id.dir, r.Loss.Folder), true
}

// rejoins reports whether the node has lost its memory and the cluster has not
// taken it in since.
func (r identityRecord) rejoins() bool { return r.Loss != nil && r.Loss.SetAside }

// setAside moves the data of an incarnation that has lost its memory out of the
// way, if that was noted, and draws a new incarnation. Until the last step the
// folder has the old one, whose log is known to be missing: no program serves it.
func (id *Identity) setAside() error {
	r := id.record
	if r.Loss == nil || r.Loss.SetAside {
		return nil
	}
	to := filepath.Join(id.dir, r.Loss.Folder)
	if err := durable.MkdirAll(to, 0o750); err != nil {
		return folderError(id.dir, err)
	}
	if err := id.explain(to, r); err != nil {
		return folderError(id.dir, err)
	}
	for _, name := range memoryDirs() {
		if err := id.move(name, to); err != nil {
			return err
		}
	}
	if err := errors.Join(durable.SyncDir(to), durable.SyncDir(id.dir)); err != nil {
		return folderError(id.dir, err)
	}
	incarnation, err := randomHex(8)
	if err != nil {
		return err
	}
	aside := *r.Loss
	aside.SetAside = true
	// A member for ever, it neither forms a cluster nor helps to form one.
	r.Incarnation, r.HeldData, r.Member, r.Bootstrap, r.Loss = incarnation, false, true, nil, &aside
	return id.write(r)
}

func (id *Identity) move(name, to string) error {
	if id.fault != nil {
		if err := id.fault("move " + name); err != nil {
			return err
		}
	}
	from, to := filepath.Join(id.dir, name), filepath.Join(to, name)
	info, err := os.Lstat(from)
	switch {
	case errors.Is(err, fs.ErrNotExist): // done before a crash
		return nil
	case err != nil:
		return folderError(id.dir, err)
	case info.Mode()&fs.ModeSymlink != 0:
		// To move the link would put a folder on another disk in its place.
		return id.leave(from, to)
	}
	switch err := os.Rename(from, to); {
	case errors.Is(err, syscall.EBUSY), errors.Is(err, syscall.EXDEV), errors.Is(err, fs.ErrExist): // the last: a person moves it
		return id.leave(from, to)
	case err != nil:
		return folderError(id.dir, fmt.Errorf("set the damaged data aside: %w", err))
	}
	return nil
}

// leave leaves a folder that cannot be moved, for it is a disk of its own or a link,
// where it is. A person has to empty it.
func (id *Identity) leave(from, to string) error {
	empty, err := isEmpty(from)
	switch {
	case err != nil:
		return folderError(id.dir, fmt.Errorf("set the damaged data aside: %w", err))
	case !empty:
		return fmt.Errorf("data folder %s: what is in %s is damaged and cannot be set aside, since that is a disk of its own or a link: move all that is in it to %s, or to another place, and start the node again, with that folder or link in place", id.dir, from, to)
	}
	// It must not come back after a power failure, as the log of a new incarnation.
	if err := durable.SyncDir(from); err != nil {
		return folderError(id.dir, err)
	}
	return nil
}

// isEmpty reports whether a folder holds nothing of a node's: lost+found is part of
// many a disk.
func isEmpty(dir string) (bool, error) {
	entries, err := os.ReadDir(dir)
	return !slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() != "lost+found" }), err
}

// explain leaves what a person needs who finds the folder: why it is there, and the
// identity that goes with the data.
func (id *Identity) explain(to string, r identityRecord) error {
	text := fmt.Sprintf("Set aside by node %s of cluster %s, incarnation %s, because of this:\n\n%s\n\nThe node is taken in anew by its cluster and filled by the other nodes. Keep this folder for as long as\nthat is not done; docs/operations.md, \"Damage to a file\", says what it is good for.\n",
		r.Name, r.ClusterID, r.Loss.Former, r.Loss.Reason)
	r.Loss = nil
	identity, err := encodeIdentity(r)
	if err != nil {
		return err
	}
	return errors.Join(writeSynced(filepath.Join(to, reasonFile), []byte(text)), writeSynced(filepath.Join(to, identityFile), identity))
}

// rejoined notes that the cluster has taken the new incarnation in.
func (id *Identity) rejoined() error {
	return id.change(func(r *identityRecord) error {
		r.Loss = nil
		return nil
	})
}

// Quarantine lists the folders of data that was set aside, the oldest first.
func (id *Identity) Quarantine() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(id.dir, quarantineDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var list []string
	for _, e := range entries {
		if e.IsDir() && asideFolder.MatchString(e.Name()) {
			list = append(list, filepath.Join(id.dir, quarantineDir, e.Name()))
		}
	}
	slices.Sort(list)
	return list, nil
}

// Prune keeps two folders of the quarantine: the oldest, which has the most in it
// if a disk goes on damaging what it is given, and the newest. Else a bad disk
// would fill up with what it spoils. What the present loss has set aside stays in
// any case.
func (id *Identity) Prune() error {
	list, err := id.Quarantine()
	if err != nil {
		return err
	}
	_, present, _ := id.Loss()
	for i, folder := range list {
		if i == 0 || i == len(list)-1 || folder == present {
			continue
		}
		if err := os.RemoveAll(folder); err != nil {
			return err
		}
	}
	return nil
}
