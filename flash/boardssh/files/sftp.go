package files

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/pkg/sftp"

	"slipway/flash/boardssh"
	"slipway/layers/plaintext"
)

// inFlightBytes limits the unanswered bytes on one stream. OpenSSH accepts requests of 256 KiB with
// their headers. Other servers get what the protocol guarantees, 32 KiB.
//
// Bytes that the board's sftp-server has not read wait in sshd's memory: on a line without delay,
// all of them. Small amounts keep the board busy and stay in its processor's cache.
const (
	inFlightBytes = 5 << 19 // more than a window of 2 MiB
	nearBytes     = 3 * packetBytes
	nearRate      = 512 << 20 // bytes a second of the round trip, added to nearBytes
	mostInFlight  = 64
	packetBytes   = 255 << 10
	smallPacket   = 32 << 10
)

// boardFiles is one channel for operations on the board's files: SFTP or the shell.
type boardFiles interface {
	// do calls work, which waits for the board, and ends it with ctx.
	do(ctx context.Context, work func() error) error
	// makeDir makes a folder and those above it, if they are missing.
	makeDir(ctx context.Context, dir string) error
	// freeBytes returns the free space. ErrSilent aside, an error means that it is unknown.
	freeBytes(ctx context.Context, dir string) (bytes uint64, err error)
	// createFile creates an empty file with mode 0600 and opens it. An existing file is an error.
	createFile(ctx context.Context, name string) (pieceWriter, error)
	// openFile opens a file for writing pieces. Call it inside of do.
	openFile(name string) (pieceWriter, error)
	pieceBytes() int64
	// inFlight returns how many pieces to send before the first answer.
	inFlight(roundTrip time.Duration) int
	readBack(ctx context.Context, name string, to io.Writer) error
	// rename replaces any file or symlink that has the name.
	rename(ctx context.Context, from, to string) error
	removeFile(ctx context.Context, name string) error
	close()
}

// sftpFiles is an SFTP channel.
type sftpFiles struct {
	stream *boardssh.SFTP
	sftp   *sftp.Client
	packet int
}

// syncRate is how many bytes a slow card stores in a second during a sync.
const syncRate = 1 << 20

// openSFTP starts the board's sftp-server and an SFTP client. It calls onOpen as soon as it has a
// session, which may be the only one that the board allows.
func openSFTP(ctx context.Context, c *boardssh.Conn, onOpen func()) (*sftpFiles, error) {
	stream, err := c.OpenSFTP(ctx, onOpen)
	if err != nil {
		return nil, err
	}
	b := &sftpFiles{stream: stream, packet: smallPacket}
	if err := b.do(ctx, b.startClient); err != nil {
		b.close()
		return nil, fmt.Errorf("start sftp: %w", err)
	}
	return b, nil
}

// startClient starts the SFTP client, and chooses large packets if the server is OpenSSH.
func (b *sftpFiles) startClient() (err error) {
	b.sftp, err = sftp.NewClientPipe(b.stream.Answers, b.stream.Requests, sftp.UseConcurrentWrites(true), sftp.UseConcurrentReads(true), sftp.MaxConcurrentRequestsPerFile(mostInFlight))
	if err != nil {
		return err
	}
	if b.hasExtension("limits@openssh.com") && strings.HasPrefix(b.stream.ServerVersion(), "SSH-2.0-OpenSSH") {
		b.packet = packetBytes
		return sftp.MaxPacketUnchecked(packetBytes)(b.sftp)
	}
	return nil
}

// close closes the channel, without the SFTP client's own Close, which waits for the board.
func (b *sftpFiles) close() { b.stream.Close() }

func (b *sftpFiles) do(ctx context.Context, work func() error) error {
	return b.stream.Do(ctx, func() error { return recoverFault(work) })
}

// receive calls work with a writer that passes data on to out. Only such data are progress.
func (b *sftpFiles) receive(ctx context.Context, out io.Writer, work func(out io.Writer) error) error {
	return b.stream.Receive(ctx, out, func(out io.Writer) error {
		return recoverFault(func() error { return work(out) })
	})
}

// recoverFault calls work and turns a runtime panic of the SFTP library into an error.
func recoverFault(work func() error) (err error) {
	defer func() { err = cmp.Or(describePanic(recover()), err) }()
	return work()
}

// describePanic returns nil for nil and an error for a runtime error in the SFTP library. It panics
// again for others. The answer "done" to a request for a file's size causes such an error.
func describePanic(panicked any) error {
	if panicked == nil {
		return nil
	}
	if fault, ok := panicked.(runtime.Error); ok {
		return fmt.Errorf("the board's SFTP server answers what it was not asked: %w", fault)
	}
	panic(panicked)
}

func (b *sftpFiles) hasExtension(extension string) bool {
	_, ok := b.sftp.HasExtension(extension)
	return ok
}

func (b *sftpFiles) pieceBytes() int64 { return int64(b.packet) }

