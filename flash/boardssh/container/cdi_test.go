package container

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	cdispecs "tags.cncf.io/container-device-interface/specs-go"

	"slipway/flash/boardssh/sshtest"
)

// elsewhere is what a board with a device of its own runs each command by: with another
// node at a path than this machine has there, and without this machine's slipway-runtime.
const elsewhere = `#!/bin/sh
exec unshare -m --propagation private sh -c '
	mount --bind "$1" "$2" || exit
	while runtime=$(command -v slipway-runtime); do mount --bind /dev/null "$runtime" || exit; done
	exec sh -c "$SSH_ORIGINAL_COMMAND"' sh '%s' '%s'
`

// Containers get what the board's CDI specs say, by a real containerd and runc: libraries
// of a spec that our hook made, device nodes by the numbers that they have on the board,
// and hooks.
func TestCDI(t *testing.T) {
	t.Parallel()
	socket := startContainerd(t)
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	full, node := file("full"), file("node")
	makeNode(t, full, 7) // of /dev/full
	makeNode(t, node, 3) // of /dev/null
	sshtest.PlaceFile(t, file("board"), fmt.Sprintf(elsewhere, full, node), 0o755)
	if out, err := exec.Command("unshare", "-m", "--propagation", "private", "true").CombinedOutput(); err != nil {
		t.Skipf("mounts of its own cannot be made here: %v: %s", err, out)
	}
	containers := boardAt(t, sshtest.StartSSHD(t, "ForceCommand "+file("board")), socket)
	containers.cdi = []string{file("etc"), file("run")}
	librarySpec(t, dir)
	sshtest.PlaceFile(t, file("run/device.yaml"), fmt.Sprintf(deviceSpec, node, file("hook"), file("hooked")), 0o644)
	sshtest.PlaceFile(t, file("run/broken.json"), `{"cdiVersion": "\u001b[31m"`, 0o644)
	sshtest.PlaceFile(t, file("hook"), "#!/bin/sh\necho \"$1\" >>\"$2\"\n", 0o755)
	image, err := containers.PushFile(t.Context(), ociArchive(t, "1", v1.ImageConfig{}, 0))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, gpus, script, want, wantErr string
	}{
		{"a mount", "all", "busybox cat " + file("opt/libboard.so.1"), "of the board", ""},
		{"a device, and a hook", "lab.example/thing=full", "echo $CDI; busybox stat -c '%t %T %a' /dev/thing; echo x 2>&1 >/dev/thing", "by CDI\n1 7 640\nsh: write error: No space left on device", ""},
		{"both", "all,lab.example/thing=full", "busybox test -c /dev/thing && busybox test -e " + file("opt/libboard.so.1") + " && echo yes", "yes", ""},
		{"a node that is not there", "lab.example/thing=gone", "", "", "/dev/slipway-none"},
		{"no node", "lab.example/thing=plain", "", "", "no device"},
		{"a device of no spec", "7", "", "", "\nnext: on the board: slipway-hook cdi"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			stdout, stderr := sshtest.NewText(), sshtest.NewText()
			exit, err := containers.Run(t.Context(), Spec{
				Image: image, GPUs: tt.gpus, Argv: []string{"/bin/busybox", "sh", "-c", "PATH=/bin; " + tt.script},
				Out: &Outputs{stdout, stderr},
			})
			sshtest.CheckError(t, err, tt.wantErr)
			if got := strings.TrimSpace(stdout.String()); got != tt.want {
				t.Errorf("it says %q, %q, status %d; want %q", got, stderr, exit.Status, tt.want)
			}
		})
	}
	if got, err := os.ReadFile(file("hooked")); string(got) != "a hook\na hook\n" {
		t.Errorf("the hook wrote %q, %v; want a line for each of two containers", got, err)
	}
	_, err = containers.cdiEdits(t.Context(), []string{"nvidia.com/gpu=7"})
	for _, want := range []string{"nvidia.com/gpu=7", "nvidia.com/gpu=all", "lab.example/thing=full", file("run/broken.json") + ": "} {
		sshtest.CheckError(t, err, want)
	}
	if strings.ContainsAny(err.Error(), "\x1b") || strings.Contains(err.Error(), "slipway-cdi") {
		t.Errorf("the error is %q; want no control characters, and no file of this machine", err)
	}
	checkNothingLeft(t, containers)
}

const deviceSpec = `cdiVersion: "0.6.0"
kind: lab.example/thing
containerEdits:
  env: ["CDI=by CDI"]
devices:
- name: full
  containerEdits:
    deviceNodes:
    - {path: /dev/thing, hostPath: %[1]s}
    hooks:
    - {hookName: createRuntime, path: %[2]s, args: [hook, a hook, %[3]s]}
- name: gone
  containerEdits:
    deviceNodes: [{path: /dev/slipway-none}]
- name: plain
  containerEdits:
    deviceNodes: [{path: /dev/thing, hostPath: /etc/passwd}]
`

func makeNode(t *testing.T, name string, minor uint32) {
	t.Helper()
	if err := unix.Mknod(name, unix.S_IFCHR|0o640, int(unix.Mkdev(1, minor))); err != nil {
		t.Skipf("needs root, to make a device: %v", err)
	}
}

