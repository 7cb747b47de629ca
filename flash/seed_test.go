package flash

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"slipway/images"
)

var dataPartition = images.Partition{Name: "data", SizeBytes: dataSize}

// An ordinary user's PATH lacks /usr/sbin.
func TestSeedWithoutSystemFoldersInPath(t *testing.T) {
	needMke2fs(t)
	t.Setenv("PATH", "/usr/bin:/bin")
	s, err := newSeed(t.Context(), dataPartition, Personal{Files: newTestIdentity(t).seedFiles()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.close()
}

// A machine without e2fsprogs is told what to install.
func TestSeedNamesThePackage(t *testing.T) {
	id := newTestIdentity(t)
	t.Setenv("PATH", "/nowhere")
	hideSystemFolders(t)
	_, err := newSeed(t.Context(), dataPartition, Personal{Files: id.seedFiles()}, nil)
	if err == nil || !strings.Contains(err.Error(), "Debian package e2fsprogs") {
		t.Errorf("newSeed without mke2fs = %v; want the package's name", err)
	}
}

// hideSystemFolders does so for this test's thread, which ends with the test.
func hideSystemFolders(t *testing.T) {
	t.Helper()
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
		t.Skipf("no mount namespace of its own: %v", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Skipf("no private mounts: %v", err)
	}
	for _, dir := range []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} {
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			if err := unix.Mount("tmpfs", real, "tmpfs", 0, ""); err != nil {
				t.Skipf("cannot mount here: %v", err)
			}
		}
	}
}

// Whatever ends a flash, the board's private key must not stay in a temporary folder.
func TestSeedLeavesNoKey(t *testing.T) {
	needMke2fs(t)
	t.Setenv("TMPDIR", t.TempDir())
	s, err := newSeed(t.Context(), dataPartition, Personal{Files: newTestIdentity(t).seedFiles()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 {
		t.Errorf("while the image is written there are %v, %v", left, err)
	}
}
