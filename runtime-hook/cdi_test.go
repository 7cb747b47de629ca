package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"slipway/runtime-hook/internal/csv"
)

func TestCDI(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "usr/lib/a.so.1"), "a")
	write(t, filepath.Join(root, "usr/share/nvidia-container-passthrough/opt/b"), "b")
	must(t, os.Mkdir(filepath.Join(root, "usr/lib/c"), 0o755))
	must(t, os.Symlink("a.so.1", filepath.Join(root, "usr/lib/a.so")))
	must(t, os.Symlink("c", filepath.Join(root, "usr/lib/d")))
	write(t, filepath.Join(root, csv.Dir, "l4t.csv"), "sym, /usr/lib/a.so\nlib, /opt/b\ndir, /usr/lib/c\nsym, /usr/lib/d\n")
	tests := []struct {
		args []string
		want string
	}{
		{nil, `
  "devices": [
    {
      "name": "0",
      "containerEdits": {
        "hooks": [
          {
            "hookName": "createRuntime",
            "path": "/usr/bin/slipway-hook",
            "args": [
              "slipway-hook",
              "hook",
              "--devices=0"
            ],
            "env": [
              "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
              "GOMAXPROCS=1"
            ]
          }
        ]
      }
    },`},
	}
	for _, tt := range tests {
		args := append([]string{"cdi", "--root", root}, tt.args...)
		stdout, stderr, err := call("", append(args, "--output", "-")...)
		if err != nil || !strings.Contains(stdout, tt.want) || !strings.Contains(stdout, `"NVIDIA_VISIBLE_DEVICES=void"`) || strings.Contains(stdout, root) {
			t.Errorf("%q printed %s%s, %v; want in it %s", args, stdout, stderr, err, tt.want)
		}
		if _, _, err := call("", args...); err != nil {
			t.Error(err)
		}
		written, err := os.ReadFile(filepath.Join(root, "etc/cdi/slipway.json"))
		if err != nil || string(written) != stdout {
			t.Errorf("%q wrote %s, %v; want what it prints", args, written, err)
		}
		left, err := os.ReadDir(filepath.Join(root, "etc/cdi"))
		if err != nil || len(left) != 1 {
			t.Errorf("%q left %v, %v", args, left, err)
		}
	}
	write(t, filepath.Join(root, "etc/slipway/hook.toml"), "csv-dir = \"/etc/none\"\n")
	must(t, os.Chmod(filepath.Join(root, "etc/slipway/hook.toml"), 0o644))
	if _, _, err := call("", "cdi", "--root", root); err == nil || !strings.Contains(err.Error(), "/etc/none: no *.csv there") {
		t.Errorf("cdi of a board without lists = %v; want an error that says where", err)
	}
	empty := t.TempDir()
	write(t, filepath.Join(empty, csv.Dir, "l4t.csv"), "lib, /opt/gone\n")
	if _, _, err := call("", "cdi", "--root", empty); err == nil || !strings.Contains(err.Error(), `"slipway-hook check" says why`) {
		t.Errorf("cdi of an empty board = %v; want an error that says what to do", err)
	}
}

