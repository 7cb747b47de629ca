package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"

	"slipway/ci"
	"slipway/images"
	"slipway/layers/run"
)

// measureUpdate builds two releases, updates the virtual board from one to the other, and counts
// the bytes of the bundle that the board fetches. Few files differ between the releases.
func measureUpdate(ctx context.Context, s *session) error {
	spec, err := images.Default()
	if err != nil {
		return err
	}
	cache, err := filepath.Abs("build/cache")
	if err != nil {
		return err
	}
	before, err := makeRelease(ctx, s.dir, spec, 1)
	if err != nil {
		return err
	}
	after, err := makeRelease(ctx, s.dir, spec, 2)
	if err != nil {
		return err
	}
	build, bundle := images.Options{Dir: filepath.Join(s.dir, "build"), Cache: cache}, filepath.Join(s.dir, "update.raucb")
	if _, err := ci.BuildBundle(ctx, s.w, after, build, bundle); err != nil {
		return err
	}
	return runUpdate(ctx, s.w, before, build, bundle)
}

// makeRelease returns the spec of release number, with an application in the image. The second
// release changes 6 of its 40 files and the program, and adds a file.
func makeRelease(ctx context.Context, dir string, spec images.Spec, number int) (images.Spec, error) {
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
	name := filepath.Join(dir, fmt.Sprint("program-", number))
	err := run.Run(ctx, run.Command{
		Argv: []string{"go", "build", "-trimpath", "-o", name, "./ci/dev/bench/sender"},
		Env:  []string{"GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0", fmt.Sprint("GOAMD64=v", number)},
	})
	if err != nil {
		return spec, err
	}
	program, err := os.ReadFile(name)
	return spec.WithFile("overlay/opt/app/program", string(program)), err
}

func randomText(seed byte, size int) string {
	data := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(data) // which never fails
	return string(data)
}

func runUpdate(ctx context.Context, w io.Writer, before images.Spec, build images.Options, bundle string) (err error) {
	if _, err := ci.Up(ctx, before, ci.UpOptions{Build: build, Out: io.Discard, Keep: true}); err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, ci.StopVirtual(context.WithoutCancel(ctx), io.Discard, build, before, true))
	}()
	info, err := os.Stat(bundle)
	if err != nil {
		return err
	}
	outcome, err := ci.Update(ctx, build, before, before.Board, bundle, ci.UpdateOptions{Out: io.Discard, Downgrade: true})
	if err != nil {
		return err
	}
	if !outcome.Committed {
		return fmt.Errorf("the update did not stay: %s", outcome)
	}
	_, err = fmt.Fprintf(w, "%s: %s\nbundle_mb=%.2f fetched_mb=%.2f\n", outcome, outcome.Delivery, float64(info.Size())/1e6, float64(outcome.SentBytes)/1e6)
	return err
}
