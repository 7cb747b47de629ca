package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"slipway/runtime-hook/internal/csv"
)

// realDriver is NVIDIA's driver of this machine.
type realDriver struct {
	folder    string   // the libraries' own
	libraries []string // those that the programs of this test use
	smi       string
	program   string   // testdata/gpu.c
	list      []string // what a board's list has
	uuid      string   // of the first GPU; "" if the driver reports none
}

var cudaPath = regexp.MustCompile(`libcuda\.so\.1 .* => (/.*)`) // in what ldconfig -p prints

// findDriver skips the test on a machine without the driver, a compiler or runc.
func findDriver(t *testing.T) *realDriver {
	t.Helper()
	if _, err := os.Stat("/dev/nvidia0"); err != nil {
		t.Skip("needs /dev/nvidia0, a GPU with NVIDIA's driver")
	}
	out, _ := exec.Command("ldconfig", "-p").Output()
	found := cudaPath.FindSubmatch(out)
	if found == nil {
		t.Skip("needs libcuda.so.1 of NVIDIA's driver, where ldconfig finds it")
	}
	cuda, err := filepath.EvalSymlinks(string(found[1]))
	must(t, err)
	d := &realDriver{folder: filepath.Dir(cuda)}
	for _, name := range []string{"libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1"} {
		d.libraries = append(d.libraries, filepath.Join(d.folder, name))
	}
	if d.smi, err = exec.LookPath("nvidia-smi"); err != nil {
		t.Skip("needs nvidia-smi of NVIDIA's driver")
	}
	d.listFiles(strings.TrimPrefix(filepath.Base(cuda), "libcuda.so."))
	d.program = filepath.Join(t.TempDir(), "gpu")
	if out, err := exec.Command("gcc", "-O2", "-o", d.program, "testdata/gpu.c", "-ldl").CombinedOutput(); err != nil {
		t.Skipf("needs gcc (Debian packages gcc, libc6-dev): %v\n%s", err, out)
	}
	d.uuid = strings.TrimSpace(d.query(t, "uuid", "0"))
	return d
}

// listFiles makes the list of the driver of a version: its libraries with their links,
// nvidia-smi, its firmware, and the devices.
func (d *realDriver) listFiles(version string) {
	files, _ := filepath.Glob(filepath.Join(d.folder, "*.so*"))
	for _, f := range files {
		real, err := filepath.EvalSymlinks(f)
		switch {
		case err != nil || !strings.HasSuffix(real, ".so."+version):
		case real == f:
			d.list = append(d.list, "lib, "+f)
		default:
			d.list = append(d.list, "sym, "+f)
		}
	}
	d.list = append(d.list, "lib, "+d.smi)
	for _, parent := range []string{"/lib/firmware", filepath.Join(d.folder, "../firmware")} {
		if dir := filepath.Join(parent, "nvidia", version); isFolder(dir) {
			d.list = append(d.list, "dir, "+dir)
		}
	}
	for _, device := range d.devices() {
		d.list = append(d.list, "dev, "+device)
	}
}

func isFolder(p string) bool {
	info, err := os.Stat(p)
	return err == nil && info.IsDir()
}

// devices returns the paths of the driver's devices.
func (d *realDriver) devices() (paths []string) {
	for _, pattern := range []string{"/dev/nvidia*", "/dev/nvidia-caps/*"} {
		found, _ := filepath.Glob(pattern)
		paths = append(paths, slices.DeleteFunc(found, isFolder)...)
	}
	return paths
}

// asks are the arguments of nvidia-smi that ask for properties of GPUs.
func asks(properties string) []string {
	return []string{"--query-gpu=" + properties, "--format=csv,noheader"}
}

const properties = "name,driver_version,memory.total,compute_cap,uuid"

// query returns what nvidia-smi says outside of containers about the GPUs of a name.
func (d *realDriver) query(t *testing.T, properties, name string) string {
	t.Helper()
	args := asks(properties)
	if name != "all" {
		args = append(args, "--id="+name)
	}
	out, err := exec.Command(d.smi, args...).Output()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", d.smi, args, err, out)
	}
	return string(out)
}

