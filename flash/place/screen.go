package place

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"slipway/layers/plaintext"
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

// NewScreen returns a screen on out, which it clears if that is a terminal. Close gives it back.
func NewScreen(out *os.File, bell bool) *Screen {
	s := &Screen{out: out, blocks: plaintext.Redraws(out), colour: plaintext.Colours(out), bell: bell, last: map[string]State{}}
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := os.Getenv(name); v != "" {
			s.utf8 = strings.Contains(strings.ToUpper(v), "UTF-8")
			break
		}
	}
	if s.blocks {
		fmt.Fprint(out, "\x1b[?1049h\x1b[?25l\x1b[2J")
	}
	return s
}

// On returns o with a Screen on out for Show, which begins with the first change. each wraps it.
func (o Options) On(out *os.File, bell bool, each func(func([]Port, Totals)) func([]Port, Totals)) Options {
	var s *Screen
	o.Show = each(func(ports []Port, t Totals) {
		if s == nil {
			s = NewScreen(out, bell)
		}
		s.Show(ports, t)
	})
	o.end = func() {
		if s != nil {
			s.Close()
		}
	}
	return o
}

// Close gives the terminal back as it was.
func (s *Screen) Close() {
	if s.blocks {
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
		if s.bell && (p.State == Pass || p.State == Fail || p.State == Refused || p.State == Closed) {
			fmt.Fprint(s.out, "\a")
		}
		if !s.blocks && p.State != Empty {
			fmt.Fprintln(s.out, lineOf(p, t))
		}
	}
	if !s.blocks || !changed && time.Since(s.drawn) < redrawEvery {
		return
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
		if text != "" {
			line += "  " + text
		}
	}
	if p.State == Pass {
		line += fmt.Sprintf("  (%d good, %d bad)", t.Good, t.Bad)
	}
	return plaintext.Printable(strings.TrimRight(line, " "))
}

// draw returns the lines of the screen: a grid of blocks, and the totals below.
func (s *Screen) draw(ports []Port, t Totals, width, height int) (lines []string) {
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
	for len(lines) < height-2 {
		lines = append(lines, "")
	}
	return append(lines[:min(len(lines), height-2)], plaintext.Shorten(totalsText(t), width-1), plaintext.Shorten(causesText(t), width-1))
}

// block returns the lines of one port: its label, the state as large as it fits, and the text.
func (s *Screen) block(p Port, width, height int) []string {
	title := p.Label
	if p.Row != "" {
		title += "  " + p.Row
	}
	words := []string{string(p.State)}
	if p.State == Write || p.State == ReadBack {
		words = []string{fmt.Sprintf("%s %d %%", p.State, p.Percent), fmt.Sprintf("%d%%", p.Percent)}
	}
	text := strings.Join(slices.DeleteFunc([]string{p.Text, p.Note}, func(s string) bool { return s == "" }), "; ")
	if p.Left > 0 {
		text = fmt.Sprintf("%s %d %%, %s left", p.State, p.Percent, p.Left.Round(time.Second))
	}
	lines := []string{title}
	lines = append(lines, s.large(words, width-2, height-2)...)
	lines = append(lines, wrap(plaintext.Printable(text), width-2, height-len(lines))...)
	for i := range height {
		line := ""
		if i < len(lines) {
			line = plaintext.Shorten(lines[i], width-2)
		}
		lines = append(lines[:i], append([]string{" " + line + strings.Repeat(" ", max(0, width-1-utf8.RuneCountInString(line)))}, lines[min(i+1, len(lines)):]...)...)
		if colour := colours[p.State]; s.colour && colour != "" {
			lines[i] = "\x1b[" + colour + "m" + lines[i] + "\x1b[0m"
		} else if !s.colour {
			lines[i] = "|" + lines[i][1:]
		}
	}
	return lines[:height]
}

// large returns the first of the words that fits in block letters, or else the first as it is.
func (s *Screen) large(words []string, width, height int) []string {
	mark := plaintext.Either(s.utf8, "█", "#")
	for _, word := range words {
		rows := make([]string, 5)
		for _, c := range word {
			glyph := glyphs[c]
			for y := range rows {
				bits := "     "
				if y < len(glyph) {
					bits = glyph[y]
				}
				rows[y] += strings.ReplaceAll(bits, "#", mark) + " "
			}
		}
		if utf8.RuneCountInString(rows[0]) <= width+1 && height >= 7 {
			return append(append([]string{""}, rows...), "")
		}
	}
	return []string{words[0]}
}

