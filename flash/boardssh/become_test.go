package boardssh

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
	"testing"
	"time"

	"slipway/flash/boardssh/sshtest"
)

// fieldBoard is a board whose user is not root.
func fieldBoard(t *testing.T, rights string) Address {
	t.Helper()
	a := addressOf(sshtest.StartSudo(t, rights))
	a.User, a.Become = sshtest.SudoUser, "root"
	return a
}

// Everything that a root login could do, another user does by sudo.
func TestBecome(t *testing.T) {
	for name, rights := range sshtest.SudoRights {
		t.Run(name, func(t *testing.T) {
			a := fieldBoard(t, rights)
			if name == "password" {
				sudoPasswords.store(sshtest.SudoPassword, a)
				t.Cleanup(func() { sudoPasswords.forget(a) })
			}
			c := dialBoard(t, a)
			r, err := c.Run(t.Context(), "id", "-u")
			if err != nil || string(r.Stdout) != "0\n" || len(r.Stderr) > 0 {
				t.Fatalf("id -u: %+v, %v; want 0, and no more", r, err)
			}
			if r, err := c.Run(t.Context(), "sh", "-c", "echo words >&2; exit 7"); err != nil || r.Status != 7 || string(r.Stderr) != "words\n" {
				t.Errorf("a program that fails: %+v, %v", r, err)
			}
			if r, err := c.Run(t.Context(), "chroot", "--version"); err != nil || r.Status != 0 {
				t.Errorf("a program of /usr/sbin: %+v, %v", r, err)
			}
			becomeCarries(t, c)
			becomeEnds(t, c)
			becomeSocket(t, c)
			if r, err := c.Run(t.Context(), "sh", "-c", `tr '\0' ' ' </proc/$PPID/cmdline; ps -ef; env`); err != nil || strings.Contains(string(r.Stdout), sshtest.SudoPassword) {
				t.Errorf("the password is among the arguments or variables: %q, %v", r.Stdout, err)
			}
		})
	}
}

func becomeCarries(t *testing.T, c *Conn) {
	data := sshtest.RandomBytes(3 << 20)
	r, err := c.Feed(t.Context(), bytes.NewReader(data), "sha256sum")
	if want := fmt.Sprintf("%x  -\n", sha256.Sum256(data)); err != nil || string(r.Stdout) != want {
		t.Errorf("what a program read has %q, %v; want %q", r.Stdout, err, want)
	}
}

// A Ctrl-C ends root's program, which sudo itself could not.
func becomeEnds(t *testing.T, c *Conn) {
	ctx, cancel := context.WithCancel(t.Context())
	mark := filepath.Join(t.TempDir(), "pid")
	ended := make(chan error, 1)
	go func() {
		_, err := c.Run(ctx, "sh", "-c", "trap '' TERM; echo $$ >"+mark+".new; mv "+mark+".new "+mark+"; exec sleep 1000")
		ended <- err
	}()
	var pid []byte
	for began := time.Now(); len(pid) == 0 && time.Since(began) < sshtest.LongEnough; time.Sleep(50 * time.Millisecond) {
		pid, _ = os.ReadFile(mark)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Run = %v; want %v", err, context.Canceled)
	}
	for began := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		// A dead process that nobody waits for stays listed, without its program.
		if _, err := os.Readlink("/proc/" + strings.TrimSpace(string(pid)) + "/exe"); err != nil {
			return
		}
		if time.Since(began) > time.Minute {
			t.Fatalf("process %s runs on", pid)
		}
	}
}

// A socket that only root may open.
func becomeSocket(t *testing.T, c *Conn) {
	name := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", name)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		if conn, err := l.Accept(); err == nil {
			io.WriteString(conn, "hello")
			conn.Close()
		}
	}()
	conn, err := c.DialContext(t.Context(), "unix", name)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if text, err := io.ReadAll(conn); err != nil || string(text) != "hello" {
		t.Errorf("the socket says %q, %v", text, err)
	}
}

