package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// useXZ runs a real program that needs a library of the board's, liblzma.so.5.
const useXZ = `printf 'found' | /usr/bin/xz -c | /usr/bin/xz -dc`

// needsLibrary puts xz into the image and its library onto the board alone, in a
// folder where no dynamic linker looks, under a name that no program requests.
func (l *lab) needsLibrary() {
	l.t.Helper()
	l.shell()
	l.program("/usr/bin/xz", "liblzma")
	found, err := filepath.Glob("/usr/lib/*-linux-gnu*/liblzma.so.5")
	if err != nil || len(found) == 0 {
		l.t.Skip("needs liblzma.so.5 (Debian package liblzma5)")
	}
	data, err := os.ReadFile(found[0])
	must(l.t, err)
	write(l.t, "/opt/board/lib/liblzma.so.5.4", string(data))
	l.lists("lib, /opt/board/lib/liblzma.so.5.4")
}

// cache gives the image what an image of a distribution has for its dynamic linker.
func (l *lab) cache() {
	l.t.Helper()
	write(l.t, l.rootfs("/etc/ld.so.conf"), "include /etc/ld.so.conf.d/*.conf\n")
	must(l.t, os.MkdirAll(l.rootfs("/etc/ld.so.conf.d"), 0o755))
	program, err := os.ReadFile("/sbin/ldconfig")
	if err != nil {
		l.t.Skipf("needs ldconfig (Debian package libc-bin): %v", err)
	}
	write(l.t, l.rootfs("/sbin/ldconfig"), string(program))
	if out, err := exec.Command("/sbin/ldconfig", "-r", l.rootfs("/")).CombinedOutput(); err != nil {
		l.t.Fatalf("ldconfig: %v\n%s", err, out)
	}
}

// A program finds a library in a folder that its image never heard of: with a cache in the image
// and without, again when the container is started again, and after somebody ran ldconfig in it.
func TestLibraryIsFound(t *testing.T) {
	everywhere(t, func(t *testing.T, l *lab, stage string) {
		l.needsLibrary()
		if out, err := l.runContainer(container{stage: stage, script: useXZ}); err == nil {
			t.Fatalf("xz without the board's library printed %q", out)
		}
		for _, image := range []string{"without a cache", "with a cache"} {
			if image == "with a cache" {
				must(t, os.Remove(l.rootfs("/etc/ld.so.cache")))
				l.cache()
			}
			var made []byte
			for _, run := range []string{"first", "second"} {
				out, err := l.runContainer(container{stage: stage, env: all, script: useXZ + "; stat -c ' %a %u' /etc/ld.so.cache; ls -A /etc"})
				if err != nil || !strings.HasPrefix(out, "found 644 0\nld.so.c") || strings.Contains(out, "slipway") {
					t.Errorf("%s, %s run: xz printed %q, %v", image, run, out, err)
				}
				now, err := os.ReadFile(l.rootfs("/etc/ld.so.cache"))
				must(t, err)
				if run == "second" && string(now) != string(made) {
					t.Errorf("%s: the second run changed the cache", image)
				}
				made = now
			}
		}
		out, err := l.runContainer(container{stage: stage, env: all, script: "/sbin/ldconfig && " + useXZ})
		if err != nil || out != "found" {
			t.Errorf("after ldconfig in the container xz printed %q, %v", out, err)
		}
		l.quiet()
	})
}

// quiet fails where the log warns of something.
func (l *lab) quiet() {
	l.t.Helper()
	log, err := os.ReadFile("/run/slipway/hook.log")
	must(l.t, err)
	if strings.Contains(string(log), "warning") {
		l.t.Errorf("log %q; want no warning", log)
	}
}

// The environment's own path keeps its place.
func TestLibraryPathOfImage(t *testing.T) {
	l := newLab(t, "runc")
	l.needsLibrary()
	write(t, l.rootfs("/opt/own/liblzma.so.5"), "not a library")
	out, err := l.runContainer(container{stage: "createRuntime", env: append([]string{"LD_LIBRARY_PATH=/opt/own"}, all...), script: useXZ})
	if err == nil || !strings.Contains(err.Error(), "/opt/own/liblzma.so.5") {
		t.Errorf("xz printed %q, %v; want that LD_LIBRARY_PATH comes first", out, err)
	}
	out, err = l.runContainer(container{stage: "createRuntime", env: append([]string{"LD_LIBRARY_PATH=/opt/empty"}, all...), script: useXZ})
	if err != nil || out != "found" {
		t.Errorf("xz printed %q, %v; want that it finds the board's library", out, err)
	}
}

// An image without a dynamic linker gets no files for one.
func TestLibraryStaticImage(t *testing.T) {
	everywhere(t, func(t *testing.T, l *lab, stage string) {
		l.needsLibrary()
		must(t, os.RemoveAll(l.rootfs("/lib64")))
		must(t, os.RemoveAll(l.rootfs("/lib")))
		out, err := l.runContainer(container{stage: stage, env: all, script: "ls -A / /opt/board/lib; test -e /etc && echo has /etc"})
		if !strings.Contains(out, "liblzma.so.5.4") || strings.Contains(out, "etc") {
			t.Errorf("the container printed %q, %v; want the library and no /etc", out, err)
		}
	})
}

// A read-only root has the new cache mounted over its own, and none of it is left on the board.
func TestLibraryReadOnlyRoot(t *testing.T) {
	everywhere(t, func(t *testing.T, l *lab, stage string) {
		l.needsLibrary()
		l.cache()
		out, err := l.runContainer(container{stage: stage, env: all, script: useXZ, spec: func(s *specs.Spec) { s.Root.Readonly = true }})
		if err != nil || out != "found" {
			log, _ := os.ReadFile("/run/slipway/hook.log")
			t.Errorf("xz printed %q, %v; log %q", out, err, log)
		}
		if left, err := filepath.Glob("/run/slipway/file-*"); err != nil || len(left) > 0 {
			t.Errorf("%q is left on the board", left)
		}
	})
}

// A volume at /etc that the container gets read-only is not written to.
func TestLibraryReadOnlyVolume(t *testing.T) {
	everywhere(t, func(t *testing.T, l *lab, stage string) {
		l.needsLibrary()
		write(t, "/opt/volume/ld.so.cache", "")
		hookBinary(t)
		before := look(t)
		out, err := l.runContainer(container{stage: stage, env: all, script: useXZ, spec: func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/etc", Type: "bind", Source: "/opt/volume", Options: []string{"bind", "ro"}})
		}})
		if err != nil || out != "found" {
			log, _ := os.ReadFile("/run/slipway/hook.log")
			t.Errorf("xz printed %q, %v; log %q", out, err, log)
		}
		if after := look(t); after != before {
			t.Errorf("the board changed from\n%s\nto\n%s", before, after)
		}
	})
}

// In a user namespace the files are the container's root's.
func TestLibraryUserNamespace(t *testing.T) {
	everywhereIn(t, namespacedLab, func(t *testing.T, l *lab, stage string) {
		must(t, os.RemoveAll(l.rootfs("/bin")))
		l.needsLibrary()
		l.cache()
		l.chownImage(hostRoot)
		out, err := l.runContainer(container{stage: stage, env: all, script: useXZ + "; stat -c ' %u:%g %a' /etc/ld.so.cache", spec: userNamespace(hostRoot)})
		if err != nil || out != "found 0:0 644\n" {
			log, _ := os.ReadFile("/run/slipway/hook.log")
			t.Errorf("xz printed %q, %v; log %q", out, err, log)
		}
	})
}
