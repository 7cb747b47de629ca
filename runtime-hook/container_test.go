package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

var build struct {
	sync.Once
	path string
	err  error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if build.path != "" {
		os.RemoveAll(filepath.Dir(build.path))
	}
	os.Exit(code)
}

// hookBinary builds the hook as boards get it.
func hookBinary(t *testing.T) string {
	t.Helper()
	build.Do(func() {
		dir, err := os.MkdirTemp("", "slipway-hook-")
		if err != nil {
			build.err = err
			return
		}
		build.path = filepath.Join(dir, "slipway-hook")
		cmd := exec.Command("go", "build", "-trimpath", "-o", build.path, ".")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			build.err = fmt.Errorf("%w\n%s", err, out)
		}
	})
	if build.err != nil {
		t.Fatal(build.err)
	}
	return build.path
}

// lab is a machine of its own to run containers on: a mount namespace in which /etc can be written
// to, /run is empty and /opt holds the board's files. It ends with the test, as its thread does.
type lab struct {
	t      *testing.T
	dir    string
	engine string
	hook   []string // what is run as the hook, nil for the hook itself
}

func newLab(t *testing.T, engine string) *lab {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: mount namespaces and real containers")
	}
	if _, err := exec.LookPath(engine); err != nil {
		t.Skipf("needs %s (Debian package %s)", engine, engine)
	}
	l := &lab{t: t, dir: t.TempDir(), engine: engine}
	// Programs started from here on inherit this thread's namespace. The thread is
	// never unlocked, so it ends with the test's goroutine.
	runtime.LockOSThread()
	must(t, unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS))
	must(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	hostMounts = mountsHere(t)
	must(t, unix.Mount("tmpfs", l.dir, "tmpfs", 0, ""))
	t.Cleanup(func() { unix.Unmount(l.dir, unix.MNT_DETACH) })
	for _, d := range []string{"upper", "work", "bundle/rootfs"} {
		must(t, os.MkdirAll(filepath.Join(l.dir, d), 0o755))
	}
	options := fmt.Sprintf("lowerdir=/etc,upperdir=%s/upper,workdir=%s/work", l.dir, l.dir)
	must(t, unix.Mount("overlay", "/etc", "overlay", 0, options))
	must(t, unix.Mount("tmpfs", "/run", "tmpfs", 0, ""))
	must(t, unix.Mount("tmpfs", "/opt", "tmpfs", 0, ""))
	// crun takes a machine that has both versions of cgroups for one it cannot serve.
	if err := unix.Unmount("/sys/fs/cgroup/unified", unix.MNT_DETACH); err != nil && engine == "crun" && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		t.Fatal(err)
	}
	return l
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	syscall.ForkLock.RLock() // a program that starts meanwhile would hold it open for writing
	defer syscall.ForkLock.RUnlock()
	must(t, os.WriteFile(path, []byte(text), 0o755))
}

// lists writes the board's CSV file.
func (l *lab) lists(lines ...string) {
	l.t.Helper()
	write(l.t, "/etc/nvidia-container-runtime/host-files-for-container.d/test.csv", strings.Join(lines, "\n")+"\n")
}

func (l *lab) rootfs(p string) string { return filepath.Join(l.dir, "bundle/rootfs", p) }

// shell puts busybox into the image.
func (l *lab) shell() {
	l.t.Helper()
	data, err := os.ReadFile("/bin/busybox")
	if err != nil {
		l.t.Skip("needs /bin/busybox (Debian package busybox-static)")
	}
	write(l.t, l.rootfs("/bin/busybox"), string(data))
	for _, name := range []string{"sh", "cat", "ls", "grep", "stat", "readlink", "test", "printf"} {
		must(l.t, os.Symlink("busybox", l.rootfs("/bin/"+name)))
	}
}

// program puts the host's program into the image, with all libraries but without.
func (l *lab) program(path, without string) {
	l.t.Helper()
	l.copy(append(l.linked(path, without), path)...)
}

