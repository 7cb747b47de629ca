package boardssh

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"slipway/flash/boardssh/sshtest"
)

func TestServerThatIsNone(t *testing.T) {
	tests := []struct {
		name  string
		serve func(net.Conn)
		want  string
	}{
		{"hangs up", func(net.Conn) {}, "no greeting"},
		{"lines without end", func(c net.Conn) { sshtest.SendEndless(c, "welcome\r\n") }, "overflow reading version"},
		{"one line without end", func(c net.Conn) { sshtest.SendEndless(c, "SSH-2.0-") }, "overflow reading version"},
		{"web server", func(c net.Conn) { io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n"+sshtest.Nasty) }, "log in to"},
		{"escapes in its version", func(c net.Conn) { io.WriteString(c, "SSH-2.0-"+sshtest.Nasty+"\r\n") }, "log in to"},
		{"old version", func(c net.Conn) { io.WriteString(c, "SSH-1.5-"+sshtest.Nasty+"\r\n") }, "log in to"},
		{"packet of 4 GiB", func(c net.Conn) { sshtest.SendEndless(c, "SSH-2.0-x\r\n"+strings.Repeat("\xff", 64)) }, "packet"},
		{"packet of nothing", func(c net.Conn) { io.WriteString(c, "SSH-2.0-x\r\n\x00\x00\x00\x00\x00") }, "packet"},
		{"noise", func(c net.Conn) {
			io.WriteString(c, "SSH-2.0-x\r\n\x00\x00\x00\x2c\x05"+sshtest.Nasty+sshtest.Nasty+sshtest.Nasty)
		}, "log in to"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := sshtest.LiveBytes()
			a := hostileBoard(t, func(c net.Conn, _ *ssh.ServerConfig) { tt.serve(c) })
			_, err := Dial(t.Context(), a)
			sshtest.CheckHarmless(t, err, tt.want)
			sshtest.CheckMemory(t, before)
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
			_, err = l.openLink(t.Context())
			sshtest.CheckHarmless(t, err, "")
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("connect = %v; want %v", err, context.DeadlineExceeded)
			}
			for _, want := range []string{": no answer within 300ms; ", "ConnectTimeout", SilenceVariable, "\nnext: ssh -v "} {
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
				for conn.SendAuthBanner(strings.Repeat(sshtest.Nasty, 1000)) == nil {
				}
			}
		}, "greets without end"},
		{"banner with escapes", func(c *ssh.ServerConfig) {
			c.BannerCallback = func(ssh.ConnMetadata) string { return sshtest.Nasty }
			c.PublicKeyCallback = func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) {
				return nil, &ssh.BannerError{Err: errors.New("no"), Message: sshtest.Nasty}
			}
		}, "login refused"},
		{"keeps asking for passwords", func(c *ssh.ServerConfig) {
			c.PublicKeyCallback = nil
			c.KeyboardInteractiveCallback = func(_ ssh.ConnMetadata, ask ssh.KeyboardInteractiveChallenge) (*ssh.Permissions, error) {
				ask(sshtest.Nasty, sshtest.Nasty, []string{sshtest.Nasty}, []bool{true})
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
				return nil, errors.New(sshtest.Nasty)
			}
			c.PublicKeyCallback = any
		}, "login refused"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := sshtest.LiveBytes()
			a := hostileBoard(t, func(c net.Conn, config *ssh.ServerConfig) {
				tt.set(config)
				sshtest.Conversation{}.Serve(c, config)
			})
			_, err := Dial(t.Context(), a)
			sshtest.CheckHarmless(t, err, tt.want)
			sshtest.CheckMemory(t, before)
		})
	}
}