// compute returns what the program prints outside of containers with the GPUs of a name.
func (d *realDriver) compute(t *testing.T, name string) string {
	t.Helper()
	cmd := exec.Command(d.program)
	if name != "all" {
		cmd.Env = append(os.Environ(), "CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_VISIBLE_DEVICES="+name)
	}
	out, err := cmd.Output()
	if err != nil || !strings.HasSuffix(string(out), " numbers computed\n") {
		t.Fatalf("gpu with %s outside of a container printed %q, %v; want that it computes", name, out, err)
	}
	return string(out)
}

// askScript returns the line of a script that asks nvidia-smi for all GPUs.
func (d *realDriver) askScript() string {
	return d.smi + " " + strings.Join(asks(properties), " ") + "\n"
}

func (d *realDriver) newLab(t *testing.T, engine string) *lab {
	t.Helper()
	l := newLab(t, engine)
	l.shell()
	l.program(d.program, "nvidia")
	for _, file := range append([]string{d.smi}, d.libraries...) {
		l.copy(l.linked(file, "nvidia")...)
	}
	// A Jetson has lists of its own.
	if own, _ := filepath.Glob(csv.Dir + "/*.csv"); len(own) == 0 {
		l.lists(d.list...)
	}
	return l
}

// driverWays are the ways by which a container gets the driver.
var driverWays = []string{"hook", "runtime", "CDI"}

// container returns a container that asks for GPUs by a way. No name asks for nothing.
func (d *realDriver) container(l *lab, way, names, script string) container {
	l.t.Helper()
	c := container{script: script}
	if names != "" && way != "CDI" {
		c.env = []string{"NVIDIA_VISIBLE_DEVICES=" + names}
	}
	if way == "hook" {
		c.stage = "createRuntime"
	}
	var cdi cdiSpec
	if names != "" && way == "CDI" {
		cdi = readCDI(l.t, hookBinary(l.t), "cdi", "--output=-")
	}
	c.spec = func(s *specs.Spec) {
		s.Mounts = append(s.Mounts, specs.Mount{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"ro", "nosuid", "noexec", "nodev"}})
		denied(s)
		switch {
		case way == "hook":
			// A hook cannot allow devices in version 2 of the device cgroup.
			for _, device := range d.devices() {
				allow(l.t, s, device)
			}
		case way == "CDI" && names != "":
			cdi.apply(l.t, s, names)
		}
	}
	return c
}

func allow(t *testing.T, s *specs.Spec, device string) specs.LinuxDevice {
	t.Helper()
	var stat unix.Stat_t
	must(t, unix.Stat(device, &stat))
	major, minor := int64(unix.Major(stat.Rdev)), int64(unix.Minor(stat.Rdev))
	s.Linux.Resources.Devices = append(s.Linux.Resources.Devices, specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &major, Minor: &minor, Access: "rwm"})
	return specs.LinuxDevice{Path: device, Type: "c", Major: major, Minor: minor}
}

// cdiEdits and cdiSpec are the fields of a CDI spec that this test applies as engines do.
type cdiEdits struct {
	Env         []string
	DeviceNodes []struct{ Path string }
	Mounts      []struct {
		HostPath, ContainerPath string
		Options                 []string
	}
	Hooks []struct {
		HookName string
		specs.Hook
	}
}

type cdiSpec struct {
	ContainerEdits cdiEdits
	Devices        []struct {
		Name           string
		ContainerEdits cdiEdits
	}
}

// readCDI reads the spec that a program prints.
func readCDI(t *testing.T, program string, args ...string) (s cdiSpec) {
	t.Helper()
	out, err := exec.Command(program, args...).Output()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", program, args, err, out)
	}
	must(t, json.Unmarshal(out, &s))
	return s
}

// apply edits s for the device of a name.
func (c cdiSpec) apply(t *testing.T, s *specs.Spec, name string) {
	t.Helper()
	found := false
	c.ContainerEdits.apply(t, s)
	for _, device := range c.Devices {
		if device.Name == name {
			device.ContainerEdits.apply(t, s)
			found = true
		}
	}
	if !found {
		t.Errorf("the CDI spec has %+v; want the device %s", c.Devices, name)
	}
}

