package bench

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"slipway/layers/run"
)

// link is a connection between two network namespaces. A slow one delays each packet. Not
// every kernel has netem, so a tun device at each end and this process between them do the
// same.
type link struct {
	server, client *namespace

	carried atomic.Int64 // bytes of packets in both directions, where this process carries them
}

// The addresses of the ends. The namespaces have no other connection, so nothing else
// uses them.
const (
	serverAddress = "192.0.2.1"
	clientAddress = "192.0.2.2"
)

// newLink makes a link that delays packets in either direction.
func newLink(ctx context.Context, delay time.Duration) (*link, error) {
	return newSlowLink(ctx, delay, 1500)
}

// newSlowLink is newLink with packets of another size. Large ones cost this process less.
func newSlowLink(ctx context.Context, delay time.Duration, mtu int) (*link, error) {
	l, err := newEnds(
		func(n *namespace) error { return n.makeTun(ctx, serverAddress, clientAddress, mtu) },
		func(n *namespace) error { return n.makeTun(ctx, clientAddress, serverAddress, mtu) },
	)
	if err != nil {
		return nil, err
	}
	go l.carryPackets(l.server.tun, l.client.tun, delay, mtu)
	go l.carryPackets(l.client.tun, l.server.tun, delay, mtu)
	return l, nil
}

// newPlainLink makes a link that is as fast as the kernel.
func newPlainLink(ctx context.Context) (*link, error) {
	l, err := newEnds(func(n *namespace) error { return n.enableLoopback(ctx) }, func(n *namespace) error { return n.enableLoopback(ctx) })
	if err != nil {
		return nil, err
	}
	err = l.client.runOnThread(func() error {
		return runIP(ctx, "link", "add", "line", "type", "veth", "peer", "name", "line", "netns", strconv.Itoa(l.server.thread))
	})
	for own, n := range map[string]*namespace{serverAddress: l.server, clientAddress: l.client} {
		if err == nil {
			err = n.runOnThread(func() error { return runIP(ctx, "address", "add", own+"/24", "dev", "line") })
		}
		if err == nil {
			err = n.runOnThread(func() error { return runIP(ctx, "link", "set", "line", "up") })
		}
	}
	if err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func newEnds(makeServer, makeClient func(*namespace) error) (*link, error) {
	server, err := newNamespace(makeServer)
	if err != nil {
		return nil, err
	}
	client, err := newNamespace(makeClient)
	if err != nil {
		server.close()
		return nil, err
	}
	return &link{server: server, client: client}, nil
}

func (l *link) close() {
	l.server.close()
	l.client.close()
}

// carryPackets copies packets from one end to the other until an end is closed.
func (l *link) carryPackets(from, to *os.File, delay time.Duration, mtu int) {
	type packet struct {
		due  time.Time
		data *[]byte
		n    int
	}
	underway := make(chan packet, 1<<16)
	empty := sync.Pool{New: func() any { data := make([]byte, mtu); return &data }}
	go func() {
		defer close(underway)
		for {
			data := empty.Get().(*[]byte)
			n, err := from.Read(*data)
			if err != nil {
				return
			}
			underway <- packet{time.Now().Add(delay), data, n}
		}
	}()
	for p := range underway {
		time.Sleep(time.Until(p.due))
		l.carried.Add(int64(p.n)) // before its reader can load the sum
		if _, err := to.Write((*p.data)[:p.n]); err != nil {
			return
		}
		empty.Put(p.data)
	}
}

// namespace is a thread in a network namespace of its own. Programs that it starts run
// there too.
type namespace struct {
	thread int
	tun    *os.File
	work   chan func()
}

func newNamespace(connect func(*namespace) error) (*namespace, error) {
	n := &namespace{work: make(chan func())}
	ready := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // without an unlock: the thread ends with its namespace
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			ready <- fmt.Errorf("a network namespace needs root: %w", err)
			return
		}
		n.thread = unix.Gettid()
		ready <- connect(n)
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

// runOnThread calls work on the namespace's thread.
func (n *namespace) runOnThread(work func() error) error {
	result := make(chan error, 1)
	n.work <- func() { result <- work() }
	return <-result
}

func (n *namespace) enableLoopback(ctx context.Context) error {
	return runIP(ctx, "link", "set", "lo", "up")
}

func (n *namespace) makeTun(ctx context.Context, own, other string, mtu int) error {
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
		{"link", "set", "delayed", "mtu", strconv.Itoa(mtu), "txqueuelen", "10000", "up"},
	} {
		if err := runIP(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

func runIP(ctx context.Context, args ...string) error {
	return run.Run(ctx, run.Command{Argv: append([]string{"ip"}, args...)})
}
