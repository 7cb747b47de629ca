package container

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"slipway/flash/boardssh"
	"slipway/flash/boardssh/boardtest"
	"slipway/flash/boardssh/sshtest"
)

// startDocker runs a dockerd of its own and connects to a board that has it.
func startDocker(t *testing.T) *boardssh.Conn {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("dockerd needs root")
	}
	for _, program := range []string{"/usr/sbin/dockerd", "/usr/bin/docker", "containerd", "runc"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%v: install the Debian package docker.io", err)
		}
	}
	dir, err := os.MkdirTemp("", "dkr") // the path of a socket has to be short
	if err != nil {
		t.Fatal(err)
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	log, err := os.Create(file("log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command("/usr/sbin/dockerd", "--host", "unix://"+file("d.sock"), "--data-root", file("root"), "--exec-root", file("exec"),
		"--pidfile", file("pid"), "--storage-driver=vfs", "--iptables=false", "--ip6tables=false", "--bridge=none")
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
		cmd.Process.Signal(os.Interrupt) // it ends its containerd then
		<-ended
		_ = unix.Unmount(file("exec/netns/default"), unix.MNT_DETACH) // docker leaves it; it has none where no container ran
		os.RemoveAll(dir)
	})
	c := boardtest.Connect(t, "SetEnv DOCKER_HOST=unix://"+file("d.sock")+" HOME="+dir)
	for {
		_, err := openDocker(t.Context(), c, "docker")
		if err == nil {
			return c
		}
		select {
		case <-ended:
			said, _ := os.ReadFile(log.Name())
			t.Skipf("dockerd does not run on this machine: %s", said)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func TestEngineContainerd(t *testing.T) {
	t.Parallel()
	_, containers := board(t)
	testEngine(t, containers)
	if left, err := filepath.Glob(containers.pipes + "/*"); err != nil || len(left) != 0 {
		t.Errorf("left on the board: %q, %v", left, err)
	}
}

func TestEngineDocker(t *testing.T) {
	t.Parallel()
	c := startDocker(t)
	// There is no containerd at the usual place, so that docker is found.
	e, err := OpenEngine(t.Context(), c, "", defaultNamespace)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(e.String(), "docker ") {
		t.Skipf("this machine has %s at the usual place", e)
	}
	testEngine(t, e)
}

func TestDockerRefusesAHook(t *testing.T) {
	if argv, err := (&docker{program: "docker"}).runArgs(t.Context(), "id", Spec{Image: "i", Hook: "/h"}); err == nil || !strings.Contains(err.Error(), "docker starts no hook for one container: /h") {
		t.Errorf("runArgs = %q, %v; want the hook refused", argv, err)
	}
}

// testEngine is what every engine does.
func testEngine(t *testing.T, e Engine) {
	testPush(t, e)
	testOutputs(t, e)
	testRunRefuses(t, e)
	t.Run("a short name", func(t *testing.T) { testShortName(t, e) })
	t.Run("Ctrl-C", func(t *testing.T) { testEngineCtrlC(t, e) })
	t.Run("too long", func(t *testing.T) {
		c := inShell("/bin/busybox sleep 600")
		c.Timeout, c.Out = 3*time.Second, &Outputs{sshtest.NewText(), sshtest.NewText()}
		_, err := e.Run(t.Context(), c)
		sshtest.CheckError(t, err, "did not end within 3s")
	})
	checkLeft(t, e)
	t.Run("detached", func(t *testing.T) { testDetached(t, e) })
}

// testPush leaves lab/app:1 on the board.
func testPush(t *testing.T, e Engine) {
	image := localImage(t, "v1", []byte("more"))
	first, err := e.Push(t.Context(), image, "lab/app:1")
	if err != nil {
		t.Fatal(err)
	}
	if first.SentLayers != 2 || first.Layers != 2 || first.SentBytes < 1<<20 {
		t.Errorf("first push: %+v", first)
	}
	if again, err := e.Push(t.Context(), image, "lab/app:1"); err != nil || again.SentBytes != 0 || again.Replaced != "" {
		t.Errorf("second push: %+v, %v; want nothing sent", again, err)
	}
	t.Run("replaced", func(t *testing.T) {
		p, err := e.Push(t.Context(), localImage(t, "v1", []byte("other")), "lab/app:1")
		if err != nil || p.Replaced != first.Digest {
			t.Errorf("push of another image: %+v, %v; want %s replaced", p, err, first.Digest)
		}
		if _, err := e.Prune(t.Context(), "lab/app:1"); err != nil {
			t.Error(err)
		}
	})
}

// inShell is a container that runs a script.
func inShell(script string) Spec {
	return Spec{Image: "lab/app:1", Argv: []string{"/bin/busybox", "sh", "-c", script}}
}

func testOutputs(t *testing.T, e Engine) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("from the board\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name           string
		c              Spec
		status         uint32
		stdout, stderr string
	}{
		{"the image's own command", Spec{Image: "lab/app:1"}, 0, "hello\n", ""},
		{"outputs apart, and a status", inShell("echo out; echo err >&2; exit 7"), 7, "out\n", "err\n"},
		{"environment", func() Spec { c := inShell("echo $A"); c.Env = []string{"A=x y"}; return c }(), 0, "x y\n", ""},
		{"a mount", func() Spec {
			c := inShell("/bin/busybox cat /in/file")
			c.Mounts = []string{dir + ":/in:ro"}
			return c
		}(), 0, "from the board\n", ""},
		{"the board's network", func() Spec {
			c := inShell("/bin/busybox test -e /proc/net/tcp && echo yes")
			c.HostNet = true
			return c
		}(), 0, "yes\n", ""},
		{"much output", inShell("/bin/busybox yes 12345678901234567890 | /bin/busybox head -c 3000000"), 0, strings.Repeat("12345678901234567890\n", 142858)[:3000000], ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			stdout, stderr := sshtest.NewText(), sshtest.NewText()
			tt.c.Out = &Outputs{stdout, stderr}
			exit, err := e.Run(t.Context(), tt.c)
			if err != nil || exit.Status != tt.status {
				t.Errorf("Run = %+v, %v; want status %d", exit, err, tt.status)
			}
			if stdout.String() != tt.stdout || stderr.String() != tt.stderr {
				t.Errorf("%d bytes of stdout, stderr %q; want %d, %q", len(stdout.String()), stderr, len(tt.stdout), tt.stderr)
			}
		})
	}
}

