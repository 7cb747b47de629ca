package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// hostRoot is who the root of most containers of this file is on the board.
const hostRoot = 100000

// userNamespace gives the container one of its own, with the board's user root as its root.
func userNamespace(root uint32) func(*specs.Spec) {
	return func(s *specs.Spec) {
		ids := []specs.LinuxIDMapping{{ContainerID: 0, HostID: root, Size: 65536}}
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
		s.Linux.UIDMappings, s.Linux.GIDMappings = ids, ids
	}
}

// namespacedLab is a lab whose container has folders for its mounts, as a runtime
// cannot make them there, and whose board has a device in a folder of /dev.
func namespacedLab(t *testing.T, engine string) *lab {
	t.Helper()
	l := newLab(t, engine)
	l.shell()
	// The root of the container must get to its image.
	for _, d := range []string{l.dir, hookBinary(t)} {
		must(t, os.Chmod(filepath.Dir(d), 0o755))
		passable(t, filepath.Dir(d))
	}
	for _, d := range []string{"proc", "dev"} {
		must(t, os.MkdirAll(l.rootfs(d), 0o755))
	}
	must(t, unix.Mount("tmpfs", "/dev/shm", "tmpfs", 0, ""))
	must(t, unix.Mknod("/dev/shm/gpu", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 7))))
	must(t, os.Chmod("/dev/shm/gpu", 0o666))
	return l
}

// passable skips a test whose container's root cannot get to dir.
func passable(t *testing.T, dir string) {
	t.Helper()
	for ; dir != "/"; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		must(t, err)
		if info.Mode().Perm()&0o001 == 0 {
			t.Skipf("needs a folder for temporary files that others may pass: chmod o+x %s", dir)
		}
	}
}

// chownImage makes root the owner of the image's files.
func (l *lab) chownImage(root int) {
	l.t.Helper()
	must(l.t, filepath.WalkDir(l.rootfs("/"), func(p string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(p, root, root)
	}))
}

// mapImage shows the image's files, which are the board's root's, as hostRoot's:
// an idmapped mount, as Kubernetes has it.
func (l *lab) mapImage() {
	l.t.Helper()
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: hostRoot, Size: 65536}}
	holder := exec.Command("sleep", "60")
	holder.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids}
	must(l.t, holder.Start())
	defer func() { holder.Process.Kill(); holder.Wait() }()
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", holder.Process.Pid))
	must(l.t, err)
	defer ns.Close()
	tree, err := unix.OpenTree(unix.AT_FDCWD, l.rootfs("/"), unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		l.t.Skipf("needs Linux 6.3 or later, with idmapped mounts of a tmpfs: %v", err)
	}
	defer unix.Close(tree)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns.Fd())}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		l.t.Skipf("needs Linux 6.3 or later, with idmapped mounts of a tmpfs: %v", err)
	}
	must(l.t, unix.MoveMount(tree, "", unix.AT_FDCWD, l.rootfs("/"), unix.MOVE_MOUNT_F_EMPTY_PATH))
}

// All of a list arrives in a container with a user namespace, and what is made
// there is its root's, also in a folder that only root's capabilities open.
func TestUserNamespace(t *testing.T) {
	images := map[string]struct {
		root uint32
		give func(*lab)
	}{
		"image of the container's root": {hostRoot, func(l *lab) { l.chownImage(hostRoot) }},
		"idmapped image":                {hostRoot, (*lab).mapImage},
		"the root is also the board's":  {0, func(*lab) {}},
	}
	for name, image := range images {
		t.Run(name, func(t *testing.T) {
			everywhereIn(t, namespacedLab, func(t *testing.T, l *lab, stage string) {
				userNamespaceGets(t, l, container{stage: stage, env: all, spec: userNamespace(image.root)}, image.give)
			})
		})
	}
}

func userNamespaceGets(t *testing.T, l *lab, c container, giveImage func(*lab)) {
	write(t, "/opt/board/lib/a.so.1", "board a")
	write(t, "/opt/board/share/x/deep", "board deep")
	must(t, os.Symlink("a.so.1", "/opt/board/lib/a.so"))
	must(t, os.Symlink("a.so.1", "/opt/board/lib/b.so"))
	l.lists("sym, /opt/board/lib/a.so", "sym, /opt/board/lib/b.so", "dir, /opt/board/share/x", "dev, /dev/shm/gpu")
	link(t, l, "/image/says/else", "/opt/board/lib/b.so")
	must(t, os.Chmod(l.rootfs("/opt/board/lib"), 0o555))
	giveImage(l)
	c.script = `
		cat /opt/board/lib/a.so /opt/board/lib/b.so /opt/board/share/x/deep; echo
		stat -c '%u:%g %a' /opt/board/share /opt/board/lib/a.so /dev/shm
		grep -c ' /opt/board/lib/a.so.1 ro,nosuid,nodev' /proc/self/mountinfo
		(: < /dev/shm/gpu) && echo opens`
	out, err := l.runContainer(c)
	want := "board aboard aboard deep\n0:0 755\n0:0 777\n0:0 755\n1\nopens\n"
	if err != nil || out != want {
		log, _ := os.ReadFile("/run/slipway/hook.log")
		t.Errorf("the container saw %q, %v; want %q; log %q", out, err, want, log)
	}
}

// A folder that is not the container's stays as it is: the hook has no more rights
// in it than the container's root.
func TestUserNamespaceForeignFolder(t *testing.T) {
	everywhereIn(t, namespacedLab, func(t *testing.T, l *lab, stage string) {
		write(t, "/opt/victim/file", "the board's own")
		must(t, os.Chmod("/opt/victim", 0o775))
		write(t, "/opt/board/lib/a.so", "board a")
		l.lists("lib, /opt/board/lib/a.so")
		must(t, os.MkdirAll(l.rootfs("/opt/board/lib"), 0o755))
		l.chownImage(hostRoot)
		before := look(t)
		out, err := l.runContainer(container{stage: stage, env: all, script: "echo started", spec: func(s *specs.Spec) {
			userNamespace(hostRoot)(s)
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/opt/board/lib", Type: "bind", Source: "/opt/victim", Options: []string{"bind"}})
		}})
		log, _ := os.ReadFile("/run/slipway/hook.log")
		if err == nil || !strings.Contains(string(log), "the container's root may not write there") {
			t.Errorf("the container printed %q, %v, log %q; want a failure that says who may not write", out, err, log)
		}
		if after := look(t); after != before {
			t.Errorf("the board changed from\n%s\nto\n%s", before, after)
		}
	})
}

// The kernel lets no user namespace see what a mount of the board hides, so a
// folder with one in it cannot be given; the message says so.
func TestUserNamespaceFolderWithMount(t *testing.T) {
	everywhereIn(t, namespacedLab, func(t *testing.T, l *lab, stage string) {
		must(t, os.MkdirAll("/opt/board/x/sub", 0o755))
		must(t, unix.Mount("tmpfs", "/opt/board/x/sub", "tmpfs", 0, ""))
		l.lists("dir, /opt/board/x")
		l.chownImage(hostRoot)
		out, err := l.runContainer(container{stage: stage, env: all, script: "echo started", spec: userNamespace(hostRoot)})
		log, _ := os.ReadFile("/run/slipway/hook.log")
		if err == nil || !strings.Contains(string(log), "test.csv:1: /opt/board/x: ") || !strings.Contains(string(log), "list what is wanted of it") {
			t.Errorf("the container printed %q, %v, log %q; want a failure that says what to do", out, err, log)
		}
	})
}
