package boardssh

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"slipway/flash/boardssh/sshtest"
)

func TestListen(t *testing.T) {
	c := connect(t)
	l, err := c.Listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		io.Copy(conn, conn)
	}()
	// The server is on this machine, so its loopback address is ours.
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "over"); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 4)
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != "over" {
		t.Errorf("through the listener came %q, %v; want %q", got, err, "over")
	}
	if err := l.Close(); err != nil {
		t.Errorf("Close() = %v", err)
	}
	if conn, err := net.Dial("tcp", l.Addr().String()); err == nil {
		conn.Close()
		t.Error("the port is still open after Close")
	}
}

// A client that says nothing can be given up, and one that then talks is heard.
func TestListenDeadline(t *testing.T) {
	l, err := connect(t).Listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 4)
	if _, err := conn.Read(got); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Read() = %v; want %v", err, os.ErrDeadlineExceeded)
	}
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(client, "over"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != "over" {
		t.Errorf("Read() = %q, %v; want %q", got, err, "over")
	}
}

func TestListenRefused(t *testing.T) {
	for _, setting := range []string{"AllowTcpForwarding no", "AllowTcpForwarding local", "DisableForwarding yes"} {
		if l, err := connect(t, setting).Listen(t.Context()); !errors.Is(err, ErrForwarding) {
			t.Errorf("with %q: Listen() = %v, %v; want %v", setting, l, err, ErrForwarding)
		}
	}
}

func TestListenEnds(t *testing.T) {
	c := connect(t)
	l, err := c.Listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if conn, err := l.Accept(); err == nil {
		conn.Close()
		t.Error("Accept() worked on a closed connection")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := connect(t).Listen(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Listen() = %v; want %v", err, context.Canceled)
	}
}

func TestRedial(t *testing.T) {
	c := connect(t)
	link, err := c.currentLink()
	if err != nil {
		t.Fatal(err)
	}
	link.Close()
	<-link.gone
	if _, err := c.Run(t.Context(), "true"); err == nil {
		t.Fatal("a lost connection runs commands")
	}
	if err := c.Redial(t.Context(), sshtest.LongEnough); err != nil {
		t.Fatal(err)
	}
	if r, err := c.Run(t.Context(), "true"); err != nil || r.Status != 0 {
		t.Errorf("Run() = %v, %v after Redial", r, err)
	}
}
