// Package fleettest simulates hundreds of boards in one process. Each is an SSH server on
// an address of its own, with a real SFTP server and fixed answers to the commands that
// Slipway runs. Some of them fail, each in another manner. Package flash/target/sshd tests
// with a real sshd instead.
package fleettest

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"slipway/flash/target/sshd"
)

// Fault is a defect of a board.
type Fault string

// The faults.
const (
	None     Fault = "none"
	Refused  Fault = "refused"  // nothing listens
	Hangs    Fault = "hangs"    // accepts the connection and sends nothing
	Slow     Fault = "slow"     // an upload never ends
	OtherKey Fault = "otherkey" // shows another host key than the pinned one
	NewKey   Fault = "newkey"   // the inventory has no host key for it
	NoLogin  Fault = "nologin"  // refuses every login
	Full     Fault = "full"     // its disk is full
	Dies     Fault = "dies"     // closes all connections during an upload
	NotSSH   Fault = "notssh"   // a web server answers
	Noisy    Fault = "noisy"    // its shell prints at every login
	NoShell  Fault = "noshell"  // a forced command runs nothing and ends with status 0
	Damaged  Fault = "damaged"  // one byte of what it stores is wrong
	Fails    Fault = "fails"    // fails one of its checks
	Blinks   Fault = "blinks"   // loses its connection once, when Slipway reads its serial
)

// Faults are all faults.
var Faults = []Fault{Refused, Hangs, Slow, OtherKey, NewKey, NoLogin, Full, Dies, NotSSH, Noisy, NoShell, Damaged, Fails}

// expectedKinds are the results that a run over a fleet must report, by fault.
var expectedKinds = map[Fault]string{
	None: "passed", Refused: "connection refused", Hangs: "no answer", Slow: "too slow", OtherKey: "host key", NewKey: "unknown host key", NoLogin: "login refused",
	Full: "disk full", Dies: "connection lost", NotSSH: "garbage for SSH", Noisy: "garbage on stdout", NoShell: "no shell", Damaged: "digest wrong", Fails: "checks failed",
}

// ExpectedKind is the result that a run must report for a board with this fault.
func (f Fault) ExpectedKind() string { return expectedKinds[f] }

// GetsFile reports whether a board with this fault gets a file under its final name.
func (f Fault) GetsFile() bool { return f == None || f == Fails }

// BoardName is the name of board number i in the inventory.
func BoardName(i int) string { return fmt.Sprintf("board-%03d", i) }

// Board is one simulated board.
type Board struct {
	Name  string
	Fault Fault

	address string
	port    int
	key     ssh.Signer
	shown   ssh.PublicKey // the key that the inventory pins
	disk    *disk
	ctx     context.Context

	Slowed chan struct{} // closed when a slow board becomes slow

	once    sync.Once
	mu      sync.Mutex
	blinked bool
	written int
	conns   []net.Conn
	system  system
}

// Fleet is a set of boards that are switched on.
type Fleet struct {
	Boards    []*Board
	Inventory string // file with every board, its key and its limit
	Suite     string // file with checks, which all boards pass except those that fail one

	login  ssh.PublicKey
	cancel context.CancelFunc
	all    sync.WaitGroup
	listen []net.Listener
}

// The files that Start writes.
const (
	InventoryName = "hosts.yml"
	SuiteName     = "facts.yml"
)

// Limits are the time limits in the inventory, for boards that only a limit ends.
type Limits struct{ Hangs, Slow time.Duration }

// Start switches on one board for each of the faults, on loopback. It writes their files
// into dir. The suite has the given number of checks.
func Start(ctx context.Context, dir string, faults []Fault, checks int, limits Limits) (*Fleet, error) {
	ctx, cancel := context.WithCancel(ctx)
	f := &Fleet{cancel: cancel, Inventory: filepath.Join(dir, InventoryName), Suite: filepath.Join(dir, SuiteName)}
	var err error
	identity := filepath.Join(dir, "id")
	if f.login, err = sshd.WriteKey(identity); err == nil {
		err = f.startBoards(ctx, faults)
	}
	if err == nil {
		err = errors.Join(
			os.WriteFile(f.Inventory, []byte(f.inventoryYAML(identity, limits)), 0o600),
			os.WriteFile(f.Suite, []byte(suiteYAML(checks)), 0o600))
	}
	if err != nil {
		f.Stop()
		return nil, err
	}
	return f, nil
}

