package files

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"sync/atomic"
	"time"

	"slipway/flash/boardssh"
	"slipway/layers/plaintext"
)

// A board without an sftp-server gets files through its shell, for example busybox's. Each piece is
// written by a new program, and a few run at once, so that the line does not wait for them.
const (
	shellPiece    = 1 << 20
	shellInFlight = 3 // OpenSSH allows ten sessions on a connection
	shellBlock    = 64 << 10
)

// Scripts are fixed text, with the file's name as their first argument.
const (
	needScript   = `for p; do command -v "$p" >/dev/null || { echo "$p"; exit 1; }; done`
	dirScript    = `mkdir -p "$1"`
	freeScript   = nearestFolder + `df -Pk "$d"`
	createScript = `umask 077; set -C; : >"$1"`
	pieceScript  = `exec dd of="$1" bs="$2" seek="$3" conv=notrunc`
	finishScript = `{ sync "$1" 2>/dev/null || sync; } && chmod "$2" "$1"`
	dropScript   = `rm -f "$1"`

	// Where mv knows no -T, a symlink to a folder would be followed.
	renameScript = `mv -fT "$1" "$2" 2>/dev/null && exit
[ -d "$2" ] && [ ! -L "$2" ] && { echo "$2 is a folder" >&2; exit 1; }
[ -L "$2" ] && rm -f "$2"
exec mv -f "$1" "$2"`
)

// nearestFolder begins scripts: it sets $d to the folder $1, or to the nearest existing one above.
const nearestFolder = `d=$1
until [ -d "$d" ]; do d=${d%/*} d=${d:-/}; done
`

// shellFiles is a boardFiles that runs a shell script for each operation.
type shellFiles struct{ conn *boardssh.Conn }

// openChannel opens a channel to the board's files: SFTP, or the shell if no sftp-server answers.
func openChannel(ctx context.Context, c *boardssh.Conn) (boardFiles, error) {
	return openChannelBeside(ctx, c, func() {})
}

// openChannelBeside is openChannel that calls onOpen while it waits for the sftp-server. If none
// answers, it sets c.NoSFTP, so that later calls use the shell at once and do not call onOpen.
func openChannelBeside(ctx context.Context, c *boardssh.Conn, onOpen func()) (boardFiles, error) {
	if c.NoSFTP.Load() {
		return shellFiles{c}, nil
	}
	b, err := openSFTP(ctx, c, onOpen)
	if err == nil {
		return b, nil
	}
	if ctx.Err() != nil || errors.Is(err, boardssh.ErrSilent) {
		return nil, err
	}
	r, bad := c.Ask(ctx, "sh", "-c", needScript, "sh", "dd", "mkdir", "df", "sync", "chmod", "mv", "rm")
	switch {
	case bad != nil:
		return nil, errors.Join(err, bad)
	case r.Status != 0:
		return nil, fmt.Errorf("%w, and its shell has no %s", err, bytes.TrimSpace(r.Stdout))
	}
	c.NoSFTP.Store(true)
	return shellFiles{c}, nil
}

// describeTransport returns a remark if files go to the board through its shell, and "" for SFTP.
func describeTransport(c *boardssh.Conn) string {
	if c.NoSFTP.Load() {
		return " (through the shell, as no sftp-server answers there)"
	}
	return ""
}

// do calls work, unless ctx has ended. It does not interrupt work, whose programs end with ctx.
func (s shellFiles) do(ctx context.Context, work func() error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return work()
}

func (shellFiles) close() {}

// runScript runs a script with a file's name and args. A status over 0 is a finalError.
func (s shellFiles) runScript(ctx context.Context, stdin io.Reader, script, name string, args ...string) error {
	argv := append([]string{"sh", "-c", script, "sh", pathArgument(name)}, args...)
	r, err := s.conn.Feed(ctx, stdin, argv...)
	if err == nil && r.Status != 0 {
		err = finalError{fmt.Errorf("the board refuses: status %d: %s", r.Status, bytes.TrimSpace(r.Stderr))}
	}
	return err
}

func (s shellFiles) makeDir(ctx context.Context, dir string) error {
	return s.runScript(ctx, nil, dirScript, dir)
}

// freePattern finds the free KiB in df's last line, with any names before and after the numbers.
var freePattern = plaintext.Regexp(`\s\d{1,18}\s+\d{1,18}\s+(\d{1,15})\s+(?:\d{1,4}%|-)\s+/[^\n]*\n?$`)

// freeBytes returns what df reports. An unknown form of its output is errors.ErrUnsupported.
func (s shellFiles) freeBytes(ctx context.Context, dir string) (uint64, error) {
	out, err := s.conn.AskOutput(ctx, "sh", "-c", freeScript, "sh", pathArgument(dir))
	free, known := parseFree([]byte(out))
	if err == nil && !known {
		err = errors.ErrUnsupported
	}
	return free, err
}

// parseFree returns the free space, in bytes, in the last line of df -Pk; false if it has none.
func parseFree(out []byte) (uint64, bool) {
	m := freePattern().FindSubmatch(out)
	if m == nil {
		return 0, false
	}
	kib, err := strconv.ParseUint(string(m[1]), 10, 54)
	return kib << 10, err == nil
}

func (s shellFiles) createFile(ctx context.Context, name string) (pieceWriter, error) {
	return shellFile{s, name}, s.runScript(ctx, nil, createScript, name)
}

func (s shellFiles) openFile(name string) (pieceWriter, error) { return shellFile{s, name}, nil }

func (shellFiles) pieceBytes() int64 { return shellPiece }

func (shellFiles) inFlight(time.Duration) int { return shellInFlight }

// shellFile is a file on the board. A new program opens it for each piece.
type shellFile struct {
	files shellFiles
	name  string
}

func (f shellFile) Close() error { return nil }

// writePiece pipes a piece of src to dd on the board. The piece's offset must be a multiple of
// shellBlock. A shorter src is a finalError.
func (f shellFile) writePiece(ctx context.Context, src io.ReaderAt, p piece) error {
	if p.offset%shellBlock != 0 {
		return errors.New("a piece begins inside of a block")
	}
	var read atomic.Int64 // atomic: stdin may still be read after the program has ended
	in := Counted{io.NewSectionReader(src, p.offset, p.length), &read}
	err := f.files.runScript(ctx, in, pieceScript, f.name, strconv.Itoa(shellBlock), strconv.FormatInt(p.offset/shellBlock, 10))
	if err != nil {
		return err
	}
	if read.Load() < p.length {
		return finalError{errShrunk}
	}
	return nil
}

// Counted counts the bytes that are read from it, for a progress display.
type Counted struct {
	io.Reader
	Bytes *atomic.Int64
}

// Read reads from the inner reader and adds the number of bytes to c.Bytes.
func (c Counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.Bytes.Add(int64(n))
	return n, err
}

// sync does nothing: finishScript syncs the file.
func (shellFile) sync(context.Context, int64) error { return nil }

func (f shellFile) finish(ctx context.Context, mode fs.FileMode) error {
	return f.files.runScript(ctx, nil, finishScript, f.name, fmt.Sprintf("%04o", mode.Perm()))
}

func (s shellFiles) readBack(context.Context, string, io.Writer) error {
	return errors.New("the board has neither openssl nor sha256sum, nor an sftp-server, so that nothing proves what arrived")
}

func (s shellFiles) rename(ctx context.Context, from, to string) error {
	return s.runScript(ctx, nil, renameScript, from, pathArgument(to))
}

func (s shellFiles) removeFile(ctx context.Context, name string) error {
	return s.runScript(ctx, nil, dropScript, name)
}
