package rshim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"slipway/flash/target"
	"slipway/layers/plaintext"
)

// far is the driver's folder on a machine that is reached over SSH: a host without
// a Slipway of its own, or a DPU's BMC, whose programs are busybox's. dd is on all of
// them, opens the file by its name, and says why it could not.
type far struct {
	conn *target.Conn
	dir  string
}

func (f far) path(name string) string { return path.Join(f.dir, name) }

func (f far) read(ctx context.Context) ([]byte, error) {
	r, err := f.conn.Run(ctx, "env", "LC_ALL=C", "cat", f.path("misc"))
	if err = said(r, err); err != nil {
		return nil, err
	}
	return r.Stdout, nil
}

func (f far) set(ctx context.Context, key, value string) error {
	return f.feed(ctx, "misc", "4k", strings.NewReader(key+" "+value+"\n"))
}

func (f far) push(ctx context.Context, s *stream) error {
	s.opened()
	if err := f.feed(ctx, "boot", "64k", counting{s}); err != nil {
		return err
	}
	return s.whole()
}

// counting counts what is handed to the connection, which may be some megabytes ahead
// of what the DPU has taken.
type counting struct{ *stream }

func (c counting) Read(p []byte) (int, error) {
	n, err := c.stream.Read(p)
	c.took(int64(n))
	return n, err
}

func (f far) feed(ctx context.Context, file, blockBytes string, in io.Reader) error {
	r, err := f.conn.Feed(ctx, in, "env", "LC_ALL=C", "dd", "of="+f.path(file), "bs="+blockBytes, "conv=notrunc")
	return said(r, err)
}

// phrases are how the C libraries there call the driver's errors.
var phrases = []struct {
	text string
	err  error
}{
	{"No such file or directory", errMissing},
	{"No such device", errGone},
	{"Transport endpoint is not connected", errGone},
	{"Device or resource busy", errBusy},
	{"Resource busy", errBusy},
	{"Operation not permitted", errLocked},
	{"Permission denied", errDenied},
	{"Invalid argument", errInvalid},
	{"Connection timed out", errTimeout},
	{"Operation timed out", errTimeout},
}

// noProgram is the status that a shell and env end with where they find no program.
const noProgram = 127

// said is the error that a program there ended with.
func said(r target.Result, err error) error {
	if err != nil || r.Status == 0 {
		return err
	}
	text := string(r.Stderr)
	if r.Status == noProgram {
		return fmt.Errorf("that machine lacks env, cat or dd: %.200s", plaintext.OneLine(strings.ToValidUTF8(text, "?")))
	}
	for _, p := range phrases {
		if strings.Contains(text, p.text) {
			return p.err
		}
	}
	if text = plaintext.OneLine(strings.TrimSpace(strings.ToValidUTF8(text, "?"))); text == "" {
		return fmt.Errorf("a program there ended with status %d", r.Status)
	}
	return errors.New(strings.ToValidUTF8(text[:min(len(text), 500)], ""))
}
