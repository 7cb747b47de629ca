package container

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"slipway/flash/boardssh"
	"slipway/flash/boardssh/boardtest"
	"slipway/flash/boardssh/sshd"
	"slipway/flash/boardssh/sshtest"
	"slipway/flash/flashtest"
	"slipway/layers/run"
)

const busybox = "/bin/busybox"

// ociArchive writes an image of busybox, and filler that does not compress.
func ociArchive(t *testing.T, name string, config v1.ImageConfig, filler int) string {
	t.Helper()
	blobs := map[string][]byte{}
	add := func(mediaType string, data []byte) v1.Descriptor {
		d := digest.FromBytes(data)
		blobs["blobs/sha256/"+d.Encoded()] = data
		return v1.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(data))}
	}
	addJSON := func(mediaType string, v any) v1.Descriptor {
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return add(mediaType, data)
	}
	layer := busyboxLayer(t, filler)
	sum := sha256.Sum256(layer)
	image := v1.Image{Platform: v1.Platform{Architecture: runtime.GOARCH, OS: "linux"}, Config: config}
	image.RootFS = v1.RootFS{Type: "layers", DiffIDs: []digest.Digest{digest.NewDigestFromBytes(digest.SHA256, sum[:])}}
	manifest := v1.Manifest{
		Versioned: imagespec.Versioned{SchemaVersion: 2},
		MediaType: v1.MediaTypeImageManifest,
		Config:    addJSON(v1.MediaTypeImageConfig, image),
		Layers:    []v1.Descriptor{add(v1.MediaTypeImageLayerGzip, compress(t, layer))},
	}
	entry := addJSON(v1.MediaTypeImageManifest, manifest)
	if name != "" {
		entry.Annotations = map[string]string{v1.AnnotationRefName: name}
	}
	index, err := json.Marshal(v1.Index{Versioned: manifest.Versioned, Manifests: []v1.Descriptor{entry}})
	if err != nil {
		t.Fatal(err)
	}
	blobs["index.json"] = index
	blobs["oci-layout"] = []byte(`{"imageLayoutVersion":"1.0.0"}`)
	return flashtest.Archive(t, "probe.tar", blobs)
}

func busyboxLayer(t *testing.T, filler int) []byte {
	t.Helper()
	program, err := os.ReadFile(busybox)
	if err != nil {
		t.Skipf("%v: install the Debian package busybox-static", err)
	}
	return flashtest.Layer(t, flashtest.Files{"bin/busybox": program, "filler": sshtest.RandomBytes(filler)})
}

func compress(t *testing.T, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// startContainerd runs a containerd of its own and returns its socket.
func startContainerd(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("containerd needs root")
	}
	for _, program := range []string{"containerd", "runc"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%v: install the Debian package %s", err, program)
		}
	}
	// Not t.TempDir: the path of a socket has to be short.
	dir, err := os.MkdirTemp("", "ctd")
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "c.sock")
	config := fmt.Sprintf(`version = 2
root = %q
state = %q
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
address = %q
[ttrpc]
address = %q
`, filepath.Join(dir, "root"), filepath.Join(dir, "state"), socket, socket+".ttrpc")
	if err := os.WriteFile(filepath.Join(dir, "config.toml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := run.Prepare(ctx, run.Command{Argv: []string{"containerd", "--config", filepath.Join(dir, "config.toml")}})
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		cmd.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		os.RemoveAll(dir)
	})
	for {
		if _, err := os.Stat(socket); err == nil {
			return socket
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ended:
			said, _ := os.ReadFile(log.Name())
			t.Fatalf("containerd did not start: %s", said)
		}
	}
}

// board is a server and a containerd.
func board(t *testing.T) (*boardssh.Conn, *Containerd) {
	t.Helper()
	socket := startContainerd(t)
	containers := boardAt(t, sshtest.StartSSHD(t), socket)
	return containers.conn, containers
}

func boardAt(t *testing.T, s *sshd.Server, socket string) *Containerd {
	t.Helper()
	containers, err := openContainerd(t.Context(), boardtest.Dial(t, boardtest.AddressOf(s)), socket, defaultNamespace)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { containers.Close() })
	containers.pipes = t.TempDir() // other tests have theirs
	return containers
}

