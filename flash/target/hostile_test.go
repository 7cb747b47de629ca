package target

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"
)

// mostHeld is how much of what a hostile board sends may stay in memory. Floods here
// are several times that.
const mostHeld = 24 << 20

// nasty is what a board would like to do to a terminal.
const nasty = "\x1b]0;owned\x07\x1b[2J\u202e\u009b31m"

// hostileBoard serves each connection as serve does. Its host key is pinned, and it
// takes the key of the address.
func hostileBoard(t *testing.T, serve func(net.Conn, *ssh.ServerConfig)) Address {
	t.Helper()
	hostFile, _, host := newKey(t)
	identity, _, _ := newKey(t)
	key, err := readIdentity(hostFile)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	known := filepath.Join(t.TempDir(), "known_hosts")
	if err := os.WriteFile(known, []byte("the-board "+host+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var served sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		served.Wait()
	})
	served.Go(func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			config := &ssh.ServerConfig{PublicKeyCallback: func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) { return nil, nil }}
			config.AddHostKey(key.open)
			served.Go(func() {
				defer conn.Close()
				serve(conn, config)
			})
		}
	})
	return Address{
		Host: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port, User: "root", HostKeyAlias: "the-board",
		KnownHosts: []string{known}, Identities: []string{identity},
	}
}

// conversation is what a board does once somebody has logged in.
type conversation struct {
	exec     func(ssh.Channel, string) // it runs a command
	sftp     func(ssh.Channel)         // it is the SFTP server; nil: there is none
	channels func(ssh.NewChannel) bool // it has dealt with a channel
	began    func(*ssh.ServerConn)     // beside all that
}

func (c conversation) serve(conn net.Conn, config *ssh.ServerConfig) {
	server, channels, requests, err := ssh.NewServerConn(conn, config)
	if err != nil {
		return
	}
	defer server.Close()
	go ssh.DiscardRequests(requests)
	if c.began != nil {
		go c.began(server)
	}
	for ch := range channels {
		if c.channels == nil || !c.channels(ch) {
			go c.session(ch)
		}
	}
}

func (c conversation) session(offer ssh.NewChannel) {
	ch, requests, err := offer.Accept()
	if err != nil {
		return
	}
	for r := range requests {
		text := ""
		if len(r.Payload) > 4 {
			text = string(r.Payload[4:])
		}
		switch {
		case r.Type == "exec" && c.exec != nil:
			r.Reply(true, nil)
			go func() {
				c.exec(ch, text)
				ch.Close()
			}()
		case r.Type == "subsystem" && c.sftp != nil:
			r.Reply(true, nil)
			go func() {
				c.sftp(ch)
				ch.Close()
			}()
		default:
			r.Reply(false, nil)
		}
	}
}

func exited(ch ssh.Channel, status uint32) {
	ch.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{status}))
}

// harmless fails where an error could do something to a terminal.
func harmless(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v; want an error with %q", err, want)
		return
	}
	if i := strings.IndexFunc(err.Error(), func(r rune) bool { return r != '\n' && !unicode.IsGraphic(r) }); i >= 0 || len(err.Error()) > 20_000 {
		t.Errorf("unsafe at %d of %d: %q", i, len(err.Error()), err)
	}
}

func liveBytes() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// modest fails where work leaves more in memory than it may. It is called while the
// board is still there.
func modest(t *testing.T, before int64) {
	t.Helper()
	if held := liveBytes() - before; held > mostHeld {
		t.Errorf("%d MiB are held; want at most %d", held>>20, int64(mostHeld)>>20)
	}
}

// endless sends text until the other side hangs up.
func endless(w io.Writer, text string) {
	block := []byte(strings.Repeat(text, 1+32<<10/len(text)))
	for {
		if _, err := w.Write(block); err != nil {
			return
		}
	}
}