func (e cdiEdits) apply(t *testing.T, s *specs.Spec) {
	t.Helper()
	s.Process.Env = append(s.Process.Env, e.Env...)
	for _, node := range e.DeviceNodes {
		s.Linux.Devices = append(s.Linux.Devices, allow(t, s, node.Path))
	}
	for _, m := range e.Mounts {
		s.Mounts = append(s.Mounts, specs.Mount{Source: m.HostPath, Destination: m.ContainerPath, Type: "bind", Options: m.Options})
	}
	for _, h := range e.Hooks {
		switch h.HookName {
		case "createRuntime":
			s.Hooks.CreateRuntime = append(s.Hooks.CreateRuntime, h.Hook)
		case "createContainer":
			s.Hooks.CreateContainer = append(s.Hooks.CreateContainer, h.Hook)
		default:
			t.Errorf("a hook of the CDI spec is for %s; want createRuntime or createContainer", h.HookName)
		}
	}
}

// Programs use a real GPU in a container as outside of it, by each way and name. A container
// that does not ask has no GPU.
func TestRealDriver(t *testing.T) {
	d := findDriver(t)
	for _, engine := range []string{"runc", "crun"} {
		for _, way := range driverWays {
			t.Run(engine+"/"+way, func(t *testing.T) { d.testWay(t, engine, way) })
		}
		t.Run(engine+"/utility", func(t *testing.T) { d.testUtility(t, engine) })
		t.Run(engine+"/compute", func(t *testing.T) { d.testCompute(t, engine) })
		t.Run(engine+"/two containers", func(t *testing.T) { d.testTwo(t, engine) })
	}
}

func (d *realDriver) testWay(t *testing.T, engine, way string) {
	want := map[string]string{}
	names := slices.DeleteFunc([]string{"all", "0", d.uuid}, func(name string) bool { return name == "" })
	for _, name := range names {
		want[name] = d.query(t, properties, name) + d.compute(t, name)
	}
	l := d.newLab(t, engine)
	d.become(l, way)
	out, err := l.runContainer(d.container(l, way, "", "ls -R /dev; grep nvidia /proc/self/mountinfo; "+d.program))
	if err == nil || strings.Contains(out, "nvidia") || !strings.Contains(out, "libcuda.so.1: cannot open shared object file") {
		t.Errorf("without a name the container printed %q, %v; want that it has no GPU", out, err)
	}
	for _, name := range names {
		out, err := l.runContainer(d.container(l, way, name, d.askScript()+d.program))
		if err != nil || out != want[name] {
			t.Errorf("with %s the container printed %q, %v; want, as outside, %q", name, out, err, want[name])
		}
	}
	log, _ := os.ReadFile("/run/slipway/hook.log")
	if strings.Contains(string(log), "warning") {
		t.Errorf("log %q; want no warning", log)
	}
	t.Logf("the container printed\n%s\nand the log is\n%s", want["all"], log)
	d.testUnknown(l, way)
	d.testRequired(l, way)
}

// become makes the lab's engine slipway-runtime if that is the way.
func (d *realDriver) become(l *lab, way string) {
	l.t.Helper()
	if way != "runtime" {
		return
	}
	write(l.t, "/etc/slipway/hook.toml", fmt.Sprintf("[runtime]\nruntimes = [%q]\n", l.engine))
	must(l.t, os.Chmod("/etc/slipway/hook.toml", 0o644))
	l.engine = filepath.Join(l.dir, runtimeName)
	must(l.t, os.Symlink(hookBinary(l.t), l.engine))
}

// testUnknown asks for a GPU that the machine does not have.
func (d *realDriver) testUnknown(l *lab, way string) {
	l.t.Helper()
	if d.uuid == "" || way == "CDI" { // an engine finds no such device in the spec
		return
	}
	const unknown = "GPU-00000000-0000-0000-0000-000000000000"
	_, err := l.runContainer(d.container(l, way, unknown, d.program))
	log, _ := os.ReadFile("/run/slipway/hook.log")
	said := "names GPU " + unknown + "; the board has GPU 0 (" + d.uuid + ")"
	if err == nil || !strings.Contains(err.Error()+string(log), said) {
		l.t.Errorf("with %s: %v, log %q; want a failure that says %q", unknown, err, log, said)
	}
}

