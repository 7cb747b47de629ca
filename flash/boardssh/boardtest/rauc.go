package boardtest

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"slipway/layers/run"
)

// RAUC is a real RAUC service on a D-Bus that the test starts. Its slots are files, and its boot
// loader is a script that keeps its state in files.
type RAUC struct {
	Folder
	Bus     string
	Service *exec.Cmd

	booted string
}

// Compatible is what bundles for such a board must be for.
const Compatible = "slipway-test"

// StartRAUC starts a D-Bus and RAUC's service with slot A booted, until the end of the test. It
// skips the test without root, the programs, or the right to new mounts.
func StartRAUC(t *testing.T) *RAUC {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("RAUC mounts bundles: run the test as root")
	}
	for program, pack := range map[string]string{"rauc": "rauc", "dbus-daemon": "dbus-daemon", "mksquashfs": "squashfs-tools"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is missing: install the Debian package %s", program, pack)
		}
	}
	if err := ownMounts(exec.Command("true")).Run(); errors.Is(err, syscall.EPERM) {
		t.Skip("RAUC mounts bundles, and this machine lets no program have mounts of its own: unshare -m true")
	}
	dir, err := os.MkdirTemp("", "rauc") // a test's own folder may have too long a name for a socket
	if err != nil {
		t.Fatal(err)
	}
	r := &RAUC{Folder: Folder(dir), Bus: filepath.Join(dir, "bus")}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(r.Read("log"))
		}
		os.RemoveAll(dir)
	})
	r.Write(t, "slotA", Padded("system 1"))
	r.Write(t, "slotB", Padded("system 0"))
	r.Write(t, "primary", "A\n")
	r.Write(t, "state.A", "good\n")
	r.Write(t, "state.B", "good\n")
	r.Write(t, "bus.conf", fmt.Sprintf(busConfig, r.Bus, r.File("services")))
	r.Write(t, "system.conf", strings.ReplaceAll(systemConfig, "@", dir))
	r.WriteProgram(t, "backend", strings.ReplaceAll(backend, "@", dir))
	program, err := exec.LookPath("rauc")
	if err != nil {
		t.Fatal(err)
	}
	r.WriteProgram(t, "rauc", fmt.Sprintf("#!/bin/sh\nexec %s --conf=%s \"$@\"\n", program, r.File("system.conf")))
	for _, dir := range []string{"mnt", "services"} {
		if err := os.Mkdir(r.File(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	r.Key(t, "trusted")
	r.Start(t, exec.Command("dbus-daemon", "--nofork", "--nopidfile", "--config-file="+r.File("bus.conf")))
	r.await(t, false) // the bus must be up before RAUC starts
	r.Boot(t, "A")
	return r
}

const busConfig = `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN" "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type>
  <listen>unix:path=%s</listen>
  <auth>EXTERNAL</auth>
  <servicedir>%s</servicedir>
  <limit name="service_start_timeout">5000</limit>
  <policy context="default">
    <allow user="*"/>
    <allow own="*"/>
    <allow send_type="method_call"/>
    <allow send_type="signal"/>
    <allow send_requested_reply="true"/>
    <allow receive_type="method_call"/>
    <allow receive_type="method_return"/>
    <allow receive_type="error"/>
    <allow receive_type="signal"/>
  </policy>
</busconfig>
`

const systemConfig = `[system]
compatible=` + Compatible + `
bootloader=custom
statusfile=@/status
mountprefix=@/mnt

[keyring]
path=@/trusted.pem

[handlers]
bootloader-custom-backend=@/backend

[slot.rootfs.0]
device=@/slotA
type=raw
bootname=A

[slot.rootfs.1]
device=@/slotB
type=raw
bootname=B
`

// backend is the script through which RAUC talks to a custom boot loader.
const backend = `#!/bin/sh
case $1 in
get-primary)
	p=$(cat @/primary)
	[ "$(cat "@/state.$p")" = good ] && echo "$p" && exit
	case $p in A) echo B ;; *) echo A ;; esac ;;
set-primary) echo "$2" >@/primary; echo good >"@/state.$2" ;;
get-state) cat "@/state.$2" ;;
set-state) echo "$3" >"@/state.$2" ;;
get-current) cat @/booted ;;
*) exit 1 ;;
esac
`

// Folder is the folder with the files of a simulated board.
type Folder string

// File returns the path of a file in the folder.
func (f Folder) File(name string) string { return filepath.Join(string(f), name) }

// Write writes a file in the folder.
func (f Folder) Write(t *testing.T, name, text string) {
	t.Helper()
	if err := run.WriteProgram(f.File(name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// WriteProgram writes a program in the folder.
func (f Folder) WriteProgram(t *testing.T, name, text string) {
	t.Helper()
	if err := run.WriteProgram(f.File(name), []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// Padded pads a system's text to 100 bytes, so that a simulated device's file keeps its length.
func Padded(system string) string { return fmt.Sprintf("%-100s", system) }

// Read returns a file's content, without spaces at its ends; "" if it cannot read the file.
func (f Folder) Read(name string) string {
	data, _ := os.ReadFile(f.File(name))
	return strings.TrimSpace(string(data))
}

// Start starts cmd and kills it at the end of the test. It appends cmd's output to the file log.
func (f Folder) Start(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	log, err := os.OpenFile(f.File("log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
}

// Kill kills the service, and waits until it has left the bus.
func (r *RAUC) Kill(t *testing.T) {
	t.Helper()
	r.Service.Process.Kill()
	r.Service.Wait()
	r.await(t, false)
}

// Boot restarts the service, in its own mount namespace, as if the board had booted slot A or B.
func (r *RAUC) Boot(t *testing.T, slot string) {
	t.Helper()
	if r.Service != nil {
		r.Kill(t)
	}
	r.booted = slot
	r.Service = ownMounts(exec.Command("rauc", "--conf="+r.File("system.conf"), "--override-boot-slot="+slot, "service"))
	r.Service.Env = append(os.Environ(), "DBUS_SYSTEM_BUS_ADDRESS=unix:path="+r.Bus)
	r.Start(t, r.Service)
	r.await(t, true)
}

// ownMounts makes cmd run in a new mount namespace. Go makes its mounts private.
func ownMounts(cmd *exec.Cmd) *exec.Cmd {
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	return cmd
}

// Program returns a setting of the board's sshd with which the board finds programs in the test's
// folder first. Its rauc uses this service's configuration.
func (r *RAUC) Program() string {
	return fmt.Sprintf("SetEnv HOME=%s PATH=%[1]s:%s", string(r.Folder), os.Getenv("PATH"))
}

// Restart boots the slot that Next returns.
func (r *RAUC) Restart(t *testing.T) {
	t.Helper()
	r.Boot(t, r.Next())
}

// Next returns the slot that the boot loader would start: the primary if good, else the other.
func (r *RAUC) Next() string {
	slot := r.Read("primary")
	if r.Read("state."+slot) != "good" {
		slot = map[string]string{"A": "B", "B": "A"}[slot]
	}
	return slot
}

// Booted returns the slot of the last Boot.
func (r *RAUC) Booted() string { return r.booted }

// Slot returns the content of slot A or B.
func (r *RAUC) Slot(name string) string { return r.Read("slot" + name) }

// startLimit is more than a busy machine needs.
const startLimit = 5 * time.Minute

// await waits, up to startLimit, until RAUC is on the bus, or, if there is false, is not.
func (r *RAUC) await(t *testing.T, there bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	for {
		if found, err := r.onBus(); err == nil && found == there {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("RAUC on the bus: want %v", there)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// onBus reports whether RAUC's service has its name on the D-Bus.
func (r *RAUC) onBus() (bool, error) {
	conn, err := dbus.Connect("unix:path=" + r.Bus)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	var names []string
	err = conn.BusObject().Call("org.freedesktop.DBus.ListNames", 0).Store(&names)
	return slices.Contains(names, "de.pengutronix.rauc"), err
}

// Key writes a new key and its certificate as NAME.key and NAME.pem. The board trusts only the one
// called "trusted".
func (f Folder) Key(t *testing.T, name string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	f.Write(t, name+".pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate})))
	f.Write(t, name+".key", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
}

// Bundle describes a bundle for Make.
type Bundle struct {
	Name, Compatible, Version, Content string
	Key                                string // as Key named it; "": trusted
	Format                             string // "": plain, the only format that needs no device mapper
	Hook                               string // a script that runs before the slot is written
}

// Make makes a bundle with the real rauc and returns its file. If b.Key or b.Compatible is "", it
// uses the key "trusted" or the constant Compatible.
func (r *RAUC) Make(t *testing.T, b Bundle) string {
	t.Helper()
	b.Key, b.Compatible = cmp.Or(b.Key, "trusted"), cmp.Or(b.Compatible, Compatible)
	content := "content." + b.Name
	if err := os.Mkdir(r.File(content), 0o755); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("[update]\ncompatible=%s\nversion=%s\n", b.Compatible, b.Version)
	if b.Format != "" {
		text += "\n[bundle]\nformat=" + b.Format + "\n"
	}
	image := "\n[image.rootfs]\nfilename=system.img\n"
	if b.Hook != "" {
		r.WriteProgram(t, content+"/hook", "#!/bin/sh\n"+b.Hook+"\n")
		text += "\n[hooks]\nfilename=hook\n"
		image += "hooks=pre-install\n"
	}
	r.Write(t, content+"/manifest.raucm", text+image)
	r.Write(t, content+"/system.img", Padded(b.Content))
	file := r.File(b.Name + ".raucb")
	out, err := exec.Command("rauc", "bundle", "--cert="+r.File(b.Key+".pem"), "--key="+r.File(b.Key+".key"), r.File(content), file).CombinedOutput()
	if err != nil {
		t.Fatalf("rauc bundle: %v\n%s", err, out)
	}
	return file
}
