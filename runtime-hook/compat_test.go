package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// cudaLoader opens libcuda as programs do, and prints whose it is.
const cudaLoader = `
#include <dlfcn.h>
#include <stdio.h>
int main(int n, char **names) {
	for (int i = 1; i < n; i++) {
		void *lib = dlopen(names[i], RTLD_NOW);
		const char *(*whose)(void) = lib ? (const char *(*)(void))dlsym(lib, "whose") : 0;
		puts(whose ? whose() : dlerror());
	}
	return 0;
}`

// compile runs the compiler on the source.
func (l *lab) compile(source string, args ...string) {
	l.t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		l.t.Skip("needs gcc (Debian packages gcc, libc6-dev)")
	}
	file := filepath.Join(l.dir, "source.c")
	write(l.t, file, source)
	if out, err := exec.Command("gcc", append(args, file)...).CombinedOutput(); err != nil {
		l.t.Fatalf("gcc: %v\n%s", err, out)
	}
}

// libcuda makes a driver library that says whose it is, with NVIDIA's note on CUDA's
// version where there is one.
func (l *lab) libcuda(at, whose, cuda string) {
	l.t.Helper()
	must(l.t, os.MkdirAll(filepath.Dir(at), 0o755))
	source := fmt.Sprintf("const char *whose(void) { return %q; }\n", whose)
	if cuda != "" {
		note := fmt.Sprintf(`{"Format": 1, "CUDA Version": "%s", "Driver": [560], "Device": [8]}`, cuda)
		source += fmt.Sprintf("__asm__(%q);\n", fmt.Sprintf(".section .note.cuda.fwd_compatibility,\"\",%%note\n.long 19,1f-0f,0\n.asciz \"NVIDIA Corporation\"\n.align 4\n0: .ascii %q\n1:\n.text", note))
	}
	l.compile(source, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", at)
}

// Releases of boards with CUDA 12.6 and 13.2.
const (
	cuda126 = "# R36 (release), REVISION: 4.3, GCID: 1\n"
	cuda132 = "# R39 (release), REVISION: 2.0, GCID: 1\n"
)

// An image's CUDA driver libraries are used where they are newer than the board's, and
// where NVIDIA's hook would use them; and no longer when the board is newer.
func TestForwardCompatibility(t *testing.T) {
	tests := []struct {
		name, release, settings string
		image                   func(l *lab, dir string)
		want                    string
	}{
		{"newer", cuda126, "", nil, "image"},
		{"as new", "# R38 (release), REVISION: 2.0, GCID: 1\n", "", nil, "board"},
		{"older", cuda132, "", nil, "board"},
		{"the board does not tell", "", "", nil, "board"},
		{"turned off", cuda126, "compat-dir = ''", nil, "board"},
		{"in another folder", cuda126, "compat-dir = '/opt/compat'", func(l *lab, dir string) {
			must(l.t, os.MkdirAll(l.rootfs("/opt"), 0o755))
			must(l.t, os.Rename(dir, l.rootfs("/opt/compat")))
		}, "image"},
		{"no note", cuda126, "", func(l *lab, dir string) { l.libcuda(dir+"/libcuda.so.560.1", "image", "") }, "board"},
		{"a note that is no version", cuda126, "", func(l *lab, dir string) { l.libcuda(dir+"/libcuda.so.560.1", "image", "new") }, "board"},
		{"two", cuda126, "", func(l *lab, dir string) { l.libcuda(dir+"/libcuda.so.560.2", "image", "13.0") }, "board"},
		{"for all but others to read", cuda126, "", func(l *lab, dir string) { must(l.t, os.Chmod(dir+"/libcuda.so.560.1", 0o640)) }, "board"},
		{"none", cuda126, "", func(l *lab, dir string) { must(l.t, os.RemoveAll(dir)) }, "board"},
	}
	l := newLab(t, "runc")
	l.shell()
	program := filepath.Join(l.dir, "asks")
	l.compile(cudaLoader, "-o", program)
	l.program(program, "nothing")
	l.libcuda("/opt/board/libcuda.so.1.1", "board", "")
	must(t, os.Symlink("libcuda.so.1.1", "/opt/board/libcuda.so"))
	l.lists("sym, /opt/board/libcuda.so")
	give := func(release, settings, want string) {
		t.Helper()
		write(t, "/etc/nv_tegra_release", release)
		write(t, "/etc/slipway/hook.toml", settings)
		must(t, os.Chmod("/etc/slipway/hook.toml", 0o644))
		out, err := l.runContainer(container{stage: "createRuntime", env: all, script: program + " libcuda.so.1 libcuda.so libonly.so.1"})
		log, _ := os.ReadFile("/run/slipway/hook.log")
		only := want
		if want == "board" {
			only = "libonly.so.1: cannot open shared object file: No such file or directory"
		}
		if err != nil || out != want+"\n"+want+"\n"+only+"\n" || strings.HasSuffix(string(log), "is used\n") != (want == "image") {
			t.Errorf("the program got the libraries of %q, %v, log %q; want those of the %s", out, err, log, want)
		}
	}
	for _, tt := range tests {
		t.Log(tt.name)
		os.Remove(l.rootfs("/etc/ld.so.cache"))
		must(t, os.RemoveAll(l.rootfs("/usr/local")))
		dir := l.rootfs("/usr/local/cuda-13.0/compat")
		l.libcuda(dir+"/libcuda.so.560.1", "image", "13.0")
		must(t, os.Symlink("libcuda.so.560.1", dir+"/libcuda.so.1"))
		l.compile("const char *whose(void) { return \"image\"; }", "-shared", "-fPIC", "-Wl,-soname,libonly.so.1", "-o", dir+"/libonly.so.560.1")
		must(t, os.Symlink("libcuda.so.1", dir+"/libcuda.so"))
		must(t, os.Symlink("cuda-13.0", l.rootfs("/usr/local/cuda")))
		if tt.image != nil {
			tt.image(l, dir)
		}
		give(tt.release, tt.settings, tt.want)
		if tt.name == "newer" {
			give(tt.release, tt.settings, tt.want)
			give(cuda132, tt.settings, "board")
			give(tt.release, tt.settings, tt.want)
		}
	}
}

// Whatever an image has in the place of these libraries holds no container up, and is not used.
func TestHostileCompatibility(t *testing.T) {
	images := map[string]func(l *lab){
		"a FIFO": func(l *lab) { must(l.t, unix.Mkfifo(l.rootfs("/usr/local/cuda/compat/libcuda.so.1.1"), 0o666)) },
		"an endless device": func(l *lab) {
			must(l.t, unix.Mknod(l.rootfs("/usr/local/cuda/compat/libcuda.so.1.1"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))))
		},
		"a folder": func(l *lab) { must(l.t, os.Mkdir(l.rootfs("/usr/local/cuda/compat/libcuda.so.1.1"), 0o755)) },
		"a huge file": func(l *lab) {
			must(l.t, sparse(l.rootfs("/usr/local/cuda/compat/libcuda.so.1.1"), "\x7fELF\x02\x01", 1<<40))
		},
		"a link to the board's": func(l *lab) {
			link(l.t, l, l.board("/opt/newer/libcuda.so.560.1"), "/usr/local/cuda/compat/libcuda.so.1.1")
		},
		"a folder of the board": func(l *lab) {
			must(l.t, os.Remove(l.rootfs("/usr/local/cuda/compat")))
			link(l.t, l, l.board("/opt/newer"), "/usr/local/cuda/compat")
		},
		"a folder of the kernel": func(l *lab) {
			must(l.t, os.Remove(l.rootfs("/usr/local/cuda/compat")))
			link(l.t, l, "/proc/self/fd", "/usr/local/cuda/compat")
		},
		"a circle": func(l *lab) {
			must(l.t, os.Remove(l.rootfs("/usr/local/cuda/compat")))
			link(l.t, l, "compat", "/usr/local/cuda/compat")
		},
		"many": func(l *lab) {
			for i := range 5000 {
				write(l.t, l.rootfs(fmt.Sprintf("/usr/local/cuda/compat/lib%d.so.1.1", i)), "")
			}
		},
	}
	for i, name := range names(images) {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, []string{"runc", "crun"}[i%2])
			l.needsLibrary()
			write(t, "/etc/nv_tegra_release", cuda126)
			l.libcuda("/opt/newer/libcuda.so.560.1", "board", "13.0")
			must(t, os.MkdirAll(l.rootfs("/usr/local/cuda/compat"), 0o755))
			images[name](l)
			hookBinary(t)
			before := look(t)
			start := time.Now()
			out, err := l.runContainer(container{stage: "createRuntime", env: all, script: useXZ})
			log, _ := os.ReadFile("/run/slipway/hook.log")
			if err != nil || out != "found" || strings.Contains(string(log), "is used") || time.Since(start) > 20*time.Second {
				t.Errorf("after %v the container printed %q, %v, log %q; want that it starts with the board's alone", time.Since(start), out, err, log)
			}
			if after := look(t); after != before {
				t.Errorf("the board changed from\n%s\nto\n%s", before, after)
			}
		})
	}
}
