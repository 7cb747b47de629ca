package ci

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"slipway/flash"
	"slipway/flash/device"
	"slipway/flash/flashtest"
	"slipway/images"
)

const (
	bootStart, bootSize = 2 << 20, 4 << 20
	dataStart, dataSize = 7 << 20, 4 << 20
)

// cardImage is an image with FAT, labelled BOOTFS, and an empty partition data.
func cardImage(t *testing.T, label string) string {
	t.Helper()
	dir := t.TempDir()
	path, fat := filepath.Join(dir, "card.img"), filepath.Join(dir, "fat.img")
	for name, size := range map[string]int64{path: 12 << 20, fat: bootSize} {
		if err := errors.Join(os.WriteFile(name, nil, 0o600), os.Truncate(name, size)); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("/sbin/sfdisk", "--quiet", path)
	cmd.Stdin = strings.NewReader(fmt.Sprintf("label: gpt\nname=one, start=%d, size=%d\nname=data, start=%d, size=%d\n", bootStart/512, bootSize/512, dataStart/512, dataSize/512))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("sfdisk (Debian package fdisk): %v %s", err, out)
	}
	if _, err := exec.LookPath("mformat"); err != nil {
		t.Skip("mformat is missing (Debian package mtools)")
	}
	flashtest.MustRun(t, "mkfs.vfat", "-n", label, fat)
	data, err := os.ReadFile(fat)
	if err != nil {
		t.Fatal(err)
	}
	flashtest.Scribble(t, path, bootStart, data)
	return path
}

const oneBoard = `hostname: lab-7
address: dhcp
user: {name: worker, password_hash: "planted secret", keys: [ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB0mV1vqCzXJ2JaYp1yKXkN0nDsPDWDnV2+3l2w2r5bD]}
plain_passwords: true
wifi: {ssid: lab, password: "planted wifi"}
files: {etc/motd: "planted text"}
form: `

// One card gets the identity of a file in each form. No output and no record has its secrets.
func TestFlashOwn(t *testing.T) {
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("openssl is missing (Debian package openssl)")
	}
	for form, want := range map[string]struct{ label, read string }{
		"slipway":     {"BOOT", "identity/tmpfiles.conf"},
		"nocloud":     {"CIDATA", "::/user-data"},
		"systemd":     {"ESP", "::/loader/credentials/tmpfiles.extra.cred"},
		"raspberrypi": {"BOOTFS", "::/custom.toml"},
	} {
		image := cardImage(t, want.label)
		card, file := flashtest.Loop(t, 16<<20)
		row := filepath.Join(t.TempDir(), "lab-7.yml")
		flashtest.Put(t, row, oneBoard+form+"\n")
		spec, opt := images.Spec{Board: "toy", Flash: images.Flash{Kinds: []string{device.Block}}}, images.Options{Dir: t.TempDir()}
		var out, shown bytes.Buffer
		how := flash.Options{Image: image, OtherBoard: true, Yes: []string{card}, Out: &shown, DryRun: true}
		before := readAll(t, file)
		if err := Flash(t.Context(), &out, spec, opt, []string{card}, how, row, true); err != nil {
			t.Fatalf("%s: %v", form, err)
		}
		if !bytes.Equal(readAll(t, file), before) || !strings.Contains(shown.String(), "No byte was written") {
			t.Errorf("%s: the dry run wrote, or did not say that it does not: %s", form, &shown)
		}
		if form == "systemd" {
			pi := filepath.Join(t.TempDir(), "pi.yml")
			flashtest.Put(t, pi, oneBoard+"raspberrypi\n")
			if err := Flash(t.Context(), &bytes.Buffer{}, spec, opt, []string{card}, how, pi, true); err == nil || !strings.Contains(err.Error(), "no partition bootfs") {
				t.Errorf("a dry run with an image that has no such partition = %v; want an error", err)
			}
		}
		how.DryRun, how.Yes = false, []string{card + "x"}
		if err := Flash(t.Context(), &bytes.Buffer{}, spec, opt, []string{card}, how, row, true); !errors.Is(err, flash.ErrRefused) || !bytes.Equal(readAll(t, file), before) {
			t.Errorf("%s: another card was confirmed: %v; want that it is refused, and as before", form, err)
		}
		how.Yes = []string{card}
		if err := Flash(t.Context(), &out, spec, opt, []string{card}, how, row, true); err != nil {
			t.Fatalf("%s: %v", form, err)
		}
		if !strings.Contains(out.String(), `"hostKey": "SHA256:`) || !strings.Contains(shown.String(), card+": block") || !strings.Contains(shown.String(), "Image card.img, with the identity of "+row) {
			t.Errorf("%s: the receipt has no host key, or the card was not shown: %s%s", form, &out, &shown)
		}
		part := filepath.Join(t.TempDir(), "part")
		argv := []string{"mtype", "-i", part, want.read}
		start, size := bootStart, bootSize
		if form == "slipway" {
			argv = []string{flashtest.E2fs(t, "debugfs"), "-R", "cat " + want.read, part}
			start, size = dataStart, dataSize
		}
		flashtest.Put(t, part, string(readAll(t, file)[start:start+size]))
		if got, err := exec.Command(argv[0], argv[1:]...).Output(); err != nil || len(got) < 40 {
			t.Errorf("%s: %q = %q, %v", form, argv, got, err)
		}
		noSecrets(t, form, out.String()+shown.String())
		state, err := opt.StateDir(spec)
		if err != nil {
			t.Fatal(err)
		}
		for _, dir := range []string{state, opt.Dir} {
			err = errors.Join(err, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
				if err == nil && entry.Type().IsRegular() {
					noSecrets(t, form+": "+path, string(readAll(t, path)))
				}
				return err
			}))
		}
		if err != nil {
			t.Error(err)
		}
	}
}

