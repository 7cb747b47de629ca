package audit

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"slipway/flash/boardssh"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// tarScript writes the files below a folder to standard output as a tar archive, without other file
// systems. BusyBox's tar has no option for that, so the script excludes the usual mount points.
const tarScript = `cd "$1" || exit
if tar --version 2>/dev/null | grep -q GNU; then
	exec tar --one-file-system --numeric-owner --xattrs --xattrs-include=security.capability -cf - .
fi
exec tar -cf - --exclude=./proc --exclude=./sys --exclude=./dev --exclude=./run --exclude=./tmp .`

// ownOfBoards are findings wrong in an image, but not on a board: it makes its keys and machine ID.
var ownOfBoards = []string{"host key /etc/ssh/*", "host key /etc/dropbear/*", "machine id /etc/machine-id", "machine id /var/lib/dbus/machine-id"}

// AuditBoard audits the root file system of a running board. It copies the files by tar to a
// temporary file on this machine. Host keys and machine IDs are no findings there.
func AuditBoard(ctx context.Context, conn *boardssh.Conn, opt Options) (Report, error) {
	return auditBoard(ctx, conn, "/", opt)
}

// auditBoard audits like AuditBoard, but only below root. Unread counts the files tar may not read.
func auditBoard(ctx context.Context, conn *boardssh.Conn, root string, opt Options) (Report, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	reader, writer := io.Pipe()
	var said tarErrors
	go func() {
		code, err := conn.Stream(ctx, nil, writer, &said, "sh", "-c", tarScript, "sh", root)
		if err == nil && code > 1 && (said.unread == 0 || len(said.others) > 0) {
			err = fmt.Errorf("tar on the board: exit status %d: %s", code, plaintext.OneLine(strings.Join(said.others, "; ")))
		}
		writer.CloseWithError(err) // nil is the end of the archive
	}()
	t, err := readTar(ctx, conn.Address().Name(), reader)
	if err != nil {
		cancel(err)
		reader.CloseWithError(err)
		return Report{}, err
	}
	defer t.Close()
	if _, err := io.Copy(io.Discard, reader); err != nil { // what tar pads the archive with
		return Report{}, err
	}
	opt.Allow = slices.Concat(opt.Allow, ownOfBoards)
	r, err := Run(ctx, t, opt)
	r.Unread = said.unread
	return r, err
}

// tarErrors takes tar's errors. It counts files that only root may read, and keeps other lines.
type tarErrors struct {
	unread int
	others []string
	line   []byte // begun, up to maxErrorBytes
}

const (
	maxErrorBytes = 1000
	maxErrors     = 10
)

// Write counts lines of denied access, and keeps up to maxErrors others, each up to maxErrorBytes.
func (e *tarErrors) Write(p []byte) (int, error) {
	for _, b := range p {
		if b != '\n' {
			if len(e.line) < maxErrorBytes {
				e.line = append(e.line, b)
			}
			continue
		}
		line := string(e.line)
		e.line = e.line[:0]
		switch {
		case strings.Contains(line, "Permission denied"):
			e.unread++
		case strings.Contains(line, "previous errors"): // tar's last line after any error
		case len(e.others) < maxErrors:
			e.others = append(e.others, line)
		}
	}
	return len(p), nil
}

// maxSpool limits the temporary file with the content of a board's files.
const maxSpool = 32 << 30

// endReader records whether its data ended. A whole tar archive has an end mark before the end of
// the data, so an archive whose data ended first is truncated.
type endReader struct {
	io.Reader
	ended bool
}

// Read reads from the inner reader, and sets ended at the end of its data.
func (r *endReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.ended = r.ended || err == io.EOF
	return n, err
}

// readTar reads a root file system from a tar archive and shows progress. It fails if the archive
// is truncated or has more than maxSpool bytes. The content, at most maxFileBytes of a file, goes
// to an unlinked temporary file, which is gone when the tree is closed.
func readTar(ctx context.Context, name string, r io.Reader) (t *tree, err error) {
	spool, err := os.CreateTemp("", "slipway-audit-")
	if err != nil {
		return nil, err
	}
	step, seen := progress.Start(ctx, "read "+name, 0, ""), ""
	defer func() {
		if err != nil {
			err = errors.Join(err, spool.Close())
		}
		step.End(seen, err)
	}()
	if err := os.Remove(spool.Name()); err != nil {
		return nil, err
	}
	places := map[string]int64{} // of a file's content in spool
	t = &tree{name: name, files: map[string]entry{}, close: spool.Close}
	t.open = func(name string) (io.ReadCloser, error) {
		at, ok := places[name]
		if !ok {
			return nil, fs.ErrNotExist
		}
		return io.NopCloser(io.NewSectionReader(spool, at, t.bytes)), nil
	}
	whole := &endReader{Reader: r}
	archive := tar.NewReader(whole)
	for {
		h, err := archive.Next()
		if err == io.EOF && !whole.ended {
			return t, nil
		}
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return nil, fmt.Errorf("its archive is damaged: %w", err)
		}
		inside := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		if inside == "" {
			continue
		}
		if h.Typeflag == tar.TypeLink {
			other := strings.TrimPrefix(path.Clean("/"+h.Linkname), "/")
			if e, ok := t.files[other]; ok {
				t.files[inside], places[inside] = e, places[other]
			}
			continue
		}
		e := entry{mode: h.FileInfo().Mode(), size: h.Size, uid: h.Uid, gid: h.Gid, major: uint32(h.Devmajor), minor: uint32(h.Devminor)}
		if h.Typeflag == tar.TypeSymlink {
			e.link = h.Linkname
		}
		_, e.capabilities = h.PAXRecords["SCHILY.xattr.security.capability"]
		t.files[inside] = e
		places[inside] = t.bytes
		n, err := io.Copy(spool, io.LimitReader(archive, maxFileBytes))
		t.bytes += n
		seen = fmt.Sprintf("%d files, %d MiB", len(t.files), t.bytes>>20)
		step.Detail(seen)
		if err != nil {
			return nil, fmt.Errorf("read /%s: %w", inside, err)
		}
		if t.bytes > maxSpool {
			return nil, fmt.Errorf("%s holds more than %d GiB", name, int64(maxSpool>>30))
		}
		if err := errors.Join(t.checkSize(), context.Cause(ctx)); err != nil {
			return nil, err
		}
	}
}
