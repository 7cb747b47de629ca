package plaintext

import (
	"strings"
	"testing"
	"unicode"
)

func TestOneLine(t *testing.T) {
	for text, want := range map[string]string{
		"a\r\nb\tc\rd\ne":           "a b c d e",
		"\x1b[31mred\u009b2J\x7f\a": "[31mred2J",
		"\u202egnp.elif\u2066é":     "gnp.elifé",
	} {
		if got := OneLine(text); got != want {
			t.Errorf("OneLine(%q) = %q; want %q", text, got, want)
		}
	}
}

func FuzzPrintable(f *testing.F) {
	f.Add("a subject")
	f.Add("\x1b[31mred\n\xff")
	f.Add("\u202egnp.elif")
	f.Add(strings.Repeat("ä", 300))
	f.Fuzz(func(t *testing.T, text string) {
		got := ShortLine(text)
		unsafe := func(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) }
		if strings.ContainsFunc(got, unsafe) || len(got) > 3*len(text)+3 || len(got) > 620 {
			t.Errorf("printable(%q) = %q", text, got)
		}
	})
}