func (b *sftpFiles) inFlight(roundTrip time.Duration) int {
	bytes := min(inFlightBytes, nearBytes+int(roundTrip.Seconds()*nearRate))
	return min(mostInFlight, bytes/b.packet)
}

func (b *sftpFiles) makeDir(ctx context.Context, dir string) error {
	return b.do(ctx, func() error { return b.sftp.MkdirAll(dir) })
}

// freeBytes returns the free space that statvfs reports for users other than root. A server without
// statvfs, or a read-only file system, is an error.
func (b *sftpFiles) freeBytes(ctx context.Context, dir string) (bytes uint64, err error) {
	err = b.do(ctx, func() error {
		if !b.hasExtension("statvfs@openssh.com") {
			return errors.ErrUnsupported
		}
		vfs, err := b.sftp.StatVFS(dir)
		if err != nil {
			return err
		}
		if vfs.Flag&1 != 0 { // read-only, which the write will tell
			return errors.ErrUnsupported
		}
		bytes = vfs.Frsize * vfs.Bavail
		return nil
	})
	return bytes, err
}

// createFile creates a file with mode 0600 and opens it for writing. An existing one is an error.
func (b *sftpFiles) createFile(ctx context.Context, name string) (w pieceWriter, err error) {
	err = b.do(ctx, func() error {
		f, err := b.sftp.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL)
		if err != nil {
			return err
		}
		w = sftpFile{f, b}
		return f.Chmod(0o600)
	})
	return w, err
}

func (b *sftpFiles) openFile(name string) (pieceWriter, error) {
	f, err := b.sftp.OpenFile(name, os.O_WRONLY)
	return sftpFile{f, b}, err
}

type sftpFile struct {
	*sftp.File
	files *sftpFiles
}

// buffers hold one request each. Small packets, of uploads to many boards, have smaller buffers.
var (
	buffers      = bufferPool(packetBytes)
	smallBuffers = bufferPool(smallPacket)
)

// bufferPool returns a pool of buffers of this size.
func bufferPool(size int) *sync.Pool {
	return &sync.Pool{New: func() any {
		buf := make([]byte, size)
		return &buf
	}}
}

// writePiece copies a piece of src to f. A refusal, or a short or unreadable src, is a finalError.
func (f sftpFile) writePiece(_ context.Context, src io.ReaderAt, p piece) error {
	pool := buffers
	if p.length <= smallPacket {
		pool = smallBuffers
	}
	kept := pool.Get().(*[]byte)
	defer pool.Put(kept)
	buf := *kept
	n, err := src.ReadAt(buf[:p.length], p.offset)
	if int64(n) < p.length {
		if err == io.EOF {
			err = errShrunk
		}
		return finalError{err}
	}
	_, err = f.WriteAt(buf[:n], p.offset)
	return classifyError(err)
}

// classifyError makes a refusal by the server a finalError. After other errors, a stream may retry.
func classifyError(err error) error {
	if errors.As(err, new(*sftp.StatusError)) || errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) {
		return finalError{fmt.Errorf("the board refuses: %w", err)}
	}
	return err
}

// sync calls fsync if the server has it. The board may be silent for as long as a slow card needs.
func (f sftpFile) sync(ctx context.Context, size int64) error {
	if !f.files.hasExtension("fsync@openssh.com") {
		return nil
	}
	defer f.files.stream.AllowSilence(time.Duration(size/syncRate) * time.Second)()
	if err := f.files.do(ctx, f.Sync); err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	return nil
}

// finish sets the permission bits of the file and closes it. If that fails, it stays open.
func (f sftpFile) finish(ctx context.Context, mode fs.FileMode) error {
	return f.files.do(ctx, func() error {
		if err := f.Chmod(mode.Perm()); err != nil {
			return fmt.Errorf("set mode: %w", err)
		}
		return f.Close()
	})
}

// readBack writes the content of a file on the board to out.
func (b *sftpFiles) readBack(ctx context.Context, name string, out io.Writer) error {
	return b.receive(ctx, out, func(out io.Writer) error {
		f, err := b.sftp.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = f.WriteTo(out)
		return err
	})
}

func (b *sftpFiles) removeFile(ctx context.Context, name string) error {
	return b.do(ctx, func() error { return b.sftp.Remove(name) })
}

// checkFreeSpace returns ErrFull if the file system of dir, or of the nearest existing folder
// above, has less than size bytes free. SFTP would call that only "failure". If the board does not
// report its free space, it returns nil.
func checkFreeSpace(ctx context.Context, c *boardssh.Conn, b boardFiles, dir string, size int64) error {
	free, err := b.freeBytes(ctx, dir)
	for ; errors.Is(err, fs.ErrNotExist) && dir != path.Dir(dir); free, err = b.freeBytes(ctx, dir) {
		dir = path.Dir(dir)
	}
	if errors.Is(err, boardssh.ErrSilent) {
		return err
	}
	if err == nil && free < uint64(size) {
		err = fmt.Errorf("%w: %d MiB are needed, but %s has %d MiB free", ErrFull, (size-1)>>20+1, dir, free>>20)
		return c.NextOnBoard(err, "df -h "+plaintext.Quote(dir), "what fills it")
	}
	return nil // unknown: a full disk then fails the write
}

