package cluster

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/gofrs/flock"

	"writ/internal/durable"
	"writ/internal/format"
)

// Identity is who a node is, kept in its data folder: its name, the incarnation
// drawn when the folder was first used, and the cluster that it has promised
// itself to. A node with another disk is another incarnation.
//
// It begins free, is promised to one cluster or joins one, and is then a member
// for ever; the first node of a cluster that is being formed is in between
// founder, with the list of servers it bootstraps. A member whose memory is lost
// becomes another incarnation, which waits for its cluster to take it in. Every
// step is on disk before the method returns, and a crash leaves the step done or
// not done.
//
// It is safe for concurrent use.
type Identity struct {
	dir  string
	lock *flock.Flock

	mu     sync.Mutex // guards what follows
	record identityRecord
	fault  func(step string) error // tests: fails a step of a write
}

// identityRecord is the content of the identity file.
type identityRecord struct {
	Format      int      `json:"format"`
	Name        string   `json:"name"`
	Incarnation string   `json:"incarnation"`
	ClusterName string   `json:"cluster_name,omitempty"`
	ClusterID   string   `json:"cluster_id,omitempty"`
	ListHash    string   `json:"list_hash,omitempty"` // hex; of the list promised to
	Member      bool     `json:"member,omitempty"`
	Bootstrap   []Server `json:"bootstrap,omitempty"`
	// ActiveFormat is the newest active format that the node has known: there may
	// be data of this format in the folder.
	ActiveFormat uint32 `json:"active_format,omitempty"`
	HeldData     bool   `json:"held_data,omitempty"`
	Loss         *loss  `json:"loss,omitempty"` // never changed, only replaced
}

const (
	identityFile   = "node.json"
	identityLock   = "lock"
	identityFormat = 1
)

// OpenIdentity takes the data folder for this process, creating it if there is
// none, and reads the identity in it, drawing one if the folder is empty. It
// refuses a folder that another process uses, that belongs to a node of another
// name or that a newer program has written, that cannot be written, or that holds
// data and no identity.
func OpenIdentity(dir, name string) (*Identity, error) {
	if err := durable.MkdirAll(dir, 0o750); err != nil {
		return nil, folderError(dir, err)
	}
	lock := flock.New(filepath.Join(dir, identityLock))
	switch locked, err := lock.TryLock(); {
	case err != nil:
		return nil, folderError(dir, err)
	case !locked:
		return nil, fmt.Errorf("data folder %s is in use by another process: one folder, one process", dir)
	}
	id := &Identity{dir: dir, lock: lock}
	if err := id.load(name); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return id, nil
}

func (id *Identity) load(name string) error {
	record, err := readIdentity(filepath.Join(id.dir, identityFile))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return id.create(name)
	case err != nil:
		return err
	case record.Name != name:
		return fmt.Errorf("data folder %s belongs to node %q and this node is %q: give each node a folder of its own", id.dir, record.Name, name)
	}
	if err := format.Check("data folder "+id.dir, record.ActiveFormat); err != nil {
		return err
	}
	id.record = record
	// Writing is tried now, not when a promise depends on it.
	if err := id.write(record); err != nil {
		return err
	}
	return id.setAside()
}

func (id *Identity) create(name string) error {
	for _, data := range memoryDirs() {
		switch empty, err := isEmpty(filepath.Join(id.dir, data)); {
		case errors.Is(err, fs.ErrNotExist), empty && err == nil: // or a disk of its own, ready for the node
		case err != nil:
			return folderError(id.dir, err)
		default:
			return fmt.Errorf("data folder %s holds data (%s) but no %s: bring that file back, or clear the folder to let the node join anew", id.dir, data, identityFile)
		}
	}
	incarnation, err := randomHex(8)
	if err != nil {
		return err
	}
	return id.write(identityRecord{Format: identityFormat, Name: name, Incarnation: incarnation})
}

func randomHex(bytes int) (string, error) {
	b := make([]byte, bytes)
	if _, err := rand.Read(b); err != nil {
		return "", fmt.Errorf("draw random bytes: %w", err)
	}
	return hex.EncodeToString(b), nil
}

// Name is the node's name.
func (id *Identity) Name() string { return id.snapshot().Name }

// Incarnation names this data folder: 16 hex digits.
func (id *Identity) Incarnation() string { return id.snapshot().Incarnation }

// UseClusterName notes the name of the cluster that the node was told to belong
// to. Once the node is promised to a cluster another name is refused: the folder
// holds that cluster's data, which would be served under the wrong name.
func (id *Identity) UseClusterName(name string) error {
	return id.change(func(r *identityRecord) error {
		if r.ClusterID != "" && r.ClusterName != "" && r.ClusterName != name {
			return fmt.Errorf("data folder %s belongs to cluster %q and this node is of cluster %q: give each cluster folders of its own", id.dir, r.ClusterName, name)
		}
		r.ClusterName = name
		return nil
	})
}

