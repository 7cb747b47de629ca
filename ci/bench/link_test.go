package bench

import (
	"context"
	"net"
	"os"
	"testing"
	"time"
)

// A line that does not delay would make every figure behind it wrong.
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
	var server net.Listener
	err = line.server.in(func() (err error) {
		server, err = net.Listen("tcp", net.JoinHostPort(serverAddress, "0"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	var took time.Duration
	err = line.client.in(func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		began := time.Now()
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", server.Addr().String())
		took = time.Since(began)
		if err != nil {
			return err
		}
		return conn.Close()
	})
	if err != nil || took < 2*delay || took > 20*delay {
		t.Errorf("to connect took %s, %v; want there and back in at least %s", took, err, 2*delay)
	}
}