// linked returns the libraries that the linker loads for the host's file, all but without.
func (l *lab) linked(path, without string) (files []string) {
	l.t.Helper()
	out, err := exec.Command("ldd", path).Output()
	if err != nil {
		l.t.Skipf("needs %s and ldd (Debian packages xz-utils, libc-bin): %v", path, err)
	}
	for _, word := range strings.Fields(string(out)) {
		if filepath.IsAbs(word) && !strings.Contains(word, without) {
			files = append(files, word)
		}
	}
	return files
}

// copy puts files of the host into the image.
func (l *lab) copy(files ...string) {
	l.t.Helper()
	for _, f := range files {
		data, err := os.ReadFile(f)
		must(l.t, err)
		write(l.t, l.rootfs(f), string(data))
	}
}

// container is one run: the stage that the hook is called at, the environment,
// and a script for the container's shell.
type container struct {
	stage  string
	env    []string
	script string
	spec   func(*specs.Spec)
}

var runs int

// runContainer starts the container and returns what its script printed.
func (l *lab) runContainer(c container) (string, error) {
	l.t.Helper()
	cmd, id := l.command("run", "bundle", c)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	timer := time.AfterFunc(30*time.Second, func() { cmd.Process.Kill() })
	defer timer.Stop()
	err := cmd.Run()
	if err != nil {
		exec.Command(l.engine, "--root", filepath.Join(l.dir, "state"), "delete", "--force", id).Run()
		err = fmt.Errorf("%w\n%s", err, stderr.String())
	}
	return stdout.String(), err
}

// command returns the command that runs or creates the container of a bundle, and its id.
func (l *lab) command(verb, bundle string, c container) (cmd *exec.Cmd, id string) {
	l.t.Helper()
	data, err := json.Marshal(l.spec(c))
	must(l.t, err)
	bundle = filepath.Join(l.dir, bundle)
	write(l.t, filepath.Join(bundle, "config.json"), string(data))
	runs++
	id = fmt.Sprintf("slipway-test-%d-%d", os.Getpid(), runs)
	cmd = exec.Command(l.engine, "--root", filepath.Join(l.dir, "state"), verb, "--bundle", bundle, id)
	// A root that logged in is a member of its group.
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Groups: []uint32{0}}}
	return cmd, id
}

func (l *lab) spec(c container) *specs.Spec {
	spec := &specs.Spec{
		Version: "1.0.2",
		Root:    &specs.Root{Path: "rootfs"},
		Process: &specs.Process{Cwd: "/", Args: []string{"/bin/sh", "-c", c.script}, Env: append([]string{"PATH=/bin:/usr/bin"}, c.env...)},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755"}},
		},
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.NetworkNamespace}, {Type: specs.IPCNamespace}}},
		Hooks: &specs.Hooks{},
	}
	argv := l.hookArgv()
	hook := []specs.Hook{{Path: argv[0], Args: argv, Env: []string{"PATH=/usr/bin:/bin"}}}
	switch c.stage {
	case "prestart":
		//lint:ignore SA1019 Docker and podman still call hooks there
		spec.Hooks.Prestart = hook
	case "createRuntime":
		spec.Hooks.CreateRuntime = hook
	case "createContainer":
		spec.Hooks.CreateContainer = hook
	}
	if c.spec != nil {
		c.spec(spec)
	}
	return spec
}

func (l *lab) hookArgv() []string {
	l.t.Helper()
	if l.hook != nil {
		return l.hook
	}
	return []string{hookBinary(l.t), "hook"}
}

var all = []string{"NVIDIA_VISIBLE_DEVICES=all"}

// everywhere runs the test on each engine at each stage that a hook can serve.
func everywhere(t *testing.T, test func(t *testing.T, l *lab, stage string)) {
	everywhereIn(t, newLab, test)
}

func everywhereIn(t *testing.T, lab func(*testing.T, string) *lab, test func(t *testing.T, l *lab, stage string)) {
	for _, engine := range []string{"runc", "crun"} {
		for _, stage := range []string{"prestart", "createRuntime"} {
			t.Run(engine+"/"+stage, func(t *testing.T) { test(t, lab(t, engine), stage) })
		}
	}
}

