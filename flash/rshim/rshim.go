// Package rshim pushes boot streams to BlueField DPUs through the driver's device
// files, on this machine or over SSH, and follows the DPU's own messages until they say
// what came of it. What is in a stream is bfb's.
//
// The driver's folder of a DPU, /dev/rshim0, holds boot, which resets the DPU when it is
// opened and hands on what is written to it, and misc, which shows and takes settings
// and shows the DPU's messages.
package rshim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"slipway/flash/target"
)

// Port is one DPU's rshim.
type Port struct {
	name string // as the user calls it
	dir  string // on the machine that has it
	wire wire
	conn *target.Conn // nil: on this machine
	held *os.File     // what Hold has locked
	seen *Misc        // by Ready
}

// wire is a way to the driver's files. Each of its methods opens a file and closes it.
type wire interface {
	// read returns the misc file.
	read(ctx context.Context) ([]byte, error)
	// set writes one setting to the misc file.
	set(ctx context.Context, key, value string) error
	// push opens boot, writes the whole stream, and closes it.
	push(ctx context.Context, s *stream) error
}

// remote is user@host:/dev/rshim0, with a host as target takes it.
var remote = regexp.MustCompile(`^(.+):(/dev/rshim[0-9]+)/?$`)

var local = regexp.MustCompile(`^/dev/rshim[0-9]+/?$`)

// Is says whether a name is that of an rshim, here or elsewhere.
func Is(name string) bool { return local.MatchString(name) || remote.MatchString(name) }

// Open finds an rshim. Nothing is written to it.
func Open(ctx context.Context, name string) (*Port, error) {
	m := remote.FindStringSubmatch(name)
	if m == nil {
		return At(name), nil
	}
	conn, err := target.Reach(ctx, m[1])
	if err != nil {
		return nil, err
	}
	return Over(conn, m[2]), nil
}

// At is the rshim whose files are in a folder of this machine.
func At(dir string) *Port {
	dir = filepath.Clean(dir)
	return &Port{name: dir, dir: dir, wire: files{dir}}
}

// Over is the rshim in a folder of the machine at the other end of a connection, which
// Close then ends.
func Over(conn *target.Conn, dir string) *Port {
	return &Port{name: conn.Address().String() + ":" + dir, dir: dir, wire: far{conn, dir}, conn: conn}
}

// Close ends the connection to another machine, and lets go of what Hold has locked.
func (p *Port) Close() error {
	p.letGo()
	if p.conn == nil {
		return nil
	}
	return p.conn.Close()
}

func (p *Port) letGo() {
	if p.held != nil {
		p.held.Close() // it was only locked
		p.held = nil
	}
}

// Hold keeps other programs of ours on this machine off the DPU until Close. The driver
// itself lets one push end another's installation, and gives each message to whoever reads
// it first. It is the folder that is locked: opening boot would reset the DPU.
func (p *Port) Hold() error {
	if p.conn != nil || p.held != nil {
		return nil
	}
	f, err := os.Open(p.dir)
	if err != nil {
		return p.explain("", named(err))
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return fmt.Errorf("%s: %w", p.dir, errHeld)
		}
		return fmt.Errorf("lock %s: %w", p.dir, err)
	}
	p.held = f
	return nil
}

var errHeld = errors.New("another flash or rshim command is at work on this DPU; wait for it")

func (p *Port) path(file string) string { return path.Join(p.dir, file) }

// miscLimit is how long the driver may take to answer: it asks the DPU, waits for
// a semaphore of it for 3 s, and has one second for its peer.
const miscLimit = 30 * time.Second

// Misc reads the settings.
func (p *Port) Misc(ctx context.Context) (Misc, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, miscLimit, fmt.Errorf("the rshim driver did not answer within %v; restart it: systemctl restart rshim", miscLimit))
	defer cancel()
	text, err := p.wire.read(ctx)
	if err != nil {
		return Misc{}, p.explain("misc", err)
	}
	m, err := parseMisc(text)
	if err != nil {
		return Misc{}, fmt.Errorf("%s: %w", p.path("misc"), err)
	}
	return m, nil
}

