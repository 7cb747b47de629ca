package flash

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"slipway/flash/boardssh"
	"slipway/flash/boardssh/sshd"
	"slipway/flash/device"
	"slipway/flash/tegra"
	"slipway/images"
	"slipway/layers/localfile"
	"slipway/layers/run"
)

const jetsonLayout = `<partition_layout><device type="sdcard" instance="0" sector_size="512">
<partition name="APP" id="1" type="data"><size> 8388608 </size><filename> APPFILE </filename></partition>
</device></partition_layout>
`

// The package's scripts are these here, in the words of meta-tegra's. What each board
// does is in a file beside the machine's sysfs.
const (
	flashScript = `#!/bin/bash
echo "Found Jetson device in recovery mode at USB $2"
echo "== Step 1: Signing binaries at now =="
echo "== Step 2: Boot Jetson via RCM at now =="
echo "== Step 3: Sending flash sequence commands at now =="
echo "== Step 4: Writing partitions on internal storage device at now =="
echo "== Step 5: Waiting for final status from device at now =="
touch scratch || exit 1
echo "Final status: $(cat @BOARDS@/$2)"
echo "Successfully finished at now"
`
	cardScript = `#!/bin/sh
echo "Creating partitions"
echo "Writing partitions"
head -c 1000000 /dev/zero | tr '\0' 'x' > "$4" && truncate -s $(($2 * 512)) "$4" || exit 1
head -c 64 /dev/zero | dd of="$4" bs=1 seek=446 conv=notrunc status=none
printf '\203\000\000\000\001\000\000\000\000\001' | dd of="$4" bs=1 seek=450 conv=notrunc status=none
printf '\125\252' | dd of="$4" bs=1 seek=510 conv=notrunc status=none
echo "[OK: $4]"
`
)

// jetsons is an artifact with a tegraflash package, and boards on USB ports that
// report something after a flash.
type jetsons struct {
	spec     images.Spec
	artifact images.Artifact
	boards   string
	sys      string
}

func newJetsons(t *testing.T, boards map[string]string) *jetsons {
	t.Helper()
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	j := &jetsons{
		spec:   images.Spec{Board: "toy", Flash: images.Flash{Kinds: []string{device.Tegra, device.Block}, Chip: "t234"}},
		boards: t.TempDir(), sys: t.TempDir(),
	}
	before := jetsonHost
	t.Cleanup(func() { jetsonHost = before })
	jetsonHost = tegra.Host{Sys: j.sys, Proc: "/proc", Run: t.TempDir()}
	for port, word := range boards {
		j.plug(t, port, "7523", "5")
		lay(t, filepath.Join(j.boards, port), word)
	}
	j.artifact = j.build(t, map[string]string{
		".env.initrd-flash": "CHIPID=\"0x23\"\nMACHINE=\"toy\"\nROOTFS_IMAGE=\"image.ext4\"\nFLASH_HELPER=tegra-flash-helper.sh\n",
		"bsp_version":       "BSP_BRANCH=36\nBSP_MAJOR=4\nBSP_MINOR=4\n", "flash.xml.in": jetsonLayout, "image.ext4": "rootfs",
		"tegra-flash-helper.sh": "", "initrd-flash.img": "", "dosdcard.sh": cardScript,
		"initrd-flash": strings.ReplaceAll(flashScript, "@BOARDS@", j.boards),
	})
	tools(t)
	return j
}

func stateHome(t *testing.T) string {
	t.Helper()
	home, err := images.StateHome()
	if err != nil {
		t.Fatal(err)
	}
	return home
}

