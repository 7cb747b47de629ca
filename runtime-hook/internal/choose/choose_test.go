package choose

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"slipway/runtime-hook/internal/plan"
)

// tree writes files; a name that ends in "->" is a link.
func tree(t testing.TB, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		link := strings.HasSuffix(name, "->")
		at := filepath.Join(root, strings.TrimSuffix(name, "->"))
		err := os.MkdirAll(filepath.Dir(at), 0o755)
		if err == nil && link {
			err = os.Symlink(text, at)
		} else if err == nil {
			err = os.WriteFile(at, []byte(text), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

const (
	uuid0 = "GPU-5a3ef5ba-0000-0000-0000-000000000001"
	uuid1 = "GPU-5a3ef5ba-0000-0000-0000-000000000002"
)

// What an image may have is up to the image.
func TestFromManyVariables(t *testing.T) {
	env := []string{"NVIDIA_VISIBLE_DEVICES=all"}
	for i := 0; i < 1<<18; i++ {
		env = append(env, fmt.Sprintf("NVIDIA_%d=x", i))
	}
	if s, err := ParseEnv(env); err != nil || !s.Wants() {
		t.Errorf("From with %d variables = %v", len(env), err)
	}
	for i := 0; i < 100; i++ {
		env = append(env, fmt.Sprintf("NVIDIA_REQUIRE_%d=cuda>=1", i))
	}
	if _, err := ParseEnv(env); err == nil || !strings.Contains(err.Error(), "more than 16 variables NVIDIA_REQUIRE_*") {
		t.Errorf("From with 100 requirements = %v; want a refusal", err)
	}
}

// A container that requests nothing starts, whatever else its image sets.
func TestFromNothingAsked(t *testing.T) {
	many := []string{"NVIDIA_DRIVER_CAPABILITIES=" + strings.Repeat("x", 1<<17)}
	for i := 0; i < 100; i++ {
		many = append(many, fmt.Sprintf("NVIDIA_REQUIRE_%d=nonsense", i))
	}
	for _, env := range [][]string{nil, {"NVIDIA_VISIBLE_DEVICES="}, {"NVIDIA_VISIBLE_DEVICES=void"}} {
		if s, err := ParseEnv(append(env, many...)); err != nil || s.Wants() {
			t.Errorf("From with %q and variables beyond the limits = %v; want that nothing is asked for", env, err)
		}
	}
}

// twoGPUs is a board whose second GPU was found first.
func twoGPUs(t *testing.T) string {
	return tree(t, map[string]string{
		"proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: \t NVIDIA Thor\nGPU UUID: \t " + uuid0 + "\nBus Location: \t 0000:01:00.0\nDevice Minor: \t 1\n",
		"proc/driver/nvidia/gpus/0009:01:00.0/information": "Model: \t RTX\nGPU UUID: \t " + uuid1 + "\nDevice Minor: \t 0\n",
		"sys/class/drm/card1/device->":                     "../../../0009:01:00.0",
		"sys/class/drm/renderD129/device->":                "../../../0009:01:00.0",
		"sys/class/drm/card0/device->":                     "../../../13e00000.host1x",
	})
}

// oneGPU is a board whose only GPU has a UUID.
func oneGPU(t *testing.T) string {
	return tree(t, map[string]string{"proc/driver/nvidia/gpus/0000:01:00.0/information": "GPU UUID: \t " + uuid0 + "\nDevice Minor: \t 0\n"})
}

func devices(paths ...string) (p plan.Plan) {
	for _, d := range paths {
		p.Devices = append(p.Devices, plan.Device{Path: d})
	}
	return p
}

func paths(p plan.Plan) (out []string) {
	for _, m := range p.Mounts {
		out = append(out, m.Path)
	}
	for _, l := range p.Links {
		out = append(out, l.Path)
	}
	for _, d := range p.Devices {
		out = append(out, d.Path)
	}
	return out
}

func TestFromWants(t *testing.T) {
	tests := []struct {
		env  []string
		want bool
	}{
		{nil, false},
		{[]string{"PATH=/bin"}, false},
		{[]string{"NVIDIA_VISIBLE_DEVICES"}, false},
		{[]string{"NVIDIA_VISIBLE_DEVICES="}, false},
		{[]string{"NVIDIA_VISIBLE_DEVICES= , "}, false},
		{[]string{"NVIDIA_VISIBLE_DEVICES=void"}, false},
		{[]string{"NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_DRIVER_CAPABILITIES=flying"}, false},
		{[]string{"NVIDIA_VISIBLE_DEVICES=none"}, true},
		{[]string{"NVIDIA_VISIBLE_DEVICES=none,void"}, false},
		{[]string{"NVIDIA_VISIBLE_DEVICES=0,void"}, false},
		{[]string{"NVIDIA_VISIBLE_DEVICES=all"}, true},
		{[]string{"NVIDIA_VISIBLE_DEVICES=0"}, true},
		{[]string{"NVIDIA_VISIBLE_DEVICES= 0 , 1 "}, true},
		{[]string{"NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=all"}, true},
		{[]string{"NVIDIA_VISIBLE_DEVICES=" + uuid0}, true},
		{[]string{"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=void"}, false},
		{[]string{"NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_VISIBLE_DEVICES=all"}, true},
	}
	for _, tt := range tests {
		s, err := ParseEnv(tt.env)
		if err != nil || s.Wants() != tt.want {
			t.Errorf("ParseEnv(%q) wants: %v, %v; want %v", tt.env, s.Wants(), err, tt.want)
		}
	}
}

func TestFromRefuses(t *testing.T) {
	tests := []struct{ env, want string }{
		{"NVIDIA_VISIBLE_DEVICES=MIG-" + uuid0[4:], "MIG"},
		{"NVIDIA_VISIBLE_DEVICES=0:1", "MIG"},
		{"NVIDIA_VISIBLE_DEVICES=nvidia.com/mig=0", "MIG"},
		{"NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=0:1", "MIG"},
		{"NVIDIA_VISIBLE_DEVICES=-1", "no name of a GPU"},
		{"NVIDIA_VISIBLE_DEVICES=70000", "no name of a GPU"},
		{"NVIDIA_VISIBLE_DEVICES=GPU-1", "no name of a GPU"},
		{"NVIDIA_VISIBLE_DEVICES=amd.com/gpu=0", `"amd.com/gpu=0", which is no name of a GPU`},
		{"NVIDIA_VISIBLE_DEVICES=" + strings.Repeat("0,", 2000), "more than 256"},
		{"NVIDIA_VISIBLE_DEVICES=" + strings.Repeat("0", 1<<20), "1048576 bytes long"},
		{"NVIDIA_DRIVER_CAPABILITIES=compute,flying", `"flying", which is none (have compute, `},
		{"NVIDIA_REQUIRE_CUDA=cuda", "no condition"},
		{"NVIDIA_REQUIRE_CUDA=cuda!12", "no operator"},
		{"NVIDIA_REQUIRE_CUDA=cuda>=twelve", "not a version"},
		{"NVIDIA_REQUIRE_CUDA=cuda>=1.2.3.4.5.6.7.8.9", "not a version"},
	}
	for _, tt := range tests {
		_, err := ParseEnv([]string{"NVIDIA_VISIBLE_DEVICES=all", tt.env})
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("ParseEnv(%.80q) = %.200v; want an error with %q", tt.env, err, tt.want)
		}
	}
}

func TestOfGPUs(t *testing.T) {
	one, two := oneGPU(t), twoGPUs(t)
	only := []string{"/dev/nvidia0", "/dev/nvidiactl"}
	nodes := []string{"/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2", "/dev/nvidiactl", "/dev/dri/card0", "/dev/dri/card1", "/dev/dri/renderD129"}
	first := []string{"/dev/nvidia1", "/dev/nvidia2", "/dev/nvidiactl", "/dev/dri/card0"}
	second := []string{"/dev/nvidia0", "/dev/nvidia2", "/dev/nvidiactl", "/dev/dri/card0", "/dev/dri/card1", "/dev/dri/renderD129"}
	unlisted := []string{"/dev/nvidia1", "/dev/nvidiactl"}
	orin := []string{"/dev/nvgpu/igpu0/ctrl", "/dev/nvhost-ctrl-gpu", "/dev/nvidia0", "/dev/nvmap"}
	tests := []struct {
		root, devices string
		nodes, want   []string
		wantErr       string
	}{
		{two, "all", nodes, nodes, ""},
		{two, "0", nodes, first, ""},
		{two, "1", nodes, second, ""},
		{two, "1,0", nodes, nodes, ""},
		{two, strings.ToLower(uuid1[:4]) + uuid1[4:], nodes, nil, "no name of a GPU"},
		{two, uuid1, nodes, second, ""},
		{two, uuid1[4:], nodes, second, ""},
		{two, "nvidia.com/gpu=" + uuid0, nodes, first, ""},
		{two, "nvidia.com/gpu=all,0", nodes, nodes, ""},
		{two, "0,2", nodes, nil, "GPU 2; the board has GPU 0 (" + uuid0 + "), GPU 1 (" + uuid1 + ")"},
		{two, uuid1[:len(uuid1)-1] + "3", nodes, nil, "000003; the board has"},
		{two, "0", orin, []string{"/dev/nvgpu/igpu0/ctrl", "/dev/nvhost-ctrl-gpu", "/dev/nvmap"}, ""},
		{two, "1", unlisted, nil, "names GPU 1 (" + uuid1 + "): the board's lists give no /dev/nvidia0; next: add the line \"dev, /dev/nvidia0\" to a list"},
		{two, "0", unlisted, unlisted, ""},
		{two, "all", unlisted, unlisted, ""},
		{two, "none", nodes, []string{"/dev/nvidiactl", "/dev/dri/card0"}, ""},
		{two, "none,0", unlisted, []string{"/dev/nvidiactl"}, ""},
		{t.TempDir(), "none", orin, []string{"/dev/nvmap"}, ""},
		{t.TempDir(), "none", []string{"/dev/nvidia0", "/dev/nvidia-uvm"}, []string{"/dev/nvidia-uvm"}, ""},
		// One GPU, or one that only a display stands beside.
		{t.TempDir(), "3", orin, orin, ""},
		{t.TempDir(), uuid0, []string{"/dev/nvidia0", "/dev/nvmap"}, []string{"/dev/nvidia0", "/dev/nvmap"}, ""},
		{t.TempDir(), "1", nil, nil, ""},
		{one, "3", only, only, ""},
		{one, uuid0, only, only, ""},
		{one, uuid0[4:], only, only, ""},
		{one, "0," + uuid1, only, nil, uuid1 + "; the board has GPU 0 (" + uuid0 + ")"},
		// The driver tells nothing.
		{t.TempDir(), "1", []string{"/dev/nvidia10", "/dev/nvidia2", "/dev/nvidia-uvm"}, []string{"/dev/nvidia10", "/dev/nvidia-uvm"}, ""},
	}
	for _, tt := range tests {
		s, err := ParseEnv([]string{"NVIDIA_VISIBLE_DEVICES=" + tt.devices})
		var p plan.Plan
		if err == nil {
			p, err = s.PartOf(tt.root, devices(tt.nodes...))
		}
		if tt.wantErr != "" {
			if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("%s = %v; want an error with %q", tt.devices, err, tt.wantErr)
			}
			continue
		}
		if err != nil || !reflect.DeepEqual(paths(p), tt.want) {
			t.Errorf("%s of %q gives %q, %v; want %q", tt.devices, tt.nodes, paths(p), err, tt.want)
		}
	}
}

func TestCompatDir(t *testing.T) {
	tests := []struct {
		b    Board
		want string
	}{
		{Board{}, "/usr/local/cuda/compat"},
		{Board{Driver: "580.1"}, "/usr/local/cuda/compat"},
		{Board{SoC: "tegra264", L4T: "38.2"}, "/usr/local/cuda/compat"},
		{Board{SoC: "tegra234", L4T: "36.4"}, "/usr/local/cuda/compat_orin"},
		{Board{SoC: "tegra234", L4T: "39.2"}, "/usr/local/cuda/compat_orin"},
		{Board{SoC: "tegra234", L4T: "35.6"}, ""},
		{Board{SoC: "tegra234"}, ""},
		{Board{SoC: "tegra194", L4T: "35.6"}, ""},
	}
	for _, tt := range tests {
		if got := tt.b.CompatDir(); got != tt.want {
			t.Errorf("%+v.CompatDir() = %q; want %q", tt.b, got, tt.want)
		}
	}
}

// Thor's GPU is one, whichever of the older boards' nodes it has too.
func TestThorWithOldNodes(t *testing.T) {
	root := twoGPUs(t)
	p := devices("/dev/nvgpu/igpu0/ctrl", "/dev/nvidia1", "/dev/nvidia0")
	if got := len(GPUs(root, p)); got != 3 {
		t.Errorf("an older board has %d GPUs; want its own and two more", got)
	}
	at := filepath.Join(root, "/proc/device-tree/compatible")
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at, []byte("nvidia,p3971-0089\x00nvidia,tegra264\x00"), 0o644); err != nil {
		t.Fatal(err)
	}
	s, _ := ParseEnv([]string{"NVIDIA_VISIBLE_DEVICES=0"})
	got, err := s.PartOf(root, p)
	if want := []string{"/dev/nvgpu/igpu0/ctrl", "/dev/nvidia1"}; err != nil || !reflect.DeepEqual(paths(got), want) {
		t.Errorf("gives %q, %v; want %q", paths(got), err, want)
	}
}

