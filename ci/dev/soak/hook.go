package soak

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sync/errgroup"

	"slipway/ci/dev/tinyboard"
	"slipway/layers/host"
)

// together is how many containers run at a time, in the phases with a twentieth of all.
const together = 8

// keptFiles is the folder of the files that the hook keeps between containers.
const keptFiles = "/run/slipway/"

// listAge is the time between two changes of the board's list.
const listAge = 50 * time.Millisecond

// Hook starts containers that get a board's files from our hook. A part of them run 8 at a
// time, also while the board's list changes, then the rest one after another. None may
// fail, and nothing may be left of them. It needs root and runc.
func Hook(ctx context.Context, w io.Writer, dir string, opt Options) error {
	if err := host.Ensure(ctx, w, filepath.Join(dir, "apt.log"), tinyboard.Packages...); err != nil {
		return err
	}
	if err := tinyboard.Needs(); err != nil {
		return err
	}
	hook := filepath.Join(dir, "slipway-hook")
	if err := tinyboard.BuildHook(ctx, hook); err != nil {
		return err
	}
	hosts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	size := tinyboard.Size{Libraries: 8, Links: 4, Devices: 2, Folders: 1}
	return tinyboard.In(filepath.Join(dir, "memory"), hook, size, func(b *tinyboard.Board) error {
		image, err := b.NewImage(ctx, b.Dir)
		if err != nil {
			return err
		}
		s := soakedHook{b, image, slices.Collect(mounts(hosts))}
		if err := s.keepPlan(ctx); err != nil {
			return err
		}
		return s.runPhases(ctx, w, opt.Containers)
	})
}

type soakedHook struct {
	board *tinyboard.Board
	image tinyboard.Image
	hosts []string // the mounts that the board's namespace began with
}

// mounts returns what is mounted where, of a mountinfo file.
func mounts(info []byte) iter.Seq[string] {
	return func(yield func(string) bool) {
		for line := range strings.Lines(string(info)) {
			what, from, _ := strings.Cut(line, " - ")
			if f := strings.Fields(what); len(f) > 4 && !yield(f[4]+" "+from) {
				return
			}
		}
	}
}

// boardMounts lists the mounts of the board's namespace but those of the host: they end
// here too when another program deletes their folder.
func (s soakedHook) boardMounts() (list string, err error) {
	info, err := os.ReadFile("/proc/thread-self/mountinfo")
	for m := range mounts(info) {
		if !slices.Contains(s.hosts, m) {
			list += m
		}
	}
	return list, err
}

// keepPlan runs containers until the hook keeps its plan: it keeps none of a board that
// changed a moment ago.
func (s soakedHook) keepPlan(ctx context.Context) error {
	const tries = 100
	for range tries {
		if err := s.runContainer(ctx); err != nil {
			return err
		}
		if _, err := os.Stat(keptFiles + "plan"); err == nil {
			return nil
		}
	}
	return fmt.Errorf("the hook kept no plan in %s after %d containers", keptFiles, tries)
}

