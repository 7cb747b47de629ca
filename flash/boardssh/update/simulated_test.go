package update_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"slipway/flash/boardssh"
	"slipway/flash/boardssh/boardtest"
)

// simulatedJetson is a real SWUpdate on a simulated Jetson. Its slots are files, and its nvbootctrl
// is a script with the output of NVIDIA's documentation.
type simulatedJetson struct {
	boardtest.Folder
	Conn *boardssh.Conn
}

// startSWUpdate starts one that runs slot A.
func startSWUpdate(t *testing.T) *simulatedJetson {
	t.Helper()
	for _, program := range []string{"swupdate", "swupdate-client", "openssl"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is missing: install the Debian packages swupdate and openssl (Debian's swupdate starts a service)", program)
		}
	}
	dir, err := os.MkdirTemp("", "swu")
	if err != nil {
		t.Fatal(err)
	}
	s := &simulatedJetson{Folder: boardtest.Folder(dir)}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.Read("log"))
		}
		os.RemoveAll(dir)
	})
	s.Write(t, "slotA", boardtest.Padded("system 1"))
	s.Write(t, "slotB", string(large("system 0")))
	s.Write(t, "current", "0\n")
	s.Write(t, "active", "0\n")
	if err := os.Mkdir(s.File("bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	s.Write(t, "bin/nvbootctrl", strings.ReplaceAll(nvbootctrl, "@", dir))
	if err := os.Chmod(s.File("bin/nvbootctrl"), 0o755); err != nil {
		t.Fatal(err)
	}
	s.Key(t, "trusted")
	path := s.File("bin") + ":" + os.Getenv("PATH")
	cmd := exec.Command("swupdate", "-v", "-k", s.File("trusted.pem"), "-H", "board:1.0", "-e", "slot,b")
	cmd.Env = append(os.Environ(), "TMPDIR="+dir, "PATH="+path)
	s.Start(t, cmd)
	s.awaitFile(t, "sockinstctrl")
	s.Conn = boardtest.Connect(t, fmt.Sprintf("SetEnv TMPDIR=%s PATH=%s HOME=%[1]s", dir, path))
	return s
}

const nvbootctrl = `#!/bin/sh
letter() { tr 01 AB <"@/$1"; }
case $1 in
dump-slots-info)
	echo "Current version: 36.4.3"
	echo "Capsule update status: 0"
	echo "Current bootloader slot: $(letter current)"
	echo "Active bootloader slot: $(letter active)"
	echo "num_slots: 2"
	echo "slot: 0,             status: normal"
	echo "slot: 1,             status: normal" ;;
set-active-boot-slot) echo "$2" >@/active ;;
verify) cp @/current @/verified ;;
*) exit 1 ;;
esac
`

func (s *simulatedJetson) awaitFile(t *testing.T, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for {
		if _, err := os.Stat(s.File(name)); err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s did not appear", name)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Slot is what slot A or B holds.
func (s *simulatedJetson) Slot(name string) string {
	data, _ := os.ReadFile(s.File("slot" + name))
	return strings.TrimSpace(string(data[:min(len(data), 100)]))
}

// Booted is the slot that runs.
func (s *simulatedJetson) Booted() string {
	return strings.NewReplacer("0", "A", "1", "B").Replace(s.Read("current"))
}

// Restart starts the slot that the firmware would.
func (s *simulatedJetson) Restart(t *testing.T) {
	t.Helper()
	s.Write(t, "current", s.Read("active")+"\n")
}

// Verified is the slot that was marked good.
func (s *simulatedJetson) Verified() string { return s.Read("verified") }

// large is a system of some MiB: SWUpdate 2022.12 takes a smaller update for whole
// as soon as its last byte was sent.
func large(system string) []byte {
	return append([]byte(boardtest.Padded(system)), make([]byte, 4<<20)...)
}

// Make makes an update for slot B. Its Format is the revision of the hardware that it is for.
func (s *simulatedJetson) Make(t *testing.T, b boardtest.Bundle) string {
	t.Helper()
	if b.Key == "" {
		b.Key = "trusted"
	} else {
		s.Key(t, b.Key)
	}
	if b.Format == "" {
		b.Format = "1.0"
	}
	system := large(b.Content)
	next := []byte("#!/bin/sh\nexec nvbootctrl set-active-boot-slot 1\n")
	description := fmt.Appendf(nil, swDescription, b.Version, b.Format, sha256.Sum256(system), s.File("slotB"), sha256.Sum256(next))
	s.Write(t, "sw-description", string(description))
	signature, err := exec.Command("openssl", "cms", "-sign", "-in", s.File("sw-description"), "-signer", s.File(b.Key+".pem"),
		"-inkey", s.File(b.Key+".key"), "-outform", "DER", "-nosmimecap", "-binary").Output()
	if err != nil {
		t.Fatalf("openssl cms: %v", err)
	}
	var archive bytes.Buffer
	for _, f := range []struct {
		name string
		data []byte
	}{
		{"sw-description", description},
		{"sw-description.sig", signature},
		{"system.img", system},
		{"next.sh", next},
		{"TRAILER!!!", nil},
	} {
		appendFile(&archive, f.name, f.data)
	}
	name := filepath.Join(t.TempDir(), b.Name+".swu")
	if err := os.WriteFile(name, archive.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

const swDescription = `software =
{
	version = "%s";
	board = {
		hardware-compatibility: [ "%s" ];
		slot: { b: {
			images: ({ filename = "system.img"; type = "raw"; sha256 = "%x"; device = "%s"; installed-directly = true; });
			scripts: ({ filename = "next.sh"; type = "postinstall"; sha256 = "%x"; });
		}; };
	};
};
`

// appendFile writes a file as cpio's form with checksums has it.
func appendFile(w *bytes.Buffer, name string, data []byte) {
	var sum uint32
	for _, b := range data {
		sum += uint32(b)
	}
	fmt.Fprintf(w, "070702%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X", 1, 0o100644, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name)+1, sum)
	w.WriteString(name + "\x00")
	w.Write(make([]byte, (4-w.Len()%4)%4))
	w.Write(data)
	w.Write(make([]byte, (4-w.Len()%4)%4))
}
