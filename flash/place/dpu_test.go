package place

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"slipway/flash/bfb"
	"slipway/flash/device"
	"slipway/flash/flashtest"
	"slipway/images"
)

const insideVariable = "SLIPWAY_TEST_PLACE_DPU"

// DPUs are ports like cards: the named ones get the boot stream once, and one that fails is named. A
// DPU at a port without a name is never reset. The test calls itself in a mount namespace, where
// /dev has simulated DPUs.
func TestPlaceDPU(t *testing.T) {
	needRoot(t)
	if os.Getenv(insideVariable) == "" {
		cmd := exec.Command("unshare", "--mount", os.Args[0], "-test.run=^TestPlaceDPU$", "-test.v")
		cmd.Env = append(os.Environ(), insideVariable+"=1")
		out, err := cmd.CombinedOutput()
		switch text := string(out); {
		case err != nil:
			t.Fatalf("%v\n%s", err, text)
		case strings.Contains(text, "--- SKIP"):
			t.Skip(text)
		case !strings.Contains(text, "--- PASS: TestPlaceDPU"):
			t.Fatal(text)
		}
		return
	}
	good := &flashtest.DPU{Says: flashtest.Boots}
	bad := &flashtest.DPU{Says: []string{"INFO[BL2]: start", "ERR[MISC]: CRITICAL ERROR: no disk"}, Name: "usb-2.1"}
	unnamed := &flashtest.DPU{Says: flashtest.Boots, Name: "pcie-0000:05:00.2"}
	showInDev(t, flashtest.MountDPUs(t, good, bad, unnamed))

	dir := t.TempDir()
	parts, err := bfb.ParseParts("boot-args==quiet,boot-timeout==3")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bfb.Make(t.Context(), filepath.Join(dir, "toy.bfb"), bfb.Recipe{Parts: parts}); err != nil {
		t.Fatal(err)
	}
	flashtest.Put(t, filepath.Join(dir, "place.yml"), "image: "+filepath.Join(dir, "toy.bfb")+"\nports: {pcie-0000:03:00.2: left, usb-2.1: right}\n")
	a := images.Artifact{Board: "toy", Key: "0123456789abcdef"}
	if err := a.Save(dir); err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, shown: map[string]Port{}, states: map[string][]State{}}
	if b.artifact, err = images.ReadArtifact(dir); err != nil {
		t.Fatal(err)
	}
	if b.config, err = Load(filepath.Join(dir, "place.yml")); err != nil {
		t.Fatal(err)
	}
	old := spec
	spec = images.Spec{Board: "toy", Flash: images.Flash{Kinds: []string{device.RShim}, DPU: "BlueField-2"}}
	defer func() { spec = old }()
	stop := b.run(Options{})
	b.wait("left", Pass)
	if shown := b.wait("right", Fail); !strings.Contains(shown.Text, "the DPU says") {
		t.Errorf("the bad one shows %+v", shown)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if _, pushes := good.Pushed(); pushes != 1 || good.Resets() != 1 {
		t.Errorf("the good one has %d pushes and %d resets; want 1 and 1", pushes, good.Resets())
	}
	if _, pushes := unnamed.Pushed(); pushes != 0 || unnamed.Resets() != 0 {
		t.Errorf("the one at a port without a name has %d pushes and %d resets", pushes, unnamed.Resets())
	}
	for _, e := range b.entries() {
		if e.Verdict != string(b.shown[e.Label].State) || e.Device.Chip == "" || e.Row != "" {
			t.Errorf("the record has %+v", e)
		}
	}
}

// showInDev has /dev of this mount namespace show only folders as rshims, and null.
func showInDev(t *testing.T, dirs []string) {
	t.Helper()
	dev := t.TempDir()
	mount := func(from, to, kind string, flags uintptr) {
		t.Helper()
		if err := syscall.Mount(from, to, kind, flags, ""); err != nil {
			t.Fatalf("mount %s at %s: %v", from, to, err)
		}
		t.Cleanup(func() { _ = syscall.Unmount(to, syscall.MNT_DETACH) }) // the namespace ends with the test
	}
	mount("tmpfs", dev, "tmpfs", 0)
	flashtest.Put(t, filepath.Join(dev, "null"), "")
	mount("/dev/null", filepath.Join(dev, "null"), "", syscall.MS_BIND)
	for _, dir := range dirs {
		at := filepath.Join(dev, filepath.Base(dir))
		if err := os.Mkdir(at, 0o755); err != nil {
			t.Fatal(err)
		}
		mount(dir, at, "", syscall.MS_BIND)
	}
	mount(dev, "/dev", "", syscall.MS_BIND|syscall.MS_REC)
}
