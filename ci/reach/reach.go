// Package reach connects to a board by its name, with the host keys that its flash recorded.
package reach

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"

	"slipway/ci/report"
	"slipway/ci/suite"
	"slipway/flash"
	"slipway/flash/boardssh"
	"slipway/flash/evidence"
	"slipway/flash/qemu"
	"slipway/images"
	"slipway/layers/plaintext"
)

// WithArtifact checks the container of a board's last artifact (all files if a policy applies),
// and records the policies' decision. If none refuses, it calls work by WithConnection.
func WithArtifact(ctx context.Context, opt images.Options, spec images.Spec, host string,
	work func(context.Context, *boardssh.Conn, images.Spec, images.Artifact) error, pins ...string,
) error {
	a, err := images.ArtifactOf(spec, opt.BoardDir(spec))
	if err == nil {
		err = a.Check(images.Container)
	}
	if err != nil {
		return err
	}
	admitted, err := evidence.Admit(ctx, spec, a, images.Container)
	if err != nil {
		return report.Because(ctx, flash.ErrImage, err)
	}
	if err := admitted.Record(); err != nil {
		return err
	}
	return WithConnection(ctx, opt, spec, host, func(conn *boardssh.Conn) error { return work(ctx, conn, spec, a) }, pins...)
}

// WithConnection connects by Connect (pins: trusted host keys), calls work, closes, and returns
// work's error by MarkUnreachable.
func WithConnection(ctx context.Context, opt images.Options, spec images.Spec, host string, work func(*boardssh.Conn) error, pins ...string) error {
	conn, err := Connect(ctx, opt, spec, host, pins...)
	if err != nil {
		return err
	}
	defer conn.Close()
	return MarkUnreachable(ctx, conn, work(conn))
}

// MarkUnreachable gives err the kind ErrUnreachable if the board does not answer any more. It may
// run a program on the board to find out.
func MarkUnreachable(ctx context.Context, conn *boardssh.Conn, err error) error {
	if errors.Is(err, boardssh.ErrSilent) || errors.Is(err, boardssh.ErrShell) {
		return report.Because(ctx, report.ErrUnreachable, err)
	}
	if err == nil || ctx.Err() != nil || suite.IsAlive(ctx, conn, 0) {
		return err
	}
	return report.Because(ctx, report.ErrUnreachable, fmt.Errorf("the board does not answer any more: %w", err))
}

// VirtualAddress returns the SSH address of a running virtual machine, with the keys of its flash.
func VirtualAddress(opt images.Options, spec images.Spec, vm *qemu.VM) (boardssh.Address, error) {
	dir, err := opt.StateDir(spec)
	return boardssh.Address{
		Host: "127.0.0.1", Port: vm.SSHPort, User: spec.SSH.User,
		HostKeyAlias: spec.Board,
		Recorded:     images.KnownHostsPath(dir),
		Identities:   []string{images.ClientKeyPath(dir)},
	}, err
}

// Connect opens an SSH connection to a board and checks its shell. host is the name of a virtual
// board that is on, or a name for the user's SSH configuration. pins are fingerprints of trusted
// host keys. An error is of the kind ErrUnreachable, unless board.yml or the environment is wrong.
// It is also ErrNotBegun if that or host is wrong, or ctx ended before the login.
func Connect(ctx context.Context, opt images.Options, spec images.Spec, host string, pins ...string) (*boardssh.Conn, error) {
	if err := boardssh.CheckSettings(ctx); err != nil {
		return nil, report.NotBegun(err)
	}
	a, err := AddressOf(ctx, opt, spec, host)
	if err != nil {
		return nil, err
	}
	a.Pins = pins
	conn, err := boardssh.Dial(ctx, a)
	unknown := errors.Is(err, boardssh.ErrNoAddress) && !strings.HasSuffix(machineOf(host), ".local") // which a board that is on tells itself
	if err != nil && (ctx.Err() != nil || unknown) {
		err = report.NotBegun(err)
	}
	if err == nil {
		if err = conn.CheckShell(ctx); err != nil {
			conn.Close()
		}
	}
	return conn, report.Because(ctx, report.ErrUnreachable, explainNetwork(host, explainLogin(spec, err)))
}

// AddressOf returns a board's SSH address: of the running virtual machine if host is its name, else
// of host by the user's SSH configuration, with the host keys of the board.
func AddressOf(ctx context.Context, opt images.Options, spec images.Spec, host string) (boardssh.Address, error) {
	if host == spec.Board && spec.Machine != nil {
		vm, err := qemu.Find(opt.MachineDir(spec))
		if err != nil {
			err = fmt.Errorf("%s: %w\nnext: virt start %s", host, err, plaintext.Quote(spec.TypedName()))
			return boardssh.Address{}, report.Because(ctx, report.ErrUnreachable, err)
		}
		return VirtualAddress(opt, spec, vm)
	}
	a, err := boardssh.Resolve(ctx, host)
	if err == nil {
		a.Become, err = boardssh.BecomeUser(ctx)
	}
	if err != nil {
		return a, report.NotBegun(report.Because(ctx, report.ErrUnreachable, err))
	}
	err = AddHostKeys(opt, spec, &a)
	return a, report.NotBegun(report.Because(ctx, report.ErrWrong, err))
}

// AddHostKeys sets an address's authorities that sign host keys, from board.yml, and, if the board
// has a name, its file of the keys that flashes recorded.
func AddHostKeys(opt images.Options, spec images.Spec, a *boardssh.Address) (err error) {
	if spec.Board != "" {
		dir, err := opt.StateDir(spec)
		if err != nil {
			return err
		}
		a.Recorded = images.KnownHostsPath(dir)
	}
	a.HostCA, err = spec.HostAuthorities()
	return err
}

// explainNetwork adds a next step to an error of a refused connection, missing route or timeout.
func explainNetwork(host string, err error) error {
	var timeout net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w\nnext: ssh -v %s true  # start the board's SSH server, or add its port to the name", err, plaintext.Quote("ssh://"+host))
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH), errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("%w\nnext: ping -c 3 %s  # see that the board is on and in this network", err, plaintext.Quote(machineOf(host)))
	}
	return err
}

// machineOf returns the host name in user@host:port, without the brackets of an IPv6 address.
func machineOf(host string) string {
	host = host[strings.LastIndexByte(host, '@')+1:]
	if name, port, err := net.SplitHostPort(host); err == nil && port != "" {
		host = name
	}
	return strings.Trim(host, "[]")
}

// explainLogin adds to a refused login how a build by bitbake gets authorized keys.
func explainLogin(spec images.Spec, err error) error {
	if spec.Board == "" || spec.Debian != nil || !errors.Is(err, boardssh.ErrLogin) {
		return err
	}
	return fmt.Errorf("%w\n  %s lets in the keys of SLIPWAY_AUTHORIZED_KEYS=FILE, as slipway, and with SLIPWAY_ROOT_LOGIN=1 as root: set both for its build, then flash the board again", err, spec.Board)
}

// CloseOnInterrupt closes the connection when now is closed, so that all work on the board fails.
// The caller calls stop when the work is done.
func CloseOnInterrupt(conn *boardssh.Conn, now <-chan struct{}) (stop func()) {
	ended := make(chan struct{})
	go func() {
		select {
		case <-now:
			conn.Close()
		case <-ended:
		}
	}()
	return func() { close(ended) }
}
