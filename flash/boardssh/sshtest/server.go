package sshtest

import (
	"encoding/binary"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"unicode"

	"golang.org/x/crypto/ssh"
)

// Server is an SSH server on 127.0.0.1. Its host key is in KnownHosts under the name the-board.
type Server struct {
	Port                 int
	KnownHosts, Identity string
}

// ServeSSH starts a server that calls serve for each connection. Its configuration accepts any user
// key. At its end, the test waits until all calls of serve have returned.
func ServeSSH(t *testing.T, serve func(net.Conn, *ssh.ServerConfig)) Server {
	t.Helper()
	hostFile, _, host := NewKey(t)
	identity, _, _ := NewKey(t)
	pem, err := os.ReadFile(hostFile)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ssh.ParsePrivateKey(pem)
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
			config.AddHostKey(key)
			served.Go(func() {
				defer conn.Close()
				serve(conn, config)
			})
		}
	})
	return Server{Port: l.Addr().(*net.TCPAddr).Port, KnownHosts: known, Identity: identity}
}

// MostHeld limits the memory for the data of a hostile board. Tests send several times more.
const MostHeld = 24 << 20

// Nasty is text with escape and formatting characters that would attack a terminal.
const Nasty = "\x1b]0;owned\x07\x1b[2J\u202e\u009b31m"

// Conversation says how a test server behaves after the login.
type Conversation struct {
	Exec     func(ssh.Channel, string) // runs a command
	SFTP     func(ssh.Channel)         // serves SFTP; nil: the request is refused
	Channels func(ssh.NewChannel) bool // returns true if it has handled a channel
	Began    func(*ssh.ServerConn)     // runs beside the rest
}

// Serve does the SSH handshake on conn, and serves its channels until the connection ends.
func (c Conversation) Serve(conn net.Conn, config *ssh.ServerConfig) {
	server, channels, requests, err := ssh.NewServerConn(conn, config)
	if err != nil {
		return
	}
	defer server.Close()
	go ssh.DiscardRequests(requests)
	if c.Began != nil {
		go c.Began(server)
	}
	for ch := range channels {
		if c.Channels == nil || !c.Channels(ch) {
			go c.session(ch)
		}
	}
}

// session serves the exec and subsystem requests of one channel, and refuses all others.
func (c Conversation) session(offer ssh.NewChannel) {
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
		case r.Type == "exec" && c.Exec != nil:
			r.Reply(true, nil)
			go func() {
				c.Exec(ch, text)
				ch.Close()
			}()
		case r.Type == "subsystem" && c.SFTP != nil:
			r.Reply(true, nil)
			go func() {
				c.SFTP(ch)
				ch.Close()
			}()
		default:
			r.Reply(false, nil)
		}
	}
}

// SayShell prints on standard error what the echo at line's start would: its mark, and pid 4242.
func SayShell(ch ssh.Channel, line string) {
	if mark, ok := strings.CutPrefix(line, "echo '"); ok {
		mark, _, _ = strings.Cut(mark, "'")
		io.WriteString(ch.Stderr(), mark+"4242\n")
	}
}

// SendExit sends the exit status of a program.
func SendExit(ch ssh.Channel, status uint32) {
	ch.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{status}))
}

// CheckHarmless fails the test if err lacks want, is very long, or could control a terminal.
func CheckHarmless(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v; want an error with %q", err, want)
		return
	}
	if i := strings.IndexFunc(err.Error(), func(r rune) bool { return r != '\n' && !unicode.IsGraphic(r) }); i >= 0 || len(err.Error()) > 20_000 {
		t.Errorf("unsafe at %d of %d: %q", i, len(err.Error()), err)
	}
}

// LiveBytes returns how much heap memory is in use after a garbage collection.
func LiveBytes() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// CheckMemory fails the test if LiveBytes grew by over MostHeld since before. Call it while the
// board is connected.
func CheckMemory(t *testing.T, before int64) {
	t.Helper()
	if held := LiveBytes() - before; held > MostHeld {
		t.Errorf("%d MiB are held; want at most %d", held>>20, int64(MostHeld)>>20)
	}
}

// SendEndless writes text again and again until a write fails.
func SendEndless(w io.Writer, text string) {
	block := []byte(strings.Repeat(text, 1+32<<10/len(text)))
	for {
		if _, err := w.Write(block); err != nil {
			return
		}
	}
}

// SFTPPacket returns an SFTP packet of uint32, uint64 and string fields, with its length before it.
func SFTPPacket(kind byte, payload ...any) []byte {
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
	SFTPInit, SFTPVersion, SFTPOpen, SFTPWrite, SFTPStat, SFTPStatus, SFTPHandle, SFTPAttrs = 1, 2, 3, 6, 17, 101, 102, 105
)

const SFTPClose = 4

// ServeSFTP returns an SFTP server that answers each request with what answer returns. A nil or
// short packet ends it, but nil for SFTPInit sends version 3.
func ServeSFTP(answer func(kind byte, id uint32) []byte) func(ssh.Channel) {
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
			if text == nil && kind == SFTPInit {
				text = SFTPPacket(SFTPVersion, uint32(3))
			}
			if _, err := ch.Write(text); err != nil || len(text) < len(head) {
				return
			}
		}
	}
}
