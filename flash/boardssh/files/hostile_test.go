package files

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

	"slipway/flash/boardssh"
	"slipway/flash/boardssh/boardtest"
	"slipway/flash/boardssh/sshtest"
)

// Wherever the board hangs up, there is an error, and no file under the name.
func TestBoardThatHangsUp(t *testing.T) {
	const step = 137
	for after := 0; ; after += step {
		dir := t.TempDir()
		a := boardtest.HostileBoard(t, func(c net.Conn, config *ssh.ServerConfig) {
			honest(dir).Serve(&cut{Conn: c, left: after}, config)
		})
		c, err := boardssh.Dial(t.Context(), a)
		if err == nil {
			_, err = PutBytes(t.Context(), c, []byte("content"), filepath.Join(dir, "file"), 0o600)
			c.Close()
		}
		if err == nil {
			t.Logf("whole after %d bytes", after)
			return
		}
		sshtest.CheckHarmless(t, err, "")
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
	silent := sshtest.ServeSFTP(func(kind byte, _ uint32) []byte {
		if kind == sshtest.SFTPInit {
			return nil
		}
		asked <- struct{}{}
		return []byte{}
	})
	c := boardtest.Dial(t, boardtest.HostileBoard(t, sshtest.Conversation{
		SFTP: func(ch ssh.Channel) { silent(ch); io.Copy(io.Discard, ch) },
		Exec: func(ch ssh.Channel, line string) { sshtest.SayShell(ch, line); sshtest.SendExit(ch, 1) },
	}.Serve))
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
			case kind == which || which == 0 && kind != sshtest.SFTPInit:
				return text(id)
			case kind == sshtest.SFTPInit:
				return nil
			case kind == sshtest.SFTPOpen:
				return sshtest.SFTPPacket(sshtest.SFTPHandle, id, "handle")
			case kind == sshtest.SFTPStat:
				return sshtest.SFTPPacket(sshtest.SFTPAttrs, id, uint32(4), uint32(0o40755)) // a folder
			}
			return sshtest.SFTPPacket(sshtest.SFTPStatus, id, uint32(0), "", "")
		}
	}
	tests := []struct {
		name   string
		answer func(kind byte, id uint32) []byte
	}{
		{"version of 4 GiB", on(sshtest.SFTPInit, func(uint32) []byte { return bytes.Repeat([]byte{0xff}, 64) })},
		{"no version", on(sshtest.SFTPInit, func(id uint32) []byte {
			return sshtest.SFTPPacket(sshtest.SFTPStatus, id, uint32(4), sshtest.Nasty, sshtest.Nasty)
		})},
		{"version 99", on(sshtest.SFTPInit, func(uint32) []byte { return sshtest.SFTPPacket(sshtest.SFTPVersion, uint32(99)) })},
		{"broken extensions", on(sshtest.SFTPInit, func(uint32) []byte { return sshtest.SFTPPacket(sshtest.SFTPVersion, uint32(3), uint32(1<<31)) })},
		{"thousands of extensions", on(sshtest.SFTPInit, func(uint32) []byte {
			var all []any
			for i := range 5000 {
				all = append(all, fmt.Sprint(sshtest.Nasty, i), sshtest.Nasty)
			}
			return sshtest.SFTPPacket(sshtest.SFTPVersion, append([]any{uint32(3)}, all...)...)
		})},
		{"answers of 4 GiB", on(0, func(uint32) []byte { return bytes.Repeat([]byte{0xff}, 64) })},
		{"answers of nothing", on(0, func(uint32) []byte { return make([]byte, 64) })},
		{"wrong ids", on(0, func(id uint32) []byte { return sshtest.SFTPPacket(sshtest.SFTPStatus, id+7, uint32(0), "", "") })},
		{"wrong kinds", on(0, func(id uint32) []byte { return sshtest.SFTPPacket(sshtest.SFTPVersion, id) })},
		{"escapes", on(0, func(id uint32) []byte {
			return sshtest.SFTPPacket(sshtest.SFTPStatus, id, uint32(4), strings.Repeat(sshtest.Nasty, 5000), sshtest.Nasty)
		})},
		{"endless handle", on(sshtest.SFTPOpen, func(id uint32) []byte {
			return sshtest.SFTPPacket(sshtest.SFTPHandle, id, strings.Repeat("h", 250_000))
		})},
		{"handle of 4 GiB", on(sshtest.SFTPOpen, func(id uint32) []byte { return sshtest.SFTPPacket(sshtest.SFTPHandle, id, uint32(1<<32-1)) })},
		{"files of 16 EiB", on(0, func(id uint32) []byte {
			return sshtest.SFTPPacket(sshtest.SFTPAttrs, id, uint32(1), uint64(1<<64-1))
		})},
		{"cut answers", on(sshtest.SFTPOpen, func(id uint32) []byte { return sshtest.SFTPPacket(sshtest.SFTPHandle, id)[:7] })},
		{"writes nothing", on(sshtest.SFTPWrite, func(id uint32) []byte {
			return sshtest.SFTPPacket(sshtest.SFTPStatus, id, uint32(4), sshtest.Nasty, "")
		})},
		{"says yes to everything", on(99, nil)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			talk := sshtest.Conversation{SFTP: func(ch ssh.Channel) { sshtest.ServeSFTP(tt.answer)(ch) }, Exec: func(ch ssh.Channel, line string) {
				sshtest.SayShell(ch, line)
				fmt.Fprintf(ch, "%x  %s\n", sha256.Sum256([]byte("another content")), sshtest.Nasty) // a digest that lies
				sshtest.SendExit(ch, 0)
			}}
			c := boardtest.Dial(t, boardtest.HostileBoard(t, talk.Serve))
			before := sshtest.LiveBytes()
			_, err := PutBytes(t.Context(), c, []byte("content"), "/file", 0o600)
			sshtest.CheckHarmless(t, err, "put /file to")
			r, err := Open(t.Context(), c, "/file")
			if err == nil {
				_, err = io.Copy(io.Discard, io.LimitReader(r, 1<<20))
				r.Close()
			}
			if err != nil {
				sshtest.CheckHarmless(t, err, "")
			}
			sshtest.CheckMemory(t, before)
		})
	}
}

// honest runs what it is asked for, as far as an upload asks.
func honest(dir string) sshtest.Conversation {
	return sshtest.Conversation{
		Exec: func(ch ssh.Channel, line string) { sshtest.SayShell(ch, line); sshtest.SendExit(ch, 127) },
		SFTP: func(ch ssh.Channel) {
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
	refuse := func(ch ssh.NewChannel) bool {
		return ch.Reject(ssh.Prohibited, strings.Repeat(sshtest.Nasty, 1000)) == nil
	}
	c := boardtest.Dial(t, boardtest.HostileBoard(t, sshtest.Conversation{Channels: refuse}.Serve))
	_, err := PutBytes(t.Context(), c, []byte("x"), "/x", 0o600)
	sshtest.CheckHarmless(t, err, "put /x to")
	_, err = Open(t.Context(), c, "/x")
	sshtest.CheckHarmless(t, err, "read ")
}
