package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"slipway/runtime-hook/internal/csv"
)

// call runs the command in this process.
func call(stdin string, args ...string) (stdout, stderr string, err error) {
	var out, errs bytes.Buffer
	err = runCommand(args, strings.NewReader(stdin), &out, &errs)
	return out.String(), errs.String(), err
}

func TestCommands(t *testing.T) {
	tests := []struct {
		args    []string
		want    string // on standard output, or in the error or on standard error
		wantErr bool
	}{
		{nil, "slipway-hook hook", true},
		{[]string{"-h"}, "slipway-hook check", false},
		{[]string{"hook", "-h"}, "at createRuntime or prestart", false},
		{[]string{"check", "-h"}, "--root DIR", false},
		{[]string{"runtime", "-h"}, "docker run --runtime slipway", false},
		{[]string{"cdi", "-h"}, "podman run --device nvidia.com/gpu=all", false},
		{[]string{"version"}, "slipway-hook dev go1", false},
		{[]string{"fly"}, `unknown command "fly"`, true},
		{[]string{"precreate"}, `unknown command "precreate"`, true},
		{[]string{"check", "--fly"}, "flag provided but not defined: -fly", true},
		{[]string{"hook", "now"}, `no argument "now"`, true},
		{[]string{"hook"}, "state on standard input", true},
		{[]string{"check", "--root", "/not/there"}, "no *.csv there", true},
	}
	for _, tt := range tests {
		stdout, stderr, err := call("", tt.args...)
		if (err != nil) != tt.wantErr {
			t.Errorf("%q: %v; want an error: %v", tt.args, err, tt.wantErr)
		}
		if err != nil {
			stdout = stderr + err.Error()
		}
		if !strings.Contains(stdout, tt.want) {
			t.Errorf("%q printed %q; want %q in it", tt.args, stdout, tt.want)
		}
	}
}

// sampleBoard is a file tree with a list that is half wrong.
func sampleBoard(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	write(t, filepath.Join(root, "usr/lib/a.so.1"), "a")
	must(t, os.Symlink("a.so.1", filepath.Join(root, "usr/lib/a.so")))
	must(t, os.Symlink("b", filepath.Join(root, "usr/lib/b")))
	write(t, filepath.Join(root, csv.Dir, "drivers.csv"), "sym, /usr/lib/a.so\nlib, /usr/lib/gone.so\nsym, /usr/lib/b\nlib, /usr/lib/a.so.1\nlib, /usr/lib/a.so.1\n")
	write(t, filepath.Join(root, csv.Dir, "devices.csv"), "dev, /dev/board0\ndir, /proc\nhello\n")
	return root
}

func TestCheck(t *testing.T) {
	root := sampleBoard(t)
	stdout, _, err := call("", "check", "--root", root)
	if !errors.Is(err, errFound) {
		t.Errorf("check = %v; want errFound", err)
	}
	want := `devices.csv:2: refused: /proc as a dir would replace the container's own
devices.csv:3: bad line: "hello" has no comma; a line is "kind, /path"
devices.csv:1: missing: the board has no /dev/board0
drivers.csv:2: missing: the board has no /usr/lib/gone.so
drivers.csv:3: loop: the links at /usr/lib/b go in a circle
drivers.csv:5: duplicate: /usr/lib/a.so.1 is listed already at drivers.csv:4 as lib

KIND  IN THE CONTAINER  FROM THE BOARD      FOR  GPU  LISTED AT
file  /usr/lib/a.so.1   ROOT/usr/lib/a.so.1  all  -    drivers.csv:1
link  /usr/lib/a.so     -> a.so.1            all  -    drivers.csv:1

the board: L4T unknown, JetPack unknown, CUDA unknown, arch unknown, driver unknown, SoC unknown
CSV files: 2; problems: 6, of which 4 kept an entry or a setting from being used
`
	got := strings.Join(strings.Fields(strings.ReplaceAll(stdout, root, "ROOT")), " ")
	if got != strings.Join(strings.Fields(want), " ") {
		t.Errorf("check printed\n%s\nwant\n%s", stdout, want)
	}
}

func TestCheckJSON(t *testing.T) {
	stdout, _, err := call("", "check", "--json", "--root", sampleBoard(t))
	if !errors.Is(err, errFound) {
		t.Errorf("check = %v; want errFound", err)
	}
	var r struct {
		Files, Problems []any
		Unused          int
		Plan            struct {
			Mounts, Links []struct{ Path, Capabilities string }
		}
	}
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Files) != 2 || len(r.Problems) != 6 || r.Unused != 4 || len(r.Plan.Mounts) != 1 || len(r.Plan.Links) != 1 || r.Plan.Links[0].Capabilities != "all" {
		t.Errorf("report %+v; want 2 files, 6 problems, 4 unused, 1 mount, 1 link", r)
	}
}

// Programs that read the report need not know of null.
func TestCheckJSONOfLittle(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, csv.Dir, "l4t.csv"), "# nothing\n")
	stdout, _, err := call("", "check", "--json", "--root", root)
	if err != nil || strings.Contains(stdout, "null") {
		t.Errorf("check printed %s, %v; want lists that are empty", stdout, err)
	}
}

