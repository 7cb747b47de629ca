package soak

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"slipway/ci/dev/tinyclone"
	"slipway/images"
	"slipway/images/bitbake"
	"slipway/images/cache"
	"slipway/layers/run"
)

// Isar builds the image of isar-amd64 with Isar's bitbake. It shows that a recipe that
// fails is seen in the build's page, that a full disk is named and the build goes on once
// there is space, and that a killed build can be run again: nothing of it is left, and the
// image is the same.
func Isar(ctx context.Context, w io.Writer, dir string, opt Options) error {
	spec, err := images.Load("isar-amd64")
	if err != nil {
		return err
	}
	clone, err := tinyclone.Isar(dir, spec)
	if err != nil {
		return err
	}
	s := soakedIsar{w: w, dir: dir, clone: clone}
	s.job = Job{Argv: append(slices.Clone(opt.Self), "build", clone.Board), Dir: dir, Env: []string{cache.Environment + "=off"}, Begin: s.beginRound, State: s.describeState}
	for _, failing := range failingRecipes {
		if err := s.failRecipe(ctx, failing); err != nil {
			return fmt.Errorf("%s: %w", failing.name, err)
		}
	}
	for _, p := range fullPoints {
		if err := s.fillDisk(ctx, p); err != nil {
			return fmt.Errorf("a full disk in %s: %w", p.task, err)
		}
	}
	return errors.Join(Kill(ctx, w, s.job, 2, opt), s.clone.RemoveBuilt(context.WithoutCancel(ctx)))
}

type soakedIsar struct {
	w     io.Writer
	dir   string
	clone tinyclone.Clone
	job   Job
}

// beginRound has all of the image built again, or only what follows from another name of
// the release.
func (s soakedIsar) beginRound(ctx context.Context, round int) error {
	if round == 0 {
		if err := s.clean(ctx); err != nil {
			return err
		}
	}
	return s.clone.WriteIsar(fmt.Sprintf(`ISAR_RELEASE_CMD = "echo round %d"`, round))
}

// clean removes all that bitbake built.
func (s soakedIsar) clean(ctx context.Context) error {
	return errors.Join(s.clone.RemoveBuilt(ctx), os.RemoveAll(filepath.Join(s.dir, "build/sstate-cache")))
}

// describeState describes the image, and what a build can leave outside of its folder. Each
// build gives its file systems and its bundle other identifiers.
func (s soakedIsar) describeState(ctx context.Context, _ int) (string, error) {
	a, err := images.OpenArtifact(s.clone.Built)
	if err != nil {
		return "", err
	}
	disk, err := a.File(images.DiskImage)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, f := range a.Files {
		fmt.Fprintf(&b, "%s %s\n", f.Kind, f.Name)
	}
	if err := writeRootFiles(ctx, &b, a.Path(disk)); err != nil {
		return "", err
	}
	remains, err := s.listRemains(ctx)
	fmt.Fprintf(&b, "left: %q\n", remains)
	return b.String(), err
}

// remainsLimit is how long programs of a killed build may take to end.
const remainsLimit = time.Minute

// listRemains returns mounts, sessions of schroot and processes of the build.
func (s soakedIsar) listRemains(ctx context.Context) (found []string, err error) {
	for end := time.Now().Add(remainsLimit); ; {
		if found, err = s.findRemains(); err != nil || len(found) == 0 || time.Now().After(end) {
			return found, err
		}
		select {
		case <-ctx.Done():
			return found, context.Cause(ctx)
		case <-time.After(time.Second):
		}
	}
}

func (s soakedIsar) findRemains() (found []string, err error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, " "+s.clone.Built) {
			found = append(found, strings.TrimSpace(line))
		}
	}
	sessions, _ := filepath.Glob("/var/lib/schroot/session/*")
	for _, name := range sessions {
		text, _ := os.ReadFile(name) // fails for sessions that end meanwhile
		if strings.Contains(string(text), "="+s.clone.Built+"/") {
			found = append(found, "session of schroot "+filepath.Base(name))
		}
	}
	processes, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range processes {
		argv, _ := os.ReadFile(p) // fails for processes that end meanwhile
		if strings.Contains(string(argv), s.clone.Built) {
			found = append(found, strings.ReplaceAll(strings.TrimRight(string(argv), "\x00"), "\x00", " "))
		}
	}
	return found, nil
}

