// Package rig is a board of namespaces on this machine: a userland of Debian packages
// with drivers and daemons built from this clone, network interfaces that stand for a
// DPU's ports, machines behind them, and a real SSH server. All of it is software, and
// ends with the process that made it. What is proved there is package ci's.
package rig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"slipway/flash/target"
	"slipway/flash/target/sshd"
	"slipway/images"
	"slipway/layers/localfile"
	"slipway/layers/lock"
)

// Rig is such a board, while it is on.
type Rig struct {
	Address target.Address

	dir  string
	lock *os.File
	room *room
	door *door
}

// Needs says what this machine lacks.
func Needs() error {
	if os.Getuid() != 0 {
		return errors.New("a rig is made of namespaces, mounts and network interfaces: run this as root")
	}
	return nil
}

// Start switches a rig on whose root is made of the layers; dir is the board's folder.
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
	if r.lock, err = lockOf(dir); err != nil {
		return r, err
	}
	server, err := newServer(filepath.Join(dir, "ssh"))
	if err != nil {
		return r, err
	}
	keys := filepath.Dir(server.Identity)
	r.room, err = enter(ctx, root{layers: layers, at: mountPoint(dir), binds: []bind{{keys, keys, true}}, name: spec.Board})
	if err != nil {
		return r, err
	}
	if err := r.room.plug(ctx, *spec.Rig); err != nil {
		return r, err
	}
	// It stays on after a Ctrl-C, until whoever uses it has tidied up.
	if err := r.room.do(func() error { return server.Start(context.WithoutCancel(ctx)) }); err != nil {
		return r, err
	}
	if r.door, err = openDoor(r.room, fmt.Sprintf("127.0.0.1:%d", server.Port)); err != nil {
		return r, err
	}
	r.Address = target.Address{
		Host: "127.0.0.1", Port: r.door.port(), User: "root",
		HostKeyAlias: fmt.Sprintf("[127.0.0.1]:%d", server.Port), KnownHosts: []string{server.KnownHosts},
		Identities: []string{server.Identity}, IdentitiesOnly: true, Agent: "none",
	}
	return r, r.tell()
}

// newServer has keys that were made for this run.
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

// Stop switches the rig off. Nothing of it is left but files of its folder.
func (r *Rig) Stop() error {
	if r.door != nil {
		r.door.close()
	}
	if r.room != nil {
		r.room.leave()
	}
	if r.lock == nil {
		return nil // another one is on
	}
	defer r.lock.Close()
	return errors.Join(os.RemoveAll(filepath.Join(r.dir, "ssh")), os.RemoveAll(stateFile(r.dir)))
}

// state is what other commands need to know of a rig that is on.
type state struct {
	PID     int            `json:"pid"` // of the process that holds it
	Address target.Address `json:"address"`
}

func stateFile(dir string) string { return filepath.Join(dir, "rig.json") }

func (r *Rig) tell() error {
	data, err := json.Marshal(state{os.Getpid(), r.Address})
	if err != nil {
		return err
	}
	return renameio.WriteFile(stateFile(r.dir), data, 0o600)
}

const lockName = "rig.lock"

func openLock(dir string) (*os.File, error) {
	if err := localfile.MkdirAll(dir); err != nil {
		return nil, err
	}
	return lock.Open(filepath.Join(dir, lockName), 0o644)
}

func lockOf(dir string) (*os.File, error) {
	f, err := openLock(dir)
	if err != nil {
		return nil, err
	}
	if err = lock.Try(f); errors.Is(err, lock.ErrHeld) {
		err = errors.New("the rig is on already; rig:ssh logs in on it, rig:down switches it off")
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// ErrOff is for a rig that is not on.
var ErrOff = errors.New("the rig is not on; switch it on: rig:up -keep")

// find reads what is known of the rig that is on. Its lock is the proof that it is:
// nobody has it who was killed.
func find(dir string) (s state, held *os.File, err error) {
	if _, err := os.Stat(filepath.Join(dir, lockName)); errors.Is(err, os.ErrNotExist) {
		return s, nil, ErrOff // and nothing is written
	}
	held, err = openLock(dir)
	if err != nil {
		return s, nil, err
	}
	if err = lock.Try(held); err == nil {
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

// Find is where the rig that is on can be reached.
func Find(dir string) (target.Address, error) {
	s, held, err := find(dir)
	if err != nil {
		return target.Address{}, err
	}
	return s.Address, held.Close()
}

// Down asks the process that holds the rig to switch it off, and waits for that.
func Down(ctx context.Context, dir string) error {
	s, held, err := find(dir)
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
	return lock.Wait(ctx, held)
}
