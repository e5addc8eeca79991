//go:build mutants

package mutants

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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

// worlds are the safeguards without which the simulation fails, and the number of
// seeds among which some do. The others stand behind another safeguard that holds.
var worlds = []struct {
	safeguard mutant.Safeguard
	seeds     int
}{
	{mutant.Version, 100},
	{mutant.SendBeforeMark, 100},
	{mutant.OutputGate, 100},
	{mutant.TermStart, 200},
	{mutant.ReadBarrier, 1000},
	{mutant.IndexWithContent, 200},
	{mutant.DropAtRestore, 400},
	{mutant.Sync, 800},
	{mutant.LogFloor, 200},
	{mutant.Term, 6000}, // one in some hundreds
}

// patience bounds one run without a safeguard: a test that hangs then has noticed, but
// says less than one that fails. With all safeguards it must pass, on any machine.
const (
	patience      = 20 * time.Second
	soundPatience = 2 * time.Minute
)

// repeats is how often a world that has failed is run again. Not all of them need
// the same history: see TestSeedsRepeat of test/sim.
const repeats = 20

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
			if output, err := run(t, binaries[h.folder], h, "", soundPatience); err != nil {
				t.Fatalf("%s in %s must pass with all safeguards: %v\n%s", h.tests, h.folder, err, output)
			}
			output, err := run(t, binaries[h.folder], h, h.safeguard, patience)
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

// The simulation notices too, and the seed that did fails again in the same way.
func TestSimulationMissesSafeguards(t *testing.T) {
	binary := build(t, "test/sim")
	if output, err := simulate(t, binary, "", "SIM_SEEDS=40"); err != nil {
		t.Fatalf("worlds must pass with all safeguards: %v\n%s", err, output)
	}
	for _, w := range worlds {
		t.Run(strings.ReplaceAll(string(w.safeguard), " ", "-"), func(t *testing.T) {
			output, _ := simulate(t, binary, w.safeguard, fmt.Sprint("SIM_SEEDS=", w.seeds))
			failed := failedSeed.FindStringSubmatch(output)
			if failed == nil {
				t.Fatalf("%d worlds without the %s do not fail:\n%s", w.seeds, w.safeguard, output)
			}
			seed := failed[1]
			again, _ := simulate(t, binary, w.safeguard, "SIM_SEED="+seed, fmt.Sprint("SIM_COUNT=", repeats))
			trace, same := mostCommonTrace(again, seed)
			if same < repeats/2 {
				t.Errorf("of %d runs of seed %s only %d fail in one way, with trace %s:\n%s", repeats, seed, same, trace, again)
			}
			t.Logf("without the %s: seed %s fails; of %d runs more %d fail with trace %s; %s", w.safeguard, seed, repeats, same, trace, reason(output, seed))
		})
	}
}

var failedSeed = regexp.MustCompile(`again: SIM_SEED=(\d+)`)

// mostCommonTrace is the hash of the history that most runs of a seed have that have
// failed, and how many these are.
func mostCommonTrace(output, seed string) (trace string, times int) {
	count := map[string]int{}
	for _, m := range regexp.MustCompile(`seed `+seed+`, trace ([0-9a-f]+)`).FindAllStringSubmatch(output, -1) {
		if count[m[1]]++; count[m[1]] > times {
			trace, times = m[1], count[m[1]]
		}
	}
	return trace, times
}

// reason is the first thing that was wrong in a world.
func reason(output, seed string) string {
	return regexp.MustCompile(`seed ` + seed + ` at [^\n]{0,160}`).FindString(output)
}

// simulate runs worlds until one fails.
func simulate(t *testing.T, binary string, off mutant.Safeguard, env ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "-test.run", "^TestSeeds$", "-test.failfast")
	cmd.Dir = filepath.Join("..", "sim")
	cmd.Env = append(append(os.Environ(), mutant.Variable+"="+string(off)), env...)
	output, err := cmd.CombinedOutput()
	return string(output), err
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

func run(t *testing.T, binary string, h hunt, off mutant.Safeguard, limit time.Duration) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "-test.run", "^("+h.tests+")", "-test.timeout", limit.String(), "-test.v")
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
