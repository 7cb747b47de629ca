package boardssh

import (
	"os/exec"
	"strings"
	"testing"
	"unicode"

	"slipway/layers/plaintext"
)

func FuzzPrintable(f *testing.F) {
	for _, s := range []string{"plain", "\x1b[2J", "\u009b", "\u202e", "\xff\xfe", "a\r\nb\tc", strings.Repeat("ä", 3000)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := Printable(s)
		if i := strings.IndexFunc(got, func(r rune) bool {
			return !unicode.IsGraphic(r) || r == unicode.ReplacementChar && !strings.ContainsRune(s, r)
		}); i >= 0 {
			t.Errorf("Printable(%q) = %q: unsafe at %d", s, got, i)
		}
		if len(got) > 4*maxSaidBytes+100 {
			t.Errorf("Printable of %d bytes has %d", len(s), len(got))
		}
	})
}

// The shell decides: it must split the command into the arguments.
func FuzzCommand(f *testing.F) {
	for _, s := range []string{"", "'", `\'`, "$(id)", "a\nb", "-n", "\xff", "~", "!!"} {
		f.Add(s, "x")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		if strings.ContainsRune(a+b, 0) {
			t.Skip("no argument can hold NUL")
		}
		for _, text := range []string{quoteCommand([]string{"printf", `%s\0`, a, b}), `printf '%s\0' ` + plaintext.Quote(a) + " " + plaintext.Quote(b)} {
			out, err := exec.Command("sh", "-c", text).Output()
			if want := a + "\x00" + b + "\x00"; err != nil || string(out) != want {
				t.Errorf("sh made %q of %q, %v; want %q", out, text, err, want)
			}
		}
	})
}

// However the output is cut into writes, all of it but the line comes through.
func FuzzPIDLine(f *testing.F) {
	f.Add("", "rest", 3)
	f.Add("warning: locale\n", "err\n", 1)
	f.Add(strings.Repeat("x", maxHeldBytes), "y", 1000)
	f.Fuzz(func(t *testing.T, before, after string, step int) {
		var out LimitedBuffer
		p := &pidLine{mark: "mark ", out: &out}
		if len(before) > maxHeldBytes/2 || strings.Contains(before, "mark ") {
			t.Skip("the line is not looked for there")
		}
		text := before + "mark 4711\n" + after
		for step = max(step, 1); len(text) > 0; {
			n := min(step, len(text))
			if _, err := p.Write([]byte(text[:n])); err != nil {
				t.Fatal(err)
			}
			text = text[n:]
		}
		p.flushHeld()
		want := before + after
		if got := string(out.Bytes()); p.knownPID() != 4711 || got != want[:min(len(want), MaxOutputBytes)] {
			t.Errorf("pid %d, output %q; want 4711, %q", p.knownPID(), got, want)
		}
	})
}
