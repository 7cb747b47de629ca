package boardssh

import (
	"bytes"
	"testing"
)

// Only the mark with a process's number after it, in a line, is the proof that a shell ran.
func TestPIDLine(t *testing.T) {
	for _, tt := range []struct {
		name, input, rest string
		pid               int
	}{
		{"the line", "M 42\nerrors", "errors", 42},
		{"after a banner", "motd\nM 42\r\nerrors", "motd\nerrors", 42},
		{"after the repeated line", "echo 'M '$$ >&2; exec true\nM 42\n", "echo 'M '$$ >&2; exec true\n", 42},
		{"the mark twice", "M M 42\n", "M ", 42},
		{"no number", "M \n", "M \n", 0},
		{"no process", "M 0\n", "M 0\n", 0},
		{"below 0", "M -42\n", "M -42\n", 0},
		{"a number and more", "M 42 43\n", "M 42 43\n", 0},
		{"a long number", "M 424242424242\n", "M 424242424242\n", 0},
		{"no end of the line", "M 42", "M 42", 0},
		{"no mark", "N 42\n", "N 42\n", 0},
	} {
		for _, size := range []int{1, 3, len(tt.input)} { // of what comes at a time
			var out bytes.Buffer
			p := &pidLine{mark: "M ", out: &out}
			for at := 0; at < len(tt.input); at += size {
				p.Write([]byte(tt.input[at:min(len(tt.input), at+size)]))
			}
			p.flushHeld()
			if p.knownPID() != tt.pid || out.String() != tt.rest {
				t.Errorf("%s, by %d: number %d, %q passed on; want %d, %q", tt.name, size, p.knownPID(), out.String(), tt.pid, tt.rest)
			}
		}
	}
}
