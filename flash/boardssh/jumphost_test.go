package boardssh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"slipway/flash/boardssh/sshd"
	"slipway/flash/boardssh/sshtest"
	"slipway/layers/run"
)

// behind is the address of a server that is reached through others, the first one first.
func behind(s *sshd.Server, hops ...*sshd.Server) Address {
	a := addressOf(s)
	if n := len(hops); n > 0 {
		via := behind(hops[n-1], hops[:n-1]...)
		a.Via = &via
	}
	return a
}

func startJumpHost(t *testing.T) *sshd.Server {
	t.Helper()
	return sshtest.StartSSHD(t, "LogLevel DEBUG1")
}

// count is how often the server's log holds words.
func count(t *testing.T, s *sshd.Server, words string) int {
	t.Helper()
	log, err := os.ReadFile(s.Log)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(log), words)
}

func carried(s *sshd.Server) string { return fmt.Sprintf("target 127.0.0.1 port %d", s.Port) }

// Each server takes only one key, and has its own host key, which is in its own file.
func TestConfiguredJumpHosts(t *testing.T) {
	board, rack, edge := sshtest.StartSSHD(t), startJumpHost(t), startJumpHost(t)
	config := ""
	for name, s := range map[string]*sshd.Server{"board": board, "rack": rack, "edge": edge} {
		config += fmt.Sprintf("Host %s\n\tHostName 127.0.0.1\n\tPort %d\n\tIdentityFile %s\n\tUserKnownHostsFile %s\n",
			name, s.Port, s.Identity, s.KnownHosts)
	}
	for _, jumps := range []string{
		"Host board\n\tProxyJump edge,rack\n",
		"Host board\n\tProxyJump rack\nHost rack\n\tProxyJump edge\n",
	} {
		sshConfig(t, config+jumps)
		edges, racks := count(t, edge, carried(rack)), count(t, rack, carried(board))
		c, err := Reach(t.Context(), "board")
		if err != nil {
			t.Fatal(err)
		}
		if r, err := c.Run(t.Context(), "echo", "here"); err != nil || string(r.Stdout) != "here\n" {
			t.Errorf("Run = %q, %v", r.Stdout, err)
		}
		if err := c.Close(); err != nil {
			t.Errorf("Close = %v", err)
		}
		if edges, racks := count(t, edge, carried(rack))-edges, count(t, rack, carried(board))-racks; edges != 1 || racks != 1 {
			t.Errorf("%q: %d connections from the edge to the rack, %d from there to the board; want 1 and 1", jumps, edges, racks)
		}
	}
}

func TestJumpHostThatFails(t *testing.T) {
	board, jump := sshtest.StartSSHD(t), sshtest.StartSSHD(t)
	strict := sshtest.StartSSHD(t, "AllowTcpForwarding no")
	other := addressOf(jump)
	other.KnownHosts = addressOf(board).KnownHosts
	locked := addressOf(jump)
	locked.Identities = []string{board.Identity}
	forbids, down, open := addressOf(strict), addressOf(sshtest.NewSSHD(t)), addressOf(jump)
	empty := sshtest.NewSSHD(t)
	tests := []struct {
		name  string
		via   Address
		board *sshd.Server
		want  []string
		is    error
	}{
		{"unknown", other, board, []string{"jump host: host key not trusted", other.hostPort()}, ErrHostKey},
		{"login refused", locked, board, []string{"jump host: login refused", locked.hostPort()}, ErrLogin},
		{"does not forward", forbids, board, []string{"jump host ", forbids.hostPort(), "AllowTcpForwarding"}, nil},
		{"is down", down, board, []string{"jump host: reach ", down.hostPort(), "connection refused"}, nil},
		{"board is down", open, empty, []string{"jump host ", open.hostPort(), "Connection refused"}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := addressOf(tt.board)
			a.Via = &tt.via
			check := func(err error) {
				t.Helper()
				for _, want := range tt.want {
					if err == nil || !strings.Contains(err.Error(), want) {
						t.Errorf("%v; want an error with %q", err, want)
					}
				}
				if tt.is != nil && !errors.Is(err, tt.is) {
					t.Errorf("%v; want %v", err, tt.is)
				}
			}
			_, err := Dial(t.Context(), a)
			check(err)
			if tt.is != nil { // nothing that another try could fix
				_, err := WaitDial(t.Context(), a, time.Hour)
				check(err)
			}
		})
	}
}

