package plaintext

import "testing"

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
