package bench

import (
	"context"
	"debug/buildinfo"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"slipway/layers/progress"
	"slipway/layers/run"
)

// hookMethod is one method to add the board's files to a container.
type hookMethod struct {
	name    string
	runtime string // runc, or a wrapper of it
	hook    string // in the container's spec, if there is one
	plain   bool   // the container gets none of the files
}

// The floor is a hook that checks nothing. As a wrapper it only becomes runc.
var hookMethods = []hookMethod{
	{name: "plain runc", runtime: "runc", plain: true},
	{name: "nvidia-container-runtime, csv", runtime: "{peers}/nvidia-container-runtime"},
	{name: "slipway-hook, createRuntime", runtime: "runc", hook: "{ours} hook"},
	{name: "slipway-hook runtime", runtime: "{ours} runtime"},
	{name: "floor, createRuntime", runtime: "runc", hook: "{floor} {plan}"},
	{name: "floor runtime", runtime: "{floor} runtime", hook: "{floor} {plan}"},
}

// hookMethods returns the methods, with those of the earlier checkout.
func (s *session) hookMethods() []hookMethod {
	all := slices.Clone(hookMethods)
	for _, m := range hookMethods {
		method := m
		m.runtime, m.hook = strings.ReplaceAll(m.runtime, "{ours}", "{before}"), strings.ReplaceAll(m.hook, "{ours}", "{before}")
		if s.Before != "" && m != method {
			m.name = earlierPrefix + m.name
			all = append(all, m)
		}
	}
	return all
}

var hookMedia = []string{"tmpfs", "disk"}

func hookNames() (names []string) {
	for _, medium := range hookMedia {
		for _, m := range hookMethods {
			names = append(names, medium+": "+m.name)
		}
	}
	return names
}

// hookRatios are what each method adds to plain runc, relative to what another adds, in
// elapsed time and in processor time.
func hookRatios() (all []ratio) {
	for _, medium := range hookMedia {
		for _, r := range []ratio{
			{name: "hook_over_peer", over: "slipway-hook, createRuntime", under: "nvidia-container-runtime, csv"},
			{name: "hook_over_floor", over: "slipway-hook, createRuntime", under: "floor, createRuntime"},
			{name: "wrapper_over_peer", over: "slipway-hook runtime", under: "nvidia-container-runtime, csv"},
			{name: "wrapper_over_floor", over: "slipway-hook runtime", under: "floor, createRuntime"},
			{name: "wrapper_over_wrapper_floor", over: "slipway-hook runtime", under: "floor runtime"},
		} {
			r.name += "_" + medium
			r.over, r.under, r.base = medium+": "+r.over, medium+": "+r.under, medium+": plain runc"
			added, cpu := r, r
			added.name, cpu.name, cpu.cpu = "added_"+r.name, "cpu_"+r.name, true
			all = append(all, added, cpu)
		}
	}
	return all
}

// boardScript makes a board, and prints the path of ld.so in its image.
//
//go:embed board.sh
var boardScript string

// hookBench is a board, with the programs that add its files to containers.
type hookBench struct {
	dir        string // a tmpfs
	list       string // of the board's files: kind, comma, path
	loader     string // ld.so in the image
	words      *strings.Replacer
	last       *container // still mounted
	containers int
}

// measureHook measures the cost of adding the board's files to a container: the life of a runc
// container (create, start, exit, delete) on a fresh overlay, in memory and on a disk.
func measureHook(ctx context.Context, s *session) error {
	peers, err := filepath.Abs("build/peers")
	if err != nil {
		return err
	}
	floor, dir := filepath.Join(s.dir, "floor"), filepath.Join(s.dir, "board")
	build := run.Command{Argv: []string{"go", "build", "-o", floor, "./ci/dev/bench/floor"}, Env: []string{"CGO_ENABLED=0"}}
	err = errors.Join(s.buildProgram(ctx, "runtime-hook", "."), run.Run(ctx, build), buildPeers(ctx, peers), os.Mkdir(dir, 0o755))
	if err != nil {
		return err
	}
	b := &hookBench{dir: dir}
	b.words = strings.NewReplacer("{peers}", peers, "{before}", s.program+earlierSuffix, "{ours}", s.program, "{floor}", floor, "{plan}", b.path("floor.plan"))
	return inMountNamespace(func() error {
		defer b.close()
		if err := b.prepare(ctx, s, peers); err != nil {
			return err
		}
		var variants []variant
		for _, medium := range hookMedia {
			for _, m := range s.hookMethods() {
				if err := b.checkContainer(ctx, medium, m); err != nil {
					return fmt.Errorf("%s, %s: %w", medium, m.name, err)
				}
				variants = append(variants, b.variant(medium, m))
			}
		}
		rows, err := s.measure(ctx, variants)
		if err != nil {
			return err
		}
		return s.print(rows, hookRatios())
	})
}

