package builder

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"slipway/images"
)

func TestProbeLayer(t *testing.T) {
	d := disk{spec: images.Spec{Board: "b", Debian: &images.Debian{}}, root: filepath.Join(t.TempDir(), "[1]")} // no pattern, but a folder's name
	must(os.MkdirAll(filepath.Join(d.root, "usr/lib/x86"), 0o755))
	must(os.WriteFile(filepath.Join(d.root, "usr/lib/x86/libc.so.6"), nil, 0o644))
	must(os.Symlink("x86/libc.so.6", filepath.Join(d.root, "usr/lib/loader")))
	must(os.Symlink("gone", filepath.Join(d.root, "usr/lib/broken")))
	d.spec.Debian.Probe = []string{"/usr/lib/*/libc.so.6", "usr/lib/loader"}
	layer, err := d.probeLayer()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for r := tar.NewReader(bytes.NewReader(layer)); ; {
		h, err := r.Next()
		if err != nil {
			break
		}
		if h.Typeflag == tar.TypeReg {
			names = append(names, h.Name)
		}
	}
	if diff := cmp.Diff([]string{"usr/lib/x86/libc.so.6", "usr/lib/loader"}, names); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	for pattern, want := range map[string]string{
		"/usr/lib/none*": "matches nothing in the image",
		"/usr/lib/bro*":  "leads nowhere in the image",
	} {
		d.spec.Debian.Probe = []string{pattern}
		if _, err := d.probeLayer(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("probe %s = %v; want %q", pattern, err, want)
		}
	}
}
