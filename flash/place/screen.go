package place

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// colours are the backgrounds of the states. The words say the same.
var colours = map[State]string{
	Write: "30;43", ReadBack: "30;46", Check: "30;47", Pass: "30;42", Known: "30;46", Fail: "97;41", Refused: "97;45", Stopped: "30;47", Closed: "97;41",
}

// Screen shows the ports: as blocks that fill a terminal, or as a line for each change.
type Screen struct {
	out    *os.File
	blocks bool // out is a terminal that can be redrawn
	colour bool
	utf8   bool
	bell   bool
	last   map[string]State
	drawn  time.Time
}

// NewScreen returns a screen on out. If that is a terminal, the first Show clears it, and Close
// gives it back.
func NewScreen(out *os.File, bell bool) *Screen {
	locale := cmp.Or(os.Getenv("LC_ALL"), os.Getenv("LC_CTYPE"), os.Getenv("LANG"))
	return &Screen{
		out: out, blocks: plaintext.Redraws(out), colour: plaintext.Colours(out), bell: bell, last: map[string]State{},
		utf8: strings.Contains(strings.ToUpper(locale), "UTF-8"),
	}
}

// Close gives the terminal back as it was.
func (s *Screen) Close() {
	if !s.drawn.IsZero() {
		fmt.Fprint(s.out, "\x1b[?25h\x1b[?1049l")
	}
}

// redrawEvery limits the redraws for progress alone.
const redrawEvery = 200 * time.Millisecond

// Show draws the ports and the totals, or prints the ports whose state is new.
func (s *Screen) Show(ports []Port, t Totals) {
	changed := false
	for _, p := range ports {
		if s.last[p.Port] == p.State {
			continue
		}
		s.last[p.Port], changed = p.State, true
		if s.bell && slices.Contains([]State{Pass, Fail, Refused, Closed, Unnamed}, p.State) {
			fmt.Fprint(s.out, "\a")
		}
		if !s.blocks && p.State != Empty {
			fmt.Fprintln(s.out, lineOf(p, t))
		}
	}
	if !s.blocks || !changed && time.Since(s.drawn) < redrawEvery {
		return
	}
	if s.drawn.IsZero() {
		fmt.Fprint(s.out, "\x1b[?1049h\x1b[?25l\x1b[2J")
	}
	s.drawn = time.Now()
	width, height, err := term.GetSize(int(s.out.Fd()))
	if err != nil || width < 20 || height < 6 { // a serial console does not say
		width, height = 80, 24
	}
	fmt.Fprint(s.out, "\x1b[H"+strings.Join(s.draw(ports, t, width, height), "\x1b[K\r\n")+"\x1b[K\x1b[J")
}

// lineOf is the line for a new state of a port, outside of a terminal.
func lineOf(p Port, t Totals) string {
	line := fmt.Sprintf("%s  %-10s %-9s", p.Time.Local().Format("15:04:05"), p.Label, p.State)
	for _, text := range []string{p.Text, plaintext.Either(p.Row != "", "row "+p.Row, ""), p.Note} {
		line += plaintext.Either(text != "", "  "+text, "")
	}
	if p.State == Pass {
		line += fmt.Sprintf("  (%s)", t)
	}
	return plaintext.Printable(strings.TrimRight(line, " "))
}

// draw returns the lines of the screen: a grid of blocks, what is at ports without a name, and the
// totals.
func (s *Screen) draw(ports []Port, t Totals, width, height int) (lines []string) {
	var others string
	ports = slices.DeleteFunc(slices.Clone(ports), func(p Port) bool {
		others += plaintext.Either(p.State == Unnamed, p.Text+" ", "")
		return p.other
	})
	columns := 1
	for columns*columns*2 < len(ports) || (height-2)/((len(ports)+columns-1)/columns) < 4 {
		if width/(columns+1) < 16 {
			break
		}
		columns++
	}
	rows := (len(ports) + columns - 1) / columns
	high, wide := max(2, (height-2)/max(rows, 1)), width/columns
	for row := range rows {
		blocks := make([][]string, 0, columns)
		for i := row * columns; i < min(len(ports), (row+1)*columns); i++ {
			blocks = append(blocks, s.block(ports[i], wide-1, high-1))
		}
		for y := range high - 1 {
			line := ""
			for _, b := range blocks {
				line += b[y] + " "
			}
			lines = append(lines, strings.TrimRight(line, " "))
		}
		lines = append(lines, "")
	}
	lines = append(lines, make([]string, height)...)[:height-3] // below each row of blocks is a free line
	for _, text := range []string{plaintext.Printable(others), totalsText(t), t.CausesText()} {
		lines = append(lines, plaintext.Shorten(text, width-1))
	}
	return lines
}

