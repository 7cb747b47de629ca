package main

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// engine is a real engine in a lab, with an image and a list to give from.
type engine struct {
	*lab
	program []string // and its arguments before a command
	group   string   // the cgroup of its containers
}

// newEngine is one that has nothing of the machine's own: neither its state nor its settings.
func newEngine(t *testing.T, name, pkg string) *engine {
	t.Helper()
	loopControl(t)
	if _, err := exec.LookPath(name); err != nil {
		t.Skipf("needs %s (Debian package %s; stop what its installation starts)", name, pkg)
	}
	hook := hookBinary(t)
	e := &engine{lab: newLab(t, "runc"), program: []string{name}, group: fmt.Sprintf("slipway-%s-%d", name, os.Getpid())}
	e.shell()
	for _, dir := range []string{"/dev/shm", "/var/lib"} {
		must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, ""))
	}
	t.Setenv("HOME", e.dir)
	t.Setenv("TMPDIR", e.dir)
	t.Cleanup(e.leaveNoGroup)
	write(t, "/opt/board/a.so", "board a")
	e.lists("lib, /opt/board/a.so", "dev, /dev/loop-control", "dev, /dev/full")
	must(t, os.Symlink(hook, e.wrapper()))
	return e
}

func (e *engine) wrapper() string { return filepath.Join(e.dir, runtimeName) }

// leaveNoGroup removes the cgroups that engines leave behind.
func (e *engine) leaveNoGroup() {
	found, _ := filepath.Glob("/sys/fs/cgroup/*/" + e.group)
	for _, top := range found {
		var all []string
		filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				all = append(all, p)
			}
			return nil
		})
		slices.Reverse(all)
		for _, dir := range all {
			err := os.Remove(dir)
			// What watches a container ends a moment after it.
			for end := time.Now().Add(5 * time.Second); err != nil && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
				err = os.Remove(dir)
			}
			if err != nil {
				e.t.Errorf("a cgroup is left: %v", err)
			}
		}
	}
}

// do runs a command of the engine's, with the time that none should need.
func (e *engine) do(stdin *bytes.Buffer, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	argv := append(slices.Clone(e.program), args...)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	if stdin != nil {
		cmd.Stdin = stdin
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%v: %w\n%s", argv, err, stderr.String())
	}
	return stdout.String(), nil
}

// pack is the image as a tar.
func (e *engine) pack() *bytes.Buffer {
	e.t.Helper()
	out, err := exec.Command("tar", "-C", e.rootfs("/"), "-c", ".").Output()
	must(e.t, err)
	return bytes.NewBuffer(out)
}

// serve starts the engine's daemon and waits until it answers ask.
func (e *engine) serve(argv, ask []string) {
	e.t.Helper()
	log, err := os.Create(filepath.Join(e.dir, "log"))
	must(e.t, err)
	defer log.Close()
	daemon := exec.Command(argv[0], argv[1:]...)
	daemon.Stdout, daemon.Stderr = log, log
	must(e.t, daemon.Start())
	e.t.Cleanup(func() {
		daemon.Process.Signal(syscall.SIGTERM)
		timer := time.AfterFunc(20*time.Second, func() { daemon.Process.Kill() })
		defer timer.Stop()
		daemon.Wait()
	})
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		_, err := e.do(nil, ask...)
		if err == nil {
			return
		}
		if time.Now().After(end) {
			text, _ := os.ReadFile(log.Name())
			e.t.Skipf("%s does not serve on this machine: %v\n%s", argv[0], err, text)
		}
	}
}

// wantFiles fails unless the container of args gets the board's file and its devices,
// with nothing to be warned of.
func (e *engine) wantFiles(by string, args ...string) {
	e.t.Helper()
	os.Remove("/run/slipway/hook.log")
	out, err := e.do(nil, append(args, "/bin/sh", "-c", opensAll)...)
	if err != nil || out != "board a loop-control opens\n full opens\n" {
		e.t.Errorf("by %s the container printed %q, %v; want the file, and that the devices open", by, out, err)
	}
	log, _ := os.ReadFile("/run/slipway/hook.log")
	if strings.Count(string(log), "\n") != 1 || !strings.HasSuffix(string(log), ": gave: files 1, folders 0, links 0, devices 2\n") {
		e.t.Errorf("by %s: log %q; want one line, of all that was given", by, log)
	}
}

// forGroup gives the board a /dev/full that only root and the group 44 open.
func (e *engine) forGroup() {
	e.t.Helper()
	node := filepath.Join(e.dir, "full")
	must(e.t, unix.Mknod(node, unix.S_IFCHR|0o660, int(unix.Mkdev(1, 7))))
	must(e.t, os.Chown(node, 0, 44))
	must(e.t, os.Chmod(node, 0o660))
	must(e.t, unix.Mount(node, "/dev/full", "", unix.MS_BIND, ""))
}

// opensAsUser fails unless a process that is not root opens /dev/full.
func (e *engine) opensAsUser(by string, args ...string) {
	e.t.Helper()
	args = append(args, "--user=1000:1000", "image", "/bin/sh", "-c", "(: <> /dev/full) && echo opens")
	if out, err := e.do(nil, args...); err != nil || out != "opens\n" {
		e.t.Errorf("by %s the user's process printed %q, %v; want that the device opens", by, out, err)
	}
}

