package container

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"slipway/flash/boardssh"
	"slipway/flash/boardssh/boardtest"
	"slipway/flash/boardssh/sshtest"
)

// hangingDocker simulates docker, of which one command never ends.
const hangingDocker = `#!/bin/sh
echo "$*" >>DIR/calls
case "$*" in
HANG*) exec sleep 1000 ;;
"image inspect"*) exit 1 ;;
esac
`

// Each question to an engine has the limit of silence, also where a wrong answer would do.
func TestSilentDocker(t *testing.T) {
	image := localImage(t, "v1", []byte("more"))
	var all sync.WaitGroup
	begin := make(chan struct{})
	for hang, ask := range map[string]func(context.Context, *docker) error{
		"version": func(ctx context.Context, d *docker) error {
			_, err := OpenEngine(ctx, d.conn, "", "") // podman is not asked then
			return err
		},
		"image inspect": func(ctx context.Context, d *docker) error {
			_, err := d.Push(ctx, image, "lab/app:1")
			return err
		},
		"info": func(ctx context.Context, d *docker) error {
			_, err := d.Run(ctx, Spec{Image: "lab/app:1", GPUs: "all"})
			return err
		},
		"ps": func(ctx context.Context, d *docker) error {
			_, err := d.List(ctx)
			return err
		},
	} {
		dir := t.TempDir()
		script := strings.NewReplacer("DIR", dir, "HANG", `"`+hang+`"`).Replace(hangingDocker)
		for _, name := range []string{"docker", "podman"} {
			sshtest.PlaceFile(t, filepath.Join(dir, name), script, 0o755)
		}
		d := &docker{conn: boardtest.Connect(t, "SetEnv PATH="+dir+":/usr/bin:/bin"), program: "docker"}
		all.Go(func() {
			<-begin
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			wantSilence(t, hang, ask(ctx, d), "run docker on ", "\nnext: ssh ")
			calls, err := os.ReadFile(filepath.Join(dir, "calls"))
			if !strings.HasPrefix(string(calls), hang) || strings.Count(string(calls), "\n") != 1 {
				t.Errorf("%s: %q, %v; want nothing after it", hang, calls, err)
			}
		})
	}
	t.Setenv(boardssh.SilenceVariable, "2s") // connections have the usual limit
	close(begin)
	all.Wait()
}

func wantSilence(t *testing.T, what string, err error, texts ...string) {
	t.Helper()
	for _, text := range append(texts, "no progress for 2s", boardssh.SilenceVariable) {
		if !errors.Is(err, boardssh.ErrSilent) || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v; want %v and %q", what, err, boardssh.ErrSilent, text)
		}
	}
}

// A containerd that takes questions and does not answer: from the beginning, or later.
func TestSilentContainerd(t *testing.T) {
	socket, containerd := filepath.Join(t.TempDir(), "s"), startContainerd(t)
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var silent sync.Mutex // held while containerd answers nothing
	go func() {
		for {
			here, err := l.Accept()
			if err != nil {
				return
			}
			there, err := net.Dial("unix", containerd)
			if err != nil {
				here.Close()
				return
			}
			go io.Copy(there, here)
			go func() {
				defer here.Close()
				io.Copy(waitingWriter{here, &silent}, there)
			}()
		}
	}()
	c := boardtest.Connect(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	e, err := openContainerd(ctx, c, socket, defaultNamespace)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	t.Setenv(boardssh.SilenceVariable, "2s")
	silent.Lock()
	defer silent.Unlock()
	_, err = e.List(ctx)
	wantSilence(t, "List", err, "list containers on ", "\nnext: systemctl status containerd  # on the board")
	_, err = openContainerd(ctx, c, socket, defaultNamespace)
	wantSilence(t, "openContainerd", err, "open containerd's "+socket+" on ", "\nnext: systemctl status containerd  # on the board")
}

// waitingWriter waits for a lock before each write.
type waitingWriter struct {
	to io.Writer
	mu *sync.Mutex
}

func (w waitingWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.to.Write(b)
}

func TestTagOfDigest(t *testing.T) {
	digest := "@sha256:" + strings.Repeat("0123456789abcdef", 4)
	for name, want := range map[string]string{
		"lab:5000/app:1":          "lab:5000/app:1",
		"lab:5000/app" + digest:   "lab:5000/app:0123456789ab",
		"lab:5000/app:1" + digest: "lab:5000/app:0123456789ab",
		"app:1@sha256:abc":        "app:abc",
	} {
		if got := tagOfDigest(name); got != want {
			t.Errorf("tagOfDigest(%q) = %q; want %q", name, got, want)
		}
	}
}

// Prune does not remove the image that is called keep. List does not fail for a board with very
// many containers.
func TestDockerPruneAndList(t *testing.T) {
	dir := t.TempDir()
	sshtest.PlaceFile(t, filepath.Join(dir, "docker"), "#!/bin/sh\ncase $2 in inspect) echo sha256:old ;; --all) yes 'c|i|s|t' | head -n 1001 ;; esac\n", 0o755)
	d := &docker{conn: boardtest.Connect(t, "SetEnv PATH="+dir+":/usr/bin:/bin"), program: "docker", replaced: "sha256:old"}
	if pruned, err := d.Prune(t.Context(), "lab/app:1"); err != nil || len(pruned) > 0 {
		t.Errorf("Prune = %q, %v; want nothing", pruned, err)
	}
	if left, err := d.List(t.Context()); err != nil || len(left) != maxListed {
		t.Errorf("List = %d containers, %v; want %d", len(left), err, maxListed)
	}
}
