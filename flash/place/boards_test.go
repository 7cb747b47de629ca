package place

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"slipway/flash/bfb"
	"slipway/flash/device"
	"slipway/flash/flashtest"
	"slipway/images"
	"slipway/layers/run"
)

// ownMounts reports whether the test runs in a mount namespace of its own. If not, it calls the test
// again in one, and has it end as that does.
func ownMounts(t *testing.T) bool {
	t.Helper()
	needRoot(t)
	const inside = "SLIPWAY_TEST_OWN_MOUNTS"
	if os.Getenv(inside) != "" {
		return true
	}
	cmd := exec.Command("unshare", "--mount", os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), inside+"=1")
	out, err := cmd.CombinedOutput()
	switch text := string(out); {
	case err != nil:
		t.Fatalf("%v\n%s", err, text)
	case strings.Contains(text, "--- SKIP"):
		t.Skip(text)
	case !strings.Contains(text, "--- PASS: "+t.Name()):
		t.Fatal(text)
	}
	return false
}

// mount mounts something in the test's namespace, until the test ends.
func mount(t *testing.T, from, to, kind string, flags uintptr) {
	t.Helper()
	if err := syscall.Mount(from, to, kind, flags, ""); err != nil {
		t.Fatalf("mount %s at %s: %v", from, to, err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(to, syscall.MNT_DETACH) }) // the namespace ends with the test
}

