package main

import (
	"os"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// groupDevice puts a device on the board that only root and the group open.
func groupDevice(t *testing.T, mode uint32, gid int) {
	t.Helper()
	must(t, unix.Mount("tmpfs", "/dev/shm", "tmpfs", 0, ""))
	must(t, unix.Mknod("/dev/shm/gpu", unix.S_IFCHR|mode, int(unix.Mkdev(1, 7))))
	must(t, os.Chown("/dev/shm/gpu", 0, gid))
	must(t, os.Chmod("/dev/shm/gpu", os.FileMode(mode)))
}

func user(uid, gid uint32, more ...uint32) func(*specs.Spec) {
	return func(s *specs.Spec) { s.Process.User = specs.User{UID: uid, GID: gid, AdditionalGids: more} }
}

const opensGPU = "(: <> /dev/shm/gpu) 2>&1 && echo opens; id -G"

// A process that is not root opens what the board's users open: those of the device's group.
func TestGroupOpensDevice(t *testing.T) {
	tests := []struct {
		name string
		mode uint32
		gid  int
		spec func(*specs.Spec)
		want string
	}{
		{"for a group", 0o660, 44, user(1000, 1000), "opens\n1000 44\n"},
		{"a member already", 0o660, 44, user(1000, 1000, 44), "opens\n1000 44\n"},
		{"the group is its own", 0o660, 44, user(1000, 44), "opens\n44\n"},
		{"it has other groups", 0o660, 44, user(1000, 1000, 7), "opens\n1000 7 44\n"},
		{"for everybody", 0o666, 44, user(1000, 1000), "opens\n1000\n"},
	}
	wrapped(t, func(t *testing.T, l *lab) {
		must(t, os.Symlink("busybox", l.rootfs("/bin/id")))
		groupDevice(t, 0o660, 44)
		l.lists("dev, /dev/shm/gpu")
		for _, tt := range tests {
			must(t, os.Chown("/dev/shm/gpu", 0, tt.gid))
			must(t, os.Chmod("/dev/shm/gpu", os.FileMode(tt.mode)))
			out, err := l.runContainer(container{env: all, script: opensGPU, spec: tt.spec})
			if err != nil || out != tt.want {
				t.Errorf("%s: the container printed %q, %v; want %q", tt.name, out, err, tt.want)
			}
		}
	})
}

// A group that would give a container more than the device is not given.
func TestGroupIsNotGiven(t *testing.T) {
	tests := []struct {
		name string
		mode uint32
		gid  int
	}{
		{"root's group", 0o660, 0},
		{"a group that may only read", 0o640, 44},
		{"nobody's group", 0o660, 65534},
		{"for its owner alone", 0o600, 44},
	}
	wrapped(t, func(t *testing.T, l *lab) {
		must(t, os.Symlink("busybox", l.rootfs("/bin/id")))
		groupDevice(t, 0o660, 44)
		l.lists("dev, /dev/shm/gpu")
		for _, tt := range tests {
			must(t, os.Chown("/dev/shm/gpu", 0, tt.gid))
			must(t, os.Chmod("/dev/shm/gpu", os.FileMode(tt.mode)))
			out, err := l.runContainer(container{env: all, script: opensGPU, spec: user(1000, 1000)})
			if err != nil || !strings.HasSuffix(out, "Permission denied\n1000\n") {
				t.Errorf("%s: the container printed %q, %v; want that it is a member of no more groups", tt.name, out, err)
			}
		}
	})
}

// The hook alone can give no group, and says what does.
func TestHookNamesGroups(t *testing.T) {
	l := newLab(t, "runc")
	l.shell()
	groupDevice(t, 0o660, 44)
	l.lists("dev, /dev/shm/gpu")
	for _, tt := range []struct {
		uid  uint32
		want bool
	}{{1000, true}, {0, false}} {
		os.Remove("/run/slipway/hook.log")
		if out, err := l.runContainer(container{stage: "createRuntime", env: all, script: "echo", spec: user(tt.uid, 1000)}); err != nil {
			t.Fatal(out, err)
		}
		log, err := os.ReadFile("/run/slipway/hook.log")
		if err != nil || strings.Contains(string(log), "in none of the groups [44], which may open devices") != tt.want {
			t.Errorf("user %d: log %q, %v; want the group named: %v", tt.uid, log, err, tt.want)
		}
	}
}
