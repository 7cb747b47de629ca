package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"

	"slipway/ci"
	"slipway/flash/qemu"
	"slipway/flash/target/relay"
	"slipway/images"
	"slipway/layers/host"
	"slipway/layers/run"
)

// Update counts the bytes of an update on the wire, on the virtual board. In the new
// release a few files differ, a program was compiled again and one file is new. Slipway's
// bytes are all of its traffic, including its checks, until the new system is committed.
// Beside it, rsync turns one image of the root file system into the other, as a file.
func Update(ctx context.Context, w io.Writer) error {
	spec, err := images.Default()
	if err != nil {
		return err
	}
	if err := host.Ensure(ctx, w, "build/bench/apt.log", "openssh-server", "openssh-client", "rsync", "iproute2"); err != nil {
		return err
	}
	cache, err := filepath.Abs("build/cache")
	if err != nil {
		return err
	}
	return keepOnFailure(ctx, "bench-update-", func(dir string) error {
		if dir, err = filepath.Abs(dir); err != nil { // sshd works in /
			return err
		}
		b := updateBench{dir: dir, build: images.Options{Dir: filepath.Join(dir, "build"), Cache: cache}}
		return b.measureUpdate(ctx, w, spec)
	})
}

type updateBench struct {
	dir   string
	build images.Options
}

// release is the result of a build.
type release struct {
	spec   images.Spec
	root   string // its root file system, as on the disk
	bundle string // empty where none is needed
}

func (b updateBench) measureUpdate(ctx context.Context, w io.Writer, spec images.Spec) error {
	after, err := b.buildRelease(ctx, w, spec, 2, true)
	if err != nil {
		return err
	}
	before, err := b.buildRelease(ctx, w, spec, 1, false)
	if err != nil {
		return err
	}
	ours, err := b.runUpdate(ctx, w, before, after)
	if err != nil {
		return err
	}
	sums := map[string]int64{"update": ours}
	for name, options := range map[string][]string{"rsync": nil, "rsync -z": {"-z", "--zc=zstd"}} {
		if sums[name], err = b.countRsync(ctx, before.root, after.root, options); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	for _, name := range []string{"update", "rsync", "rsync -z"} {
		fmt.Fprintf(w, "%-8s  %7.2f MiB on the wire\n", name, float64(sums[name])/(1<<20))
	}
	over := func(peer string) float64 { return float64(ours) / float64(sums[peer]) }
	return printRatios(w, []Ratio{{"update_over_rsync", over("rsync")}, {"update_over_rsync_z", over("rsync -z")}})
}

// An application that no board has. Its release changes a few of its files.
const (
	releaseFiles     = 40
	releaseFileBytes = 48 << 10
	releaseChanged   = 6
	releaseNewBytes  = 2 << 20
)

// withRelease returns the spec with a release of the application.
func (b updateBench) withRelease(ctx context.Context, spec images.Spec, number int) (images.Spec, error) {
	for i := range releaseFiles {
		seed := byte(i)
		if number > 1 && i%(releaseFiles/releaseChanged) == 0 {
			seed += releaseFiles
		}
		spec = spec.WithFile(fmt.Sprintf("overlay/opt/app/part-%02d", i), randomText(seed, releaseFileBytes))
	}
	if number > 1 {
		spec = spec.WithFile("overlay/opt/app/new", randomText(2*releaseFiles, releaseNewBytes))
	}
	program, err := b.compileProgram(ctx, number)
	return spec.WithFile("overlay/opt/app/program", program), err
}

func randomText(seed byte, size int) string {
	data := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(data) // which never fails
	return string(data)
}

// compileProgram compiles the same source for another generation of processors: a few
// instructions differ, and all code after them moves.
func (b updateBench) compileProgram(ctx context.Context, number int) (string, error) {
	name := filepath.Join(b.dir, fmt.Sprintf("program-%d", number))
	err := run.Run(ctx, run.Command{
		Argv: []string{"go", "build", "-trimpath", "-o", name, "./ci/dev/bench/sender"},
		Env:  []string{"GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0", fmt.Sprintf("GOAMD64=v%d", number)},
	})
	if err != nil {
		return "", err
	}
	program, err := os.ReadFile(name)
	return string(program), err
}

// buildRelease builds a release and keeps the files that the next build replaces.
func (b updateBench) buildRelease(ctx context.Context, w io.Writer, spec images.Spec, number int, bundled bool) (r release, err error) {
	if r.spec, err = b.withRelease(ctx, spec, number); err != nil {
		return r, err
	}
	disk, err := ci.Build(ctx, w, r.spec, b.build)
	if err != nil {
		return r, err
	}
	r.root = filepath.Join(b.dir, fmt.Sprintf("root-%d.ext4", number))
	if err := cutOut(disk, r.root); err != nil || !bundled {
		return r, err
	}
	r.bundle = filepath.Join(b.dir, "update.raucb")
	_, err = ci.BuildBundle(ctx, w, r.spec, b.build, r.bundle)
	return r, err
}

// cutOut copies the root file system out of a disk's image.
func cutOut(a images.Artifact, name string) error {
	f, err := a.File(images.DiskImage)
	if err != nil {
		return err
	}
	p, err := a.Partition("root")
	if err != nil {
		return err
	}
	in, err := os.Open(a.Path(f))
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(name)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, io.NewSectionReader(in, p.OffsetBytes, p.SizeBytes))
	return errors.Join(err, out.Close())
}

