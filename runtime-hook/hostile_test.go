package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"

	"golang.org/x/sys/unix"
)

// deadline is how long a hook may take over whatever it is given.
const deadline = 10 * time.Second

// hostile runs the hook itself, with what a hostile runtime would write to it.
func hostile(t *testing.T, stdin io.Reader) (stderr string, err error) {
	t.Helper()
	return hostileTo(t, stdin, "hook")
}

// hostileTo does the same with another command.
func hostileTo(t *testing.T, stdin io.Reader, args ...string) (stderr string, err error) {
	t.Helper()
	binary := hookBinary(t)
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Stdin, cmd.WaitDelay = stdin, time.Second
	var out bytes.Buffer
	cmd.Stderr = &out
	err = cmd.Run()
	if ctx.Err() != nil {
		t.Fatalf("the hook hangs; so far it said %.300q", out.String())
	}
	return out.String(), err
}

func state(t *testing.T, pid int, bundle string) io.Reader {
	t.Helper()
	data, err := json.Marshal(map[string]any{"ociVersion": "1.0.2", "id": "hostile", "pid": pid, "bundle": bundle})
	must(t, err)
	return bytes.NewReader(data)
}

// endless gives its bytes again and again.
type endless string

func (e endless) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		n += copy(p[n:], e)
	}
	return n, nil
}

func TestHostileState(t *testing.T) {
	newLab(t, "runc")
	tests := map[string]io.Reader{
		"endless spaces": endless(" "),
		"endless text":   io.MultiReader(strings.NewReader(`{"id":"`), endless("x")),
		"endless depth":  endless(`{"annotations":`),
		"endless list":   io.MultiReader(strings.NewReader(`{"annotations":[`), endless("1,")),
		"a long id":      strings.NewReader(`{"id":"` + strings.Repeat("x", 1<<19) + `","pid":1,"bundle":"/b"}`),
		"a long bundle":  strings.NewReader(`{"id":"c","pid":1,"bundle":"` + strings.Repeat("x", 1<<19) + `"}`),
		"a long path":    strings.NewReader(`{"id":"c","pid":1,"bundle":"/` + strings.Repeat("x/", 1<<18) + `"}`),
		"numbers":        strings.NewReader(`{"id":"c","pid":99999999999999999999,"bundle":"/b"}`),
		"escapes":        strings.NewReader(`{"id":"c","pid":1,"bundle":"/\u001b[31m\nred"}`),
	}
	for name, stdin := range tests {
		out, err := hostile(t, stdin)
		plainRefusal(t, name, out, err)
	}
}

// plainRefusal wants one line that is short and holds nothing for a terminal.
func plainRefusal(t *testing.T, name, stderr string, err error) {
	t.Helper()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("%s: %v; want that the hook refuses, with status 1", name, err)
	}
	onePlainLine(t, name, stderr)
}

// onePlainLine wants what a person can read, and nothing that a terminal obeys.
func onePlainLine(t *testing.T, name, said string) {
	t.Helper()
	line, ended := strings.CutSuffix(said, "\n")
	if !ended || len(line) > 16<<10 || strings.ContainsFunc(line, func(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) }) {
		t.Errorf("%s: said %.300q; want one plain line", name, said)
	}
}

// What stands where a bundle's config.json should.
func TestHostileConfig(t *testing.T) {
	l := newLab(t, "runc")
	pid := l.process()
	good := `{"root":{"path":"rootfs"},"process":{"env":["NVIDIA_VISIBLE_DEVICES=all"]},"linux":{"namespaces":[{"type":"mount"}]}`
	tests := map[string]func(p string) error{
		"a FIFO":       func(p string) error { return unix.Mkfifo(p, 0o644) },
		"a folder":     func(p string) error { return os.Mkdir(p, 0o755) },
		"a link to it": func(p string) error { return os.Symlink("config.json", p) },
		"endless":      func(p string) error { return os.Symlink("/dev/zero", p) },
		"a terminal":   func(p string) error { return os.Symlink("/dev/ptmx", p) },
		"100 MB":       func(p string) error { return sparse(p, good+"}", 100<<20) },
		"deep":         func(p string) error { return os.WriteFile(p, []byte(good+`,"x":`+strings.Repeat("[", 10<<20)), 0o644) },
		"deep in mounts": func(p string) error {
			return os.WriteFile(p, []byte(good+`,"mounts":`+strings.Repeat(`[{"options":`, 1<<20)), 0o644)
		},
		"many mounts": func(p string) error {
			return os.WriteFile(p, []byte(good+`,"mounts":[`+strings.Repeat(`{"destination":"/a","options":["ro"]},`, 1<<19)+"{}], 7}"), 0o644)
		},
		"the wrong types":  func(p string) error { return os.WriteFile(p, []byte(`{"root":[],"process":7,"mounts":{}}`), 0o644) },
		"a root of a type": func(p string) error { return os.WriteFile(p, []byte(`{"root":{"path":{"a":1}}}`), 0o644) },
		"a long root": func(p string) error {
			return os.WriteFile(p, []byte(strings.Replace(good, "rootfs", strings.Repeat("x/", 1<<19), 1)+"}"), 0o644)
		},
		"keys twice": func(p string) error {
			return os.WriteFile(p, []byte(good+`,"root":{"path":""},"Root":{"Path":""}}`), 0o644)
		},
		"the root is FIFO": func(p string) error {
			return errors.Join(unix.Mkfifo(filepath.Dir(p)+"/rootfs", 0o644), os.WriteFile(p, []byte(good+"}"), 0o644))
		},
		"escapes in a name": func(p string) error {
			return os.WriteFile(p, []byte(strings.Replace(good, `"rootfs"`, `"\u001b[31m\u009b\n"`, 1)+"}"), 0o644)
		},
	}
	for name, make := range tests {
		bundle := filepath.Join(l.dir, name)
		must(t, os.Mkdir(bundle, 0o755))
		must(t, make(filepath.Join(bundle, "config.json")))
		out, err := hostile(t, state(t, pid, bundle))
		plainRefusal(t, name, out, err)
	}
}

