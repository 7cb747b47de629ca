package layers

import (
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"slipway/layers/git"
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