// The board comes and goes; the connection to the jump host is made once, also where
// several connections are wanted at the same time.
func TestJumpHostIsEnteredOnce(t *testing.T) {
	board, jump := sshtest.NewSSHD(t), startJumpHost(t)
	const entered = "Accepted publickey"
	waited := make(chan error, 1)
	var c *Conn
	go func() {
		var err error
		c, err = WaitDial(t.Context(), behind(board, jump), 5*time.Minute)
		waited <- err
	}()
	for count(t, jump, carried(board)) < 3 { // the jump host tried it while it was off
		time.Sleep(20 * time.Millisecond)
	}
	if err := board.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(board.Stop)
	if err := <-waited; err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var more sync.WaitGroup
	for range 4 {
		more.Go(func() {
			link, err := c.login.openLink(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			link.Close()
		})
	}
	more.Wait()
	if n := count(t, jump, entered); n != 1 {
		t.Errorf("the jump host was entered %d times; want once", n)
	}
	c.Close()
	<-c.login.via.link.gone
	if _, err := c.login.openLink(t.Context()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("connect after Close = %v; want %v", err, net.ErrClosed)
	}
}

// The board restarts, the jump host does not. That a restart changes the boot id is
// simulated by what the server runs in place of every command.
func TestRebootBehindAJumpHost(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "board")
	text := fmt.Sprintf(`#!/bin/sh
cd %s
eval "${SSH_ORIGINAL_COMMAND%%%% exec *}"
case "$SSH_ORIGINAL_COMMAND" in
*boot_id*) cat boot_id ;;
*reboot*) echo 22222222-2222-2222-2222-222222222222 > boot_id; kill -9 $PPID ;;
esac
`, dir)
	first := "11111111-1111-1111-1111-111111111111\n"
	for name, content := range map[string]string{"board": text, "boot_id": first} {
		if err := run.WriteProgram(filepath.Join(dir, name), []byte(content), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	board, jump := sshtest.StartSSHD(t, "ForceCommand "+script), startJumpHost(t)
	c := dialBoard(t, behind(board, jump))
	if err := c.Reboot(t.Context(), 5*time.Minute); err != nil {
		t.Fatal(err)
	}
	if id, err := c.bootID(t.Context()); err != nil || !strings.HasPrefix(id, "2222") {
		t.Errorf("boot id %q, %v; want the second", id, err)
	}
	if n := count(t, jump, "Accepted publickey"); n != 1 {
		t.Errorf("the jump host was entered %d times; want once", n)
	}
}

// A jump host whose connection was lost is entered again.
func TestJumpHostThatWasLost(t *testing.T) {
	board, jump := sshtest.StartSSHD(t), startJumpHost(t)
	c := dialBoard(t, behind(board, jump))
	c.login.via.link.Close()
	<-c.login.via.link.gone
	if _, err := c.Run(t.Context(), "true"); err == nil {
		t.Error("Run through a lost connection: no error")
	}
	link, err := c.login.openLink(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	link.Close()
}

// A further connection, as large files get them, leaves the jump host to the first one.
func TestJumpHostOutlivesAConnection(t *testing.T) {
	board, jump := sshtest.StartSSHD(t), sshtest.StartSSHD(t)
	c := dialBoard(t, behind(board, jump))
	more, err := c.DialAgain(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := more.Close(); err != nil {
		t.Errorf("Close = %v", err)
	}
	if _, err := c.Run(t.Context(), "true"); err != nil {
		t.Errorf("Run on the first connection: %v", err)
	}
	if err := c.Redial(t.Context(), sshtest.LongEnough); err != nil {
		t.Errorf("Redial = %v", err)
	}
}

// What a jump host does not answer must not hold up whoever gives up.
func TestJumpHostThatFallsSilent(t *testing.T) {
	t.Parallel()
	board, jump := sshtest.StartSSHD(t), sshtest.StartSSHD(t)
	via, relay := startRelay(t, addressOf(jump), 1<<40, true)
	a := addressOf(board)
	a.Via = &via
	c := dialBoard(t, a)
	relay.Late.Store(int64(time.Hour)) // answers are held back from here on
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := c.Run(ctx, "true"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Run = %v; want %v", err, context.DeadlineExceeded)
	}
	c.Close()
	<-c.login.via.link.gone
}

func TestProxyCommand(t *testing.T) {
	s := sshtest.StartSSHD(t)
	t.Setenv("SHELL", "/bin/sh")
	dir := t.TempDir()
	mark := filepath.Join(dir, "ran")
	sshConfig(t, fmt.Sprintf(`
Host jump
	HostName 127.0.0.1
	Port %d
	IdentityFile %[2]s
	UserKnownHostsFile %[3]s
Host board
	HostName 127.0.0.1
	Port %[1]d
	IdentityFile %[2]s
	UserKnownHostsFile %[3]s
	ProxyCommand sh -c 'echo "$0 $1" > %[4]s; exec ssh -W "$0:$1" jump' %%h %%p
`, s.Port, s.Identity, s.KnownHosts, mark))
	c, err := Reach(t.Context(), "board")
	if err != nil {
		t.Fatal(err)
	}
	proxy := c.link.wire.Conn.(*proxy)
	if r, err := c.Run(t.Context(), "echo", "here"); err != nil || string(r.Stdout) != "here\n" {
		t.Errorf("Run = %q, %v", r.Stdout, err)
	}
	c.Close()
	<-proxy.ended
	if ran, err := os.ReadFile(mark); err != nil || string(ran) != fmt.Sprintf("127.0.0.1 %d\n", s.Port) {
		t.Errorf("the command was given %q, %v", ran, err)
	}
}

func TestProxyCommandThatFails(t *testing.T) {
	t.Setenv("SHELL", "/bin/sh")
	for command, want := range map[string]string{
		`printf 'no \033[31mway\n' >&2; exit 7`: `no \x1b[31mway`,
		"true":                                  "it said nothing",
		"/no/such/program":                      "/no/such/program",
	} {
		a := Address{Host: "board", ProxyCommand: command}
		if _, err := Dial(t.Context(), a); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Dial by %q = %v; want an error with %q", command, err, want)
		}
	}
}
