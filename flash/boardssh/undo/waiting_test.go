package undo

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
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"slipway/flash/boardssh"
	"slipway/flash/boardssh/boardtest"
	"slipway/flash/boardssh/files"
	"slipway/flash/boardssh/sshtest"
)

// badBoard is a board that does not answer as expected. Some fail before the login, on bare TCP.
type badBoard struct {
	name  string
	serve func(done <-chan struct{}) func(net.Conn, *ssh.ServerConfig)
}

func serveBare(serve func(net.Conn)) func(<-chan struct{}) func(net.Conn, *ssh.ServerConfig) {
	return func(<-chan struct{}) func(net.Conn, *ssh.ServerConfig) {
		return func(c net.Conn, _ *ssh.ServerConfig) { serve(c) }
	}
}

func serveSSH(c sshtest.Conversation) func(<-chan struct{}) func(net.Conn, *ssh.ServerConfig) {
	return func(<-chan struct{}) func(net.Conn, *ssh.ServerConfig) { return c.Serve }
}

// trickle writes a byte a second.
func trickle(w io.Writer, text string) {
	for {
		for i := range text {
			if _, err := io.WriteString(w, text[i:i+1]); err != nil {
				return
			}
			time.Sleep(time.Second)
		}
	}
}

// waitForClose sends nothing until the other side closes the channel.
func waitForClose(ch ssh.Channel) { io.Copy(io.Discard, ch) }

// serveBrokenFiles is an SFTP server that answers packets of the kind broken wrongly.
func serveBrokenFiles(broken byte, answer func(uint32) []byte) func(ssh.Channel) {
	return sshtest.ServeSFTP(func(kind byte, id uint32) []byte {
		switch kind {
		case broken:
			return answer(id)
		case sshtest.SFTPInit:
			return nil
		case sshtest.SFTPOpen:
			return sshtest.SFTPPacket(sshtest.SFTPHandle, id, "handle")
		case sshtest.SFTPStat:
			return sshtest.SFTPPacket(sshtest.SFTPAttrs, id, uint32(4), uint32(0o100644))
		}
		return sshtest.SFTPPacket(sshtest.SFTPStatus, id, uint32(0), "", "")
	})
}

// openUnread accepts a channel and reads nothing from it, so that its window never grows.
func openUnread(offer ssh.NewChannel) bool {
	_, requests, err := offer.Accept()
	if err == nil {
		go func() {
			for r := range requests {
				r.Reply(true, nil)
			}
		}()
	}
	return true
}

func ignoreInput(c net.Conn) {
	ignore := "\x00\x00\x00\x0c\x06\x02\x00\x00\x00\x00......"
	sshtest.SendEndless(c, "SSH-2.0-x\r\n"+ignore)
}