func TestServerThatIsNone(t *testing.T) {
	tests := []struct {
		name  string
		serve func(net.Conn)
		want  string
	}{
		{"hangs up", func(net.Conn) {}, "no greeting"},
		{"lines without end", func(c net.Conn) { endless(c, "welcome\r\n") }, "overflow reading version"},
		{"one line without end", func(c net.Conn) { endless(c, "SSH-2.0-") }, "overflow reading version"},
		{"web server", func(c net.Conn) { io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n"+nasty) }, "log in to"},
		{"escapes in its version", func(c net.Conn) { io.WriteString(c, "SSH-2.0-"+nasty+"\r\n") }, "log in to"},
		{"old version", func(c net.Conn) { io.WriteString(c, "SSH-1.5-"+nasty+"\r\n") }, "log in to"},
		{"packet of 4 GiB", func(c net.Conn) { endless(c, "SSH-2.0-x\r\n"+strings.Repeat("\xff", 64)) }, "packet"},
		{"packet of nothing", func(c net.Conn) { io.WriteString(c, "SSH-2.0-x\r\n\x00\x00\x00\x00\x00") }, "packet"},
		{"noise", func(c net.Conn) { io.WriteString(c, "SSH-2.0-x\r\n\x00\x00\x00\x2c\x05"+nasty+nasty+nasty) }, "log in to"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := liveBytes()
			a := hostileBoard(t, func(c net.Conn, _ *ssh.ServerConfig) { tt.serve(c) })
			_, err := Dial(t.Context(), a)
			harmless(t, err, tt.want)
			modest(t, before)
		})
	}
}

// A connection has a limit, whoever is at the other end.
func TestServerThatFallsSilent(t *testing.T) {
	wait := func(c net.Conn) { io.Copy(io.Discard, c) }
	for name, serve := range map[string]func(net.Conn){
		"at once":            wait,
		"after its version":  func(c net.Conn) { io.WriteString(c, "SSH-2.0-x\r\n"); wait(c) },
		"within its version": func(c net.Conn) { io.WriteString(c, "SSH-"); wait(c) },
		"within a packet":    func(c net.Conn) { io.WriteString(c, "SSH-2.0-x\r\n\x00\x00\x10\x00"); wait(c) },
		"with lines, slowly": func(c net.Conn) { io.WriteString(c, "one\r\ntwo\r\n"); wait(c) },
	} {
		t.Run(name, func(t *testing.T) {
			a := hostileBoard(t, func(c net.Conn, _ *ssh.ServerConfig) { serve(c) })
			l, err := newLogin(a)
			if err != nil {
				t.Fatal(err)
			}
			l.patience = 300 * time.Millisecond
			_, err = l.connect(t.Context())
			harmless(t, err, "")
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("connect = %v; want %v", err, context.DeadlineExceeded)
			}
			for _, want := range []string{": no answer within 300ms; ", "ConnectTimeout", SilenceVariable, "\n  next: ssh -v "} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("connect = %v; want %q in it", err, want)
				}
			}
		})
	}
}

func TestServerThatLetsNobodyIn(t *testing.T) {
	any := func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) { return nil, nil }
	tests := []struct {
		name string
		set  func(*ssh.ServerConfig)
		want string
	}{
		{"banners without end", func(c *ssh.ServerConfig) {
			c.PreAuthConnCallback = func(conn ssh.ServerPreAuthConn) {
				for conn.SendAuthBanner(strings.Repeat(nasty, 1000)) == nil {
				}
			}
		}, "greets without end"},
		{"banner with escapes", func(c *ssh.ServerConfig) {
			c.BannerCallback = func(ssh.ConnMetadata) string { return nasty }
			c.PublicKeyCallback = func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) {
				return nil, &ssh.BannerError{Err: errors.New("no"), Message: nasty}
			}
		}, "login refused"},
		{"keeps asking for passwords", func(c *ssh.ServerConfig) {
			c.PublicKeyCallback = nil
			c.KeyboardInteractiveCallback = func(_ ssh.ConnMetadata, ask ssh.KeyboardInteractiveChallenge) (*ssh.Permissions, error) {
				ask(nasty, nasty, []string{nasty}, []bool{true})
				return nil, errors.New("no")
			}
		}, "login refused"},
		{"is never content", func(c *ssh.ServerConfig) {
			more := &ssh.PartialSuccessError{}
			more.Next.PublicKeyCallback = func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) { return nil, more }
			c.PublicKeyCallback = more.Next.PublicKeyCallback
		}, "log in to"},
		{"takes no signature", func(c *ssh.ServerConfig) {
			c.VerifiedPublicKeyCallback = func(ssh.ConnMetadata, ssh.PublicKey, *ssh.Permissions, string) (*ssh.Permissions, error) {
				return nil, errors.New(nasty)
			}
			c.PublicKeyCallback = any
		}, "login refused"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := liveBytes()
			a := hostileBoard(t, func(c net.Conn, config *ssh.ServerConfig) {
				tt.set(config)
				conversation{}.serve(c, config)
			})
			_, err := Dial(t.Context(), a)
			harmless(t, err, tt.want)
			modest(t, before)
		})
	}
}

// The man in the middle has a key of his own.
func TestManInTheMiddle(t *testing.T) {
	entered := make(chan struct{}, 1)
	talk := conversation{began: func(*ssh.ServerConn) { entered <- struct{}{} }}
	middle, board := hostileBoard(t, talk.serve), hostileBoard(t, talk.serve)
	middle.KnownHosts = board.KnownHosts
	_, err := Dial(t.Context(), middle)
	harmless(t, err, "pins ssh-ed25519")
	if !errors.Is(err, ErrHostKey) {
		t.Errorf("Dial = %v; want %v", err, ErrHostKey)
	}
	select {
	case <-entered:
		t.Error("it was logged in to")
	default:
	}
}