// sparse writes text and then bytes that take no space on the disk.
func sparse(p, text string, size int64) error {
	if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
		return err
	}
	return os.Truncate(p, size)
}

// What stands where the bundle should.
func TestHostileBundle(t *testing.T) {
	dir := newLab(t, "runc").dir
	must(t, unix.Mkfifo(dir+"/fifo", 0o644))
	must(t, os.Symlink("link", dir+"/link"))
	must(t, os.Symlink("/proc/self/fd/0", dir+"/stdin"))
	for _, bundle := range []string{"fifo", "link", "stdin", "stdin/..", "no", "\x1b[31m", strings.Repeat("x/", 4000)} {
		out, err := hostile(t, state(t, 1, filepath.Join(dir, bundle)))
		plainRefusal(t, fmt.Sprintf("%.40q", bundle), out, err)
	}
}

// process is one with a mount namespace of its own, as a container's has.
func (l *lab) process() (pid int) {
	l.t.Helper()
	pid, end := l.processFor()
	l.t.Cleanup(end)
	return pid
}

func (l *lab) processFor() (pid int, end func()) {
	l.t.Helper()
	sleep := exec.Command("sleep", "300")
	sleep.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	must(l.t, sleep.Start())
	return sleep.Process.Pid, func() { sleep.Process.Kill(); sleep.Wait() }
}

// container is the first process of a container as the hook finds it at createRuntime: its root is
// mounted, in a mount namespace of its own. No runtime is needed, so it is quick.
func (l *lab) container() (pid int) {
	l.t.Helper()
	l.bundle()
	return l.process()
}

func (l *lab) bundle() {
	l.t.Helper()
	config := `{"root":{"path":"rootfs"},"process":{"env":["NVIDIA_VISIBLE_DEVICES=all"]},"linux":{"namespaces":[{"type":"mount"}]}}`
	write(l.t, filepath.Join(l.dir, "bundle/config.json"), config)
	must(l.t, unix.Mount(l.rootfs(""), l.rootfs(""), "", unix.MS_BIND|unix.MS_REC, ""))
}

// A state or a configuration that leads the hook to a folder or a process of the
// board changes nothing there.
func TestHostileTarget(t *testing.T) {
	outside := t.TempDir()
	l := newLab(t, "runc")
	write(t, "/opt/board/a.so", "board a")
	write(t, "/opt/victim/file", "the board's own")
	l.lists("lib, /opt/board/a.so", "dev, /dev/full")
	pid, gone := l.process(), l.process()
	must(t, unix.Kill(gone, unix.SIGKILL))
	tests := []struct {
		name string
		pid  int
		root string
	}{
		{"a folder of the board", pid, "/opt/victim"},
		{"the board's root", pid, "/"},
		{"a link to the board's root", pid, "/proc/self/root"},
		{"a file of the board", pid, "/opt/victim/file"},
		{"a process of the board", os.Getpid(), outside},
		{"the first process", 1, outside},
		{"the hook's parent", -1, "/opt/victim"},
		{"no process", 0, "/opt/victim"},
		{"a process that has ended", gone, "/opt/victim"},
		{"a process that is no more", 1 << 30, "/opt/victim"},
	}
	for _, tt := range tests {
		config := fmt.Sprintf(`{"root":{"path":%q},"process":{"env":["NVIDIA_VISIBLE_DEVICES=all"]},"linux":{"namespaces":[{"type":"mount"}]}}`, tt.root)
		write(t, filepath.Join(l.dir, "bundle/config.json"), config)
		before, beforeMounts := look(t), mountsOf(t, os.Getpid())
		out, err := hostile(t, state(t, tt.pid, filepath.Join(l.dir, "bundle")))
		plainRefusal(t, tt.name, out, err)
		if after := look(t); after != before {
			t.Errorf("%s: the board changed:\n%s", tt.name, added(before, after))
		}
		if got := mountsOf(t, os.Getpid()); got != beforeMounts {
			t.Errorf("%s: the board's mounts changed:\n%s", tt.name, added(beforeMounts, got))
		}
		if list, err := os.ReadDir(outside); err != nil || len(list) > 0 {
			t.Errorf("%s: the board's folder holds %v, %v", tt.name, list, err)
		}
	}
}