// A board of R36 says what it is, and what each of its files is for.
func TestCheckBoard(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"etc/nv_tegra_release":        "# R36 (release), REVISION: 4.3, GCID: 1\n",
		"proc/device-tree/compatible": "nvidia,tegra234\x00",
		"usr/lib/libcuda.so.1.1":      "cuda",
		"usr/lib/libnvmm.so":          "mm",
		csv.Dir + "/drivers.csv":      "sym, /usr/lib/libcuda.so\nlib, /usr/lib/libnvmm.so\ndev, /dev/null\n",
	} {
		write(t, filepath.Join(root, name), text)
	}
	must(t, os.Symlink("libcuda.so.1.1", filepath.Join(root, "usr/lib/libcuda.so")))
	stdout, _, err := call("", "check", "--root", root)
	if err != nil {
		t.Error(err)
	}
	for _, want := range []string{
		`file +/usr/lib/libcuda.so.1.1 .* compute +- +drivers.csv:1`,
		`link +/usr/lib/libcuda.so .* compute +- +drivers.csv:1`,
		`file +/usr/lib/libnvmm.so .* video +- +drivers.csv:2`,
		`the board: L4T 36.4.3, JetPack 6.2, CUDA 12.6, arch 8.7, driver unknown, SoC tegra234`,
		`CSV files: 1; problems: 1, of which 0 kept`,
	} {
		if !regexp.MustCompile(want).MatchString(stdout) {
			t.Errorf("check printed\n%s\nwant a line %s", stdout, want)
		}
	}
}

func TestCheckSettings(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, csv.Dir, "l4t.csv"), "dev, /dev/board0\n")
	write(t, filepath.Join(root, "etc/slipway/hook.toml"), "speed = 1\n[log]\nfile = 'loud'\n")
	stdout, _, err := call("", "check", "--root", root)
	if !errors.Is(err, errFound) || !strings.Contains(stdout, "hook.toml:1: bad line: unknown key \"speed\"") || !strings.Contains(stdout, "hook.toml:3: bad line: log.file: ") {
		t.Errorf("check = %v, %s; want both faults of hook.toml", err, stdout)
	}
}

// Ten thousand entries take check half a second; the limit is for slow machines, and
// for what looks at each beside each.
func TestCheckMany(t *testing.T) {
	root := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(root, "usr/lib"), 0o755))
	var list strings.Builder
	for i := 0; i < 10000; i++ {
		file := fmt.Sprintf("/usr/lib/libnv%d.so.1", i)
		if i%50 == 0 {
			write(t, filepath.Join(root, file), "x")
		}
		fmt.Fprintf(&list, "lib, %s\n", file)
	}
	write(t, filepath.Join(root, csv.Dir, "l4t.csv"), list.String())
	start := time.Now()
	stdout, _, err := call("", "check", "--root", root)
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
	if !errors.Is(err, errFound) || strings.Count(stdout, "\nfile ") != 200 {
		t.Errorf("check = %v, and names %d files; want 200", err, strings.Count(stdout, "\nfile "))
	}
}

func TestCheckGood(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "usr/lib/a.so"), "a")
	write(t, filepath.Join(root, csv.Dir, "l4t.csv"), "lib, /usr/lib/a.so\ndev, /dev/board0\n")
	if stdout, _, err := call("", "check", "--root", root); err != nil {
		t.Errorf("check = %v, %s; want that a missing device is no failure", err, stdout)
	}
}

func TestHookWithoutMountNamespace(t *testing.T) {
	bundle := newLab(t, "runc").dir
	write(t, filepath.Join(bundle, "config.json"), `{"root":{"path":"rootfs"},"process":{"env":["NVIDIA_VISIBLE_DEVICES=all"]}}`)
	state, err := json.Marshal(map[string]any{"id": "a\nb", "pid": 1, "bundle": bundle})
	must(t, err)
	_, _, err = call(string(state), "hook")
	if err == nil || !strings.Contains(err.Error(), "container a?b: ") || !strings.Contains(err.Error(), "no mount") {
		t.Errorf("hook = %v; want a refusal that names the container on one line", err)
	}
}

// needARM64 skips the test without the variable CI or without QEMU's program for arm64, which it
// returns.
func needARM64(t *testing.T) (qemu string) {
	t.Helper()
	if os.Getenv("CI") == "" {
		t.Skip("needs Go's libraries for arm64, whose build takes a minute of CPU time: set CI=true")
	}
	qemu, err := exec.LookPath("qemu-aarch64-static")
	if err != nil {
		t.Skip("needs qemu-aarch64-static (Debian package qemu-user-static)")
	}
	return qemu
}

// The boards are arm64; so every package proves itself there.
func TestARM64(t *testing.T) {
	qemu := needARM64(t)
	dir := t.TempDir()
	build := exec.Command("go", "test", "-c", "-ldflags=-s -w", "-o", dir+"/", "./internal/...")
	build.Env = append(os.Environ(), "GOARCH=arm64", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	binaries, err := filepath.Glob(dir + "/*.test")
	must(t, err)
	if len(binaries) < 5 {
		t.Errorf("built %v; want one for each package that has tests", binaries)
	}
	for _, binary := range binaries {
		pkg := strings.TrimSuffix(filepath.Base(binary), ".test")
		t.Run(pkg, func(t *testing.T) {
			// What looks for the moments between two calls would take qemu long.
			test := exec.Command(qemu, binary, "-test.skip=^(TestSaveAtOnce|TestUpdateIsWhole)$")
			test.Dir = filepath.Join("internal", pkg)
			if out, err := test.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
