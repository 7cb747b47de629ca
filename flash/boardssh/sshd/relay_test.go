package sshd

import (
	"fmt"
	"io"
	"net"
	"testing"
)

// greeter says its word to whoever connects, and then waits for the end.
func greeter(t *testing.T, word string) (port int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				fmt.Fprint(c, word)
				_, _ = io.Copy(io.Discard, c)
				c.Close()
			}()
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}

func TestRelay(t *testing.T) {
	r, err := NewRelay()
	if err != nil {
		t.Fatal(err)
	}
	hear := func(want string) net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", r.Port()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		got := make([]byte, len(want))
		if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
			t.Fatalf("through the relay: %q, %v; want %q", got, err, want)
		}
		return c
	}
	r.SetTarget(greeter(t, "one"))
	first, second := hear("one"), hear("one")
	r.Cut()
	for _, c := range []net.Conn{first, second} {
		if n, err := c.Read(make([]byte, 1)); err == nil {
			t.Errorf("after the cut %d bytes came", n)
		}
	}
	r.SetTarget(greeter(t, "two"))
	third := hear("two")
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if _, err := third.Read(make([]byte, 1)); err == nil {
		t.Error("the relay was closed, and something comes")
	}
	if c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", r.Port())); err == nil {
		c.Close()
		t.Error("the relay was closed, and takes connections")
	}
}