// newBoards makes a place for boards that are no disks, with these lines of place.yml.
func newBoards(t *testing.T, s images.Spec, files []images.File, config string) *bench {
	t.Helper()
	old := spec
	spec = s
	t.Cleanup(func() { spec = old })
	b := &bench{t: t, shown: map[string]Port{}, states: map[string][]State{}}
	dir := t.TempDir()
	for i, f := range files {
		data, err := os.ReadFile(f.Name)
		if err != nil {
			t.Fatal(err)
		}
		flashtest.Put(t, filepath.Join(dir, filepath.Base(f.Name)), string(data))
		files[i] = images.File{Kind: f.Kind, Name: filepath.Base(f.Name), SizeBytes: int64(len(data)), SHA256: fmt.Sprintf("%x", sha256.Sum256(data))}
	}
	a := images.Artifact{Board: "toy", Key: "0123456789abcdef", Files: files}
	err := a.Save(dir)
	if err == nil {
		b.artifact, err = images.ReadArtifact(dir)
	}
	b.again(config, &err)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// again loads another configuration of the place.
func (b *bench) again(config string, err *error) {
	path := filepath.Join(b.artifact.Dir(), "place.yml")
	flashtest.Put(b.t, path, config)
	c, wrong := Load(path)
	b.config, *err = c, errors.Join(*err, wrong)
}

// DPUs are ports like cards: the named ones get the boot stream once, and one that fails is named. A
// DPU at a port without a name is never reset. A place that starts again knows a whole one, although
// its rshim says nothing of it.
func TestPlaceDPU(t *testing.T) {
	if !ownMounts(t) {
		return
	}
	good := &flashtest.DPU{Says: flashtest.Boots}
	bad := &flashtest.DPU{Says: []string{"INFO[BL2]: start", "ERR[MISC]: CRITICAL ERROR: no disk"}, Name: "usb-2.1"}
	unnamed := &flashtest.DPU{Says: flashtest.Boots, Name: "pcie-0000:05:00.2"}
	dirs := flashtest.MountDPUs(t, good, bad, unnamed)
	dev := t.TempDir() // with the folders of the driver, and null
	mount(t, "tmpfs", dev, "tmpfs", 0)
	flashtest.Put(t, filepath.Join(dev, "null"), "")
	mount(t, "/dev/null", filepath.Join(dev, "null"), "", syscall.MS_BIND)
	for _, dir := range dirs {
		at := filepath.Join(dev, filepath.Base(dir))
		if err := os.Mkdir(at, 0o755); err != nil {
			t.Fatal(err)
		}
		mount(t, dir, at, "", syscall.MS_BIND)
	}
	mount(t, dev, "/dev", "", syscall.MS_BIND|syscall.MS_REC)

	stream := filepath.Join(t.TempDir(), "toy.bfb")
	parts, err := bfb.ParseParts("boot-args==quiet,boot-timeout==3")
	if err == nil {
		_, err = bfb.Make(t.Context(), stream, bfb.Recipe{Parts: parts})
	}
	if err != nil {
		t.Fatal(err)
	}
	const config = "ports: {pcie-0000:03:00.2: left, usb-2.1: right}\n"
	b := newBoards(t, images.Spec{Board: "toy", Flash: images.Flash{Kinds: []string{device.RShim}, DPU: "BlueField-2"}}, []images.File{{Kind: images.BFB, Name: stream}}, config)
	for _, tt := range []struct {
		config string
		left   State
		pushes int // of the good one, in all
	}{
		{config, Pass, 1},
		{config, Known, 1},
		{config + "again: true\n", Pass, 2},
	} {
		if b.again(tt.config, &err); err != nil {
			t.Fatal(err)
		}
		stop := b.run(Options{})
		b.wait("left", tt.left)
		if shown := b.wait("right", Fail); !strings.Contains(shown.Text, "the DPU says") {
			t.Errorf("the bad one shows %+v", shown)
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if _, pushes := good.Pushed(); pushes != tt.pushes || good.Resets() != tt.pushes {
			t.Errorf("the good one has %d pushes and %d resets; want %d", pushes, good.Resets(), tt.pushes)
		}
		b.shown = map[string]Port{}
	}
	if _, pushes := unnamed.Pushed(); pushes != 0 || unnamed.Resets() != 0 {
		t.Errorf("the one at a port without a name has %d pushes and %d resets", pushes, unnamed.Resets())
	}
	if all := b.entries(); len(all) != 6 || all[0].Device.Chip == "" || all[0].Boot == "" {
		t.Errorf("the record has %+v; want 6 entries, with chip and boot", all)
	}
}

// jetsonScript is a package's program in the words of meta-tegra's. It flashes the board at the USB
// port $2, which leaves recovery mode and reports what the file FOLDER/$2 has.
const jetsonScript = `#!/bin/bash
echo "Found Jetson device in recovery mode at USB $2"
for step in "1: Signing binaries" "2: Boot Jetson via RCM" "3: Sending flash sequence commands" "4: Writing partitions on internal storage device" "5: Waiting for final status from device"; do
	echo "== Step $step at now =="
done
echo 7020 >/sys/bus/usb/devices/$2/idProduct
echo "Final status: $(cat FOLDER/$2)"
echo "Successfully finished at now"
`

// Jetsons in recovery mode are ports like cards, side by side. What one reports stays on the screen
// when it has left that mode, and the next one begins by itself. None at another port is touched.
func TestPlaceJetson(t *testing.T) {
	if !ownMounts(t) {
		return
	}
	sys, boards := t.TempDir(), t.TempDir()
	plug := func(port, product, serial, says string) {
		for name, text := range map[string]string{"idVendor": "0955", "idProduct": product, "devnum": "5", "serial": serial} {
			flashtest.Put(t, filepath.Join(sys, "bus/usb/devices", port, name), text+"\n")
		}
		flashtest.Put(t, filepath.Join(boards, port), says)
	}
	for _, dir := range []string{"class/block", "bus/usb/devices/1-1", "bus/usb/devices/1-2", "bus/usb/devices/1-3"} {
		if err := os.MkdirAll(filepath.Join(sys, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	plug("1-1", "7523", "100", "SUCCESS")
	plug("1-2", "7523", "200", "FAILED")
	plug("1-3", "7523", "300", "SUCCESS")
	mount(t, sys, "/sys", "", syscall.MS_BIND)
	tools := t.TempDir() // those that the script would call
	for _, name := range []string{"dtc", "fdtput", "cpp", "sgdisk", "partprobe", "udevadm", "udisksctl", "blockdev", "getopt", "python3"} {
		if err := run.WriteProgram(filepath.Join(tools, name), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", tools+":"+os.Getenv("PATH"))

	pack := filepath.Join(t.TempDir(), "image-toy.tegraflash.tar.gz")
	f, err := os.Create(pack)
	if err != nil {
		t.Fatal(err)
	}
	z := gzip.NewWriter(f)
	w := tar.NewWriter(z)
	for name, text := range map[string]string{
		".env.initrd-flash": "CHIPID=\"0x23\"\nMACHINE=\"toy\"\nROOTFS_IMAGE=\"image.ext4\"\nFLASH_HELPER=tegra-flash-helper.sh\n",
		"bsp_version":       "BSP_BRANCH=36\nBSP_MAJOR=4\nBSP_MINOR=4\n", "image.ext4": "rootfs", "tegra-flash-helper.sh": "", "initrd-flash.img": "",
		"flash.xml.in": `<partition_layout><device type="external"><partition name="APP" id="1" type="data"><size> 8388608 </size><filename> APPFILE </filename></partition></device></partition_layout>`,
		"initrd-flash": strings.ReplaceAll(jetsonScript, "FOLDER", boards),
	} {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(text)), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	s := images.Spec{Board: "toy", Flash: images.Flash{Kinds: []string{device.Tegra, device.Block}, Chip: "t234"}}
	b := newBoards(t, s, []images.File{{Kind: images.Tegraflash, Name: pack}}, "ports: {\"usb:1-1\": left, \"usb:1-2\": right}\n")
	stop := b.run(Options{})
	if shown := b.wait("left", Pass); !strings.HasPrefix(shown.Text, "the board reports SUCCESS in ") {
		t.Errorf("the good one shows %+v", shown)
	}
	if shown := b.wait("right", Fail); shown.Text != "while waiting for the board's verdict: the board reports: FAILED" {
		t.Errorf("the bad one shows %+v", shown)
	}
	plug("1-1", "7523", "101", "SUCCESS")
	flashtest.Eventually(t, "the next one to be flashed", func() bool { return len(b.entries()) == 3 })
	if all := b.went("left"); slices.Contains(all[slices.Index(all, Pass):], Empty) {
		t.Errorf("left shows %v; want no EMPTY after PASS", all)
	}
	b.wait("left", Pass)
	plug("1-1", "7523", "100", "SUCCESS")
	if shown := b.wait("left", Known); shown.Serial != "100" {
		t.Errorf("the known one shows %+v", shown)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	for _, e := range b.entries() {
		if e.Serial == "" || e.Port == "usb:1-3" || e.Verdict == string(Pass) != (e.Port == "usb:1-1" && e.Serial[:2] == "10") && e.Verdict != string(Known) {
			t.Errorf("the record has %+v", e)
		}
	}
}