func TestBecomeRefused(t *testing.T) {
	a := fieldBoard(t, sshtest.SudoRights["password"])
	nobody := fieldBoard(t, "")
	wrong := a
	wrong.HostKeyAlias, wrong.KnownHosts = aliased(t, a).HostKeyAlias, aliased(t, a).KnownHosts
	for _, tt := range []struct {
		name     string
		a        Address
		password string
		want     string
	}{
		{"nobody to ask", a, "", "NOPASSWD"},
		{"wrong password", wrong, "wrong", "sudo refuses"},
		{"not in sudoers", nobody, sshtest.SudoPassword, "sudoers"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sudoPasswords.store(tt.password, tt.a)
			c, err := DialUnattended(t.Context(), tt.a)
			if err == nil {
				c.Close()
			}
			if !errors.Is(err, ErrBecome) || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), sshtest.SudoPassword) {
				t.Errorf("Dial = %v; want %v with %q", err, ErrBecome, tt.want)
			}
			sudoPasswords.forget(tt.a)
		})
	}
}

// A program behind sudo may end before its input does, as one without sudo may.
func TestBecomeWithInputThatStaysOpen(t *testing.T) {
	a := fieldBoard(t, sshtest.SudoRights["password"])
	sudoPasswords.store(sshtest.SudoPassword, a)
	t.Cleanup(func() { sudoPasswords.forget(a) })
	c := dialBoard(t, a)
	open, end := io.Pipe()
	defer end.Close()
	done := make(chan error, 1)
	go func() {
		_, err := c.Feed(t.Context(), open, "true")
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("Feed = %v; want nil", err)
		}
	case <-time.After(30 * time.Second):
		t.Error("Feed waits for the input of a program that has ended")
	}
}

// Boards behind different jump hosts may have one address. Each password goes to its board only.
func TestPasswordIsOfOneBoard(t *testing.T) {
	behind := func(host string) Address {
		return Address{User: "field", Host: "192.168.1.2", Port: 22, Via: &Address{User: "field", Host: host, Port: 22}}
	}
	one, other := behind("rack1"), behind("rack2")
	var p passwords
	p.store(sshtest.SudoPassword, one)
	for _, tt := range []struct {
		a    Address
		want string
	}{{one, sshtest.SudoPassword}, {behind("rack1"), sshtest.SudoPassword}, {other, ""}, {Address{User: "field", Host: "192.168.1.2", Port: 22}, ""}} {
		if got, err := p.storedOrTyped(t.Context(), tt.a, false); got != tt.want || err != nil {
			t.Errorf("of %s by %v = %q, %v; want %q", tt.a, tt.a.jumpArgs(), got, err, tt.want)
		}
	}
}

// The password is asked for once, and may be typed anew where it was wrong.
func TestBecomeAsks(t *testing.T) {
	a := fieldBoard(t, sshtest.SudoRights["password"])
	t.Cleanup(func() { sudoPasswords.forget(a) })
	p := sitDown(t, answer{"Password of field", "wrong"}, answer{"Password of field", sshtest.SudoPassword})
	for range 2 {
		c := dialBoard(t, a)
		if r, err := c.Run(t.Context(), "id", "-u"); err != nil || string(r.Stdout) != "0\n" {
			t.Errorf("id -u: %+v, %v; want 0", r, err)
		}
	}
	if screen := p.saw(); strings.Count(screen, "Password of field") != 2 || strings.Contains(screen, sshtest.SudoPassword) {
		t.Errorf("the screen shows %q; want two questions, and no answer", screen)
	}
}

func TestBecomeByEnvironment(t *testing.T) {
	for text, want := range map[string]string{"": "", "sudo": "root", "su": "x", "yes": "x"} {
		t.Setenv(BecomeVariable, text)
		got, err := BecomeUser(t.Context())
		if (err != nil) != (want == "x") || err == nil && got != want {
			t.Errorf("%s=%q: %q, %v; want %q", BecomeVariable, text, got, err, want)
		}
	}
	t.Setenv(BecomeVariable, "sudo")
	if a, err := Resolve(t.Context(), "server"); a.Become != "" || err != nil {
		t.Errorf("on a server of images programs run as %q, %v; want who logs in", a.Become, err)
	}
	for sudo, want := range map[bool]string{true: "root", false: ""} {
		if got, err := BecomeUser(WithBecome(t.Context(), sudo)); got != want || err != nil {
			t.Errorf("--become=%v: %q, %v; want %q", sudo, got, err, want)
		}
	}
}
