package tegra

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"slipway/flash/sealed"
)

// entry is one of an archive that a test makes.
type entry struct {
	name, body, to string
	kind           byte
	mode           int64
	says           int64 // instead of the body's length
}

func tarOf(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Typeflag: e.kind, Linkname: e.to, Mode: e.mode, Size: int64(len(e.body)) + e.says}
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func gz(t testing.TB, data []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(data)
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func zst(t testing.TB, data []byte) []byte {
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	return w.EncodeAll(data, nil)
}

// try unpacks data into the folder that it returns.
func try(t testing.TB, data []byte, limits archiveLimits) (string, error) {
	t.Helper()
	outer := t.TempDir()
	path := filepath.Join(outer, "archive")
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(outer, "in", "package")
	if err := os.Mkdir(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := unpackLimited(t.Context(), Archive{Path: path}, dir, limits)
	checkOutside(t, outer, dir, err)
	return dir, err
}

// checkOutside looks whether anything is where it does not belong.
func checkOutside(t testing.TB, outer, dir string, err error) {
	t.Helper()
	for _, in := range []struct{ dir, want string }{{outer, "archive in"}, {filepath.Join(outer, "in"), "package"}} {
		entries, e := os.ReadDir(in.dir)
		if e != nil {
			t.Fatal(e)
		}
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		want := in.want
		if err != nil && want == "package" {
			want = ""
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s holds %q after %v; want %q", in.dir, got, err, want)
		}
	}
	if err != nil {
		return
	}
	e := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.Type()&^(fs.ModeDir|fs.ModeSymlink) != 0 {
			t.Errorf("%s is %v", p, d.Type())
		}
		if real, err := filepath.EvalSymlinks(p); err == nil && real != dir && !strings.HasPrefix(real, dir+"/") {
			t.Errorf("%s leads to %s", p, real)
		}
		return nil
	})
	if e != nil {
		t.Error(e)
	}
}

func read(t *testing.T, path, want string) {
	t.Helper()
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		t.Errorf("%s = %.40q, %v; want %.40q", path, got, err, want)
	}
}

func mode(t *testing.T, path string) fs.FileMode {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode()
}

var good = []entry{
	{name: "./", kind: tar.TypeDir, mode: 0o755},
	{name: "./doflash.sh", body: "#!/bin/sh\n", mode: 0o4755},
	{name: "flash.xml.in", body: "<xml/>", mode: 0o400},
	{name: "deep/er/file", body: strings.Repeat("x", 300<<10)},
	{name: "deep/up", kind: tar.TypeSymlink, to: "../flash.xml.in"},
	{name: "empty", body: ""},
}

func TestEveryForm(t *testing.T) {
	plain := tarOf(t, append(good, entry{name: "deep/same", kind: tar.TypeLink, to: "./flash.xml.in"})...)
	for name, data := range map[string][]byte{
		"tar": plain, "tar.gz": gz(t, plain), "tar.zst": zst(t, plain),
	} {
		t.Run(name, func(t *testing.T) {
			dir, err := try(t, data, usualLimits)
			if err != nil {
				t.Fatal(err)
			}
			read(t, filepath.Join(dir, "deep/er/file"), strings.Repeat("x", 300<<10))
			read(t, filepath.Join(dir, "deep/up"), "<xml/>")
			read(t, filepath.Join(dir, "deep/same"), "<xml/>")
			if m := mode(t, filepath.Join(dir, "doflash.sh")); m != 0o755 {
				t.Errorf("doflash.sh has mode %v; want it without setuid", m)
			}
			if m := mode(t, filepath.Join(dir, "flash.xml.in")); m != 0o600 {
				t.Errorf("flash.xml.in has mode %v; want one that its owner can write", m)
			}
			if m := mode(t, dir); m.Perm() != 0o700 {
				t.Errorf("the folder has mode %v; want it private", m)
			}
		})
	}
}

