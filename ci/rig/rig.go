// Package rig runs a board made of namespaces on this machine. It has a userland of
// Debian packages, drivers and daemons built from this clone, network interfaces for a
// DPU's ports, machines behind them, and a real SSH server. All of it is software, and
// ends with the process that started it. Package ci checks what it can prove.
package rig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"slipway/flash/boardssh"
	"slipway/flash/boardssh/sshd"
	"slipway/images"
	"slipway/layers/localfile"
)

// Rig is a running rig.
type Rig struct {
	Address boardssh.Address

	dir    string
	lock   *os.File
	spaces *namespaces
	relay  *sshd.Relay
}

// CheckRoot returns an error if this process is not root.
func CheckRoot() error {
	if os.Getuid() != 0 {
		return errors.New("a rig is made of namespaces, mounts and network interfaces: run this as root")
	}
	return nil
}

// Start starts a rig with the layers as its root: namespaces, network, SSH server, forwarded port.
// It locks dir, the board's folder, and writes rig.json. An error stops it, ctx's end does not.
func Start(ctx context.Context, spec images.Spec, dir string, layers []string) (r *Rig, err error) {
	dir, err = filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	r = &Rig{dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Stop())
		}
	}()
	if r.lock, err = takeLock(dir); err != nil {
		return r, err
	}
	server, err := newServer(filepath.Join(dir, "ssh"))
	if err != nil {
		return r, err
	}
	keys := filepath.Dir(server.Identity)
	r.spaces, err = newNamespaces(ctx, root{layers: layers, at: mountPoint(dir), binds: []bind{{keys, keys, true}}, name: spec.Board})
	if err != nil {
		return r, err
	}
	if err := r.spaces.createNetwork(ctx, *spec.Rig); err != nil {
		return r, err
	}
	// It stays on after a Ctrl-C, until whoever uses it has tidied up.
	if err := r.spaces.runOnThread(func() error { return server.Start(context.WithoutCancel(ctx)) }); err != nil {
		return r, err
	}
	if r.relay, err = sshd.NewRelay(); err != nil {
		return r, err
	}
	r.relay.Dial = r.spaces.dial
	r.relay.SetTarget(server.Port)
	r.Address = boardssh.Address{
		Host: "127.0.0.1", Port: r.relay.Port(), User: "root",
		HostKeyAlias: fmt.Sprintf("[127.0.0.1]:%d", server.Port), KnownHosts: []string{server.KnownHosts},
		Identities: []string{server.Identity}, IdentitiesOnly: true, Agent: "none",
	}
	return r, localfile.WriteJSON(stateFile(r.dir), state{os.Getpid(), r.Address}, 0o600)
}

// newServer creates an SSH server with new keys in dir, which it empties first.
func newServer(dir string) (*sshd.Server, error) {
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	server, err := sshd.New(dir)
	if err == nil {
		server.Apart = true
	}
	return server, err
}

// Stop stops the rig, removes its keys and its rig.json, and releases its lock.
func (r *Rig) Stop() error {
	if r.relay != nil {
		_ = r.relay.Close() // of a listener that is open
	}
	if r.spaces != nil {
		r.spaces.close()
	}
	if r.lock == nil {
		return nil // another one is on
	}
	defer r.lock.Close()
	return errors.Join(os.RemoveAll(filepath.Join(r.dir, "ssh")), os.RemoveAll(stateFile(r.dir)))
}

// state is the content of rig.json, which tells other commands about a running rig.
type state struct {
	PID     int              `json:"pid"` // of the process that holds it
	Address boardssh.Address `json:"address"`
}

func stateFile(dir string) string { return filepath.Join(dir, "rig.json") }

const lockName = "rig.lock"

// openLock opens the lock file in dir, and creates both if they are missing.
func openLock(dir string) (*os.File, error) {
	if err := localfile.MkdirAll(dir); err != nil {
		return nil, err
	}
	return localfile.OpenLock(filepath.Join(dir, lockName), 0o644)
}

// takeLock locks the board's folder until the file is closed. It fails if the rig is on already.
func takeLock(dir string) (*os.File, error) {
	f, err := openLock(dir)
	if err != nil {
		return nil, err
	}
	if err = localfile.TryLock(f); errors.Is(err, localfile.ErrLocked) {
		err = errors.New("the rig is on already; rig ssh logs in on it, rig down switches it off")
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// ErrOff means that the rig is not running.
var ErrOff = errors.New("the rig is not on\nnext: rig up --keep")

// findRunning returns the state of the running rig, and its lock file for waiting. It returns
// ErrOff if nobody holds the lock: the kernel releases the lock of a killed process. A rig that is
// locked but has no rig.json is another error. The caller closes held.
func findRunning(dir string) (s state, held *os.File, err error) {
	if _, err := os.Stat(filepath.Join(dir, lockName)); errors.Is(err, os.ErrNotExist) {
		return s, nil, ErrOff // and nothing is written
	}
	held, err = openLock(dir)
	if err != nil {
		return s, nil, err
	}
	if err = localfile.TryLock(held); err == nil {
		held.Close()
		return s, nil, ErrOff
	}
	data, err := os.ReadFile(stateFile(dir))
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if errors.Is(err, os.ErrNotExist) {
		err = errors.New("the rig is being switched on or off; try again in a moment")
	}
	if err != nil {
		held.Close()
		return s, nil, err
	}
	return s, held, nil
}

// Find returns the SSH address of the running rig, or ErrOff.
func Find(dir string) (boardssh.Address, error) {
	s, held, err := findRunning(dir)
	if err != nil {
		return boardssh.Address{}, err
	}
	return s.Address, held.Close()
}

// Down sends SIGTERM to the process that runs the rig, and waits until it has stopped the rig.
func Down(ctx context.Context, dir string) error {
	s, held, err := findRunning(dir)
	if err != nil {
		return err
	}
	defer held.Close()
	if s.PID < 2 {
		return fmt.Errorf("%s names process %d; remove it", stateFile(dir), s.PID)
	}
	if err := unix.Kill(s.PID, syscall.SIGTERM); err != nil {
		return fmt.Errorf("end process %d, which holds the rig: %w", s.PID, err)
	}
	return localfile.WaitLock(ctx, held)
}