// librarySpec places a CDI spec in dir that mounts a file, and a file that is no spec.
func librarySpec(t *testing.T, dir string) {
	t.Helper()
	library := filepath.Join(dir, "opt/libboard.so.1")
	sshtest.PlaceFile(t, library, "of the board\n", 0o644)
	sshtest.PlaceFile(t, filepath.Join(dir, "etc/README"), "no spec\n", 0o644)
	sshtest.PlaceFile(t, filepath.Join(dir, "etc/slipway.json"), fmt.Sprintf(`{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu",
	"devices": [{"name": "0", "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=void"]}}, {"name": "all", "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=void"]}}],
	"containerEdits": {"mounts": [{"hostPath": %[1]q, "containerPath": %[1]q, "options": ["ro", "nosuid", "nodev", "bind", "private"]}]}}`, library), 0o644)
}

func TestCDIFiles(t *testing.T) {
	dirs := []string{"/etc/cdi", "/run/cdi"}
	for _, tt := range []struct{ name, list, wantErr string }{
		{"none", "", ""},
		{"some", "/etc/cdi/a.json\n/run/cdi/b.yaml\n", ""},
		{"another folder", "/etc/shadow.json\n", "no CDI spec"},
		{"a path outside", "/etc/cdi/../x.json\n", "no CDI spec"},
		{"another form", "/etc/cdi/a.txt\n", "no CDI spec"},
		{"too many", strings.Repeat("/etc/cdi/a.json\n", maxCDIFiles+1), "more than"},
	} {
		names, err := cdiFiles(tt.list, dirs)
		if sshtest.CheckError(t, err, tt.wantErr); err == nil && len(names) != strings.Count(tt.list, "\n") {
			t.Errorf("%s: %q", tt.name, names)
		}
	}
	if got, want := cdiDevices("0,all,lab.example/thing=x"), []string{"nvidia.com/gpu=0", "nvidia.com/gpu=all", "lab.example/thing=x"}; !cmp.Equal(got, want) {
		t.Errorf("cdiDevices = %q; want %q", got, want)
	}
}

// What the library finds complete, it does not ask this machine for.
func TestComplete(t *testing.T) {
	mode := func(m fs.FileMode) *fs.FileMode { return &m }
	for _, tt := range []struct {
		name    string
		node    cdispecs.DeviceNode
		line    string
		want    cdispecs.DeviceNode
		wantErr string
	}{
		{"nothing is known", cdispecs.DeviceNode{}, "21b6 f0 1", cdispecs.DeviceNode{Type: "c", Major: 240, Minor: 1, FileMode: mode(0o666)}, ""},
		{"a disk", cdispecs.DeviceNode{FileMode: mode(0o600)}, "61b0 8 10", cdispecs.DeviceNode{Type: "b", Major: 8, Minor: 16, FileMode: mode(0o600)}, ""},
		{"a pipe", cdispecs.DeviceNode{}, "11a4 0 0", cdispecs.DeviceNode{Type: "p", FileMode: mode(0o644)}, ""},
		{"all is known, and it is there", cdispecs.DeviceNode{Type: "c", Major: 5}, "21a4 f0 1", cdispecs.DeviceNode{Type: "c", Major: 5, FileMode: mode(0o644)}, ""},
		{"all is known, and it is not there", cdispecs.DeviceNode{Type: "c", Major: 5}, "none", cdispecs.DeviceNode{Type: "c", Major: 5, FileMode: mode(0o666)}, ""},
		{"it is not there", cdispecs.DeviceNode{}, "none", cdispecs.DeviceNode{}, "no such file"},
		{"another type", cdispecs.DeviceNode{Type: "b"}, "21b6 f0 1", cdispecs.DeviceNode{}, "no device"},
		{"a file", cdispecs.DeviceNode{}, "81a4 0 0", cdispecs.DeviceNode{}, "no device"},
		{"no number", cdispecs.DeviceNode{}, "21b6 0 0", cdispecs.DeviceNode{}, "no device"},
		{"words", cdispecs.DeviceNode{}, "not\x1b found here", cdispecs.DeviceNode{}, `stat says not\x1b`},
		{"a number too large", cdispecs.DeviceNode{}, "21b6 100000000 0", cdispecs.DeviceNode{}, "stat says"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			there, err := parseNode(tt.line)
			if err == nil {
				err = fillNode(&tt.node, there)
			}
			sshtest.CheckError(t, err, tt.wantErr)
			if diff := cmp.Diff(tt.want, tt.node); err == nil && diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Whatever a board has for a spec, the library ends with an error at most, and asks
// this machine for no file.
func FuzzCDI(f *testing.F) {
	f.Add([]byte(fmt.Sprintf(deviceSpec, "/dev/null", "/bin/true", "x")), "2190 1 3")
	f.Add([]byte(`{"cdiVersion":"0.3.0","kind":"lab.example/thing","devices":[{"name":"full","containerEdits":{"env":["A=b"]}}]}`), "none")
	f.Add([]byte("a: &a [*a, *a]"), "x y z")
	f.Fuzz(func(t *testing.T, data []byte, line string) {
		dir := t.TempDir()
		sshtest.PlaceFile(t, filepath.Join(dir, "spec.yaml"), string(data), 0o600)
		cache, err := cdi.NewCache(cdi.WithSpecDirs(dir), cdi.WithAutoRefresh(false))
		if err != nil {
			t.Fatal(err)
		}
		_ = describeSpecs(cache, nil)
		nodes, err := nodesOf(cache, []string{"lab.example/thing=full"})
		if err != nil {
			return
		}
		there, err := parseNode(line)
		for _, n := range nodes {
			if err == nil && fillNode(n, there) == nil && (n.FileMode == nil || n.Type == "") {
				t.Errorf("%+v is left to this machine", n)
			}
		}
	})
}
