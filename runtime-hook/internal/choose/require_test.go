package choose

import (
	"strings"
	"testing"

	"slipway/runtime-hook/internal/plan"
)

func TestCheck(t *testing.T) {
	orin := tree(t, map[string]string{
		"etc/nv_tegra_release":        "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64, DATE: Wed Jan  8 01:49:37 UTC 2025\n",
		"proc/device-tree/compatible": "nvidia,p3768-0000+p3767-0005\x00nvidia,p3767-0005\x00nvidia,tegra234\x00",
		"proc/driver/nvidia/version":  "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  540.4.0  Release Build  (buildbrain@mobile-u64)\nGCC version:  collect2: error\n",
	})
	bare := t.TempDir()
	jetpack := tree(t, map[string]string{"etc/nv_tegra_release": "# R36 (release), REVISION: 4.3, GCID: 1\n"})
	// As the images of CUDA 12.6 have it.
	cuda := "cuda>=12.6 brand=unknown,driver>=470,driver<471 brand=grid,driver>=470,driver<471 brand=tesla,driver>=535,driver<536"
	tests := []struct {
		root, require string
		want          string // "" to start, "?" to start with a note, else in the error
	}{
		{orin, "CUDA=" + cuda, ""},
		{orin, "CUDA=" + strings.Replace(cuda, "12.6", "12.8", 1), "cuda 12.6, brand none, driver 540.4.0"},
		{orin, "CUDA=cuda>=12.6.1", "requires"},
		{orin, "CUDA=cuda=12.6.0", ""},
		{orin, "CUDA=cuda=12", "requires"},
		{orin, "CUDA=cuda!=12.6", "requires"},
		{orin, "CUDA=cuda!=12.5", ""},
		{orin, "CUDA=cuda>12.6", "requires"},
		{orin, "CUDA=cuda>12.5", ""},
		{orin, "CUDA=cuda<12.10", ""},
		{orin, "CUDA=cuda<=12.6", ""},
		{orin, "CUDA=cuda<12.6", `the image requires "cuda<12.6" (NVIDIA_REQUIRE_CUDA), and the board has cuda 12.6; take an image that is made for it, or set NVIDIA_DISABLE_REQUIRE=1 in the container to go without`},
		{orin, "CUDA=cuda>=11,cuda<12 cuda>=13", "requires"},
		{orin, "CUDA=cuda>=11,cuda<13 cuda>=14", ""},
		{orin, "CUDA=  ", ""},
		{orin, "CUDA=cuda>=v11", ""},
		{orin, "JETPACK=jetpack>=6.1,jetpack<7", ""},
		{orin, "JETPACK=jetpack>=7", "jetpack 6.2"},
		{orin, "JETPACK=csv-mounts=all", ""},
		{orin, "JETPACK_HOST_MOUNTS=base-only", ""},
		{orin, "ARCH=arch>=8.7", ""},
		{orin, "ARCH=arch=7.2", "arch 8.7"},
		{orin, "DRIVER=driver>=540", ""},
		{orin, "X=brand!=tesla", ""},
		{orin, "X=brand=tesla", "brand none"},
		{orin, "X=colour=red cuda>=99", "cuda 12.6"},
		{orin, "X=colour=red,cuda>=12", ""},
		{bare, "CUDA=" + cuda, "?"},
		{jetpack, "CUDA=" + cuda, ""},
		{jetpack, "CUDA=" + strings.Replace(cuda, "12.6", "12.8", 1), "driver unknown"},
		{bare, "X=brand=tesla,cuda>=1", "cuda unknown"},
		{bare, "X=cuda>=1 driver>=1", "?"},
	}
	for _, tt := range tests {
		env := []string{"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_REQUIRE_" + tt.require}
		s, err := ParseEnv(env)
		if err != nil {
			t.Errorf("ParseEnv(%q) = %v", env, err)
			continue
		}
		notes, err := s.Check(tt.root)
		switch {
		case tt.want == "" && (err != nil || len(notes) > 0), tt.want == "?" && (err != nil || len(notes) != 1),
			len(tt.want) > 1 && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s of %+v: %q, %v; want %q", tt.require, ReadBoard(tt.root), notes, err, tt.want)
		}
		for _, skip := range []string{"1", "true", "TRUE"} {
			s, err := ParseEnv(append(env, "NVIDIA_DISABLE_REQUIRE="+skip))
			if notes, e := s.Check(tt.root); err != nil || e != nil || len(notes) > 0 {
				t.Errorf("%s, skipped by %s: %q, %v, %v", tt.require, skip, notes, err, e)
			}
		}
	}
}

