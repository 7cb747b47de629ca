package ldcache

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"slipway/runtime-hook/internal/elf"
	"slipway/runtime-hook/internal/inject"
	"slipway/runtime-hook/internal/plan"
)

// newImage is the root of a container in a mount namespace of the test's own, with
// the dynamic linkers of a machine.
func newImage(t testing.TB, linkers ...string) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: mounts in a namespace of its own")
	}
	runtime.LockOSThread()
	must(t, unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS))
	must(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	must(t, unix.Mount("tmpfs", "/run", "tmpfs", 0, ""))
	must(t, os.Mkdir("/run/slipway", 0o755))
	dir := t.TempDir()
	must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, ""))
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	for _, l := range linkers {
		write(t, dir+l, "")
	}
	return dir
}

func write(t testing.TB, path, text string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(text), 0o644))
}

const glibcAArch64 = "/lib/ld-linux-aarch64.so.1"

var given = []plan.Library{
	{Name: "libcuda.so.1", Path: "/opt/board/libcuda.so.1.1", Machine: elf.AArch64},
	{Name: "libz.so.1", Path: "/usr/lib/aarch64-linux-gnu/libz.so.1.3", Machine: elf.AArch64},
}

func update(t testing.TB, image string, libs []plan.Library) []string {
	t.Helper()
	root, err := inject.Process{}.Open(image)
	must(t, err)
	defer root.Close()
	defer unix.Umask(unix.Umask(0))
	return Update(root, libs)
}

// found is where ld.so finds the name in the image's cache.
func found(t *testing.T, image, name string) string {
	t.Helper()
	data, err := os.ReadFile(image + cachePath)
	if errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	must(t, err)
	c, err := parseCache(data)
	if err != nil {
		return err.Error()
	}
	return search(c.entries, name, 0x0a03, false)
}

func TestUpdate(t *testing.T) {
	old := (&cache{entries: []entry{
		{flags: 0x0a03, name: "libold.so.1", path: "/lib/libold.so.1"},
		{flags: 0x0a03, name: "libcuda.so.1", path: "/image/v9/libcuda.so.1", hwcap: 1 << 62},
		{flags: 0x0a03, name: "libcuda.so.1", path: "/image/libcuda.so.1"},
	}, hwcaps: []string{"v9"}}).encode()
	type files map[string]string
	tests := []struct {
		name  string
		image files // "->" at the end of a name: a link
		libs  []plan.Library
		want  files // "" where there is to be none
		found files // by name, in the cache
		notes []string
	}{
		{"no linker", nil, given, files{"/etc": ""}, nil, nil},
		{"the linker of another machine", files{"/lib64/ld-linux-x86-64.so.2": ""}, given, files{"/etc": ""}, nil, nil},
		{"no libraries", files{glibcAArch64: ""}, nil, files{"/etc": ""}, nil, nil},
		{"glibc", files{glibcAArch64: ""}, given, files{"/etc/ld.so.conf.d": ""}, files{"libcuda.so.1": "/opt/board/libcuda.so.1.1"}, nil},
		{
			"glibc by links",
			files{"/lib->": "usr/lib", "/usr" + glibcAArch64: "", "/etc->": "image/etc", "/image/etc/x": ""},
			given, nil,
			files{"libcuda.so.1": "/opt/board/libcuda.so.1.1"},
			nil,
		},
		{
			"what the image has stays",
			files{glibcAArch64: "", cachePath: string(old)},
			given, nil,
			files{"libcuda.so.1": "/opt/board/libcuda.so.1.1", "libold.so.1": "/lib/libold.so.1"},
			nil,
		},
		{
			"folders for ldconfig",
			files{glibcAArch64: "", "/etc/ld.so.conf": ""},
			given,
			files{confPath: "/opt/board\n/usr/lib/aarch64-linux-gnu\n"},
			nil, nil,
		},
		{
			"folders that ldconfig knows",
			files{glibcAArch64: "", "/etc/ld.so.conf.d/aarch64-linux-gnu.conf": ""},
			given,
			files{confPath: "/opt/board\n"},
			nil, nil,
		},
		{"only such folders", files{glibcAArch64: "", "/etc/ld.so.conf.d/aarch64-linux-gnu.conf": ""}, given[1:], files{confPath: ""}, nil, nil},
		{"musl", files{"/lib/ld-musl-aarch64.so.1": ""}, given, files{"/etc": ""}, nil, nil},
		{
			"a broken cache",
			files{glibcAArch64: "", cachePath: string(old[:100])},
			given, nil,
			files{"libcuda.so.1": "/opt/board/libcuda.so.1.1"},
			[]string{"the image's /etc/ld.so.cache: it is broken: it ends early; it was replaced"},
		},
		{
			"an unknown cache",
			files{glibcAArch64: "", cachePath: "hello"},
			given,
			files{cachePath: "hello"},
			nil,
			[]string{"/etc/ld.so.cache: its format is not known; programs may need LD_LIBRARY_PATH"},
		},
		{
			"a huge cache",
			files{glibcAArch64: "", cachePath: strings.Repeat("x", maxBytes+1)},
			given, nil,
			nil,
			[]string{"/etc/ld.so.cache: larger than 1024 KiB; programs may need LD_LIBRARY_PATH"},
		},
		{
			"a link to a cache",
			files{glibcAArch64: "", cachePath + "->": "../var/cache", "/var/cache": string(old)},
			given,
			files{"/var/cache": string(old)},
			files{"libcuda.so.1": "/opt/board/libcuda.so.1.1", "libold.so.1": "/lib/libold.so.1"},
			nil,
		},
		{
			"a link to nothing",
			files{glibcAArch64: "", cachePath + "->": "../../../../../../../../gone"},
			given,
			files{"/gone": ""},
			files{"libcuda.so.1": "/opt/board/libcuda.so.1.1"},
			nil,
		},
		{
			"a link to itself",
			files{glibcAArch64: "", cachePath + "->": "ld.so.cache"},
			given, nil,
			files{"libcuda.so.1": "/opt/board/libcuda.so.1.1"},
			nil,
		},
		{
			"a folder",
			files{glibcAArch64: "", cachePath + "/x": "x"},
			given,
			files{cachePath + "/x": "x"},
			nil,
			[]string{"/etc/ld.so.cache: is a directory; programs may need LD_LIBRARY_PATH"},
		},
		{
			"no folder at /etc",
			files{glibcAArch64: "", "/etc": "a file"},
			given,
			files{"/etc": "a file"},
			nil,
			[]string{"/etc/ld.so.cache: the image is in the way: /etc is no folder there, nor a link to one; programs may need LD_LIBRARY_PATH"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			image := newImage(t)
			for name, text := range tt.image {
				if link := strings.TrimSuffix(name, "->"); link != name {
					must(t, os.MkdirAll(filepath.Dir(image+link), 0o755))
					must(t, os.Symlink(text, image+link))
				} else {
					write(t, image+name, text)
				}
			}
			if notes := update(t, image, tt.libs); !reflect.DeepEqual(notes, tt.notes) {
				t.Errorf("notes %q; want %q", notes, tt.notes)
			}
			for name, want := range tt.want {
				data, err := os.ReadFile(image + name)
				if want == "" && !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%s is there: %q, %v", name, data, err)
				}
				if want != "" && string(data) != want {
					t.Errorf("%s holds %q; want %q", name, data, want)
				}
			}
			for name, want := range tt.found {
				if got := found(t, image, name); got != want {
					t.Errorf("%s is found at %q; want %q", name, got, want)
				}
			}
		})
	}
}

