package builder

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"slipway/images"
	"slipway/layers/host"
	"slipway/layers/run"
)

func testDisk(t *testing.T) disk {
	t.Helper()
	spec, err := images.Default()
	if err != nil {
		t.Fatal(err)
	}
	return testDiskOf(t, spec)
}

func testDiskOf(t *testing.T, spec images.Spec) disk {
	t.Helper()
	if missing, err := host.Missing(t.Context(), HostPackages(spec, "")...); err != nil || len(missing) > 0 {
		t.Skipf("this machine lacks the Debian packages %v (%v)", missing, err)
	}
	dir := t.TempDir()
	d := disk{spec: spec, dir: dir, root: filepath.Join(dir, "root"), log: filepath.Join(dir, "log")}
	if err := os.MkdirAll(filepath.Join(d.root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(d.root, "etc", "marker"), []byte("here\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return d
}

// The disk is checked by other programs than those that made it.
func TestDisk(t *testing.T) {
	d := testDisk(t)
	if err := d.makeParts(t.Context()); err != nil {
		t.Fatal(err)
	}
	image := d.path(diskName)
	out, err := run.Output(t.Context(), run.Command{Argv: []string{"sfdisk", "--verify", image}})
	if err != nil || !strings.Contains(string(out), "No errors detected") {
		t.Errorf("sfdisk --verify: %s, %v", out, err)
	}
	for _, use := range []string{images.UseRoot, images.UseBoot} {
		if out, err := run.Output(t.Context(), run.Command{Argv: []string{"e2fsck", "-fn", at(d, use)}}); err != nil {
			t.Errorf("e2fsck of %s: %s, %v", use, out, err)
		}
	}
	out, err = run.Output(t.Context(), run.Command{Argv: []string{"debugfs", "-R", "cat /etc/marker", at(d, images.UseRoot)}})
	if err != nil || string(out) != "here\n" {
		t.Errorf("/etc/marker in the image = %q, %v", out, err)
	}
}

// What a streamed update fetches is what differs from the last build: of the same files
// nothing must.
func TestSameFilesSameFileSystem(t *testing.T) {
	d := testDisk(t)
	for _, name := range []string{"usr", "usr/bin", "usr/lib", "var"} {
		if err := errors.Join(os.Mkdir(filepath.Join(d.root, name), 0o755), os.WriteFile(filepath.Join(d.root, name, "file"), []byte(name), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	var sums []string
	for range 3 { // the first reading changes the times of the files themselves
		if len(sums) > 0 {
			time.Sleep(1100 * time.Millisecond) // a file system's times are in seconds
		}
		if err := errors.Join(d.makeTable(t.Context()), d.makeRootFS(t.Context())); err != nil {
			t.Fatal(err)
		}
		p, _ := d.partitionFor(images.UseRoot)
		f, err := os.Open(d.path(diskName))
		if err != nil {
			t.Fatal(err)
		}
		h := sha256.New()
		_, err = io.Copy(h, io.NewSectionReader(f, p.OffsetBytes, p.SizeBytes))
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		sums = append(sums, fmt.Sprintf("%x", h.Sum(nil)))
	}
	if sums[1] != sums[2] {
		t.Errorf("the second file system of the same files is another one: %v", sums)
	}
}

// Firmware takes a FAT with too few clusters for FAT16, whatever it says.
func TestDiskForUEFI(t *testing.T) {
	spec, err := images.Default()
	if err != nil {
		t.Fatal(err)
	}
	arm, err := images.Load("virt-arm64")
	if err != nil {
		t.Fatal(err)
	}
	spec.Disk = arm.Disk
	d := testDiskOf(t, spec)
	if err := d.makeParts(t.Context()); err != nil {
		t.Fatal(err)
	}
	p, _ := d.partitionFor(images.UseLoader)
	disk, err := os.Open(d.path(diskName))
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	esp := filepath.Join(t.TempDir(), "esp")
	data, err := io.ReadAll(io.NewSectionReader(disk, p.OffsetBytes, p.SizeBytes))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(esp, data, 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := run.Output(t.Context(), run.Command{Argv: []string{"fsck.fat", "-vn", esp}})
	if err != nil || !strings.Contains(string(out), "32 bit entries") {
		t.Errorf("fsck.fat: %s, %v", out, err)
	}
	core, err := os.ReadFile(d.path("core.img"))
	if err != nil {
		t.Fatal(err)
	}
	out, err = run.Output(t.Context(), run.Command{Argv: []string{"mtype", "-i", esp, "::/EFI/BOOT/BOOTX64.EFI"}})
	if err != nil || !bytes.Equal(out, core) || !bytes.HasPrefix(core, []byte("MZ")) {
		t.Errorf("BOOTX64.EFI has %d bytes; want GRUB's %d, %v", len(out), len(core), err)
	}
}

// at names a partition's file system the way e2fsprogs do.
func at(d disk, use string) string {
	p, _ := d.partitionFor(use)
	return fmt.Sprintf("%s?offset=%d", d.path(diskName), p.OffsetBytes)
}

// A file system that is too small must say which number to change.
func TestDiskTooSmall(t *testing.T) {
	d := testDisk(t)
	for i, p := range d.spec.Disk.Partitions {
		if p.Use == images.UseRoot {
			d.spec.Disk.Partitions[i].SizeMiB = 8
		}
	}
	if err := os.WriteFile(filepath.Join(d.root, "large"), bytes.Repeat([]byte("x"), 9*mib), 0o644); err != nil {
		t.Fatal(err)
	}
	err := d.makeParts(t.Context())
	if err == nil || !strings.Contains(err.Error(), "rootA partition (8 MiB") || !strings.Contains(err.Error(), "board.yml") {
		t.Errorf("build = %v; want the partition, its size and the file to change", err)
	}
}

func TestGrubConfigParses(t *testing.T) {
	if _, err := exec.LookPath("grub-script-check"); err != nil {
		t.Skip("grub-script-check is not installed (Debian package grub-common)")
	}
	d := testDisk(t)
	config := d.path("grub.cfg")
	if err := os.WriteFile(config, []byte(d.grubConfig()), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := run.Run(t.Context(), run.Command{Argv: []string{"grub-script-check", config}}); err != nil {
		t.Errorf("%v\n%s", err, d.grubConfig())
	}
}

func TestAdditions(t *testing.T) {
	spec, err := images.LoadFrom(fstest.MapFS{
		"b/board.yml": {Data: []byte(`arch: amd64
flash: {kinds: [file]}
debian: {suite: s, mask: [a.service], generators: [g], enable: [b.service], hook: /usr/bin/hook, keyring: /etc/keyring}
disk: {firmware: bios, partitions: [{name: l, sizeMiB: 1, use: loader}, {name: b, sizeMiB: 1, use: boot}, {name: r, sizeMiB: 1, use: root}]}
`)},
		"b/overlay/etc/motd": {Data: []byte("hello")}, "b/bundle/manifest.raucm": {},
	}, "b")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := writeAdditions(&out, spec, ownFiles{hook: []byte("binary"), keyring: []byte("certificate")}, "key"); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for r := tar.NewReader(&out); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		got[h.Name] = h.Linkname + string(data)
		if h.Name == "usr/bin/hook" && h.Mode != 0o755 {
			t.Errorf("the hook's mode is %o; want 755", h.Mode)
		}
	}
	for name, want := range map[string]string{
		"etc/motd":                        "hello",
		"usr/bin/hook":                    "binary",
		"etc/keyring":                     "certificate",
		"etc/hostname":                    "b\n",
		"etc/machine-id":                  "",
		"etc/systemd/system/a.service":    "/dev/null",
		"etc/systemd/system-generators/g": "/dev/null",
		"etc/systemd/system/multi-user.target.wants/b.service": "/usr/lib/systemd/system/b.service",
		"etc/slipway/image.json":                               `{"board":"b","key":"key"}` + "\n",
	} {
		if data, ok := got[name]; !ok || data != want {
			t.Errorf("%s = %q (there: %v); want %q", name, data, ok, want)
		}
	}
}

func TestUnitsAreThere(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"a.service", "b@.service"} {
		file := filepath.Join(root, "usr/lib/systemd/system", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, nil, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for unit, want := range map[string]string{
		"a.service": "", "b@x.service": "",
		"c.service":   "board v enables c.service, which none of its packages has: name the package in board.yml, or add overlay/usr/lib/systemd/system/c.service",
		"a@x.service": "board v enables a@x.service, which none of its packages has: name the package in board.yml, or add overlay/usr/lib/systemd/system/a@.service",
	} {
		err := checkUnits(root, images.Spec{Board: "v", Debian: &images.Debian{Enable: []string{unit}}})
		if got := fmt.Sprint(err); got != cmp.Or(want, "<nil>") {
			t.Errorf("%s: %s; want %q", unit, got, want)
		}
	}
}

// Whatever changes the image must change its key; what does not, must not.
func TestImageKey(t *testing.T) {
	spec, err := images.Default()
	if err != nil {
		t.Fatal(err)
	}
	key := func(s images.Spec, hook, keyring string) string {
		k, err := imageKey(s, ownFiles{[]byte(hook), []byte(keyring)})
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	same := key(spec, "hook", "keyring")
	if key(spec, "hook", "keyring") != same {
		t.Error("the key of the same things differs")
	}
	other := spec
	other.Arch = "arm64"
	for name, k := range map[string]string{
		"hook": key(spec, "other hook", "keyring"), "keyring": key(spec, "hook", "other"), "spec": key(other, "hook", "keyring"),
		"file": key(spec.WithFile("overlay/etc/motd", "x"), "hook", "keyring"),
	} {
		if k == same {
			t.Errorf("another %s gives the same key", name)
		}
	}
}

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := lockFolder(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lockFolder(path); err == nil || !strings.Contains(err.Error(), "another slipway") {
		t.Errorf("second lock = %v; want it refused", err)
	}
	unlock()
	unlock, err = lockFolder(path)
	if err != nil {
		t.Fatalf("lock after unlock: %v", err)
	}
	unlock()
}

// Two boards may want the same userland; only one of their builds makes it.
func TestWaitLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := lockFolder(path)
	if err != nil {
		t.Fatal(err)
	}
	waited := make(chan struct{})
	got := make(chan error, 1)
	go func() {
		again, err := waitLock(t.Context(), path, func() { close(waited) })
		if err == nil {
			again()
		}
		got <- err
	}()
	<-waited
	select {
	case err := <-got:
		t.Fatalf("waitLock = %v while the lock was held", err)
	case <-time.After(200 * time.Millisecond):
	}
	unlock()
	if err := <-got; err != nil {
		t.Errorf("waitLock after unlock = %v", err)
	}
	unlock, err = lockFolder(path)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := waitLock(ctx, path, func() {}); !errors.Is(err, context.Canceled) {
		t.Errorf("waitLock = %v; want %v", err, context.Canceled)
	}
}

// A build that was killed leaves its folder; the next one removes it.
func TestDiscardWork(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "[1]") // no pattern, but a folder's name
	if err := os.MkdirAll(filepath.Join(dir, workPrefix+"1", "root", "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "artifact.json"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	discardWork(t.Context(), dir)
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 || left[0].Name() != "artifact.json" {
		t.Errorf("left: %v, %v; want artifact.json alone", left, err)
	}
}

// An interrupted userland must not be taken for one by the next build.
func TestUserlandIsWholeOrAbsent(t *testing.T) {
	d := testDisk(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	opt := images.Options{Dir: t.TempDir()}
	if _, err := makeUserland(ctx, nil, d.spec, opt); err == nil {
		t.Fatal("userland succeeded in a cancelled context")
	}
	if left, _ := filepath.Glob(filepath.Join(opt.CacheDir(), "*.tar*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}
