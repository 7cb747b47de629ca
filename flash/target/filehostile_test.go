package target

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"
)

// Wherever the board hangs up, there is an error, and no file under the name.
func TestBoardThatHangsUp(t *testing.T) {
	const step = 137
	for after := 0; ; after += step {
		dir := t.TempDir()
		a := hostileBoard(t, func(c net.Conn, config *ssh.ServerConfig) {
			honest(dir).serve(&cut{Conn: c, left: after}, config)
		})
		c, err := Dial(t.Context(), a)
		if err == nil {
			_, err = PutBytes(t.Context(), c, []byte("content"), filepath.Join(dir, "file"), 0o600)
			c.Close()
		}
		if err == nil {
			t.Logf("whole after %d bytes", after)
			return
		}
		harmless(t, err, "")
		if text, there := os.ReadFile(filepath.Join(dir, "file")); there == nil && string(text) != "content" {
			t.Errorf("after %d bytes: the file holds %q", after, text)
		}
		if after > 100_000 {
			t.Fatalf("it never ends well: %v", err)
		}
	}
}

// An answer that never comes is the caller's to give up; the connection stays.
func TestFileServerThatFallsSilent(t *testing.T) {
	asked := make(chan struct{}, 1)
	silent := lying(func(kind byte, _ uint32) []byte {
		if kind == sftpInit {
			return nil
		}
		asked <- struct{}{}
		return []byte{}
	})
	c := dial(t, hostileBoard(t, conversation{
		sftp: func(ch ssh.Channel) { silent(ch); io.Copy(io.Discard, ch) },
		exec: func(ch ssh.Channel, _ string) { exited(ch, 1) },
	}.serve))
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	go func() {
		<-asked
		cancel(enough)
	}()
	if _, err := PutBytes(ctx, c, []byte("content"), "/file", 0o600); !errors.Is(err, enough) {
		t.Errorf("Put = %v; want %v", err, enough)
	}
	if _, err := c.Run(t.Context(), "true"); err != nil {
		t.Errorf("Run after that = %v", err)
	}
}

func TestLyingFileServer(t *testing.T) {
	on := func(which byte, text func(id uint32) []byte) func(byte, uint32) []byte {
		return func(kind byte, id uint32) []byte {
			switch {
			case kind == which || which == 0 && kind != sftpInit:
				return text(id)
			case kind == sftpInit:
				return nil
			case kind == sftpOpen:
				return packet(sftpHandle, id, "handle")
			case kind == sftpStat:
				return packet(sftpAttrs, id, uint32(4), uint32(0o40755)) // a folder
			}
			return packet(sftpStatus, id, uint32(0), "", "")
		}
	}
	tests := []struct {
		name   string
		answer func(kind byte, id uint32) []byte
	}{
		{"version of 4 GiB", on(sftpInit, func(uint32) []byte { return bytes.Repeat([]byte{0xff}, 64) })},
		{"no version", on(sftpInit, func(id uint32) []byte { return packet(sftpStatus, id, uint32(4), nasty, nasty) })},
		{"version 99", on(sftpInit, func(uint32) []byte { return packet(sftpVersion, uint32(99)) })},
		{"broken extensions", on(sftpInit, func(uint32) []byte { return packet(sftpVersion, uint32(3), uint32(1<<31)) })},
		{"thousands of extensions", on(sftpInit, func(uint32) []byte {
			var all []any
			for i := range 5000 {
				all = append(all, fmt.Sprint(nasty, i), nasty)
			}
			return packet(sftpVersion, append([]any{uint32(3)}, all...)...)
		})},
		{"answers of 4 GiB", on(0, func(uint32) []byte { return bytes.Repeat([]byte{0xff}, 64) })},
		{"answers of nothing", on(0, func(uint32) []byte { return make([]byte, 64) })},
		{"wrong ids", on(0, func(id uint32) []byte { return packet(sftpStatus, id+7, uint32(0), "", "") })},
		{"wrong kinds", on(0, func(id uint32) []byte { return packet(sftpVersion, id) })},
		{"escapes", on(0, func(id uint32) []byte { return packet(sftpStatus, id, uint32(4), strings.Repeat(nasty, 5000), nasty) })},
		{"endless handle", on(sftpOpen, func(id uint32) []byte { return packet(sftpHandle, id, strings.Repeat("h", 250_000)) })},
		{"handle of 4 GiB", on(sftpOpen, func(id uint32) []byte { return packet(sftpHandle, id, uint32(1<<32-1)) })},
		{"files of 16 EiB", on(0, func(id uint32) []byte { return packet(sftpAttrs, id, uint32(1), uint64(1<<64-1)) })},
		{"cut answers", on(sftpOpen, func(id uint32) []byte { return packet(sftpHandle, id)[:7] })},
		{"writes nothing", on(sftpWrite, func(id uint32) []byte { return packet(sftpStatus, id, uint32(4), nasty, "") })},
		{"says yes to everything", on(99, nil)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			talk := conversation{sftp: func(ch ssh.Channel) { lying(tt.answer)(ch) }, exec: func(ch ssh.Channel, _ string) {
				fmt.Fprintf(ch, "%x  %s\n", sha256.Sum256([]byte("another content")), nasty) // a digest that lies
				exited(ch, 0)
			}}
			c := dial(t, hostileBoard(t, talk.serve))
			before := liveBytes()
			_, err := PutBytes(t.Context(), c, []byte("content"), "/file", 0o600)
			harmless(t, err, "put /file to")
			r, err := Open(t.Context(), c, "/file")
			if err == nil {
				_, err = io.Copy(io.Discard, io.LimitReader(r, 1<<20))
				r.Close()
			}
			if err != nil {
				harmless(t, err, "")
			}
			modest(t, before)
		})
	}
}

// honest runs what it is asked for, as far as an upload asks.
func honest(dir string) conversation {
	return conversation{
		exec: func(ch ssh.Channel, _ string) { exited(ch, 127) },
		sftp: func(ch ssh.Channel) {
			if s, err := sftp.NewServer(ch, sftp.WithServerWorkingDirectory(dir)); err == nil {
				s.Serve()
			}
		},
	}
}

// cut is a connection that ends after so many bytes of the board's.
type cut struct {
	net.Conn
	mu   sync.Mutex
	left int
}

func (c *cut) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := min(len(p), c.left)
	c.left -= n
	if n, err := c.Conn.Write(p[:n]); err != nil || n < len(p) {
		c.Conn.Close()
		return n, io.ErrClosedPipe
	}
	return len(p), nil
}

func TestFilesOverChannelsThatAreRefused(t *testing.T) {
	refuse := func(ch ssh.NewChannel) bool { return ch.Reject(ssh.Prohibited, strings.Repeat(nasty, 1000)) == nil }
	c := dial(t, hostileBoard(t, conversation{channels: refuse}.serve))
	_, err := PutBytes(t.Context(), c, []byte("x"), "/x", 0o600)
	harmless(t, err, "put /x to")
	_, err = Open(t.Context(), c, "/x")
	harmless(t, err, "read ")
}