// inMountNamespace calls work on a thread with a mount namespace of its own. So are the
// programs that work starts. What it mounts ends with the thread, which Go ends as it is never
// unlocked.
func inMountNamespace(work func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) // what runc create leaves becomes our child
		if err == nil {
			err = unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
		}
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			err = work()
		}
		done <- err
	}()
	return <-done
}

func (b *hookBench) path(name string) string { return filepath.Join(b.dir, name) }

const (
	nvidiaModule  = "github.com/NVIDIA/nvidia-container-toolkit"
	nvidiaVersion = "v1.20.1"
)

// buildPeers builds NVIDIA's programs in dir.
func buildPeers(ctx context.Context, dir string) error {
	return progress.Run(ctx, "NVIDIA's container toolkit", func(*progress.Step) (string, error) {
		info, err := buildinfo.ReadFile(filepath.Join(dir, "nvidia-container-runtime"))
		if err == nil && info.Main.Version == nvidiaVersion {
			return nvidiaVersion, nil
		}
		return nvidiaVersion, run.Run(ctx, run.Command{
			Argv: []string{"go", "install", nvidiaModule + "/cmd/...@" + nvidiaVersion},
			Env:  []string{"GOBIN=" + dir},
			Log:  filepath.Join(dir, "install.log"),
		})
	})
}

// prepare makes the board, its image on both media, the peer's configuration, and the floor's
// plan.
func (b *hookBench) prepare(ctx context.Context, s *session, peers string) error {
	loader, err := run.Output(ctx, run.Command{Argv: []string{"sh", "-euc", boardScript, "sh", b.dir, s.program}})
	if err != nil {
		return err
	}
	b.loader = strings.TrimSpace(string(loader))
	list, err := os.ReadFile(b.path("list"))
	if err != nil {
		return err
	}
	b.list = string(list)
	if err := os.Mkdir(b.path("disk"), 0o755); err != nil {
		return err
	}
	// The disk has space for the changes of all containers. None is removed: see mountNewDisk.
	if err := mountNewDisk(ctx, filepath.Join(s.dir, "disk"), 2<<30, b.path("disk")); err != nil {
		return err
	}
	config := fmt.Sprintf(`[nvidia-ctk]
path = "%[1]s/nvidia-ctk"
[nvidia-container-runtime-hook]
path = "%[1]s/nvidia-container-runtime-hook"
[nvidia-container-runtime]
mode = "csv"
runtimes = ["runc"]
`, peers)
	return errors.Join(
		run.Run(ctx, run.Command{Argv: []string{"cp", "-a", b.path("tmpfs/image"), b.path("disk/image")}}),
		os.WriteFile("/etc/nvidia-container-runtime/config.toml", []byte(config), 0o644),
		os.WriteFile(b.path("floor.plan"), []byte(b.floorPlan()), 0o644),
	)
}

// close unmounts the disk and the memory, so that their files can be removed.
func (b *hookBench) close() {
	if b.last != nil {
		_ = b.last.close()
	}
	_ = unix.Unmount(b.path("disk"), unix.MNT_DETACH)
	_ = unix.Unmount(b.dir, unix.MNT_DETACH)
}

// variant measures the life of a container on a medium that gets the files by a method.
func (b *hookBench) variant(medium string, m hookMethod) variant {
	return variant{
		name: medium + ": " + m.name,
		prepare: func(context.Context) error {
			err := b.newContainer(medium, m, "/usr/bin/program")
			time.Sleep(20 * time.Millisecond) // the kernel removes the mounts of the last one in the background
			return err
		},
		work: func(ctx context.Context) error { return b.last.live(ctx, b.argv(m.runtime), nil) },
	}
}

