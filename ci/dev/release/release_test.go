package release

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	"golang.org/x/sys/unix"
)

// small is a repository whose program knows what a release asks of it.
const small = `
-- go.mod --
module fixture

go 1.25

ignore ./build

require example.invalid/dep v1.0.0

replace example.invalid/dep => ./dep
-- LICENSE --
Apache License
-- .gitignore --
/build/
-- magefiles/slipway/main.go --
package main

import (
	"os"

	"example.invalid/dep"
)

func main() { os.Stdout.WriteString(dep.Text + os.Args[2]) }
-- dep/go.mod --
module example.invalid/dep

go 1.25
-- dep/LICENSE --
Copyright 2001 Somebody

You may.
-- dep/NOTICE --
Somebody made this.
-- dep/dep.go --
package dep

const Text = "completion of "
`

func mustRun(t *testing.T, dir string, argv ...string) string {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// newRepository commits small in a folder.
func newRepository(t *testing.T, dir string) string {
	t.Helper()
	for _, f := range txtar.Parse([]byte(small)).Files {
		path := filepath.Join(dir, f.Name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, f.Data, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	mustRun(t, dir, "git", "init", "--quiet")
	mustRun(t, dir, "git", "add", ".")
	mustRun(t, dir, "git", "-c", "user.name=A Maintainer", "-c", "user.email=slipway@example.com", "commit", "--quiet", "-m", "first")
	return dir
}

// optionsFor returns the options of an unsigned release.
func optionsFor(root string) Options {
	return Options{
		Root: root, Out: filepath.Join(root, "build/release"), Unsigned: true,
	}
}

// newKey makes a key, and the list of signers that names it.
func newKey(t *testing.T) (key, signers string) {
	t.Helper()
	if _, err := exec.LookPath("ssh-keygen"); err != nil {
		t.Skip("ssh-keygen is not installed: apt-get install openssh-client")
	}
	dir := t.TempDir()
	mustRun(t, dir, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "key")
	key, signers = filepath.Join(dir, "key"), filepath.Join(dir, "allowed_signers")
	public, err := os.ReadFile(key + ".pub")
	if err == nil {
		err = os.WriteFile(signers, append([]byte("releases "), public...), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	return key, signers
}

func mustMake(t *testing.T, o Options) {
	t.Helper()
	var out bytes.Buffer
	if err := Make(t.Context(), &out, o); err != nil {
		t.Fatalf("Make = %v\n%s", err, out.String())
	}
}

// readFolder returns the content of a folder's files.
func readFolder(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		all[e.Name()] = string(data)
	}
	return all
}

// sameFiles compares releases by the digests of their files.
func sameFiles(t *testing.T, one, two map[string]string) {
	t.Helper()
	if diff := cmp.Diff(slices.Sorted(maps.Keys(one)), slices.Sorted(maps.Keys(two))); diff != "" {
		t.Errorf("files (-one +two):\n%s", diff)
	}
	for name, data := range one {
		if data != two[name] {
			t.Errorf("%s differs: %d and %d bytes", name, len(data), len(two[name]))
		}
	}
}

// Another folder, cache of Go, time zone, umask and moment give the same bytes.
func TestRelease(t *testing.T) {
	key, signers := newKey(t)
	first := optionsFor(newRepository(t, filepath.Join(t.TempDir(), "first")))
	first.Key, first.Unsigned = key, false
	mustRun(t, first.Root, "git", "tag", "v1.2.3")
	mustMake(t, first)
	folder := filepath.Join(first.Out, "v1.2.3")
	files := readFolder(t, folder)
	t.Run("again", func(t *testing.T) {
		if err := os.WriteFile(filepath.Join(folder, "old"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		mustMake(t, first)
		sameFiles(t, files, readFolder(t, folder))
		if names, err := filepath.Glob(filepath.Join(first.Out, ".work*")); err != nil || len(names) > 0 {
			t.Errorf("%s holds %q, %v; want its folder of work gone", first.Out, names, err)
		}
	})
	t.Run("another folder", func(t *testing.T) {
		second := first
		second.Root = filepath.Join(t.TempDir(), "a longer name", "second")
		mustRun(t, first.Root, "git", "clone", "--quiet", ".", second.Root)
		second.Out = filepath.Join(t.TempDir(), "out")
		if os.Getenv("CI") != "" { // without it, both take the libraries from one cache, as their build takes half a minute
			t.Setenv("GOCACHE", t.TempDir())
		}
		for name, value := range map[string]string{"TZ": "Asia/Tokyo", "LC_ALL": "C", "CGO_ENABLED": "1", "GOAMD64": "v3", "GOFLAGS": "-buildvcs=false -race"} {
			t.Setenv(name, value)
		}
		old := unix.Umask(0o077)
		defer unix.Umask(old)
		mustMake(t, second)
		sameFiles(t, files, readFolder(t, filepath.Join(second.Out, "v1.2.3")))
	})
	t.Run("signature", func(t *testing.T) {
		cmd := exec.Command("ssh-keygen", "-Y", "verify", "-f", signers, "-I", "releases", "-n", "file", "-s", filepath.Join(folder, "SHA256SUMS.sig"))
		cmd.Stdin = strings.NewReader(files["SHA256SUMS"])
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("ssh-keygen -Y verify: %v\n%s", err, out)
		}
		mustRun(t, folder, "sha256sum", "--strict", "-c", "SHA256SUMS")
	})
	for _, arch := range architectures {
		t.Run(arch, func(t *testing.T) { checkPackages(t, folder, arch, mustRun(t, first.Root, "git", "rev-parse", "HEAD")) })
	}
}

// checkPackages looks at the files of an architecture.
func checkPackages(t *testing.T, folder, arch, commit string) {
	base := filepath.Join(folder, "slipway_1.2.3_linux_"+arch)
	archive := readTarGz(t, base+".tar.gz")
	top := filepath.Base(base) + "/"
	info, err := buildinfo.Read(strings.NewReader(archive[top+"slipway"]))
	if err != nil || info.Main.Version != "v1.2.3" {
		t.Fatalf("the program's record = %v, %v; want v1.2.3", info, err)
	}
	for name, want := range map[string]string{
		"completions/slipway.bash": "completion of bash", "completions/_slipway": "completion of zsh", "completions/slipway.fish": "completion of fish",
		"LICENSE": "Apache License", "NOTICES": "Somebody made this.",
	} {
		if !strings.Contains(archive[top+name], want) {
			t.Errorf("%s has %q; want %q", name, archive[top+name], want)
		}
	}
	if record := fmt.Sprint(info.Settings); !strings.Contains(record, commit) || !strings.Contains(record, "{CGO_ENABLED 0}") || !strings.Contains(record, "{GOARCH "+arch+"}") {
		t.Errorf("the program's record = %s", record)
	}
	checkDeb(t, filepath.Join(folder, "slipway_1.2.3_"+arch+".deb"), arch, archive[top+"slipway"])
	checkBill(t, base+".cdx.json", len(info.Deps))
}

func readTarGz(t *testing.T, path string) map[string]string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	unpacked, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for r := tar.NewReader(unpacked); ; {
		h, err := r.Next()
		if err == io.EOF {
			return all
		}
		data, readErr := io.ReadAll(r)
		if err := errors.Join(err, readErr); err != nil {
			t.Fatal(err)
		}
		all[h.Name] = string(data)
	}
}

// dpkg reads the package, and its sums are those of its files.
func checkDeb(t *testing.T, path, arch, program string) {
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("dpkg-deb is not installed")
	}
	for field, want := range map[string]string{"Package": "slipway", "Version": "1.2.3", "Architecture": arch, "Maintainer": "A Maintainer <slipway@example.com>"} {
		if got := mustRun(t, "", "dpkg-deb", "--field", path, field); got != want {
			t.Errorf("dpkg-deb --field %s = %q; want %q", field, got, want)
		}
	}
	root := t.TempDir()
	mustRun(t, "", "dpkg-deb", "-R", path, root)
	mustRun(t, root, "md5sum", "--strict", "-c", "DEBIAN/md5sums")
	if got, err := os.ReadFile(filepath.Join(root, "usr/bin/slipway")); err != nil || string(got) != program {
		t.Errorf("usr/bin/slipway is another program (%v)", err)
	}
	for _, name := range []string{
		"share/bash-completion/completions/slipway", "share/zsh/vendor-completions/_slipway", "share/fish/vendor_completions.d/slipway.fish",
		"share/doc/slipway/copyright", "share/doc/slipway/changelog.gz", "share/doc/slipway/NOTICES.gz",
		"lib/systemd/system/slipway-hub.service", "lib/systemd/system/slipway-station.service",
	} {
		if info, err := os.Stat(filepath.Join(root, "usr", name)); err != nil || info.Mode().Perm() != 0o644 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}

// The bill of materials has the modules that the go command recorded, and the standard library.
func checkBill(t *testing.T, path string, modules int) {
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var bom cdx.BOM
	if err := cdx.NewBOMDecoder(f, cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	var urls []string
	for _, c := range *bom.Components {
		urls = append(urls, c.PackageURL)
	}
	if len(urls) != modules+1 || !slices.Contains(urls, "pkg:golang/example.invalid/dep@v1.0.0") || !strings.HasPrefix(urls[0], "pkg:golang/stdlib@1.") {
		t.Errorf("components = %q; want %d modules and the standard library", urls, modules)
	}
	if got := bom.Metadata.Component.PackageURL; got != "pkg:golang/fixture@v1.2.3" {
		t.Errorf("the bill is of %s", got)
	}
}

func TestMakeRefuses(t *testing.T) {
	root := newRepository(t, t.TempDir())
	plain := optionsFor(root)
	tests := []struct {
		name, wantErr string
		change        func(*Options)
		git           [][]string // before it, and
		undo          [][]string // after it
	}{
		{"a changed file", "the files here differ from it (1), such as \"MM LICENSE\"\nnext: git commit", func(o *Options) {}, [][]string{{"rm", "-q", "--cached", "LICENSE"}, {"add", "-f", "LICENSE"}, {"update-index", "--chmod=+x", "LICENSE"}}, [][]string{{"reset", "-q", "--hard"}}},
		{"two tags", "HEAD has the tags v1.0.0, v2.0.0\nnext: git tag -d v2.0.0", func(o *Options) {}, [][]string{{"tag", "v1.0.0"}, {"tag", "v2.0.0"}, {"tag", "other"}}, [][]string{{"tag", "-d", "v1.0.0", "v2.0.0", "other"}}},
		{"no key", "neither --key nor SLIPWAY_SIGNING_KEY names a key; --unsigned tries it without one\nnext: ls -l ~/.ssh", func(o *Options) { o.Unsigned = false }, nil, nil},
		{"a key for nothing", "both --key and --unsigned are given", func(o *Options) { o.Key = "key" }, nil, nil},
		{"no such key", "no such file", func(o *Options) { o.Unsigned, o.Key = false, "no/such" }, nil, nil},
	}
	t.Setenv(KeyVariable, "")
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			for _, args := range test.git {
				mustRun(t, root, append([]string{"git"}, args...)...)
			}
			o := plain
			test.change(&o)
			if err := Make(t.Context(), io.Discard, o); err == nil || !strings.Contains(err.Error(), test.wantErr) {
				t.Errorf("Make = %v; want an error with %q", err, test.wantErr)
			}
			for _, args := range test.undo {
				mustRun(t, root, append([]string{"git"}, args...)...)
			}
			for _, left := range []string{"v*", ".work*"} {
				if names, err := filepath.Glob(filepath.Join(o.Out, left)); err != nil || len(names) > 0 {
					t.Errorf("it left %q, %v", names, err)
				}
			}
		})
	}
}

// A file that git does not know reaches no release, and neither does a tag of the clone.
func TestSnapshot(t *testing.T) {
	root := newRepository(t, t.TempDir())
	if err := os.WriteFile(filepath.Join(root, "new.txt"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	o := optionsFor(root)
	if err := Make(t.Context(), io.Discard, o); err == nil || !strings.Contains(err.Error(), `such as "?? new.txt"`) {
		t.Errorf("Make = %v; want the file refused", err)
	}
	if err := os.Remove(filepath.Join(root, "new.txt")); err != nil {
		t.Fatal(err)
	}
	mustMake(t, o)
	names, err := filepath.Glob(filepath.Join(o.Out, "v0.0.0-*-"+mustRun(t, root, "git", "rev-parse", "HEAD")[:12], "*"))
	if err != nil || len(names) != 7 {
		t.Errorf("files of the snapshot = %q, %v; want 7 without a signature", names, err)
	}
	if tags := mustRun(t, root, "git", "tag"); tags != "" {
		t.Errorf("Make left the tags %q", tags)
	}
}

func TestDebVersion(t *testing.T) {
	for version, want := range map[string]string{
		"v0.1.0": "0.1.0", "v1.0.0-rc.1": "1.0.0~rc.1", "v0.0.0-20261125175320-f5361605ba13": "0.0.0~20261125175320.f5361605ba13",
		"v0.1.1-0.20261125175320-f5361605ba13": "0.1.1~0.20261125175320.f5361605ba13",
	} {
		p := product{commit: commit{version: version}}
		if got := p.debVersion(); got != want {
			t.Errorf("debVersion(%s) = %s; want %s", version, got, want)
		}
	}
}
