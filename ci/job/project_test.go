package job

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// writeFiles writes files below a folder.
func writeFiles(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// readFiles returns the files below a folder.
func readFiles(t testing.TB, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		data, err := os.ReadFile(name)
		at, _ := filepath.Rel(dir, name)
		files[at] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestProject(t *testing.T) {
	files := map[string]string{"boards/lab/board.yml": "extends: virt\n", "boards/lab/deep/er.txt": "x", "boards/README.md": "", "suites/lab.yml": "command: {}\n"}
	one, two := t.TempDir(), t.TempDir()
	writeFiles(t, one, files)
	writeFiles(t, one, map[string]string{"other/stays": "here", "boards/.git/config": "hidden", "boards/lab/.env": "hidden"})
	writeFiles(t, two, files)
	if err := os.Chtimes(filepath.Join(two, "boards/lab/board.yml"), time.Unix(1, 0), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	data, err := PackProject(filepath.Join(one, "boards"))
	if err != nil {
		t.Fatal(err)
	}
	if again, err := PackProject(filepath.Join(two, "boards")); err != nil || !bytes.Equal(data, again) {
		t.Errorf("the same files elsewhere, %v: %d bytes differ from %d", err, len(again), len(data))
	}
	dir := filepath.Join(t.TempDir(), "projects", "digest")
	for range 2 { // the second one finds it there
		if err := UnpackProject(data, dir); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(files, readFiles(t, filepath.Dir(dir)+"/digest")); diff != "" {
			t.Error(diff)
		}
	}
	if left, err := os.ReadDir(filepath.Dir(dir)); err != nil || len(left) != 1 {
		t.Errorf("beside the project lie %v, %v", left, err)
	}
}

func TestProjectThatStays(t *testing.T) {
	key := "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n-----END PRIVATE KEY-----\n"
	many := map[string]string{}
	for i := range maxProjectFiles + 1 {
		many[fmt.Sprintf("boards/lab/%d", i)] = ""
	}
	for _, tt := range []struct {
		what, want string
		files      map[string]string
	}{
		{"a private key", "lab/pkc.pem has a key", map[string]string{"boards/lab/pkc.pem": key}},
		{"a password in an address", "lab/kas.yml has a key", map[string]string{"boards/lab/kas.yml": "url: https://ann:hunter2@git.example.com/meta.git\n"}},
		{"a key beside a suite", "suites/k has a key", map[string]string{"suites/k": key}},
		{"too many files", "more than 2000 files", many},
		{"too many bytes", "larger than 4096 KiB", map[string]string{"boards/lab/big": strings.Repeat("x", MaxProjectBytes+1)}},
		{"too many bytes of two", "4 MiB", map[string]string{"boards/lab/1": strings.Repeat("x", MaxProjectBytes/2), "boards/lab/2": strings.Repeat("x", MaxProjectBytes/2)}},
	} {
		dir := t.TempDir()
		writeFiles(t, dir, map[string]string{"boards/lab/board.yml": "extends: virt\n"})
		writeFiles(t, dir, tt.files)
		if _, err := PackProject(filepath.Join(dir, "boards")); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v; want %q", tt.what, err, tt.want)
		}
	}
	for _, to := range []string{"board.yml", "/etc/passwd", "../../.."} {
		dir := t.TempDir()
		writeFiles(t, dir, map[string]string{"boards/lab/board.yml": "extends: virt\n"})
		if err := os.Symlink(to, filepath.Join(dir, "boards/lab/link")); err != nil {
			t.Fatal(err)
		}
		if _, err := PackProject(filepath.Join(dir, "boards")); err == nil || !strings.Contains(err.Error(), "lab/link is a link") {
			t.Errorf("a link to %s: %v", to, err)
		}
	}
}

// hostile are tars that no project is, by what is wrong with each.
func hostile(t testing.TB) map[string][]byte {
	t.Helper()
	all := map[string][]byte{"no tar": bytes.Repeat([]byte("x"), 2048)}
	for what, headers := range map[string][]tar.Header{
		"a way out":           {{Name: "boards/../../out"}},
		"a way elsewhere":     {{Name: "boards/../suites/out"}},
		"an absolute name":    {{Name: "/boards/out"}},
		"another folder":      {{Name: "elsewhere/out"}},
		"no folder":           {{Name: "boards"}},
		"a link":              {{Name: "boards/l", Typeflag: tar.TypeSymlink, Linkname: "/etc"}},
		"a link and below it": {{Name: "boards/l", Typeflag: tar.TypeSymlink, Linkname: "/tmp"}, {Name: "boards/l/out"}},
		"a hard link":         {{Name: "boards/l", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"}},
		"a device":            {{Name: "boards/d", Typeflag: tar.TypeBlock, Devmajor: 8}},
		"a pipe":              {{Name: "boards/p", Typeflag: tar.TypeFifo}},
		"a folder":            {{Name: "boards/f/", Typeflag: tar.TypeDir, Mode: 0o777}},
		"the same name twice": {{Name: "boards/a"}, {Name: "boards/a"}},
		"a file as a folder":  {{Name: "boards/a"}, {Name: "boards/a/b"}},
		"2,001 files":         slices2001(),
	} {
		var out bytes.Buffer
		w := tar.NewWriter(&out)
		for _, h := range headers {
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		all[what] = out.Bytes()
	}
	big := func(size int64, body int) []byte {
		var out bytes.Buffer
		w := tar.NewWriter(&out)
		if err := w.WriteHeader(&tar.Header{Name: "boards/big", Size: size}); err != nil {
			t.Fatal(err)
		}
		_, _ = w.Write(make([]byte, body))
		return out.Bytes()
	}
	all["5 MiB"] = big(5<<20, 5<<20)
	all["5 MiB that are said alone"] = big(5<<20, 100)
	all["a tar that is cut"] = big(1000, 10)[:600]
	nul := big(0, 0)
	pax := bytes.Replace(paxOf(t), []byte("boards/NUL"), []byte("boards/\x00UL"), 2)
	all["a name with NUL"] = append(pax, nul...)
	return all
}

func slices2001() (all []tar.Header) {
	for i := range maxProjectFiles + 1 {
		all = append(all, tar.Header{Name: fmt.Sprint("boards/", i)})
	}
	return all
}

// paxOf returns a tar whose name is in a record of PAX.
func paxOf(t testing.TB) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	if err := w.WriteHeader(&tar.Header{Name: "boards/NUL-漢字", Format: tar.FormatPAX}); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestHostileProject(t *testing.T) {
	for what, data := range hostile(t) {
		state := t.TempDir()
		dir := filepath.Join(state, "projects", "digest")
		if err := UnpackProject(data, dir); err == nil {
			t.Errorf("%s: unpacked %d files", what, len(readFiles(t, dir)))
		}
		if left, err := os.ReadDir(filepath.Dir(dir)); err == nil && len(left) > 0 {
			t.Errorf("%s: it left %v", what, left)
		}
	}
}

func FuzzUnpackProject(f *testing.F) {
	for _, data := range hostile(f) {
		if len(data) < 64<<10 {
			f.Add(data)
		}
	}
	dir := f.TempDir()
	writeFiles(f, dir, map[string]string{"boards/lab/board.yml": "extends: virt\n"})
	good, err := PackProject(filepath.Join(dir, "boards"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Fuzz(func(t *testing.T, data []byte) {
		state := t.TempDir()
		err := UnpackProject(data, filepath.Join(state, "in", "digest"))
		for name := range readFiles(t, state) {
			if err != nil || !strings.HasPrefix(name, "in/digest/boards/") && !strings.HasPrefix(name, "in/digest/suites/") {
				t.Errorf("UnpackProject = %v, and it wrote %q", err, name)
			}
		}
	})
}