// A Thor has a node for its display too, which belongs to no GPU.
func TestOneGPUAndADisplay(t *testing.T) {
	root := tree(t, map[string]string{"proc/driver/nvidia/gpus/0000:01:00.0/information": "GPU UUID: GPU-????????-????-????-????-????????????\nDevice Minor: 0\n"})
	p := devices("/dev/nvidia0", "/dev/nvidia1")
	gpus := GPUs(root, p)
	if want := []GPU{{Address: "0000:01:00.0", Nodes: []string{"/dev/nvidia0"}}}; !reflect.DeepEqual(gpus, want) {
		t.Errorf("GPUs are %+v; want %+v", gpus, want)
	}
	s, _ := ParseEnv([]string{"NVIDIA_VISIBLE_DEVICES=0"})
	if got, err := s.PartOf(root, p); err != nil || len(got.Devices) != 2 {
		t.Errorf("gives %q, %v; want both nodes", paths(got), err)
	}
}

func TestOfCapabilities(t *testing.T) {
	file := func(p string) plan.Mount { return plan.Mount{Source: p, Path: p} }
	link := func(p, to string) plan.Link { return plan.Link{Path: p, File: to} }
	p := devices("/dev/nvmap", "/dev/nvhost-msenc")
	p.Mounts = []plan.Mount{
		{Source: "/lib/firmware/x", Path: "/lib/firmware/x", Folder: true},
		file("/usr/lib/libcuda.so.1.1"), file("/usr/lib/libEGL_nvidia.so.0"), file("/usr/lib/libnvrm_gpu.so"),
		file("/usr/lib/libnvmm.so"), file("/usr/lib/libnvidia-allocator.so.1"), file("/usr/sbin/nvidia-smi"), file("/opt/video.bin"),
	}
	p.Links = []plan.Link{
		link("/usr/lib/libcuda.so", "/usr/lib/libcuda.so.1.1"),
		link("/usr/lib/libmine.so", "/usr/lib/libnvmm.so"),
		link("/usr/lib/libnvjpeg.so", "/opt/video.bin"),
		link("/usr/lib/aarch64-linux-gnu/tegra", ""),
	}
	always := []string{"/lib/firmware/x", "/usr/lib/libnvrm_gpu.so", "/usr/lib/libnvmm.so", "/opt/video.bin", "/usr/lib/libmine.so", "/usr/lib/aarch64-linux-gnu/tegra", "/dev/nvmap"}
	tests := []struct {
		value string
		more  []string // than what is always given
	}{
		{"utility", []string{"/usr/sbin/nvidia-smi"}},
		{"compute,utility", []string{"/usr/lib/libcuda.so.1.1", "/usr/lib/libcuda.so", "/usr/lib/libnvidia-allocator.so.1", "/usr/sbin/nvidia-smi"}},
		{"graphics", []string{"/usr/lib/libEGL_nvidia.so.0", "/usr/lib/libnvidia-allocator.so.1"}},
		{" video , ", []string{"/usr/lib/libnvidia-allocator.so.1", "/usr/lib/libnvjpeg.so", "/dev/nvhost-msenc"}},
		{"ngx", nil},
		{"all", paths(p)},
		{"", paths(p)},
		{",", paths(p)},
	}
	before := paths(p)
	for _, tt := range tests {
		s, err := ParseEnv([]string{"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=" + tt.value})
		if err != nil {
			t.Fatal(err)
		}
		got, err := s.PartOf("/", p)
		want := map[string]bool{}
		for _, p := range append(tt.more, always...) {
			want[p] = true
		}
		var ordered []string
		for _, p := range before {
			if want[p] {
				ordered = append(ordered, p)
			}
		}
		if err != nil || !reflect.DeepEqual(paths(got), ordered) {
			t.Errorf("%q gives %q, %v; want %q", tt.value, paths(got), err, ordered)
		}
	}
	if !reflect.DeepEqual(paths(p), before) {
		t.Errorf("the board's plan became %q", paths(p))
	}
}

// Names lead to what is given only: a cache that named the rest would hide what the image has.
func TestCapabilityLibraries(t *testing.T) {
	p := plan.Plan{
		Mounts: []plan.Mount{{Path: "/usr/lib/libcuda.so.1.1"}, {Path: "/usr/lib/libEGL_nvidia.so.0"}, {Path: "/opt/lib", Folder: true}},
		Libraries: []plan.Library{
			{Name: "libcuda.so.1", Path: "/usr/lib/libcuda.so.1.1"},
			{Name: "libEGL_nvidia.so.0", Path: "/usr/lib/libEGL_nvidia.so.0"},
			{Name: "libmine.so", Path: "/opt/lib/libmine.so"},
		},
	}
	s, err := ParseEnv([]string{"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute"})
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.PartOf("/", p)
	if want := []plan.Library{p.Libraries[0], p.Libraries[2]}; err != nil || !reflect.DeepEqual(got.Libraries, want) {
		t.Errorf("libraries %v, %v; want %v", got.Libraries, err, want)
	}
}
