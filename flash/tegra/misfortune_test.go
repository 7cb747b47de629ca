package tegra

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"slipway/layers/localfile"
)

// A folder's name may have what means something in a pattern: what the logs in it say
// counts all the same.
func TestFoldersWithBrackets(t *testing.T) {
	broken := strings.Replace(transcriptFile(t, "orin-r36.txt"), "No problems found.", "Identified 2 problems!", 1)
	dir := filepath.Join(t.TempDir(), "build[1]")
	p := open(t, with(orin(), "initrd-flash", script(t, broken)))
	if err := p.CopyTo(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	h, _ := host(t, "1-2.3", "7523")
	logs := filepath.Join(t.TempDir(), "logs[a")
	_, err := p.Flash(t.Context(), h, Board{Port: "1-2.3", Dir: dir, Logs: logs})
	if err == nil || !strings.Contains(err.Error(), "Identified 2 problems!") {
		t.Errorf("Flash = %v; want what the board's log says", err)
	}
	if _, err := os.Stat(filepath.Join(logs, "device-logs/bootloader.log")); err != nil {
		t.Errorf("a log is not kept: %v", err)
	}
}

func TestKnownFailureInALogOfAFolderWithBrackets(t *testing.T) {
	p := open(t, with(orin(), "initrd-flash", script(t, "@log ERROR: might be timeout in USB write.\n@exit 1\n")))
	h, _ := host(t, "1-2.3", "7523")
	_, err := p.Flash(t.Context(), h, Board{Port: "1-2.3", Dir: p.Dir, Logs: filepath.Join(t.TempDir(), "[logs]")})
	if err == nil || !strings.Contains(err.Error(), "stopped taking data") {
		t.Errorf("Flash = %v; want what it is", err)
	}
}

// In /run/lock the kernel keeps even root from creating a file over another user's.
func TestLockOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give a file to another user: run as root")
	}
	t.Setenv("TMPDIR", t.TempDir())
	h := Host{Run: t.TempDir()}
	path := filepath.Join(h.Run, "lock", "slipway-usb-1-2")
	err := errors.Join(os.Mkdir(filepath.Dir(path), 0o777), os.Chmod(filepath.Dir(path), 0o777|os.ModeSticky), os.WriteFile(path, nil, 0o644), os.Chown(path, 65534, 65534))
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	if err := localfile.TryLock(theirs); err != nil {
		t.Fatal(err)
	}
	lock, err := h.lockPort("1-2")
	if lock != nil {
		lock.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "another flash is at work") {
		t.Errorf("lock: %v; want that another user's flash is seen", err)
	}
}

// Where this process is killed, its script may still be at work.
func TestScriptHoldsTheLock(t *testing.T) {
	p := open(t, with(orin(), "initrd-flash", "#!/bin/bash\nreadlink /proc/$$/fd/3\n"))
	h, _ := host(t, "1-2.3", "7523")
	logs := t.TempDir()
	_, flashErr := p.Flash(t.Context(), h, Board{Port: "1-2.3", Dir: p.Dir, Logs: logs})
	data, err := os.ReadFile(filepath.Join(logs, "output.log"))
	if err != nil || !strings.HasSuffix(strings.TrimSpace(string(data)), "/slipway-usb-1-2.3") {
		t.Errorf("the script's lock is %q, %v (Flash: %v)", data, err, flashErr)
	}
}

func TestFlashOfNoPort(t *testing.T) {
	p := open(t, orin())
	h, _ := host(t, "1-2.3", "7523")
	_, err := p.Flash(t.Context(), h, Board{Port: "1-2/../../../x", Dir: p.Dir, Logs: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), "is no USB port") {
		t.Errorf("Flash = %v; want the port refused", err)
	}
	if left, err := os.ReadDir(h.Run); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}