func badBoards() []badBoard {
	hold := func(ch ssh.Channel, _ string) { waitForClose(ch) }
	none := func(uint32) []byte { return []byte{} }
	quiet := func(ch ssh.Channel) { waitForClose(ch) }
	still := func(c net.Conn) { io.Copy(io.Discard, c) }
	return []badBoard{
		{"silent after accept", serveBare(still)},
		{"half a banner", serveBare(func(c net.Conn) { io.WriteString(c, "SSH-2.0-Open"); still(c) })},
		{"endless banner", serveBare(func(c net.Conn) { sshtest.SendEndless(c, "welcome\r\n") })},
		{"banner one byte a second", serveBare(func(c net.Conn) { trickle(c, "SSH-2.0-OpenSSH_9.2p1 and so on") })},
		{"no key exchange", serveBare(func(c net.Conn) { io.WriteString(c, "SSH-2.0-x\r\n"); still(c) })},
		{"half a packet", serveBare(func(c net.Conn) { io.WriteString(c, "SSH-2.0-x\r\n\x00\x00\x10\x00"); still(c) })},
		{"endless ignore messages", serveBare(ignoreInput)},
		{"login never answered", func(done <-chan struct{}) func(net.Conn, *ssh.ServerConfig) {
			return func(c net.Conn, config *ssh.ServerConfig) {
				config.PublicKeyCallback = func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) { <-done; return nil, nil }
				sshtest.Conversation{}.Serve(c, config)
			}
		}},
		{"channels never answered", serveSSH(sshtest.Conversation{Channels: func(ssh.NewChannel) bool { return true }})},
		{"requests never answered", serveSSH(sshtest.Conversation{Channels: func(offer ssh.NewChannel) bool {
			_, requests, err := offer.Accept()
			if err == nil {
				go func() {
					for range requests {
					}
				}()
			}
			return true
		}})},
		{"programs silent", serveSSH(sshtest.Conversation{Exec: hold})},
		{"programs and files silent", serveSSH(sshtest.Conversation{Exec: hold, SFTP: quiet})},
		{"windows never grow", serveSSH(sshtest.Conversation{Channels: openUnread})},
		{"floods of output", serveSSH(sshtest.Conversation{Exec: func(ch ssh.Channel, _ string) { sshtest.SendEndless(ch, sshtest.Nasty) }, SFTP: quiet})},
		{"floods of errors", serveSSH(sshtest.Conversation{Exec: func(ch ssh.Channel, _ string) { sshtest.SendEndless(ch.Stderr(), sshtest.Nasty) }, SFTP: quiet})},
		{"output, and no exit status", serveSSH(sshtest.Conversation{Exec: func(ch ssh.Channel, _ string) { io.WriteString(ch, "1\n"); waitForClose(ch) }, SFTP: quiet})},
		{"no exit status", serveSSH(sshtest.Conversation{Exec: func(ssh.Channel, string) {}, SFTP: quiet})},
		{"files one byte a second", serveSSH(sshtest.Conversation{Exec: hold, SFTP: func(ch ssh.Channel) {
			go waitForClose(ch)
			trickle(ch, string(sshtest.SFTPPacket(sshtest.SFTPVersion, uint32(3))))
		}})},
		{"answers of garbage", serveSSH(sshtest.Conversation{Exec: hold, SFTP: func(ch ssh.Channel) { go waitForClose(ch); sshtest.SendEndless(ch, "\x00\x00\x00\x09garbage") }})},
		{"answers of 4 GiB", serveSSH(sshtest.Conversation{Exec: hold, SFTP: func(ch ssh.Channel) { go waitForClose(ch); sshtest.SendEndless(ch, "\xff") }})},
		{"writes never answered", serveSSH(sshtest.Conversation{Exec: hold, SFTP: serveBrokenFiles(sshtest.SFTPWrite, none)})},
		{"close never answered", serveSSH(sshtest.Conversation{Exec: hold, SFTP: serveBrokenFiles(sshtest.SFTPClose, none)})},
		{"open never answered", serveSSH(sshtest.Conversation{Exec: hold, SFTP: serveBrokenFiles(sshtest.SFTPOpen, none)})},
		{"stat never answered", serveSSH(sshtest.Conversation{Exec: hold, SFTP: serveBrokenFiles(sshtest.SFTPStat, none)})},
		{"keepalives unanswered", func(<-chan struct{}) func(net.Conn, *ssh.ServerConfig) {
			return func(c net.Conn, config *ssh.ServerConfig) {
				if server, _, _, err := ssh.NewServerConn(c, config); err == nil {
					server.Wait()
				}
			}
		}},
		{"stops after 4000 bytes", func(<-chan struct{}) func(net.Conn, *ssh.ServerConfig) {
			return func(c net.Conn, config *ssh.ServerConfig) {
				sshtest.Conversation{Exec: hold, SFTP: serveBrokenFiles(0, none)}.Serve(&stalledWriter{Conn: c, left: 4000}, config)
			}
		}},
		{"floods of requests", serveSSH(sshtest.Conversation{Exec: hold, SFTP: quiet, Began: func(c *ssh.ServerConn) {
			for {
				if _, _, err := c.SendRequest(sshtest.Nasty, false, []byte(sshtest.Nasty)); err != nil {
					return
				}
			}
		}})},
		{"key exchange all the time", func(<-chan struct{}) func(net.Conn, *ssh.ServerConfig) {
			return func(c net.Conn, config *ssh.ServerConfig) {
				config.RekeyThreshold = 256
				sshtest.Conversation{Exec: hold, SFTP: quiet, Began: func(c *ssh.ServerConn) {
					for {
						if _, _, err := c.SendRequest("x", true, bytes.Repeat([]byte("x"), 300)); err != nil {
							return
						}
					}
				}}.Serve(c, config)
			}
		}},
	}
}

// stalledWriter accepts all data, but transfers only the first left bytes.
type stalledWriter struct {
	net.Conn
	mu   sync.Mutex
	left int
}

func (c *stalledWriter) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := min(len(p), c.left)
	c.left -= n
	if _, err := c.Conn.Write(p[:n]); err != nil {
		return 0, err
	}
	return len(p), nil
}

