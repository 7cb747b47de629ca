package inject

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"slipway/runtime-hook/internal/plan"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// stage gives the test's thread a mount namespace of its own and returns two
// folders in it: the board's files and a container's root.
func stage(t *testing.T) (board, rootfs string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: mounts in a namespace of its own")
	}
	runtime.LockOSThread()
	must(t, unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS))
	must(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	dir := t.TempDir()
	must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, ""))
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	board, rootfs = filepath.Join(dir, "board"), filepath.Join(dir, "rootfs")
	must(t, os.MkdirAll(filepath.Join(board, "share"), 0o755))
	must(t, os.Mkdir(rootfs, 0o755))
	must(t, unix.Mount(rootfs, rootfs, "", unix.MS_BIND, ""))
	must(t, os.WriteFile(filepath.Join(board, "a.so"), []byte("a"), 0o644))
	must(t, os.WriteFile(filepath.Join(board, "share/s"), []byte("s"), 0o644))
	must(t, unix.Mknod(filepath.Join(board, "full"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 7))))
	return board, rootfs
}

func samplePlan(board string) plan.Plan {
	return plan.Plan{
		Mounts: []plan.Mount{
			{Source: board + "/share", Path: "/opt/share", Folder: true, From: "x.csv:1"},
			{Source: board + "/a.so", Path: "/opt/lib/a.so", From: "x.csv:2"},
		},
		Links:   []plan.Link{{Path: "/opt/lib/a", Target: "a.so", File: board + "/a.so", From: "x.csv:3"}},
		Devices: []plan.Device{{Source: board + "/full", Path: "/dev/full", Major: 1, Minor: 7, Mode: 0o640, UID: 1, GID: 2, From: "x.csv:4"}},
	}
}

// apply runs p on rootfs, by descriptors of mounts or by mount(2).
func apply(t *testing.T, rootfs string, old bool, p plan.Plan) Result {
	t.Helper()
	r, err := Process{}.Open(rootfs)
	must(t, err)
	defer r.Close()
	r.oldAPI = old
	defer unix.Umask(unix.Umask(0))
	res, err := r.Apply(p)
	must(t, err)
	return res
}

// mounts are the options and the propagation of all mounts below rootfs.
func mounts(t *testing.T, rootfs string) []string {
	t.Helper()
	data, err := os.ReadFile("/proc/thread-self/mountinfo")
	must(t, err)
	var out []string
	for _, line := range strings.Split(string(data), "\n") {
		if f := strings.Fields(line); len(f) > 6 && strings.HasPrefix(f[4], rootfs+"/") {
			out = append(out, fmt.Sprintf("%s %s %s", strings.TrimPrefix(f[4], rootfs), f[5], f[6]))
		}
	}
	return out
}

func eachMountAPI(t *testing.T, test func(t *testing.T, old bool)) {
	t.Run("new mount calls", func(t *testing.T) { test(t, false) })
	t.Run("mount(2)", func(t *testing.T) { test(t, true) })
}

func TestApply(t *testing.T) {
	eachMountAPI(t, func(t *testing.T, old bool) {
		board, rootfs := stage(t)
		res := apply(t, rootfs, old, samplePlan(board))
		if want := (Result{Files: 1, Folders: 1, Links: 1, Devices: 1}); !reflect.DeepEqual(res, want) {
			t.Errorf("result %+v; want %+v", res, want)
		}
		got := mounts(t, rootfs)
		want := []string{"/opt/share ro,nosuid,nodev,relatime -", "/opt/lib/a.so ro,nosuid,nodev,relatime -"}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("mounts %q; want %q", got, want)
		}
		var dev unix.Stat_t
		must(t, unix.Lstat(rootfs+"/dev/full", &dev))
		if dev.Rdev != unix.Mkdev(1, 7) || dev.Mode != unix.S_IFCHR|0o640 || dev.Uid != 1 || dev.Gid != 2 {
			t.Errorf("device %d, mode %o, owner %d:%d; want 1:7, 640, 1:2", dev.Rdev, dev.Mode, dev.Uid, dev.Gid)
		}
		for p, want := range map[string]string{"/opt/share/s": "s", "/opt/lib/a": "a"} {
			if data, err := os.ReadFile(rootfs + p); err != nil || string(data) != want {
				t.Errorf("%s = %q, %v; want %q", p, data, err, want)
			}
		}
	})
}