// failingRecipe is a configuration with which a task fails, and what its log says.
type failingRecipe struct{ name, conf, task, says string }

var failingRecipes = []failingRecipe{
	{"a task that fails", tinyclone.Only("do_install:append", "slipway-board", " echo no such register; exit 7"), "do_install", "no such register"},
	{"a program that does not compile", tinyclone.Only("do_prepare_build:append", "slipway-hook", " echo package hook, and no more >../source/broken.go"), "do_dpkg_build", "broken.go"},
}

// failRecipe builds with a recipe that fails. The error and the page must have its log.
func (s soakedIsar) failRecipe(ctx context.Context, f failingRecipe) error {
	if err := s.clone.WriteIsar(f.conf); err != nil {
		return err
	}
	err := s.job.runCommand(ctx)
	if err == nil || !strings.Contains(err.Error(), f.task) || !strings.Contains(err.Error(), f.says) {
		return fmt.Errorf("build = %w; want a failed %s and %q", err, f.task, f.says)
	}
	page, err := os.ReadFile(filepath.Join(s.clone.Built, bitbake.PageName))
	if err != nil {
		return err
	}
	if !strings.Contains(string(page), f.says) {
		return fmt.Errorf("%s does not say %q", filepath.Join(s.clone.Built, bitbake.PageName), f.says)
	}
	fmt.Fprintf(s.w, "%s: the error and the page show its log\n", f.name)
	return s.clone.WriteIsar("")
}

// fullPoint is how much space a build gets, and the task that this is not enough for.
type fullPoint struct {
	task string
	mib  int64
}

var fullPoints = []fullPoint{{"the bootstrap", 200}, {"the root file systems", 1500}, {"the images", 3500}}

// fillDisk builds on a disk that is nearly full, then makes space and builds again.
func (s soakedIsar) fillDisk(ctx context.Context, p fullPoint) (err error) {
	if err := s.clean(ctx); err != nil {
		return err
	}
	small, err := newSmallDisk(ctx, s.dir, filepath.Join(s.clone.Built, "bitbake/tmp"), p.mib)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, small.close(context.WithoutCancel(ctx))) }()
	full := s.job.runCommand(ctx)
	if full == nil || !strings.Contains(full.Error(), "the disk is full") {
		return fmt.Errorf("build with %d MiB = %w; want an error that says that the disk is full", p.mib, full)
	}
	if err := small.addSpace(); err != nil {
		return err
	}
	if err := s.job.runCommand(ctx); err != nil {
		return fmt.Errorf("with space again: %w", err)
	}
	remains, err := s.listRemains(ctx)
	remains = slices.DeleteFunc(remains, func(r string) bool { return strings.Contains(r, small.at+" ext4") })
	if err != nil || len(remains) > 0 {
		return errors.Join(err, fmt.Errorf("left: %q", remains))
	}
	fmt.Fprintf(s.w, "%d MiB were not enough for %s; with more space the build ended well\n", p.mib, p.task)
	return nil
}

// smallDisk is a file system in a file, most of which another file takes.
type smallDisk struct{ file, at string }

const smallDiskMiB = 12 << 10

func newSmallDisk(ctx context.Context, dir, at string, freeMiB int64) (smallDisk, error) {
	d := smallDisk{filepath.Join(dir, "disk.ext4"), at}
	if err := os.MkdirAll(at, 0o755); err != nil {
		return d, err
	}
	for _, argv := range [][]string{
		{"truncate", "-s", fmt.Sprintf("%dM", smallDiskMiB), d.file},
		{"mke2fs", "-q", "-F", "-t", "ext4", "-m", "0", "-E", fmt.Sprintf("root_owner=%d:%d", os.Getuid(), os.Getgid()), d.file},
		{"sudo", "mount", "-o", "loop", d.file, at},
		{"fallocate", "-l", fmt.Sprintf("%dM", smallDiskMiB-512-freeMiB), d.ballast()}, // ext4 takes some itself
	} {
		if err := run.Run(ctx, run.Command{Argv: argv}); err != nil {
			return d, err
		}
	}
	return d, nil
}

func (d smallDisk) ballast() string { return filepath.Join(d.at, "ballast") }

func (d smallDisk) addSpace() error { return os.Remove(d.ballast()) }

func (d smallDisk) close(ctx context.Context) error {
	return errors.Join(run.Run(ctx, run.Command{Argv: []string{"sudo", "umount", d.at}}), os.Remove(d.file))
}