// runUpdate updates a virtual board from one release to the other. It returns the bytes on
// the wire.
func (b updateBench) runUpdate(ctx context.Context, w io.Writer, before, after release) (carried int64, err error) {
	if _, err := ci.Up(ctx, before.spec, ci.UpOptions{Build: b.build, Out: io.Discard, Keep: true}); err != nil {
		return 0, err
	}
	defer func() {
		err = errors.Join(err, ci.StopVirtual(context.WithoutCancel(ctx), io.Discard, b.build, before.spec, true))
	}()
	vm, err := qemu.Find(b.build.MachineDir(before.spec))
	if err != nil {
		return 0, err
	}
	line, err := relay.New()
	if err != nil {
		return 0, err
	}
	line.Lead(vm.SSHPort)
	err = vm.Through(line.Port())
	var outcome ci.Outcome
	if err == nil {
		outcome, err = ci.Update(ctx, b.build, before.spec, before.spec.Board, after.bundle, ci.UpdateOptions{Out: io.Discard, Downgrade: true})
	}
	if err := errors.Join(err, line.Close()); err != nil {
		return 0, err
	}
	if !outcome.Committed {
		return 0, fmt.Errorf("the update did not stay: %s", outcome)
	}
	fmt.Fprintf(w, "%s: %s, %.2f MiB of the bundle\n", outcome, outcome.Delivery, float64(outcome.SentBytes)/(1<<20))
	return line.Carried(), nil
}

// countRsync counts the bytes that rsync sends to turn a copy of one file into the other.
func (b updateBench) countRsync(ctx context.Context, before, after string, options []string) (_ int64, err error) {
	there := filepath.Join(b.dir, "there.ext4")
	if err := run.Run(ctx, run.Command{Argv: []string{"cp", before, there}}); err != nil {
		return 0, err
	}
	line, err := newSlowLink(ctx, 0, farMTU)
	if err != nil {
		return 0, err
	}
	defer line.close()
	s, err := (&deployBench{dir: b.dir}).startServer(ctx, line)
	if err != nil {
		return 0, err
	}
	defer s.server.Stop()
	argv := slices.Concat([]string{"rsync", "--no-whole-file", "--ignore-times", "-e", s.sshCommand()}, options, []string{after, serverAddress + ":" + there})
	if err := s.runIn(ctx, run.Command{Argv: argv}); err != nil {
		return 0, err
	}
	return line.carried.Load(), run.Run(ctx, run.Command{Argv: []string{"cmp", after, there}})
}
