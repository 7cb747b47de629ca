package plaintext

import (
	"strings"
	"testing"
)

// Nothing stays of a control sequence, whatever it asks of a terminal.
func TestWithoutEscapes(t *testing.T) {
	for text, want := range map[string]string{
		"\x1b[1;31mred\x1b[0m \x1b[?25l\x1b[2J":        "red ",
		"\x1b]0;title\x07a\x1b]3008;start=1\x1b\\b":    "ab",
		"\x1bP+q544e\x1b\\a\x1b_x\x1b\\b\x1b^y\x1b\\":  "ab",
		"\u009b31mred\u009d0;title\x07":                "red",
		"\x1b(Bplain\x1b7\x1bc":                        "plain",
		"\x1b[\x1b[31m31mtwice":                        "31mtwice",
		"[31m a]0;b without the first character":       "[31m a]0;b without the first character",
		"\x1b]" + strings.Repeat("x", 1001) + "no end": strings.Repeat("x", 1001) + "no end",
	} {
		if got := WithoutEscapes(text); got != want {
			t.Errorf("WithoutEscapes(%q) = %q; want %q", text, got, want)
		}
	}
}

// A text that is cut inside a sequence shows no part of it.
func TestCutOutsideEscapes(t *testing.T) {
	const text = "ab\x1b]0;title\x07cd\x1b[1;31mef"
	for limit := range len(text) + 1 {
		first, _, _ := strings.Cut(Clean(text, limit), "…")
		_, last, cut := strings.Cut(CleanTail(text, limit), "…")
		if !cut {
			last = CleanTail(text, limit)
		}
		if !strings.HasPrefix("abcdef", first) || !strings.HasSuffix("abcdef", last) {
			t.Errorf("of %d bytes Clean leaves %q, and CleanTail %q; want a part of abcdef", limit, first, last)
		}
	}
}
