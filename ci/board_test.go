package ci

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"slipway/ci/deploy"
	"slipway/ci/reach"
	"slipway/ci/report"
	"slipway/ci/suite"
	"slipway/ci/suite/suitetest"
	"slipway/flash"
	"slipway/flash/boardssh"
	"slipway/flash/boardssh/boardtest"
	"slipway/flash/boardssh/container"
	"slipway/flash/boardssh/sshtest"
	"slipway/flash/device"
	"slipway/flash/flashtest"
	"slipway/images"
	"slipway/images/bmap"
)

// partitionImage adds a partition table with one small partition to an image.
func partitionImage(p []byte) []byte {
	clear(p[446:510])
	p[450], p[454], p[458], p[510], p[511] = 0x83, 1, 1, 0x55, 0xaa
	return p
}

// writeArtifact writes the artifact of a disk of 8 MiB to a board's folder.
func writeArtifact(t *testing.T, dir string, a images.Artifact) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	disk, err := os.Create(filepath.Join(dir, "disk.img"))
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	if _, err := disk.Write(partitionImage(bytes.Repeat([]byte("whatever"), 1<<20))); err != nil {
		t.Fatal(err)
	}
	blocks, err := bmap.Create(t.Context(), disk)
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if _, err := blocks.WriteTo(&text); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "disk.bmap"), text.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	for kind, name := range map[string]string{images.DiskImage: "disk.img", images.BlockMap: "disk.bmap"} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(data)
		a.Files = append(a.Files, images.File{Kind: kind, Name: name, SizeBytes: int64(len(data)), SHA256: hex.EncodeToString(sum[:])})
	}
	if err := a.Save(dir); err != nil {
		t.Fatal(err)
	}
}

// An image with a data partition gets keys. Images of bitbake have no such partition.
func TestFlashGivesKeysWhereTheyFit(t *testing.T) {
	data := []images.Partition{{Name: "data", Use: "data", OffsetBytes: 4 << 20, SizeBytes: 4 << 20}}
	for _, tt := range []struct {
		name       string
		machine    *images.Machine
		partitions []images.Partition
		keys       bool
		want       string // in the error
	}{
		{"made by bitbake", nil, nil, false, ""},
		{"with a data partition", nil, data, true, ""},
		{"virtual, without one", &images.Machine{}, nil, false, "no place for an SSH identity"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := exec.LookPath("mke2fs"); err != nil && tt.keys {
				t.Skip("mke2fs is missing (Debian package e2fsprogs)")
			}
			spec := images.Spec{Board: "toy", Machine: tt.machine, Flash: images.Flash{Kinds: []string{device.File}}}
			opt := images.Options{Dir: t.TempDir()}
			dir := opt.BoardDir(spec)
			writeArtifact(t, dir, images.Artifact{Board: "toy", Key: "0123456789abcdef", Partitions: tt.partitions})
			to := filepath.Join(t.TempDir(), "card.img")
			var out bytes.Buffer
			err := Flash(t.Context(), &out, spec, opt, []string{to}, flash.Options{}, "", true)
			if tt.want != "" {
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("Flash = %v; want %s", err, tt.want)
				}
				return
			}
			var receipts []flash.Receipt
			if err != nil || json.Unmarshal(out.Bytes(), &receipts) != nil || len(receipts) != 1 {
				t.Fatalf("Flash = %v, and wrote %q; want a receipt", err, out.String())
			}
			if info, err := os.Stat(to); err != nil || info.Size() != 8<<20 {
				t.Errorf("%s: %v, %v; want 8 MiB", to, info, err)
			}
			state, err := opt.StateDir(spec)
			if err == nil {
				_, err = os.Stat(images.ClientKeyPath(state))
			}
			if made := err == nil; made != tt.keys || (receipts[0].HostKey != "") != tt.keys {
				t.Errorf("keys made: %v, host key %q; want %v", made, receipts[0].HostKey, tt.keys)
			}
		})
	}
}