// A real program finds and uses a real library that only the board's list brings.
func TestProgramUsesGivenLibrary(t *testing.T) {
	everywhere(t, func(t *testing.T, l *lab, stage string) {
		l.shell()
		l.program("/usr/bin/xz", "liblzma")
		found, err := filepath.Glob("/usr/lib/*-linux-gnu*/liblzma.so.5")
		if err != nil || len(found) == 0 {
			t.Skip("needs liblzma.so.5 (Debian package liblzma5)")
		}
		l.lists("# the library that xz needs", "sym, "+found[0])
		// By path, as busybox would run an xz of its own.
		script := "printf 'libraries reach containers' | /usr/bin/xz -c | /usr/bin/xz -dc"
		for _, env := range [][]string{nil, {"NVIDIA_VISIBLE_DEVICES=void"}, {"NVIDIA_VISIBLE_DEVICES="}} {
			out, err := l.runContainer(container{stage: stage, env: env, script: "ls " + filepath.Dir(found[0]) + "; " + script})
			if err == nil || !strings.Contains(err.Error(), "liblzma.so.5: cannot open shared object file") {
				t.Errorf("xz with %q: %q, %v; want that liblzma.so.5 is not found", env, out, err)
			}
			if strings.Contains(out, "liblzma") {
				t.Errorf("with %q the container sees %s", env, out)
			}
		}
		out, err := l.runContainer(container{stage: stage, env: all, script: script})
		if err != nil || out != "libraries reach containers" {
			t.Errorf("xz with the board's library: %q, %v", out, err)
		}
	})
}

// Everything that a list can hold arrives, read-only, once, and is logged.
func TestEverythingArrives(t *testing.T) { everywhere(t, everythingArrives) }

func everythingArrives(t *testing.T, l *lab, stage string) {
	l.shell()
	write(t, "/opt/board/lib/a.so.1.2", "board a")
	write(t, "/opt/board/share/x/deep", "board deep")
	must(t, os.Symlink("a.so.1.2", "/opt/board/lib/a.so.1"))
	must(t, os.Symlink("a.so.1", "/opt/board/lib/a.so"))
	l.lists("lib, /opt/board/lib/a.so.1.2", "sym, /opt/board/lib/a.so", "dir, /opt/board/share/x", "dev, /dev/full", "lib, /opt/board/not/there", "nonsense")
	out, err := l.runContainer(container{stage: stage, env: all, script: `
			cat /opt/board/lib/a.so /opt/board/share/x/deep; echo
			readlink /opt/board/lib/a.so
			stat -c '%F %t:%T %a' /dev/full
			(echo x > /opt/board/lib/a.so) 2>&1 | grep -o 'Read-only file system'
			(echo x > /opt/board/share/x/deep) 2>&1 | grep -o 'Read-only file system'
			grep -c ' /opt/board/lib/a.so.1.2 ro,nosuid,nodev' /proc/self/mountinfo
			grep -c /opt/board /proc/self/mountinfo`})
	want := "board aboard deep\na.so.1\ncharacter special file 1:7 666\nRead-only file system\nRead-only file system\n1\n2\n"
	if err != nil || out != want {
		t.Errorf("the container saw %q, %v; want %q", out, err, want)
	}
	log, err := os.ReadFile("/run/slipway/hook.log")
	must(t, err)
	if strings.Count(string(log), "\n") != 1 || !strings.Contains(string(log), "gave: files 1, folders 1, links 2, devices 1; ") || !strings.Contains(string(log), "test.csv:5: missing") || !strings.Contains(string(log), "test.csv:6: bad line") {
		t.Errorf("log %q; want one line with the counts and both warnings", log)
	}
}

