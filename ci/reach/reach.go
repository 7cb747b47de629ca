// Package reach connects to a board by its name, with the host keys that its flash recorded.
package reach

import (
	"context"
	"errors"
	"fmt"

	"slipway/ci/report"
	"slipway/ci/suite"
	"slipway/flash/qemu"
	"slipway/flash/target"
	"slipway/images"
)

// WithArtifact connects to a board of which an artifact was built, as Reach does, and
// disconnects. Of the artifact's files the disk image may lie elsewhere.
func WithArtifact(ctx context.Context, opt images.Options, spec images.Spec, host string,
	work func(context.Context, *target.Conn, images.Spec, images.Artifact) error, pins ...string,
) error {
	a, err := images.ArtifactOf(spec, opt.BoardDir(spec))
	if err == nil {
		err = a.Check(images.Container)
	}
	if err != nil {
		return err
	}
	return WithConnection(ctx, opt, spec, host, func(conn *target.Conn) error { return work(ctx, conn, spec, a) }, pins...)
}

// WithConnection connects as Reach does, works, and disconnects.
func WithConnection(ctx context.Context, opt images.Options, spec images.Spec, host string, work func(*target.Conn) error, pins ...string) error {
	conn, err := Connect(ctx, opt, spec, host, pins...)
	if err != nil {
		return err
	}
	defer conn.Close()
	return MarkUnreachable(ctx, conn, work(conn))
}

// MarkUnreachable is the error of work on a board, of the kind ErrUnreachable where the board does
// not answer any more.
func MarkUnreachable(ctx context.Context, conn *target.Conn, err error) error {
	if err == nil || ctx.Err() != nil || suite.Answers(ctx, conn, 0) {
		return err
	}
	return report.Because(ctx, report.ErrUnreachable, fmt.Errorf("%w; and the board does not answer any more", err))
}

// VirtualAddress is where a virtual board that is on can be reached, with the keys that
// its flash gave it.
func VirtualAddress(opt images.Options, spec images.Spec, vm *qemu.VM) target.Address {
	dir := opt.BoardDir(spec)
	return target.Address{
		Host: "127.0.0.1", Port: vm.SSHPort, User: spec.SSH.User,
		HostKeyAlias: spec.Board,
		KnownHosts:   []string{images.KnownHostsPath(dir)},
		Identities:   []string{images.ClientKeyPath(dir)},
	}
}

// Connect connects to a board: to the virtual one that is on where host is the
// board's own name, else to wherever the user's SSH configuration leads. The pins are
// fingerprints of its host key that the person vouches for. What fails is of the kind
// ErrUnreachable, unless board.yml is wrong.
func Connect(ctx context.Context, opt images.Options, spec images.Spec, host string, pins ...string) (*target.Conn, error) {
	if err := target.CheckSettings(ctx); err != nil {
		return nil, err
	}
	a, err := addressOf(ctx, opt, spec, host)
	if err != nil {
		return nil, err
	}
	a.Pins = pins
	conn, err := target.Dial(ctx, a)
	return conn, report.Because(ctx, report.ErrUnreachable, explainLogin(spec, err))
}

func addressOf(ctx context.Context, opt images.Options, spec images.Spec, host string) (target.Address, error) {
	if host == spec.Board && spec.Machine != nil {
		vm, err := qemu.Find(opt.MachineDir(spec))
		if err != nil {
			err = fmt.Errorf("%s: %w; switch it on: virt:start -board=%s", host, err, spec.Board)
			return target.Address{}, report.Because(ctx, report.ErrUnreachable, err)
		}
		return VirtualAddress(opt, spec, vm), nil
	}
	a, err := target.Resolve(ctx, host)
	if err == nil {
		a.Become, err = target.BecomeUser(ctx)
	}
	if err != nil {
		return a, report.Because(ctx, report.ErrUnreachable, err)
	}
	err = AddHostKeys(opt, spec, &a)
	return a, report.Because(ctx, report.ErrWrong, err)
}

// AddHostKeys adds to an address what is known of boards of this kind: who signs their host
// keys, and the keys that a flash recorded, under the board's name or its serial. These
// are found where HostKeyAlias is that.
func AddHostKeys(opt images.Options, spec images.Spec, a *target.Address) (err error) {
	if spec.Board != "" {
		a.KnownHosts = append(a.KnownHosts, images.KnownHostsPath(opt.BoardDir(spec)))
	}
	a.HostCA, err = spec.HostAuthorities()
	return err
}

// explainLogin explains a login that was refused: an image of bitbake's opens to nobody
// unless it was told to.
func explainLogin(spec images.Spec, err error) error {
	if spec.Board == "" || spec.Debian != nil || !errors.Is(err, target.ErrLogin) {
		return err
	}
	return fmt.Errorf("%w\n  %s lets in the keys of SLIPWAY_AUTHORIZED_KEYS=FILE, as slipway, and with SLIPWAY_ROOT_LOGIN=1 as root: both are set for its build, which is then flashed anew", err, spec.Board)
}

// CloseOnInterrupt ends all that still waits for the board when even that shall end, until over.
func CloseOnInterrupt(conn *target.Conn, now <-chan struct{}) (over func()) {
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
