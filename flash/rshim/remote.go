package rshim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"slipway/flash/boardssh"
	"slipway/layers/plaintext"
)

// remoteFolder is the driver's folder on a machine reached over SSH, such as a host without Slipway
// or a DPU's BMC. It uses only env, cat and dd, as busybox has. dd prints why no file opens.
type remoteFolder struct {
	conn *boardssh.Conn
	dir  string
}

func (f remoteFolder) filePath(name string) string { return path.Join(f.dir, name) }

func (f remoteFolder) readMisc(ctx context.Context) ([]byte, error) {
	r, err := f.conn.Ask(ctx, "env", "LC_ALL=C", "cat", f.filePath("misc"))
	if err = commandError(r, err); err != nil {
		return nil, err
	}
	return r.Stdout, nil
}

func (f remoteFolder) writeSetting(ctx context.Context, key, value string) error {
	return f.copyTo(ctx, "misc", "4k", strings.NewReader(key+" "+value+"\n"))
}

// pushStream copies the stream to boot by dd. It calls s.open first: dd does not say when it opens.
func (f remoteFolder) pushStream(ctx context.Context, s *stream) error {
	s.open()
	if err := f.copyTo(ctx, "boot", "64k", countingStream{s}); err != nil {
		return err
	}
	return s.checkComplete()
}

// countingStream counts the bytes given to the connection, some megabytes ahead of the DPU.
type countingStream struct{ *stream }

// Read reads from the stream, and counts the bytes as taken by the DPU.
func (c countingStream) Read(p []byte) (int, error) {
	n, err := c.stream.Read(p)
	c.count(int64(n))
	return n, err
}

// copyTo writes in to one of the driver's files, by dd on the remote machine.
func (f remoteFolder) copyTo(ctx context.Context, file, blockBytes string, in io.Reader) error {
	r, err := f.conn.Feed(ctx, in, "env", "LC_ALL=C", "dd", "of="+f.filePath(file), "bs="+blockBytes, "conv=notrunc")
	return commandError(r, err)
}

// muslWords are musl's words for two errors, and those of other C libraries and of Go.
var muslWords = strings.NewReplacer("resource busy", unix.EBUSY.Error(), "operation timed out", unix.ETIMEDOUT.Error())

// noProgram is the exit status of a shell or env that cannot find the program.
const noProgram = 127

// commandError returns an error for a remote command that failed: the package's error for a known
// text of the driver, else the command's message.
func commandError(r boardssh.Result, err error) error {
	if err != nil || r.Status == 0 {
		return err
	}
	text := string(r.Stderr)
	if r.Status == noProgram {
		return fmt.Errorf("that machine lacks env, cat or dd: %.200s", plaintext.OneLine(strings.ToValidUTF8(text, "?")))
	}
	for number, name := range driverErrors {
		if strings.Contains(muslWords.Replace(strings.ToLower(text)), number.Error()) {
			return name
		}
	}
	if text = plaintext.OneLine(strings.TrimSpace(strings.ToValidUTF8(text, "?"))); text == "" {
		return fmt.Errorf("a program there ended with status %d", r.Status)
	}
	return errors.New(strings.ToValidUTF8(text[:min(len(text), 500)], ""))
}