func TestReadBoard(t *testing.T) {
	release := func(line string) map[string]string { return map[string]string{"etc/nv_tegra_release": line} }
	tests := []struct {
		files map[string]string
		want  Board
	}{
		{nil, Board{}},
		{release("# R32 (release), REVISION: 7.1, GCID: 29818004, BOARD: t186ref"), Board{L4T: "32.7.1", JetPack: "4.6.1", CUDA: "10.2"}},
		{release("# R32 (release), REVISION: 3.1, GCID: 1"), Board{L4T: "32.3.1", JetPack: "4.3", CUDA: "10.0"}},
		{release("# R35 (release), REVISION: 4.1, GCID: 33958178"), Board{L4T: "35.4.1", JetPack: "5.1.2", CUDA: "11.4"}},
		{release("# R35 (release), REVISION: 6.2, GCID: 1"), Board{L4T: "35.6.2", JetPack: "5.1.5", CUDA: "11.4"}},
		{release("# R36 (release), REVISION: 3.0, GCID: 1"), Board{L4T: "36.3.0", JetPack: "6.0", CUDA: "12.2"}},
		{release("# R36 (release), REVISION: 4.7, GCID: 1"), Board{L4T: "36.4.7", JetPack: "6.2.1", CUDA: "12.6"}},
		{release("# R38 (release), REVISION: 4.0, GCID: 1"), Board{L4T: "38.4.0", JetPack: "7.1", CUDA: "13.0"}},
		{release("# R39 (release), REVISION: 2.0, GCID: 1"), Board{L4T: "39.2.0", JetPack: "7.2", CUDA: "13.2"}},
		{release("# R40 (release), REVISION: 1.0, GCID: 1"), Board{L4T: "40.1.0"}},
		{release("# R28 (release), REVISION: 2.1, GCID: 1"), Board{L4T: "28.2.1"}},
		{release("R32.7.1"), Board{}},
		{release("# R (release), REVISION: , GCID"), Board{}},
		{map[string]string{"proc/device-tree/compatible": "nvidia,p2972-0000\x00nvidia,tegra194\x00"}, Board{SoC: "tegra194", Arch: "7.2"}},
		{map[string]string{"proc/device-tree/compatible": "raspberrypi,4-model-b\x00brcm,bcm2711\x00"}, Board{}},
		{map[string]string{"proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"}, Board{Driver: "535.104.05"}},
	}
	for _, tt := range tests {
		if got := ReadBoard(tree(t, tt.files)); got != tt.want {
			t.Errorf("ReadBoard of %q = %+v; want %+v", tt.files, got, tt.want)
		}
	}
}

func TestReleasesAreVersions(t *testing.T) {
	var last version
	for _, r := range releases {
		since, err := parseVersion(r.l4t)
		if err != nil || last.compare(since) >= 0 {
			t.Errorf("%v after %v: %v", r, last, err)
		}
		for _, v := range []string{r.jetpack, r.cuda} {
			if _, err := parseVersion(v); err != nil {
				t.Errorf("%v: %v", r, err)
			}
		}
		last = since
	}
}

// Whatever an image has in its environment: what it does not request it does not get,
// and it is never told more than fits on a line or two.
func FuzzFrom(f *testing.F) {
	f.Add("all", "compute,utility", "cuda>=12.6 brand=tesla,driver>=470", "0")
	f.Add("0,1", "", "cuda!=11,jetpack<=6", "")
	f.Add("nvidia.com/gpu=0", "all", "csv-mounts=all", "1")
	f.Add("GPU-5a3ef5ba-0000-0000-0000-000000000001", ",", "arch==8.7", "true")
	f.Add("none", "x", "=", "2")
	p := plan.Plan{Mounts: []plan.Mount{{Source: "/usr/lib/libcuda.so.1", Path: "/usr/lib/libcuda.so.1"}}, Links: []plan.Link{{Path: "/usr/lib/libcuda.so", File: "/usr/lib/libcuda.so.1"}}, Devices: []plan.Device{{Path: "/dev/nvidia0"}, {Path: "/dev/nvidia1"}}}
	board := tree(f, map[string]string{"etc/nv_tegra_release": "# R36 (release), REVISION: 4.3, GCID: 1\n"})
	f.Fuzz(func(t *testing.T, devices, capabilities, require, skip string) {
		s, err := ParseEnv([]string{"NVIDIA_VISIBLE_DEVICES=" + devices, "NVIDIA_DRIVER_CAPABILITIES=" + capabilities, "NVIDIA_REQUIRE_CUDA=" + require, "NVIDIA_REQUIRE_" + require, "NVIDIA_DISABLE_REQUIRE=" + skip})
		if err == nil && s.Wants() {
			var notes []string
			if notes, err = s.Check(board); err == nil {
				var got plan.Plan
				if got, err = s.PartOf("/none", p); len(got.Mounts)+len(got.Links)+len(got.Devices) > 4 {
					t.Errorf("%+v of 4", got)
				}
			}
			for _, n := range notes {
				if len(n) > 4000 {
					t.Errorf("a note of %d bytes", len(n))
				}
			}
		}
		if err != nil && len(err.Error()) > 4000 {
			t.Errorf("an error of %d bytes", len(err.Error()))
		}
	})
}