// A second hook on the same container finds all of it there.
func TestApplyTwice(t *testing.T) {
	eachMountAPI(t, func(t *testing.T, old bool) {
		board, rootfs := stage(t)
		apply(t, rootfs, old, samplePlan(board))
		res := apply(t, rootfs, old, samplePlan(board))
		if len(res.Skipped) > 0 {
			t.Errorf("the second time skipped %q", res.Skipped)
		}
	})
}

// Where device nodes would not open, the board's own is mounted, and opens.
func TestDeviceOnNodev(t *testing.T) {
	eachMountAPI(t, func(t *testing.T, old bool) {
		board, rootfs := stage(t)
		must(t, os.Mkdir(rootfs+"/dev", 0o755))
		must(t, unix.Mount("tmpfs", rootfs+"/dev", "tmpfs", unix.MS_NODEV, ""))
		apply(t, rootfs, old, samplePlan(board))
		f, err := os.Open(rootfs + "/dev/full")
		if err != nil {
			t.Fatalf("the device does not open: %v", err)
		}
		f.Close()
	})
}

// A file of the image where a device goes is covered by the device.
func TestDeviceOverFile(t *testing.T) {
	eachMountAPI(t, func(t *testing.T, old bool) {
		board, rootfs := stage(t)
		must(t, os.Mkdir(rootfs+"/dev", 0o755))
		must(t, os.WriteFile(rootfs+"/dev/full", nil, 0o644))
		apply(t, rootfs, old, samplePlan(board))
		if info, err := os.Stat(rootfs + "/dev/full"); err != nil || info.Mode()&os.ModeCharDevice == 0 {
			t.Errorf("/dev/full is %v, %v; want a device", info.Mode(), err)
		}
	})
}

// A node where a device goes is covered by the device, and by nothing else.
func TestOverNode(t *testing.T) {
	eachMountAPI(t, func(t *testing.T, old bool) {
		board, rootfs := stage(t)
		for _, at := range []string{"/dev/full", "/opt/lib/a.so"} {
			must(t, os.MkdirAll(filepath.Dir(rootfs+at), 0o755))
			must(t, unix.Mknod(rootfs+at, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))))
		}
		res := apply(t, rootfs, old, samplePlan(board))
		if len(res.Skipped) != 1 || !strings.HasPrefix(res.Skipped[0], "x.csv:2: the image is in the way: /opt/lib/a.so exists and is no file") {
			t.Errorf("skipped %q; want the file", res.Skipped)
		}
		for at, want := range map[string]uint64{"/dev/full": unix.Mkdev(1, 7), "/opt/lib/a.so": unix.Mkdev(1, 3)} {
			var stat unix.Stat_t
			must(t, unix.Lstat(rootfs+at, &stat))
			if stat.Rdev != want {
				t.Errorf("%s has number %x; want %x", at, stat.Rdev, want)
			}
		}
	})
}

// No descriptor stays open, however often an entry fails.
func TestDescriptors(t *testing.T) {
	eachMountAPI(t, func(t *testing.T, old bool) {
		board, rootfs := stage(t)
		must(t, os.MkdirAll(rootfs+"/opt/lib/a.so", 0o755))
		must(t, os.WriteFile(rootfs+"/opt/share", nil, 0o644))
		open := func() int {
			list, err := os.ReadDir("/proc/self/fd")
			must(t, err)
			return len(list)
		}
		apply(t, rootfs, old, samplePlan(board))
		before := open()
		for i := 0; i < 20; i++ {
			if res := apply(t, rootfs, old, samplePlan(board)); len(res.Skipped) != 2 {
				t.Fatalf("skipped %q; want the file and the folder", res.Skipped)
			}
		}
		if after := open(); after > before {
			t.Errorf("%d descriptors are open after, %d before", after, before)
		}
	})
}

