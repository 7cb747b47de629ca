// Package uevent turns the kernel's messages into events of devices. It needs no udev,
// since sysfs has what udev adds.
package uevent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Event is a change of a device.
type Event struct {
	Action    string // add, remove, change, move, bind, unbind, online or offline
	Path      string // below /sys
	Subsystem string // block, usb, tty, ...
}

const (
	maxBytes = 8 << 10 // the kernel's own limit is 2 KiB
	maxKeys  = 256     // and 64
	group    = 1       // the kernel's; udev sends to group 2
)

// Parse parses a message: "add@/devices/...", then KEY=VALUE, each ended by a zero
// byte.
func Parse(message []byte) (Event, error) {
	if len(message) > maxBytes {
		return Event{}, fmt.Errorf("kernel event of %d bytes: more than %d, which none has", len(message), maxBytes)
	}
	fields := strings.Split(strings.TrimSuffix(string(message), "\x00"), "\x00")
	action, path, ok := strings.Cut(fields[0], "@")
	if !ok || action == "" || !strings.HasPrefix(path, "/") {
		return Event{}, fmt.Errorf("kernel event begins with %.40q instead of an action and a path", fields[0])
	}
	if len(fields) > maxKeys {
		return Event{}, fmt.Errorf("kernel event with %d values: more than %d, which none has", len(fields), maxKeys)
	}
	e := Event{Action: action, Path: path}
	for _, f := range fields[1:] {
		key, value, ok := strings.Cut(f, "=")
		if !ok || key == "" {
			return Event{}, fmt.Errorf("kernel event with %.40q instead of a key and a value", f)
		}
		if key == "SUBSYSTEM" {
			e.Subsystem = value
		}
	}
	return e, nil
}

// Listener receives events. Close it after use.
type Listener struct{ f *os.File }

// Listen begins to receive events. In some containers the kernel refuses that, or sends
// nothing.
func Listen() (*Listener, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return nil, fmt.Errorf("listen for devices: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: group}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("listen for devices: %w", err)
	}
	return &Listener{f: os.NewFile(uintptr(fd), "kernel events")}, nil
}

// Close ends listening.
func (l *Listener) Close() error { return l.f.Close() }

// ErrLost means that more events came than were read.
var ErrLost = errors.New("kernel events were lost")

// Next waits for an event until ctx ends. It skips messages from other senders than the
// kernel, and invalid ones.
func (l *Listener) Next(ctx context.Context) (Event, error) {
	if err := l.f.SetReadDeadline(time.Time{}); err != nil {
		return Event{}, err
	}
	stop := context.AfterFunc(ctx, func() { _ = l.f.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	for {
		message, err := l.receiveMessage()
		switch {
		case ctx.Err() != nil:
			return Event{}, context.Cause(ctx)
		case errors.Is(err, unix.ENOBUFS):
			return Event{}, ErrLost
		case err != nil:
			return Event{}, fmt.Errorf("listen for devices: %w", err)
		}
		if e, err := Parse(message); err == nil {
			return e, nil
		}
	}
}

// receiveMessage returns nil for a message that did not come from the kernel.
func (l *Listener) receiveMessage() ([]byte, error) {
	raw, err := l.f.SyscallConn()
	if err != nil {
		return nil, err
	}
	p := make([]byte, maxBytes)
	var n int
	var from unix.Sockaddr
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		n, from, failed = unix.Recvfrom(int(fd), p, 0)
		return !errors.Is(failed, unix.EAGAIN)
	})
	if err = errors.Join(err, failed); err != nil {
		return nil, err
	}
	if sender, ok := from.(*unix.SockaddrNetlink); !ok || sender.Pid != 0 {
		return nil, nil
	}
	return p[:n], nil
}