// A board with two GPUs has a name for each number, each UUID, and all.
func TestCDIOfTwoGPUs(t *testing.T) {
	root := t.TempDir()
	gpus := map[string]string{"0000:01:00.0": "GPU-11111111-2222-3333-4444-555555555555", "0000:02:00.0": "GPU-66666666-2222-3333-4444-555555555555"}
	minor := "0"
	for _, address := range []string{"0000:01:00.0", "0000:02:00.0"} {
		write(t, filepath.Join(root, "proc/driver/nvidia/gpus", address, "information"), "GPU UUID: \t "+gpus[address]+"\nDevice Minor: \t "+minor+"\n")
		minor = "1"
	}
	nodes(t, root, "nvidia0", "nvidia1", "nvidiactl")
	write(t, filepath.Join(root, csv.Dir, "devices.csv"), "dev, /dev/nvidia*\n")
	stdout, _, err := call("", "cdi", "--root", root, "--output", "-")
	must(t, err)
	type edits struct{ DeviceNodes []struct{ Path string } }
	var s struct {
		ContainerEdits edits
		Devices        []struct {
			Name           string
			ContainerEdits edits
		}
	}
	must(t, json.Unmarshal([]byte(stdout), &s))
	paths := func(e edits) (out []string) {
		for _, n := range e.DeviceNodes {
			out = append(out, n.Path)
		}
		return out
	}
	got := []string{"every: " + strings.Join(paths(s.ContainerEdits), " ")}
	for _, d := range s.Devices {
		got = append(got, d.Name+": "+strings.Join(paths(d.ContainerEdits), " "))
	}
	want := []string{
		"every: /dev/nvidiactl",
		"0: /dev/nvidia0", gpus["0000:01:00.0"] + ": /dev/nvidia0",
		"1: /dev/nvidia1", gpus["0000:02:00.0"] + ": /dev/nvidia1",
		"all: /dev/nvidia0 /dev/nvidia1",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the devices are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A GPU whose node no list names is no CDI device: a container would get it without the
// node. The command says what to list.
func TestCDIOfUnlistedGPU(t *testing.T) {
	root := t.TempDir()
	for address, minor := range map[string]string{"0000:01:00.0": "0", "0000:02:00.0": "5"} {
		write(t, filepath.Join(root, "proc/driver/nvidia/gpus", address, "information"), "GPU UUID: \t GPU-0"+minor+"\nDevice Minor: \t "+minor+"\n")
	}
	nodes(t, root, "nvidia0", "nvidia5", "nvidiactl")
	names := func(stdout string) (out []string) {
		var s struct {
			Devices []struct{ Name string }
		}
		must(t, json.Unmarshal([]byte(stdout), &s))
		for _, d := range s.Devices {
			out = append(out, d.Name)
		}
		return out
	}
	const warning = `slipway-hook: no CDI device is made for GPU 1 (GPU-05): the board's lists give no /dev/nvidia5; next: add the line "dev, /dev/nvidia5" to a list`
	for _, tt := range []struct {
		settings, list string
		want           []string
		said           string
	}{
		{"", "dev, /dev/nvidia0\ndev, /dev/nvidiactl\n", []string{"0", "GPU-00", "all"}, warning + "\n"},
		{"", "dev, /dev/nvidia*\n", []string{"0", "GPU-00", "1", "GPU-05", "all"}, ""},
		{"devices = false", "dev, /dev/nvidia0\nlib, /opt/a\n", []string{"0", "GPU-00", "1", "GPU-05", "all"}, ""},
	} {
		write(t, filepath.Join(root, "etc/slipway/hook.toml"), tt.settings)
		write(t, filepath.Join(root, "opt/a"), "a")
		write(t, filepath.Join(root, csv.Dir, "devices.csv"), tt.list)
		stdout, stderr, err := call("", "cdi", "--root", root, "--output", "-")
		must(t, err)
		if got := names(stdout); !slices.Equal(got, tt.want) || stderr != tt.said {
			t.Errorf("with the lists %q there are the devices %q, and it says %q; want %q, %q", tt.list, got, stderr, tt.want, tt.said)
		}
		_, _, err = call("", "check", "--root", root)
		if (err == nil) != (tt.said == "") {
			t.Errorf("check with the lists %q = %v; want an error where a GPU is not listed", tt.list, err)
		}
	}
}

// A board whose driver needs no lists is told what writes its CDI spec.
func TestBoardWithoutLists(t *testing.T) {
	tests := []struct {
		name  string
		files map[string]string
		want  string
	}{
		{"JetPack 7", map[string]string{"proc/device-tree/compatible": "nvidia,p3971\x00nvidia,tegra264\x00", "usr/bin/nvidia-smi": ""}, "run nvidia-ctk cdi generate"},
		{"a desktop", map[string]string{"proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX  580.3.0\n"}, "run nvidia-ctk cdi generate"},
		{"NVML", map[string]string{"usr/lib/aarch64-linux-gnu/libnvidia-ml.so.1": ""}, "run nvidia-ctk cdi generate"},
		{"an Orin", map[string]string{"proc/device-tree/compatible": "nvidia,tegra234\x00", "usr/sbin/nvidia-smi": ""}, "install the board's"},
		{"no GPU", nil, "install the board's"},
	}
	for _, tt := range tests {
		root := t.TempDir()
		for name, text := range tt.files {
			write(t, filepath.Join(root, name), text)
		}
		for _, command := range []string{"cdi", "check"} {
			if _, _, err := call("", command, "--root", root); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s: %s = %v; want %q in it", tt.name, command, err, tt.want)
			}
		}
	}
}

// A device that a group opens has its mode and group in the spec, and the container's
// process becomes a member, where the version can say so.
func TestCDIGroups(t *testing.T) {
	root := t.TempDir()
	nodes(t, root, "nvidia0", "nvidia1", "shared", "open")
	for name, gid := range map[string]int{"nvidia0": 44, "nvidia1": 45, "shared": 44} {
		must(t, os.Chown(filepath.Join(root, "dev", name), 0, gid))
		must(t, os.Chmod(filepath.Join(root, "dev", name), 0o660))
	}
	must(t, os.Chmod(filepath.Join(root, "dev/open"), 0o666))
	tests := []struct {
		settings, list string
		version        string
		common, gpus   string
	}{
		{"", "/dev/nvidia*\ndev, /dev/shared\ndev, /dev/open", "0.7.0", "/dev/shared 660 44, /dev/open 666 0, groups [44]", "/dev/nvidia0 660 44, /dev/nvidia1 660 45, groups [44 45]"},
		{"", "/dev/open", "0.5.0", "/dev/open 666 0, groups []", "groups []"},
		{"[cdi]\nversion = '0.5.0'", "/dev/shared", "0.5.0", "/dev/shared 660 44, groups []", "groups []"},
		{"[cdi]\nversion = '0.7.0'", "/dev/open", "0.7.0", "/dev/open 666 0, groups []", "groups []"},
	}
	type edits struct {
		DeviceNodes []struct {
			Path          string
			FileMode, GID uint32
		}
		AdditionalGids []uint32
	}
	text := func(e edits) (out string) {
		for _, n := range e.DeviceNodes {
			out += fmt.Sprintf("%s %o %d, ", n.Path, n.FileMode, n.GID)
		}
		return out + fmt.Sprint("groups ", e.AdditionalGids)
	}
	for _, tt := range tests {
		write(t, filepath.Join(root, "etc/slipway/hook.toml"), tt.settings)
		write(t, filepath.Join(root, csv.Dir, "devices.csv"), "dev, "+tt.list+"\n")
		stdout, stderr, err := call("", "cdi", "--root", root, "--output", "-")
		if err != nil {
			t.Fatal(err, stderr)
		}
		var s struct {
			CDIVersion     string
			ContainerEdits edits
			Devices        []struct{ ContainerEdits edits }
		}
		must(t, json.Unmarshal([]byte(stdout), &s))
		all := s.Devices[len(s.Devices)-1]
		if got := text(s.ContainerEdits); s.CDIVersion != tt.version || got != tt.common || text(all.ContainerEdits) != tt.gpus {
			t.Errorf("with %q the spec of %q is of version %s, for all %q, for GPUs %q; want %s, %q, %q", tt.settings, tt.list, s.CDIVersion, got, text(all.ContainerEdits), tt.version, tt.common, tt.gpus)
		}
	}
}

// A hook that is called twice gives everything once, by whatever the container says it wants.
func TestHookTwice(t *testing.T) {
	for _, stage := range []string{"prestart", "createRuntime"} {
		t.Run(stage, func(t *testing.T) {
			l := newLab(t, "runc")
			l.shell()
			write(t, "/opt/board/lib/a.so.1", "board a")
			write(t, "/opt/board/share/x", "board x")
			must(t, os.Symlink("a.so.1", "/opt/board/lib/a.so"))
			lists := []string{"sym, /opt/board/lib/a.so", "dir, /opt/board/share", "dev, /dev/full"}
			for i := range 20 {
				name := fmt.Sprintf("/opt/whole/lib%d.so", i)
				write(t, name, "board")
				lists = append(lists, "lib, "+name)
			}
			l.lists(lists...)
			out, err := l.runContainer(container{stage: stage, env: []string{"NVIDIA_VISIBLE_DEVICES=all"}, script: "cat /opt/board/lib/a.so /opt/board/share/x; grep -c /opt/board /proc/self/mountinfo; cat /opt/whole/lib7.so", spec: func(s *specs.Spec) {
				//lint:ignore SA1019 Docker and podman still call hooks there
				for _, hooks := range []*[]specs.Hook{&s.Hooks.Prestart, &s.Hooks.CreateRuntime, &s.Hooks.CreateContainer} {
					if len(*hooks) > 0 {
						again := (*hooks)[0]
						again.Args = append(slices.Clone(again.Args), "--devices=0")
						*hooks = append(*hooks, again)
					}
				}
			}})
			if err != nil || out != "board aboard x2\nboard" {
				t.Errorf("the container saw %q, %v; want each mount once", out, err)
			}
			log, err := os.ReadFile("/run/slipway/hook.log")
			lines := strings.Split(strings.TrimSpace(string(log)), "\n")
			if err != nil || len(lines) != 2 || !strings.HasSuffix(lines[0], "gave: files 21, folders 1, links 1, devices 1") || !strings.HasSuffix(lines[1], "gave: files 0, folders 0, links 0, devices 1") {
				t.Errorf("log %q, %v; want that the second hook had nothing left to do", log, err)
			}
		})
	}
}

// nodes makes devices in the /dev of a board's file tree.
func nodes(t *testing.T, root string, names ...string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Join(root, "dev"), 0o755))
	for _, name := range names {
		if err := unix.Mknod(filepath.Join(root, "dev", name), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 7))); err != nil {
			t.Skipf("needs root, to make devices: %v", err)
		}
	}
}
