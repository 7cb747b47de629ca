package fleet

// The tests simulate hundreds of boards in one process. Each is an SSH server on an address
// of its own, with a real SFTP server and fixed answers to the commands that Slipway runs.
// Some of them fail, each in another manner. Package flash/boardssh/sshd tests with a real sshd
// instead.

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

	"slipway/flash/boardssh/sshd"
)

// boardFault is a defect of a board.
type boardFault string

// The faults.
const (
	faultNone     boardFault = "none"
	faultRefused  boardFault = "refused"  // nothing listens
	faultHangs    boardFault = "hangs"    // accepts the connection and sends nothing
	faultSlow     boardFault = "slow"     // an upload never ends
	faultOtherKey boardFault = "otherkey" // shows another host key than the pinned one
	faultNewKey   boardFault = "newkey"   // the inventory has no host key for it
	faultNoLogin  boardFault = "nologin"  // refuses every login
	faultFull     boardFault = "full"     // its disk is full
	faultDies     boardFault = "dies"     // closes all connections during an upload
	faultNotSSH   boardFault = "notssh"   // a web server answers
	faultNoisy    boardFault = "noisy"    // its shell prints at every login
	faultNoShell  boardFault = "noshell"  // a forced command runs nothing and ends with status 0
	faultDamaged  boardFault = "damaged"  // one byte of what it stores is wrong
	faultFails    boardFault = "fails"    // fails one of its checks
	faultBlinks   boardFault = "blinks"   // loses its connection once, when Slipway reads its serial
)

// allFaults are all faults.
var allFaults = []boardFault{faultRefused, faultHangs, faultSlow, faultOtherKey, faultNewKey, faultNoLogin, faultFull, faultDies, faultNotSSH, faultNoisy, faultNoShell, faultDamaged, faultFails}

// expectedKinds are the results that a run over a fleet must report, by fault.
var expectedKinds = map[boardFault]string{
	faultNone: "passed", faultRefused: "connection refused", faultHangs: "no answer", faultSlow: "too slow", faultOtherKey: "host key", faultNewKey: "unknown host key", faultNoLogin: "login refused",
	faultFull: "disk full", faultDies: "connection lost", faultNotSSH: "garbage for SSH", faultNoisy: "garbage on stdout", faultNoShell: "no shell", faultDamaged: "digest wrong", faultFails: "checks failed",
}

// ExpectedKind is the result that a run must report for a board with this fault.
func (f boardFault) ExpectedKind() string { return expectedKinds[f] }

// GetsFile reports whether a board with this fault gets a file under its final name.
func (f boardFault) GetsFile() bool { return f == faultNone || f == faultFails }

// boardName is the name of board number i in the inventory.
func boardName(i int) string { return fmt.Sprintf("board-%03d", i) }

// simulatedBoard is one simulated board.
type simulatedBoard struct {
	Name  string
	Fault boardFault

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

// simulatedFleet is a set of boards that are switched on.
type simulatedFleet struct {
	Boards    []*simulatedBoard
	Inventory string // file with every board, its key and its limit
	Suite     string // file with checks, which all boards pass except those that fail one

	login  ssh.PublicKey
	cancel context.CancelFunc
	all    sync.WaitGroup
	listen []net.Listener
}

// The files that startFleet writes.
const (
	inventoryName = "hosts.yml"
	suiteName     = "facts.yml"
)

// faultLimits are the time limits in the inventory, for boards that only a limit ends.
type faultLimits struct{ Hangs, Slow time.Duration }

// startFleet switches on one board for each of the faults, on loopback. It writes their files
// into dir. The suite has the given number of checks.
func startFleet(ctx context.Context, dir string, faults []boardFault, checks int, limits faultLimits) (*simulatedFleet, error) {
	ctx, cancel := context.WithCancel(ctx)
	f := &simulatedFleet{cancel: cancel, Inventory: filepath.Join(dir, inventoryName), Suite: filepath.Join(dir, suiteName)}
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

func (f *simulatedFleet) startBoards(ctx context.Context, faults []boardFault) error {
	for i, fault := range faults {
		b := &simulatedBoard{Name: boardName(i), Fault: fault, ctx: ctx, Slowed: make(chan struct{}), system: firstSystem(i)}
		b.disk = newDisk(b)
		var err error
		if b.key, err = newKey(); err != nil {
			return err
		}
		b.shown = b.key.PublicKey()
		if fault == faultOtherKey {
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
func (f *simulatedFleet) listenFor(b *simulatedBoard, i int) error {
	b.address = fmt.Sprintf("127.77.%d.%d", i/250, i%250+1)
	l, err := net.Listen("tcp", b.address+":0")
	if err != nil {
		return err
	}
	b.port = l.Addr().(*net.TCPAddr).Port
	if b.Fault == faultRefused {
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
func (f *simulatedFleet) Stop() {
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
func (f *simulatedFleet) inventoryYAML(identity string, limits faultLimits) string {
	var b strings.Builder
	fmt.Fprintf(&b, "all:\n  vars:\n    ansible_user: root\n    ansible_ssh_private_key_file: %s\n  hosts:\n", identity)
	for _, board := range f.Boards {
		key := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(board.shown)))
		fmt.Fprintf(&b, "    %s:\n      ansible_host: %s\n      ansible_port: %d\n", board.Name, board.address, board.port)
		if board.Fault != faultNewKey {
			fmt.Fprintf(&b, "      slipway_host_key: %s\n", key)
		}
		if limit := map[boardFault]time.Duration{faultHangs: limits.Hangs, faultSlow: limits.Slow}[board.Fault]; limit > 0 {
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
func (f *simulatedFleet) BoardsWithFile(name, digest string) map[string]bool {
	holds := map[string]bool{}
	for _, b := range f.Boards {
		if file := b.disk.findFile(name); file != nil && file.sha256Hex() == digest {
			holds[b.Name] = true
		}
	}
	return holds
}

// CountFiles returns how often each board got a file under its final name.
func (f *simulatedFleet) CountFiles(name string) map[string]int {
	took := map[string]int{}
	for _, b := range f.Boards {
		b.disk.mu.Lock()
		took[b.Name] = b.disk.named[name]
		b.disk.mu.Unlock()
	}
	return took
}