// The man in the middle has a key of his own.
func TestManInTheMiddle(t *testing.T) {
	entered := make(chan struct{}, 1)
	talk := sshtest.Conversation{Began: func(*ssh.ServerConn) { entered <- struct{}{} }}
	middle, board := hostileBoard(t, talk.Serve), hostileBoard(t, talk.Serve)
	middle.KnownHosts = board.KnownHosts
	_, err := Dial(t.Context(), middle)
	sshtest.CheckHarmless(t, err, "pins ssh-ed25519")
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
		block := bytes.Repeat([]byte(sshtest.Nasty), 1<<20/len(sshtest.Nasty))
		for range 2 * sshtest.MostHeld / len(block) {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
		sshtest.SendExit(ch, 0)
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
			}{sshtest.Nasty, false, sshtest.Nasty, sshtest.Nasty}))
		}, ""},
		{"broken status", func(ch ssh.Channel, _ string) { ch.SendRequest("exit-status", false, []byte{1}) }, "on root@"},
		{"odd requests", func(ch ssh.Channel, _ string) {
			for range 1000 {
				ch.SendRequest(sshtest.Nasty, true, []byte(sshtest.Nasty))
			}
			sshtest.SendExit(ch, 0)
		}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := dialBoard(t, hostileBoard(t, sshtest.Conversation{Exec: func(ch ssh.Channel, line string) {
				sshtest.SayShell(ch, line)
				tt.exec(ch, line)
			}}.Serve))
			before := sshtest.LiveBytes()
			r, err := c.Run(t.Context(), "true")
			if tt.want != "" {
				sshtest.CheckHarmless(t, err, tt.want)
			} else if err != nil {
				t.Errorf("Run = %v", err)
			}
			if len(r.Stdout)+len(r.Stderr) > 2*MaxOutputBytes {
				t.Errorf("%d and %d bytes of output; want at most %d of each", len(r.Stdout), len(r.Stderr), MaxOutputBytes)
			}
			sshtest.CheckMemory(t, before)
		})
	}
}

func TestChannelThatIsRefused(t *testing.T) {
	refuse := func(ch ssh.NewChannel) bool {
		return ch.Reject(ssh.Prohibited, strings.Repeat(sshtest.Nasty, 1000)) == nil
	}
	c := dialBoard(t, hostileBoard(t, sshtest.Conversation{Channels: refuse}.Serve))
	_, err := c.Run(t.Context(), "true")
	sshtest.CheckHarmless(t, err, "run true on")
	_, err = c.DialContext(t.Context(), "tcp", "127.0.0.1:1")
	sshtest.CheckHarmless(t, err, "open tcp")
	jump := hostileBoard(t, sshtest.Conversation{Channels: refuse}.Serve)
	board := hostileBoard(t, sshtest.Conversation{}.Serve)
	board.Via = &jump
	_, err = Dial(t.Context(), board)
	sshtest.CheckHarmless(t, err, "AllowTcpForwarding")
}

// Requests and channels that nobody requested.
func TestFlood(t *testing.T) {
	const each = 4_000
	done := make(chan struct{})
	talk := sshtest.Conversation{
		Exec: func(ch ssh.Channel, line string) {
			sshtest.SayShell(ch, line)
			sshtest.SendExit(ch, 0)
		},
		Began: func(conn *ssh.ServerConn) {
			defer close(done)
			var floods sync.WaitGroup
			floods.Go(func() {
				for i := range each {
					if _, _, err := conn.SendRequest(sshtest.Nasty, i%100 == 0, []byte(sshtest.Nasty)); err != nil {
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
						}{sshtest.Nasty, 1, sshtest.Nasty, 1}))
						conn.OpenChannel(sshtest.Nasty, []byte(strings.Repeat(sshtest.Nasty, 100)))
					}
				})
			}
			floods.Wait()
		},
	}
	before := sshtest.LiveBytes()
	c := dialBoard(t, hostileBoard(t, talk.Serve))
	if r, err := c.Run(t.Context(), "true"); err != nil || r.Status != 0 {
		t.Errorf("Run during a flood = %+v, %v", r, err)
	}
	<-done
	sshtest.CheckMemory(t, before)
	if r, err := c.Run(t.Context(), "true"); err != nil || r.Status != 0 {
		t.Errorf("Run after a flood = %+v, %v", r, err)
	}
}