// The head of a sparse image can say more than a number of 64 bits with a sign holds.
func TestSparseImageOfAllBlocks(t *testing.T) {
	head := []byte(simg(4096))
	copy(head[12:20], "\xff\xff\xff\xff\xff\xff\xff\xff")
	p := open(t, with(orin(), "image.ext4", string(head)))
	if err := p.Check(); err == nil || !strings.Contains(err.Error(), "its file image.ext4 needs 9223372036854775807") {
		t.Errorf("Check = %v; want the file refused", err)
	}
}

func TestVarsAreForPrint(t *testing.T) {
	for _, text := range []string{"A='\u009b2J'", "A=\"\u202egpj\"", "A='\xff'"} {
		if vars, err := parseVars(text); err == nil || !strings.Contains(err.Error(), "not for print") {
			t.Errorf("parseVars(%q) = %q, %v; want it refused", text, vars, err)
		}
	}
}

func TestCopyEndsWithTheContext(t *testing.T) {
	pressed := errors.New("interrupt")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(pressed)
	dir := filepath.Join(t.TempDir(), "copy")
	if err := open(t, orin()).CopyTo(ctx, dir); !errors.Is(err, pressed) {
		t.Errorf("CopyTo = %v; want %v", err, pressed)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a part of the copy is left: %v", err)
	}
}

// The doflash.sh of a package signed at build time may flash any board.
func TestSignedPackageBesideAnotherBoard(t *testing.T) {
	transcript := strings.Replace(script(t, transcriptFile(t, "nano-r32.txt")), ` "$@"`, "", 1)
	files := without(with(nano(), "doflash.sh", transcript), "tegra210-flash-helper.sh")
	p := open(t, with(files, "tegra186-flash-helper.sh", ""))
	h, b := host(t, "1-2.3", "7c18")
	flash := func() error {
		_, err := p.Flash(t.Context(), h, Board{Port: "1-2.3", Dir: p.Dir, Logs: t.TempDir()})
		return err
	}
	if err := flash(); err != nil {
		t.Errorf("alone: %v", err)
	}
	b.plug("1-4", nvidiaVendor, "7023", "9")
	if err := flash(); err == nil || !strings.Contains(err.Error(), "Jetson AGX Orin 64GB in recovery mode on 1-4") {
		t.Errorf("beside another: %v; want it refused", err)
	}
}

// The helper of tegra210 asks for the chip without saying which board is meant.
func TestNanoBesideAnotherBoard(t *testing.T) {
	files := with(with(nano(), "initrd-flash", ""), "initrd-flash.img", "")
	for name, files := range map[string]map[string]string{
		Direct: nano(),
		Initrd: with(files, ".env.initrd-flash", "CHIPID=0x21\nFLASH_HELPER=tegra210-flash-helper.sh\n"),
	} {
		t.Run(name, func(t *testing.T) {
			script := script(t, "@file ran here\n")
			p := open(t, with(with(files, "doflash.sh", script+"# $@"), "initrd-flash", script))
			h, b := host(t, "1-2.3", "7f21")
			b.plug("1-4", nvidiaVendor, "7721", "9")
			_, err := p.Flash(t.Context(), h, Board{Port: "1-2.3", Dir: p.Dir, Logs: t.TempDir()})
			if err == nil || !strings.Contains(err.Error(), "Jetson TX1 in recovery mode on 1-4") || p.hasFile("ran") {
				t.Errorf("Flash = %v, script ran: %v; want it refused", err, p.hasFile("ran"))
			}
		})
	}
}

// A board leaves the bus at times during its flash.
func TestOneNanoAtATime(t *testing.T) {
	p := open(t, with(nano(), "doflash.sh", script(t, "@file ran here\n")))
	h, _ := host(t, "1-2.3", "7f21")
	other, err := h.lockAny()
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	_, err = p.Flash(t.Context(), h, Board{Port: "1-2.3", Dir: p.Dir, Logs: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), "another board is being flashed") || p.hasFile("ran") {
		t.Errorf("Flash = %v, script ran: %v; want it refused", err, p.hasFile("ran"))
	}
}
