// Package rshim pushes boot streams to BlueField DPUs through the rshim driver's files,
// on this machine or over SSH. It follows the DPU's messages to the final one. In the
// driver's folder, such as /dev/rshim0, boot resets the DPU when opened, then takes the
// stream. misc has settings and messages. Package bfb handles a stream's content.
package rshim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"slipway/flash/boardssh"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// Port is one DPU's rshim.
type Port struct {
	name  string // the user's name for it
	dir   string // on the machine with the driver
	files driverFiles
	conn  *boardssh.Conn // nil: on this machine
	lock  *os.File       // the folder, locked by Hold
	first *Misc          // as CheckReady read it; nil before the first call
}

// driverFiles accesses the driver's files. Each method opens a file and closes it.
type driverFiles interface {
	// readMisc returns the misc file.
	readMisc(ctx context.Context) ([]byte, error)
	// writeSetting writes one setting to the misc file.
	writeSetting(ctx context.Context, key, value string) error
	// pushStream opens boot, writes the whole stream, and closes it.
	pushStream(ctx context.Context, s *stream) error
}

// remotePattern matches user@host:/dev/rshim0, with a host as target takes it.
var remotePattern = plaintext.Regexp(`^(.+):(/dev/rshim[0-9]+)/?$`)

var localPattern = plaintext.Regexp(`^/dev/rshim[0-9]+/?$`)

// Is reports whether name names an rshim, on this machine (/dev/rshim0) or a remote one.
func Is(name string) bool {
	return localPattern().MatchString(name) || remotePattern().MatchString(name)
}

// Open returns the rshim called name, and connects by SSH if it is remote. It reads nothing of it.
func Open(ctx context.Context, name string) (*Port, error) {
	m := remotePattern().FindStringSubmatch(name)
	if m == nil {
		return At(name), nil
	}
	conn, err := boardssh.Reach(ctx, m[1])
	if err != nil {
		return nil, err
	}
	return Over(conn, m[2]), nil
}

// At returns the rshim in a folder of this machine.
func At(dir string) *Port {
	dir = filepath.Clean(dir)
	return &Port{name: dir, dir: dir, files: localFolder{dir}}
}

// Over returns the rshim in a folder of another machine. Close ends the connection.
func Over(conn *boardssh.Conn, dir string) *Port {
	return &Port{name: conn.Address().String() + ":" + dir, dir: dir, files: remoteFolder{conn, dir}, conn: conn}
}

// Close closes the SSH connection, if there is one, and releases Hold's lock.
func (p *Port) Close() error {
	p.unlock()
	if p.conn == nil {
		return nil
	}
	return p.conn.Close()
}

// unlock releases Hold's lock, if it is held.
func (p *Port) unlock() {
	if p.lock != nil {
		p.lock.Close()
		p.lock = nil
	}
}

// Hold locks a local rshim's folder against other Slipway processes until Close. It locks no remote
// one. The driver lets one push end another, and gives each message to one reader.
func (p *Port) Hold() error {
	if p.conn != nil || p.lock != nil {
		return nil
	}
	f, err := os.Open(p.dir)
	if err != nil {
		return p.explainError("", driverError(err))
	}
	if err := localfile.TryLock(f); err != nil {
		f.Close()
		if errors.Is(err, localfile.ErrLocked) {
			err = fmt.Errorf("%s: %w", p.dir, errHeld)
		}
		return err
	}
	p.lock = f
	return nil
}

var errHeld = errors.New("another flash or rshim command is at work on this DPU; wait for it")

func (p *Port) filePath(file string) string { return path.Join(p.dir, file) }

// miscLimit is how long the driver may take to answer. It may wait 4 s for the DPU and its peer.
const miscLimit = 30 * time.Second

// Misc reads and parses the driver's misc file: settings and messages. It waits up to miscLimit.
func (p *Port) Misc(ctx context.Context) (Misc, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, miscLimit, fmt.Errorf("the rshim driver did not answer within %v; restart it: systemctl restart rshim", miscLimit))
	defer cancel()
	text, err := p.files.readMisc(ctx)
	if err != nil {
		return Misc{}, p.explainError("misc", err)
	}
	m, err := parseMisc(text)
	if err != nil {
		return Misc{}, fmt.Errorf("%s: %w", p.filePath("misc"), err)
	}
	return m, nil
}

// CheckReady reads the misc file. It refuses a DPU that takes no stream, or is not the last call's.
func (p *Port) CheckReady(ctx context.Context) (Misc, error) {
	m, err := p.Misc(ctx)
	if err != nil {
		return m, err
	}
	if err := m.checkSameDPU(p.first); err != nil {
		return m, err
	}
	p.first = &m
	return m, m.checkPushable(p)
}

// writeSetting writes a setting to the misc file. It waits up to miscLimit.
func (p *Port) writeSetting(ctx context.Context, key, value string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, miscLimit, fmt.Errorf("the rshim driver did not take %s within %v; restart it: systemctl restart rshim", key, miscLimit))
	defer cancel()
	if err := p.files.writeSetting(ctx, key, value); err != nil {
		return fmt.Errorf("set %s: %w", key, p.explainError("misc", err))
	}
	return nil
}

// Names lists the rshims of this machine as /dev/rshimN, by their numbers.
func Names() []string {
	found, _ := filepath.Glob("/dev/rshim*/misc") // the pattern is well-formed
	var names []string
	for _, f := range found {
		if dir := filepath.Dir(f); localPattern().MatchString(dir) {
			names = append(names, dir)
		}
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(len(a)-len(b), strings.Compare(a, b)) })
	return names
}

// The driver's errors, on this machine or another.
var (
	errMissing = errors.New("no such device")
	errBusy    = errors.New("device is busy")
	errLocked  = errors.New("operation not permitted")
	errDenied  = errors.New("permission denied")
	errInvalid = errors.New("invalid argument")
	errTimeout = errors.New("timed out")
	errGone    = errors.New("device is gone")
	errStuck   = errors.New("the push is stuck")
	errDeaf    = errors.New("the rshim driver does not react\nnext: systemctl restart rshim")
)

// failedAtOpen reports whether err is of opening boot, so that the DPU was not reset.
func failedAtOpen(err error) bool {
	return slices.ContainsFunc([]error{errMissing, errBusy, errLocked, errDenied, errInvalid}, func(e error) bool { return errors.Is(err, e) })
}

// explainError adds the file's name, the likely cause and the next step to a driver's error.
func (p *Port) explainError(file string, err error) error {
	name := p.filePath(file)
	var next string
	switch {
	case errors.Is(err, errMissing) || errors.Is(err, errGone):
		next = "no driver runs here, or it sees no DPU\nnext: systemctl restart rshim"
	case errors.Is(err, errBusy):
		next = "another program is pushing a stream to this DPU (bfb-install?); wait for it, or find it: fuser -v " + name
	case errors.Is(err, errLocked):
		next = "the DPU is locked and takes nothing from this host; push from its BMC, or let mlxprivhost on the DPU lift the lock"
	case errors.Is(err, errDenied):
		next = "only root may; use sudo, or log in as root"
	case errors.Is(err, errInvalid) && file == "boot":
		next = "the driver has let go of the DPU; if no other host uses it: echo 'DROP_MODE 0' > " + p.filePath("misc")
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
