package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"slipway/ci"
	"slipway/flash/qemu"
	"slipway/images"
	"slipway/layers/run"
)

// updateBench builds two releases of the virtual board's image.
type updateBench struct {
	*session
	build images.Options
}

// release is the result of a build.
type release struct {
	spec images.Spec
	disk string // a copy of its image
}

// measureUpdate counts the bytes of an update on the wire, on the virtual board. In the new
// release a few files differ, a program was compiled again and one file is new. Slipway's
// bytes are all of its traffic, including its checks, until the new system is committed.
// Beside it, rsync turns one disk image into the other, as a file.
func measureUpdate(ctx context.Context, s *session) error {
	spec, err := images.Default()
	if err != nil {
		return err
	}
	cache, err := filepath.Abs("build/cache")
	if err != nil {
		return err
	}
	b := updateBench{s, images.Options{Dir: filepath.Join(s.dir, "build"), Cache: cache}}
	after, err := b.buildRelease(ctx, spec, 2)
	if err != nil {
		return err
	}
	bundle := filepath.Join(b.dir, "update.raucb")
	if _, err := ci.BuildBundle(ctx, s.w, after.spec, b.build, bundle); err != nil {
		return err
	}
	before, err := b.buildRelease(ctx, spec, 1)
	if err != nil {
		return err
	}
	ours, err := b.runUpdate(ctx, before.spec, bundle)
	if err != nil {
		return err
	}
	peer, err := b.countRsync(ctx, before.disk, after.disk)
	if err != nil {
		return fmt.Errorf("rsync: %w", err)
	}
	_, err = fmt.Fprintf(s.w, "update: %.2f MiB on the wire, rsync: %.2f MiB\nupdate_over_rsync=%.2f\n", float64(ours)/(1<<20), float64(peer)/(1<<20), float64(ours)/float64(peer))
	return err
}

// buildRelease builds a release with an application, and keeps its image. The second release
// changes 6 of 40 files, and adds one.
func (b updateBench) buildRelease(ctx context.Context, spec images.Spec, number int) (r release, err error) {
	for i := range 40 {
		seed := byte(i)
		if number > 1 && i%7 == 0 {
			seed += 100
		}
		spec = spec.WithFile(fmt.Sprintf("overlay/opt/app/part-%02d", i), randomText(seed, 48<<10))
	}
	if number > 1 {
		spec = spec.WithFile("overlay/opt/app/new", randomText(200, 2<<20))
	}
	// The same source for another generation of processors: a few instructions differ, and all
	// code after them moves.
	name := filepath.Join(b.dir, fmt.Sprint("program-", number))
	err = run.Run(ctx, run.Command{
		Argv: []string{"go", "build", "-trimpath", "-o", name, "./ci/dev/bench/sender"},
		Env:  []string{"GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0", fmt.Sprint("GOAMD64=v", number)},
	})
	if err != nil {
		return r, err
	}
	program, err := os.ReadFile(name)
	if err != nil {
		return r, err
	}
	r.spec = spec.WithFile("overlay/opt/app/program", string(program))
	artifact, err := ci.Build(ctx, b.w, r.spec, b.build)
	if err != nil {
		return r, err
	}
	f, err := artifact.File(images.DiskImage)
	if err != nil {
		return r, err
	}
	r.disk = filepath.Join(b.dir, fmt.Sprintf("disk-%d.img", number))
	return r, run.Run(ctx, run.Command{Argv: []string{"cp", "--sparse=always", artifact.Path(f), r.disk}})
}

func randomText(seed byte, size int) string {
	data := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(data) // which never fails
	return string(data)
}

// runUpdate updates a virtual board. It returns the bytes on the wire.
func (b updateBench) runUpdate(ctx context.Context, before images.Spec, bundle string) (carried int64, err error) {
	if _, err := ci.Up(ctx, before, ci.UpOptions{Build: b.build, Out: io.Discard, Keep: true}); err != nil {
		return 0, err
	}
	defer func() {
		err = errors.Join(err, ci.StopVirtual(context.WithoutCancel(ctx), io.Discard, b.build, before, true))
	}()
	vm, err := qemu.Find(b.build.MachineDir(before))
	if err != nil {
		return 0, err
	}
	line, err := listenLine(vm.SSHPort, 0)
	if err != nil {
		return 0, err
	}
	defer line.Close()
	if err := vm.Through(line.port()); err != nil {
		return 0, err
	}
	outcome, err := ci.Update(ctx, b.build, before, before.Board, bundle, ci.UpdateOptions{Out: io.Discard, Downgrade: true})
	if err != nil {
		return 0, err
	}
	if !outcome.Committed {
		return 0, fmt.Errorf("the update did not stay: %s", outcome)
	}
	fmt.Fprintf(b.w, "%s: %s, %.2f MiB of the bundle\n", outcome, outcome.Delivery, float64(outcome.SentBytes)/(1<<20))
	return line.carried.Load(), nil
}

// countRsync counts the bytes that rsync sends to turn a copy of one file into the other.
func (b updateBench) countRsync(ctx context.Context, before, after string) (int64, error) {
	server, err := startServer(ctx, filepath.Join(b.dir, "server"))
	if err != nil {
		return 0, err
	}
	defer server.Stop()
	line, err := listenLine(server.Port, 0)
	if err != nil {
		return 0, err
	}
	defer line.Close()
	values, err := serverValues(server, line.port())
	if err != nil {
		return 0, err
	}
	ssh := strings.NewReplacer(values...).Replace("ssh -p {port} " + sshOptions)
	there := filepath.Join(b.dir, "there.img")
	for _, argv := range [][]string{
		{"cp", "--sparse=always", before, there},
		{"rsync", "--no-whole-file", "--ignore-times", "-e", ssh, after, "127.0.0.1:" + there},
		{"cmp", after, there},
	} {
		if err := run.Run(ctx, run.Command{Argv: argv}); err != nil {
			return 0, err
		}
	}
	return line.carried.Load(), nil
}
