package images

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"slipway/layers/run"
)

// files writes a file for each path below dir.
func files(t *testing.T, dir string, contents map[string]string) {
	t.Helper()
	for name, text := range contents {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := run.WriteProgram(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

func text(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

// devlink simulates iproute2's: a device's mode is in a file, and each call is noted.
const devlink = `#!/bin/sh
echo "$@" >> "$SIMULATED/calls"
case $3 in
show) echo "pci/0000:03:00.0: mode $(cat "$SIMULATED/mode") inline-mode none encap-mode basic" ;;
set) echo "$6" > "$SIMULATED/mode" ;;
esac
`

// sriov is a machine with one device, as dpu-sriov sees it.
type sriov struct {
	*testing.T
	dir string
}

func newSRIOV(t *testing.T, mode, vfs string) sriov {
	s := sriov{t, t.TempDir()}
	files(t, s.dir, map[string]string{
		"bin/devlink": devlink,
		"mode":        mode,
		"calls":       "",
		"sys/bus/pci/devices/0000:03:00.0/sriov_numvfs":   vfs,
		"sys/bus/pci/devices/0000:03:00.0/sriov_totalvfs": "8",
		"sys/class/net/pf0vf0/ifindex":                    "7",
	})
	return s
}

func (s sriov) runService(config string, args ...string) (string, error) {
	s.Helper()
	if config != "" {
		files(s.T, s.dir, map[string]string{"sriov.conf": config})
	}
	cmd := exec.CommandContext(s.Context(), "sh", append([]string{"../recipes/dpu-sriov/files/dpu-sriov"}, args...)...)
	cmd.Env = []string{
		"PATH=" + filepath.Join(s.dir, "bin") + ":" + os.Getenv("PATH"), "SIMULATED=" + s.dir,
		"DPU_SRIOV_SYS=" + filepath.Join(s.dir, "sys"), "DPU_SRIOV_RUN=" + filepath.Join(s.dir, "run"), "DPU_SRIOV_WAIT_SEC=0",
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (s sriov) start(config string) (string, error) {
	return s.runService(config, "start", filepath.Join(s.dir, "sriov.conf"))
}

func (s sriov) is(mode, vfs string) {
	s.Helper()
	gotMode, gotVFs := text(s.T, filepath.Join(s.dir, "mode")), text(s.T, filepath.Join(s.dir, "sys/bus/pci/devices/0000:03:00.0/sriov_numvfs"))
	if gotMode != mode || gotVFs != vfs {
		s.Errorf("the device is in mode %s with %s virtual functions; want %s with %s", gotMode, gotVFs, mode, vfs)
	}
}

func TestSRIOVStartAndStop(t *testing.T) {
	for _, test := range []struct {
		name, mode, vfs, line string
		started, stopped      [2]string
	}{
		{"all is made, and taken back", "legacy", "0", "0000:03:00.0 2 pf0vf0", [2]string{"switchdev", "2"}, [2]string{"legacy", "0"}},
		{"what was there stays", "switchdev", "2", "0000:03:00.0 2 -", [2]string{"switchdev", "2"}, [2]string{"switchdev", "2"}},
		{"the host makes them", "legacy", "0", "# the DPU\n\n0000:03:00.0 0 pf0vf0", [2]string{"switchdev", "0"}, [2]string{"legacy", "0"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newSRIOV(t, test.mode, test.vfs)
			for range 2 { // a second start changes nothing, nor what stop goes back to
				if out, err := s.start(test.line + "\n"); err != nil {
					t.Fatalf("start: %v\n%s", err, out)
				}
				s.is(test.started[0], test.started[1])
			}
			if out, err := s.runService("", "stop"); err != nil {
				t.Fatalf("stop: %v\n%s", err, out)
			}
			s.is(test.stopped[0], test.stopped[1])
		})
	}
}

func TestSRIOVRefuses(t *testing.T) {
	for _, test := range []struct{ name, line, want string }{
		{"no device", "0000:04:00.0 2 -", "there is no device"},
		{"a path", "../0000:03:00.0 2 -", "is no PCI address"},
		{"no number", "0000:03:00.0 two -", "is no number"},
		{"too many", "0000:03:00.0 9 -", "can have 8"},
		{"a word too few", "0000:03:00.0 2", "write an address, a number and representors"},
		{"a word too many", "0000:03:00.0 2 - x", "write an address, a number and representors"},
		{"a path for a representor", "0000:03:00.0 2 ../x", "is no list of interfaces"},
		{"a good line before a bad one", "0000:03:00.0 2 -\n0000:03:00.0 2 a/b", "is no list of interfaces"},
	} {
		s := newSRIOV(t, "legacy", "0")
		out, err := s.start(test.line + "\n")
		if err == nil || !strings.Contains(out, test.want) {
			t.Errorf("%s: %v, %q; want %q", test.name, err, out, test.want)
		}
		s.is("legacy", "0")
	}
	s := newSRIOV(t, "legacy", "3")
	if out, err := s.start("0000:03:00.0 2 -\n"); err == nil || !strings.Contains(out, "has 3 virtual functions") {
		t.Errorf("another number than there are: %v, %q", err, out)
	}
	s = newSRIOV(t, "legacy", "0")
	if out, err := s.start("0000:03:00.0 2 pf0vf1\n"); err == nil || !strings.Contains(out, "the representor pf0vf1 did not come") {
		t.Errorf("a representor that does not come: %v, %q", err, out)
	}
}

// bfbInstall is a machine on which a boot stream's installer runs: a real disk, of a
// file, and the rest of the machine in a folder.
type bfbInstall struct {
	*testing.T
	dir, disk string
}

const imageBytes = 3<<20 + 512

func newBFBInstall(t *testing.T) bfbInstall {
	t.Helper()
	for _, program := range []string{"zstd", "losetup"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(program + " is missing (Debian packages zstd, mount)")
		}
	}
	if os.Geteuid() != 0 {
		t.Skip("loop devices want root")
	}
	b := bfbInstall{T: t, dir: t.TempDir()}
	disk := filepath.Join(b.dir, "disk.img")
	files(t, b.dir, map[string]string{
		"disk.img":                                 strings.Repeat("old ", 1<<20), // 4 MiB
		"sys/firmware/acpi/tables/SSDT1":           "\x00SSDT MLNXBF22 \x00",
		"sys/devices/platform/MLNXBF04:00/rsh_log": "",
		"sys/class/block/" + "unknown" + "/size":   "8192",
		"slipway/placeholder":                      "",
	})
	out, err := exec.CommandContext(t.Context(), "losetup", "--find", "--show", disk).CombinedOutput()
	if err != nil {
		t.Skipf("no loop device: %v: %s", err, out)
	}
	b.disk = strings.TrimSpace(string(out))
	t.Cleanup(func() { _ = exec.Command("losetup", "--detach", b.disk).Run() })
	files(t, b.dir, map[string]string{"sys/class/block/" + filepath.Base(b.disk) + "/size": "8192"})
	return b
}

// image writes what the class slipway-bfb puts into the initramfs.
func (b bfbInstall) image(settings map[string]string) []byte {
	b.Helper()
	data := make([]byte, imageBytes)
	rand.NewChaCha8([32]byte{1}).Read(data)
	files(b.T, b.dir, map[string]string{"image": string(data)})
	if out, err := exec.CommandContext(b.Context(), "zstd", "-q", "-f", filepath.Join(b.dir, "image"), "-o", filepath.Join(b.dir, "slipway/disk.zst")).CombinedOutput(); err != nil {
		b.Fatalf("zstd: %v: %s", err, out)
	}
	all := map[string]string{
		"chip": "MLNXBF22", "disk": b.disk, "bytes": fmt.Sprint(imageBytes), "sha256": fmt.Sprintf("%x", sha256.Sum256(data)),
	}
	var lines strings.Builder
	for name, value := range all {
		if other, ok := settings[name]; ok {
			value = other
		}
		fmt.Fprintf(&lines, "%s=%s\n", name, value)
	}
	files(b.T, b.dir, map[string]string{"slipway/settings": lines.String()})
	return data
}

func (b bfbInstall) install() (string, error) {
	cmd := exec.CommandContext(b.Context(), "sh", "../recipes/slipway-bfb/files/slipway-bfb-install", filepath.Join(b.dir, "slipway"))
	cmd.Env = append(os.Environ(), "SLIPWAY_BFB_SYS="+filepath.Join(b.dir, "sys"), "SLIPWAY_BFB_WAIT_SEC=0")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestBFBInstaller(t *testing.T) {
	b := newBFBInstall(t)
	data := b.image(nil)
	out, err := b.install()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	got, err := os.ReadFile(b.disk)
	if err != nil {
		t.Fatal(err)
	}
	if string(got[:imageBytes]) != string(data) || string(got[imageBytes:imageBytes+4]) != "old " {
		t.Error("the disk does not begin with the image, or more than that was written")
	}
	if last := text(t, filepath.Join(b.dir, "sys/devices/platform/MLNXBF04:00/rsh_log")); last != "INFO Rebooting..." {
		t.Errorf("the last message to the host is %q", last)
	}
}

// What is refused is refused before anything was written.
func TestBFBInstallerRefuses(t *testing.T) {
	b := newBFBInstall(t)
	for _, test := range []struct {
		name, want string
		settings   map[string]string
		damage     bool
	}{
		{"another chip", "not a MLNXBF33", map[string]string{"chip": "MLNXBF33"}, false},
		{"no disk", "there is no disk", map[string]string{"disk": "/dev/there-is-none"}, false},
		{"too small a disk", "has 4194304 bytes", map[string]string{"bytes": "4194816"}, false},
		{"no size", "tell no size", map[string]string{"bytes": "1; reboot"}, false},
		{"a damaged image", "the packed image is damaged", nil, true},
	} {
		b.image(test.settings)
		if test.damage {
			packed := filepath.Join(b.dir, "slipway/disk.zst")
			data := []byte(text(t, packed))
			data[len(data)/2] ^= 1
			files(t, b.dir, map[string]string{"slipway/disk.zst": string(data)})
		}
		out, err := b.install()
		if err == nil || !strings.Contains(out, "CRITICAL ERROR: ") || !strings.Contains(out, test.want) {
			t.Errorf("%s: %v, %q; want %q", test.name, err, out, test.want)
		}
		if got := text(t, filepath.Join(b.dir, "disk.img")); !strings.HasPrefix(got, "old old ") {
			t.Errorf("%s: the disk was written to", test.name)
		}
	}
	b.image(map[string]string{"sha256": strings.Repeat("0", 64)})
	if out, err := b.install(); err == nil || !strings.Contains(out, "is not the image") {
		t.Errorf("another digest than the disk's: %v, %q", err, out)
	}
}