// listOperations returns the operations on a board.
func listOperations(t *testing.T) map[string]func(context.Context, *boardssh.Conn) error {
	folder := t.TempDir()
	for i, size := range []int{10, 3 << 20} {
		if err := os.WriteFile(filepath.Join(folder, fmt.Sprint(i)), sshtest.RandomBytes(size), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	large := sshtest.WriteFile(t, sshtest.RandomBytes(8<<20+1))
	return map[string]func(context.Context, *boardssh.Conn) error{
		"put": func(ctx context.Context, c *boardssh.Conn) error {
			_, err := files.PutBytes(ctx, c, []byte("content"), "/none/file", 0o644)
			return err
		},
		"put a large file": func(ctx context.Context, c *boardssh.Conn) error {
			_, err := files.Put(ctx, c, large, "/none/file", 0o755)
			return err
		},
		"folder": func(ctx context.Context, c *boardssh.Conn) error {
			_, err := files.PutDir(ctx, c, folder, "/none/folder", files.DirOptions{Delete: true})
			return err
		},
		"deploy": func(ctx context.Context, c *boardssh.Conn) error {
			_, _, err := DeployDir(ctx, c, folder, "/none/folder", files.DirOptions{}, []string{"x.service"})
			return err
		},
		"run": func(ctx context.Context, c *boardssh.Conn) error { _, err := c.Run(ctx, "true"); return err },
		"feed": func(ctx context.Context, c *boardssh.Conn) error {
			_, err := c.Feed(ctx, bytes.NewReader(make([]byte, 8<<20)), "cat")
			return err
		},
		"get": func(ctx context.Context, c *boardssh.Conn) error {
			r, err := files.Open(ctx, c, "/none/file")
			if err != nil {
				return err
			}
			defer r.Close()
			if n, err := io.Copy(io.Discard, r); err != nil || n == 0 {
				return errors.Join(err, io.ErrUnexpectedEOF)
			}
			return nil
		},
		"list": func(ctx context.Context, c *boardssh.Conn) error {
			_, err := files.ListStates(ctx, c, "/none")
			return err
		},
		"restart": func(ctx context.Context, c *boardssh.Conn) error {
			return RestartUnits(ctx, c, []string{"x.service"}, 0)
		},
		"dial": func(ctx context.Context, c *boardssh.Conn) error {
			_, err := c.DialContext(ctx, "unix", "/run/none")
			return err
		},
		"listen": func(ctx context.Context, c *boardssh.Conn) error { _, err := c.Listen(ctx); return err },
	}
}

// Each operation ends on a board that does not answer: at the limit, or after a Ctrl-C at once.
func TestOperationsOnBadBoardsEnd(t *testing.T) {
	work := listOperations(t)
	done := make(chan struct{})
	boards := map[string]boardssh.Address{}
	for _, m := range badBoards() {
		boards[m.name] = boardtest.HostileBoard(t, m.serve(done))
	}
	defer close(done)
	for _, interrupted := range []bool{false, true} {
		t.Setenv(boardssh.SilenceVariable, map[bool]string{false: "1s", true: "20s"}[interrupted])
		var all sync.WaitGroup
		atOnce := make(chan struct{}, 40)
		for board, a := range boards {
			for name, op := range work {
				all.Go(func() {
					atOnce <- struct{}{}
					defer func() { <-atOnce }()
					checkEndsInTime(t, fmt.Sprintf("%s, %s", board, name), a, interrupted, op)
				})
			}
		}
		all.Wait()
	}
}

var errEnoughWaited = errors.New("enough")

func checkEndsInTime(t *testing.T, name string, a boardssh.Address, interrupted bool, op func(context.Context, *boardssh.Conn) error) {
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	most := 12 * time.Second // connect, work, clean up
	const after = 200 * time.Millisecond
	if interrupted {
		most = 2 * time.Second
		time.AfterFunc(after, func() { cancel(errEnoughWaited) })
	}
	ended := make(chan error, 1)
	began := time.Now()
	go func() {
		c, err := boardssh.Dial(ctx, a)
		if err == nil {
			err = op(ctx, c)
			c.Close()
		}
		ended <- err
	}()
	select {
	case err := <-ended:
		if err == nil && !strings.Contains(name, "flood") && !strings.HasSuffix(name, ", dial") {
			t.Errorf("%s: no error", name)
		}
	case <-time.After(5 * most):
		t.Errorf("%s, interrupted %v: it goes on after %s", name, interrupted, 5*most)
		return
	}
	took := time.Since(began)
	if interrupted {
		took -= after
	}
	if took > most {
		t.Logf("%s, interrupted %v: took %s", name, interrupted, took)
	}
}

// A board that stops in the middle of a file counts as silent. The error names SilenceVariable.
func TestStoppedBoardIsSilent(t *testing.T) {
	s := sshtest.StartSSHD(t)
	a, _ := boardtest.StartRelay(t, boardtest.AddressOf(s), 8000, true)
	t.Setenv(boardssh.SilenceVariable, "2s")
	c, err := boardssh.Dial(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = files.PutBytes(t.Context(), c, sshtest.RandomBytes(1<<20), filepath.Join(t.TempDir(), "f"), 0o644)
	if !errors.Is(err, boardssh.ErrSilent) || !strings.Contains(err.Error(), boardssh.SilenceVariable) {
		t.Errorf("PutBytes = %v; want %v, with what sets the limit", err, boardssh.ErrSilent)
	}
}
