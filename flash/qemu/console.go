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
	"strings"

	"golang.org/x/term"

	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

const (
	tailBytes = 4096
	tailLines = 20
	leaveKey  = 0x1d // Ctrl-], as telnet has it
)

// Tail returns the last tailLines lines of QEMU's own output with the serial line's appended,
// without escapes and blank lines.
func Tail(dir string) string {
	var all []string
	for _, name := range []string{outputName, consoleName} {
		data := localfile.Tail(filepath.Join(dir, name), tailBytes)
		if len(data) == tailBytes { // the first line is the rest of one
			data = data[bytes.IndexByte(data, '\n')+1:]
		}
		for line := range strings.Lines(string(data)) {
			if line = strings.TrimSpace(plaintext.OneLine(plaintext.WithoutEscapes(line))); line != "" {
				all = append(all, line)
			}
		}
	}
	return strings.Join(all[max(0, len(all)-tailLines):], "\n")
}

// Panicked reports whether the last output of the serial line has a kernel panic.
func Panicked(dir string) bool { return Said(dir, "Kernel panic - not syncing") }

// Prompted reports whether the last output of the serial line has a login prompt.
func Prompted(dir string) bool { return Said(dir, " login: ") }

// Silent reports whether the serial line has printed nothing yet.
func Silent(dir string) bool {
	return len(localfile.Tail(filepath.Join(dir, consoleName), tailBytes)) == 0
}

// Said reports whether text is in the last output of the serial line.
func Said(dir, text string) bool {
	return bytes.Contains(localfile.Tail(filepath.Join(dir, consoleName), tailBytes), []byte(text))
}

// Console connects a terminal to the machine's serial line until Ctrl-], the end of in, of the
// machine or of ctx, none of which is an error. It may leave a goroutine that still reads in.
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
	go sendTyped(line, in)
	_, err = io.Copy(out, line)
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// dialConsole connects to the serial line's socket, through /proc, because the socket's own path
// may be too long for a socket address.
func (v *VM) dialConsole() (net.Conn, error) {
	dir, err := os.Open(v.dir)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return net.Dial("unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), socketName))
}

// sendTyped copies bytes from in to the line until Ctrl-] or an error, and then closes the line.
func sendTyped(line net.Conn, in io.Reader) {
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