// Ready reads the settings and refuses a DPU that no stream can be pushed to now, and,
// from its second call on, one that is not the first one's.
func (p *Port) Ready(ctx context.Context) (Misc, error) {
	m, err := p.Misc(ctx)
	if err != nil {
		return m, err
	}
	if err := m.same(p.seen); err != nil {
		return m, err
	}
	p.seen = &m
	return m, m.refusal(p)
}

func (p *Port) set(ctx context.Context, key, value string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, miscLimit, fmt.Errorf("the rshim driver did not take %s within %v; restart it: systemctl restart rshim", key, miscLimit))
	defer cancel()
	if err := p.wire.set(ctx, key, value); err != nil {
		return fmt.Errorf("set %s: %w", key, p.explain("misc", err))
	}
	return nil
}

// Reset restarts the DPU, as its reset button would.
func (p *Port) Reset(ctx context.Context) error { return p.set(ctx, "SW_RESET", "1") }

// Names lists the rshims of this machine.
func Names() []string {
	found, _ := filepath.Glob("/dev/rshim*/misc") // the pattern is well-formed
	number := func(dir string) int {
		n, _ := strconv.Atoi(strings.TrimPrefix(dir, "/dev/rshim")) // those that have none are left out
		return n
	}
	var names []string
	for _, f := range found {
		if dir := filepath.Dir(f); local.MatchString(dir) {
			names = append(names, dir)
		}
	}
	slices.SortFunc(names, func(a, b string) int { return number(a) - number(b) })
	return names
}

// What the driver says no with.
var (
	errMissing = errors.New("no such device")
	errBusy    = errors.New("device is busy")
	errLocked  = errors.New("operation not permitted")
	errDenied  = errors.New("permission denied")
	errInvalid = errors.New("invalid argument")
	errTimeout = errors.New("timed out")
	errGone    = errors.New("device is gone")
	errStuck   = errors.New("the push is stuck")
	errDeaf    = errors.New("the rshim driver does not react\n  next: systemctl restart rshim")
)

// atOpen tells what the driver says when boot is opened, before it resets the DPU.
func atOpen(err error) bool {
	return slices.ContainsFunc([]error{errMissing, errBusy, errLocked, errDenied, errInvalid}, func(e error) bool { return errors.Is(err, e) })
}

// explain says what a failure means here and what comes next.
func (p *Port) explain(file string, err error) error {
	name := p.path(file)
	var next string
	switch {
	case errors.Is(err, errMissing) || errors.Is(err, errGone):
		next = "is there an rshim driver, and does it see the DPU? systemctl restart rshim; ls -d /dev/rshim*"
	case errors.Is(err, errBusy):
		next = "another program is pushing a stream to this DPU (bfb-install?); wait for it, or find it: fuser -v " + name
	case errors.Is(err, errLocked):
		next = "the DPU is locked and takes nothing from this host; push from its BMC, or let mlxprivhost on the DPU lift the lock"
	case errors.Is(err, errDenied):
		next = "only root may; use sudo, or log in as root"
	case errors.Is(err, errInvalid) && file == "boot":
		next = "the driver has let go of the DPU; if no other host uses it: echo 'DROP_MODE 0' > " + p.path("misc")
	case errors.Is(err, errInvalid):
		next = "this driver does not know the setting; update it"
	case errors.Is(err, errDeaf):
		return fmt.Errorf("%s: %w", name, err)
	case errors.Is(err, errTimeout):
		next = "the DPU took no data for the driver's BOOT_TIMEOUT, so its boot has stopped; its last messages say where, and a power cycle of the host may help"
	case errors.Is(err, errStuck):
		next = "restart the driver: systemctl restart rshim; if the next push is stuck too, switch the host off and on"
	default:
		return fmt.Errorf("%s: %w", name, err)
	}
	return fmt.Errorf("%s: %w; %s", name, err, next)
}