func readAll(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// noSecrets fails the test if a text has a secret of oneBoard, or a private key.
func noSecrets(t *testing.T, where, text string) {
	t.Helper()
	for _, secret := range []string{"planted", "$6$", "PRIVATE KEY"} {
		if strings.Contains(text, secret) {
			t.Errorf("%s has %q", where, secret)
		}
	}
}

func TestFlashOwnRefuses(t *testing.T) {
	image := cardImage(t, "BOOT")
	dir := t.TempDir()
	to := filepath.Join(dir, "card.img")
	spec, opt := images.Spec{Board: "toy", Flash: images.Flash{Kinds: []string{device.File, device.Tegra}}}, images.Options{Dir: t.TempDir()}
	for _, test := range []struct {
		name, row string
		devices   []string
		want      string
		how       flash.Options
	}{
		{"a wrong value", oneBoard + "slipway\ngateway: planted\n", []string{to}, "lab-7.yml:8:1: gateway: ", flash.Options{}},
		{"two cards", oneBoard + "slipway\n", []string{to, to + "2"}, "for one disk", flash.Options{}},
		{"a Jetson", oneBoard + "slipway\n", []string{"usb:1-2"}, "for one disk", flash.Options{}},
		{"no such partition", oneBoard + "nocloud\npartition: CIDATA\n", []string{to}, `the image has no partition CIDATA; it has`, flash.Options{}},
		{"no file", "", []string{to}, "lab-7.yml", flash.Options{}},
		{"a Jetson's recovery", oneBoard + "slipway\n", []string{to}, "leave --force-recovery out", flash.Options{ForceRecovery: true}},
		{"a Jetson's key", oneBoard + "slipway\n", []string{to}, "leave --pkc and --sbk out", flash.Options{PKC: "pkc.pem"}},
		{"a BlueField's settings", oneBoard + "slipway\n", []string{to}, "leave --config out", flash.Options{Config: "bf.cfg"}},
	} {
		row := filepath.Join(dir, "lab-7.yml")
		os.Remove(row)
		if test.row != "" {
			flashtest.Put(t, row, test.row)
		}
		test.how.Image, test.how.OtherBoard, test.how.Out = image, true, &bytes.Buffer{}
		err := Flash(t.Context(), &bytes.Buffer{}, spec, opt, test.devices, test.how, row, false)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v; want %q", test.name, err, test.want)
			continue
		}
		if test.name != "a wrong value" {
			noSecrets(t, test.name, err.Error())
		}
		if _, err := os.Stat(to); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: there is a disk: %v", test.name, err)
		}
	}
}

// A board's own build also gets the client key, and its host key is known, so that Slipway logs in.
func TestFlashOwnOfABuild(t *testing.T) {
	spec, opt := images.Spec{Board: "toy", Flash: images.Flash{Kinds: []string{device.File}}}, images.Options{Dir: t.TempDir()}
	dir := opt.BoardDir(spec)
	data := readAll(t, cardImage(t, "BOOT"))
	flashtest.Put(t, filepath.Join(dir, "disk.img"), string(data))
	built := images.Artifact{
		Board: "toy", Key: "0123456789abcdef", Partitions: []images.Partition{{Name: "data", Use: "data", OffsetBytes: dataStart, SizeBytes: dataSize}},
		Files: []images.File{{Kind: images.DiskImage, Name: "disk.img", SizeBytes: int64(len(data)), SHA256: fmt.Sprintf("%x", sha256.Sum256(data))}},
	}
	if err := built.Save(dir); err != nil {
		t.Fatal(err)
	}
	row, to := filepath.Join(t.TempDir(), "lab-7.yml"), filepath.Join(t.TempDir(), "card.img")
	flashtest.Put(t, row, "form: slipway\nhostname: lab-7\n")
	var out bytes.Buffer
	if err := Flash(t.Context(), &out, spec, opt, []string{to}, flash.Options{Blind: true}, row, true); err != nil || !strings.Contains(out.String(), `"readBack": false`) {
		t.Fatalf("Flash = %v, %s; want a receipt, not read back", err, &out)
	}
	state, err := opt.StateDir(spec)
	if err != nil {
		t.Fatal(err)
	}
	part := filepath.Join(t.TempDir(), "part")
	flashtest.Put(t, part, string(readAll(t, to)[dataStart:dataStart+dataSize]))
	cat := func(name string) string {
		return flashtest.MustRun(t, flashtest.E2fs(t, "debugfs"), "-R", "cat "+name, part)
	}
	client, known := string(readAll(t, images.ClientKeyPath(state)+".pub")), string(readAll(t, images.KnownHostsPath(state)))
	if got := cat("ssh/authorized_keys"); !strings.Contains(got, strings.TrimSpace(client)) {
		t.Errorf("authorized_keys = %q; want %q", got, client)
	}
	_, public, _ := strings.Cut(known, " ")
	if got := cat("ssh/ssh_host_ed25519_key.pub"); !strings.HasPrefix(known, "toy ") || !strings.Contains(got, strings.TrimSpace(public)) {
		t.Errorf("host key = %q; want that of known_hosts, %q", got, known)
	}
}