// In a container that runs already, every path is the container's, those of /proc
// too: the hook leaves it.
func TestHostileRoot(t *testing.T) {
	l := newLab(t, "runc")
	l.shell()
	write(t, "/opt/board/a.so", "board a")
	l.lists("lib, /opt/board/a.so")
	l.bundle()
	for _, name := range []string{"1", "thread-self"} {
		write(t, l.rootfs("/proc/"+name+"/ns/mnt"), name)
	}
	must(t, os.MkdirAll(l.rootfs(l.rootfs("")), 0o755))
	must(t, os.Mkdir(l.rootfs("/board"), 0o755))
	busybox := l.rootfs("/bin/busybox")
	script := fmt.Sprintf("cd %[1]s && pivot_root . board && cd / && /bin/busybox umount -l /board && /bin/busybox mount -t tmpfs x %[1]s && echo in && exec /bin/busybox sleep 300", l.rootfs(""))
	container := exec.Command("unshare", "--mount", busybox, "sh", "-c", script)
	started, err := container.StdoutPipe()
	must(t, err)
	must(t, container.Start())
	defer func() { container.Process.Kill(); container.Wait() }()
	if _, err := started.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	hook := exec.Command(l.hookArgv()[0], "hook")
	hook.Stdin = state(t, container.Process.Pid, filepath.Join(l.dir, "bundle"))
	out, err := hook.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "has another root than the board") {
		t.Errorf("the hook said %q, %v", out, err)
	}
}

// For a container without a device cgroup of its own, the hook does not change the
// engine's: the one that it runs in.
func TestHostileCgroup(t *testing.T) {
	l := newLab(t, "runc")
	group, err := os.MkdirTemp("/sys/fs/cgroup/devices", "slipway-test-")
	if err != nil {
		t.Skip("needs version 1 of the device cgroup")
	}
	t.Cleanup(func() { os.Remove(group) })
	must(t, os.WriteFile(group+"/devices.deny", []byte("a"), 0))
	l.lists("dev, /dev/full")
	within := func(argv ...string) *exec.Cmd {
		script := "echo $$ > " + group + "/cgroup.procs && exec \"$@\""
		return exec.Command("sh", append([]string{"-c", script, "sh"}, argv...)...)
	}
	container := within("sleep", "300")
	container.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	l.bundle()
	must(t, container.Start())
	defer func() { container.Process.Kill(); container.Wait() }()
	hook := within(l.hookArgv()...)
	hook.Stdin = state(t, container.Process.Pid, filepath.Join(l.dir, "bundle"))
	out, err := hook.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "no device cgroup of its own") {
		t.Errorf("the hook said %q, %v", out, err)
	}
	if rules, err := os.ReadFile(group + "/devices.list"); err != nil || len(rules) > 0 {
		t.Errorf("the engine's rules became %q, %v", rules, err)
	}
}

func mountsOf(t *testing.T, pid int) string {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	must(t, err)
	return string(data)
}

// added are the lines of after that before lacks.
func added(before, after string) string {
	var out []string
	for _, line := range strings.Split(after, "\n") {
		if !strings.Contains(before+"\n", line+"\n") {
			out = append(out, line)
		}
	}
	return strings.Join(out, "\n")
}

// A process that shares the image's files can hold a lease on one, which lets
// others wait 45 s before they open it. The hook does without the file then.
func TestHostileLease(t *testing.T) {
	l := newLab(t, "runc")
	l.lists("lib, " + l.realLibrary())
	write(t, l.rootfs("/etc/ld.so.cache"), "")
	f, err := os.OpenFile(l.rootfs("/etc/ld.so.cache"), os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Skipf("needs a file system with leases for temporary files: %v", err)
	}
	out, err := hostile(t, state(t, l.container(), filepath.Join(l.dir, "bundle")))
	if err != nil || !strings.Contains(out, "/etc/ld.so.cache: ") {
		t.Errorf("%q, %v; want that the rest arrives, and a word about the cache", out, err)
	}
}