// NoteFormat notes the active format of the node's cluster, so that a program that
// does not read it refuses the folder before it touches anything.
func (id *Identity) NoteFormat(active uint32) error {
	return id.change(func(r *identityRecord) error {
		r.ActiveFormat = max(r.ActiveFormat, active)
		return nil
	})
}

// ClusterID is the cluster that the node is promised to or belongs to, "" for none.
func (id *Identity) ClusterID() string { return id.snapshot().ClusterID }

// Member reports whether the node has taken part in its cluster.
func (id *Identity) Member() bool { return id.snapshot().Member }

// HeldData reports whether this incarnation has had a log: without it the node
// cannot know any more what it has voted and acknowledged.
func (id *Identity) HeldData() bool { return id.snapshot().HeldData }

// NoteData notes, for good, that this incarnation has a log now. It comes after
// the log is on disk and before anything is written to it: a crash in between is
// neither taken for a loss, nor hides one.
func (id *Identity) NoteData() error {
	return id.change(func(r *identityRecord) error {
		r.HeldData = true
		return nil
	})
}

// InPlace says how the folder is no longer the one that was opened: deleted, moved
// away or replaced. What is written then goes to files that no name leads to, and
// the next start finds nothing, or something else. The lock file tells: nobody
// writes it anew.
func (id *Identity) InPlace() error {
	opened, err := id.lock.Stat()
	if err != nil {
		return fmt.Errorf("data folder %s: %w", id.dir, err)
	}
	for _, name := range []string{identityLock, identityFile} {
		found, err := os.Stat(filepath.Join(id.dir, name))
		switch {
		case errors.Is(err, os.ErrNotExist):
			return fmt.Errorf("data folder %s was deleted or moved while the node ran (%s is gone): bring it back as it is now, or start the node on an empty folder to let it join anew", id.dir, name)
		case err != nil:
			return nil // trouble with the disk, which others notice
		case name == identityLock && !os.SameFile(opened, found):
			return fmt.Errorf("data folder %s was replaced by another one while the node ran: bring the old one back, or start the node on an empty folder to let it join anew", id.dir)
		}
	}
	return nil
}

func (id *Identity) snapshot() identityRecord {
	id.mu.Lock()
	defer id.mu.Unlock()
	r := id.record
	r.Bootstrap = slices.Clone(r.Bootstrap)
	return r
}

// change applies a step and writes it, if it changes anything.
func (id *Identity) change(step func(*identityRecord) error) error {
	id.mu.Lock()
	defer id.mu.Unlock()
	next := id.record
	next.Bootstrap = slices.Clone(next.Bootstrap)
	if err := step(&next); err != nil {
		return err
	}
	if next.equal(id.record) {
		return nil
	}
	return id.write(next)
}

func (r identityRecord) equal(other identityRecord) bool {
	same := slices.Equal(r.Bootstrap, other.Bootstrap) && r.ClusterName == other.ClusterName &&
		r.ActiveFormat == other.ActiveFormat && r.HeldData == other.HeldData && r.Loss == other.Loss
	return same && r.ClusterID == other.ClusterID && r.ListHash == other.ListHash && r.Member == other.Member
}

// promise binds the node to one cluster and one list. It fails if the node is
// bound otherwise.
func (id *Identity) promise(clusterID, listHash string) error {
	return id.change(func(r *identityRecord) error {
		if r.ClusterID != "" && (r.ClusterID != clusterID || r.ListHash != listHash) {
			return fmt.Errorf("node %s is bound to cluster %s", r.Name, r.ClusterID)
		}
		r.ClusterID, r.ListHash = clusterID, listHash
		return nil
	})
}

// found records that all have promised, and whom the meta group starts with.
func (id *Identity) found(bootstrap []Server) error {
	return id.change(func(r *identityRecord) error {
		if r.Member || r.ClusterID == "" {
			return errors.New("found a cluster: not promised to one")
		}
		r.Bootstrap = bootstrap
		return nil
	})
}

// join makes the node a member; there is nothing to bootstrap any more.
func (id *Identity) join(clusterID string) error {
	return id.change(func(r *identityRecord) error {
		if r.ClusterID != "" && r.ClusterID != clusterID {
			return fmt.Errorf("node %s is bound to cluster %s, not to %s", r.Name, r.ClusterID, clusterID)
		}
		r.ClusterID, r.Member, r.Bootstrap = clusterID, true, nil
		return nil
	})
}

// Close lets another process have the folder.
func (id *Identity) Close() error {
	if err := id.lock.Close(); err != nil {
		return fmt.Errorf("unlock %s: %w", id.dir, err)
	}
	return nil
}