// block returns the lines of one port: its label, the state as large as it fits, and the text.
func (s *Screen) block(p Port, width, height int) []string {
	words, text := []string{string(p.State)}, p.Text+plaintext.Either(p.Note != "", "; ", "")+p.Note
	if p.State == Write || p.State == ReadBack {
		words = []string{fmt.Sprintf("%s %d %%", p.State, p.Percent), fmt.Sprintf("%d%%", p.Percent)}
	}
	if p.Left > 0 {
		text = fmt.Sprintf("%s, %s left", words[0], p.Left.Round(time.Second))
	}
	before, after := "|", ""
	if s.colour {
		before, after = "\x1b["+colours[p.State]+"m ", "\x1b[0m"
	}
	lines := append([]string{p.Label + "  " + p.Row}, s.large(words, width-2, height-2)...)
	lines = append(lines, wrap(plaintext.Printable(text), width-2)...)
	if len(lines) > height {
		lines[height-1] += " …"
	}
	lines = append(lines, make([]string, height)...)[:height]
	for i, line := range lines {
		lines[i] = fmt.Sprintf("%s%-*s%s", before, width-1, plaintext.Shorten(line, width-2), after)
	}
	return lines
}

// large returns the first of the words that fits in block letters, or else the first as it is.
func (s *Screen) large(words []string, width, height int) []string {
	mark := plaintext.Either(s.utf8, "█", "#")
	for _, word := range words {
		rows := make([]string, 5)
		for _, c := range word {
			for y := range rows {
				rows[y] += strings.ReplaceAll(glyphs()[string(c)][y], "#", mark) + " "
			}
		}
		if utf8.RuneCountInString(rows[0]) <= width+1 && height >= 7 {
			return append(append([]string{""}, rows...), "")
		}
	}
	return []string{words[0]}
}

// wrap breaks text into lines of a width, between words.
func wrap(text string, width int) (lines []string) {
	for _, word := range strings.Fields(text) {
		if last := len(lines) - 1; last >= 0 && utf8.RuneCountInString(lines[last]+" "+word) <= width {
			lines[last] += " " + word
		} else {
			lines = append(lines, word)
		}
	}
	return lines
}

// totalsText is the line of the counts, the pace and the time that a good one takes.
func totalsText(t Totals) string {
	text := strings.ToUpper(t.String()) + " today" + t.left
	if t.ending {
		return text + ". ENDING: the running ones are finished; Ctrl-C again ends them too"
	}
	if n := len(t.last); n > 1 { // several end at once, so that the begin of the first counts
		each := t.last[n-1].Finished.Sub(t.last[0].Began) / time.Duration(n)
		text += fmt.Sprintf(", %.0f an hour, one in %s", float64(time.Hour)/float64(max(each, time.Millisecond)), each.Round(time.Second))
	}
	return text
}

// JSONLines returns a Show that prints each new state of a port as a line of JSON.
func JSONLines(w io.Writer) func([]Port, Totals) {
	last := map[string]Port{}
	out := json.NewEncoder(w)
	return func(ports []Port, t Totals) {
		for _, p := range ports {
			was := last[p.Port]
			same := was.State == p.State && was.Percent == p.Percent && was.Text == p.Text
			if same || p.other && p.State == Empty && was.State == "" { // not yet shown
				continue
			}
			last[p.Port] = p
			_ = out.Encode(struct { // a reader that is gone ends nothing
				Port
				Totals
			}{p, t})
		}
	}
}

// coarse is how many percent pass between two events of a port, so that days of work stay a small file.
const coarse = 5

// Events returns a Show that reports each port as a step whose detail begins with its state, and the
// totals as a step without a port.
func Events(report func(progress.Event)) func([]Port, Totals) {
	last := map[string]progress.Event{}
	return func(ports []Port, t Totals) {
		all := []progress.Event{{Step: TotalsStep, Detail: strings.TrimSuffix(totalsText(t)+"; "+t.CausesText(), "; ")}}
		for _, p := range ports {
			text := strings.Join(slices.DeleteFunc([]string{p.Row, p.Text, p.Note}, func(s string) bool { return s == "" }), "; ")
			all = append(all, progress.Event{Step: p.Label, Count: int64(p.Percent / coarse * coarse), Detail: string(p.State) + ": " + text})
		}
		for _, e := range all {
			if e.Count > 0 {
				e.Total = 100
			}
			if e.State = progress.Running; e != last[e.Step] {
				last[e.Step] = e
				e.Time = time.Now()
				report(e)
			}
		}
	}
}

// TotalsStep is the step of Events with the totals, and Split takes a port's detail apart.
const TotalsStep = "the place"

// Split returns the state and the text of an event of a port.
func Split(detail string) (State, string) {
	state, text, _ := strings.Cut(detail, ": ")
	return State(state), text
}

//go:embed font.txt
var fontText string

// glyphs returns the five rows of each block letter: those of the states, and digits.
var glyphs = sync.OnceValue(func() map[string][]string {
	all := map[string][]string{}
	for glyph := range strings.SplitSeq(strings.ReplaceAll(fontText, ".", " "), "\n\n") {
		rows := strings.Split(glyph, "\n")
		all[rows[0]] = rows[1:]
	}
	return all
})