// A flash with --image needs no build and writes no keys. The receipt is in the folder where
// that of a build is.
func TestFlashImageFromElsewhere(t *testing.T) {
	spec := images.Spec{Board: "toy", Flash: images.Flash{Kinds: []string{device.File}}}
	opt := images.Options{Dir: t.TempDir(), Cache: t.TempDir()}
	image := filepath.Join(t.TempDir(), "other.img")
	data := partitionImage(bytes.Repeat([]byte("whatever"), 1<<17))
	if err := os.WriteFile(image, data, 0o644); err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), "card.img")
	var out bytes.Buffer
	if err := Flash(t.Context(), &out, spec, opt, []string{to}, flash.Options{Image: image, DryRun: true}, "", false); err != nil || out.Len() > 0 {
		t.Fatalf("dry run = %v, and printed %q; want only what Options.Out shows", err, out.String())
	}
	if err := Flash(t.Context(), &out, spec, opt, []string{to}, flash.Options{Image: image}, "", true); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(to); err != nil || !bytes.Equal(got, data) {
		t.Errorf("the virtual disk has %d bytes, %v; want the image's %d", len(got), err, len(data))
	}
	if left, err := os.ReadDir(opt.Dir); err != nil || len(left) != 0 {
		t.Errorf("the build folder holds %v, %v; want nothing", left, err)
	}
	state, err := opt.StateDir(spec)
	if err == nil {
		_, err = os.Stat(images.ReceiptPath(state))
	}
	if err != nil {
		t.Errorf("the receipt: %v", err)
	}
	if err := Flash(t.Context(), &out, spec, opt, []string{to}, flash.Options{}, "", true); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Flash without an image and a build = %v", err)
	}
}

// The JSON output has the result of each device, also if the flash failed.
func TestFlashFailsInJSON(t *testing.T) {
	spec := images.Spec{Board: "toy", Flash: images.Flash{Kinds: []string{device.File, device.Block}}}
	text := filepath.Join(t.TempDir(), "disk.wic")
	if err := os.WriteFile(text, []byte("404: Not Found"), 0o644); err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), "card.img")
	for _, tt := range []struct {
		devices []string
		image   string
		status  int
		reason  string
	}{
		{[]string{"/dev/sdzz"}, text, 6, "refused"},
		{[]string{"root@192.0.2.7:/dev/sdb", "dev/sdc"}, text, 6, "refused"},
		{[]string{to}, text, 7, "image"},
		{[]string{to}, "", 7, "image"},
	} {
		var out bytes.Buffer
		err := Flash(t.Context(), &out, spec, images.Options{Dir: t.TempDir()}, tt.devices, flash.Options{Image: tt.image}, "", true)
		var receipts []flash.Receipt
		if wrong := json.Unmarshal(out.Bytes(), &receipts); wrong != nil || len(receipts) != len(tt.devices) || report.ExitStatus(err) != tt.status {
			t.Errorf("%q: exit status %d, %v, and printed %s; want %d and a receipt of each", tt.devices, report.ExitStatus(err), err, out.String(), tt.status)
			continue
		}
		for i, r := range receipts {
			if r.Device.Path != tt.devices[i] || r.Error == "" || r.Reason != tt.reason {
				t.Errorf("receipt = %+v; want why %s failed: %s", r, tt.devices[i], tt.reason)
			}
		}
	}
}

// passed is the report of an earlier run.
var passed = report.Report{Board: "toy", Stages: []report.Stage{{Name: "smoke", Status: report.Passed}}}

