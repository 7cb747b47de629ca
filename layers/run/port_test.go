package run

import (
	"fmt"
	"net"
	"os"
	"testing"
)

// A free port is below those that the kernel gives away, and can be listened on.
func TestFreePort(t *testing.T) {
	var first, last int
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		t.Skipf("the kernel does not say which ports it gives away: %v", err)
	}
	if _, err := fmt.Sscan(string(text), &first, &last); err != nil {
		t.Fatal(err)
	}
	seen := map[int]bool{}
	for range 20 {
		port, err := FreePort()
		if err != nil {
			t.Fatal(err)
		}
		if port >= first && port <= last {
			t.Errorf("FreePort = %d; the kernel gives away %d to %d", port, first, last)
		}
		if seen[port] {
			t.Errorf("FreePort = %d twice, while it is in use", port)
		}
		seen[port] = true
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
	}
}

// A name has a port of its own, as long as nothing else listens there.
func TestFreeFor(t *testing.T) {
	first, err := FreePortFor("a board")
	if err != nil {
		t.Fatal(err)
	}
	if again, err := FreePortFor("a board"); err != nil || again != first {
		t.Errorf("FreePortFor = %d, then %d, %v; want the same port", first, again, err)
	}
	if other, err := FreePortFor("another board"); err != nil || other == first {
		t.Errorf("FreePortFor of another name = %d, %v; want another port than %d", other, err, first)
	}
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", first))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if taken, err := FreePortFor("a board"); err != nil || taken == first {
		t.Errorf("FreePortFor = %d, %v; want another port than %d, which is taken", taken, err, first)
	}
}
