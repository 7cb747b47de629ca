package place

import (
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"slipway/layers/plaintext"
)

var samplePorts = []Port{
	{Port: "usb:1-1.1", Label: "left", State: Write, Percent: 62, Left: 41 * time.Second, Row: "cam-0017"},
	{Port: "usb:1-1.2", Label: "middle", State: ReadBack, Percent: 8, Left: 90 * time.Second, Row: "cam-0018"},
	{Port: "usb:1-1.3", Label: "right", State: Pass, Text: "3.2 GB in 182 s", Row: "cam-0016"},
	{Port: "usb:1-1.4", Label: "far right", State: Fail, Text: "lies about its size", Row: "cam-0019"},
	{Port: "usb:1-2.1", Label: "slot 5", State: Empty},
	{Port: "usb:1-2.2", Label: "slot 6", State: Refused, Text: "it holds something else: sdf1 ext4 \"photos\"; overwrite: true in place.yml allows that"},
	{Port: "usb:1-2.3", Label: "slot 7", State: Known, Text: "written 29 November 10:31 at left, row cam-0003"},
	{Port: "mmc0", Label: "slot 8", State: Closed, Text: "3 failures in a row, the last: input/output error"},
}

var sampleTotals = Totals{Good: 117, Bad: 5, Refused: 2, Causes: map[string]int{"lies about its size": 3, "pulled out": 2}}

// No screen has a line that is too long or too many lines, and each has all ports, in words.
func TestScreenSizes(t *testing.T) {
	for _, size := range [][2]int{{80, 24}, {200, 50}, {132, 43}, {40, 24}, {80, 12}} {
		for _, n := range []int{1, 2, 3, 5, 8} {
			for _, s := range []*Screen{{}, {colour: true, utf8: true}} {
				lines := s.draw(samplePorts[:n], sampleTotals, size[0], size[1])
				if len(lines) > size[1] {
					t.Errorf("%v with %d ports has %d lines", size, n, len(lines))
				}
				all := strings.Join(lines, "\n")
				for _, line := range lines {
					if plain := plaintext.WithoutEscapes(line); utf8.RuneCountInString(plain) > size[0] {
						t.Errorf("%v with %d ports has a line of %d characters: %q", size, n, utf8.RuneCountInString(plain), plain)
					}
				}
				for _, p := range samplePorts[:n] {
					if !strings.Contains(all, p.Label) {
						t.Errorf("%v with %d ports lacks %q", size, n, p.Label)
					}
				}
				if !strings.Contains(all, "117 GOOD, 5 BAD, 2 REFUSED today") {
					t.Errorf("%v lacks the totals", size)
				}
			}
		}
	}
}

// Outside of a terminal there is a line for each new state, and none for progress.
func TestScreenLines(t *testing.T) {
	f, err := os.Create(t.TempDir() + "/out")
	if err != nil {
		t.Fatal(err)
	}
	s := NewScreen(f, false)
	defer s.Close()
	for _, state := range []State{Empty, Check, Write, Write, ReadBack, Pass} {
		s.Show([]Port{{Port: "mmc0", Label: "slot", State: state, Percent: 3, Row: "cam-1"}}, Totals{Good: 1})
	}
	got, _ := os.ReadFile(f.Name())
	if n := strings.Count(string(got), "\n"); n != 4 || !strings.Contains(string(got), "slot       PASS") || strings.Contains(string(got), "\x1b") {
		t.Errorf("the screen has %d lines: %q", n, got)
	}
}
