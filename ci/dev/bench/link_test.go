package bench

import (
	"context"
	"net"
	"os"
	"testing"
	"time"
)

// Without the delay of the link every figure would be wrong.
func TestLink(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a network namespace needs root; run the tests as root")
	}
	const delay = 30 * time.Millisecond
	line, err := newLink(t.Context(), delay)
	if err != nil {
		t.Skipf("no two namespaces with a tun device each: %v", err)
	}
	defer line.close()
	took, err := connectOver(t, line)
	if err != nil || took < 2*delay {
		t.Errorf("to connect took %s, %v; want there and back in at least %s", took, err, 2*delay)
	}
	if n := line.carried.Load(); n < 60 {
		t.Errorf("the line carried %d bytes for a connection; want two packets at least", n)
	}
}

func TestPlainLink(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a network namespace needs root; run the tests as root")
	}
	line, err := newPlainLink(t.Context())
	if err != nil {
		t.Skipf("no two namespaces with a veth between them: %v", err)
	}
	defer line.close()
	if _, err := connectOver(t, line); err != nil {
		t.Error(err)
	}
}

// connectOver measures how long a connection from the client to the server takes.
func connectOver(t *testing.T, line *link) (took time.Duration, err error) {
	t.Helper()
	var server net.Listener
	err = line.server.runOnThread(func() (err error) {
		server, err = net.Listen("tcp", net.JoinHostPort(serverAddress, "0"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	err = line.client.runOnThread(func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", server.Addr().String())
		took = time.Since(began)
		if err != nil {
			return err
		}
		return conn.Close()
	})
	return took, err
}
