package plaintext

import (
	"bytes"
	"testing"

	"slipway/layers/plaintext/terminaltest"
)

// Colours are shown on terminals alone, and not where the user or CI asks for none.
func TestColours(t *testing.T) {
	_, tty := terminaltest.Open(t)
	for _, tt := range []struct {
		noColor, ci, term string
		want              string
		redraws           bool
	}{
		{"", "", "xterm", "\x1b[32mdone\x1b[0m", true},
		{"1", "", "xterm", "done", true},
		{"", "true", "xterm", "done", false},
		{"", "", "dumb", "done", false},
	} {
		t.Setenv("NO_COLOR", tt.noColor)
		t.Setenv("CI", tt.ci)
		t.Setenv("TERM", tt.term)
		if got := Good.On(tty, "done"); got != tt.want || Redraws(tty) != tt.redraws {
			t.Errorf("NO_COLOR=%s CI=%s TERM=%s: %q, redraws %v; want %q, %v", tt.noColor, tt.ci, tt.term, got, Redraws(tty), tt.want, tt.redraws)
		}
		if got := Good.On(new(bytes.Buffer), "done"); got != "done" {
			t.Errorf("into a pipe: %q", got)
		}
	}
}

func TestWidth(t *testing.T) {
	_, tty := terminaltest.Open(t)
	for columns, want := range map[uint16]int{132: 132, 0: 80, 5: 80} {
		terminaltest.Resize(t, tty, columns)
		if got := Width(tty, 80); got != want {
			t.Errorf("Width of %d columns = %d; want %d", columns, got, want)
		}
	}
	if got := Width(new(bytes.Buffer), 80); got != 80 {
		t.Errorf("Width of a pipe = %d", got)
	}
}

func TestShorten(t *testing.T) {
	for _, tt := range []struct {
		text  string
		width int
		want  string
	}{
		{"fits", 4, "fits"},
		{"ssh after 8.4 s (tcg)", 16, "ssh after 8.4 …"},
		{"two words, then more", 14, "two words …"},
		{"/a/path/without/any/blank", 10, "/a/path/w…"},
		{"größer als der Schirm", 12, "größer als …"},
		{"x", 0, "…"},
	} {
		if got := Shorten(tt.text, tt.width); got != tt.want || len([]rune(got)) > max(tt.width, 1) {
			t.Errorf("Shorten(%q, %d) = %q; want %q", tt.text, tt.width, got, tt.want)
		}
	}
}
