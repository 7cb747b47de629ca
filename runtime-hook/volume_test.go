package main

import (
	"os"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// volumes are what a hostile image does where its container has a folder of the
// board, /opt/vol, at /vol, and runs as a user without rights over it.
var volumes = map[string]struct {
	image  func(t *testing.T, l *lab)
	at     string // in the container, in the place of /vol
	script string
	want   string
}{
	"what only root may read is no path of musl's": {
		image: func(t *testing.T, l *lab) {
			write(t, l.rootfs("/lib/ld-musl-x86_64.so.1"), "")
			link(t, l, "/vol/key", "/etc/ld-musl-x86_64.path")
		},
		script: "cat /etc/ld-musl-x86_64.path 2>&1",
		want:   "cat: can't open '/etc/ld-musl-x86_64.path': Permission denied\n",
	},
	"nothing is made behind a link": {
		image: func(t *testing.T, l *lab) { link(t, l, "/vol", "/opt/board/lib") },
	},
	"nothing is made below a link": {
		image: func(t *testing.T, l *lab) { link(t, l, "/vol", "/opt/board") },
	},
	"what is there is covered for the container": {
		image: func(t *testing.T, l *lab) {
			write(t, "/opt/vol/a.so.1", "volume's")
			link(t, l, "/vol", "/opt/board/lib")
		},
		script: "cat /vol/a.so.1",
		want:   "board's",
	},
	"links are not replaced": {
		image: func(_ *testing.T, l *lab) {},
		at:    "/opt/board/lib",
	},
	"no cache is written behind a link": {
		image: func(t *testing.T, l *lab) {
			must(t, os.RemoveAll(l.rootfs("/etc")))
			link(t, l, "/vol", "/etc")
		},
	},
	"the cache of a volume is covered": {
		image:  func(_ *testing.T, l *lab) {},
		at:     "/etc",
		script: useXZ,
		want:   "found",
	},
	"nothing covers the container's root": {
		image:  func(t *testing.T, l *lab) { link(t, l, "/", "/opt/board/share") },
		script: useXZ,
		want:   "found",
	},
}

// Whatever an image has, a hook that runs as root does nothing in a volume that the
// container's user could not do, and reads nothing there for it.
func TestVolume(t *testing.T) {
	for _, engine := range []string{"runc", "crun"} {
		for name, tt := range volumes {
			t.Run(engine+"/"+name, func(t *testing.T) {
				l := newLab(t, engine)
				l.needsLibrary()
				l.cache()
				write(t, "/opt/vol/key", secret)
				must(t, os.Chmod("/opt/vol/key", 0o600))
				write(t, "/opt/vol/ld.so.cache", "")
				must(t, os.MkdirAll("/opt/vol/ld.so.conf.d", 0o755))
				write(t, "/opt/vol/ld.so.conf.d/00-slipway.conf", "")
				must(t, os.Symlink("other", "/opt/vol/a.so"))
				write(t, "/opt/board/lib/a.so.1", "board's")
				must(t, os.Symlink("a.so.1", "/opt/board/lib/a.so"))
				write(t, "/opt/board/share/x", "x")
				lists := []string{"sym, /opt/board/lib/a.so", "dir, /opt/board/share"}
				if tt.at != "/opt/board/lib" {
					lists = append(lists, "lib, /opt/board/lib/liblzma.so.5.4")
				} else {
					write(t, "/opt/vol/a.so.1", "volume's")
				}
				l.lists(lists...)
				tt.image(t, l)
				hookBinary(t)
				before := look(t)
				at := tt.at
				if at == "" {
					at = "/vol"
				}
				out, err := l.runContainer(container{stage: "createRuntime", env: all, script: tt.script, spec: func(s *specs.Spec) {
					s.Process.User = specs.User{UID: 1000, GID: 1000}
					s.Mounts = append(s.Mounts, specs.Mount{Destination: at, Type: "bind", Source: "/opt/vol", Options: []string{"bind", "rw"}})
				}})
				if tt.want != "" && out != tt.want || tt.want == "" && err != nil {
					log, _ := os.ReadFile("/run/slipway/hook.log")
					t.Errorf("the container printed %q, %v; want %q; log %q", out, err, tt.want, log)
				}
				if after := look(t); after != before {
					t.Errorf("the board changed: %s", added(before, after))
				}
			})
		}
	}
}

// A volume that the board shares shows it what is mounted there; the hook's mounts
// would stay when the container is gone.
func TestVolumeShared(t *testing.T) {
	for _, engine := range []string{"runc", "crun"} {
		for _, at := range []string{"/vol", "/opt/board/lib"} {
			t.Run(engine+at, func(t *testing.T) {
				l := newLab(t, engine)
				l.shell()
				write(t, "/opt/board/lib/a.so", "board's")
				write(t, "/opt/board/lib/b.so", "board's b")
				l.lists("lib, /opt/board/lib/a.so", "lib, /opt/board/lib/b.so", "dir, /opt/board/lib")
				must(t, os.Mkdir("/opt/shared", 0o755))
				must(t, unix.Mount("tmpfs", "/opt/shared", "tmpfs", 0, ""))
				must(t, unix.Mount("", "/opt/shared", "", unix.MS_SHARED, ""))
				t.Cleanup(func() { unix.Unmount("/opt/shared", unix.MNT_DETACH) })
				write(t, "/opt/shared/a.so", "volume's")
				if at == "/vol" {
					link(t, l, "/vol", "/opt/board/lib")
				}
				hookBinary(t)
				before := look(t)
				out, err := l.runContainer(container{stage: "createRuntime", env: all, script: "cat " + at + "/*", spec: func(s *specs.Spec) {
					s.Linux.RootfsPropagation = "rshared"
					s.Mounts = append(s.Mounts, specs.Mount{Destination: at, Type: "bind", Source: "/opt/shared", Options: []string{"rbind", "rshared"}})
				}})
				if err != nil || out != "volume's" {
					t.Errorf("the container saw %q, %v; want what the volume has", out, err)
				}
				after := look(t)
				if after != before {
					t.Errorf("the board changed: %s", added(before, after))
				}
			})
		}
	}
}
