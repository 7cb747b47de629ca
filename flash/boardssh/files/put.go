// Package files turns local files into the same files on a board, over a connection of boardssh. A
// file appears whole, once the board confirmed its digest. Package undo restores replaced files.
package files

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"slipway/flash/boardssh"
	"slipway/flash/sealed"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// Sent is a file that was sent to the board, and whose digest the board has confirmed.
type Sent struct {
	Path      string
	SizeBytes int64
	SHA256    string
	Elapsed   time.Duration
}

// Put copies a local file to the board. The file appears under its name whole or not at all, after
// its digest was checked on the board. It replaces a file or symlink that had the name before.
// Slipway creates a missing folder. Only the permission bits of mode count.
func Put(ctx context.Context, c *boardssh.Conn, local, remote string, mode fs.FileMode) (Sent, error) {
	f, _, err := openSource(local)
	if err != nil {
		return Sent{}, err
	}
	defer f.Close()
	return PutFile(ctx, c, f, remote, mode)
}

// PutFile is Put for a file that is open.
func PutFile(ctx context.Context, c *boardssh.Conn, f *sealed.File, remote string, mode fs.FileMode) (Sent, error) {
	src, err := newSource(f)
	if err != nil {
		return Sent{}, err
	}
	step := progress.Start(ctx, "put "+filepath.Base(src.name), src.size, progress.Bytes)
	sent, err := putSource(ctx, c, src, remote, mode, step)
	step.End(sent.Path+describeTransport(c), err)
	return sent, err
}

// PutBytes is Put for data in memory.
func PutBytes(ctx context.Context, c *boardssh.Conn, data []byte, remote string, mode fs.FileMode) (Sent, error) {
	return putSource(ctx, c, source{name: remote, data: bytes.NewReader(data), size: int64(len(data))}, remote, mode, noProgress{})
}

// uploadProgress receives the progress of an upload.
type uploadProgress interface {
	Add(bytes int64)
	Detail(text string)
}

type noProgress struct{}

func (noProgress) Add(int64)     {}
func (noProgress) Detail(string) {}

// source is a file or bytes to send. Sending and hashing read it at the same time.
type source struct {
	name   string
	data   io.ReaderAt
	size   int64
	sha256 string // the digest that the board must find; "" if it is not known yet
	owner  string // owner of the file on the board; "": the login user

	modified time.Time
}

// openSource opens a local file, and returns it with what an upload sends of it.
func openSource(local string) (*sealed.File, source, error) {
	f, err := sealed.Open(local)
	if err != nil {
		return nil, source{}, err
	}
	src, err := newSource(f)
	if err != nil {
		f.Close()
	}
	return f, src, err
}

// newSource returns what an upload sends of f: its content, name, size and modification time.
func newSource(f *sealed.File) (source, error) {
	info, err := f.Stat()
	if err != nil {
		return source{}, err
	}
	return source{name: f.Name(), data: f, size: f.SizeBytes(), modified: info.ModTime()}, nil
}

// putSource sends src to remote on the board and measures the time. It refuses an invalid name.
func putSource(ctx context.Context, c *boardssh.Conn, src source, remote string, mode fs.FileMode, tell uploadProgress) (Sent, error) {
	if remote == "" || strings.HasSuffix(remote, "/") || strings.IndexByte(remote, 0) >= 0 {
		return Sent{}, fmt.Errorf("put %s: %q is no name for a file", src.name, remote)
	}
	began := time.Now()
	digest, err := uploadSource(ctx, c, src, remote, mode, tell)
	if err != nil {
		return Sent{}, boardssh.BoardError(fmt.Sprintf("put %s to %s:%s", src.name, c.Address().Host, boardssh.Printable(remote)), err)
	}
	return Sent{Path: remote, SizeBytes: src.size, SHA256: digest, Elapsed: time.Since(began)}, nil
}