// What is no file where the cache should be neither holds the hook up nor is read.
func TestUpdateOverSpecial(t *testing.T) {
	makes := map[string]func(at string) error{
		"FIFO":           func(at string) error { return unix.Mkfifo(at, 0o644) },
		"endless device": func(at string) error { return unix.Mknod(at, unix.S_IFCHR|0o644, int(unix.Mkdev(1, 5))) },
		"socket":         func(at string) error { return unix.Mknod(at, unix.S_IFSOCK|0o644, 0) },
	}
	for name, make := range makes {
		t.Run(name, func(t *testing.T) {
			image := newImage(t, glibcAArch64, "/etc/ld.so.conf.d/x")
			for _, at := range []string{cachePath, confPath} {
				must(t, make(image+at))
			}
			start := time.Now()
			if notes := update(t, image, given); notes != nil || time.Since(start) > 5*time.Second {
				t.Errorf("after %v: notes %q", time.Since(start), notes)
			}
			if got := found(t, image, "libcuda.so.1"); got != given[0].Path {
				t.Errorf("libcuda.so.1 is found at %q", got)
			}
		})
	}
}

// A program that reads the cache while it changes sees the old one or the new one.
func TestUpdateIsWhole(t *testing.T) {
	image := newImage(t, glibcAArch64)
	update(t, image, given)
	// Another thread is in another namespace, but for what is open.
	dir, err := os.Open(image + "/etc")
	must(t, err)
	defer dir.Close()
	file := fmt.Sprintf("/proc/self/fd/%d/ld.so.cache", dir.Fd())
	stop, seen := make(chan struct{}), make(chan error)
	go func() {
		var err error
		for n := 0; ; n++ {
			select {
			case <-stop:
				seen <- err
				return
			default:
			}
			data, readErr := os.ReadFile(file)
			if c, parseErr := parseCache(data); readErr != nil || parseErr != nil || len(c.entries) == 0 {
				err = fmt.Errorf("read %d: %d bytes, %v, %v", n, len(data), readErr, parseErr)
			}
		}
	}()
	for i := 0; i < 200; i++ {
		libs := []plan.Library{{Name: "libcuda.so.1", Path: fmt.Sprintf("/opt/%d/libcuda.so.1", i), Machine: elf.AArch64}}
		if notes := update(t, image, libs); notes != nil {
			t.Fatal(notes)
		}
	}
	close(stop)
	if err := <-seen; err != nil {
		t.Error(err)
	}
	if list, err := os.ReadDir(image + "/etc"); err != nil || len(list) != 1 {
		t.Errorf("%v is in /etc; want the cache alone", list)
	}
}

// What the files take of a container's start, with a Debian image's cache and 250
// libraries that are elsewhere each time.
func BenchmarkUpdate(b *testing.B) {
	data, err := os.ReadFile("/etc/ld.so.cache")
	if err != nil {
		b.Skipf("needs the machine's ld.so.cache (ldconfig writes it): %v", err)
	}
	var libs [2][]plan.Library
	for i := 0; i < 500; i++ {
		name := fmt.Sprintf("libnvboard_%d.so", i/2)
		path := fmt.Sprintf("/usr/lib/aarch64-linux-gnu/tegra%d/%s.35.4.1", i%2, name)
		libs[i%2] = append(libs[i%2], plan.Library{Name: name, Path: path, Machine: elf.X8664})
	}
	image := newImage(b, "/lib64/ld-linux-x86-64.so.2", "/etc/ld.so.conf.d/x86_64-linux-gnu.conf")
	write(b, image+cachePath, string(data))
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; i < b.N; i++ {
		if notes := update(b, image, libs[i%2]); notes != nil {
			b.Fatal(notes)
		}
	}
}