// What an image has under a listed name is covered, never an error.
func TestImageHasIt(t *testing.T) {
	everywhere(t, func(t *testing.T, l *lab, stage string) {
		l.shell()
		var list []string
		for _, name := range []string{"file", "link", "dangling", "circle", "folder", "linked"} {
			write(t, "/opt/board/"+name, "board "+name)
			list = append(list, "lib, /opt/board/"+name)
		}
		must(t, os.Symlink("file", "/opt/board/sym"))
		must(t, os.Symlink("file", "/opt/board/sym2"))
		l.lists(append(list, "sym, /opt/board/sym", "sym, /opt/board/sym2")...)
		write(t, l.rootfs("/opt/board/file"), "image file")
		write(t, l.rootfs("/opt/board/folder/x"), "image x")
		write(t, l.rootfs("/opt/elsewhere"), "image elsewhere")
		write(t, l.rootfs("/opt/board/sym"), "image sym")
		for name, target := range map[string]string{"link": "../elsewhere", "dangling": "/gone/far", "circle": "circle", "sym2": "/bin/sh"} {
			must(t, os.Symlink(target, l.rootfs("/opt/board/"+name)))
		}
		out, err := l.runContainer(container{stage: stage, env: all, script: "cd /opt/board; for f in file link dangling circle linked sym sym2 folder/x; do cat $f; echo; done"})
		want := "board file\nboard link\nboard dangling\nboard circle\nboard linked\nboard file\nboard file\nimage x\n"
		if err != nil || out != want {
			t.Errorf("the container saw %q, %v; want %q", out, err, want)
		}
	})
}

// A folder that is listed behind a link of the board is where the list says, in images
// with that link and in others, and at the link's end; once at each place.
func TestListedFolder(t *testing.T) {
	images := []struct {
		name   string
		image  func(l *lab)
		mounts string
	}{
		{"the image has nothing there", func(*lab) {}, "2"},
		{"the image has a folder", func(l *lab) { write(l.t, l.rootfs("/opt/lib/own"), "") }, "2"},
		{"the image has the board's link", func(l *lab) { link(l.t, l, "usr/lib", "/opt/lib") }, "1"},
		{"the image has another link", func(l *lab) {
			write(l.t, l.rootfs("/opt/other/own"), "")
			link(l.t, l, "other", "/opt/lib")
		}, "2"},
	}
	everywhere(t, func(t *testing.T, l *lab, stage string) {
		l.shell()
		write(t, "/opt/usr/lib/fw/x", "board x")
		must(t, os.Symlink("usr/lib", "/opt/lib"))
		l.lists("dir, /opt/lib/fw")
		for _, tt := range images {
			must(t, os.RemoveAll(l.rootfs("/opt")))
			tt.image(l)
			out, err := l.runContainer(container{stage: stage, env: all, script: `
				cat /opt/lib/fw/x /opt/usr/lib/fw/x
				grep -c /fw.ro,nosuid,nodev /proc/self/mountinfo`})
			if want := "board xboard x" + tt.mounts + "\n"; err != nil || out != want {
				t.Errorf("%s: the container saw %q, %v; want %q", tt.name, out, err, want)
			}
		}
		l.quiet()
	})
}

