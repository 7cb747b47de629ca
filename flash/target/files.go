package target

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"
)

// Requests in flight, and their size where OpenSSH serves: it takes 256 KiB with
// their headers. Others are held to what the protocol promises, 32 KiB.
const (
	inFlight    = 64
	packetBytes = 255 << 10
)

// boardFiles is one SFTP channel. Each has the board's receive window to itself.
type boardFiles struct {
	conn    *Conn
	link    *link
	session *ssh.Session
	sftp    *sftp.Client
}

func (c *Conn) files(ctx context.Context) (*boardFiles, error) {
	link, err := c.client()
	if err != nil {
		return nil, err
	}
	session, err := openSession(ctx, link)
	if err != nil {
		return nil, err
	}
	b := &boardFiles{conn: c, link: link, session: session}
	if err := b.do(ctx, b.start); err != nil {
		b.close()
		return nil, fmt.Errorf("start sftp: %w", err)
	}
	return b, nil
}

func (b *boardFiles) start() error {
	in, err := b.session.StdinPipe()
	if err != nil {
		return err
	}
	out, err := b.session.StdoutPipe()
	if err != nil {
		return err
	}
	if err := b.session.RequestSubsystem("sftp"); err != nil {
		return fmt.Errorf("%w; the board needs an sftp-server", err)
	}
	b.sftp, err = sftp.NewClientPipe(out, in,
		sftp.UseConcurrentWrites(true), sftp.UseConcurrentReads(true), sftp.MaxConcurrentRequestsPerFile(inFlight))
	if err != nil {
		return err
	}
	if b.has("limits@openssh.com") && strings.HasPrefix(string(b.link.ServerVersion()), "SSH-2.0-OpenSSH") {
		return sftp.MaxPacketUnchecked(packetBytes)(b.sftp)
	}
	return nil
}

// close leaves the SFTP client's own Close out: it waits for the board.
func (b *boardFiles) close() { go b.session.Close() }

func (b *boardFiles) do(ctx context.Context, work func() error) error {
	return b.link.during(ctx, func() { b.session.Close() }, work)
}

func (b *boardFiles) has(extension string) bool {
	_, ok := b.sftp.HasExtension(extension)
	return ok
}

func (b *boardFiles) write(ctx context.Context, src source, name string, mode fs.FileMode, count func(int64)) error {
	return b.do(ctx, func() error {
		dir := path.Dir(name)
		if err := b.sftp.MkdirAll(dir); err != nil {
			return fmt.Errorf("make folder %s: %w", dir, err)
		}
		if err := b.room(dir, src.size); err != nil {
			return err
		}
		f, err := b.sftp.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL)
		if err != nil {
			return fmt.Errorf("create a file in %s: %w", dir, err)
		}
		if err := b.fill(ctx, f, src, mode, count); err != nil {
			f.Close()
			return err
		}
		return f.Close()
	})
}

func (b *boardFiles) fill(ctx context.Context, f *sftp.File, src source, mode fs.FileMode, count func(int64)) error {
	if err := f.Chmod(mode.Perm()); err != nil {
		return fmt.Errorf("set mode: %w", err)
	}
	in := &counter{ctx: ctx, in: io.NewSectionReader(src.data, 0, src.size), count: count}
	n, err := f.ReadFromWithConcurrency(in, inFlight)
	if err != nil {
		return fmt.Errorf("write: %w", err)
	}
	if n != src.size {
		return errShrunk
	}
	if b.has("fsync@openssh.com") {
		if err := f.Sync(); err != nil {
			return fmt.Errorf("sync: %w", err)
		}
	}
	return nil
}

// room says in time what SFTP later calls "failure".
func (b *boardFiles) room(dir string, size int64) error {
	if !b.has("statvfs@openssh.com") {
		return nil
	}
	vfs, err := b.sftp.StatVFS(dir)
	if err != nil {
		return nil // the write will tell
	}
	if free := vfs.Frsize * vfs.Bavail; free < uint64(size) {
		return fmt.Errorf("%d MiB are needed, but %s has %d MiB free", size>>20, dir, free>>20)
	}
	return nil
}

// digestScript is fixed text; the file's name is its argument. OpenSSL uses the
// processor's SHA instructions where sha256sum often does not.
const digestScript = `openssl dgst -sha256 -r "$1" 2>/dev/null || sha256sum "$1"`

var digestPattern = regexp.MustCompile(`^\\?([0-9a-f]{64})\b`)

// Digest is a file's SHA-256, computed there. Where no program there can do that, or
// the file is not there, it is "".
func (c *Conn) Digest(ctx context.Context, name string) (string, error) {
	if !path.IsAbs(name) {
		name = "./" + name // so that no program takes it for an option
	}
	r, err := c.Run(ctx, "sh", "-c", digestScript, "sh", name)
	if ctx.Err() != nil {
		return "", err
	}
	if m := digestPattern.FindSubmatch(r.Stdout); err == nil && r.Status == 0 && m != nil {
		return string(m[1]), nil
	}
	return "", nil
}

// digest is computed on the board. Where no program there can do it, or it sees
// other folders than the SFTP server, the file is read back.
func (b *boardFiles) digest(ctx context.Context, name string) (string, error) {
	if sum, err := b.conn.Digest(ctx, name); sum != "" || ctx.Err() != nil {
		return sum, err
	}
	h := sha256.New()
	err := b.do(ctx, func() error {
		f, err := b.sftp.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = f.WriteTo(h)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("read back: %w", err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func (b *boardFiles) rename(ctx context.Context, from, to string) error {
	err := b.do(ctx, func() error { return b.sftp.PosixRename(from, to) })
	if err != nil {
		return fmt.Errorf("rename: %w", err)
	}
	return nil
}

// read returns the first limit bytes of a file and its whole size.
func (b *boardFiles) read(ctx context.Context, name string, limit int64) (data []byte, size int64, err error) {
	err = b.do(ctx, func() error {
		f, err := b.sftp.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return err
		}
		size = info.Size()
		data, err = io.ReadAll(io.LimitReader(f, limit))
		return err
	})
	return data, size, err
}