// Nothing is made in a mount that the caller protects. A path where nothing is mounted spares nothing.
func TestSpare(t *testing.T) {
	_, rootfs := stage(t)
	must(t, os.MkdirAll(rootfs+"/opt/spared", 0o755))
	must(t, unix.Mount("tmpfs", rootfs+"/opt/spared", "tmpfs", 0, ""))
	r, err := Process{}.Open(rootfs)
	must(t, err)
	defer r.Close()
	r.SkipMounts([]string{"/opt/spared", "/opt", "/not/there"})
	for p, want := range map[string]error{"/opt/a": nil, "/opt/spared/a": unix.EROFS} {
		if err := r.makeLink(plan.Link{Path: p, Target: "x"}); !errors.Is(err, want) {
			t.Errorf("link %s: %v; want %v", p, err, want)
		}
	}
}

// The board's own root is never taken for a container's.
func TestOpenRefusesHost(t *testing.T) {
	for _, p := range []string{"/", "/proc/self/root", "/proc/self/../.."} {
		if r, err := (Process{}).Open(p); err == nil || !strings.Contains(err.Error(), "board's own") {
			r.Close()
			t.Errorf("Open(%q) = %v; want a refusal", p, err)
		}
	}
}

// Neither a process of the host nor one that is gone leads into a container.
func TestEnterRefusesHost(t *testing.T) {
	if same, err := sameNamespace("mnt", 1); err != nil || !same {
		t.Skip("needs to share the mount namespace of process 1")
	}
	sleep := exec.Command("sleep", "60")
	must(t, sleep.Start())
	defer func() { sleep.Process.Kill(); sleep.Wait() }()
	for pid, want := range map[int]string{0: "the hook runs in the container", 1: "the hook runs in the container", sleep.Process.Pid: "no mount namespace of its own"} {
		if _, err := Find(pid); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Find(%d) = %v; want %q", pid, err, want)
		}
	}
	if _, err := Find(1 << 30); err == nil {
		t.Error("found a process that is not there")
	}
}

// One empty file stands at all mount points of a file system, and each file system has its own.
func TestMountPoints(t *testing.T) {
	eachMountAPI(t, func(t *testing.T, old bool) {
		board, rootfs := stage(t)
		must(t, os.Mkdir(rootfs+"/volume", 0o755))
		must(t, unix.Mount("tmpfs", rootfs+"/volume", "tmpfs", 0, ""))
		var p plan.Plan
		files := []string{"/opt/a", "/volume/b", "/opt/c", "/opt/deep/d", "/volume/e", "/volume/f"}
		for _, at := range files {
			p.Mounts = append(p.Mounts, plan.Mount{Source: board + "/a.so", Path: at})
		}
		if res := apply(t, rootfs, old, p); res.Files != len(files) {
			t.Errorf("result %+v; want %d files", res, len(files))
		}
		inodes := map[uint64]bool{}
		for _, at := range files {
			if data, err := os.ReadFile(rootfs + at); err != nil || string(data) != "a" {
				t.Errorf("%s = %q, %v; want %q", at, data, err, "a")
			}
			must(t, unix.Unmount(rootfs+at, 0))
			var stat unix.Stat_t
			must(t, unix.Lstat(rootfs+at, &stat))
			if stat.Mode != unix.S_IFREG|0o644 || stat.Size != 0 {
				t.Errorf("%s is mode %o, %d bytes under its mount; want an empty file", at, stat.Mode, stat.Size)
			}
			inodes[stat.Dev<<32|stat.Ino] = true
		}
		if len(inodes) > 4 {
			t.Errorf("%d inodes stand at %d mount points", len(inodes), len(files))
		}
	})
}
