package images

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

// Docker, podman, containerd and cri-o read CDI specs with one library, which the
// hook's module is too old for.
func TestHooksCDISpecInCDILibrary(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("go is not in PATH")
	}
	program := filepath.Join(t.TempDir(), "slipway-hook")
	mustRun(t, "go", "build", "-C", "../runtime-hook", "-o", program, ".")
	board := t.TempDir()
	for _, dir := range []string{"dev", "opt", "etc/nvidia-container-runtime/host-files-for-container.d"} {
		ok(t, os.MkdirAll(filepath.Join(board, dir), 0o755))
	}
	if err := unix.Mknod(filepath.Join(board, "dev/full"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 7))); err != nil {
		t.Skipf("needs root, to make a device: %v", err)
	}
	ok(t, os.Chown(filepath.Join(board, "dev/full"), 0, 44))
	ok(t, os.Chmod(filepath.Join(board, "dev/full"), 0o660))
	ok(t, os.WriteFile(filepath.Join(board, "opt/a.so.1"), nil, 0o644))
	ok(t, os.Symlink("a.so.1", filepath.Join(board, "opt/a.so")))
	ok(t, os.WriteFile(filepath.Join(board, "etc/nvidia-container-runtime/host-files-for-container.d/l4t.csv"), []byte("sym, /opt/a.so\ndev, /dev/full\n"), 0o644))

	for _, device := range []string{"all", "0"} {
		spec := inject(t, program, board, device)
		if h := spec.Hooks; h == nil || len(h.CreateRuntime) != 1 || !slices.Equal(h.CreateRuntime[0].Args, []string{"slipway-hook", "hook", "--devices=" + device}) || len(h.CreateRuntime[0].Env) != 2 {
			t.Errorf("%s gives the hooks %+v; want one with its environment", device, h)
		}
		checkDevice(t, spec)
	}
}

// inject is what the library makes of an empty spec with the device.
func inject(t *testing.T, program, board, device string) *specs.Spec {
	t.Helper()
	dir := t.TempDir()
	mustRun(t, program, "cdi", "--root", board, "--output", filepath.Join(dir, "slipway.json"))
	cache, err := cdi.NewCache(cdi.WithSpecDirs(dir), cdi.WithAutoRefresh(false))
	ok(t, err)
	for file, errs := range cache.GetErrors() {
		t.Errorf("the library refuses %s: %v", file, errs)
	}
	spec := &specs.Spec{}
	if left, err := cache.InjectDevices(spec, "nvidia.com/gpu="+device); err != nil || len(left) > 0 {
		t.Fatalf("the library cannot give %v: %v", left, err)
	}
	return spec
}

func checkDevice(t *testing.T, spec *specs.Spec) {
	t.Helper()
	if l := spec.Linux; l == nil || len(l.Devices) != 1 || l.Devices[0].Path != "/dev/full" || l.Devices[0].Major != 1 || len(l.Resources.Devices) != 1 {
		t.Errorf("the spec's linux is %+v; want the device and its rule", l)
	} else if d := l.Devices[0]; d.FileMode == nil || *d.FileMode != 0o660 || d.GID == nil || *d.GID != 44 {
		t.Errorf("the device is %+v; want the board's mode and group", d)
	}
	if gids := spec.Process.User.AdditionalGids; !slices.Equal(gids, []uint32{44}) {
		t.Errorf("the process is in the groups %v; want the device's", gids)
	}
	if !slices.Contains(spec.Process.Env, "NVIDIA_VISIBLE_DEVICES=void") {
		t.Errorf("the spec's environment is %q; want that other hooks have nothing to do", spec.Process.Env)
	}
}

func mustRun(t *testing.T, program string, args ...string) {
	t.Helper()
	if out, err := exec.Command(program, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v\n%s", program, args, err, out)
	}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
