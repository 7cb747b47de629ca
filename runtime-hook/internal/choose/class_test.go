package choose

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write testdata/classes.txt again")

// All names that the lists of L4T R32 to R39 in meta-tegra's history have, each once,
// with what it is for.
func TestClassOfRealNames(t *testing.T) {
	const golden = "testdata/classes.txt"
	data, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
		words := strings.Fields(line)
		p := words[len(words)-1]
		fmt.Fprintf(&got, "%-30s %s\n", classOf(p), p)
	}
	if *update {
		if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	for i, line := range strings.Split(string(data), "\n") {
		if got := strings.Split(got.String(), "\n")[i]; got != line {
			t.Errorf("class %q; want %q (see it, and run with -update)", got, line)
		}
	}
}

// NVIDIA's desktop driver has names that no Jetson has.
func TestClassOfDesktopNames(t *testing.T) {
	tests := map[string]Capability{
		"/usr/lib/aarch64-linux-gnu/libcudadebugger.so.1":            Compute,
		"/usr/lib/aarch64-linux-gnu/libnvidia-opencl.so.1":           Compute,
		"/usr/lib/aarch64-linux-gnu/libnvidia-cfg.so.1":              Utility,
		"/usr/lib/aarch64-linux-gnu/libnvidia-ngx.so.1":              NGX,
		"/usr/lib/aarch64-linux-gnu/libnvoptix.so.1":                 Graphics | Display,
		"/usr/lib/aarch64-linux-gnu/libvdpau_nvidia.so":              Video,
		"/usr/lib/aarch64-linux-gnu/nvidia/xorg/nvidia_drv.so":       Graphics | Display,
		"/usr/lib/arm-linux-gnueabihf/libcuda.so.1":                  Compat32,
		"/usr/lib/i386-linux-gnu/libEGL_nvidia.so.0":                 Compat32,
		"/usr/bin/nvidia-cuda-mps-control":                           Compute,
		"/dev/nvidia-caps/nvidia-cap1":                               all,
		"/usr/share/nvidia-container-passthrough/usr/lib/libcuda.so": Compute,
		"/home/fb0/x": all,
		"/usr/lib/aarch64-linux-gnu/gstreamer-1.0/libsomething-of.so": Video,
	}
	for p, want := range tests {
		if got := classOf(p); got != want {
			t.Errorf("the class of %s is %v; want %v", p, got, want)
		}
	}
}