func TestRefused(t *testing.T) {
	small := archiveLimits{Entries: 10, Bytes: 1 << 20, NameBytes: 100, Ratio: 1100, Free: 64 << 20}
	many := make([]entry, 20)
	for i := range many {
		many[i] = entry{name: strings.Repeat("n", i+1)}
	}
	tests := []struct {
		name    string
		entries []entry
		want    string
	}{
		{"up", []entry{{name: "../evil"}}, "leads out"},
		{"up in the middle", []entry{{name: "a/../../evil"}}, "leads out"},
		{"absolute", []entry{{name: "/etc/evil"}}, "leads out"},
		{"backslash", []entry{{name: `..\evil`}}, "no name"},
		{"link out", []entry{{name: "l", kind: tar.TypeSymlink, to: "../x"}}, "leads out"},
		{"link to an absolute path", []entry{{name: "l", kind: tar.TypeSymlink, to: "/etc/passwd"}}, "leads out"},
		{"link down and up", []entry{{name: "a", kind: tar.TypeSymlink, to: "."}, {name: "l", kind: tar.TypeSymlink, to: "a/../x"}}, "down and up"},
		{"through a link", []entry{{name: "d/x"}, {name: "l", kind: tar.TypeSymlink, to: "d"}, {name: "l/evil"}}, "both a file or link and a folder"},
		{"through a file", []entry{{name: "f"}, {name: "f/evil"}}, "both a file or link and a folder"},
		{"over a link", []entry{{name: "l", kind: tar.TypeSymlink, to: "x"}, {name: "l", body: "evil"}}, "is twice"},
		{"twice", []entry{{name: "x"}, {name: "./x"}}, "is twice"},
		{"hard link out", []entry{{name: "h", kind: tar.TypeLink, to: "../../etc/passwd"}}, "leads out"},
		{"hard link to nothing", []entry{{name: "h", kind: tar.TypeLink, to: "x"}}, "no file before it"},
		{"hard link to a link", []entry{{name: "l", kind: tar.TypeSymlink, to: "x"}, {name: "h", kind: tar.TypeLink, to: "l"}}, "no file before it"},
		{"device", []entry{{name: "d", kind: tar.TypeBlock}}, "device or a pipe"},
		{"character device", []entry{{name: "d", kind: tar.TypeChar}}, "device or a pipe"},
		{"pipe", []entry{{name: "p", kind: tar.TypeFifo}}, "device or a pipe"},
		{"long name", []entry{{name: strings.Repeat("n", 101)}}, "a name of 101 bytes"},
		{"long target", []entry{{name: "l", kind: tar.TypeSymlink, to: strings.Repeat("n", 101)}}, "the target is invalid"},
		{"many entries", many, "more than 10 entries"},
		{"many folders", []entry{{name: "1/2/3/4/5/6/7/8/9/10/11/12"}}, "more than 10 entries"},
		{"many bytes", []entry{{name: "a", body: strings.Repeat("x", 1<<19)}, {name: "b", body: strings.Repeat("x", 1<<19+1)}}, "more than 1048576 bytes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := try(t, gz(t, tarOf(t, tt.entries...)), small); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("tar: %v; want an error with %q", err, tt.want)
			}
		})
	}
}

func TestBombs(t *testing.T) {
	huge := strings.Repeat("\x00", 4<<20)
	limits := usualLimits
	limits.Ratio, limits.Free = 50, 1<<20
	for name, data := range map[string][]byte{
		"gz": gz(t, tarOf(t, entry{name: "x", body: huge})), "zst": zst(t, tarOf(t, entry{name: "x", body: huge})),
	} {
		if _, err := try(t, data, limits); err == nil || !strings.Contains(err.Error(), "no image packs like that") {
			t.Errorf("%s: %v; want its ratio refused", name, err)
		}
	}
}

func TestBroken(t *testing.T) {
	plain := tarOf(t, good...)
	packed, packedZst := gz(t, plain), zst(t, plain)
	flipped := func(data []byte, at int) []byte {
		data = bytes.Clone(data)
		data[at] ^= 0x10
		return data
	}
	for name, data := range map[string][]byte{
		"nothing": nil, "text": []byte("hello"), "other": bytes.Repeat([]byte("x"), 2000),
		"cut tar": plain[:len(plain)-1024], "cut between entries": plain[:2048], "cut in a file": plain[:len(plain)-20<<10],
		"cut gz": packed[:len(packed)-4], "gz cut in half": packed[:len(packed)/2], "gz with more behind": append(bytes.Clone(packed), "more"...),
		"gz of another sum": flipped(packed, len(packed)-6),
		"cut zst":           packedZst[:len(packedZst)-1], "changed zst": flipped(packedZst, len(packedZst)/2),
	} {
		if _, err := try(t, data, usualLimits); err == nil {
			t.Errorf("%s was unpacked", name)
		}
	}
}

// Yocto can also make packages as .zip.
func TestZipIsRefused(t *testing.T) {
	zip := append([]byte("PK\x03\x04"), make([]byte, 600)...)
	if _, err := try(t, zip, usualLimits); err == nil || !strings.Contains(err.Error(), "TEGRAFLASH_PACKAGE_FORMAT") {
		t.Errorf("a zip: %v; want the setting that makes a tar", err)
	}
}

func TestDigest(t *testing.T) {
	path := filepath.Join(t.TempDir(), "archive")
	data := gz(t, tarOf(t, good...))
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "package")
	if _, err := Unpack(t.Context(), Archive{Path: path, SHA256: strings.Repeat("0", 64)}, dir); err == nil || !strings.Contains(err.Error(), "sha256") {
		t.Errorf("a wrong digest: %v; want it refused", err)
	}
	sum, err := Unpack(t.Context(), Archive{Path: path}, dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Unpack(t.Context(), Archive{Path: path, SHA256: sum}, filepath.Join(t.TempDir(), "again")); err != nil {
		t.Errorf("its own digest: %v", err)
	}
	if _, err := Unpack(t.Context(), Archive{Path: path}, dir); !errors.Is(err, fs.ErrExist) {
		t.Errorf("over a folder: %v; want that it is there", err)
	}
}

