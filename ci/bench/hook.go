package bench

import (
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"slipway/layers/engine"
	"slipway/layers/progress"
)

// What the board of the hook's bench gives: about as much as an R35 board.
const (
	hookLibs, hookLinks, hookDevices, hookFolders = 200, 60, 20, 5

	hookRounds = 30

	nvidiaModule  = "github.com/NVIDIA/nvidia-container-toolkit"
	nvidiaVersion = "v1.20.1"
)

// Hook measures what it costs to give a container its board's files: the life of
// a runc container (create, start, exit, delete) on a fresh overlay without them,
// with our hook at createRuntime, and with NVIDIA's runtime in CSV mode. That one
// also makes an ld cache in each container, which ours does not do, so it is
// measured without that too; the libraries hold no code here, so a cache costs
// less than on a board. It needs root, runc, and once the network, for NVIDIA's
// programs.
func Hook(ctx context.Context, w io.Writer) error {
	if err := hookNeeds(); err != nil {
		return err
	}
	b, err := newHookBench(ctx)
	if err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	var rows []Row
	err = inNamespace(func() error {
		if err := b.furnish(); err != nil {
			return err
		}
		defer b.clean()
		if err := b.prove(ctx); err != nil {
			return err
		}
		rows, err = Measure(ctx, hookRounds, b.variant("plain runc", plain), b.variant("slipway-hook, createRuntime", ours),
			b.variant("nvidia-container-runtime, csv, without update-ldcache", peer), b.variant("nvidia-container-runtime, csv, as it comes", peerCache))
		return err
	})
	if err != nil {
		return err
	}
	return printHook(w, rows)
}

// The kinds of containers.
const (
	plain     = "plain"
	ours      = "ours"
	peer      = "peer"
	peerCache = "peer-ldcache" // with an ld cache, so that programs find libraries in any folder
)

func printHook(w io.Writer, rows []Row) error {
	plain, ours, peer, peerCache := rows[0], rows[1], rows[2], rows[3]
	added := func(r Row) float64 { return float64(r.Median() - plain.Median()) }
	if added(ours) <= 0 {
		return fmt.Errorf("a container with the hook took %v, without it %v: the machine is too busy to measure", ours.Median(), plain.Median())
	}
	return Print(w, rows, Over("ours_over_plain", ours, plain),
		Over("peer_over_plain", peer, plain), Ratio{"added_peer_over_ours", added(peer) / added(ours)},
		Over("peer_ldcache_over_plain", peerCache, plain), Ratio{"added_peer_ldcache_over_ours", added(peerCache) / added(ours)})
}

func hookNeeds() error {
	if os.Getuid() != 0 {
		return errors.New("needs root: it mounts overlays and runs containers")
	}
	if _, err := exec.LookPath("runc"); err != nil {
		return errors.New("needs runc; apt-get install runc")
	}
	if _, err := os.Stat("runtime-hook/go.mod"); err != nil {
		return errors.New("builds the hook from runtime-hook; run it in the clone")
	}
	return nil
}

// hookBench is a machine with a board's files, on a tmpfs of its own.
type hookBench struct {
	dir    string // the tmpfs
	ours   string // our hook
	peers  string // the folder of NVIDIA's programs
	serial int
}

func newHookBench(ctx context.Context) (*hookBench, error) {
	root, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	b := &hookBench{ours: filepath.Join(root, "build/bench/slipway-hook"), peers: filepath.Join(root, "build/peers")}
	err = engine.Run(ctx, engine.Command{
		Argv: []string{"go", "build", "-C", "runtime-hook", "-trimpath", "-ldflags=-s -w", "-o", b.ours, "."},
		Env:  []string{"CGO_ENABLED=0"},
	})
	if err != nil {
		return nil, err
	}
	if err := progress.Run(ctx, "NVIDIA's container toolkit", func(*progress.Step) (string, error) { return nvidiaVersion, b.buildPeer(ctx) }); err != nil {
		return nil, err
	}
	b.dir, err = os.MkdirTemp("", "slipway-bench-hook-")
	return b, err
}

func (b *hookBench) buildPeer(ctx context.Context) error {
	info, err := buildinfo.ReadFile(filepath.Join(b.peers, "nvidia-container-runtime"))
	if err == nil && info.Main.Version == nvidiaVersion {
		return nil
	}
	return engine.Run(ctx, engine.Command{
		Argv: []string{"go", "install", nvidiaModule + "/cmd/...@" + nvidiaVersion},
		Env:  []string{"GOBIN=" + b.peers},
		Log:  filepath.Join(b.peers, "install.log"),
	})
}