// escapes are what a hostile image has at and above the listed paths.
var escapes = map[string]func(t *testing.T, l *lab){
	"folder to proc": func(t *testing.T, l *lab) { link(t, l, l.board("/opt/victim"), "/opt/board/lib") },
	"folder through self": func(t *testing.T, l *lab) {
		link(t, l, "/proc/self/root/opt/victim", "/opt/board/lib")
	},
	"folder by descriptor": func(t *testing.T, l *lab) { link(t, l, "/proc/self/fd/3/opt/victim", "/opt/board") },
	"folder absolute":      func(t *testing.T, l *lab) { link(t, l, "/opt/victim", "/opt/board/lib") },
	"folder relative": func(t *testing.T, l *lab) {
		link(t, l, strings.Repeat("../", 30)+"opt/victim", "/opt/board/lib")
	},
	"first folder":   func(t *testing.T, l *lab) { link(t, l, l.board("/opt"), "/opt") },
	"file absolute":  func(t *testing.T, l *lab) { link(t, l, "/opt/victim/file", "/opt/board/lib/a.so") },
	"file relative":  func(t *testing.T, l *lab) { link(t, l, "../../../../../../../opt/victim/file", "/opt/board/lib/a.so") },
	"file to proc":   func(t *testing.T, l *lab) { link(t, l, l.board("/opt/victim/file"), "/opt/board/lib/a.so") },
	"link to proc":   func(t *testing.T, l *lab) { link(t, l, l.board("/opt/victim/file"), "/opt/board/lib/a") },
	"given folder":   func(t *testing.T, l *lab) { link(t, l, l.board("/opt/victim"), "/opt/board/share") },
	"device to file": func(t *testing.T, l *lab) { link(t, l, l.board("/opt/victim/file"), "/opt/board/full") },
	"listed folder":  func(t *testing.T, l *lab) { link(t, l, l.board("/opt/victim"), "/opt/board/outer") },
	"listed folder relative": func(t *testing.T, l *lab) {
		link(t, l, strings.Repeat("../", 30)+"opt/victim", "/opt/board/outer")
	},
	"listed folder to a kernel setting": func(t *testing.T, l *lab) { link(t, l, "/proc/sys/kernel", "/opt/board/outer") },
	"listed folder to the root":         func(t *testing.T, l *lab) { link(t, l, "/", "/opt/board/outer/dir") },
	"circle":                            func(t *testing.T, l *lab) { link(t, l, "lib", "/opt/board/lib") },
	"chain": func(t *testing.T, l *lab) {
		link(t, l, "x", "/opt/board/lib")
		link(t, l, l.board("/opt/victim"), "/opt/board/x")
	},
	"kernel settings":            func(t *testing.T, l *lab) { link(t, l, "/proc/sys/kernel", "/opt/board/lib") },
	"file to a kernel setting":   func(t *testing.T, l *lab) { link(t, l, "/proc/sys/kernel/core_pattern", "/opt/board/lib/a.so") },
	"file to null":               func(t *testing.T, l *lab) { link(t, l, "/dev/null", "/opt/board/lib/a.so") },
	"device to a kernel setting": func(t *testing.T, l *lab) { link(t, l, "/proc/sys/kernel/core_pattern", "/opt/board/full") },
	"device to null":             func(t *testing.T, l *lab) { link(t, l, "/dev/null", "/opt/board/full") },
	"library to a kernel setting": func(t *testing.T, l *lab) {
		write(t, l.rootfs("/opt/board/lib/a"), "covered by what its link on the board leads to")
		link(t, l, "/proc/sys/kernel/core_pattern", "/opt/board/lib/a.so")
	},
	"folder is a file": func(t *testing.T, l *lab) {
		write(t, l.rootfs("/opt/board/lib"), "a file")
	},
}

// Whatever links a hostile image has at and above the listed paths, nothing on
// the board changes and nothing is mounted there.
func TestEscape(t *testing.T) {
	for _, engine := range []string{"runc", "crun"} {
		for _, stage := range []string{"prestart", "createRuntime"} {
			for name, attack := range escapes {
				t.Run(engine+"/"+stage+"/"+name, func(t *testing.T) {
					l := newLab(t, engine)
					escape(t, l, stage, attack)
				})
			}
		}
	}
}

func link(t *testing.T, l *lab, target, at string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(l.rootfs(at)), 0o755))
	must(t, os.Symlink(target, l.rootfs(at)))
}

func escape(t *testing.T, l *lab, stage string, attack func(*testing.T, *lab)) {
	l.shell()
	write(t, "/opt/victim/file", "the board's own")
	write(t, "/opt/board/lib/a.so", "board a")
	write(t, "/opt/board/share/s", "board s")
	must(t, os.Symlink("a.so", "/opt/board/lib/a"))
	must(t, unix.Mknod("/opt/board/full", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 7))))
	write(t, "/opt/board/inner/dir/s", "board s")
	must(t, os.Symlink("inner", "/opt/board/outer"))
	l.lists("lib, /opt/board/lib/a.so", "sym, /opt/board/lib/a", "dir, /opt/board/share", "dir, /opt/board/outer/dir", "dev, /opt/board/full")
	attack(t, l)
	hookBinary(t)
	before := look(t)
	script := "grep -e ' /proc/' -e ' /dev/' /proc/self/mountinfo; echo started"
	out, err := l.runContainer(container{stage: stage, env: all, script: script})
	if err != nil || out != "started\n" {
		t.Errorf("the container printed %q, %v; want that it starts without what its image keeps out, and no mount below /proc or /dev", out, err)
	}
	if after := look(t); after != before {
		t.Errorf("the board changed from\n%s\nto\n%s", before, after)
	}
}

