package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// wrappedLab is a lab whose containers are made through the wrapper, with no other
// runtime in sight than engine.
func wrappedLab(t *testing.T, engine string) *lab {
	t.Helper()
	l := newLab(t, engine)
	l.shell()
	real, err := exec.LookPath(engine)
	must(t, err)
	programs := filepath.Join(l.dir, "programs")
	must(t, os.MkdirAll(programs, 0o755))
	must(t, os.Symlink(real, filepath.Join(programs, engine)))
	l.engine = filepath.Join(programs, runtimeName)
	must(t, os.Symlink(hookBinary(t), l.engine))
	t.Setenv("PATH", programs)
	return l
}

func wrapped(t *testing.T, test func(t *testing.T, l *lab)) {
	for _, engine := range []string{"runc", "crun"} {
		t.Run(engine, func(t *testing.T) { test(t, wrappedLab(t, engine)) })
	}
}

// denied are the rules of containers that engines make.
func denied(s *specs.Spec) {
	s.Linux.Resources = &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}}
}

// loopControl is a device that no runtime allows by itself.
func loopControl(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		t.Skip("needs /dev/loop-control (modprobe loop), a device that runtimes do not allow by themselves")
	}
}

func (l *lab) config() *specs.Spec {
	l.t.Helper()
	data, err := os.ReadFile(filepath.Join(l.dir, "bundle/config.json"))
	must(l.t, err)
	var s specs.Spec
	must(l.t, json.Unmarshal(data, &s))
	return &s
}

const opensAll = "cat /opt/board/a.so; for d in loop-control full; do (: < /dev/$d) && echo \" $d opens\"; done"

func TestWrapper(t *testing.T) {
	loopControl(t)
	wrapped(t, func(t *testing.T, l *lab) {
		write(t, "/opt/board/a.so", "board a")
		l.lists("lib, /opt/board/a.so", "dev, /dev/loop-control", "dev, /dev/full")
		out, err := l.runContainer(container{env: all, script: opensAll, spec: denied})
		if err != nil || out != "board a loop-control opens\n full opens\n" {
			t.Errorf("the container printed %q, %v; want the file, and that the devices open", out, err)
		}
		log, _ := os.ReadFile("/run/slipway/hook.log")
		if !strings.Contains(string(log), "gave: files 1, folders 0, links 0, devices 2\n") {
			t.Errorf("log %q; want all that was given, and no warning", log)
		}
		// Stopped and made again, the container has nothing twice.
		data, err := os.ReadFile(filepath.Join(l.dir, "bundle/config.json"))
		must(t, err)
		out, err = l.runContainer(container{env: all, script: opensAll, spec: func(s *specs.Spec) { must(t, json.Unmarshal(data, s)) }})
		if s := l.config(); err != nil || len(s.Hooks.CreateRuntime) != 1 || len(s.Linux.Devices) != 2 || len(s.Linux.Resources.Devices) != 3 {
			t.Errorf("the second container printed %q, %v, with %+v; want one hook, two devices, three rules", out, err, s.Linux)
		}
	})
}

// With version 2 of the device cgroup the wrapper gives what a hook cannot, which says so.
func TestWrapperCgroup2(t *testing.T) {
	loopControl(t)
	for _, engine := range []string{"runc", "crun"} {
		t.Run(engine, func(t *testing.T) {
			l := wrappedLab(t, engine)
			must(t, unix.Unmount("/sys/fs/cgroup", unix.MNT_DETACH))
			must(t, unix.Mount("cgroup2", "/sys/fs/cgroup", "cgroup2", 0, ""))
			t.Cleanup(removeGroups)
			write(t, "/opt/board/a.so", "board a")
			l.lists("lib, /opt/board/a.so", "dev, /dev/loop-control", "dev, /dev/full")
			out, err := l.runContainer(container{env: all, script: opensAll, spec: denied})
			if err != nil && strings.Contains(err.Error(), "RLIM_MEMLOCK") {
				t.Skip("crun needs CAP_SYS_RESOURCE to load its rules: run this on a machine of your own")
			}
			if err != nil || out != "board a loop-control opens\n full opens\n" {
				t.Errorf("the container printed %q, %v; want the file, and that the devices open", out, err)
			}
			l.engine = engine
			out, err = l.runContainer(container{stage: "createRuntime", env: all, script: opensAll, spec: denied})
			log, _ := os.ReadFile("/run/slipway/hook.log")
			if !strings.HasPrefix(out, "board a full opens") || !strings.Contains(string(log), "the container's spec does not allow the first of 2 devices, /dev/loop-control: slipway-runtime and CDI do") {
				t.Errorf("with the hook alone the container printed %q, %v, log %q; want a warning that says who can", out, err, log)
			}
		})
	}
}