func testRunRefuses(t *testing.T, e Engine) {
	for name, c := range map[string]Spec{
		"no such image":   {Image: "lab/none:1"},
		"no such program": {Image: "lab/app:1", Argv: []string{"/nonexistent"}},
		"a bad mount":     {Image: "lab/app:1", Mounts: []string{"relative:/x"}},
	} {
		t.Run(name, func(t *testing.T) {
			c.Out = &Outputs{sshtest.NewText(), sshtest.NewText()}
			exit, err := e.Run(t.Context(), c)
			if err == nil && exit.Status != 127 { // docker's, for programs
				t.Errorf("Run = %+v; want an error", exit)
			}
		})
	}
}

func testShortName(t *testing.T, e Engine) {
	if _, err := e.Push(t.Context(), localImage(t, "v1", []byte("more")), "docker.io/library/short:latest"); err != nil {
		t.Fatal(err)
	}
	if exit, err := e.Run(t.Context(), Spec{Image: "short", Out: &Outputs{sshtest.NewText(), sshtest.NewText()}}); err != nil || exit.Status != 0 {
		t.Errorf("Run = %+v, %v", exit, err)
	}
}

func testEngineCtrlC(t *testing.T, e Engine) {
	stdout := sshtest.NewText()
	ctx, cancel := context.WithCancel(t.Context())
	c := inShell("trap 'echo ended; exit' TERM; echo began; while :; do /bin/busybox sleep 0.1; done")
	c.Out = &Outputs{stdout, sshtest.NewText()}
	go func() {
		stdout.Await(t.Context(), "began")
		cancel()
	}()
	if _, err := e.Run(ctx, c); !errors.Is(err, context.Canceled) {
		t.Errorf("Run = %v; want %v", err, context.Canceled)
	}
}

func testDetached(t *testing.T, e Engine) {
	c := inShell("/bin/busybox sleep 600")
	c.Detach = true
	exit, err := e.Run(t.Context(), c)
	if err != nil || exit.Name == "" {
		t.Fatalf("Run = %+v, %v", exit, err)
	}
	checkLeft(t, e, exit.Name)
	if err := e.Remove(t.Context(), exit.Name); err != nil {
		t.Error(err)
	}
	checkLeft(t, e)
}

func checkLeft(t *testing.T, e Engine, want ...string) {
	t.Helper()
	left, err := e.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, l := range left {
		names = append(names, l.Name)
		if time.Since(l.Started) > time.Hour || l.Image == "" || l.State == "" {
			t.Errorf("left: %+v", l)
		}
	}
	if !slices.Equal(names, want) {
		t.Errorf("containers left: %q; want %q", names, want)
	}
}