// What was proved is what is extracted. Nothing is left of anything else.
func TestArchiveChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "archive")
	data := gz(t, tarOf(t, good...))
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := sealed.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Seal(t.Context(), func(int64) {}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Rename(path, path+".old"), os.WriteFile(path, []byte("other"), 0o644)); err != nil {
		t.Fatal(err)
	}
	if _, err := Unpack(t.Context(), Archive{Path: path, File: f}, filepath.Join(t.TempDir(), "package")); err != nil {
		t.Errorf("renamed: %v", err)
	}
	other := bytes.Clone(data)
	other[len(other)-1] ^= 1
	if err := os.WriteFile(path+".old", other, 0o644); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "package")
	if _, err := Unpack(t.Context(), Archive{Path: path, File: f}, dir); !errors.Is(err, sealed.ErrChanged) {
		t.Errorf("edited: %v", err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("edited: a folder is left")
	}
}

// A sparse image that GNU tar packed stays sparse.
func TestRealTarKeepsHoles(t *testing.T) {
	if _, err := exec.LookPath("tar"); err != nil {
		t.Skip("tar is missing (Debian package tar)")
	}
	from := t.TempDir()
	f, err := os.Create(filepath.Join(from, "rootfs.ext4"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(200<<20), writeAt(f, "begin", 0), writeAt(f, "middle", 100<<20), f.Close()); err != nil {
		t.Fatal(err)
	}
	for _, format := range []string{"gnu", "posix"} {
		archive := filepath.Join(t.TempDir(), "package.tar")
		if out, err := exec.Command("tar", "--sparse", "--format="+format, "--numeric-owner", `--transform=s,^\./,,`, "-C", from, "-cf", archive, ".").CombinedOutput(); err != nil {
			t.Fatalf("tar: %v\n%s", err, out)
		}
		dir := filepath.Join(t.TempDir(), "package")
		if _, err := Unpack(t.Context(), Archive{Path: archive}, dir); err != nil {
			t.Errorf("%s: %v", format, err)
			continue
		}
		info, err := os.Stat(filepath.Join(dir, "rootfs.ext4"))
		if err != nil {
			t.Fatal(err)
		}
		if used := info.Sys().(*syscall.Stat_t).Blocks * 512; info.Size() != 200<<20 || used > 4<<20 {
			t.Errorf("%s: %d bytes, %d on disk; want 200 MiB, nearly nothing on disk", format, info.Size(), used)
		}
		if out, err := exec.Command("cmp", filepath.Join(from, "rootfs.ext4"), filepath.Join(dir, "rootfs.ext4")).CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", format, err, out)
		}
	}
}

func writeAt(f *os.File, text string, off int64) error {
	_, err := f.WriteAt([]byte(text), off)
	return err
}

func TestEndsWithTheContext(t *testing.T) {
	outer := t.TempDir()
	path := filepath.Join(outer, "archive")
	if err := os.WriteFile(path, gz(t, tarOf(t, good...)), 0o644); err != nil {
		t.Fatal(err)
	}
	pressed := errors.New("interrupt")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(pressed)
	dir := filepath.Join(outer, "package")
	if _, err := Unpack(ctx, Archive{Path: path}, dir); !errors.Is(err, pressed) {
		t.Errorf("Into = %v; want %v", err, pressed)
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is left", dir)
	}
}

var fuzzed = archiveLimits{Entries: 50, Bytes: 1 << 20, NameBytes: 200, Ratio: 1100, Free: 64 << 20}

func FuzzTar(f *testing.F) {
	f.Add(tarOf(f, good[0], good[1], good[2], good[4]))
	f.Add(gz(f, tarOf(f, good[0], good[1], good[4])))
	f.Add(zst(f, tarOf(f, good[0], good[1], good[4])))
	f.Add(tarOf(f, entry{name: "a", kind: tar.TypeSymlink, to: "."}, entry{name: "a/b", kind: tar.TypeLink, to: "a"}))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _ = try(t, data, fuzzed) // what it must hold is looked at there
	})
}

// This pipe has no writer.
func TestPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "archive.tar")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := Unpack(t.Context(), Archive{Path: path}, filepath.Join(filepath.Dir(path), "package"))
		ended <- err
	}()
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), "no regular file") {
			t.Errorf("Into = %v; want it refused", err)
		}
	case <-time.After(time.Minute):
		t.Error("Into waits for a pipe")
	}
}