// look lists the board's files, what is in them, and its mounts.
func look(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	must(t, filepath.WalkDir("/opt", func(p string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%s %s %s", p, info.Mode(), info.ModTime())
		if info.Mode().IsRegular() {
			data, err := os.ReadFile(p)
			fmt.Fprintf(&b, " %q %v", data, err)
		}
		b.WriteByte('\n')
		return nil
	}))
	for _, m := range mountsHere(t) {
		if !slices.Contains(hostMounts, m) {
			b.WriteString(m)
		}
	}
	return b.String()
}

// hostMounts are the mounts that the namespace of the last lab began with. Another program
// ends one here too when it removes its folder, so look leaves them out.
var hostMounts []string

// mountsHere lists the mounts of this thread's namespace.
func mountsHere(t *testing.T) []string {
	t.Helper()
	mounts, err := os.ReadFile("/proc/thread-self/mountinfo")
	must(t, err)
	return strings.SplitAfter(string(mounts), "\n")
}

// A device that the runtime's own rules deny opens in the container.
func TestDeviceOpens(t *testing.T) {
	for _, stage := range []string{"prestart", "createRuntime"} {
		t.Run(stage, func(t *testing.T) {
			l := newLab(t, "runc")
			if groups, err := os.ReadFile("/proc/self/cgroup"); err != nil || !strings.Contains(string(groups), "devices") {
				t.Skip("needs version 1 of the device cgroup: with version 2 a hook cannot change the rules")
			}
			if _, err := os.Stat("/dev/loop-control"); err != nil {
				t.Skip("needs /dev/loop-control, a device that runc does not allow by itself")
			}
			l.shell()
			deny := func(s *specs.Spec) {
				s.Linux.Resources = &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}}
			}
			script := "(: < /dev/loop-control) 2>&1 && echo opens"
			l.lists("dev, /dev/loop-control")
			out, err := l.runContainer(container{stage: stage, env: all, script: script, spec: deny})
			if err != nil || out != "opens\n" {
				t.Errorf("the container printed %q, %v; want that the device opens", out, err)
			}
		})
	}
}