func TestCommandThatIsHostile(t *testing.T) {
	flood := func(ch ssh.Channel, w io.Writer) {
		block := bytes.Repeat([]byte(nasty), 1<<20/len(nasty))
		for range 2 * mostHeld / len(block) {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
		exited(ch, 0)
	}
	tests := []struct {
		name string
		exec func(ssh.Channel, string)
		want string // "": no error
	}{
		{"endless output", func(ch ssh.Channel, _ string) { flood(ch, ch) }, ""},
		{"endless errors", func(ch ssh.Channel, _ string) { flood(ch, ch.Stderr()) }, ""},
		{"no status", func(ssh.Channel, string) {}, "without exit status"},
		{"odd signal", func(ch ssh.Channel, _ string) {
			ch.SendRequest("exit-signal", false, ssh.Marshal(struct {
				Signal     string
				Core       bool
				Text, Lang string
			}{nasty, false, nasty, nasty}))
		}, ""},
		{"broken status", func(ch ssh.Channel, _ string) { ch.SendRequest("exit-status", false, []byte{1}) }, "on root@"},
		{"odd requests", func(ch ssh.Channel, _ string) {
			for range 1000 {
				ch.SendRequest(nasty, true, []byte(nasty))
			}
			exited(ch, 0)
		}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := dial(t, hostileBoard(t, conversation{exec: tt.exec}.serve))
			before := liveBytes()
			r, err := c.Run(t.Context(), "true")
			if tt.want != "" {
				harmless(t, err, tt.want)
			} else if err != nil {
				t.Errorf("Run = %v", err)
			}
			if len(r.Stdout)+len(r.Stderr) > 2*MaxOutputBytes {
				t.Errorf("%d and %d bytes of output; want at most %d of each", len(r.Stdout), len(r.Stderr), MaxOutputBytes)
			}
			modest(t, before)
		})
	}
}

func TestChannelThatIsRefused(t *testing.T) {
	refuse := func(ch ssh.NewChannel) bool { return ch.Reject(ssh.Prohibited, strings.Repeat(nasty, 1000)) == nil }
	c := dial(t, hostileBoard(t, conversation{channels: refuse}.serve))
	_, err := c.Run(t.Context(), "true")
	harmless(t, err, "run true on")
	_, err = c.DialContext(t.Context(), "tcp", "127.0.0.1:1")
	harmless(t, err, "open tcp")
	_, err = PutBytes(t.Context(), c, []byte("x"), "/x", 0o600)
	harmless(t, err, "put /x to")
	_, err = Open(t.Context(), c, "/x")
	harmless(t, err, "read ")
	gate := hostileBoard(t, conversation{channels: refuse}.serve)
	board := hostileBoard(t, conversation{}.serve)
	board.Via = &gate
	_, err = Dial(t.Context(), board)
	harmless(t, err, "AllowTcpForwarding")
}

// Requests and channels that nobody asked for.
func TestFlood(t *testing.T) {
	const each = 4_000
	done := make(chan struct{})
	talk := conversation{
		exec: func(ch ssh.Channel, _ string) { exited(ch, 0) },
		began: func(conn *ssh.ServerConn) {
			defer close(done)
			var floods sync.WaitGroup
			floods.Go(func() {
				for i := range each {
					if _, _, err := conn.SendRequest(nasty, i%100 == 0, []byte(nasty)); err != nil {
						return
					}
				}
			})
			for range 8 {
				floods.Go(func() {
					for range each / 8 {
						conn.OpenChannel("forwarded-tcpip", ssh.Marshal(struct {
							Addr  string
							Port  uint32
							From  string
							FPort uint32
						}{nasty, 1, nasty, 1}))
						conn.OpenChannel(nasty, []byte(strings.Repeat(nasty, 100)))
					}
				})
			}
			floods.Wait()
		},
	}
	before := liveBytes()
	c := dial(t, hostileBoard(t, talk.serve))
	if r, err := c.Run(t.Context(), "true"); err != nil || r.Status != 0 {
		t.Errorf("Run during a flood = %+v, %v", r, err)
	}
	<-done
	modest(t, before)
	if r, err := c.Run(t.Context(), "true"); err != nil || r.Status != 0 {
		t.Errorf("Run after a flood = %+v, %v", r, err)
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

// packet is one of SFTP's, with its length before it.
func packet(kind byte, payload ...any) []byte {
	body := []byte{kind}
	for _, p := range payload {
		switch p := p.(type) {
		case uint32:
			body = binary.BigEndian.AppendUint32(body, p)
		case uint64:
			body = binary.BigEndian.AppendUint64(body, p)
		case string:
			body = append(binary.BigEndian.AppendUint32(body, uint32(len(p))), p...)
		}
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

const (
	sftpInit, sftpVersion, sftpOpen, sftpWrite, sftpStat, sftpStatus, sftpHandle, sftpAttrs = 1, 2, 3, 6, 17, 101, 102, 105
)

// lying is an SFTP server that answers as it likes; nil is no answer.
func lying(answer func(kind byte, id uint32) []byte) func(ssh.Channel) {
	return func(ch ssh.Channel) {
		for head := make([]byte, 9); ; {
			if _, err := io.ReadFull(ch, head); err != nil {
				return
			}
			length, kind, id := binary.BigEndian.Uint32(head), head[4], binary.BigEndian.Uint32(head[5:])
			if _, err := io.CopyN(io.Discard, ch, int64(length)-5); err != nil {
				return
			}
			text := answer(kind, id)
			if text == nil && kind == sftpInit {
				text = packet(sftpVersion, uint32(3))
			}
			if _, err := ch.Write(text); err != nil || len(text) < len(head) {
				return
			}
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
