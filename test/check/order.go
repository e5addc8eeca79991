package check

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Heard is a sequence of numbers as a consumer took them, written in runs of
// neighbours: "1-57 59 58 60-71". Nothing of the sequence is lost in it, and one
// that is right stays short.
type Heard string

// Add appends a number.
func (h Heard) Add(n int64) Heard {
	runs, last := "", string(h)
	if at := strings.LastIndexByte(last, ' '); at >= 0 {
		runs, last = last[:at+1], last[at+1:]
	}
	first, end, longer := strings.Cut(last, "-")
	if !longer {
		end = first
	}
	if before, err := strconv.ParseInt(end, 10, 64); err == nil && before+1 == n {
		return Heard(fmt.Sprintf("%s%s-%d", runs, first, n))
	}
	return Heard(strings.TrimPrefix(fmt.Sprintf("%s %d", h, n), " "))
}

// Whole is the sequence 1 to n; nothing for 0.
func Whole(n int64) Heard {
	switch n {
	case 0:
		return ""
	case 1:
		return "1"
	}
	return Heard(fmt.Sprintf("1-%d", n))
}

// Lane is one source's way to one destination.
type Lane struct{ Source, Destination string }

// Order compares what each source has told, numbered 1, 2, 3 … by lane, with what
// its destination heard: every number once and in order.
func Order(told map[Lane]int64, heard map[Lane]Heard) error {
	var f findings
	lanes := map[Lane]int64{}
	maps.Copy(lanes, told)
	for lane := range heard {
		lanes[lane] = told[lane]
	}
	byName := func(a, b Lane) int {
		return strings.Compare(a.Source+" "+a.Destination, b.Source+" "+b.Destination)
	}
	for _, lane := range slices.SortedFunc(maps.Keys(lanes), byName) {
		if want := Whole(lanes[lane]); heard[lane] != want {
			f.add("%s has told %s %q, heard was %q", lane.Source, lane.Destination, want, heard[lane])
		}
	}
	return f.err()
}
