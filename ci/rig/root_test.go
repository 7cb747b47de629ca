package rig

import (
	"os"
	"path/filepath"
	"testing"
)

// A link in a layer to a file of this machine is replaced, and never written through.
func TestLinksInARootAreReplaced(t *testing.T) {
	r := root{at: t.TempDir(), network: true}
	outside := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(outside, []byte("this machine's"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(r.pathInside("etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"etc/resolv.conf", "etc/hosts", "mounted"} {
		if err := os.Symlink(outside, r.pathInside(name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.copyResolver(); err != nil {
		t.Fatal(err)
	}
	if err := (bind{from: "/etc/hosts"}).makeMountPoint(r.pathInside("mounted")); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(r.pathInside("etc/hosts")); err != nil || !info.Mode().IsRegular() {
		t.Errorf("etc/hosts is %v, %v; want a file", info, err)
	}
	if data, err := os.ReadFile(outside); string(data) != "this machine's" {
		t.Errorf("a file outside of the root has %q, %v", data, err)
	}
}