// pushProbe pushes an image that knows its environment, and returns its name.
func pushProbe(t *testing.T, containers *Containerd) string {
	t.Helper()
	config := v1.ImageConfig{
		Env:        []string{"PATH=/bin", "A=image", "B=image"},
		Entrypoint: []string{"/bin/busybox", "sh", "-c"},
		Cmd:        []string{"echo default $A"},
		WorkingDir: "/bin",
	}
	image, err := containers.PushFile(t.Context(), ociArchive(t, "1", config, 0))
	if err != nil {
		t.Fatal(err)
	}
	if want := "slipway.local/probe:1"; image != want {
		t.Errorf("PushFile = %q; want %q", image, want)
	}
	if v, err := containers.Version(t.Context()); err != nil || v == "" {
		t.Errorf("Version = %q, %v", v, err)
	}
	return image
}

func TestContainers(t *testing.T) {
	t.Parallel()
	_, containers := board(t)
	image := pushProbe(t, containers)
	sh := func(script string) []string { return []string{"/bin/busybox", "sh", "-c", script} }
	hookDir := t.TempDir()
	hook := func(name, script string) string {
		path := filepath.Join(hookDir, name)
		if err := run.WriteProgram(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	tests := []struct {
		name    string
		c       Spec
		want    Exit
		wantErr string
	}{
		{"the image's own command", Spec{}, Exit{Output: []byte("default image\n")}, ""},
		{"error output and a status", Spec{Argv: sh("echo err >&2; exit 7")}, Exit{Status: 7, Output: []byte("err\n")}, ""},
		{"environment and folder", Spec{Argv: sh("echo $A $B $C; pwd"), Env: []string{"B=run", "C=run"}}, Exit{Output: []byte("image run run\n/bin\n")}, ""},
		{"no output", Spec{Argv: sh("true")}, Exit{}, ""},
		{"much output", Spec{Argv: sh("busybox yes | busybox head -c 3000000")}, Exit{Truncated: true}, ""},
		{"hook", Spec{Argv: sh("true"), Hook: hook("good", `grep -q '"status": *"creat' && test "$1" = hook`)}, Exit{}, ""},
		{"hook fails", Spec{Argv: sh("true"), Hook: hook("bad", `printf 'no \033[31mlibrary\n' >&2; exit 1`)}, Exit{}, `no \x1b[31mlibrary`},
		{"no hook there", Spec{Argv: sh("true"), Hook: "/nonexistent/hook"}, Exit{}, "/nonexistent/hook"},
		{"no such program", Spec{Argv: []string{"/nonexistent/program"}}, Exit{}, "/nonexistent/program"},
		{"no such image", Spec{Image: "slipway.local/none:1"}, Exit{}, "slipway.local/none:1"},
		{"endless", Spec{Argv: sh("busybox sleep 600"), Timeout: 2 * time.Second}, Exit{}, "did not end within 2s"},
		{"endless output", Spec{Argv: sh("busybox yes"), Timeout: time.Minute}, Exit{}, "its output has no end"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.c.Image == "" {
				tt.c.Image = image
			}
			got, err := containers.Run(t.Context(), tt.c)
			sshtest.CheckError(t, err, tt.wantErr)
			got.Elapsed = 0
			if got.Truncated && tt.want.Truncated {
				got.Output = nil
			}
			if diff := cmp.Diff(tt.want, got, cmp.Comparer(bytes.Equal)); diff != "" {
				t.Errorf("Run (-want +got):\n%s", diff)
			}
			checkNothingLeft(t, containers)
		})
	}
	t.Run("Ctrl-C", func(t *testing.T) { testCtrlC(t, containers, image) })
}

// A container that asks for GPUs is started by the board's slipway-runtime.
func TestGPUs(t *testing.T) {
	t.Parallel()
	socket, dir := startContainerd(t), t.TempDir()
	runtime, called := filepath.Join(dir, "slipway-runtime"), filepath.Join(dir, "called")
	inDir := boardAt(t, sshtest.StartSSHD(t, "SetEnv PATH="+dir+":/usr/sbin:/usr/bin:/sbin:/bin"), socket)
	image := pushProbe(t, inDir)
	spec := Spec{Image: image, GPUs: "all", Argv: []string{"/bin/busybox", "sh", "-c", "echo $NVIDIA_VISIBLE_DEVICES"}}
	_, err := inDir.Run(t.Context(), spec)
	sshtest.CheckError(t, err, "no slipway-runtime, which gives containers their GPUs\nnext: on the board: ln -s slipway-hook")
	sshtest.PlaceFile(t, runtime, "#!/bin/sh\ntouch "+called+"\nexec runc \"$@\"\n", 0o755)
	exit, err := inDir.Run(t.Context(), spec)
	if err != nil || string(exit.Output) != "all\n" {
		t.Errorf("Run = %q, %v; want the GPUs in the container's environment", exit.Output, err)
	}
	if _, err := os.Stat(called); err != nil {
		t.Errorf("containerd did not call slipway-runtime: %v", err)
	}
	checkNothingLeft(t, inDir)
}

func TestCDIDevices(t *testing.T) {
	if got, want := cdiDevices("0,all,lab.example/thing=x"), []string{"nvidia.com/gpu=0", "nvidia.com/gpu=all", "lab.example/thing=x"}; !cmp.Equal(got, want) {
		t.Errorf("cdiDevices = %q; want %q", got, want)
	}
}

func testCtrlC(t *testing.T, containers *Containerd, image string) {
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		for t.Context().Err() == nil { // until it runs
			if list, _ := containers.List(t.Context()); len(list) == 1 && list[0].State == "running" {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()
	_, err := containers.Run(ctx, Spec{Image: image, Argv: []string{"/bin/busybox", "sh", "-c", "busybox sleep 600"}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Run = %v; want %v", err, context.Canceled)
	}
	checkNothingLeft(t, containers)
}

func checkNothingLeft(t *testing.T, containers *Containerd) {
	t.Helper()
	list, err := containers.client.Containers(namespaces.WithNamespace(context.Background(), defaultNamespace))
	if err != nil || len(list) != 0 {
		t.Errorf("containers left: %v, %v", list, err)
	}
	if left, err := filepath.Glob(containers.pipes + "/*"); err != nil || len(left) != 0 {
		t.Errorf("pipes left: %q, %v", left, err)
	}
}

func TestImportAgainSendsNoBlobs(t *testing.T) {
	t.Parallel()
	s := sshtest.StartSSHD(t)
	socket := startContainerd(t)
	archive := ociArchive(t, "", v1.ImageConfig{}, 2<<20)
	// The relay would cut the connection if the layer were sent again.
	var names []string
	for _, limit := range []int64{64 << 20, 1 << 20} {
		a, _ := boardtest.StartRelay(t, boardtest.AddressOf(s), limit, false)
		c := boardtest.Dial(t, a)
		containers, err := openContainerd(t.Context(), c, socket, defaultNamespace)
		if err != nil {
			t.Fatal(err)
		}
		name, err := containers.PushFile(t.Context(), archive)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
		containers.Close()
	}
	if names[0] != names[1] || !strings.HasPrefix(names[0], "slipway.local/probe@sha256:") {
		t.Errorf("names %q; want one twice, made of the digest", names)
	}
}

func TestImportRefuses(t *testing.T) {
	t.Parallel()
	_, containers := board(t)
	dir := t.TempDir()
	garbage := filepath.Join(dir, "garbage.tar")
	if err := os.WriteFile(garbage, sshtest.RandomBytes(4096), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{garbage, filepath.Join(dir, "missing.tar")} {
		_, err := containers.PushFile(t.Context(), file)
		sshtest.CheckError(t, err, file)
	}
}

func TestOpenContainersWithoutContainerd(t *testing.T) {
	c := boardtest.Connect(t)
	sshtest.CheckTakes(t, 5*time.Second, func() {
		_, err := openContainerd(t.Context(), c, filepath.Join(t.TempDir(), "none.sock"), defaultNamespace)
		sshtest.CheckError(t, err, "none.sock")
	})
}

// noSockets has a server forward ports alone.
const noSockets = "AllowStreamLocalForwarding no"

// A real containerd is filled and used through such a program.
func TestContainersByBridge(t *testing.T) {
	t.Parallel()
	sshtest.LinkPrograms(t, "socat")
	containers := boardAt(t, sshtest.StartSSHD(t, noSockets), startContainerd(t))
	image, err := containers.PushFile(t.Context(), ociArchive(t, "1", v1.ImageConfig{Cmd: []string{"/bin/busybox", "echo", "here"}}, 3<<20))
	if err != nil {
		t.Fatal(err)
	}
	stdout := sshtest.NewText()
	exit, err := containers.Run(t.Context(), Spec{Image: image, Out: &Outputs{stdout, sshtest.NewText()}})
	if err != nil || exit.Status != 0 || stdout.String() != "here\n" {
		t.Errorf("Run = %+v, %v, %q", exit, err, stdout)
	}
	checkNothingLeft(t, containers)
}