// tryScript writes a file in a folder and removes it. If that fails, it prints the free inodes.
const tryScript = nearestFolder + `head -c 65536 /dev/zero >"$d/$2" || df -Pi "$d"
rm -f "$d/$2"`

// explainFailure replaces an SFTP status error, which is the same for a full, broken and read-only
// file system, by the shell's error for a test write, if that fails too. A full one is ErrFull.
func explainFailure(ctx context.Context, c *boardssh.Conn, dir string, err error) error {
	status, is := errors.AsType[*sftp.StatusError](err)
	if ctx.Err() != nil || !is {
		return err
	}
	r, failed := c.Ask(ctx, "sh", "-c", tryScript, "sh", pathArgument(dir), path.Clean(tempName("try")))
	words := boardssh.Printable(string(r.Stderr))
	if failed != nil || words == "" {
		return err
	}
	free, known := parseFree(r.Stdout)
	words = strings.Replace(err.Error(), status.Error(), words+plaintext.Either(known && free == 0, " (no inode is free)", ""), 1)
	if !strings.Contains(words, "No space left") {
		return finalError{errors.New(words)}
	}
	err = fmt.Errorf("%w: %s", ErrFull, words)
	return finalError{c.NextOnBoard(err, fmt.Sprintf("df -h %s; df -i %[1]s", plaintext.Quote(dir)), "bytes, then inodes")}
}

// digestScript prints the digest of $1. OpenSSL uses the processor's SHA; sha256sum often does not.
const digestScript = `openssl dgst -sha256 -r "$1" 2>/dev/null || sha256sum "$1"`

// eachPart loops over part files of other versions than $1. A pattern without match is no file.
var eachPart = `for f in "$2".` + strings.Repeat("[0-9a-f]", idDigits) + `.part; do
	[ "$f" != "$1" ] && [ -f "$f" ] && [ ! -L "$f" ] && `

var (
	proveScript  = digestScript + "\n" + eachPart + "echo part && break\ndone; true"
	removeScript = eachPart + "rm -f \"$f\"\ndone; true"
)

// removeParts removes parts that broken uploads of other versions of a file left. If the board
// cannot do it, a few hidden files remain; the upload itself is not affected.
func (w *stream) removeParts(ctx context.Context, remote string) {
	_, _ = w.conn.Run(ctx, "sh", "-c", removeScript, "sh", pathArgument(remote), hiddenPrefix(remote))
}

// pathArgument puts ./ before a relative name, so that no program takes it for an option.
func pathArgument(name string) string {
	if path.IsAbs(name) {
		return name
	}
	return "./" + name
}

var digestPattern = plaintext.Regexp(`^\\?([0-9a-f]{64})\b`)

// Digest returns the board's SHA-256 of a file, or "" if that fails. Only ctx's end is an error.
func Digest(ctx context.Context, c *boardssh.Conn, name string) (string, error) {
	r, err := c.Run(ctx, "sh", "-c", digestScript, "sh", pathArgument(name))
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	if m := digestPattern().FindSubmatch(r.Stdout); err == nil && r.Status == 0 && m != nil {
		return string(m[1]), nil
	}
	return "", nil
}

// proveDigest returns the SHA-256 that the board computes of a file, and whether part files of
// other versions of remote exist. If the board has no program for it, or that program sees other
// folders than the SFTP server, Slipway reads the file back, up to size bytes.
func (w *stream) proveDigest(ctx context.Context, name, remote string, size int64) (digest string, others bool, err error) {
	r, err := w.conn.Run(ctx, "sh", "-c", proveScript, "sh", pathArgument(name), hiddenPrefix(remote))
	if ctx.Err() != nil {
		return "", false, context.Cause(ctx)
	}
	if m := digestPattern().FindSubmatch(r.Stdout); err == nil && m != nil {
		return string(m[1]), bytes.Contains(r.Stdout, []byte("\npart\n")), nil
	}
	h := sha256.New()
	if err := w.files.readBack(ctx, name, &limitedWriter{h, size}); err != nil {
		return "", false, fmt.Errorf("read back: %w", err)
	}
	return hex.EncodeToString(h.Sum(nil)), false, nil
}

// limitedWriter returns an error after left bytes, because a hostile board may send without end.
type limitedWriter struct {
	to   io.Writer
	left int64
}

// Write writes p to w.to. If p exceeds w.left, it writes nothing and returns an error.
func (w *limitedWriter) Write(p []byte) (int, error) {
	if w.left -= int64(len(p)); w.left < 0 {
		return 0, errors.New("the board sends more than was sent to it")
	}
	return w.to.Write(p)
}

func (b *sftpFiles) rename(ctx context.Context, from, to string) error {
	return b.do(ctx, func() error { return b.sftp.PosixRename(from, to) })
}
