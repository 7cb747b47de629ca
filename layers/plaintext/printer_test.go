package plaintext

import (
	"io"
	"os"
	"testing"

	"slipway/layers/plaintext/terminaltest"
)

func TestPrinter(t *testing.T) {
	for name, tt := range map[string]struct {
		writes []string
		want   string
	}{
		"plain":                  {[]string{"é\t", "x\n"}, "é\tx\n"},
		"controls":               {[]string{"a\x1b[2K\x1b]0;t\ab\u202e\u009bc\r\n"}, "a[2K]0;tbc\n"},
		"colours of a log":       {[]string{"\x1b[32mdone\x1b[0m"}, "[32mdone[0m"},
		"a character in two":     {[]string{"a\xc3", "\xa9b\xe2\x82", "\xac"}, "aéb€"},
		"a control in two":       {[]string{"a\xc2", "\x9bb"}, "ab"},
		"a login":                {[]string{"url: https://u:S3CRET@h/x\n"}, "url: https://h/x\n"},
		"nothing":                {[]string{""}, ""},
		"an end without a start": {[]string{"\x9b", "x"}, "\ufffdx"},
	} {
		t.Run(name, func(t *testing.T) {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			p := &Printer{To: w}
			for _, text := range tt.writes {
				if n, err := io.WriteString(p, text); err != nil || n != len(text) {
					t.Errorf("Write(%q) = %d, %v", text, n, err)
				}
			}
			w.Close()
			if got, err := io.ReadAll(r); err != nil || string(got) != tt.want {
				t.Errorf("it wrote %q, %v; want %q", got, err, tt.want)
			}
		})
	}
}

// A terminal shows this package's colours, and obeys nothing else.
func TestPrinterOnATerminal(t *testing.T) {
	t.Setenv("NO_COLOR", "")
	t.Setenv("CI", "")
	t.Setenv("TERM", "xterm")
	pty, tty := terminaltest.Open(t)
	if !Colours(&Printer{To: tty}) {
		t.Skip("the terminal shows no colours here")
	}
	text := Good.On(tty, "done") + " \x1b[31m\x1b[8mx\x1b[1;31my\x1b[0m\x1b[H\n"
	if _, err := io.WriteString(&Printer{To: tty}, text); err != nil {
		t.Fatal(err)
	}
	want := "\x1b[32mdone\x1b[0m [31m[8mx\x1b[1;31my\x1b[0m[H\r\n"
	got := make([]byte, len(want)) // it comes in parts
	if _, err := io.ReadFull(pty, got); err != nil || string(got) != want {
		t.Errorf("the terminal got %q, %v; want %q", got, err, want)
	}
}
