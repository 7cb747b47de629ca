package fleet

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"
)

// serveConn serves one connection to a board.
func (b *simulatedBoard) serveConn(conn net.Conn, login ssh.PublicKey) {
	defer conn.Close()
	b.trackConn(conn)
	switch b.Fault {
	case faultHangs:
		<-b.ctx.Done()
		return
	case faultNotSSH:
		_, _ = io.WriteString(conn, "HTTP/1.1 400 Bad Request\r\nServer: lab\r\n\r\n")
		return
	}
	c, channels, requests, err := ssh.NewServerConn(conn, b.sshConfig(login))
	if err != nil {
		return // the client gets an error, too
	}
	defer c.Close()
	go ssh.DiscardRequests(requests)
	for channel := range channels {
		if channel.ChannelType() != "session" {
			_ = channel.Reject(ssh.UnknownChannelType, "only sessions are simulated")
			continue
		}
		session, requests, err := channel.Accept()
		if err != nil {
			return
		}
		go b.serveSession(session, requests)
	}
}

func (b *simulatedBoard) sshConfig(login ssh.PublicKey) *ssh.ServerConfig {
	c := &ssh.ServerConfig{
		ServerVersion: "SSH-2.0-simulated",
		PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			if b.Fault == faultNoLogin || !bytes.Equal(key.Marshal(), login.Marshal()) {
				return nil, errors.New("not this one")
			}
			return nil, nil
		},
	}
	c.AddHostKey(b.key)
	return c
}

func (b *simulatedBoard) trackConn(conn net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.conns = append(b.conns, conn)
	if b.ctx.Err() != nil {
		conn.Close()
	}
}

// closeConns closes all connections.
func (b *simulatedBoard) closeConns() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.conns {
		c.Close()
	}
	b.conns = nil
}

const (
	diesAfter  = 2 << 20 // bytes of uploads
	slowsAfter = 1 << 20
	slowWrite  = 2 * time.Second // of 32 KiB
)

// beforeWrite simulates the faults that appear before n bytes are written.
func (b *simulatedBoard) beforeWrite(n int) error {
	b.mu.Lock()
	b.written += n
	written := b.written
	b.mu.Unlock()
	switch {
	case b.Fault == faultDies && written > diesAfter:
		b.closeConns()
		return io.ErrClosedPipe
	case b.Fault == faultSlow && written > slowsAfter:
		b.once.Do(func() { close(b.Slowed) })
		select {
		case <-time.After(slowWrite):
		case <-b.ctx.Done():
		}
	}
	return nil
}

// serveSession serves the first request of a channel.
func (b *simulatedBoard) serveSession(s ssh.Channel, requests <-chan *ssh.Request) {
	defer s.Close()
	for r := range requests {
		var payload struct{ Text string }
		if ssh.Unmarshal(r.Payload, &payload) != nil || r.Type != "exec" && (r.Type != "subsystem" || payload.Text != "sftp") {
			_ = r.Reply(false, nil)
			continue
		}
		_ = r.Reply(true, nil)
		go ssh.DiscardRequests(requests)
		if r.Type == "exec" {
			b.runCommand(s, payload.Text)
			return
		}
		server := sftp.NewRequestServer(s, b.disk.sftpHandlers())
		_ = server.Serve() // it ends with its channel
		return
	}
}

// runCommand answers a command as its program would.
func (b *simulatedBoard) runCommand(s ssh.Channel, command string) {
	if b.Fault == faultNoisy {
		_, _ = io.WriteString(s, "Welcome to the board\x1b]0;owned\a\n"+strings.Repeat("\x00\xff garbage", 4000))
	}
	mark, argv := parseCommand(command)
	if b.Fault == faultNoShell {
		mark, argv = "", []string{"true"}
	}
	if len(argv) > 6 && strings.HasSuffix(argv[2], "\nexec \"$@\"") { // what starts a guard of package suite
		argv = argv[6:]
	}
	if mark != "" {
		fmt.Fprintf(s.Stderr(), "%s4711\n", mark)
	}
	if b.losesConnection(strings.Join(argv, " ")) {
		b.closeConns()
		return
	}
	out, status := b.answerCommand(argv, s)
	_, _ = io.WriteString(s, out)
	_, _ = s.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{uint32(status)}))
}

func (b *simulatedBoard) losesConnection(line string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.Fault != faultBlinks || b.blinked || !strings.Contains(line, "product_serial") {
		return false
	}
	b.blinked = true
	return true
}

// parseCommand parses the commands of boardssh: echo 'MARK'$$ >&2; exec 'word' 'word'.
func parseCommand(command string) (mark string, argv []string) {
	if head, rest, ok := strings.Cut(command, "'$$ >&2; exec "); ok {
		mark, command = strings.TrimPrefix(head, "echo '"), rest
	}
	var word strings.Builder
	quoted, started := false, false
	for i := 0; i < len(command); i++ {
		switch c := command[i]; {
		case c == '\'':
			quoted, started = !quoted, true
		case quoted:
			word.WriteByte(c)
		case c == '\\' && i+1 < len(command):
			i++
			word.WriteByte(command[i])
		case c == ' ':
			if started {
				argv = append(argv, word.String())
			}
			word.Reset()
			started = false
		default:
			word.WriteByte(c)
			started = true
		}
	}
	if started {
		argv = append(argv, word.String())
	}
	return mark, argv
}

// answerCommand returns a program's output and exit status. An unknown program is not
// installed.
func (b *simulatedBoard) answerCommand(argv []string, input io.Reader) (out string, status int) {
	line := strings.Join(argv, " ")
	switch {
	case line == "true":
		return "", 0
	case strings.Contains(line, "sha256sum") && len(argv) > 4: // sh -c SCRIPT sh FILE
		name := argv[4]
		if f := b.disk.findFile(name); f != nil {
			return f.sha256Hex() + " *" + name + "\n", 0
		}
		return "", 1
	case strings.Contains(line, "product_serial") && strings.HasPrefix(line, "sh -c"):
		return argv[len(argv)-1] + "\nSN-" + b.Name + "\n", 0
	case strings.HasPrefix(line, "grep "):
		return "/proc/sys/kernel/hostname:" + b.Name + "\n/proc/sys/kernel/osrelease:6.1.0-simulated\n", 0
	case strings.HasPrefix(line, "sh -c cat /etc/slipway/fact-"):
		n, err := strconv.Atoi(line[len(line)-2:])
		if err != nil || b.Fault == faultFails && n == 3 {
			return "", 1
		}
		return fact(n) + "\n", 0
	}
	return b.answerUpdate(line, input)
}
