package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// A board's list names less after an update. A container that is started again finds
// what its image has, and none of the empty files on which the board's were mounted.
func TestListShrinks(t *testing.T) {
	const other = "lib, /opt/board/lib/libother.so"
	tests := []struct {
		name  string
		image bool   // has the library itself
		at    string // where the board has the library; "" for a folder of its own
		left  string // of the list
		again string // what runs in the container before the list shrinks
		want  string // in what the container prints
	}{
		{"the image's own is found again", true, "", other, "", "found"},
		{"no library is left", true, "", "# nothing", "", "found"},
		{"the image has none", false, "", other, "", "liblzma.so.5: cannot open shared object file: No such file"},
		{"in a folder that ld.so knows", false, "its own", other, "", "liblzma.so.5: cannot open shared object file: No such file"},
		{"in such a folder and another", false, "its own too", other, "", "liblzma.so.5: cannot open shared object file: No such file"},
		{"after an ldconfig in the container", true, "", other, "/sbin/ldconfig", "found"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t, "runc")
			l.needsLibrary()
			library := "/opt/board/lib/liblzma.so.5.4"
			data, err := os.ReadFile(library)
			must(t, err)
			if tt.at != "" {
				found, err := filepath.Glob("/usr/lib/*-linux-gnu*/liblzma.so.5")
				must(t, err)
				library, err = filepath.EvalSymlinks(found[0])
				must(t, err)
			}
			listed := []string{"lib, " + library, other}
			if tt.at == "its own too" {
				listed = append([]string{"lib, /opt/board/lib/liblzma.so.5.4"}, listed...)
			}
			if tt.image {
				write(t, l.rootfs("/opt/image/liblzma.so.5"), string(data))
				write(t, l.rootfs("/etc/ld.so.conf.d/image.conf"), "/opt/image\n")
			}
			l.cache()
			write(t, "/opt/board/lib/libother.so", string(data[:100]))
			l.lists(listed...)
			l.overlay()
			if out, err := l.runContainer(container{stage: "createRuntime", env: all, script: useXZ + " ; " + tt.again}); err != nil || out != "found" {
				t.Fatalf("before, xz printed %q, %v", out, err)
			}
			l.lists(tt.left)
			for range 2 {
				out, err := l.runContainer(container{stage: "createRuntime", env: all, script: useXZ + " 2>&1"})
				if !strings.Contains(out, tt.want) {
					t.Errorf("the container printed %q, %v; want %q", out, err, tt.want)
				}
			}
			if _, err := exec.Command("/sbin/ldconfig", "-p", "-C", l.rootfs("/etc/ld.so.cache")).Output(); err != nil {
				t.Errorf("the machine's ldconfig cannot read the cache: %v", err)
			}
		})
	}
}

// overlay gives the container a writable layer, as engines do.
func (l *lab) overlay() {
	l.t.Helper()
	for _, dir := range []string{"layer", "work2"} {
		must(l.t, os.Mkdir(filepath.Join(l.dir, dir), 0o755))
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s/layer,workdir=%s/work2", l.rootfs("/"), l.dir, l.dir)
	must(l.t, unix.Mount("overlay", l.rootfs("/"), "overlay", 0, options))
}

// Libraries in a folder of the board that the user has mounted himself are found, too.
func TestLibraryInUsersMount(t *testing.T) {
	everywhere(t, func(t *testing.T, l *lab, stage string) {
		l.needsLibrary()
		l.cache()
		out, err := l.runContainer(container{stage: stage, env: all, script: useXZ, spec: func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/opt/board/lib", Type: "bind", Source: "/opt/board/lib", Options: []string{"rbind", "rprivate", "ro"}})
		}})
		log, _ := os.ReadFile("/run/slipway/hook.log")
		if err != nil || out != "found" || !strings.Contains(string(log), "files 0, folders 0, links 0, devices 0") {
			t.Errorf("xz printed %q, %v, log %q; want that it finds the library in the volume", out, err, log)
		}
	})
}
