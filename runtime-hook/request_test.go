package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"slipway/runtime-hook/internal/plan"
)

// What a container requests and what its board has set decide what it gets, or what it is told.
func TestRequests(t *testing.T) {
	l := newLab(t, "runc")
	l.shell()
	for _, name := range []string{"libcuda.so.1", "libEGL_nvidia.so.0", "libnvrm.so"} {
		write(t, "/opt/board/"+name, name)
	}
	l.lists("lib, /opt/board/libcuda.so.1", "lib, /opt/board/libEGL_nvidia.so.0", "lib, /opt/board/libnvrm.so", "dev, /dev/nvidia[0-9]", "dev, /dev/nvidiactl")
	twoGPUs(t, l)
	const jetpack = "# R36 (release), REVISION: 4.3, GCID: 1\n" // as settings, a comment
	everything := "nvidia0 nvidia1 nvidiactl libEGL_nvidia.so.0 libcuda.so.1 libnvrm.so "
	tests := []struct {
		name, settings string
		env            []string
		want           string // what the container has
		said           string // in the log, or by the runtime where the container fails
	}{
		{"all of it", "", nil, everything, "gave: files 3, folders 0, links 0, devices 3\n"},
		{"one GPU", "", []string{"NVIDIA_VISIBLE_DEVICES=1"}, "nvidia1 nvidiactl libEGL_nvidia.so.0 libcuda.so.1 libnvrm.so ", "gave: files 3, folders 0, links 0, devices 2\n"},
		{"no such GPU", "", []string{"NVIDIA_VISIBLE_DEVICES=0,2"}, "", "names GPU 2; the board has GPU 0 (GPU-01), GPU 1 (GPU-02)"},
		{"a part of a GPU", "", []string{"NVIDIA_VISIBLE_DEVICES=0:1"}, "", "a part of a GPU (MIG)"},
		{"to compute", "", []string{"NVIDIA_DRIVER_CAPABILITIES=compute"}, "nvidia0 nvidia1 nvidiactl libcuda.so.1 libnvrm.so ", "gave: files 2"},
		{"to fly", "", []string{"NVIDIA_DRIVER_CAPABILITIES=fly"}, "", "which is none (have compute, "},
		{"another log", "[log]\nfile = '/run/my/log'", nil, everything, ""},
		{"another folder", "csv-dir = '/opt/none'", nil, "", "gave: files 0, folders 0, links 0, devices 0; warnings 1: /opt/none: no *.csv there; install the board's\n"},
		{"no devices", "devices = false", nil, "libEGL_nvidia.so.0 libcuda.so.1 libnvrm.so ", "gave: files 3, folders 0, links 0, devices 0\n"},
		{"a newer CUDA", jetpack, []string{"NVIDIA_REQUIRE_CUDA=cuda>=12.8 brand=tesla,driver>=470"}, "", "the board has cuda 12.6, brand none, driver unknown; take an image"},
		{"a newer CUDA without asking", jetpack, []string{"NVIDIA_REQUIRE_CUDA=cuda>=12.8", "NVIDIA_DISABLE_REQUIRE=true"}, everything, "gave: files 4"},
		{"an unknown CUDA", "", []string{"NVIDIA_REQUIRE_CUDA=cuda>=12.8"}, everything, "warnings 1: the image requires \"cuda>=12.8\""},
		{"bad settings", "\ndevices = 'no'", nil, "", "/etc/slipway/hook.toml:2: toml: cannot decode TOML string into struct field config.Config.Devices"},
		{"bad settings that do not matter", "\ndevices = 'no'", []string{"NVIDIA_VISIBLE_DEVICES=void"}, "", ""},
		{"no GPU", "", []string{"NVIDIA_VISIBLE_DEVICES=none"}, "nvidiactl libEGL_nvidia.so.0 libcuda.so.1 libnvrm.so ", "gave: files 3, folders 0, links 0, devices 1\n"},
		{"no GPU, to compute", "", []string{"NVIDIA_VISIBLE_DEVICES=none", "NVIDIA_DRIVER_CAPABILITIES=compute"}, "nvidiactl libcuda.so.1 libnvrm.so ", "gave: files 2"},
	}
	for _, tt := range tests {
		must(t, os.RemoveAll("/run/slipway"))
		os.Remove("/etc/nv_tegra_release")
		if tt.settings == jetpack {
			write(t, "/etc/nv_tegra_release", jetpack)
		}
		write(t, "/etc/slipway/hook.toml", tt.settings)
		// The mount points of the container before are there, and empty.
		out, err := l.runContainer(container{stage: "createRuntime", env: append(all, tt.env...), script: `
			for f in /dev/nvidia*; do test -c $f && printf "%s " ${f##*/}; done
			for f in /opt/board/*; do test -s $f && printf "%s " ${f##*/}; done; :`})
		said, _ := os.ReadFile("/run/slipway/hook.log")
		if err != nil {
			said = []byte(err.Error())
		}
		if out != tt.want || !strings.Contains(string(said), tt.said) {
			t.Errorf("%s: the container has %q, and %q was said; want %q and %q", tt.name, out, said, tt.want, tt.said)
		}
	}
}

