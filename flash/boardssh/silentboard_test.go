package boardssh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"slipway/flash/boardssh/sshtest"
)

// impatient connects with a limit of silence.
func impatient(ctx context.Context, a Address, limit time.Duration) (*Conn, error) {
	l, err := newLogin(a)
	if err != nil {
		return nil, err
	}
	l.silence, l.patience = limit, min(l.patience, limit)
	link, err := l.openLink(ctx)
	if err != nil {
		return nil, err
	}
	return &Conn{addr: l.addr, login: l, link: link}, nil
}

// A program may be silent for as long as it runs, whose input waits too, and what it left
// in the background.
func TestSilentProgramsGoOn(t *testing.T) {
	t.Parallel()
	s := sshtest.StartSSHD(t)
	c, err := impatient(t.Context(), addressOf(s), 4*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var all sync.WaitGroup
	for _, script := range []string{"sleep 10; echo done", "(sleep 10; echo done) &", "for i in 1 2 3 4 5 6 7 8 9 10; do echo $i >&2; sleep 1; done; echo done"} {
		all.Go(func() {
			if r, err := c.Run(t.Context(), "sh", "-c", script); err != nil || string(r.Stdout) != "done\n" {
				t.Errorf("%s: %q, %v; want done", script, r.Stdout, err)
			}
		})
	}
	in, write := io.Pipe()
	all.Go(func() {
		time.Sleep(10 * time.Second)
		fmt.Fprintln(write, "done")
		write.Close()
	})
	all.Go(func() {
		if r, err := c.Feed(t.Context(), in, "cat"); err != nil || string(r.Stdout) != "done\n" {
			t.Errorf("cat: %q, %v; want done", r.Stdout, err)
		}
	})
	all.Go(func() {
		r, err := c.AskUpTo(t.Context(), nil, 50000, "sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10; do head -c 5000 /dev/zero; sleep 1; done")
		if err != nil || len(r.Stdout) != 50000 {
			t.Errorf("a long answer: %d bytes, %v; want 50000", len(r.Stdout), err)
		}
	})
	all.Go(func() {
		if _, err := c.AskUpTo(t.Context(), nil, 60000, "sleep", "100"); !errors.Is(err, ErrSilent) || !strings.Contains(err.Error(), "\nnext: ssh ") {
			t.Errorf("AskUpTo = %v; want %v and a next step", err, ErrSilent)
		}
	})
	all.Wait()
}

func TestSilenceLimit(t *testing.T) {
	for text, want := range map[string]time.Duration{"": time.Minute, "5s": 5 * time.Second, "90s": 90 * time.Second, "0": 0, "-5s": 0, "10": 0, "1ms": 0, "x": 0} {
		t.Setenv(SilenceVariable, text)
		if got, err := silenceLimit(); got != want || (err == nil) != (want != 0) {
			t.Errorf("%s=%q: %v, %v; want %v", SilenceVariable, text, got, err, want)
		}
	}
}

func TestFrames(t *testing.T) {
	text := append(sshtest.SFTPPacket(1, "abc"), append([]byte{0, 0, 0, 0}, sshtest.SFTPPacket(2)...)...)
	for size := 1; size <= len(text); size++ {
		var f frames
		n := 0
		for at := 0; at < len(text); at += size {
			n += f.countPackets(text[at:min(len(text), at+size)])
		}
		if n != 3 {
			t.Errorf("%d bytes at a time: %d packets; want 3", size, n)
		}
	}
}

// countedConn counts how often it is closed.
type countedConn struct {
	ssh.Conn
	closed atomic.Int32
	done   chan error
}

func (c *countedConn) Close() error {
	if c.closed.Add(1) == 1 {
		time.AfterFunc(100*time.Millisecond, func() { c.done <- nil })
	}
	return nil
}

// Work may need a while to notice that its connection has ended.
func TestDropsOnce(t *testing.T) {
	t.Parallel()
	conn := &countedConn{done: make(chan error, 1)}
	here, there := net.Pipe()
	defer there.Close()
	l := &link{Client: &ssh.Client{Conn: conn}, wire: &wire{Conn: here}}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	l.endWork(watch{stop: func() {}}, conn.done, tick, false)
	if n := conn.closed.Load(); n != 1 {
		t.Errorf("a connection was ended %d times", n)
	}
}

// A few bytes now and then are no progress where the board does not say that the program runs.
func TestTrickleOfOutput(t *testing.T) {
	a := hostileBoard(t, sshtest.Conversation{Exec: func(ch ssh.Channel, _ string) {
		for _, err := ch.Write([]byte("x")); err == nil; _, err = ch.Write([]byte("x")) {
			time.Sleep(100 * time.Millisecond)
		}
	}}.Serve)
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
	defer cancel()
	c, err := impatient(ctx, a, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Run(ctx, "mkdir", "/x"); !errors.Is(err, ErrSilent) {
		t.Errorf("Run = %v; want %v", err, ErrSilent)
	}
}
