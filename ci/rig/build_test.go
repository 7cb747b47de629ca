package rig

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"slipway/images"
)

// Sources are built in the order of board.yml, each on those before it, and again only
// where something changed. One that fails leaves nothing, and its log is named.
func TestBuild(t *testing.T) {
	needRig(t)
	dir, source := apart(t), t.TempDir()
	file := filepath.Join(t.TempDir(), "a file")
	write(t, file, "and a file")
	write(t, filepath.Join(source, "number"), "1")
	spec := images.Spec{Board: "built-rig", Rig: &images.Rig{Source: []images.RigSource{
		{Name: "first", From: []string{source, file}, Script: "first.sh"},
		{Name: "second", Script: "second.sh"},
	}}}
	spec = spec.WithFile("first.sh", "cp /source/"+filepath.Base(source)+"/number /made/first\ncp '/source/a file' /made/\n")
	spec = spec.WithFile("second.sh", "cat /first > /made/second\ntest ! -e /source\n")
	one, err := buildOn(t.Context(), spec, dir, []string{"/"})
	if err != nil {
		t.Fatal(err)
	}
	if got := names(one); !slices.Equal(got, []string{"/", "first", "second"}) {
		t.Errorf("layers are %q; want /, first and second", got)
	}
	if got := read(t, filepath.Join(one[2], "second")); got != "1" {
		t.Errorf("the second one found %q; want 1", got)
	}
	if got := read(t, filepath.Join(one[1], "a file")); got != "and a file" {
		t.Errorf("the first one's file has %q", got)
	}
	if again, err := buildOn(t.Context(), spec, dir, []string{"/"}); err != nil || !slices.Equal(again, one) {
		t.Errorf("built again: %q, %v; want %q", again, err, one)
	}
	write(t, filepath.Join(source, "number"), "2")
	two, err := buildOn(t.Context(), spec, dir, []string{"/"})
	if err != nil || read(t, filepath.Join(two[2], "second")) != "2" {
		t.Errorf("a change of the first one's source: %q, %v", two, err)
	}
	if _, err := os.Stat(one[1]); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the layer before the change is still there: %v", err)
	}

	broken := spec.WithFile("second.sh", "touch /made/half\necho what is wrong >&2\nfalse\n")
	_, err = buildOn(t.Context(), broken, dir, []string{"/"})
	if err == nil || !strings.Contains(err.Error(), "build second: ") || !strings.Contains(err.Error(), "full log: "+filepath.Join(dir, "second.log")) {
		t.Fatalf("a script that fails: %v; want which, and its log", err)
	}
	if log := read(t, filepath.Join(dir, "second.log")); !strings.Contains(log, "what is wrong") {
		t.Errorf("its log is %q", log)
	}
	for _, half := range []string{"second.part", "second.work"} {
		if _, err := os.Stat(filepath.Join(dir, half)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left", half)
		}
	}
}

// What the user has is built from in place of what the script would fetch, and again when
// it changes.
func TestBuildGiven(t *testing.T) {
	needRig(t)
	dir, given := apart(t), t.TempDir()
	spec := images.Spec{Board: "built-rig", Rig: &images.Rig{Source: []images.RigSource{{Name: "one", Script: "one.sh", Given: "SLIPWAY_RIG_TEST"}}}}
	spec = spec.WithFile("one.sh", "cat /source/given/number > /made/one || echo fetched > /made/one\n")
	for _, number := range []string{"", "1", "2"} {
		if number != "" {
			write(t, filepath.Join(given, "number"), number)
			t.Setenv("SLIPWAY_RIG_TEST", given)
		}
		layers, err := buildOn(t.Context(), spec, dir, []string{"/"})
		if err != nil {
			t.Fatal(err)
		}
		if got, want := read(t, filepath.Join(layers[1], "one")), cmp.Or(number, "fetched\n"); got != want {
			t.Errorf("with %q in the folder the layer has %q; want %q", number, got, want)
		}
	}
	t.Setenv("SLIPWAY_RIG_TEST", filepath.Join(given, "number"))
	fresh := filepath.Join(dir, "fresh")
	if _, err := Build(t.Context(), spec, images.Options{Dir: fresh}); err == nil || !strings.Contains(err.Error(), "SLIPWAY_RIG_TEST: ") {
		t.Errorf("a file as the folder: %v; want an error that names the variable", err)
	}
	if _, err := os.Stat(fresh); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something was made before the folder was looked at: %v", err)
	}
}

// Nothing of this machine's environment changes what is built, and a proxy is used.
func TestBuildEnvironment(t *testing.T) {
	needRig(t)
	dir := apart(t)
	for _, name := range []string{"TMPDIR", "CFLAGS", "https_proxy", "NO_PROXY"} {
		t.Setenv(name, "/outside")
	}
	spec := images.Spec{Board: "built-rig", Rig: &images.Rig{Source: []images.RigSource{{Name: "one", Script: "one.sh"}}}}
	spec = spec.WithFile("one.sh", "env | sed -n 's|=/outside||p' | sort > /made/one\nmktemp > /dev/null\n")
	layers, err := buildOn(t.Context(), spec, dir, []string{"/"})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := read(t, filepath.Join(layers[1], "one")), "NO_PROXY\nhttps_proxy\n"; got != want {
		t.Errorf("the script got %q of ours; want %q", got, want)
	}
}

// apart is a folder on a file system of its own: the kernel refuses a layer that lies
// within another one.
func apart(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// names are those of layers without their digests.
func names(layers []string) (all []string) {
	for _, layer := range layers {
		name, _, _ := strings.Cut(filepath.Base(layer), "-")
		all = append(all, name)
	}
	return all
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// A file's content, path and executable bit, and a link's target change the key of a layer.
func TestHashTree(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := errors.Join(os.WriteFile(file, []byte("a"), 0o644), os.Symlink("file", link)); err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{}
	for _, change := range []struct {
		name string
		make func() error
	}{
		{"nothing", func() error { return nil }},
		{"the content", func() error { return os.WriteFile(file, []byte("b"), 0o644) }},
		{"the executable bit", func() error { return os.Chmod(file, 0o755) }},
		{"the link", func() error { return errors.Join(os.Remove(link), os.Symlink("other", link)) }},
		{"the path", func() error { return os.Rename(file, filepath.Join(dir, "moved")) }},
	} {
		h := sha256.New()
		if err := errors.Join(change.make(), hashTree(t.Context(), h, dir)); err != nil {
			t.Fatal(err)
		}
		sum := string(h.Sum(nil))
		if before, same := seen[sum]; same {
			t.Errorf("after a change of %s the digest is that after a change of %s", change.name, before)
		}
		seen[sum] = change.name
	}
}