func (s soakedHook) runPhases(ctx context.Context, w io.Writer, containers int) error {
	before, err := s.describeRemains()
	if err != nil {
		return err
	}
	few := max(together, containers/20)
	phases := []struct {
		name string
		run  func() error
	}{
		{fmt.Sprintf("%d containers, %d at a time", few, together), func() error { return s.startMany(ctx, few, together) }},
		{"as many while the board's list changes", func() error {
			return s.whileChanging(ctx, func(ctx context.Context) error { return s.startMany(ctx, few, together) })
		}},
		{fmt.Sprintf("%d containers, one after another", containers), func() error { return s.startMany(ctx, containers, 1) }},
	}
	for _, p := range phases {
		began := time.Now()
		if err := p.run(); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		fmt.Fprintf(w, "%s: %.1f s\n", p.name, time.Since(began).Seconds())
		after, err := s.describeRemains()
		if err == nil && after != before {
			err = fmt.Errorf("%s left\n%swant\n%s", p.name, after, before)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// startMany runs n containers, atOnce of them at a time.
func (s soakedHook) startMany(ctx context.Context, n, atOnce int) error {
	work, ctx := errgroup.WithContext(ctx)
	var begun atomic.Int64
	for range atOnce {
		work.Go(func() error {
			if err := s.board.Join(); err != nil {
				return err
			}
			for begun.Add(1) <= int64(n) {
				if err := s.runContainer(ctx); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return work.Wait()
}

// runContainer runs a container whose program fails if the board's files are missing, or
// ld.so does not find them.
func (s soakedHook) runContainer(ctx context.Context) error {
	library, soname := s.board.Library(0)
	script := fmt.Sprintf("set -e; grep -q %s %s; : > %s; %s", soname, library, s.board.Device(0), strings.Join(s.image.Proves(), " "))
	c, err := s.board.NewContainer(s.image, tinyboard.Busybox, "sh", "-c", script)
	if err != nil {
		return err
	}
	c.RequestDevices()
	c.CreateRuntime(s.board.Hook, "hook")
	return errors.Join(c.Configure(), c.Run(ctx), c.Close())
}

// whileChanging keeps changing the board's list, by rename, until work ends.
func (s soakedHook) whileChanging(ctx context.Context, work func(context.Context) error) error {
	group, ctx := errgroup.WithContext(ctx)
	changing, stop := context.WithCancel(ctx)
	group.Go(func() error {
		defer stop()
		return work(ctx)
	})
	group.Go(func() error {
		if err := s.board.Join(); err != nil {
			return err
		}
		for n := 0; changing.Err() == nil; n++ {
			if err := s.rewriteList(n); err != nil {
				return err
			}
			time.Sleep(listAge)
		}
		return s.rewriteList(0)
	})
	return group.Wait()
}

// rewriteList writes the list in another order and with a comment of its own. Version 0 is
// the original list.
func (s soakedHook) rewriteList(version int) error {
	text := s.board.List
	if version > 0 {
		lines := strings.Split(strings.TrimSpace(text), "\n")
		first := version % len(lines)
		text = fmt.Sprintf("# version %d\n%s\n", version, strings.Join(slices.Concat(lines[first:], lines[:first]), "\n"))
	}
	return renameio.WriteFile(tinyboard.Lists, []byte(text), 0o644)
}

// describeRemains lists what containers and the hook can leave behind. The result must be
// the same before and after.
func (s soakedHook) describeRemains() (string, error) {
	mounts, err := s.boardMounts()
	if err != nil {
		return "", err
	}
	hosts, err := os.ReadFile("/proc/1/mountinfo")
	if err != nil {
		return "", err
	}
	descriptors, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return "", err
	}
	states, err := os.ReadDir(s.board.State())
	if err != nil {
		return "", err
	}
	groups, err := s.listCgroups()
	if err != nil {
		return "", err
	}
	kept, err := filepath.Glob(keptFiles + "*")
	return fmt.Sprintf("in its namespace the mounts\n%son the host %d mounts\n%d containers of runc's, cgroups %q, programs %q, %d descriptors, kept files %q\n",
		mounts, strings.Count(string(hosts), s.board.Dir), len(states), groups, s.listPrograms(), len(descriptors), kept), err
}

// listCgroups returns the cgroups of the board's containers.
func (s soakedHook) listCgroups() (found []string, err error) {
	err = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // other cgroups can end meanwhile
		}
		if err == nil && strings.HasPrefix(d.Name(), s.board.Prefix()) {
			found = append(found, path)
		}
		return err
	})
	return found, err
}

// listPrograms returns the programs of the hook's processes and of the board's containers.
func (s soakedHook) listPrograms() (found []string) {
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range processes {
		exe, _ := os.Readlink(p + "/exe") // fails for processes that end meanwhile
		groups, _ := os.ReadFile(p + "/cgroup")
		if exe == s.board.Hook || strings.Contains(string(groups), s.board.Prefix()) {
			found = append(found, exe)
		}
	}
	return found
}