func lay(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := run.WriteProgram(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

func (j *jetsons) plug(t *testing.T, port, product, number string) {
	t.Helper()
	for name, text := range map[string]string{"idVendor": "0955", "idProduct": product, "devnum": number} {
		lay(t, filepath.Join(j.sys, "bus/usb/devices", port, name), text+"\n")
	}
}

// tools are those of the scripts that this machine lacks: they are looked for, and the
// scripts here call none of them.
func tools(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"dtc", "fdtput", "cpp", "sgdisk", "partprobe", "udevadm", "udisksctl", "blockdev", "getopt", "python3"} {
		if _, err := run.LookPath(name); err != nil || name == "python3" { // whose yaml may be missing
			lay(t, filepath.Join(dir, name), "#!/bin/sh\n")
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// build makes an artifact whose package has these files.
func (j *jetsons) build(t *testing.T, files map[string]string) images.Artifact {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for name, text := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(text)), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	dir, name := t.TempDir(), "image-toy.tegraflash.tar.gz"
	if err := os.WriteFile(filepath.Join(dir, name), b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(b.Bytes())
	a := images.Artifact{Board: "toy", Key: "0123456789abcdef", Files: []images.File{{
		Kind: images.Tegraflash, Name: name, SizeBytes: int64(b.Len()), SHA256: hex.EncodeToString(sum[:]),
	}}}
	if err := a.Save(dir); err != nil {
		t.Fatal(err)
	}
	a, err := images.OpenArtifact(dir)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func (j *jetsons) flash(ctx context.Context, o Options, devices ...string) ([]Receipt, string, error) {
	var out bytes.Buffer
	o.Out = &out
	receipts, err := WriteAll(ctx, j.spec, j.artifact, devices, o)
	return receipts, out.String(), err
}

// left are the artifact's neighbours after a flash.
func (j *jetsons) left(t *testing.T) string {
	t.Helper()
	entries, err := os.ReadDir(j.artifact.Dir())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

func TestJetson(t *testing.T) {
	j := newJetsons(t, map[string]string{"1-2.3": "SUCCESS"})
	receipts, said, err := j.flash(t.Context(), Options{Yes: []string{"usb:1-2.3"}}, "usb:1-2.3")
	if err != nil || len(receipts) != 1 {
		t.Fatalf("WriteAll = %v, %v", receipts, err)
	}
	if r := receipts[0]; r.Verdict != "the board reports SUCCESS" || r.ImageSHA256 != j.artifact.Files[0].SHA256 || r.Form != "tegraflash R36.4.4" {
		t.Errorf("receipt %+v", r)
	}
	for _, want := range []string{"R36.4.4 for toy (t234), by initrd-flash", "Jetson Orin Nano 8GB (t234, 0955:7523)"} {
		if !strings.Contains(said, want) {
			t.Errorf("shown was %q; want %q", said, want)
		}
	}
	if _, err := os.Stat(filepath.Join(receipts[0].Logs, "output.log")); err != nil {
		t.Error(err)
	}
	if got, want := j.left(t), "artifact.json image-toy.tegraflash.tar.gz"; got != want {
		t.Errorf("left is %q; want %q", got, want)
	}
}

// Boards are flashed side by side; one that fails leaves the others.
func TestSeveralJetsons(t *testing.T) {
	j := newJetsons(t, map[string]string{"1-1": "SUCCESS", "1-2": "FAILED", "1-3": "SUCCESS"})
	ports := []string{"usb:1-1", "usb:1-2", "usb:1-3"}
	receipts, _, err := j.flash(t.Context(), Options{Yes: ports}, ports...)
	if err == nil || !strings.Contains(err.Error(), "USB port 1-2: while waiting for the board's verdict: the board reports: FAILED") {
		t.Errorf("WriteAll = %v; want what board 1-2 reports", err)
	}
	var whole []string
	for _, r := range receipts {
		whole = append(whole, r.Device.Path)
	}
	if want := []string{"usb:1-1", "usb:1-3"}; !slices.Equal(whole, want) {
		t.Errorf("receipts of %v; want of %v", whole, want)
	}
}

func TestJetsonRefused(t *testing.T) {
	tests := []struct {
		name   string
		change func(*testing.T, *jetsons)
		device string
		want   string
	}{
		{"nothing there", func(*testing.T, *jetsons) {}, "usb:1-9", "nothing is connected there"},
		{"no port", func(*testing.T, *jetsons) {}, "usb:../x", "is no USB port"},
		{"runs", func(t *testing.T, j *jetsons) { j.plug(t, "1-2", "7020", "9") }, "usb:1-2", "runs its Linux"},
		{"another chip", func(t *testing.T, j *jetsons) { j.plug(t, "1-2", "7e19", "9") }, "usb:1-2", "it is another board"},
		{"package for another chip", func(_ *testing.T, j *jetsons) { j.spec.Flash.Chip = "t194" }, "usb:1-2", "it is another board"},
		{"a variable that is none", func(_ *testing.T, j *jetsons) { j.spec.Flash.Module = map[string]string{"PATH": "x"} }, "usb:1-2", `nothing is named "PATH"`},
		{"damaged package", func(t *testing.T, j *jetsons) {
			path := j.artifact.Path(j.artifact.Files[0])
			data := read(t, path)
			data[len(data)-6] ^= 1
			if err := os.WriteFile(path, data, 0o644); err != nil {
				t.Fatal(err)
			}
		}, "usb:1-2", "unpack "},
		{"package of another build", func(_ *testing.T, j *jetsons) { j.artifact.Files[0].SHA256 = strings.Repeat("0", 64) }, "usb:1-2", "its sha256 is"},
		{"no package", func(_ *testing.T, j *jetsons) { j.artifact.Files = nil }, "usb:1-2", `no file of kind "tegraflash"`},
		{"file too large", func(t *testing.T, j *jetsons) {
			j.artifact = j.build(t, map[string]string{
				".env.initrd-flash": "CHIPID=0x23\nROOTFS_IMAGE=image.ext4", "flash.xml.in": strings.Replace(jetsonLayout, "8388608", "3", 1), "image.ext4": "rootfs",
				"tegra-flash-helper.sh": "", "initrd-flash.img": "", "initrd-flash": "",
			})
		}, "usb:1-2", "partition APP has 3 bytes, its file image.ext4 needs 6"},
		{"not asked for", func(*testing.T, *jetsons) {}, "usb:1-2", "not confirmed"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			j := newJetsons(t, map[string]string{"1-2": "SUCCESS"})
			tt.change(t, j)
			before := j.left(t)
			_, _, err := j.flash(t.Context(), Options{}, tt.device)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("WriteAll = %v; want an error with %q", err, tt.want)
			}
			if tt.name == "nothing there" && !errors.Is(err, ErrRefused) {
				t.Errorf("WriteAll = %v; want the kind of a device that is refused", err)
			}
			if got := j.left(t); got != before {
				t.Errorf("left is %q; want %q", got, before)
			}
		})
	}
}

func TestJetsonDryRun(t *testing.T) {
	j := newJetsons(t, map[string]string{"1-2": "SUCCESS"})
	receipts, said, err := j.flash(t.Context(), Options{DryRun: true}, "usb:1-2")
	if err != nil || len(receipts) != 1 || !receipts[0].DryRun || receipts[0].Verdict != "" {
		t.Errorf("WriteAll = %+v, %v", receipts, err)
	}
	if want := "bash ./initrd-flash --usb-instance 1-2"; !strings.Contains(said, want) {
		t.Errorf("shown was %q; want %q", said, want)
	}
	if got, want := j.left(t), "artifact.json image-toy.tegraflash.tar.gz"; got != want {
		t.Errorf("left is %q; want %q", got, want)
	}
}

// The board's own command brings it into recovery mode, each by its port.
func TestForceRecovery(t *testing.T) {
	j := newJetsons(t, nil)
	relay := filepath.Join(t.TempDir(), "relay")
	lay(t, relay, `#!/bin/sh
mkdir -p "$2/bus/usb/devices/$1" && cd "$2/bus/usb/devices/$1" || exit 1
echo 0955 > idVendor; echo 7523 > idProduct; echo 12 > devnum
echo SUCCESS > "$3/$1"
`)
	j.spec.Flash.Recovery.Command = []string{relay, "{port}", j.sys, j.boards}
	if _, _, err := j.flash(t.Context(), Options{Yes: []string{"usb:1-4"}}, "usb:1-4"); err == nil || !strings.Contains(err.Error(), "--force-recovery lets") {
		t.Errorf("without the option: %v; want that there is one", err)
	}
	ports := []string{"usb:1-4", "usb:1-5"}
	receipts, said, err := j.flash(t.Context(), Options{Yes: ports, ForceRecovery: true}, ports...)
	if err != nil || len(receipts) != 2 || !strings.Contains(said, "will be brought into recovery mode by: ") {
		t.Errorf("WriteAll = %v, %v, shown %q", receipts, err, said)
	}
	j.spec.Flash.Recovery.Command = nil
	if _, _, err := j.flash(t.Context(), Options{ForceRecovery: true}, "usb:1-4"); err == nil || !strings.Contains(err.Error(), "has no flash.recovery") {
		t.Errorf("without a command: %v; want what is missing", err)
	}
	j.spec.Flash.Recovery.Command = []string{"false"}
	if _, _, err := j.flash(t.Context(), Options{Yes: []string{"usb:1-4"}, ForceRecovery: true}, "usb:1-4"); err == nil || !strings.Contains(err.Error(), "force recovery mode: false") {
		t.Errorf("with a command that fails: %v", err)
	}
	if _, _, err := j.flash(t.Context(), Options{Yes: ports, ForceRecovery: true}, ports...); err == nil || !strings.Contains(err.Error(), "usb:1-4: force recovery mode: false") {
		t.Errorf("with a command that fails for two boards: %v", err)
	}
}

func TestForcedBoardIsAnother(t *testing.T) {
	j := newJetsons(t, nil)
	j.spec.Flash.Recovery.Command = []string{"sh", "-c", `mkdir -p "$0" && cd "$0" && echo 0955 > idVendor && echo 7e19 > idProduct && echo 3 > devnum`, filepath.Join(j.sys, "bus/usb/devices/1-4")}
	_, _, err := j.flash(t.Context(), Options{Yes: []string{"usb:1-4"}, ForceRecovery: true}, "usb:1-4")
	if err == nil || !strings.Contains(err.Error(), "it is another board") {
		t.Errorf("WriteAll = %v; want the board refused", err)
	}
}

// A card in this machine's reader is written from the image that the package makes,
// through the same pipeline as all disks.
func TestCardOfAPackage(t *testing.T) {
	j := newJetsons(t, nil)
	j.spec.Flash.Kinds = []string{device.File}
	out := filepath.Join(t.TempDir(), "card.img")
	receipts, said, err := j.flash(t.Context(), Options{}, out)
	if err != nil || len(receipts) != 1 {
		t.Fatalf("WriteAll = %v, %v", receipts, err)
	}
	data := read(t, out)
	if len(data) < 64*mib || !bytes.HasPrefix(data, []byte("xxxx")) || !strings.Contains(said, ".sdcard") {
		t.Errorf("the card has %d bytes and begins with %q; shown was %q", len(data), data[:4], said)
	}
	if strings.Contains(j.left(t), workDirPrefix) {
		t.Errorf("left is %q", j.left(t))
	}
	// The same package by name.
	named := Options{Image: j.artifact.Path(j.artifact.Files[0])}
	j.artifact.Files = nil
	if _, _, err := j.flash(t.Context(), named, filepath.Join(t.TempDir(), "card.img")); err != nil {
		t.Errorf("with --image: %v", err)
	}
}

func TestFolderThatScriptsCannotUse(t *testing.T) {
	j := newJetsons(t, map[string]string{"1-2": "SUCCESS"})
	t.Setenv("XDG_STATE_HOME", filepath.Join(t.TempDir(), "my state"))
	if _, _, err := j.flash(t.Context(), Options{DryRun: true}, "usb:1-2"); err == nil || !strings.Contains(err.Error(), "space in its name") {
		t.Errorf("WriteAll = %v; want the folder refused", err)
	}
}

// What a killed flash left goes with the next.
func TestBenchesOfKilledJobs(t *testing.T) {
	j := newJetsons(t, map[string]string{"1-2": "SUCCESS"})
	home := stateHome(t)
	dead, alive, young := filepath.Join(home, workDirPrefix+"1"), filepath.Join(home, workDirPrefix+"2"), filepath.Join(home, workDirPrefix+"3")
	for _, dir := range []string{dead, alive, young} {
		lay(t, filepath.Join(dir, "lock"), "")
	}
	held, err := os.Open(filepath.Join(alive, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := localfile.TryLock(held); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{dead, alive} {
		if err := os.Chtimes(dir, time.Unix(1, 0), time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := j.flash(t.Context(), Options{DryRun: true}, "usb:1-2"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dead); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is still there", dead)
	}
	for _, dir := range []string{alive, young} {
		if _, err := os.Stat(dir); err != nil {
			t.Error(err)
		}
	}
}

// A package is unpacked where nobody else can write.
func TestPackageIsUnpackedInPrivate(t *testing.T) {
	j := newJetsons(t, map[string]string{"1-2": "SUCCESS"})
	var found []string
	_, _, err := j.flash(t.Context(), Options{Confirm: func([]device.Device) error {
		found, _ = filepath.Glob(filepath.Join(stateHome(t), workDirPrefix+"*", "package", "initrd-flash"))
		if left := j.left(t); strings.Contains(left, workDirPrefix) {
			t.Errorf("beside the artifact: %s", left)
		}
		for _, dir := range []string{stateHome(t), filepath.Join(stateHome(t), workDirPrefix+"*")} {
			dirs, _ := filepath.Glob(dir)
			if info, err := os.Stat(dirs[0]); err != nil || info.Mode().Perm() != 0o700 {
				t.Errorf("%s: %v, %v; want mode 0700", dir, info, err)
			}
		}
		return nil
	}}, "usb:1-2")
	if err != nil || len(found) != 1 {
		t.Errorf("WriteAll = %v; unpacked below the state folder: %v", err, found)
	}
	if left, _ := filepath.Glob(filepath.Join(stateHome(t), workDirPrefix+"*")); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
}

// The relay may hang on another machine, where a real sshd runs its command.
func TestForceRecoveryOverSSH(t *testing.T) {
	if _, err := os.Stat(sshd.Program); err != nil {
		t.Skip("sshd is missing (Debian package openssh-server)")
	}
	server, err := sshd.New(t.TempDir())
	if err == nil {
		err = server.Start(context.WithoutCancel(t.Context()))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	before := reachRelay
	t.Cleanup(func() { reachRelay = before })
	reachRelay = func(ctx context.Context, host string) (*boardssh.Conn, error) {
		if host != "pi@rack" {
			return nil, fmt.Errorf("asked for %q", host)
		}
		me, err := user.Current()
		if err != nil {
			return nil, err
		}
		return boardssh.Dial(ctx, boardssh.Address{
			Host: "127.0.0.1", Port: server.Port, User: me.Username, KnownHosts: []string{server.KnownHosts}, Identities: []string{server.Identity},
		})
	}
	j := newJetsons(t, nil)
	relay := filepath.Join(t.TempDir(), "a relay; with 'words'")
	lay(t, relay, `#!/bin/sh
[ -n "$SSH_CONNECTION" ] || exit 1
mkdir -p "$2/bus/usb/devices/$1" && cd "$2/bus/usb/devices/$1" || exit 1
echo 0955 > idVendor; echo 7523 > idProduct; echo 12 > devnum
echo SUCCESS > "$3/$1"
`)
	j.spec.Flash.Recovery.SSH, j.spec.Flash.Recovery.Command = "pi@rack", []string{relay, "{port}", j.sys, j.boards}
	forced := Options{Yes: []string{"usb:1-4"}, ForceRecovery: true}
	receipts, said, err := j.flash(t.Context(), forced, "usb:1-4")
	if err != nil || len(receipts) != 1 || !strings.Contains(said, "on pi@rack by: ") {
		t.Errorf("WriteAll = %v, %v, shown %q", receipts, err, said)
	}
	j.spec.Flash.Recovery.Command = []string{"sh", "-c", `printf 'no such relay\033[2J\n' >&2; exit 3`}
	if _, _, err := j.flash(t.Context(), forced, "usb:1-4"); err == nil || !strings.Contains(err.Error(), "exit status 3: no such relay[2J") {
		t.Errorf("with a command that fails: %v", err)
	}
	j.spec.Flash.Recovery.SSH = "pi@elsewhere"
	if _, _, err := j.flash(t.Context(), forced, "usb:1-4"); err == nil || !strings.Contains(err.Error(), `force recovery mode: asked for "pi@elsewhere"`) {
		t.Errorf("with another machine: %v", err)
	}
}

// What would have no effect is refused, before anything is unpacked.
func TestOptionsOfOtherDevices(t *testing.T) {
	j := newJetsons(t, map[string]string{"1-2": "SUCCESS"})
	j.spec.Flash.Kinds = append(j.spec.Flash.Kinds, device.File)
	card := filepath.Join(t.TempDir(), "card.img")
	for _, tt := range []struct {
		device string
		o      Options
		want   string
	}{
		{"usb:1-2", Options{Blind: true}, "leave --block-map, --holes and --blind out"},
		{"usb:1-2", Options{Holes: "discard"}, "leave --block-map, --holes and --blind out"},
		{"usb:1-2", Options{Config: "bf.cfg"}, "leave --config out"},
		{card, Options{Config: "bf.cfg"}, "leave --config out"},
		{card, Options{ForceRecovery: true}, "leave --force-recovery out"},
		{card, Options{PKC: "pkc.pem"}, "leave --pkc and --sbk out"},
		{"usb:1-4", Options{PKC: "missing.pem"}, "missing.pem"},
	} {
		tt.o.DryRun = true
		if _, _, err := j.flash(t.Context(), tt.o, tt.device); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s with %+v: %v; want an error with %q", tt.device, tt.o, err, tt.want)
		}
	}
}

func TestForcedPortIsNone(t *testing.T) {
	j := newJetsons(t, nil)
	j.spec.Flash.Recovery.Command = []string{"relay"}
	if _, said, err := j.flash(t.Context(), Options{DryRun: true, ForceRecovery: true}, "usb:../1-2"); err == nil || !strings.Contains(err.Error(), "is no USB port") {
		t.Errorf("WriteAll = %v, shown %q; want the port refused", err, said)
	}
}

func TestBenchesInAFolderWithBrackets(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "build[1]")
	old := filepath.Join(dir, workDirPrefix+"1")
	lay(t, filepath.Join(old, "lock"), "")
	if err := os.Chtimes(old, time.Unix(1, 0), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	sweepWorkDirs(dir)
	if _, err := os.Stat(old); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is still there: %v", old, err)
	}
}

// nanos are boards whose scripts do not say which one is meant. The script fails where
// it finds another at work.
func nanos(t *testing.T, boards map[string]string) *jetsons {
	t.Helper()
	j := newJetsons(t, nil)
	for port, word := range boards {
		j.plug(t, port, "7f21", "5")
		lay(t, filepath.Join(j.boards, port), word)
	}
	j.spec.Flash.Chip = "t210"
	j.artifact = j.build(t, map[string]string{
		"bsp_version": "BSP_BRANCH=32\nBSP_MAJOR=7\nBSP_MINOR=6\n", "flash.xml.in": jetsonLayout, "tegra210-flash-helper.sh": "",
		"doflash.sh": strings.ReplaceAll(strings.ReplaceAll(`#!/bin/sh
# $@
mkdir @BOARDS@/busy || exit 1
sleep 0.2
echo "Board ID(3448) version(400)"
echo "Sending bootloader and pre-requisite binaries"
echo "Writing partition APP with image.img"
rm -r @SYS@/bus/usb/devices/$2
rmdir @BOARDS@/busy
`, "@BOARDS@", j.boards), "@SYS@", j.sys),
	})
	return j
}

func TestNanosBesideEachOther(t *testing.T) {
	j := nanos(t, map[string]string{"1-1": "", "1-2": ""})
	ports := []string{"usb:1-1", "usb:1-2"}
	_, said, err := j.flash(t.Context(), Options{Yes: ports}, ports...)
	if err == nil || !strings.Contains(err.Error(), "Jetson Nano in recovery mode on 1-2") || strings.Contains(said, "will be replaced") {
		t.Errorf("WriteAll = %v, shown %q; want them refused before anything is asked", err, said)
	}
}

// Relays bring such boards into recovery mode one after another.
func TestNanosInARow(t *testing.T) {
	j := nanos(t, nil)
	relay := filepath.Join(t.TempDir(), "relay")
	lay(t, relay, `#!/bin/sh
mkdir -p "$2/bus/usb/devices/$1" && cd "$2/bus/usb/devices/$1" || exit 1
echo 0955 > idVendor; echo 7f21 > idProduct; echo 12 > devnum
`)
	j.spec.Flash.Recovery.Command = []string{relay, "{port}", j.sys}
	ports := []string{"usb:1-4", "usb:1-5"}
	receipts, _, err := j.flash(t.Context(), Options{Yes: ports, ForceRecovery: true}, ports...)
	if err != nil || len(receipts) != 2 {
		t.Errorf("WriteAll = %v, %v; want both flashed", receipts, err)
	}
}