func TestDocker(t *testing.T) {
	e := newEngine(t, "dockerd", "docker.io")
	socket := "unix://" + filepath.Join(e.dir, "docker.sock")
	e.program = []string{"docker", "--host", socket}
	must(t, os.Symlink(hookBinary(t), filepath.Join(e.dir, gpusName)))
	t.Setenv("PATH", e.dir+":"+os.Getenv("PATH"))
	e.serve([]string{
		"dockerd", "--host", socket, "--data-root", filepath.Join(e.dir, "data"), "--exec-root", filepath.Join(e.dir, "exec"),
		"--pidfile", filepath.Join(e.dir, "pid"), "--iptables=false", "--bridge=none", "--add-runtime", "slipway=" + e.wrapper(),
	}, []string{"version"})
	_, err := e.do(e.pack(), "import", "-", "image")
	must(t, err)
	e.wantFiles("--gpus", "run", "--rm", "--network=none", "--cgroup-parent", e.group, "--gpus=all", "image")
	e.wantFiles("--runtime", "run", "--rm", "--network=none", "--cgroup-parent", e.group, "--runtime=slipway", "--env=NVIDIA_VISIBLE_DEVICES=all", "image")
	_, err = e.do(nil, "run", "--rm", "--network=none", "--cgroup-parent", e.group, "--runtime=slipway", "--env=NVIDIA_VISIBLE_DEVICES=nonsense", "image", "ls")
	if err == nil || !strings.Contains(err.Error(), `failed: slipway-runtime: NVIDIA_VISIBLE_DEVICES names "nonsense", which is no name of a GPU`) {
		t.Errorf("docker run with nonsense: %v; want the reason in what docker prints", err)
	}
	e.forGroup()
	e.opensAsUser("--runtime", "run", "--rm", "--network=none", "--cgroup-parent", e.group, "--runtime=slipway", "--env=NVIDIA_VISIBLE_DEVICES=all")
}

func TestPodman(t *testing.T) {
	e := newEngine(t, "podman", "podman")
	for _, name := range []string{"root", "tmpdir"} {
		e.program = append(e.program, "--"+name, filepath.Join(e.dir, name))
	}
	// A path of over 50 characters is too long for a runroot.
	e.program = append(e.program, "--runroot=/run/podman", "--storage-driver=vfs", "--cgroup-manager=cgroupfs", "--events-backend=none")
	_, err := e.do(e.pack(), "import", "-", "image")
	must(t, err)
	hook := e.recipeHook()
	// podman 4.3 does not know version 0.7.0, which is for devices of a group, such as this machine's loop-control.
	write(t, "/etc/slipway/hook.toml", "[cdi]\nversion = '0.5.0'\n")
	if out, err := exec.Command(hookBinary(t), "cdi").CombinedOutput(); err != nil {
		t.Fatalf("cdi: %v\n%s", err, out)
	}
	none := "--hooks-dir=" + filepath.Join(e.dir, "none")
	// These machines may not raise the limits that podman sets.
	create := []string{"run", "--rm", "--network=none", "--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024", "--cgroup-parent", e.group}
	asks, device := "--env=NVIDIA_VISIBLE_DEVICES=all", "--device=nvidia.com/gpu=all"
	tests := []struct {
		name            string
		global, options []string
	}{
		{"hook", []string{"--runtime=runc", "--hooks-dir=" + hook}, []string{asks}},
		{"runtime", []string{"--runtime=" + e.wrapper(), none}, []string{asks}},
		{"cdi", []string{"--runtime=runc", none}, []string{device}},
		{"everything at once", []string{"--runtime=" + e.wrapper(), "--hooks-dir=" + hook}, []string{asks, device}},
	}
	// A subtest would run outside of the lab.
	for _, tt := range tests {
		e.wantFiles(tt.name, slices.Concat(tt.global, create, tt.options, []string{"image"})...)
	}
	e.forGroup()
	if out, err := exec.Command(hookBinary(t), "cdi").CombinedOutput(); err != nil {
		t.Fatalf("cdi: %v\n%s", err, out)
	}
	for _, tt := range tests[1:] {
		e.opensAsUser(tt.name, slices.Concat(tt.global, create, tt.options)...)
	}
	_, err = e.do(nil, slices.Concat(tests[0].global, create, []string{"--env=NVIDIA_VISIBLE_DEVICES=nonsense", "image", "ls"})...)
	if err == nil || !strings.Contains(err.Error(), `names "nonsense", which is no name of a GPU`) {
		t.Errorf("podman run with nonsense: %v; want the reason in what podman prints", err)
	}
}

// recipeHook installs podman's hook as the recipe does, for the hook under test, and
// returns the hook's folder.
func (e *engine) recipeHook() string {
	e.t.Helper()
	data, err := os.ReadFile("../recipes/slipway-hook/files/slipway-hook.json")
	must(e.t, err)
	if !strings.Contains(string(data), installedPath) {
		e.t.Fatalf("slipway-hook.json has no %s", installedPath)
	}
	dir := filepath.Join(e.dir, "hooks")
	write(e.t, dir+"/slipway-hook.json", strings.ReplaceAll(string(data), installedPath, hookBinary(e.t)))
	return dir
}

func TestContainerd(t *testing.T) {
	e := newEngine(t, "containerd", "containerd")
	config, socket := filepath.Join(e.dir, "config.toml"), filepath.Join(e.dir, "containerd.sock")
	write(t, config, fmt.Sprintf("version = 2\nroot = %q\nstate = %q\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n[grpc]\naddress = %q\n",
		filepath.Join(e.dir, "root"), filepath.Join(e.dir, "run"), socket))
	e.program = []string{"ctr", "--address", socket}
	e.serve([]string{"containerd", "--config", config}, []string{"version"})
	e.wantFiles("BinaryName", "run", "--rm", "--cgroup", "/"+e.group, "--runc-binary", e.wrapper(), "--env", "NVIDIA_VISIBLE_DEVICES=all", "--rootfs", e.rootfs("/"), "slipway-test")
}
