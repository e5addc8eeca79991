package check

import "testing"

func TestOrder(t *testing.T) {
	lane, other := Lane{"a", "x"}, Lane{"b", "x"}
	for name, c := range map[string]struct {
		numbers []int64
		written Heard
		want    string
	}{
		"right":           {[]int64{1, 2, 3, 4, 5}, "1-5", ""},
		"a gap":           {[]int64{1, 2, 4, 5}, "1-2 4-5", `heard was "1-2 4-5"`},
		"a double":        {[]int64{1, 2, 2, 3, 4, 5}, "1-2 2-5", "heard was"},
		"an old one":      {[]int64{1, 2, 3, 1, 4, 5}, "1-3 1 4-5", "heard was"},
		"swapped":         {[]int64{1, 3, 2, 4, 5}, "1 3 2 4-5", "heard was"},
		"swapped, at 1":   {[]int64{2, 1, 3, 4, 5}, "2 1 3-5", "heard was"},
		"the last missed": {[]int64{1, 2, 3, 4}, "1-4", "heard was"},
		"one too many":    {[]int64{1, 2, 3, 4, 5, 6}, "1-6", "heard was"},
		"the last again":  {[]int64{1, 2, 3, 4, 5, 5}, "1-5 5", "heard was"},
		"nothing":         {nil, "", "heard was"},
	} {
		t.Run(name, func(t *testing.T) {
			var heard Heard
			for _, n := range c.numbers {
				heard = heard.Add(n)
			}
			if heard != c.written {
				t.Errorf("%v is written %q, want %q", c.numbers, heard, c.written)
			}
			wants(t, Order(map[Lane]int64{lane: 5, other: 1}, map[Lane]Heard{lane: heard, other: "1"}), c.want)
		})
	}
	wants(t, Order(nil, map[Lane]Heard{lane: "1"}), `a has told x "", heard was "1"`)
	wants(t, Order(map[Lane]int64{lane: 0}, nil), "")
}
