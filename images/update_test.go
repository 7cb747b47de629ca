package images

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"slipway/layers/plaintext"
	"slipway/layers/run"
)

const updates = "../recipes/dynamic-layers/swupdate"

// A Jetson's update is read by a real SWUpdate, which looks for what every half of it
// needs and installs nothing.
func TestUpdateDescription(t *testing.T) {
	needSWUpdate(t)
	dir := t.TempDir()
	writeUpdate(t, dir, "/dev/disk/by-partlabel")
	for _, tt := range []struct{ half, board, want string }{
		{"slot,a", "board:1.0", "/dev/disk/by-partlabel/APP "},
		{"slot,a", "board:1.0", "/dev/kernelA"},
		{"slot,b", "board:1.0", "/dev/disk/by-partlabel/APP_b "},
		{"slot,b", "board:1.0", "/dev/kernelB"},
		{"slot,c", "board:1.0", "Found nothing to install"},
		{"slot,a", "other:1.0", "Compatible SW not found"},
		{"slot,a", "board:2.0", "SW not compatible with hardware"},
	} {
		cmd := exec.Command("swupdate", "-c", "-v", "-k", "cert.pem", "-i", "update.swu", "-e", tt.half, "-H", tt.board)
		cmd.Dir = dir
		out, _ := cmd.CombinedOutput() // its status says nothing: -c ends with 0 and 1 alike
		_, accepted := strings.CutPrefix(tt.want, "/dev")
		if !strings.Contains(string(out), tt.want) || strings.Contains(string(out), "SWUPDATE successful") != accepted {
			t.Errorf("swupdate -c -e %s -H %s does not say %q:\n%s", tt.half, tt.board, tt.want, out)
		}
	}
}

func needSWUpdate(t *testing.T) {
	t.Helper()
	for _, program := range []string{"swupdate", "cpio", "openssl"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not in PATH: apt install swupdate cpio openssl (Debian's swupdate starts a service)", program)
		}
	}
}

// A real SWUpdate asks before-update before it formats the slot, and that finds in the
// update how large its capsule is.
func TestUpdateAsksBefore(t *testing.T) {
	needSWUpdate(t)
	for _, tt := range []struct {
		freeKiB int
		want    string
		formats bool
	}{
		{0, "the capsule has 12 bytes, and", false},
		{1, "", true},
	} {
		j := newJetson(t)
		writeUpdate(t, j.dir, j.dir) // no partitions of this machine
		j.write("APP", "")
		j.write("bin/df", fmt.Sprintf("#!/bin/sh\necho x\necho x 1 1 %d\n", tt.freeKiB))
		j.place("slipway-swupdate/files/before-update")
		cmd := exec.Command("swupdate", "-v", "-k", "cert.pem", "-i", "update.swu", "-e", "slot,a", "-H", "board:1.0", "-P", filepath.Join(j.dir, "script"))
		cmd.Dir, cmd.Env = j.dir, j.env()
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), tt.want) || strings.Contains(string(out), "diskformat_mkfs") != tt.formats {
			t.Errorf("with %d KiB free swupdate ends with %v; want it to say %q, to format the slot: %v, and to fail in the end, as the slot is no disk:\n%s",
				tt.freeKiB, err, tt.want, tt.formats, out)
		}
	}
}

var (
	updateVariable = plaintext.Regexp(`@@(\w+)@@`)
	updateDigest   = plaintext.Regexp(`\$swupdate_get_sha256\(([^)]*)\)`)
	updateSize     = plaintext.Regexp(`\$swupdate_get_size\(([^)]*)\)`)
)

// writeUpdate packs a signed update as meta-swupdate does, of small files, for slots in a folder.
func writeUpdate(t *testing.T, dir, slots string) {
	t.Helper()
	entry := `, { filename = "kernel"; device = "/dev/kernel%s"; sha256 = "$swupdate_get_sha256(kernel)"; }` // as slipway-update.bb has it
	values := map[string]string{
		"DISTRO_VERSION": "1", "MACHINE": "board", "SLIPWAY_UPDATE_ROOT": "root.tar.gz",
		"SLIPWAY_UPDATE_KERNEL_A": fmt.Sprintf(entry, "A"), "SLIPWAY_UPDATE_KERNEL_B": fmt.Sprintf(entry, "B"),
	}
	for _, name := range []string{"root.tar.gz", "tegra-bl.cap", "kernel", "next-slot.sh"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(updates + "/slipway-update/files/sw-description")
	if err != nil {
		t.Fatal(err)
	}
	text = updateVariable().ReplaceAllFunc(text, func(m []byte) []byte { return []byte(values[strings.Trim(string(m), "@")]) })
	text = updateDigest().ReplaceAllFunc(text, func(m []byte) []byte {
		return fmt.Appendf(nil, "%x", sha256.Sum256(updateDigest().FindSubmatch(m)[1])) // each file holds its name
	})
	text = updateSize().ReplaceAllFunc(text, func(m []byte) []byte {
		return fmt.Append(nil, len(updateSize().FindSubmatch(m)[1]))
	})
	text = bytes.ReplaceAll(text, []byte("/dev/disk/by-partlabel"), []byte(slots))
	if err := os.WriteFile(filepath.Join(dir, "sw-description"), text, 0o644); err != nil {
		t.Fatal(err)
	}
	runIn(t, dir, "", "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "cert.pem",
		"-subj", "/CN=test", "-addext", "extendedKeyUsage=emailProtection", "-addext", "keyUsage=digitalSignature")
	runIn(t, dir, "", "openssl", "cms", "-sign", "-in", "sw-description", "-out", "sw-description.sig",
		"-signer", "cert.pem", "-inkey", "key.pem", "-outform", "DER", "-nosmimecap", "-binary")
	// An update that fits in a socket's buffer is sent before SWUpdate 2022.12 has begun
	// with it, and the sender takes that for its end.
	if err := os.WriteFile(filepath.Join(dir, "padding"), make([]byte, 4<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	runIn(t, dir, "sw-description\nsw-description.sig\nroot.tar.gz\ntegra-bl.cap\nkernel\nnext-slot.sh\npadding\n",
		"cpio", "-o", "-H", "crc", "-F", "update.swu")
}

func runIn(t *testing.T, dir, input string, argv ...string) {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%q: %v\n%s", argv, err, out)
	}
}

// The daemon on the board writes the slot that it does not run from.
func TestUpdateSlot(t *testing.T) {
	for _, tt := range []struct{ current, want string }{
		{"echo 0", "-v -e slot,b -P /usr/lib/slipway/before-update\n"},
		{"echo 1", "-v -e slot,a -P /usr/lib/slipway/before-update\n"},
		{"exit 1", ""},
	} {
		bin := t.TempDir()
		if err := run.WriteProgram(filepath.Join(bin, "nvbootctrl"), []byte("#!/bin/sh\n"+tt.current+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("/bin/sh", "-c", `SWUPDATE_ARGS=-v; . "$1"; echo "$SWUPDATE_ARGS"`, "sh", updates+"/slipway-swupdate/files/30-slot")
		cmd.Env = []string{"PATH=" + bin}
		out, err := cmd.Output()
		if string(out) != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("where nvbootctrl does %q: %q, %v; want %q", tt.current, out, err, tt.want)
		}
	}
}
