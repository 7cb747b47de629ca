package layers

import (
	"io"
	"math/rand/v2"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"slipway/layers/git"
	"slipway/layers/run"
)

// A server that answers, one that says no, one that says nothing; and a commit that is
// in the mirror already.
func TestReach(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed (Debian package git)")
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	dir := t.TempDir()
	ws := Workspace{Dir: filepath.Join(dir, "checkouts"), Mirrors: filepath.Join(dir, "mirrors")}
	there := filepath.Join(dir, "there")
	for _, args := range [][]string{
		{"init", "-q", there},
		{"-C", there, "-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "-q", "--allow-empty", "-m", "one"},
	} {
		if out, err := exec.Command("git", args...).CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	head, err := exec.Command("git", "-C", there, "rev-parse", "HEAD").Output()
	if err != nil {
		t.Fatal(err)
	}
	commit := strings.TrimSpace(string(head))
	p := Project{Root: dir, Repos: []Repo{
		{Remote: git.Remote{ID: "here", URL: there, Commit: commit}, Name: "here"},
		{Remote: git.Remote{ID: "gone", URL: filepath.Join(dir, "gone"), Commit: commit}, Name: "gone"},
		{Remote: git.Remote{ID: "silent", URL: "git://" + silent.Addr().String() + "/x", Commit: commit}, Name: "silent"},
		{Remote: git.Remote{ID: "own"}, Name: "own"},
	}}
	only := p
	only.Repos = p.Repos[:1]
	if err := Checkout(t.Context(), only, ws); err != nil {
		t.Fatal(err)
	}
	const limit = 3 * time.Second // a busy machine's git answers in less
	began := time.Now()
	got, err := Reach(t.Context(), p, ws, limit)
	if err != nil || len(got) != 3 {
		t.Fatalf("Reach = %+v, %v; want three answers", got, err)
	}
	if took := time.Since(began); took > 5*limit {
		t.Errorf("Reach took %v with a limit of %v", took, limit)
	}
	if got[0].Err != nil || !got[0].Here {
		t.Errorf("here: %+v; want it reached and held", got[0])
	}
	if got[1].Err == nil || got[1].Here {
		t.Errorf("gone: %+v; want an error", got[1])
	}
	if got[2].Err == nil || !strings.Contains(got[2].Err.Error(), "no answer within 3s") {
		t.Errorf("silent: %v; want the limit", got[2].Err)
	}
}

func TestBranchOfSHA256(t *testing.T) {
	dir := t.TempDir()
	url := filepath.Join(dir, "there")
	mustRun(t, dir, "git", "init", "-q", "--object-format=sha256", "-b", "main", url)
	mustRun(t, url, "git", "-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "-q", "--allow-empty", "-m", "one")
	ws := Workspace{Dir: filepath.Join(dir, "checkouts"), Mirrors: filepath.Join(dir, "mirrors")}
	p := Project{Root: dir, Repos: []Repo{{Name: "r", Remote: git.Remote{ID: "r", URL: url, Branch: "main"}}}}
	if err := Checkout(t.Context(), p, ws); err == nil || !strings.Contains(err.Error(), "have 64 digits") || !strings.Contains(err.Error(), "\nnext: git ls-remote "+url+"  # ") {
		t.Errorf("Checkout = %v; want that the ids are longer, and what is next", err)
	}
	p.Repos[0].Commit = strings.TrimSpace(mustRun(t, url, "git", "rev-parse", "HEAD"))
	if err := Checkout(t.Context(), p, ws); err != nil {
		t.Error(err)
	}
}

// gitServer answers git:// for repositories of this machine. It sends at most the bytes of most on
// each connection, and is silent then. The hook runs git pack-objects.
func gitServer(t *testing.T, hook string, most *atomic.Int64) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	t.Cleanup(func() { close(ended); listener.Close() })
	go func() {
		for conn, err := listener.Accept(); err == nil; conn, err = listener.Accept() {
			in, err := conn.(*net.TCPConn).File()
			if err != nil {
				continue
			}
			out, left := io.Writer(conn), most.Load()
			cmd := exec.Command("git", "-c", "uploadpack.packObjectsHook="+hook, "-c", "uploadpack.keepAlive=0", "-c", "safe.directory=*", "daemon", "--inetd", "--export-all")
			cmd.Stdin, cmd.Stdout = in, writerFunc(func(p []byte) (int, error) {
				n := min(int64(len(p)), left)
				left -= n
				if _, err := out.Write(p[:n]); err != nil || n == int64(len(p)) {
					return len(p), err
				}
				<-ended
				return 0, io.ErrClosedPipe
			})
			go func() {
				_ = cmd.Run()
				in.Close()
				conn.Close()
			}()
		}
	}()
	return "git://" + listener.Addr().String()
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// A checkout ends if its server is silent, at once or in the middle, and nothing is in the way of
// the next one. A server that says that it counts objects may take its time.
func TestCheckoutFromASilentServer(t *testing.T) {
	url, _, _ := server(t)
	big := make([]byte, 1<<20)
	for i := range big {
		big[i] = byte(rand.Uint32())
	}
	write(t, url, map[string]string{"big": string(big)})
	mustRun(t, url, "git", "add", "big")
	mustRun(t, url, "git", "commit", "-q", "-m", "big")
	head := headOf(t, url)
	hook := filepath.Join(t.TempDir(), "hook")
	const script = `#!/bin/sh
for i in 1 2 3 4 5 6; do
	case "$*" in *--progress*) echo "Counting objects: $i" >&2 ;; esac
	sleep 0.5
done
exec "$@"
`
	if err := run.WriteProgram(hook, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SLIPWAY_SILENCE", "2s")
	var most atomic.Int64
	url = gitServer(t, hook, &most) + url
	ws := mirrored(t)
	for _, tt := range []struct {
		most int64
		pin  string
	}{{0, "branch: main"}, {0, "refspec: main"}, {400_000, "commit: " + head}} {
		most.Store(tt.most)
		err := Checkout(t.Context(), loadRepo(t, "url: "+url+", "+tt.pin), ws)
		if err == nil || !strings.Contains(err.Error(), "p.yml:3:6: repos.r: cannot fetch from "+url+": git: ended after 2s without output or data\nnext: SLIPWAY_SILENCE=30m repeat the line") {
			t.Errorf("Checkout of %s from a server that is silent after %d bytes = %v; want that, and what is next", tt.pin, tt.most, err)
		}
	}
	most.Store(1 << 40)
	if err := Checkout(t.Context(), loadRepo(t, "url: "+url+", commit: "+head), ws); err != nil || headOf(t, filepath.Join(ws.Dir, "r")) != head {
		t.Errorf("Checkout from a server that counts for 3 s = %v; want it whole", err)
	}
}