// A run that fails early leaves no report of an earlier run.
func TestSmokeOfABoardThatIsOff(t *testing.T) {
	spec := images.Spec{Board: "toy", Machine: &images.Machine{}, Suites: []string{"base"}}
	opt := images.Options{Dir: t.TempDir()}
	dir := opt.BoardDir(spec)
	for _, built := range []bool{false, true} {
		if built {
			writeArtifact(t, dir, images.Artifact{Board: "toy"})
			if err := passed.Write(opt.ReportDir(spec)); err != nil {
				t.Fatal(err)
			}
		}
		r, err := SmokeOn(t.Context(), io.Discard, opt, spec, "toy", "")
		if err == nil || findStage(r, "connect").Status != report.Failed || !r.Failed() || report.ExitStatus(err) != 3 || r.Reason != report.ReasonFor(err) {
			t.Errorf("built %v: SmokeOn = %+v (%s), %v; want a failed stage, and status 3", built, r.Stages, r.Reason, err)
		}
		data, err := os.ReadFile(filepath.Join(opt.ReportDir(spec), report.ReportJUnit))
		if built != (err == nil) {
			t.Errorf("built %v: %s: %v; want it only where something was built", built, report.ReportJUnit, err)
		}
		if built && !strings.Contains(string(data), `failures="1"`) {
			t.Errorf("%s:\n%s\nwant one failure", report.ReportJUnit, data)
		}
	}
}

// Every command exits with the status for an unreachable board.
func TestStatusOfABoardThatIsNotReached(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	t.Setenv("SSH_AUTH_SOCK", "")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close() // nothing answers there
	spec, opt := images.Spec{Board: "toy", Machine: &images.Machine{}}, images.Options{Dir: t.TempDir()}
	config := sysctlConfig(t)
	archive := flashtest.Archive(t, "x.tar", flashtest.Docker(t, "x:1", flashtest.Config(v1.Platform{OS: "linux", Architecture: "amd64"}, v1.ImageConfig{})))
	for _, host := range []string{"toy", "root@" + l.Addr().String()} {
		for name, err := range map[string]error{
			"deploy config":    deploy.Config(t.Context(), io.Discard, opt, spec, host, config, deploy.ConfigOptions{}),
			"deploy container": deploy.Container(t.Context(), io.Discard, opt, spec, host, archive, deploy.ContainerOptions{}),
			"deploy run":       deploy.RunContainer(t.Context(), io.Discard, io.Discard, opt, spec, host, container.Spec{}, deploy.ContainerOptions{}),
			"deploy clean":     deploy.CleanContainers(t.Context(), io.Discard, opt, spec, host, nil, deploy.ContainerOptions{}),
			"deploy files":     deploy.Files(t.Context(), io.Discard, opt, spec, host, t.TempDir(), "/opt", deploy.FilesOptions{}),
			"deploy undo":      deploy.Undo(t.Context(), io.Discard, opt, spec, host, deploy.UndoOptions{}),
		} {
			if got := report.ExitStatus(err); got != 3 {
				t.Errorf("%s of %s: status %d, %v; want 3", name, host, got, err)
			}
			if got := report.ExitStatus(report.OfContainer(err)); got != 255 {
				t.Errorf("%s of %s as a container's: status %d; want 255", name, host, got)
			}
		}
	}
}