// removeGroups removes what a crun that fails leaves behind.
func removeGroups() {
	found, _ := filepath.Glob(fmt.Sprintf("/sys/fs/cgroup/slipway-test-%d-*", os.Getpid()))
	for _, f := range found {
		os.Remove(f)
	}
}

// A container that does not ask, and one with the hook already, keep what they have.
func TestWrapperLeavesAlone(t *testing.T) {
	wrapped(t, func(t *testing.T, l *lab) {
		write(t, "/opt/board/a.so", "board a")
		l.lists("lib, /opt/board/a.so")
		for _, c := range []container{{script: "ls /opt"}, {stage: "prestart", env: all, script: "cat /opt/board/a.so"}} {
			before, err := json.Marshal(l.spec(c))
			must(t, err)
			out, err := l.runContainer(c)
			after, readErr := os.ReadFile(filepath.Join(l.dir, "bundle/config.json"))
			must(t, readErr)
			if string(after) != string(before) {
				t.Errorf("with %+v config.json is %s; want %s", c, after, before)
			}
			if asks := c.env != nil; asks != (out == "board a") {
				t.Errorf("with %+v the container printed %q, %v", c, out, err)
			}
		}
	})
}

// In a user namespace the nodes are the hook's, and the rules the spec's.
func TestWrapperUserNamespace(t *testing.T) {
	loopControl(t)
	for _, engine := range []string{"runc", "crun"} {
		t.Run(engine, func(t *testing.T) {
			l := wrappedLab(t, engine)
			for _, dir := range []string{l.dir, filepath.Dir(l.dir)} {
				must(t, os.Chmod(dir, 0o755))
			}
			passable(t, filepath.Dir(l.dir))
			for _, d := range []string{"proc", "dev"} {
				must(t, os.MkdirAll(l.rootfs(d), 0o755))
			}
			write(t, "/opt/board/a.so", "board a")
			must(t, unix.Mount("tmpfs", "/usr/share", "tmpfs", 0, ""))
			other := "/usr/share/nvidia-container-passthrough/dev/other"
			must(t, os.MkdirAll(filepath.Dir(other), 0o755))
			must(t, unix.Mknod(other, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 7))))
			must(t, os.Chmod(other, 0o666))
			l.lists("lib, /opt/board/a.so", "dev, /dev/full", "dev, /dev/other")
			l.chownImage(hostRoot)
			out, err := l.runContainer(container{env: all, script: strings.ReplaceAll(opensAll, "loop-control", "other"), spec: func(s *specs.Spec) {
				denied(s)
				userNamespace(hostRoot)(s)
			}})
			if err != nil || out != "board a other opens\n full opens\n" {
				log, _ := os.ReadFile("/run/slipway/hook.log")
				t.Errorf("the container printed %q, %v, log %q; want the file, and that the devices open", out, err, log)
			}
		})
	}
}

// What goes wrong is said where engines look for it.
func TestWrapperFails(t *testing.T) {
	l := wrappedLab(t, "runc")
	l.lists("dev, /dev/full")
	bundle, log := filepath.Join(l.dir, "bundle"), filepath.Join(l.dir, "log.json")
	wrapper := func(args ...string) string {
		out, err := exec.Command(l.engine, append([]string{"--log", log, "--log-format", "json"}, args...)...).CombinedOutput()
		if err == nil {
			t.Errorf("%q succeeded and printed %s", args, out)
		}
		text, _ := os.ReadFile(log)
		os.Remove(log)
		return string(out) + string(text)
	}
	if got := wrapper("create", "--bundle", l.dir, "c1"); !strings.Contains(got, "config.json") || strings.Contains(got, "slipway-hook:") {
		t.Errorf("with no config.json: %s; want what runc says", got)
	}
	write(t, filepath.Join(bundle, "config.json"), `{"root":{"path":"r"},"process":{"env":["NVIDIA_VISIBLE_DEVICES=all"]},"linux":{},"Linux":{}}`)
	if got := wrapper("create", "--bundle", bundle, "c1"); !strings.Contains(got, `"level":"error","msg":"slipway-runtime: `+bundle+"/config.json: ") || !strings.Contains(got, "one field") {
		t.Errorf("with two linux: %s; want the file and why, as an entry of the log", got)
	}
	write(t, filepath.Join(bundle, "config.json"), `{"root":{"path":"r"},"process":{"env":["NVIDIA_VISIBLE_DEVICES=all","NVIDIA_REQUIRE_A\nlevel fatal\u001b[2J=cuda"]}}`)
	if got := wrapper("--log-format", "text", "create", "--bundle", bundle, "c1"); !strings.Contains(got, "NVIDIA_REQUIRE_A?level fatal?[2J") || strings.Contains(got, "A\nlevel") {
		t.Errorf("with a name of two lines: %q; want one", got)
	}
	runc := filepath.Join(filepath.Dir(l.engine), "runc")
	must(t, os.Remove(runc))
	must(t, os.Symlink(l.engine, runc))
	if got := wrapper("state", "c1"); !strings.Contains(got, "found none of runc, crun") {
		t.Errorf("with a runc that is the wrapper: %s; want that there is none", got)
	}
	must(t, os.Remove(runc))
	write(t, runc, "#!/bin/busybox sh\nexec "+l.engine+" \"$@\"\n")
	if got := wrapper("state", "c1"); !strings.Contains(got, "leads back to slipway-runtime") {
		t.Errorf("with a runc that calls the wrapper: %s; want an end", got)
	}
}

