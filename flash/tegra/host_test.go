package tegra

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"slipway/layers/run"
)

func TestCautions(t *testing.T) {
	h, b := host(t, "1-2", "7523")
	if got := h.Cautions("1-2"); len(got) != 0 {
		t.Errorf("Cautions of a good port = %q", got)
	}
	b.plug("1-2.3", nvidiaVendor, "7523", "8")
	b.set("1-2.3", "power/control", "auto")
	b.set("1-2.3", "speed", "12")
	got := strings.Join(h.Cautions("1-2.3"), "\n")
	for _, want := range []string{"behind a USB hub", "power saving", "12 Mbit/s"} {
		if !strings.Contains(got, want) {
			t.Errorf("Cautions = %q; want %q", got, want)
		}
	}
}

func TestQuietSetsARuleForAWhile(t *testing.T) {
	h, _ := host(t, "1-2", "7523")
	if undo, said := h.Quiet(t.Context()); said != "" {
		t.Errorf("without udev: %q", said)
	} else {
		undo()
	}
	rules := filepath.Join(h.Run, "udev/rules.d")
	if err := os.MkdirAll(rules, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, pid := range []int{4711, os.Getpid()} {
		if err := os.MkdirAll(filepath.Join(h.Proc, fmt.Sprint(pid)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	lives, killed := filepath.Join(rules, "99-slipway-flash-4711.1.rules"), filepath.Join(rules, "99-slipway-flash-4712.rules")
	if err := errors.Join(os.WriteFile(lives, nil, 0o644), os.WriteFile(killed, nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	first, said1 := h.Quiet(t.Context())
	undo, said2 := h.Quiet(t.Context()) // of another board, at the same time
	first()
	own := filepath.Join(rules, fmt.Sprintf("99-slipway-flash-%d.*.rules", os.Getpid()))
	found, err := filepath.Glob(own)
	if err != nil || len(found) != 1 || said1+said2 != "" {
		t.Fatalf("rules %v, %v, %q, %q; want that of the second board", found, err, said1, said2)
	}
	if data, err := os.ReadFile(found[0]); err != nil || !strings.Contains(string(data), `ENV{UDISKS_AUTO}="0"`) {
		t.Errorf("the rule is %q, %v", data, err)
	}
	undo()
	found, err = filepath.Glob(filepath.Join(rules, "*"))
	if err != nil || len(found) != 1 || found[0] != lives {
		t.Errorf("left are %v, %v; want that of the process that lives", found, err)
	}
}

func TestQuietSaysWhereItCannot(t *testing.T) {
	h, _ := host(t, "1-2", "7523")
	if err := os.WriteFile(filepath.Join(h.Run, "udev"), nil, 0o644); err != nil { // a file where a folder belongs
		t.Fatal(err)
	}
	undo, said := h.Quiet(t.Context())
	undo()
	if !strings.Contains(said, "a desktop may mount") {
		t.Errorf("Quiet says %q; want that it could not", said)
	}
}

func TestLacksNamesPackages(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"bash", "getopt", "cpp", "sgdisk", "partprobe", "udevadm", "blockdev"} {
		if err := run.WriteProgram(filepath.Join(dir, name), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
	p := &Package{Chip: "t234"}
	err := p.missingTools(t.Context(), Initrd)
	for _, want := range []string{"python3", "dtc", "apt install ", "device-tree-compiler"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("lacks = %v; want %q", err, want)
		}
	}
	if err := run.WriteProgram(filepath.Join(dir, "python3"), []byte("#!/bin/sh\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := p.missingTools(t.Context(), Initrd); err == nil || !strings.Contains(err.Error(), "python3-yaml") {
		t.Errorf("lacks without yaml = %v; want its package", err)
	}
}

// Failures that people reported to meta-tegra and jetpack-nixos, with the lines that
// follow from them: the more telling one counts, whichever comes first.
func TestReportedFailures(t *testing.T) {
	const unsigned = "cp: cannot stat 'signed/*': No such file or directory\n"
	const signing = "== Step 1: Signing binaries at now ==\n"
	tests := []struct {
		name, transcript string
		files            map[string]string
		product          string
		want             []string
	}{
		{"meta-tegra 1530", signing + unsigned + "./initrd-flash: line 292: flash.idx: No such file or directory\nERR: signing failed at now\n@exit 1\n", orin(), "7323", []string{"while signing", "signing step made no files", "log.initrd-flash"}},
		{"meta-tegra 1530, with its cause", signing + "@log cpp: command not found\n" + unsigned + "ERR: signing failed at now\n@exit 1\n", orin(), "7323", []string{"apt install cpp"}},
		{"meta-tegra 2127", signing + "@log custom-pinmux.dtsi:63:10: fatal error: ./custom-gpio.dtsi: No such file or directory\n" + unsigned + "Traceback (most recent call last):\nERR: signing failed at now\n@exit 1\n", orin(), "7623", []string{"device tree", "does not compile"}},
		{"meta-tegra 1944", "[ 13.6843 ] Applet/MB2 is not running on device.\n[ 2047.4002 ] Error: failed to get storage info\n@exit 1\n", without(orin(), "initrd-flash.img"), "7623", []string{"TEGRAFLASH_INITRD_FLASH_IMAGE"}},
		{"meta-tegra 253", "ERR: chip does not identify as tegra210 ()\n@exit 1\n", nano(), "7f21", []string{"did not answer", "recovery jumper"}},
		{"jetpack-nixos 33", "[  19.2084 ] 000000004d4d2c01: E> NV3P_SERVER: Failed to initialize partition table from GPT.\nError: Return value 8\n@exit 1\n", without(orin(), "initrd-flash.img"), "7323", []string{"earlier flash", "initrd-flash"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			script := script(t, tt.transcript)
			p := open(t, with(with(tt.files, "initrd-flash", script), "doflash.sh", script+"# $@"))
			h, _ := host(t, "1-2.3", tt.product)
			_, err := p.Flash(t.Context(), h, Board{Port: "1-2.3", Dir: p.Dir, Logs: t.TempDir()})
			for _, want := range tt.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("Flash = %v; want an error with %q", err, want)
				}
			}
		})
	}
}

// What a card needs is looked for before one is made: its scripts sign all files of the
// package, as for a board.
func TestCardLacks(t *testing.T) {
	for _, tt := range []struct {
		chip, missing string // "": nothing
		have          []string
	}{
		{"t234", "dtc; apt install device-tree-compiler", []string{"cpp", "sgdisk", "python3"}},
		{"t264", "cpp; apt install cpp", []string{"dtc", "sgdisk", "python3"}},
		{"t194", "python3; apt install python3", []string{"dtc", "cpp", "sgdisk"}},
		{"t210", "fdtput; apt install device-tree-compiler", []string{"sgdisk", "python3"}},
		{"t210", "", []string{"sgdisk", "python3", "fdtput"}},
		{"", "fdtput; apt install device-tree-compiler", []string{"dtc", "cpp", "sgdisk", "python3"}},
		{"t234", "", []string{"dtc", "cpp", "sgdisk", "python3"}},
	} {
		dir := t.TempDir()
		for _, name := range append(tt.have, "bash", "getopt") {
			if err := run.WriteProgram(filepath.Join(dir, name), []byte("#!/bin/sh\n"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		t.Setenv("PATH", dir)
		p := open(t, with(orin(), "dosdcard.sh", ""))
		p.Chip = tt.chip
		err := p.CardReady(t.Context())
		if got := fmt.Sprint(err); tt.missing == "" && err != nil || tt.missing != "" && !strings.HasSuffix(got, "scripts run: "+tt.missing) {
			t.Errorf("CardReady of chip %q = %v; want %q missing", tt.chip, err, tt.missing)
		}
	}
}

func shortForce(t *testing.T, d time.Duration) {
	long := forceLimit
	forceLimit = d
	t.Cleanup(func() { forceLimit = long })
}

func TestForce(t *testing.T) {
	nothing := func(context.Context) error { return nil }
	t.Run("comes", func(t *testing.T) {
		h, b := host(t, "1-9", "7523")
		if err := Force(t.Context(), h, "1-2.3", func(context.Context) error { b.plug("1-2.3", nvidiaVendor, "7523", "8"); return nil }); err != nil {
			t.Error(err)
		}
	})
	t.Run("comes anew", func(t *testing.T) {
		h, b := host(t, "1-2.3", "7523")
		if err := Force(t.Context(), h, "1-2.3", func(context.Context) error { b.set("1-2.3", "devnum", "12"); return nil }); err != nil {
			t.Error(err)
		}
	})
	t.Run("stays", func(t *testing.T) {
		shortForce(t, 50*time.Millisecond)
		h, _ := host(t, "1-2.3", "7523")
		if err := Force(t.Context(), h, "1-2.3", nothing); err == nil || !strings.Contains(err.Error(), "did not come back") {
			t.Errorf("Force = %v; want that it did nothing", err)
		}
	})
	t.Run("runs its Linux", func(t *testing.T) {
		shortForce(t, 50*time.Millisecond)
		h, _ := host(t, "1-2.3", "7020")
		if err := Force(t.Context(), h, "1-2.3", nothing); err == nil || !strings.Contains(err.Error(), "runs its Linux") {
			t.Errorf("Force = %v; want what is there instead", err)
		}
	})
	t.Run("command fails", func(t *testing.T) {
		h, _ := host(t, "1-2.3", "7523")
		broken := errors.New("no such relay")
		if err := Force(t.Context(), h, "1-2.3", func(context.Context) error { return broken }); !errors.Is(err, broken) {
			t.Errorf("Force = %v; want %v", err, broken)
		}
	})
	t.Run("interrupted", func(t *testing.T) {
		h, _ := host(t, "1-1", "7523")
		ctx, cancel := context.WithCancelCause(t.Context())
		pressed := errors.New("interrupt")
		if err := Force(ctx, h, "1-2.3", func(context.Context) error { cancel(pressed); return nil }); !errors.Is(err, pressed) {
			t.Errorf("Force = %v; want %v", err, pressed)
		}
	})
}

func TestFilled(t *testing.T) {
	got, err := FillPort([]string{"relay", "--board={port}", "on"}, "1-2.3")
	if err != nil || strings.Join(got, " ") != "relay --board=1-2.3 on" {
		t.Errorf("FillPort = %q, %v", got, err)
	}
	if _, err := FillPort(nil, "1-2"); err == nil || !strings.Contains(err.Error(), "flash.recovery") {
		t.Errorf("FillPort of nothing = %v; want what is missing", err)
	}
}

// Each failure is one that somebody can meet: it has a line, in the words of the
// script or program that says it.
func TestFailures(t *testing.T) {
	lines := []struct{ line, means string }{
		{"ERR: CHIPID (0x23) does not match actual chip ID (0x19)", "another chip"},
		{"ERR: chip does not identify as tegra210 (0x18)", "another chip"},
		{"ERR: actual board ID 3701 does not match expected board ID 3767", "module is another one"},
		{"ERR: unrecognized chip SKU: A7", "it is newer"},
		{"ERR: Target is configured for secure boot (PKC); use -u option to specify key file", "fused"},
		{"ERR: non-production chip found", "engineering sample"},
		{"ERR: 'dtc' command not found. Please install the 'device-tree-compiler' package.", "dtc is missing"},
		{"/bin/sh: 1: dtc: not found", "dtc is missing"},
		{"ERR: 'sgdisk' command not found. Please install the 'gdisk' package.", "sgdisk is missing"},
		{"ModuleNotFoundError: No module named 'yaml'", "no yaml"},
		{"ERR: xmllint not found; install libxml2-utils", "xmllint is missing"},
		{"./initrd-flash: line 233: udisksctl: command not found", "udisksctl is missing"},
		{"sh: 1: cpp: not found", "preprocessor is missing"},
		{"./make-sdcard: line 498: partprobe: command not found", "partprobe is missing"},
		{"Error connecting to the udisks daemon: Could not connect: No such file or directory", "udisks does not run"},
		{"Error mounting /dev/sda: GDBus.Error:org.freedesktop.UDisks2.Error.NotAuthorized: Not authorized to perform operation", "may not mount"},
		{"sudo: a terminal is required to read the password; either use the -S option", "needs root"},
		{"cp: error writing 'bootloader_staging/x': No space left on device", "full"},
		{"Waiting for USB storage device nvme0n1 from 4ce67d9d....[got flashpkg when expecting nvme0n1]", "could not export"},
		{"[   0.1213 ] ERROR: might be timeout in USB write.", "stopped taking data"},
		{"ERR: chip_info.bin_bak missing after dumping boardinfo", "module's data"},
		{"./initrd-flash: line 477: printf: 1424A: invalid number", "serial number is no number"},
		{"Error: None of the bootloaders are running on device. Check the UART log.", "not in the state"},
		{"ERR: RCM boot failed at 2026-11-22T06:00:00+00:00", "not in the state"},
		{"Error: No UDC found in /sys/class/udc", "without its USB device controller"},
		{"ERR: unmount /media/me/x on device /dev/sda failed", "another program has"},
		{"ERR: could not mount USB storage for writing flashing commands", "could not be mounted"},
		{"RuntimeError: partition APP start location 40 overlaps previous partition", "layout does not fit"},
		{"ERR: chip does not identify as tegra210 ()", "did not answer"},
		{"ERR: CHIPID (0x23) does not match actual chip ID (0x)", "did not answer"},
		{"[ 2047.4002 ] Error: failed to get storage info", "only initrd-flash can write"},
		{"[  19.2084 ] 000000004d4d2c01: E> NV3P_SERVER: Failed to initialize partition table from GPT.", "table of an earlier flash"},
		{"[ 13.6843 ] Applet/MB2 is not running on device.", "not in the state"},
		{"Error: Could not find dtc", "dtc is missing"},
		{"custom-pinmux.dtsi:63:10: fatal error: ./custom-gpio.dtsi: No such file or directory", "does not compile"},
		{"Error: custom-padvoltage.dts:12.5-9 syntax error", "does not compile"},
		{"ERR: cannot find file APPFILE for partition 1", "lacks a file"},
		{"cp: cannot stat 'signed/*': No such file or directory", "signing step made no files"},
		{"./initrd-flash: line 292: flash.idx: No such file or directory", "signing step made no files"},
		{"ERR: could not initialize GPT on /dev/sda after --zap-all", "did not take a partition table"},
		{"ERR: failed to write image.ext4 to /dev/sda1", "writing to the board's storage failed"},
		{"./tegrarcm_v2: error while loading shared libraries: libxml2.so.2: cannot open shared object file", "64-bit PCs"},
		{"bash: ./mkbctpart: cannot execute binary file: Exec format error", "64-bit PCs"},
		{"ERR: No Jetson device in recovery mode found at USB 1-2", "not in recovery mode"},
		{"./initrd-flash: line 2: awk: command not found", "a program that the scripts need"},
		{"bash: /dev/bus/usb/001/007: Permission denied", "may not use"},
	}
	met := map[int]bool{}
	for _, tt := range lines {
		i := findFailure(tt.line)
		if i < 0 || !strings.Contains(failures[i].means, tt.means) {
			t.Errorf("recognise(%q) = %d; want the failure that means %q", tt.line, i, tt.means)
			continue
		}
		met[i] = true
	}
	for i, f := range failures {
		if !met[i] {
			t.Errorf("no line for failure %s", f.pattern())
		}
	}
	for _, line := range strings.Split(transcriptFile(t, "orin-r36.txt")+transcriptFile(t, "thor-r39.txt")+transcriptFile(t, "nano-r32.txt"), "\n") {
		if i := findFailure(line); i >= 0 {
			t.Errorf("a line of a good flash, %q, is taken for: %s", line, failures[i].means)
		}
	}
}

func FuzzTranscript(f *testing.F) {
	for i, name := range []string{"orin-r36.txt", "thor-r39.txt", "nano-r32.txt", "orin-r36-failed.txt"} {
		data, err := os.ReadFile(filepath.Join("testdata/transcripts", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(byte(i), string(data))
	}
	names := []string{Initrd, Unified, Direct, card}
	f.Fuzz(func(t *testing.T, which byte, text string) {
		tr := newTranscript(flows[names[int(which)%len(names)]])
		for line := range strings.Lines(text) {
			before := tr.at
			tr.readLine(strings.TrimRight(line, "\n"))
			if tr.at < before || tr.at >= len(tr.flow.stages) || tr.known >= len(failures) {
				t.Fatalf("stage %d after %d, failure %d", tr.at, before, tr.known)
			}
			if says := tr.describe(); strings.ContainsAny(says, "\n\x1b") {
				t.Fatalf("says %q", says)
			}
		}
		if tr.flow.name == Initrd && tr.findFault() == "" && (!strings.Contains(text, "Final status:") || !strings.Contains(text, "SUCCESS")) {
			t.Errorf("%s is taken for a success", strconv.Quote(text))
		}
	})
}