func (f *Fleet) startBoards(ctx context.Context, faults []Fault) error {
	for i, fault := range faults {
		b := &Board{Name: BoardName(i), Fault: fault, ctx: ctx, Slowed: make(chan struct{}), system: firstSystem(i)}
		b.disk = newDisk(b)
		var err error
		if b.key, err = newKey(); err != nil {
			return err
		}
		b.shown = b.key.PublicKey()
		if fault == OtherKey {
			other, err := newKey()
			if err != nil {
				return err
			}
			b.shown = other.PublicKey()
		}
		if err := f.listenFor(b, i); err != nil {
			return err
		}
		f.Boards = append(f.Boards, b)
	}
	return nil
}

func newKey() (ssh.Signer, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	return ssh.NewSignerFromKey(key)
}

// listenFor opens an address for a board. A board that refuses connections closes it again.
func (f *Fleet) listenFor(b *Board, i int) error {
	b.address = fmt.Sprintf("127.77.%d.%d", i/250, i%250+1)
	l, err := net.Listen("tcp", b.address+":0")
	if err != nil {
		return err
	}
	b.port = l.Addr().(*net.TCPAddr).Port
	if b.Fault == Refused {
		return l.Close()
	}
	f.listen = append(f.listen, l)
	f.all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			f.all.Go(func() { b.serveConn(conn, f.login) })
		}
	})
	return nil
}

// Stop switches all boards off.
func (f *Fleet) Stop() {
	f.cancel()
	for _, l := range f.listen {
		l.Close()
	}
	for _, b := range f.Boards {
		b.closeConns()
	}
	f.all.Wait()
}

// inventoryYAML returns the fleet as an Ansible inventory.
func (f *Fleet) inventoryYAML(identity string, limits Limits) string {
	var b strings.Builder
	fmt.Fprintf(&b, "all:\n  vars:\n    ansible_user: root\n    ansible_ssh_private_key_file: %s\n  hosts:\n", identity)
	for _, board := range f.Boards {
		key := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(board.shown)))
		fmt.Fprintf(&b, "    %s:\n      ansible_host: %s\n      ansible_port: %d\n", board.Name, board.address, board.port)
		if board.Fault != NewKey {
			fmt.Fprintf(&b, "      slipway_host_key: %s\n", key)
		}
		if limit := map[Fault]time.Duration{Hangs: limits.Hangs, Slow: limits.Slow}[board.Fault]; limit > 0 {
			fmt.Fprintf(&b, "      slipway_limit: %s\n", limit)
		}
	}
	return b.String()
}

// suiteYAML returns a suite that checks files which every board has.
func suiteYAML(checks int) string {
	var b strings.Builder
	b.WriteString("command:\n")
	for i := range checks {
		fmt.Fprintf(&b, "  cat %s:\n    stdout: [%q]\n", factFile(i), fact(i))
	}
	return b.String()
}

func factFile(i int) string { return fmt.Sprintf("/etc/slipway/fact-%02d", i) }
func fact(i int) string     { return fmt.Sprintf("fact %02d holds", i) }

// BoardsWithFile returns the boards that have a complete file with this name and digest.
func (f *Fleet) BoardsWithFile(name, digest string) map[string]bool {
	holds := map[string]bool{}
	for _, b := range f.Boards {
		if file := b.disk.findFile(name); file != nil && file.sha256Hex() == digest {
			holds[b.Name] = true
		}
	}
	return holds
}

// CountFiles returns how often each board got a file under its final name.
func (f *Fleet) CountFiles(name string) map[string]int {
	took := map[string]int{}
	for _, b := range f.Boards {
		b.disk.mu.Lock()
		took[b.Name] = b.disk.named[name]
		b.disk.mu.Unlock()
	}
	return took
}