// twoGPUs gives the lab two GPUs, in a driver's words, with nodes that open.
func twoGPUs(t *testing.T, l *lab) {
	t.Helper()
	must(t, unix.Mount("tmpfs", "/proc/driver", "tmpfs", 0, ""))
	// A tree of the board that is looked into where /dev lacks something.
	for _, d := range []string{"share", "work-share"} {
		must(t, os.Mkdir(filepath.Join(l.dir, d), 0o755))
	}
	options := fmt.Sprintf("lowerdir=/usr/share,upperdir=%s/share,workdir=%s/work-share", l.dir, l.dir)
	must(t, unix.Mount("overlay", "/usr/share", "overlay", 0, options))
	dev := plan.AltRoot + "/dev/"
	must(t, os.MkdirAll(dev, 0o755))
	for _, name := range []string{"nvidia0", "nvidia1", "nvidiactl"} {
		must(t, unix.Mknod(dev+name, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 7))))
	}
	for i := 0; i < 2; i++ {
		write(t, fmt.Sprintf("/proc/driver/nvidia/gpus/0000:0%d:00.0/information", i+1), fmt.Sprintf("GPU UUID: GPU-0%d\nDevice Minor: %d\n", i+1, i))
	}
}

// The wrapper keeps to the settings too; with faults in them it makes no container
// that asks, and all else goes on.
func TestWrapperSettings(t *testing.T) {
	l := wrappedLab(t, "runc")
	write(t, "/opt/board/a.so", "board a")
	l.lists("lib, /opt/board/a.so", "dev, /dev/full")
	tests := []struct {
		settings string
		env      []string
		want     string // printed by the container, or in the error
		devices  int
	}{
		{"[runtime]\nruntimes = ['/opt/none', 'runc']", all, "board a", 1},
		{"[runtime]\nruntimes = ['crun']", all, "found none of crun other than this program: install one", 1},
		{"devices = false", all, "board a", 0},
		{"devices = 0", all, "/etc/slipway/hook.toml:1: toml: cannot decode TOML integer into struct field config.Config.Devices", 0},
		{"devices = 0", nil, "", 0},
	}
	for _, tt := range tests {
		write(t, "/etc/slipway/hook.toml", tt.settings)
		out, err := l.runContainer(container{env: tt.env, script: "test -s /opt/board/a.so && cat /opt/board/a.so; :"})
		if err != nil {
			out = err.Error()
		}
		if !strings.Contains(out, tt.want) || (tt.want == "") != (out == "") || len(l.config().Linux.Devices) != tt.devices {
			t.Errorf("with %q and %q: %q, %d devices; want %q, %d", tt.settings, tt.env, out, len(l.config().Linux.Devices), tt.want, tt.devices)
		}
	}
}