// uploadSource sends src over one or several streams into a part file, proves its digest, and
// renames it to remote. After an error, abandonPart keeps or removes the part file.
func uploadSource(ctx context.Context, c *boardssh.Conn, src source, remote string, mode fs.FileMode, tell uploadProgress) (digest string, err error) {
	name, err := src.partName(remote)
	if err != nil {
		return "", err
	}
	rtt := measureRoundTrip(ctx, c, src.size)
	early := openEarlyStreams(ctx, c, c.Rate() == 0 && src.size >= severalBytes, func() int { return countStreams(c, src.size, rtt()) })
	defer early.close()
	look := sync.OnceValues(func() (folderListing, error) { return inspectPart(ctx, c, name) })
	b, err := openChannelBeside(ctx, c, func() {
		if name != "" {
			go look()
		}
	})
	if err != nil {
		return "", err
	}
	defer b.close()
	local := src.startDigest()
	p, err := beginPart(ctx, c, b, src, remote, name, look, tell)
	if err != nil {
		return "", explainFailure(ctx, c, path.Dir(remote), err)
	}
	k := &transfer{conn: c, src: src, name: p.name, file: p.file, queue: newQueue(p.missing, tell.Add), early: early, roundTrip: rtt()}
	defer k.close()
	several := countStreams(c, p.missingBytes(), k.roundTrip)
	f := startBoardDigest(ctx, c, p.name, remote, src.size, k.queue)
	defer f.stopProgram()
	w, err := k.sendAll(ctx, b, several)
	if err == nil {
		tell.Detail("proving what arrived")
		digest, err = k.finishUpload(ctx, w, p, f, <-local, remote, mode)
	}
	if err != nil {
		err = explainFailure(ctx, c, path.Dir(remote), err)
		return "", abandonPart(ctx, c, p, src.size-k.queue.bytesLeft(), err)
	}
	return digest, nil
}

// abandonPart removes the part file of a failed upload, unless the next upload can continue it. It
// returns err, with a remark if the file stays. arrived is how many bytes of it are on the board.
func abandonPart(ctx context.Context, c *boardssh.Conn, p partFile, arrived int64, err error) error {
	if !p.resumable || arrived == 0 || ctx.Err() == nil && errors.As(err, new(finalError)) {
		RemoveFile(ctx, c, p.name)
		return err
	}
	return fmt.Errorf("%w; %d MiB of it are on the board, and the same command resumes after them (if you do not want that: rm %s)", err, arrived>>20, plaintext.Quote(p.name))
}

// wholeFile returns all of a file as one piece, or none of an empty file.
func wholeFile(size int64) []piece {
	if size == 0 {
		return nil
	}
	return []piece{{0, size}}
}

// finishUpload syncs the complete part file, finishes it by finishOnce, and returns its digest.
// In between it copies an executable that another process may have open, as that could not run.
func (k *transfer) finishUpload(ctx context.Context, w *stream, p partFile, f *boardDigest, want localDigest, remote string, mode fs.FileMode) (string, error) {
	mayBeOpen, err := k.syncFile(ctx, w)
	if err != nil {
		return "", classifyError(err)
	}
	if mode.Perm()&0o111 != 0 && (p.earlier || mayBeOpen) && w.renewFile(ctx, p.name) {
		f.stale = true
		if err := w.reopenFile(ctx, p.name, k.src.size); err != nil {
			return "", classifyError(err)
		}
	}
	return w.finishOnce(ctx, k.src, want, p, f, remote, mode)
}

// reopenFile replaces w.file by the file that has this name now, and syncs that to the disk.
func (w *stream) reopenFile(ctx context.Context, name string, size int64) error {
	err := w.files.do(ctx, func() (err error) {
		w.file.Close()
		w.file, err = w.files.openFile(name)
		return err
	})
	if err != nil {
		return err
	}
	return w.file.sync(ctx, size)
}

// finishOnce is finishFile, but if the part file is gone because another upload of the same file
// has renamed it, finishOnce succeeds if remote has the digest.
func (w *stream) finishOnce(ctx context.Context, src source, want localDigest, p partFile, f *boardDigest, remote string, mode fs.FileMode) (string, error) {
	digest, err := w.finishFile(ctx, src, want, p, f, remote, mode)
	if p.resumable && errors.Is(err, fs.ErrNotExist) {
		if there, _ := Digest(ctx, w.conn, remote); there != "" && there == want.hex {
			return there, nil
		}
	}
	return digest, err
}