func TestWrapperKeepsFile(t *testing.T) {
	l := wrappedLab(t, "runc")
	l.lists("dev, /dev/full")
	path := filepath.Join(l.dir, "bundle/config.json")
	write(t, path, `{"ociVersion":"1.0.2","root":{"path":"rootfs"},"process":{"env":["NVIDIA_VISIBLE_DEVICES=all"]},"new":{"field":1e400}}`)
	must(t, os.Chmod(path, 0o640))
	must(t, os.Chown(path, 5, 6))
	exec.Command(l.engine, "create", "--bundle", filepath.Dir(path), "slipway-test-kept").Run()
	var stat unix.Stat_t
	must(t, unix.Stat(path, &stat))
	data, err := os.ReadFile(path)
	if err != nil || stat.Mode != unix.S_IFREG|0o640 || stat.Uid != 5 || stat.Gid != 6 || !strings.Contains(string(data), `"new":{"field":1e400},`) || !strings.Contains(string(data), "/dev/full") {
		t.Errorf("config.json is %o, %d:%d, %s; want its mode, its owner and what it had, with the device", stat.Mode, stat.Uid, stat.Gid, data)
	}
	left, err := filepath.Glob(filepath.Join(filepath.Dir(path), ".config*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// A config.json that is a link is replaced by a file, and what it leads to stays. In a
// bundle on a read-only medium it cannot, which is said.
func TestWrapperBundle(t *testing.T) {
	l := wrappedLab(t, "runc")
	l.lists("dev, /dev/full")
	bundle, shared := filepath.Join(l.dir, "bundle"), filepath.Join(l.dir, "shared.json")
	const config = `{"ociVersion":"1.0.2","root":{"path":"rootfs"},"process":{"env":["NVIDIA_VISIBLE_DEVICES=all"]}}`
	write(t, shared, config)
	must(t, os.Symlink(shared, filepath.Join(bundle, "config.json")))
	exec.Command(l.engine, "create", "--bundle", bundle, "slipway-test-link").Run()
	here, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	if there, err := os.ReadFile(shared); err != nil || string(there) != config {
		t.Errorf("what the link leads to became %s, %v", there, err)
	}
	if err != nil || !strings.Contains(string(here), "/dev/full") {
		t.Errorf("config.json is %s, %v; want the device in it", here, err)
	}
	write(t, filepath.Join(bundle, "config.json"), config)
	must(t, unix.Mount(bundle, bundle, "", unix.MS_BIND, ""))
	must(t, unix.Mount("", bundle, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	out, err := exec.Command(l.engine, "create", "--bundle", bundle, "slipway-test-link").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "read-only file system; where a bundle cannot be written to, CDI") {
		t.Errorf("in a read-only bundle: %s, %v", out, err)
	}
}

// What crun tells hooks of a container with a user namespace and devices of its own
// is wrong; the log says so.
func TestCrunNamesNoBundle(t *testing.T) {
	l := namespacedLab(t, "crun")
	l.lists("dev, /dev/full")
	l.chownImage(hostRoot)
	out, err := l.runContainer(container{stage: "createRuntime", env: all, script: "echo started", spec: func(s *specs.Spec) {
		userNamespace(hostRoot)(s)
		s.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/kmsg", Type: "c", Major: 1, Minor: 11}}
	}})
	if err == nil && out == "started\n" {
		t.Skip("this crun names the bundle; 1.8 does not")
	}
	log, _ := os.ReadFile("/run/slipway/hook.log")
	if err == nil || !strings.Contains(string(log), "failed: open /config.json: no such file or directory; crun 1.8 names /") {
		t.Errorf("the container printed %q, %v, log %q; want a failure that says why", out, err, log)
	}
}