// inNamespace calls work on a thread with a mount namespace of its own, and so
// are the programs that work starts. What it mounts ends with the thread, which
// Go ends as it is never unlocked.
func inNamespace(work func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
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

// furnish mounts the bench's memory, an /etc that can be written to and an empty
// /run, and writes the board's files and lists.
func (b *hookBench) furnish() error {
	if err := unix.Mount("tmpfs", b.dir, "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mount a tmpfs: %w", err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mount a tmpfs: %w", err)
	}
	if err := b.overlay("/etc", "/etc", "etc"); err != nil {
		return err
	}
	lists, err := b.board()
	if err != nil {
		return err
	}
	if err := writeNew("/etc/nvidia-container-runtime/host-files-for-container.d/l4t.csv", []byte(lists), 0o644); err != nil {
		return err
	}
	// NVIDIA's hook fails where an image has no /etc.
	if err := os.MkdirAll(filepath.Join(b.dir, "image/etc"), 0o755); err != nil {
		return err
	}
	// The container's program is our own: static, there already, and quick to end.
	program, err := os.ReadFile(b.ours)
	if err != nil {
		return err
	}
	return writeNew(filepath.Join(b.dir, "image/bin/program"), program, 0o755)
}

// peerConfig is the file that NVIDIA's runtime reads for a kind of container.
func (b *hookBench) peerConfig(kind string) string {
	disabled := ""
	if kind == peer {
		disabled = `"update-ldcache"`
	}
	return fmt.Sprintf(`[nvidia-ctk]
path = %q
[nvidia-container-runtime-hook]
path = %q
[nvidia-container-runtime]
mode = "csv"
runtimes = ["runc"]
[nvidia-container-runtime.modes.jit-cdi]
nvcdi-disable-hooks = [%s]
`, filepath.Join(b.peers, "nvidia-ctk"), filepath.Join(b.peers, "nvidia-container-runtime-hook"), disabled)
}

// board makes the board's files and returns the list of them.
func (b *hookBench) board() (string, error) {
	var list strings.Builder
	var errs []error
	each := func(n int, kind, pattern string, make func(p string, i int) error) {
		for i := range n {
			p := filepath.Join(b.dir, "board", fmt.Sprintf(pattern, i))
			fmt.Fprintf(&list, "%s, %s\n", kind, p)
			errs = append(errs, make(p, i))
		}
	}
	each(hookLibs, "lib", "lib/libboard%d.so.1.0", func(p string, _ int) error { return writeNew(p, []byte(p), 0o644) })
	each(hookLinks, "sym", "lib/libboard%d.so", func(p string, i int) error { return os.Symlink(fmt.Sprintf("libboard%d.so.1.0", i), p) })
	each(hookFolders, "dir", "share/folder%d", func(p string, _ int) error { return writeNew(p+"/file", nil, 0o644) })
	if err := os.MkdirAll(filepath.Join(b.dir, "board/dev"), 0o755); err != nil {
		return "", err
	}
	each(hookDevices, "dev", "dev/board%d", func(p string, _ int) error { return unix.Mknod(p, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))) })
	return list.String(), errors.Join(errs...)
}

func writeNew(p string, data []byte, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		return err
	}
	return os.WriteFile(p, data, mode)
}

// overlay mounts a fresh overlay over lower at at, with its changes in name.
func (b *hookBench) overlay(lower, at, name string) error {
	upper, work := filepath.Join(b.dir, name, "upper"), filepath.Join(b.dir, name, "work")
	if err := errors.Join(os.RemoveAll(filepath.Join(b.dir, name)), os.MkdirAll(upper, 0o755), os.MkdirAll(work, 0o755), os.MkdirAll(at, 0o755)); err != nil {
		return err
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", lower, upper, work)
	if err := unix.Mount("overlay", at, "overlay", 0, options); err != nil {
		return fmt.Errorf("mount an overlay on %s: %w", at, err)
	}
	return nil
}

// clean lets go of the tmpfs, so that its folder can be removed while the thread
// is still ending.
func (b *hookBench) clean() { _ = unix.Unmount(b.dir, unix.MNT_DETACH) }

func (b *hookBench) variant(name, kind string) Variant {
	return Variant{
		Name:    name,
		Prepare: func(context.Context) error { return b.bundle(kind) },
		Run:     func(ctx context.Context) error { return b.live(ctx, kind, nil) },
	}
}

// bundle makes kind's bundle anew: NVIDIA's runtime writes into config.json.
func (b *hookBench) bundle(kind string) error {
	b.serial++
	rootfs := filepath.Join(b.dir, kind, "rootfs")
	if err := unix.Unmount(rootfs, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount %s: %w", rootfs, err)
	}
	if err := b.overlay(filepath.Join(b.dir, "image"), rootfs, kind+".changes"); err != nil {
		return err
	}
	if err := writeNew("/etc/nvidia-container-runtime/config.toml", []byte(b.peerConfig(kind)), 0o644); err != nil {
		return err
	}
	config, err := json.Marshal(b.spec(kind))
	if err != nil {
		return err
	}
	return writeNew(filepath.Join(b.dir, kind, "config.json"), config, 0o644)
}

func (b *hookBench) spec(kind string) specs.Spec {
	s := specs.Spec{
		Version: "1.0.2",
		Root:    &specs.Root{Path: "rootfs"},
		Process: &specs.Process{Cwd: "/", Args: []string{"/bin/program", "version"}, Env: []string{"PATH=/bin"}},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755"}},
		},
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{
			{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.NetworkNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace},
		}},
	}
	if kind != plain {
		s.Process.Env = append(s.Process.Env, "NVIDIA_VISIBLE_DEVICES=all")
	}
	if kind == ours {
		s.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{Path: b.ours, Args: []string{"slipway-hook", "hook"}, Env: []string{"PATH=/usr/bin:/bin"}}}}
	}
	return s
}