// What an image sets in its environment is refused or obeyed, and said in a line.
func TestHostileEnvironment(t *testing.T) {
	l := newLab(t, "runc")
	write(t, "/opt/board/a.so", "board a")
	l.lists("lib, /opt/board/a.so", "dev, /dev/full")
	pid := l.container()
	long := strings.Repeat("x", 1<<20)
	for i, value := range []string{
		"all\x1b[2J\n\u202e", long, strings.Repeat("0,", 1<<18), strings.Repeat("nvidia.com/gpu=", 1<<16),
		"99999999999999999999", "-1", "../../../dev/sda", "GPU-\x00", "=", ",", "cuda>=" + long, "cuda>=1.1 " + strings.Repeat("arch>=5 ", 1<<16),
		"csv-mounts=all", strings.Repeat("(", 1<<16), "\xff\xfe",
	} {
		for j, name := range []string{"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_REQUIRE_CUDA", "NVIDIA_REQUIRE_JETPACK", "NVIDIA_REQUIRE_" + value, "NVIDIA_DISABLE_REQUIRE"} {
			if os.Getenv("SLIPWAY_LONG") == "" && (i+j)%3 != 0 {
				continue
			}
			config := map[string]any{
				"root":    map[string]any{"path": "rootfs"},
				"process": map[string]any{"env": []string{"NVIDIA_VISIBLE_DEVICES=all", name + "=" + value}},
				"linux":   map[string]any{"namespaces": []map[string]any{{"type": "mount"}}},
			}
			data, err := json.Marshal(config)
			must(t, err)
			write(t, filepath.Join(l.dir, "bundle/config.json"), string(data))
			out, _ := hostile(t, state(t, pid, filepath.Join(l.dir, "bundle")))
			if out != "" {
				onePlainLine(t, fmt.Sprintf("%.30s=%.30q", name, value), out)
			}
		}
	}
}

// The runtime, which edits a container's spec, takes no more from it than the hook.
func TestHostileSpec(t *testing.T) {
	l := newLab(t, "runc")
	write(t, "/opt/board/a.so", "board a")
	l.lists("lib, /opt/board/a.so", "dev, /dev/full")
	good := `{"root":{"path":"rootfs"},"process":{"env":["NVIDIA_VISIBLE_DEVICES=all"]},"linux":{"namespaces":[{"type":"mount"}]}`
	for name, spec := range map[string]io.Reader{
		"endless depth":        endless(`{"a":`),
		"endless list":         io.MultiReader(strings.NewReader(good+`,"hooks":[`), endless("{},")),
		"hooks of a type":      strings.NewReader(good + `,"hooks":"\u001b[31m"}`),
		"deep hooks":           strings.NewReader(good + `,"hooks":` + strings.Repeat("[", 1<<20)),
		"hooks twice":          strings.NewReader(good + `,"hooks":{},"Hooks":{"createRuntime":[]}}`),
		"a list that ends so":  strings.NewReader(good + `,"hooks":{"createRuntime":[}}`),
		"escapes for a key":    strings.NewReader(good + `,"hooks":{"createRuntime":{"\u001b[31m":1}}}`),
		"not UTF-8":            strings.NewReader(good + ",\"hooks\":{\"createRuntime\":\"\xff\"}}"),
		"resources of a type":  strings.NewReader(`{"root":{"path":"r"},"process":{"env":["NVIDIA_VISIBLE_DEVICES=all"]},"linux":{"resources":[]}}`),
		"devices of a type":    strings.NewReader(`{"root":{"path":"r"},"process":{"env":["NVIDIA_VISIBLE_DEVICES=all"]},"linux":{"devices":{}}}`),
		"many devices in vain": strings.NewReader(`{"root":{"path":"r"},"linux":{"devices":[` + strings.Repeat(`{"path":"/dev/full"},`, 1<<18) + `7]}}`),
	} {
		data, err := io.ReadAll(io.LimitReader(spec, 4<<20))
		must(t, err)
		write(t, filepath.Join(l.dir, "bundle/config.json"), string(data))
		out, err := hostileTo(t, nil, "runtime", "create", "--bundle", filepath.Join(l.dir, "bundle"), "slipway-test-hostile")
		plainRefusal(t, name, out, err)
		if !strings.HasPrefix(out, "slipway-hook: ") {
			t.Errorf("%s: said %.300q; want that the hook refuses, not runc", name, out)
		}
	}
}