// What the system refuses stops the container, with the reason.
func TestReadOnlyImage(t *testing.T) {
	l := newLab(t, "runc")
	l.shell()
	write(t, "/opt/board/a.so", "board a")
	l.lists("lib, /opt/board/a.so")
	for _, d := range []string{"proc", "dev"} {
		must(t, os.MkdirAll(l.rootfs(d), 0o755))
	}
	must(t, unix.Mount(l.rootfs("/"), l.rootfs("/"), "", unix.MS_BIND, ""))
	must(t, unix.Mount("", l.rootfs("/"), "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	out, err := l.runContainer(container{stage: "createRuntime", env: all, script: "echo started"})
	if err == nil || !strings.Contains(err.Error(), "mkdir /opt: read-only file system") {
		t.Errorf("the container printed %q, %v; want a failure that says read-only file system", out, err)
	}
}

// In the container, the hook is refused, with what to do.
func TestCreateContainer(t *testing.T) {
	for _, engine := range []string{"runc", "crun"} {
		l := newLab(t, engine)
		l.shell()
		write(t, "/opt/board/a.so", "board a")
		l.lists("lib, /opt/board/a.so")
		out, err := l.runContainer(container{stage: "createContainer", env: all, script: "echo started"})
		log, _ := os.ReadFile("/run/slipway/hook.log")
		if err == nil || !strings.Contains(string(log), "call it at createRuntime or prestart") {
			t.Errorf("%s: the container printed %q, %v, log %q; want a refusal that says what to do", engine, out, err, log)
		}
	}
}

// Nothing is made in a volume that is read-only, though crun makes it so after
// the hook; what it has is covered.
func TestReadOnlyVolume(t *testing.T) { everywhere(t, readOnlyVolume) }

func readOnlyVolume(t *testing.T, l *lab, stage string) {
	l.shell()
	write(t, "/opt/board/a.so", "board a")
	write(t, "/opt/board/b.so", "board b")
	write(t, "/opt/volume/a.so", "volume a")
	hookBinary(t)
	before := look(t)
	volume := func(s *specs.Spec) {
		s.Mounts = append(s.Mounts, specs.Mount{Destination: "/opt/board", Type: "bind", Source: "/opt/volume", Options: []string{"bind", "ro"}})
	}
	l.lists("lib, /opt/board/a.so")
	out, err := l.runContainer(container{stage: stage, env: all, script: "cat /opt/board/a.so", spec: volume})
	if err != nil || out != "board a" {
		t.Errorf("the container saw %q, %v; want the board's file", out, err)
	}
	l.lists("lib, /opt/board/b.so")
	_, err = l.runContainer(container{stage: stage, env: all, spec: volume})
	log, _ := os.ReadFile("/run/slipway/hook.log")
	if err == nil || !strings.Contains(string(log), "b.so: read-only file system; what is mounted there lacks it") {
		t.Errorf("%v, log %q; want a failure that says read-only file system, and what to do", err, log)
	}
	if after := look(t); after != before {
		t.Errorf("the board changed from\n%s\nto\n%s", before, after)
	}
}

// A container whose root is read-only is served like any other.
func TestReadOnlyRoot(t *testing.T) {
	everywhere(t, func(t *testing.T, l *lab, stage string) {
		l.shell()
		write(t, "/opt/board/a.so", "board a")
		l.lists("lib, /opt/board/a.so")
		out, err := l.runContainer(container{stage: stage, env: all, script: "cat /opt/board/a.so", spec: func(s *specs.Spec) { s.Root.Readonly = true }})
		if err != nil || out != "board a" {
			t.Errorf("the container saw %q, %v; want the board's file", out, err)
		}
	})
}

// A file that a given folder lacks is left out, and the container starts. What
// the folder has can be covered.
func TestFolderLacksFile(t *testing.T) {
	everywhere(t, func(t *testing.T, l *lab, stage string) {
		l.shell()
		must(t, unix.Mount("tmpfs", "/usr/share", "tmpfs", 0, ""))
		write(t, "/opt/egl/one", "one")
		write(t, "/usr/share/nvidia-container-passthrough/opt/egl/two", "two")
		write(t, "/usr/share/nvidia-container-passthrough/opt/egl/one", "other one")
		must(t, os.MkdirAll("/usr/share/nvidia-container-passthrough/usr/lib", 0o755))
		must(t, os.Symlink("/opt/egl/one", "/usr/share/nvidia-container-passthrough/usr/lib/slipway-test.so"))
		must(t, unix.Mknod("/opt/egl/gpu", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 7))))
		l.lists("dir, /opt/egl", "lib, /opt/egl/two", "sym, /usr/lib/slipway-test.so", "dev, /opt/egl/gpu")
		out, err := l.runContainer(container{stage: stage, env: all, script: "ls /opt/egl; cat /usr/lib/slipway-test.so && (: < /opt/egl/gpu) && echo ', opens'"})
		log, _ := os.ReadFile("/run/slipway/hook.log")
		if err != nil || out != "gpu\none\nother one, opens\n" || !strings.Contains(string(log), "test.csv:2: refused: /opt/egl/two lies in the folder /opt/egl,") {
			t.Errorf("the container saw %q, %v, log %q; want the folder, and that the file is refused", out, err, log)
		}
	})
}

// Containers one after another leave no mount, process or descriptor behind.
func TestNothingIsLeft(t *testing.T) {
	l := newLab(t, "runc")
	l.shell()
	write(t, "/opt/board/a.so", "board a")
	l.lists("lib, /opt/board/a.so")
	hookBinary(t)
	before := look(t)
	for i := 0; i < 10; i++ {
		if out, err := l.runContainer(container{stage: "createRuntime", env: all, script: "cat /opt/board/a.so"}); err != nil || out != "board a" {
			t.Fatalf("run %d: %q, %v", i, out, err)
		}
	}
	if after := look(t); after != before {
		t.Errorf("the board changed from\n%s\nto\n%s", before, after)
	}
}