// live takes a container through its whole life. inside, where not nil, looks at
// it before it starts, through its first process.
func (b *hookBench) live(ctx context.Context, kind string, inside func(pid string) error) (err error) {
	program := "runc"
	if kind == peer || kind == peerCache {
		program = filepath.Join(b.peers, "nvidia-container-runtime")
	}
	id := fmt.Sprintf("slipway-bench-%d-%d", os.Getpid(), b.serial)
	state, pidFile := filepath.Join(b.dir, "state"), filepath.Join(b.dir, "pid")
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	// No command is stopped half-way: each takes a fraction of a second, and a
	// create that does not end leaves cgroups that no delete knows of.
	call := func(args ...string) error {
		return b.runtime(context.WithoutCancel(ctx), append([]string{program, "--root", state}, args...))
	}
	if err := call("create", "--bundle", filepath.Join(b.dir, kind), "--pid-file", pidFile, id); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, call("delete", "--force", id)) }()
	pid, err := os.ReadFile(pidFile)
	if err != nil {
		return err
	}
	if inside != nil {
		if err := inside(string(pid)); err != nil {
			return err
		}
	}
	ended, err := watch(string(pid))
	if err != nil {
		return err
	}
	defer unix.Close(ended)
	if err := call("start", id); err != nil {
		return err
	}
	return await(ctx, ended)
}

// runtime runs one command of a container runtime. Its output goes to a file:
// the container inherits it, and a pipe would stay open as long as that lives.
func (b *hookBench) runtime(ctx context.Context, argv []string) error {
	out, err := os.Create(filepath.Join(b.dir, "output"))
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := engine.Prepare(ctx, engine.Command{Argv: argv})
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		text, _ := os.ReadFile(out.Name())
		return fmt.Errorf("%s: %w\n%s", strings.Join(argv, " "), err, text)
	}
	return nil
}

func watch(pid string) (int, error) {
	var n int
	if _, err := fmt.Sscan(pid, &n); err != nil {
		return -1, fmt.Errorf("the runtime's pid file says %q: %w", pid, err)
	}
	return unix.PidfdOpen(n, 0)
}

// await waits for the process behind the descriptor to end.
func await(ctx context.Context, pidfd int) error {
	for ctx.Err() == nil {
		fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 100)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if n > 0 {
			return nil
		}
	}
	return context.Cause(ctx)
}

// prove runs each variant once and counts what its container has, so that no
// variant is quick because it does nothing.
func (b *hookBench) prove(ctx context.Context) error {
	full := given(hookLibs+hookFolders, hookLinks, hookDevices, false)
	want := map[string]string{
		plain: given(0, 0, 0, false), ours: full, peer: full,
		peerCache: given(hookLibs+hookFolders, hookLinks, hookDevices, true),
	}
	for _, kind := range []string{plain, ours, peer, peerCache} {
		if err := b.bundle(kind); err != nil {
			return err
		}
		err := b.live(ctx, kind, func(pid string) error {
			got, err := b.inside(pid)
			if err == nil && got != want[kind] {
				err = fmt.Errorf("%s: the container has %s; want %s", kind, got, want[kind])
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func given(mounts, links, devices int, cache bool) string {
	return fmt.Sprintf("%d mounts, %d links, %d devices, an ld cache: %v", mounts, links, devices, cache)
}

// inside counts what the container of the process has of the board.
func (b *hookBench) inside(pid string) (string, error) {
	table, err := os.ReadFile("/proc/" + pid + "/mountinfo")
	if err != nil {
		return "", err
	}
	board := filepath.Join("/proc", pid, "root", b.dir, "board")
	count := func(pattern string, kind os.FileMode) (n int) {
		names, _ := filepath.Glob(filepath.Join(board, pattern))
		for _, name := range names {
			if info, err := os.Lstat(name); err == nil && info.Mode()&kind == kind {
				n++
			}
		}
		return n
	}
	mounts := strings.Count(string(table), " "+b.dir+"/board/lib/") + strings.Count(string(table), " "+b.dir+"/board/share/")
	_, err = os.Lstat(filepath.Join("/proc", pid, "root/etc/ld.so.cache"))
	return given(mounts, count("lib/*", os.ModeSymlink), count("dev/*", os.ModeCharDevice), err == nil), nil
}