// The same for a board that is lost half-way: its first real command ends the connection.
func TestStatusOfABoardThatIsLost(t *testing.T) {
	t.Setenv("CI", "1") // no questions
	key, known := suitetest.StartBoard(t, `ForceCommand case "$SSH_ORIGINAL_COMMAND" in *"'true'") exec sh -c "$SSH_ORIGINAL_COMMAND" ;; esac; kill -9 $PPID`)
	if err := os.WriteFile(known, []byte("serial-7 "+key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	spec, opt := images.Spec{Board: "toy"}, images.Options{Dir: t.TempDir()}
	for name, err := range map[string]error{
		"deploy config": deploy.Config(t.Context(), io.Discard, opt, spec, "board", sysctlConfig(t), deploy.ConfigOptions{}),
		"deploy run":    deploy.RunContainer(t.Context(), io.Discard, io.Discard, opt, spec, "board", container.Spec{}, deploy.ContainerOptions{}),
		"deploy clean":  deploy.CleanContainers(t.Context(), io.Discard, opt, spec, "board", nil, deploy.ContainerOptions{}),
		"deploy files":  deploy.Files(t.Context(), io.Discard, opt, spec, "board", t.TempDir(), "/opt", deploy.FilesOptions{}),
		"deploy undo":   deploy.Undo(t.Context(), io.Discard, opt, spec, "board", deploy.UndoOptions{}),
	} {
		if got := report.ExitStatus(err); got != 3 || !strings.HasPrefix(err.Error(), "the board does not answer any more: ") {
			t.Errorf("%s: status %d, %v; want 3", name, got, err)
		}
	}
}

// The same for a board that ends every command with status 0 and runs none, which no check
// takes for a success. A suite has one check of every kind that asks the board's shell.
func TestStatusOfABoardWithoutShell(t *testing.T) {
	t.Setenv("CI", "1") // no questions
	suites := filepath.Join(t.TempDir(), "all.yml")
	if err := os.WriteFile(suites, []byte(`command: {"false": {exit-status: 0}, no-such-program: {exit-status: 0}}
file: {/etc/none: {exists: false}, /etc/passwd: {exists: true}}
kernel-param: {kernel.none: {value: ""}}
mount: {/none: {exists: false}}
package: {none: {installed: false}}
port: {"tcp:9": {listening: false}}
process: {none: {running: false}}
service: {none: {running: false, enabled: false}}
user: {none: {exists: false}}
group: {none: {exists: false}}
`), 0o644); err != nil {
		t.Fatal(err)
	}
	r := boardtest.StartRAUC(t)
	bundle := r.Make(t, boardtest.Bundle{Name: "two", Version: "2", Content: "system 2"})
	for _, shell := range []string{"true", "echo Welcome", `echo "$SSH_ORIGINAL_COMMAND" >&2`, "exit 7"} {
		key, known := suitetest.StartBoard(t, "ForceCommand "+shell)
		if err := os.WriteFile(known, []byte("serial-7 "+key+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		spec, opt := images.Spec{Board: "toy", Suites: []string{suites}}, images.Options{Dir: t.TempDir()}
		dir := opt.BoardDir(spec)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		writeArtifact(t, dir, images.Artifact{Board: "toy"})
		archive := flashtest.Archive(t, "x.tar", flashtest.Docker(t, "x:1", flashtest.Config(v1.Platform{OS: "linux", Architecture: "amd64"}, v1.ImageConfig{})))
		smoked, smokeErr := SmokeOn(t.Context(), io.Discard, opt, spec, "board", "")
		_, updateErr := Update(t.Context(), opt, spec, "board", bundle, UpdateOptions{DryRun: true, Out: io.Discard})
		for name, err := range map[string]error{
			"smoke":            smokeErr,
			"update --dry-run": updateErr,
			"deploy":           reach.WithArtifact(t.Context(), opt, spec, "board", nil),
			"deploy config":    deploy.Config(t.Context(), io.Discard, opt, spec, "board", sysctlConfig(t), deploy.ConfigOptions{}),
			"deploy container": deploy.Container(t.Context(), io.Discard, opt, spec, "board", archive, deploy.ContainerOptions{}),
			"deploy run":       deploy.RunContainer(t.Context(), io.Discard, io.Discard, opt, spec, "board", container.Spec{}, deploy.ContainerOptions{}),
			"deploy clean":     deploy.CleanContainers(t.Context(), io.Discard, opt, spec, "board", nil, deploy.ContainerOptions{}),
			"deploy files":     deploy.Files(t.Context(), io.Discard, opt, spec, "board", t.TempDir(), "/opt", deploy.FilesOptions{}),
			"deploy undo":      deploy.Undo(t.Context(), io.Discard, opt, spec, "board", deploy.UndoOptions{}),
			"deploy undo list": deploy.Undo(t.Context(), io.Discard, opt, spec, "board", deploy.UndoOptions{List: true}),
		} {
			if got := report.ExitStatus(err); got != 3 || !errors.Is(err, boardssh.ErrShell) {
				t.Errorf("%s: %s: status %d, %v; want 3, %v", shell, name, got, err, boardssh.ErrShell)
			}
		}
		if n := smoked.Counts(); n.Checks[report.Passed] > 0 || findStage(smoked, "connect").Status != report.Failed {
			t.Errorf("%s: %d checks passed, stages %v", shell, n.Checks[report.Passed], smoked.Stages)
		}
	}
}

// One limit holds for a board that is silent from the beginning, from its second program on, or
// in its SFTP server.
func TestStatusOfABoardThatIsSilent(t *testing.T) {
	t.Setenv("CI", "1") // no questions
	t.Setenv(boardssh.SilenceVariable, "1s")
	r := boardtest.StartRAUC(t)
	bundle := r.Make(t, boardtest.Bundle{Name: "two", Version: "2", Content: "system 2"})
	for name, setting := range map[string]string{
		"all":   "ForceCommand sleep 1000",
		"later": `ForceCommand case "$SSH_ORIGINAL_COMMAND" in *"'true'") exec sh -c "$SSH_ORIGINAL_COMMAND" ;; esac; exec sleep 1000`,
		"sftp":  `Subsystem sftp sleep 1000`,
	} {
		key, known := suitetest.StartBoard(t, setting)
		if err := os.WriteFile(known, []byte("serial-7 "+key+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		spec, opt := images.Spec{Board: "toy", Suites: suite.Names()[:1]}, images.Options{Dir: t.TempDir()}
		began := time.Now()
		local := t.TempDir()
		sshtest.WriteTree(t, local, map[string]string{"file": "content"})
		errs := map[string]error{"deploy files": deploy.Files(t.Context(), io.Discard, opt, spec, "board", local, t.TempDir()+"/new", deploy.FilesOptions{})}
		if name != "sftp" {
			_, errs["update --dry-run"] = Update(t.Context(), opt, spec, "board", bundle, UpdateOptions{DryRun: true, Out: io.Discard})
		}
		for command, err := range errs {
			if got := report.ExitStatus(err); got != 3 || !errors.Is(err, boardssh.ErrSilent) {
				t.Errorf("%s: %s: status %d, %v; want 3, %v", name, command, got, err, boardssh.ErrSilent)
			}
		}
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("%s: both took %v; want a few seconds", name, took)
		}
	}
}

func sysctlConfig(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "lab.yml")
	if err := os.WriteFile(file, []byte("sysctl: {net.core.rmem_max: 7}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// An error in board.yml does not count as an unreachable board.
func TestStatusOfABoardYMLThatIsWrong(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	t.Setenv("SSH_AUTH_SOCK", "")
	spec, opt := images.Spec{Board: "toy"}, images.Options{Dir: t.TempDir()}
	spec.SSH.HostCA = "nobody.pub"
	for name, err := range map[string]error{
		"deploy config": deploy.Config(t.Context(), io.Discard, opt, spec, "root@127.0.0.1", sysctlConfig(t), deploy.ConfigOptions{}),
		"deploy files":  deploy.Files(t.Context(), io.Discard, opt, spec, "root@127.0.0.1", t.TempDir(), "/opt", deploy.FilesOptions{}),
		"deploy undo":   deploy.Undo(t.Context(), io.Discard, opt, spec, "root@127.0.0.1", deploy.UndoOptions{}),
	} {
		if got := report.ExitStatus(err); got != 5 {
			t.Errorf("%s: status %d, %v; want 5", name, got, err)
		}
	}
}

// Up writes its report last. If Up is killed, no earlier report may remain.
func TestReportIsRemovedFirst(t *testing.T) {
	dir := t.TempDir()
	for range 2 { // the second time there is no report
		if err := report.Remove(dir); err != nil {
			t.Fatal(err)
		}
	}
	if err := passed.Write(dir); err != nil {
		t.Fatal(err)
	}
	if err := report.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%v, %v are left of a report; want nothing", left, err)
	}
}

func TestStartOfWhatIsNotVirtual(t *testing.T) {
	opt, noDisk := images.Options{Dir: t.TempDir()}, images.Spec{Board: "b", Machine: &images.Machine{}}
	if err := StartVirtual(t.Context(), io.Discard, opt, noDisk); err == nil || !strings.HasSuffix(err.Error(), "\nnext: flash b "+filepath.Join(opt.MachineDir(noDisk), "disk.img")) {
		t.Errorf("StartVirtual without a disk = %v", err)
	}
	err := StartVirtual(t.Context(), io.Discard, images.Options{Dir: t.TempDir()}, images.Spec{Board: "b"})
	if err == nil || !strings.Contains(err.Error(), "images/boards/b/board.yml describes no virtual machine") {
		t.Errorf("StartVirtual = %v; want why not", err)
	}
}

// A build that is refused on any machine is refused before packages are installed.
func TestRefusedBeforePackages(t *testing.T) {
	debian := images.Spec{Board: "b", Debian: &images.Debian{}}
	for want, spec := range map[string]images.Spec{"no task, parse or dry run": debian, "is in none": {Board: "b"}, "has no image": {Board: "b", Rig: &images.Rig{}}} {
		t.Chdir(t.TempDir())
		t.Setenv("PATH", t.TempDir()) // without dpkg-query, a look at packages fails
		_, err := Build(t.Context(), io.Discard, spec, images.Options{Dir: t.TempDir(), Request: images.BuildRequest{DryRun: true}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Build = %v; want %q in it", err, want)
		}
	}
}

// The artifact of another board is refused before any board is contacted.
func TestArtifactOfAnotherBoard(t *testing.T) {
	opt, spec := images.Options{Dir: t.TempDir()}, images.Spec{Board: "b"}
	dir := opt.BoardDir(spec)
	if err := errors.Join(os.Mkdir(dir, 0o755), images.Artifact{Board: "other"}.Save(dir)); err != nil {
		t.Fatal(err)
	}
	_, flashed := flashAll(t.Context(), spec, opt, []string{"disk.img"}, flash.Options{}, "")
	_, smoked := SmokeOn(t.Context(), io.Discard, opt, spec, "127.0.0.1:1", "")
	deployed := reach.WithArtifact(t.Context(), opt, spec, "127.0.0.1:1", nil)
	for what, err := range map[string]error{"flash": flashed, "smoke": smoked, "deploy": deployed} {
		if err == nil || !strings.Contains(err.Error(), `of board "other", not of b`) {
			t.Errorf("%s = %v; want it refused", what, err)
		}
	}
	if !errors.Is(flashed, flash.ErrImage) {
		t.Errorf("flash = %v; want %v", flashed, flash.ErrImage)
	}
}

// Keys in a supplied folder do not get onto a disk, and flash writes nothing into the folder.
func TestFlashOfAFolderWithKeys(t *testing.T) {
	if _, err := exec.LookPath("mke2fs"); err != nil {
		t.Skip("mke2fs is missing (Debian package e2fsprogs)")
	}
	spec := images.Spec{Board: "toy", Flash: images.Flash{Kinds: []string{device.File}}}
	opt := images.Options{Dir: t.TempDir()}
	dir := opt.BoardDir(spec)
	writeArtifact(t, dir, images.Artifact{Board: "toy", Key: "0123456789abcdef", Partitions: []images.Partition{{Use: "data", OffsetBytes: 4 << 20, SizeBytes: 4 << 20}}})
	if _, err := flash.NewIdentity(dir); err != nil {
		t.Fatal(err)
	}
	before := readTree(t, dir)
	to := filepath.Join(t.TempDir(), "card.img")
	if err := Flash(t.Context(), io.Discard, spec, opt, []string{to}, flash.Options{Out: io.Discard}, "", true); err != nil {
		t.Fatal(err)
	}
	state, err := opt.StateDir(spec)
	if err != nil {
		t.Fatal(err)
	}
	disk, err := os.ReadFile(to)
	for path, want := range map[string]bool{images.ClientKeyPath(dir) + ".pub": false, images.ClientKeyPath(state) + ".pub": true} {
		key, kerr := os.ReadFile(path)
		if err != nil || kerr != nil || bytes.Contains(disk, key) != want {
			t.Errorf("the disk has the key %s: %v, %v, %v; want %v", path, !want, err, kerr, want)
		}
	}
	if after := readTree(t, dir); !maps.Equal(before, after) {
		t.Errorf("the folder has %q; want it as it was", after)
	}
}

// An artifact without a data partition is an error, and a dry run leaves no key.
func TestFlashNeedsDataPartition(t *testing.T) {
	spec, err := images.Load("virt")
	if err != nil {
		t.Fatal(err)
	}
	opt := images.Options{Dir: t.TempDir()}
	dir := opt.BoardDir(spec)
	for name, partitions := range map[string][]images.Partition{"none": nil, "data": {{Use: "data", OffsetBytes: 4 << 20, SizeBytes: 4 << 20}}} {
		writeArtifact(t, dir, images.Artifact{Board: "virt", Partitions: partitions})
		_, err := flashAll(t.Context(), spec, opt, []string{filepath.Join(dir, "a.img")}, flash.Options{DryRun: true}, "")
		if name == "none" && !errors.Is(err, flash.ErrImage) || name == "data" && err != nil {
			t.Errorf("%s: flash = %v; want only an artifact without one refused", name, err)
		}
		state, err := opt.StateDir(spec)
		_, made := os.Stat(state)
		_, beside := os.Stat(images.ClientKeyPath(dir))
		if err != nil || made == nil || beside == nil {
			t.Errorf("%s: a dry run made keys in %s or %s, %v", name, state, dir, err)
		}
	}
}

// A stage says what an error's own last line says to do.
func TestStageNextOfError(t *testing.T) {
	for err, want := range map[string][2]string{
		"it is on\nnext: virt stop virt":       {"it is on", "virt stop virt"},
		"reach it: refused\n  next: ssh -v it": {"reach it: refused", "ssh -v it"},
		"it is on":                             {"it is on", "of the stage"},
		"next: x\nmore":                        {"next: x\nmore", "of the stage"},
		"off\nit printed:\nnext: rm -rf /":     {"off\nit printed:\nnext: rm -rf /", "of the stage"},
	} {
		var r report.Report
		_ = runStage(t.Context(), &r, stage{"flash", func(context.Context) (string, error) { return "", errors.New(err) }, "of the stage"})
		if got := [2]string{r.Stages[0].Saw, r.Stages[0].Next}; got != want {
			t.Errorf("%q: saw and next are %q; want %q", err, got, want)
		}
	}
}

// If the board is lost during a stage, the next step is about the connection, and not about
// a failed check.
func TestStageOfLostBoard(t *testing.T) {
	for want, err := range map[string]error{suite.LostNext: report.Because(t.Context(), report.ErrUnreachable, io.EOF), "each check says": report.ErrFailed} {
		var r report.Report
		_ = runStage(t.Context(), &r, stage{"smoke", func(context.Context) (string, error) { return "", err }, "each check says"})
		if got := r.Stages[0].Next; got != want {
			t.Errorf("%v: next is %q; want %q", err, got, want)
		}
	}
}

// A board that is wrong hides no other.
func TestListBoardsWithAWrongOne(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(images.BoardsVariable, dir)
	for name, text := range map[string]string{"a": "extends: virt\ndescription: ours\n", "b": "extnds: virt\n"} {
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, name), 0o755), os.WriteFile(filepath.Join(dir, name, "board.yml"), []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for _, asJSON := range []bool{false, true} {
		var out bytes.Buffer
		err := ListBoards(&out, asJSON)
		if err == nil || !strings.Contains(err.Error(), "b/board.yml:1:1: unknown key") || !strings.Contains(out.String(), "ours") {
			t.Errorf("ListBoards = %v\n%s", err, out.String())
		}
	}
}

// A flash that could not begin leaves no folder behind.
func TestFlashOfNoImageLeavesNothing(t *testing.T) {
	t.Chdir(t.TempDir())
	spec, err := images.Load("qemuarm64")
	if err != nil {
		t.Fatal(err)
	}
	err = Flash(t.Context(), io.Discard, spec, images.Options{Dir: "build"}, []string{"disk.img"}, flash.Options{Image: "none.img"}, "", false)
	if left, _ := os.ReadDir("."); err == nil || len(left) > 0 {
		t.Errorf("Flash = %v, and leaves %v", err, left)
	}
}