// testRequired runs containers that require an older and a newer driver than the machine's.
func (d *realDriver) testRequired(l *lab, way string) {
	l.t.Helper()
	if way == "CDI" { // an engine asks for the device whatever the image requires
		return
	}
	driver := strings.TrimSpace(d.query(l.t, "driver_version", "0"))
	for required, said := range map[string]string{
		"cuda>=11.0,driver>=470": "",
		"driver>=9999":           "the board has driver " + driver,
	} {
		must(l.t, os.RemoveAll("/run/slipway/hook.log"))
		c := d.container(l, way, "all", ":")
		c.env = append(c.env, "NVIDIA_REQUIRE_CUDA="+required)
		_, err := l.runContainer(c)
		log, _ := os.ReadFile("/run/slipway/hook.log")
		if (err == nil) != (said == "") || err != nil && !strings.Contains(err.Error()+string(log), said) {
			l.t.Errorf("with an image that requires %s: %v, log %q; want a failure that says %q", required, err, log, said)
		}
	}
	// Only the release of L4T tells the board's CUDA.
	must(l.t, os.RemoveAll("/run/slipway/hook.log"))
	c := d.container(l, way, "all", ":")
	c.env = append(c.env, "NVIDIA_REQUIRE_CUDA=cuda>=99")
	_, err := l.runContainer(c)
	log, _ := os.ReadFile("/run/slipway/hook.log")
	if err != nil || !strings.Contains(string(log), "the board does not tell: it has cuda unknown") {
		l.t.Errorf("with an image that requires cuda>=99: %v, log %q; want that the container runs, with a warning", err, log)
	}
}

// nvidia-smi needs no more than utility gives, which has no CUDA.
func (d *realDriver) testUtility(t *testing.T, engine string) {
	want := d.query(t, properties, "all") + "libcuda.so.1: cannot open shared object file: No such file or directory\n"
	d.testCapability(t, engine, "utility", d.askScript()+d.program+" || :", want)
}

// CUDA programs need no more than compute gives, which has no nvidia-smi.
func (d *realDriver) testCompute(t *testing.T, engine string) {
	d.testCapability(t, engine, "compute", "ls "+d.smi+" || "+d.program, d.compute(t, "all"))
}

func (d *realDriver) testCapability(t *testing.T, engine, capability, script, want string) {
	t.Helper()
	l := d.newLab(t, engine)
	c := d.container(l, "hook", "all", script)
	c.env = append(c.env, "NVIDIA_DRIVER_CAPABILITIES="+capability)
	if out, err := l.runContainer(c); err != nil || out != want {
		t.Errorf("with %s the container printed %q, %v; want %q", capability, out, err, want)
	}
}

// Two containers hold memory of the GPU at the same time, and then compute.
func (d *realDriver) testTwo(t *testing.T, engine string) {
	want := d.compute(t, "all")
	l := d.newLab(t, engine)
	if out, err := exec.Command("cp", "-a", filepath.Join(l.dir, "bundle"), filepath.Join(l.dir, "bundle2")).CombinedOutput(); err != nil {
		t.Fatalf("copy the bundle: %v\n%s", err, out)
	}
	var both []*waiting
	for _, bundle := range []string{"bundle", "bundle2"} {
		cmd, _ := l.command("run", bundle, d.container(l, "hook", "all", d.program+" wait"))
		both = append(both, startWaiting(t, cmd))
	}
	for _, w := range both {
		w.readUntil(t, "came back\n")
	}
	for _, w := range both {
		if out, err := w.finish(); err != nil || out != want {
			t.Errorf("the container printed %q, %v; want, as alone and outside, %q", out, err, want)
		}
	}
}

// waiting is a container whose program waits for a line.
type waiting struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	stdout *bufio.Reader
	read   string
}

func startWaiting(t *testing.T, cmd *exec.Cmd) *waiting {
	t.Helper()
	stdin, err := cmd.StdinPipe()
	must(t, err)
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	cmd.Stderr = os.Stderr
	must(t, cmd.Start())
	timer := time.AfterFunc(30*time.Second, func() { cmd.Process.Kill() })
	t.Cleanup(func() { timer.Stop() })
	return &waiting{cmd: cmd, stdin: stdin, stdout: bufio.NewReader(stdout)}
}

func (w *waiting) readUntil(t *testing.T, end string) {
	t.Helper()
	for !strings.HasSuffix(w.read, end) {
		line, err := w.stdout.ReadString('\n')
		if w.read += line; err != nil {
			t.Fatalf("the container printed %q, %v; want %q", w.read, err, end)
		}
	}
}

// finish ends the program's wait and returns all that it printed.
func (w *waiting) finish() (string, error) {
	w.stdin.Close()
	rest, err := io.ReadAll(w.stdout)
	if waitErr := w.cmd.Wait(); err == nil {
		err = waitErr
	}
	return w.read + string(rest), err
}