// argv splits a command, and puts paths in place of its words in braces.
func (b *hookBench) argv(command string) (argv []string) {
	for word := range strings.FieldsSeq(command) {
		argv = append(argv, b.words.Replace(word))
	}
	return argv
}

// newContainer makes a new container for each life, as NVIDIA's runtime writes into
// config.json. It syncs earlier writes to the disk, so that they are not measured.
func (b *hookBench) newContainer(medium string, m hookMethod, argv ...string) (err error) {
	if b.last != nil {
		if err := b.last.close(); err != nil {
			return err
		}
	}
	env := []string{"PATH=/usr/bin"}
	if !m.plain {
		env = append(env, "NVIDIA_VISIBLE_DEVICES=all")
	}
	b.containers++
	b.last, err = newContainer(b.dir, medium, b.containers, containerConfig(argv, env, b.argv(m.hook)))
	if err != nil {
		return err
	}
	top, err := os.Open(b.path(medium))
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(top.Fd())), top.Close())
}

// checkContainer runs a container once and counts the board's files in it, and the libraries
// that ld.so finds, so that no method is fast because it does nothing. It keeps the ld cache
// of a container for the floor.
func (b *hookBench) checkContainer(ctx context.Context, medium string, m hookMethod) error {
	if err := b.newContainer(medium, m, b.loader, "--list", "/usr/lib/proof.so"); err != nil {
		return err
	}
	files := 0
	err := b.last.live(ctx, b.argv(m.runtime), func(pid string) error {
		root := filepath.Join("/proc", pid, "root")
		for _, path := range b.files {
			if _, err := os.Lstat(root + path); err == nil {
				files++
			}
		}
		if m.plain || strings.HasPrefix(m.hook, "{floor}") {
			return nil
		}
		cache, err := os.ReadFile(filepath.Join(root, "etc/ld.so.cache"))
		return errors.Join(err, os.WriteFile(b.path("ld.so.cache"), cache, 0o644))
	})
	if err != nil {
		return err
	}
	text, err := os.ReadFile(b.last.output())
	if err != nil {
		return err
	}
	found := strings.Count(string(text), "=> "+b.path("lib/"))
	want, libraries := strings.Count(b.list, "\n"), strings.Count(b.list, "lib, ")
	if m.plain {
		want, libraries = 0, 0
	}
	if files != want || found != libraries {
		return fmt.Errorf("the container has %d of the board's files, not %d, and ld.so finds %d of its libraries, not %d\n%s", files, want, found, libraries, text)
	}
	return nil
}

// floorPlan returns the plan for the floor: the folders that the image lacks, the outer ones
// first, and the files of each.
func (b *hookBench) floorPlan() string {
	lines := []string{"cache\t" + b.path("ld.so.cache")}
	there := map[string]bool{"/": true, "/dev": true}
	for dir := b.path("lib"); dir != "/"; dir = filepath.Dir(dir) {
		there[dir] = true
	}
	var folder func(dir string)
	folder = func(dir string) {
		if !there[dir] {
			there[dir] = true
			folder(filepath.Dir(dir))
			lines = append(lines, "make\t"+dir)
		}
	}
	in := map[string][]string{}
	for kind, path := range b.files {
		dir, name := filepath.Dir(path), filepath.Base(path)
		target, _ := os.Readlink(path) // of a link
		folder(dir)
		in[dir] = append(in[dir], kind+"\t"+name+"\t"+target)
	}
	for _, dir := range slices.Sorted(maps.Keys(in)) {
		lines = append(append(lines, "in\t"+dir), in[dir]...)
	}
	return strings.Join(lines, "\n") + "\n"
}

// files yields the board's files, with the words of its list for their kinds.
func (b *hookBench) files(yield func(kind, path string) bool) {
	for line := range strings.Lines(b.list) {
		kind, path, _ := strings.Cut(strings.TrimSpace(line), ", ")
		if !yield(kind, path) {
			return
		}
	}
}
