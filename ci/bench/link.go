package bench

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"slipway/layers/engine"
)

// link is a line between two network namespaces on which every packet takes a
// while. Not every kernel has netem; a tun device at each end and this process
// between them do the same.
type link struct{ server, client *namespace }

// The addresses of the ends, which are in use nowhere else: the namespaces have no
// other line.
const (
	serverAddress = "192.0.2.1"
	clientAddress = "192.0.2.2"
)

// newLink makes a line on which a packet takes delay, in either direction.
func newLink(ctx context.Context, delay time.Duration) (*link, error) {
	server, err := newNamespace(ctx, serverAddress, clientAddress)
	if err != nil {
		return nil, err
	}
	client, err := newNamespace(ctx, clientAddress, serverAddress)
	if err != nil {
		server.close()
		return nil, err
	}
	go carry(server.tun, client.tun, delay)
	go carry(client.tun, server.tun, delay)
	return &link{server, client}, nil
}

func (l *link) close() {
	l.server.close()
	l.client.close()
}

// carry takes packets from one end to the other until an end is closed.
func carry(from, to *os.File, delay time.Duration) {
	type packet struct {
		due  time.Time
		data []byte
	}
	underway := make(chan packet, 1<<16)
	go func() {
		defer close(underway)
		for {
			data := make([]byte, 2048)
			n, err := from.Read(data)
			if err != nil {
				return
			}
			underway <- packet{time.Now().Add(delay), data[:n]}
		}
	}()
	for p := range underway {
		time.Sleep(time.Until(p.due))
		if _, err := to.Write(p.data); err != nil {
			return
		}
	}
}

// namespace is a thread in a network namespace of its own: programs that are
// started in it are there too.
type namespace struct {
	tun  *os.File
	work chan func()
}

func newNamespace(ctx context.Context, own, other string) (*namespace, error) {
	n := &namespace{work: make(chan func())}
	ready := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with its namespace
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			ready <- fmt.Errorf("a network namespace needs root: %w", err)
			return
		}
		ready <- n.connect(ctx, own, other)
		for work := range n.work {
			work()
		}
	}()
	if err := <-ready; err != nil {
		n.close()
		return nil, err
	}
	return n, nil
}

func (n *namespace) close() {
	close(n.work)
	if n.tun != nil {
		n.tun.Close()
	}
}

// in calls work on the namespace's thread.
func (n *namespace) in(work func() error) error {
	result := make(chan error, 1)
	n.work <- func() { result <- work() }
	return <-result
}

func (n *namespace) connect(ctx context.Context, own, other string) error {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("/dev/net/tun (modprobe tun): %w", err)
	}
	request, err := unix.NewIfreq("delayed")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		unix.Close(fd)
		return fmt.Errorf("make a tun device: %w", err)
	}
	n.tun = os.NewFile(uintptr(fd), "/dev/net/tun")
	for _, args := range [][]string{
		{"link", "set", "lo", "up"},
		{"address", "add", own, "peer", other, "dev", "delayed"},
		{"link", "set", "delayed", "mtu", "1500", "txqueuelen", "10000", "up"},
	} {
		if err := engine.Run(ctx, engine.Command{Argv: append([]string{"ip"}, args...)}); err != nil {
			return err
		}
	}
	return nil
}
