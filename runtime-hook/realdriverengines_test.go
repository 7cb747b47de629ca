package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// newEngine is an engine in a lab whose image and list are those of the driver.
func (d *realDriver) newEngine(t *testing.T, name string) *engine {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skipf("needs %s (Debian package %s)", name, name)
	}
	hook := hookBinary(t)
	e := &engine{lab: d.newLab(t, "runc"), program: []string{name}, group: fmt.Sprintf("slipway-%s-%d", name, os.Getpid())}
	for _, dir := range []string{"/dev/shm", "/var/lib"} {
		must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, ""))
	}
	t.Setenv("HOME", e.dir)
	t.Setenv("TMPDIR", e.dir)
	t.Cleanup(e.leaveNoGroup)
	must(t, os.Symlink(hook, e.wrapper()))
	return e
}

// wantGPU fails unless the container that asks prints what the programs print outside, and
// the one that does not ask has no GPU.
func (d *realDriver) wantGPU(e *engine, by, want string, asking, plain []string) {
	e.t.Helper()
	// First: the runtime leaves empty files in a root that it shares with the board.
	out, err := e.do(nil, append(plain, "/bin/sh", "-c", "ls -R /dev; grep nvidia /proc/self/mountinfo; "+d.program)...)
	if err == nil || strings.Contains(out, "nvidia") || !strings.Contains(out, "libcuda.so.1: cannot open shared object file") {
		e.t.Errorf("by %s, without a name, the container printed %q, %v; want that it has no GPU", by, out, err)
	}
	os.Remove("/run/slipway/hook.log")
	out, err = e.do(nil, append(asking, "/bin/sh", "-c", d.askScript()+d.program)...)
	log, _ := os.ReadFile("/run/slipway/hook.log")
	if err != nil || out != want || strings.Contains(string(log), "warning") {
		e.t.Errorf("by %s the container printed %q, %v, log %q; want, as outside, %q", by, out, err, log, want)
	} else {
		e.t.Logf("by %s the container printed\n%s", by, out)
	}
}

func TestRealDriverPodman(t *testing.T) {
	d := findDriver(t)
	want := d.query(t, properties, "all") + d.compute(t, "all")
	e := d.newEngine(t, "podman")
	for _, name := range []string{"root", "tmpdir"} {
		e.program = append(e.program, "--"+name, filepath.Join(e.dir, name))
	}
	e.program = append(e.program, "--runroot=/run/podman", "--storage-driver=vfs", "--cgroup-manager=cgroupfs", "--events-backend=none")
	_, err := e.do(e.pack(), "import", "-", "image")
	must(t, err)
	hook := e.recipeHook()
	if out, err := exec.Command(hookBinary(t), "cdi").CombinedOutput(); err != nil {
		t.Fatalf("cdi: %v\n%s", err, out)
	}
	none := "--hooks-dir=" + filepath.Join(e.dir, "none")
	create := []string{"run", "--rm", "--network=none", "--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024", "--cgroup-parent", e.group}
	asks, device := "--env=NVIDIA_VISIBLE_DEVICES=all", "--device=nvidia.com/gpu=all"
	// A hook cannot allow devices in version 2 of the device cgroup.
	var rules []string
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		rules = []string{"--device-cgroup-rule=c *:* rwm"}
	}
	for _, tt := range []struct {
		name            string
		global, options []string
	}{
		{"hook", []string{"--runtime=runc", "--hooks-dir=" + hook}, append(rules, asks)},
		{"runtime", []string{"--runtime=" + e.wrapper(), none}, []string{asks}},
		{"cdi", []string{"--runtime=runc", none}, []string{device}},
	} {
		d.wantGPU(e, "podman's "+tt.name, want,
			slices.Concat(tt.global, create, tt.options, []string{"image"}), slices.Concat(tt.global, create, []string{"image"}))
	}
}

func TestRealDriverContainerd(t *testing.T) {
	d := findDriver(t)
	want := d.query(t, properties, "all") + d.compute(t, "all")
	e := d.newEngine(t, "containerd")
	config, socket := filepath.Join(e.dir, "config.toml"), filepath.Join(e.dir, "containerd.sock")
	write(t, config, fmt.Sprintf("version = 2\nroot = %q\nstate = %q\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n[grpc]\naddress = %q\n",
		filepath.Join(e.dir, "root"), filepath.Join(e.dir, "run"), socket))
	e.program = []string{"ctr", "--address", socket}
	e.serve([]string{"containerd", "--config", config}, []string{"version"})
	run := []string{"run", "--rm", "--cgroup", "/" + e.group, "--runc-binary", e.wrapper()}
	last := []string{"--rootfs", e.rootfs("/"), "slipway-test"}
	d.wantGPU(e, "containerd's runtime", want,
		slices.Concat(run, []string{"--env", "NVIDIA_VISIBLE_DEVICES=all"}, last), slices.Concat(run, last))
}
