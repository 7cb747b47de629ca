package place

import (
	"cmp"
	"flag"
	"fmt"
	"html"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"slipway/flash/flashtest"
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

var elsewhere = Port{Port: "usb:1-3", State: Unnamed, other: true, Text: "not touched: what is at usb:1-3, a port that is not in place.yml"}

// No screen has a line that is too long or too many lines, and each has all ports, in words.
func TestScreenSizes(t *testing.T) {
	for _, size := range [][2]int{{80, 24}, {200, 50}, {132, 43}, {40, 24}, {80, 12}} {
		for _, n := range []int{1, 2, 3, 5, 8} {
			for _, s := range []*Screen{{}, {colour: true, utf8: true}} {
				lines := s.draw(append(slices.Clone(samplePorts[:n]), elsewhere), sampleTotals, size[0], size[1])
				if len(lines) != size[1] {
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
				if !strings.Contains(all, "\nnot touched: what is at usb:1-3") {
					t.Errorf("%v with %d ports lacks what is at another port", size, n)
				}
				if whole := strings.Contains(all, "that"); n > 5 && !whole && !strings.Contains(all, " …") {
					t.Errorf("%v with %d ports cuts a text without …: %s", size, n, all)
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

var update = flag.Bool("update", false, "write the picture of the page")

// Cards that end at once count from the begin of the first.
func TestPace(t *testing.T) {
	began := time.Unix(1000, 0)
	totals := Totals{Good: 8}
	for range 8 {
		totals.last = append(totals.last, Entry{Began: began, Finished: began.Add(24 * time.Second)})
	}
	if got, want := totalsText(totals), "8 GOOD, 0 BAD today, 1200 an hour, one in 3s"; got != want {
		t.Errorf("eight at once: %q; want %q", got, want)
	}
}

// The picture of the page is what the program draws now, with each state that can be in block
// letters.
func TestPicture(t *testing.T) {
	s := &Screen{colour: true, utf8: true}
	for _, state := range []State{Empty, Check, Write, ReadBack, Pass, Fail, Known, Refused, Stopped, Closed} {
		if got := strings.Join(s.draw([]Port{{Port: "mmc0", Label: "slot", State: state}}, Totals{}, 200, 24), ""); strings.Count(got, "█") < 20 {
			t.Errorf("%s is not in block letters: %s", state, got)
		}
	}
	totals := sampleTotals
	for i := range 20 {
		totals.last = append(totals.last, Entry{Began: time.Unix(int64(i-1)*47, 0), Finished: time.Unix(int64(i)*47, 0)})
	}
	const width, height = 110, 44
	got := svgOf(s.draw(append(slices.Clone(samplePorts), elsewhere), totals, width, height), width)
	if *update {
		flashtest.Put(t, "screen.svg", got)
	}
	want, err := os.ReadFile("screen.svg")
	if err != nil || got != string(want) || len(got) > 15<<10 {
		t.Errorf("screen.svg (%v) is not what the program draws, of %d bytes: go test ./flash/place -run TestPicture -update", err, len(got))
	}
}

// palette has the colours of the escape sequences that a Screen writes.
var palette = map[string]string{
	"30": "#000", "97": "#fff", "41": "#c62828", "42": "#43a047", "43": "#fbc02d", "45": "#8e24aa", "46": "#26b5c8", "47": "#cfd8dc",
}

// svgOf converts the lines of a screen with a number of columns to a picture. It draws blocks as
// paths, and the other letters as text.
func svgOf(lines []string, columns int) string {
	const wide, high = 8, 16
	sequence := plaintext.Regexp("\x1b\\[([0-9;]*)m")()
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %[1]d %[2]d" font-family="monospace" font-size="13" shape-rendering="crispEdges" style="white-space:pre"><title>The screen of a flashing place</title><rect width="%[1]d" height="%[2]d" fill="#15181c"/>`+"\n", columns*wide, len(lines)*high)
	for y, line := range lines {
		x, front, back := 0, "#e0e0e0", ""
		for line != "" {
			text := line
			if at := sequence.FindStringSubmatchIndex(line); at != nil && at[0] == 0 {
				front, back, _ = strings.Cut(line[at[2]:at[3]], ";")
				front, back = cmp.Or(palette[front], "#e0e0e0"), palette[back]
				line = line[at[1]:]
				continue
			} else if at != nil {
				text = line[:at[0]]
			}
			line = line[len(text):]
			if n := utf8.RuneCountInString(text); back != "" {
				fmt.Fprintf(&b, `<path fill="%s" d="M%d %dh%dv%dh-%[4]dz"/>`, back, x*wide, y*high, n*wide, high)
			}
			path := ""
			for i, c := range []rune(text) {
				if c == '█' {
					path += fmt.Sprintf("M%d %dh%dv%dh-%[3]dz", (x+i)*wide, y*high, wide, high)
				}
			}
			if path != "" {
				fmt.Fprintf(&b, `<path fill="%s" d="%s"/>`, front, path)
			} else if words := strings.TrimSpace(text); words != "" {
				left := x + utf8.RuneCountInString(text) - utf8.RuneCountInString(strings.TrimLeft(text, " "))
				fmt.Fprintf(&b, `<text x="%d" y="%d" fill="%s" textLength="%d">%s</text>`, left*wide, y*high+12, front, utf8.RuneCountInString(words)*wide, html.EscapeString(words))
			}
			x += utf8.RuneCountInString(text)
		}
		b.WriteString("\n")
	}
	return b.String() + "</svg>\n"
}