// finishFile sets owner and mode of the part file, closes it, proves its digest, renames it to
// remote, and returns the digest. It also removes part files of other versions.
func (w *stream) finishFile(ctx context.Context, src source, want localDigest, p partFile, f *boardDigest, remote string, mode fs.FileMode) (string, error) {
	if want.err != nil {
		return "", finalError{want.err}
	}
	if err := w.changeOwner(ctx, p.name, src.owner); err != nil {
		return "", err
	}
	if err := w.file.finish(ctx, mode); err != nil {
		return "", classifyError(err)
	}
	a := f.waitForDigest(ctx)
	got, others, err := a.digest, a.others, error(nil)
	if got != want.hex { // no digest from the transfer, or a different one
		got, others, err = w.proveDigest(ctx, p.name, remote, src.size)
	}
	if err != nil {
		return "", err
	}
	if got != want.hex {
		return "", finalError{fmt.Errorf("%w: what arrived on the board has the digest %s, want %s: it was damaged on the way, or %s changed since its digest was taken", ErrDamaged, got, want.hex, src.name)}
	}
	if err := w.files.rename(ctx, p.name, remote); err != nil {
		return "", classifyError(err)
	}
	if others {
		w.removeParts(ctx, remote)
	}
	return got, nil
}

// renewScript copies the file $1 over the empty file $2 and renames $2 to $1.
const renewScript = `cat "$1" >"$2" && mv -f "$2" "$1"`

// renewFile replaces a file on the board by a copy, because a program that another process has open
// for writing cannot run. If that fails, it returns false and leaves the file as it was.
func (w *stream) renewFile(ctx context.Context, name string) bool {
	fresh := tempName(name)
	empty, err := w.files.createFile(ctx, fresh)
	if err == nil {
		err = w.files.do(ctx, empty.Close)
	}
	if err != nil {
		return false
	}
	r, err := w.conn.Run(ctx, "sh", "-c", renewScript, "sh", pathArgument(name), pathArgument(fresh))
	if err == nil && r.Status == 0 {
		return true
	}
	RemoveFile(ctx, w.conn, fresh)
	return false
}

// changeOwner runs chown on the part file, before it gets its final name, unless owner is "".
func (w *stream) changeOwner(ctx context.Context, name, owner string) error {
	if owner == "" {
		return nil
	}
	r, err := w.conn.Run(ctx, "chown", owner, pathArgument(name))
	if err == nil && r.Status != 0 {
		err = finalError{fmt.Errorf("give it to %s: status %d: %s", owner, r.Status, bytes.TrimSpace(r.Stderr))}
	}
	return err
}

// tempName returns a hidden name beside remote that nobody can guess, so that nobody can put a
// symlink in its place for Slipway to write through.
func tempName(remote string) string { return hiddenName(remote, rand.Text()[:10]) }

// RemoveFile removes a file on the board, even after ctx has ended, and ignores errors. It opens a
// new channel, because the old one may be what failed.
func RemoveFile(ctx context.Context, c *boardssh.Conn, name string) {
	ctx, cancel := boardssh.CleanupContext(ctx)
	defer cancel()
	b, err := openChannel(ctx, c)
	if err != nil {
		return // the connection is lost, and the file stays under its hidden name
	}
	defer b.close()
	_ = b.removeFile(ctx, name)
}

type localDigest struct {
	hex string
	err error
}

// startDigest computes the source's digest in the background, unless the source has it already. A
// file that became shorter is errShrunk.
func (s source) startDigest() <-chan localDigest {
	done := make(chan localDigest, 1)
	if s.sha256 != "" {
		done <- localDigest{hex: s.sha256}
		return done
	}
	go func() {
		h := sha256.New()
		n, err := io.Copy(h, io.NewSectionReader(s.data, 0, s.size))
		if err == nil && n != s.size {
			err = errShrunk
		}
		done <- localDigest{hex.EncodeToString(h.Sum(nil)), err}
	}()
	return done
}

var errShrunk = errors.New("the file became shorter while it was read")
