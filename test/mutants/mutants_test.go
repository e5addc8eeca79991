//go:build mutants

package mutants

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"writ/internal/mutant"
)

// hunt is a safeguard and the tests that must notice its absence.
type hunt struct {
	safeguard mutant.Safeguard
	folder    string // of the package
	tests     string // pattern
}

var hunts = []hunt{
	{mutant.Term, "persistence", "TestCommitRefused"},
	{mutant.Version, "persistence", "TestCommitRefused"},
	{mutant.Lane, "persistence", "TestCommitRefused"},
	{mutant.Applied, "persistence", "TestCommitRefused"},
	{mutant.Key, "persistence", "TestCommitRefused"},
	{mutant.MonotonicTime, "persistence", "TestLogTimeNeverFalls"},
	{mutant.IndexWithContent, "persistence", "TestAFailedFlushLeavesFileAndIndexTogether"},
	{mutant.DropAtRestore, "persistence", "TestReplace$"},
	{mutant.Sync, "persistence/replica", "TestAcknowledgedEntriesSurviveAPowerCut"},
	{mutant.LogFloor, "persistence/replica", "TestCutAtTheBeginningStopsAtTheFloor"},
	{mutant.TermStart, "persistence/replica", "TestALeaseBeginsBehindWhatWasCommitted"},
	{mutant.ActiveFormat, "persistence/replica", "TestEntriesAreOfTheActiveFormat"},
	{mutant.SendBeforeMark, "actors", "TestTroubleCountsNoAttempt"},
	{mutant.Attempt, "actors", "TestPoisonAmongGoodLanes"},
	{mutant.SkipThere, "actors", "TestSkipBeforeTheCopyComes"},
	{mutant.EpochAlone, "actors", "TestFirstBatchOfAnEpochTravelsAlone"},
	{mutant.OutputGate, "actors", "TestLeaseEndsInFlight|TestFailedRecord"},
	{mutant.InFlightKey, "actors", "TestOneKeyAtOnce|TestInFlight"},
	{mutant.ReadBarrier, "actors", "TestRead$"},
}

// patience bounds one run. A test that hangs without a safeguard has noticed, but
// says less than one that fails.
const patience = 20 * time.Second

func TestEverySafeguardIsMissedWhenItIsOff(t *testing.T) {
	t.Run("listed", func(t *testing.T) {
		for _, s := range mutant.All() {
			if !slices.ContainsFunc(hunts, func(h hunt) bool { return h.safeguard == s }) {
				t.Errorf("nothing is said to notice when the %s is off", s)
			}
		}
	})
	binaries := map[string]string{}
	for _, h := range hunts {
		if binaries[h.folder] == "" {
			binaries[h.folder] = build(t, h.folder)
		}
		t.Run(strings.ReplaceAll(string(h.safeguard), " ", "-"), func(t *testing.T) {
			if output, err := run(t, binaries[h.folder], h, ""); err != nil {
				t.Fatalf("%s in %s must pass with all safeguards: %v\n%s", h.tests, h.folder, err, output)
			}
			output, err := run(t, binaries[h.folder], h, h.safeguard)
			caught := failures(output)
			switch {
			case err == nil:
				t.Errorf("nobody has noticed that the %s is off", h.safeguard)
			case len(caught) == 0:
				t.Errorf("no test has failed, but: %v\n%s", err, output)
			default:
				t.Logf("without the %s: caught by %s in %s", h.safeguard, strings.Join(caught, ", "), h.folder)
			}
		})
	}
}

// build makes the test binary of a package; the mutant is chosen when it runs.
func build(t *testing.T, folder string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "tests")
	cmd := exec.CommandContext(t.Context(), "go", "test", "-c", "-tags", "mutants", "-o", to, "./"+folder)
	cmd.Dir = filepath.Join("..", "..")
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build tests of %s: %v\n%s", folder, err, output)
	}
	return to
}

func run(t *testing.T, binary string, h hunt, off mutant.Safeguard) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "-test.run", "^("+h.tests+")", "-test.timeout", patience.String(), "-test.v")
	cmd.Dir = filepath.Join("..", "..", h.folder)
	cmd.Env = append(os.Environ(), mutant.Variable+"="+string(off))
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	err := cmd.Run()
	if err == nil && !strings.Contains(output.String(), "--- PASS") {
		err = errors.New("no test has run")
	}
	return output.String(), err
}

var failed = regexp.MustCompile(`(?m)^--- FAIL: (\w+)|^panic: test timed out|^\s+(Test\w+) \(`)

// failures are the names of the tests that failed, or that were running when the
// time was over.
func failures(output string) (names []string) {
	for _, m := range failed.FindAllStringSubmatch(output, -1) {
		if name := m[1] + m[2]; name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}
