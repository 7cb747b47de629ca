package tegra

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"slipway/layers/run"
)

func transcriptFile(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata/transcripts", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// host is a machine of a test's own, with a Jetson of a product on a port.
func host(t *testing.T, port, product string) (Host, bus) {
	t.Helper()
	b := newBus(t)
	b.plug(port, nvidiaVendor, product, "7")
	proc := t.TempDir()
	if err := os.MkdirAll(filepath.Join(proc, "self"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(proc, "self/mountinfo"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return Host{Sys: b.sys, Proc: proc, Run: t.TempDir()}, b
}

func open(t *testing.T, files map[string]string) *Package {
	t.Helper()
	p, err := Open(pack(t, files))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestFlash(t *testing.T) {
	orin36 := transcriptFile(t, "orin-r36.txt")
	thor39, nano32 := transcriptFile(t, "thor-r39.txt"), transcriptFile(t, "nano-r32.txt")
	replaced := func(old, put string) string {
		if !strings.Contains(orin36, old) {
			t.Fatalf("the transcript lacks %q", old)
		}
		return strings.Replace(orin36, old, put, 1)
	}
	before := func(mark string, lines ...string) string {
		head, _, ok := strings.Cut(orin36, mark)
		if !ok {
			t.Fatalf("the transcript lacks %q", mark)
		}
		return head + strings.Join(lines, "\n") + "\n"
	}
	tests := []struct {
		name       string
		files      map[string]string
		product    string
		transcript string
		want       []string // in the error; none: it went well
	}{
		{"Orin", orin(), "7523", orin36, nil},
		{"Thor", thor(), "7026", thor39, nil},
		{"Nano", nano(), "7f21", nano32, nil},
		{"the board failed and the script did not mind", orin(), "7523", transcriptFile(t, "orin-r36-failed.txt"), []string{"the board reports: FAILED", "logs: "}},
		{"the board said nothing", orin(), "7523", replaced("Final status: SUCCESS", "Final status: "), []string{"the board reports: (nothing)"}},
		{"a board that is still waiting", orin(), "7523", replaced("SUCCESS", "PENDING: expecting command sequence from host"), []string{"PENDING: expecting"}},
		{"no word of the board", orin(), "7523", replaced("Final status: SUCCESS\n", ""), []string{"did not say what came of it"}},
		{"broken table, though success", orin(), "7523", replaced("No problems found.", "Identified 2 problems!"), []string{"export-nvme0n1.log says: Identified 2 problems!"}},
		{"boot flash failed, though success", orin(), "7523", replaced("Erasing /dev/mtd0", "ERR: SPI boot device, but /dev/mtd0 device does not exist"), []string{"bootloader.log says: ERR: SPI boot device"}},
		{"ended in the middle, well", orin(), "7523", before("== Step 4"), []string{"did not say what came of it"}},
		{"nothing at all", orin(), "7523", "", []string{"did not say"}},
		{"Thor's tool fails, the script does not", thor(), "7026", strings.Replace(thor39, "Finished at", "slipway: status 1: tee -a \"$logfile\"\nFinished at", 1), []string{"a command of the script failed, and the script went on: status 1"}},
		{"Thor ended early", thor(), "7026", strings.Replace(thor39, "== Step 5", "Step 5", 1), []string{"ended while laying out NVIDIA's tools"}},
		{"Nano ended early", nano(), "7f21", strings.Replace(nano32, "Writing partition", "Reading partition", 2), []string{"ended while sending the boot loader"}},
		{"USB write", orin(), "7523", before("== Step 2", "@log [   0.1213 ] ERROR: might be timeout in USB write.", "ERR: chip_info.bin_bak missing after dumping boardinfo", "ERR: signing failed at now", "@exit 1"), []string{"while signing", "exit status 1", "stopped taking data in the middle", "USB 2 port"}},
		{"no storage on the board", orin(), "7523", before("Creating partitions", "Waiting for USB storage device nvme0n1 from ecf55839....[got flashpkg when expecting nvme0n1]", "ERR: could not find nvme0n1", "Final status: FAILED", "Successfully finished at now"), []string{"could not export its storage"}},
		{"full disk", orin(), "7523", before("Creating partitions", "cp: error writing 'x': No space left on device", "@exit 1"), []string{"the package's copy is full", "while writing partitions"}},
		{"sgdisk", orin(), "7523", before("  [02]", "ERR: 'sgdisk' command not found. Please install the 'gdisk' package.", "@exit 1"), []string{"apt install gdisk"}},
		{"serial number", orin(), "7523", before("== Step 3", "./initrd-flash: line 477: printf: ABC123: invalid number", "@exit 1"), []string{"serial number is no number"}},
		{"other chip", orin(), "7e19", orin36, []string{"Jetson Xavier NX (t194)", "built for another board"}},
		{"a serial number that both sides take for the same", orin(), "7523", replaced("== Step 3", "./initrd-flash: line 477: printf: 14X: invalid number\nslipway: status 1: session_id\n== Step 3"), nil},
		{"escape sequences", orin(), "7523", replaced("SUCCESS", "BAD\x1b[2J\x1b]0;x\a"), []string{"the board reports: BAD[2J]0;x"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := open(t, tt.files)
			name := "initrd-flash"
			if p.Flow == Direct {
				name = "doflash.sh"
			}
			if err := run.WriteProgram(filepath.Join(p.Dir, name), []byte(script(t, tt.transcript)), 0o755); err != nil {
				t.Fatal(err)
			}
			h, _ := host(t, "1-2.3", tt.product)
			logs := filepath.Join(t.TempDir(), "logs")
			got, err := p.Flash(t.Context(), h, Board{Port: "1-2.3", Dir: p.Dir, Logs: logs})
			if len(tt.want) == 0 {
				if err != nil || got.Verdict == "" {
					t.Fatalf("Flash = %+v, %v; want it to go well", got, err)
				}
				if data, err := os.ReadFile(filepath.Join(logs, "output.log")); err != nil || len(data) == 0 {
					t.Errorf("no log is kept: %v", err)
				}
				return
			}
			for _, want := range append(tt.want, "USB port 1-2.3") {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Fatalf("Flash = %v; want an error with %q", err, want)
				}
			}
		})
	}
}

// Variables of the user's shell do not reach the scripts.
func TestFlashHasItsOwnEnvironment(t *testing.T) {
	for _, name := range []string{"BOARDID", "serial_number", "RAMCODE"} {
		t.Setenv(name, "of another board")
	}
	p := open(t, orin())
	transcript := "@echo-args\n" + transcriptFile(t, "orin-r36.txt")
	if err := run.WriteProgram(filepath.Join(p.Dir, "initrd-flash"), []byte(script(t, transcript)), 0o755); err != nil {
		t.Fatal(err)
	}
	h, _ := host(t, "1-2.3", "7523")
	logs := t.TempDir()
	board := Board{Port: "1-2.3", Dir: p.Dir, Logs: logs, Module: map[string]string{"BOARDID": "3767"}, Keys: Keys{"/keys/pkc.pem", "/keys/sbk.hex"}}
	if _, err := p.Flash(t.Context(), h, board); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(logs, "output.log"))
	if err != nil {
		t.Fatal(err)
	}
	want := "args: --usb-instance 1-2.3 -u /keys/pkc.pem -v /keys/sbk.hex\nBOARDID=3767\nserial_number=\nTEGRAFLASH_CHECK_USB_INSTANCE=yes\nRAMCODE=\n"
	if !bytes.HasPrefix(data, []byte(want)) {
		t.Errorf("the script saw %.200q; want %q", data, want)
	}
	for _, name := range []string{"log.initrd-flash.2026-11-22-06.00.00", "device-logs/bootloader.log"} {
		if _, err := os.Stat(filepath.Join(logs, name)); err != nil {
			t.Errorf("a log is not kept: %v", err)
		}
	}
}

// Whatever stage hangs, its limit ends it and says which it was.
func TestEachStageHasALimit(t *testing.T) {
	for _, tt := range []struct {
		files               map[string]string
		product, transcript string
	}{{orin(), "7523", "orin-r36.txt"}, {thor(), "7026", "thor-r39.txt"}, {nano(), "7f21", "nano-r32.txt"}} {
		p := open(t, tt.files)
		f := flows[p.Flow]
		for i, s := range f.stages {
			t.Run(f.name+" "+s.name, func(t *testing.T) {
				own := open(t, tt.files)
				name := filepath.Base(own.Argv("1-2.3", Keys{})[1])
				if err := run.WriteProgram(filepath.Join(own.Dir, name), []byte(script(t, upTo(t, f, i, transcriptFile(t, tt.transcript))+"@hang\n")), 0o755); err != nil {
					t.Fatal(err)
				}
				h, _ := host(t, "1-2.3", tt.product)
				limits := map[string]time.Duration{s.name: 50 * time.Millisecond}
				for _, other := range f.stages[:i] { // those before it have all the time
					limits[other.name] = time.Hour
				}
				setLimits(t, limits)
				_, err := own.Flash(t.Context(), h, Board{Port: "1-2.3", Dir: own.Dir, Logs: t.TempDir()})
				if want := s.title + " took more than 50ms"; err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("Flash = %v; want %q", err, want)
				}
				if s.hangs != "" && (err == nil || !strings.Contains(err.Error(), s.hangs)) {
					t.Errorf("Flash = %v; want %q", err, s.hangs)
				}
			})
		}
	}
}

// upTo is a transcript up to the line that begins a stage.
func upTo(t *testing.T, f flow, i int, text string) string {
	t.Helper()
	tr := newTranscript(f)
	var b strings.Builder
	for line := range strings.Lines(text) {
		if tr.at == i {
			return b.String()
		}
		b.WriteString(line)
		if !strings.HasPrefix(line, "@") {
			tr.readLine(strings.TrimRight(line, "\n"))
		}
	}
	t.Fatalf("%s never comes to stage %d", f.name, i)
	return ""
}

func TestCtrlCEndsAllThatRuns(t *testing.T) {
	p := open(t, orin())
	transcript := upTo(t, flows[Initrd], 4, transcriptFile(t, "orin-r36.txt")) + "@child\n@hang\n"
	if err := run.WriteProgram(filepath.Join(p.Dir, "initrd-flash"), []byte(script(t, transcript)), 0o755); err != nil {
		t.Fatal(err)
	}
	h, _ := host(t, "1-2.3", "7523")
	at := mounted(t, h, "1-2.3")
	ctx, cancel := context.WithCancelCause(t.Context())
	pressed := errors.New("interrupt")
	go func() {
		for ctx.Err() == nil {
			if _, err := os.Stat(filepath.Join(p.Dir, "hangs")); err == nil {
				cancel(pressed)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	_, err := p.Flash(ctx, h, Board{Port: "1-2.3", Dir: p.Dir, Logs: t.TempDir()})
	if !errors.Is(err, pressed) || !strings.Contains(err.Error(), "the board is not whole") {
		t.Errorf("Flash = %v; want the interrupt, and what to do", err)
	}
	data, err := os.ReadFile(filepath.Join(p.Dir, "child"))
	if err != nil {
		t.Fatal(err)
	}
	pid := parseCount(strings.TrimSpace(string(data)))
	if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil && !bytes.Contains(stat, []byte(") Z ")) {
		_ = unix.Kill(pid, unix.SIGKILL)
		t.Errorf("the script's child %d lives on: %s", pid, stat)
	}
	if at != "" && isMounted(t, at) {
		t.Errorf("%s is still mounted", at)
	}
}

// mounted mounts something that h regards as the command disk of a board.
func mounted(t *testing.T, h Host, port string) string {
	t.Helper()
	at := filepath.Join(t.TempDir(), "command disk")
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", at, "tmpfs", 0, "size=1m"); err != nil {
		t.Logf("nothing is mounted, which root alone can: %v", err)
		return ""
	}
	t.Cleanup(func() {
		if isMounted(t, at) {
			_ = unix.Unmount(at, unix.MNT_DETACH)
		}
	})
	disk(t, h, "8:16", "devices/usb1/1-2/"+port+"/host0/block/sdb", "flashpkg", "12345678")
	info := "36 35 8:16 / " + strings.ReplaceAll(at, " ", `\040`) + " rw - ext4 /dev/sdb rw\n40 35 8:32 / / rw - ext4 /dev/sdc rw\n"
	if err := os.WriteFile(filepath.Join(h.Proc, "self/mountinfo"), []byte(info), 0o644); err != nil {
		t.Fatal(err)
	}
	return at
}

// disk lays out a disk in h's sysfs.
func disk(t *testing.T, h Host, number, dir, vendor, model string) {
	t.Helper()
	dir = filepath.Join(h.Sys, dir)
	for name, text := range map[string]string{"vendor": vendor, "model": model} {
		if err := os.MkdirAll(filepath.Join(dir, "device"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "device", name), []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(h.Sys, "dev/block"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir, filepath.Join(h.Sys, "dev/block", number)); err != nil {
		t.Fatal(err)
	}
}

func isMounted(t *testing.T, at string) bool {
	t.Helper()
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(data), " "+strings.ReplaceAll(at, " ", `\040`)+" ")
}

func TestCommandDisk(t *testing.T) {
	h, _ := host(t, "1-2.3", "7523")
	disk(t, h, "8:0", "devices/usb1/1-2/1-2.3/host0/block/sda", "flashpkg", "0000abcd")
	disk(t, h, "8:16", "devices/usb1/1-2/1-2.4/host1/block/sdb", "flashpkg", "1111abcd")
	disk(t, h, "8:32", "devices/usb1/1-2/1-2.3/host0/block/sdc", "nvme0n1", "0000abcd")
	disk(t, h, "8:48", "devices/usb2/2-2/2-2.3/host0/block/sdd", "flashpkg", "2222abcd") // the faster bus
	for _, tt := range []struct {
		number, session string
		want            bool
	}{
		{"8:0", "", true},
		{"8:16", "", false},
		{"8:32", "", false},
		{"8:48", "", false},
		{"8:48", "2222abcd", true},
		{"8:64", "", false},
	} {
		if got := h.isCommandDisk(tt.number, "1-2.3", tt.session); got != tt.want {
			t.Errorf("commandDisk(%s, %s) = %v; want %v", tt.number, tt.session, got, tt.want)
		}
	}
}

// Two boards at once: each has its own folder, and one that fails leaves the other.
func TestTwoBoardsAtOnce(t *testing.T) {
	p := open(t, orin())
	h, b := host(t, "1-2.3", "7523")
	b.plug("1-4", nvidiaVendor, "7523", "9")
	transcripts := map[string]string{"1-2.3": transcriptFile(t, "orin-r36.txt"), "1-4": transcriptFile(t, "orin-r36-failed.txt")}
	errs := map[string]error{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for port, transcript := range transcripts {
		dir := filepath.Join(t.TempDir(), "board")
		if err := p.CopyTo(t.Context(), dir); err != nil {
			t.Fatal(err)
		}
		if err := run.WriteProgram(filepath.Join(dir, "initrd-flash"), []byte(script(t, transcript)), 0o755); err != nil {
			t.Fatal(err)
		}
		logs := t.TempDir()
		all.Go(func() {
			_, err := p.Flash(t.Context(), h, Board{Port: port, Dir: dir, Logs: logs})
			mu.Lock()
			defer mu.Unlock()
			errs[port] = err
		})
	}
	all.Wait()
	if errs["1-2.3"] != nil {
		t.Errorf("the good board: %v", errs["1-2.3"])
	}
	if err := errs["1-4"]; err == nil || !strings.Contains(err.Error(), "FAILED") {
		t.Errorf("the bad board: %v; want its report", err)
	}
	if _, err := os.Stat(filepath.Join(p.Dir, "boardvars.sh")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a script wrote into the package itself: %v", err)
	}
}

func TestPortIsLocked(t *testing.T) {
	p := open(t, orin())
	h, _ := host(t, "1-2.3", "7523")
	lock, err := h.lockPort("1-2.3")
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	_, err = p.Flash(t.Context(), h, Board{Port: "1-2.3", Dir: p.Dir, Logs: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), "another flash is at work") {
		t.Errorf("Flash on a port in use = %v; want it refused", err)
	}
}

func TestFolderWithASpace(t *testing.T) {
	p := open(t, orin())
	h, _ := host(t, "1-2.3", "7523")
	_, err := p.Flash(t.Context(), h, Board{Port: "1-2.3", Dir: "/a folder", Logs: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), "space in its name") {
		t.Errorf("Flash = %v; want it refused", err)
	}
}

func TestCopies(t *testing.T) {
	p := open(t, with(orin(), "deep/file", "x"))
	if err := os.Symlink("deep/file", filepath.Join(p.Dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(p.Dir, "boot.img"), 3<<20); err != nil { // a hole at its end
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "copy")
	if err := p.CopyTo(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"deep/file", "link", "boot.img", "image.ext4", ".env.initrd-flash"} {
		want, err := os.ReadFile(filepath.Join(p.Dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s of the copy differs: %v", name, err)
		}
	}
	theirs, err := os.Stat(filepath.Join(p.Dir, "image.ext4"))
	if err != nil {
		t.Fatal(err)
	}
	if ours, err := os.Stat(filepath.Join(dir, "image.ext4")); err != nil || !os.SameFile(ours, theirs) {
		t.Errorf("the root file system is copied, %v; want a hard link", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "boot.img"), []byte("changed"), 0o644); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(p.Dir, "boot.img")); err != nil || len(data) != 3<<20 {
		t.Errorf("a change of the copy changed the package: %d bytes, %v", len(data), err)
	}
	if err := p.CopyTo(t.Context(), dir); err == nil {
		t.Error("a copy over a copy went well")
	}
}

func TestCard(t *testing.T) {
	good := "Creating partitions\n  [01] name=APP (fills to end)\nWriting partitions\n  Writing image.ext4...\n@card\n[OK: out]\n"
	tests := []struct{ name, transcript, want string }{
		{"good", good, ""},
		{"no last word", strings.Replace(good, "[OK: out]\n", "", 1), "without saying that it is done"},
		{"fails", "Creating partitions\nERR: partitioning failed\n@exit 1\n", "did not take a partition table"},
		{"nothing made", strings.Replace(good, "@card\n", "", 1), "no such file"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := open(t, with(orin(), "dosdcard.sh", script(t, tt.transcript)))
			// The stand-in is a bash script, and dosdcard.sh is run by sh.
			out := filepath.Join(t.TempDir(), "card.img")
			err := p.Card(t.Context(), out, Board{Dir: p.Dir, Logs: t.TempDir()})
			info, statErr := os.Stat(out)
			if tt.want == "" {
				if err != nil || statErr != nil || info.Size() < 80<<20 || info.Size()%(1<<20) != 0 {
					t.Errorf("Card = %v, %v, %v; want an image", err, info, statErr)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) || statErr == nil {
				t.Errorf("Card = %v, file: %v; want an error with %q and no file", err, statErr, tt.want)
			}
			if left, _ := filepath.Glob(out + "*"); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
	p := open(t, orin())
	if err := p.CardReady(t.Context()); err == nil || !strings.Contains(err.Error(), "makes no image for a card") {
		t.Errorf("CardReady = %v; want it refused", err)
	}
}
