package qemu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/term"

	"slipway/layers/plaintext"
)

const (
	tailBytes = 4096
	tailLines = 20
	leaveKey  = 0x1d // Ctrl-], as telnet has it
)

// Tail returns the last lines that the machine, or QEMU itself, printed.
func Tail(dir string) string {
	var all []string
	for _, name := range []string{outputName, consoleName} {
		for line := range strings.Lines(string(lastBytes(filepath.Join(dir, name)))) {
			if line = printable(line); line != "" {
				all = append(all, line)
			}
		}
	}
	return strings.Join(all[max(0, len(all)-tailLines):], "\n")
}

// escapes are what a board sends to move a terminal's cursor or ask for its size.
var escapes = regexp.MustCompile(`\x1b(\[[0-?]*[ -/]*[@-~]|.)`)

func printable(line string) string {
	return strings.TrimSpace(plaintext.OneLine(escapes.ReplaceAllString(line, "")))
}

func lastBytes(name string) []byte {
	f, err := os.Open(name)
	if err != nil {
		return nil
	}
	defer f.Close()
	if _, err := f.Seek(-tailBytes, io.SeekEnd); err != nil {
		_, _ = f.Seek(0, io.SeekStart) // the file is shorter than that
	}
	data, _ := io.ReadAll(io.LimitReader(f, tailBytes))
	return data
}

// Panicked is true where the machine's kernel said that it gave up.
func Panicked(dir string) bool { return Said(dir, "Kernel panic - not syncing") }

// Prompted is true where the machine's serial line offers a login.
func Prompted(dir string) bool { return Said(dir, " login: ") }

// Silent is true where the serial line has said nothing yet.
func Silent(dir string) bool { return len(lastBytes(filepath.Join(dir, consoleName))) == 0 }

// Said is true where something is among the last that the serial line said.
func Said(dir, text string) bool {
	return bytes.Contains(lastBytes(filepath.Join(dir, consoleName)), []byte(text))
}

// Console joins a terminal to the machine's serial line until Ctrl-] or the
// context's end.
func (v *VM) Console(ctx context.Context, in *os.File, out io.Writer) error {
	line, err := v.dialConsole()
	if err != nil {
		return fmt.Errorf("serial line of %s: %w; somebody else may have it", v.Board, err)
	}
	defer line.Close()
	defer context.AfterFunc(ctx, func() { line.Close() })()
	if fd := int(in.Fd()); term.IsTerminal(fd) {
		old, err := term.MakeRaw(fd)
		if err != nil {
			return err
		}
		defer func() { _ = term.Restore(fd, old) }()
	}
	fmt.Fprintf(out, "Serial line of %s. Enter wakes it, Ctrl-] leaves.\r\n", v.Board)
	go typed(line, in)
	_, err = io.Copy(out, line)
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// dialConsole goes through /proc, because the socket's own path may be longer
// than a socket's name can be.
func (v *VM) dialConsole() (net.Conn, error) {
	dir, err := os.Open(v.dir)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return net.Dial("unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), socketName))
}

// typed sends what is typed until the key that leaves.
func typed(line net.Conn, in io.Reader) {
	defer line.Close()
	buf := make([]byte, 256)
	for {
		n, err := in.Read(buf)
		end := bytes.IndexByte(buf[:n], leaveKey)
		if end >= 0 {
			n = end
		}
		if _, werr := line.Write(buf[:n]); err != nil || werr != nil || end >= 0 {
			return
		}
	}
}
