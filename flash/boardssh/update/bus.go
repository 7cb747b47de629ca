package update

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/godbus/dbus/v5"

	"slipway/flash/boardssh"
	"slipway/layers/plaintext"
)

// These limits are for what a board's D-Bus sends. RAUC's longest message lists its slots.
// In an installation of hours it sends less than a megabyte.
const (
	maxGreetingBytes = 16 << 10
	maxMessageBytes  = 256 << 10
	maxHeaderBytes   = 16 << 10
	maxBusBytes      = 32 << 20
)

var errBusLimit = errors.New("its D-Bus says more than a D-Bus would")

// limitedConn is a D-Bus connection with the limits above. The D-Bus library allocates the length
// that a message announces, before it has the bytes.
type limitedConn struct {
	net.Conn
	framed  atomic.Bool // the greeting is over
	total   int
	pending []byte // the first bytes of a message, not yet returned by Read
	left    int    // bytes of the message after those
}

// Write writes p to the board. Its BEGIN ends the greeting; from then on Read checks messages.
func (g *limitedConn) Write(p []byte) (int, error) {
	if bytes.HasPrefix(p, []byte("BEGIN")) {
		g.framed.Store(true)
	}
	return g.Conn.Write(p)
}

// Read reads from the board. After the greeting it checks the head of each message. It returns
// errBusLimit if the board exceeds a limit.
func (g *limitedConn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if !g.framed.Load() {
		n, err := g.Conn.Read(p)
		if g.total += n; g.total > maxGreetingBytes {
			return 0, errBusLimit
		}
		return n, err
	}
	if len(g.pending) == 0 && g.left == 0 {
		if err := g.readMessageHead(); err != nil {
			return 0, err
		}
	}
	if len(g.pending) > 0 {
		n := copy(p, g.pending)
		g.pending = g.pending[n:]
		return n, nil
	}
	n, err := g.Conn.Read(p[:min(len(p), g.left)])
	g.left -= n
	return n, err
}

// readMessageHead reads a message's first 16 bytes into g.pending, checks the lengths in them, and
// sets g.left.
func (g *limitedConn) readMessageHead() error {
	head := make([]byte, 16)
	if _, err := io.ReadFull(g.Conn, head); err != nil {
		return err
	}
	var order binary.ByteOrder = binary.LittleEndian
	switch head[0] {
	case 'l':
	case 'B':
		order = binary.BigEndian
	default:
		return fmt.Errorf("its D-Bus sent what is no message (it begins with %#02x)", head[0])
	}
	body, fields := order.Uint32(head[4:]), order.Uint32(head[12:])
	if body > maxMessageBytes || fields > maxHeaderBytes {
		return errBusLimit
	}
	g.pending, g.left = head, int((fields+7)/8*8+body)
	if g.total += len(head) + g.left; g.total > maxBusBytes {
		return errBusLimit
	}
	return nil
}

// bus is a connection to the board's D-Bus, through the SSH connection.
type bus struct {
	conn    *dbus.Conn
	signals *busSignals
}

// openBus connects to the D-Bus socket of the board. The caller closes the bus.
func openBus(ctx context.Context, c *boardssh.Conn, socket string) (*bus, error) {
	user, err := userID(ctx, c)
	if err != nil {
		return nil, err
	}
	var b *bus
	err = boardssh.Answer(ctx, startsLimit, "open the D-Bus of "+c.Address().Host, func(ctx context.Context) error {
		b, err = dialBus(ctx, c, socket, user)
		return err
	})
	if errors.Is(err, boardssh.ErrSilent) {
		err = fmt.Errorf("%w\nnext: systemctl status dbus rauc  # on the board", err)
	}
	return b, err
}

// dialBus connects to the board's D-Bus socket and logs in as user. ctx does not end the bus later.
func dialBus(ctx context.Context, c *boardssh.Conn, socket, user string) (*bus, error) {
	wire, err := c.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { wire.Close() })() // ends a blocked Read
	b, err := authenticateBus(&limitedConn{Conn: wire}, user)
	if err != nil {
		wire.Close()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, boardssh.BoardError("open the D-Bus of "+c.Address().Host, err)
	}
	return b, nil
}

// authenticateBus logs in to the D-Bus as user and starts to receive signals.
func authenticateBus(wire io.ReadWriteCloser, user string) (*bus, error) {
	n := &busSignals{changed: make(chan struct{}, 1)}
	conn, err := dbus.NewConn(wire, dbus.WithSignalHandler(n), dbus.WithHandler(noObjects{}))
	if err != nil {
		return nil, err
	}
	if err = conn.Auth([]dbus.Auth{dbus.AuthExternal(user)}); err == nil {
		err = conn.Hello()
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &bus{conn, n}, nil
}

func (b *bus) close() { b.conn.Close() }

// userID returns the user's number on the board (id -u), which D-Bus compares with the socket's.
func userID(ctx context.Context, c *boardssh.Conn) (string, error) {
	r, err := c.Ask(ctx, "id", "-u")
	if err != nil {
		return "", err
	}
	text := strings.TrimSpace(string(r.Stdout))
	if _, err := strconv.ParseUint(text, 10, 32); r.Status != 0 || err != nil {
		return "", fmt.Errorf("ask %s for the user's number (id -u): status %d: %s", c.Address().Host, r.Status, plaintext.OneLine(text))
	}
	return text, nil
}

// noObjects is a D-Bus handler without objects, so the board can call nothing on this machine.
type noObjects struct{}

func (noObjects) LookupObject(dbus.ObjectPath) (dbus.ServerObject, bool) { return nil, false }

// busSignals keeps only the last state from RAUC's signals. It has no queue, because a board may
// send signals faster than Slipway reads them.
type busSignals struct {
	changed chan struct{} // receives after a change

	mu        sync.Mutex
	percent   int
	text      string
	completed bool
	result    int32
	gone      bool // the service has left the bus
}

// DeliverSignal stores the progress, result or end of RAUC from a signal, and then wakes the reader
// of changed. It ignores other signals, which a board may send too.
func (n *busSignals) DeliverSignal(iface, name string, s *dbus.Signal) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch iface + "." + name {
	case raucInterface + ".Completed":
		var result int32
		if dbus.Store(s.Body, &result) != nil {
			return
		}
		n.completed, n.result = true, result
	case properties + ".PropertiesChanged":
		var of string
		var changed map[string]dbus.Variant
		if len(s.Body) < 2 || dbus.Store(s.Body[:2], &of, &changed) != nil || of != raucInterface {
			return
		}
		progress, ok := changed["Progress"]
		if !ok || !n.storeProgress(progress) {
			return
		}
	case busInterface + ".NameOwnerChanged":
		var who, before, after string
		if dbus.Store(s.Body, &who, &before, &after) != nil || who != raucName || after != "" {
			return
		}
		n.gone = true
	default:
		return
	}
	select {
	case n.changed <- struct{}{}:
	default: // an earlier change is still unread
	}
}

// storeProgress stores the percentage and text of RAUC's property Progress. It returns false for an
// invalid value or a lower percentage than before.
func (n *busSignals) storeProgress(v dbus.Variant) bool {
	var p struct {
		Percent int32
		Text    string
		Depth   int32
	}
	if dbus.Store([]any{v.Value()}, &p) != nil || p.Percent < int32(n.percent) || p.Percent > 100 {
		return false
	}
	n.percent, n.text = int(p.Percent), truncateText(plaintext.OneLine(p.Text), maxTextBytes)
	return true
}

// maxTextBytes limits a text from the board.
const maxTextBytes = 400

// truncateText returns s, or, if s has more than most bytes, its beginning of that length and "…".
func truncateText(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