// wrap breaks text into at most n lines of a width, between words.
func wrap(text string, width, n int) (lines []string) {
	for _, word := range strings.Fields(text) {
		if last := len(lines) - 1; last >= 0 && utf8.RuneCountInString(lines[last]+" "+word) <= width {
			lines[last] += " " + word
		} else {
			lines = append(lines, word)
		}
	}
	return lines[:min(len(lines), max(n, 0))]
}

// totalsText is the line of the counts, the pace and the time that a good one takes.
func totalsText(t Totals) string {
	text := fmt.Sprintf("%d GOOD, %d BAD today", t.Good, t.Bad)
	if t.Ending {
		return text + ". ENDING: the running ones are finished; Ctrl-C again ends them too"
	}
	if n := len(t.Last); n > 1 {
		if took := t.Last[n-1].Sub(t.Last[0]); took > 0 {
			each := took / time.Duration(n-1)
			text += fmt.Sprintf(", %.0f an hour, one in %s", float64(time.Hour)/float64(each), each.Round(time.Second))
		}
	}
	return text
}

// causesText lists the causes of failures, the most frequent first.
func causesText(t Totals) string {
	causes := slices.SortedFunc(maps.Keys(t.Causes), func(a, b string) int {
		if t.Causes[a] != t.Causes[b] {
			return t.Causes[b] - t.Causes[a]
		}
		return strings.Compare(a, b)
	})
	for i, c := range causes {
		causes[i] = fmt.Sprintf("%d × %s", t.Causes[c], c)
	}
	return plaintext.Printable(strings.Join(causes, ", "))
}

// JSONLines returns a Show that prints each new state of a port as a line of JSON.
func JSONLines(w io.Writer) func([]Port, Totals) {
	last := map[string]Port{}
	out := json.NewEncoder(w)
	return func(ports []Port, t Totals) {
		for _, p := range ports {
			if was := last[p.Port]; was.State == p.State && was.Percent == p.Percent && was.Text == p.Text {
				continue
			}
			last[p.Port] = p
			_ = out.Encode(struct { // a reader that is gone ends nothing
				Port
				Good int `json:"good"`
				Bad  int `json:"bad"`
			}{p, t.Good, t.Bad})
		}
	}
}

// glyphs are block letters of five rows: those of the states, and digits.
var glyphs = map[rune][]string{
	'A': {" ### ", "#   #", "#####", "#   #", "#   #"}, 'B': {"#### ", "#   #", "#### ", "#   #", "#### "},
	'C': {" ####", "#    ", "#    ", "#    ", " ####"}, 'D': {"#### ", "#   #", "#   #", "#   #", "#### "},
	'E': {"#####", "#    ", "#### ", "#    ", "#####"}, 'F': {"#####", "#    ", "#### ", "#    ", "#    "},
	'H': {"#   #", "#   #", "#####", "#   #", "#   #"}, 'I': {"###", " # ", " # ", " # ", "###"},
	'K': {"#  ##", "# #  ", "##   ", "# #  ", "#  ##"}, 'L': {"#    ", "#    ", "#    ", "#    ", "#####"},
	'M': {"#   #", "## ##", "# # #", "#   #", "#   #"}, 'N': {"#   #", "##  #", "# # #", "#  ##", "#   #"},
	'O': {" ### ", "#   #", "#   #", "#   #", " ### "}, 'P': {"#### ", "#   #", "#### ", "#    ", "#    "},
	'R': {"#### ", "#   #", "#### ", "#  # ", "#   #"}, 'S': {" ####", "#    ", " ### ", "    #", "#### "},
	'T': {"#####", "  #  ", "  #  ", "  #  ", "  #  "}, 'U': {"#   #", "#   #", "#   #", "#   #", " ### "},
	'W': {"#   #", "#   #", "# # #", "## ##", "#   #"}, 'Y': {"#   #", " # # ", "  #  ", "  #  ", "  #  "},
	'0': {" ### ", "#  ##", "# # #", "##  #", " ### "}, '1': {" ## ", "  # ", "  # ", "  # ", " ###"},
	'2': {"#### ", "    #", " ### ", "#    ", "#####"}, '3': {"#### ", "    #", " ### ", "    #", "#### "},
	'4': {"#   #", "#   #", "#####", "    #", "    #"}, '5': {"#####", "#    ", "#### ", "    #", "#### "},
	'6': {" ### ", "#    ", "#### ", "#   #", " ### "}, '7': {"#####", "   # ", "  #  ", " #   ", " #   "},
	'8': {" ### ", "#   #", " ### ", "#   #", " ### "}, '9': {" ### ", "#   #", " ####", "    #", " ### "},
	'%': {"#   #", "   # ", "  #  ", " #   ", "#   #"}, ' ': {"  ", "  ", "  ", "  ", "  "},
}
