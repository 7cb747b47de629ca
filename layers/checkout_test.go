package layers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"golang.org/x/sys/unix"

	"slipway/layers/git"
	"slipway/layers/localfile"
	"slipway/layers/progress"
	"slipway/layers/progress/progresstest"
	"slipway/layers/yaml"
)

// mustRun runs a program for a test and returns what it wrote.
func mustRun(t *testing.T, dir string, argv ...string) string {
	t.Helper()
	return feed(t, dir, "", argv...)
}

// feed runs a program that reads stdin.
func feed(t *testing.T, dir, stdin string, argv ...string) string {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(stdin)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_AUTHOR_NAME=t", "GIT_AUTHOR_EMAIL=t@localhost", "GIT_COMMITTER_NAME=t", "GIT_COMMITTER_EMAIL=t@localhost")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// server makes a repository with two commits on main, the first tagged v1, and returns its folder
// and both commits. Nearly all tests begin with one, so git makes it once, and they get copies.
func server(t *testing.T) (dir, first, second string) {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed (Debian package git)")
	}
	dir = t.TempDir()
	served.Do(func() { served.files, served.first, served.second = makeServer(t) })
	if err := os.CopyFS(dir, served.files); err != nil {
		t.Fatal(err)
	}
	return dir, served.first, served.second
}

var served struct {
	sync.Once
	files         fstest.MapFS
	first, second string
}

func makeServer(t *testing.T) (files fstest.MapFS, first, second string) {
	t.Helper()
	dir := t.TempDir()
	mustRun(t, dir, "git", "init", "-q", "-b", "main", "--template=")
	var stream strings.Builder
	data := func(text string) { fmt.Fprintf(&stream, "data %d\n%s\n", len(text), text) }
	for i, content := range []string{"one", "two"} {
		fmt.Fprintf(&stream, "commit refs/heads/main\nmark :%d\ncommitter t <t@localhost> 1700000000 +0000\n", i+1)
		data(content)
		for _, name := range []string{"conf/layer.conf", "recipes/" + content + ".bb", "new-" + content + "/file"} {
			fmt.Fprintf(&stream, "M 100644 inline %s\n", name)
			data(content)
		}
	}
	stream.WriteString("tag v1\nfrom :1\ntagger t <t@localhost> 1700000000 +0000\n")
	data("v1")
	marks := filepath.Join(dir, ".git/marks")
	feed(t, dir, stream.String(), "git", "fast-import", "--quiet", "--export-marks="+marks)
	mustRun(t, dir, "git", "reset", "-q", "--hard")
	ids, err := os.ReadFile(marks)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscanf(string(ids), ":1 %s\n:2 %s\n", &first, &second); err != nil {
		t.Fatalf("git's marks %q: %v", ids, err)
	}
	return inMemory(t, dir), first, second
}

// inMemory reads a folder, also the empty ones, without which git knows no repository.
func inMemory(t *testing.T, dir string) fstest.MapFS {
	t.Helper()
	files := fstest.MapFS{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		f := &fstest.MapFile{Mode: info.Mode()}
		if !d.IsDir() {
			f.Data, err = os.ReadFile(path)
		}
		files[strings.TrimPrefix(path, dir+"/")] = f
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func load(t *testing.T, dir, content string) Project {
	t.Helper()
	write(t, dir, map[string]string{"p.yml": content})
	p, err := Load(t.Context(), filepath.Join(dir, "p.yml"), Workspace{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func repoFile(keys string) string { return "header: {version: 14}\nrepos:\n  r: {" + keys + "}\n" }

func headOf(t *testing.T, dir string) string { return mustRun(t, dir, "git", "rev-parse", "HEAD") }

// A cold checkout waits for git's programs one after another: a fetch and a checkout.
func TestColdCheckoutStartsGitTwice(t *testing.T) {
	url, first, _ := server(t)
	for name, ws := range map[string]Workspace{"a mirror": mirrored(t), "no mirror": {Dir: t.TempDir()}} {
		p, trace := loadRepo(t, "url: "+url+", commit: "+first), filepath.Join(t.TempDir(), "trace")
		t.Setenv("GIT_TRACE2_EVENT", trace)
		err := Checkout(t.Context(), p, ws)
		os.Unsetenv("GIT_TRACE2_EVENT")
		if err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(trace)
		if err != nil {
			t.Fatal(err)
		}
		var started []string
		for line := range strings.Lines(string(data)) {
			var e struct {
				Event, SID string
				Argv       []string
			}
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatal(err)
			}
			if e.Event == "start" && !strings.Contains(e.SID, "/") { // not of another git
				started = append(started, strings.Join(e.Argv, " "))
			}
		}
		if len(started) != 2 {
			t.Errorf("with %s: started %d of git's programs; want 2:\n%s", name, len(started), strings.Join(started, "\n"))
		}
		r := filepath.Join(ws.Dir, "r")
		if got := mustRun(t, r, "git", "rev-parse", "refs/slipway/checkout"); got != first || headOf(t, r) != first {
			t.Errorf("with %s: refs/slipway/checkout is %s; want %s", name, got, first)
		}
		mustRun(t, r, "git", "fsck", "--full", "--strict")
	}
}

func TestCheckout(t *testing.T) {
	url, first, second := server(t)
	tests := []struct{ name, keys, want, wantErr string }{
		{"commit", "url: " + url + ", commit: " + first, first, ""},
		{"branch", "url: " + url + ", branch: main", second, ""},
		{"tag", "url: " + url + ", tag: v1", first, ""},
		{"tag at the pinned commit", "url: " + url + ", tag: v1, commit: " + first, first, ""},
		{"tag elsewhere", "url: " + url + ", tag: v1, commit: " + second, "", "the tag was moved or the pin is wrong"},
		{"no such tag beside a commit", "url: " + url + ", tag: none, commit: " + first, "", "\nnext: git ls-remote " + url},
		{"no such commit", "url: " + url + ", commit: " + sha, "", "commit " + sha + " is not in"},
		{"no such branch", "url: " + url + ", branch: none", "", " has no refs/heads/none\nnext: git ls-remote "},
		{"no such url", "url: " + url + "x, branch: main", "", "does not appear to be a git repository"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			err := Checkout(t.Context(), load(t, dir, repoFile(tt.keys)), Workspace{Dir: dir})
			if tt.wantErr == "" {
				if err != nil || headOf(t, filepath.Join(dir, "r")) != tt.want {
					t.Errorf("Checkout = %v; want HEAD at %s", err, tt.want)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("Checkout = %v; want an error with %q", err, tt.wantErr)
			}
			if server := tt.name == "no such url"; errors.Is(err, yaml.ErrProject) == server {
				t.Errorf("the project file is wrong: %t; want %t", server, !server)
			}
			if localfile.Exists(filepath.Join(dir, "r")) || localfile.Exists(filepath.Join(dir, ".partial-r")) {
				t.Error("a failed checkout left a folder behind")
			}
		})
	}
}

// A whole clone of a large repository would come before the error else.
func TestCheckoutOfACommitThatNobodyHas(t *testing.T) {
	url, _, _ := server(t)
	p := load(t, t.TempDir(), repoFile("url: "+url+", branch: main")+"overrides:\n  repos:\n    r: {commit: "+sha+"}\n")
	ws := mirrored(t)
	err := Checkout(t.Context(), p, ws)
	want := p.File + ":6:17: repos.r: commit " + sha + " is not in " + url + "; is the url or the commit mistyped?\nnext: git ls-remote " + url
	if err == nil || err.Error() != want {
		t.Errorf("Checkout = %v; want %q", err, want)
	}
	if got := mustRun(t, git.MirrorFor(ws.Mirrors, p.Repos[0].Remote).Dir, "git", "for-each-ref"); got != "" {
		t.Errorf("the mirror got %q; want nothing to be cloned", got)
	}
}

// Errors end in logs that many read, and mirrors in paths that are shown.
func TestCheckoutShowsNoPassword(t *testing.T) {
	p := load(t, t.TempDir(), repoFile("url: http://user:secret@127.0.0.1:1/r, commit: "+sha))
	ws := mirrored(t)
	err := Checkout(t.Context(), p, ws)
	if err == nil || !strings.Contains(err.Error(), "from http://127.0.0.1:1/r: ") || !strings.HasSuffix(err.Error(), "\nnext: git ls-remote http://127.0.0.1:1/r") || strings.Contains(err.Error(), "secret") {
		t.Errorf("Checkout = %v; want the url without its password", err)
	}
	if _, err := p.Repos[0].LookUp(t.Context()); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("tip = %v; want an error without the password", err)
	}
	made, err := os.ReadDir(ws.Mirrors)
	if err != nil || len(made) == 0 || strings.Contains(fmt.Sprint(made), "secret") {
		t.Errorf("mirrors: %v, %v; want one, whose name keeps the password to itself", made, err)
	}
}

// A server of git's older protocol may give the ends of branches only. It says so
// in one of two messages.
func TestCheckoutFromAnOldServer(t *testing.T) {
	for _, tips := range []string{"false", "true"} {
		url, _, second := server(t)
		mustRun(t, url, "git", "config", "uploadpack.allowTipSHA1InWant", tips)
		mustRun(t, url, "git", "commit", "-q", "--allow-empty", "-m", "three")
		config := filepath.Join(t.TempDir(), "gitconfig")
		write(t, filepath.Dir(config), map[string]string{"gitconfig": "[protocol]\n\tversion = 0\n"})
		t.Setenv("GIT_CONFIG_GLOBAL", config)
		ws := mirrored(t)
		if err := Checkout(t.Context(), loadRepo(t, "url: "+url+", commit: "+second), ws); err != nil || headOf(t, filepath.Join(ws.Dir, "r")) != second {
			t.Errorf("Checkout with tips allowed: %s = %v; want HEAD at %s", tips, err, second)
		}
		err := Checkout(t.Context(), loadRepo(t, "url: "+url+", commit: "+sha), mirrored(t))
		if err == nil || !strings.Contains(err.Error(), "commit "+sha+" is not in") {
			t.Errorf("Checkout of no commit with tips allowed: %s = %v; want that it is not there", tips, err)
		}
	}
}

// Each request to a server that does not answer may take minutes.
func TestCheckoutTriesABrokenServerOnce(t *testing.T) {
	broken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer broken.Close()
	var asked atomic.Int32
	go func() {
		for conn, err := broken.Accept(); err == nil; conn, err = broken.Accept() {
			asked.Add(1)
			conn.Close()
		}
	}()
	for _, pin := range []string{"commit: " + sha, "refspec: main", "tag: v1"} {
		asked.Store(0)
		err := Checkout(t.Context(), loadRepo(t, "url: git://"+broken.Addr().String()+"/r, "+pin), mirrored(t))
		if err == nil || !strings.Contains(err.Error(), "p.yml:3:6: repos.r: cannot fetch from git://") || asked.Load() != 1 {
			t.Errorf("Checkout of %s = %v, and asked %d times; want one time, and where the url comes from", pin, err, asked.Load())
		}
	}
}

// A branch whose name is a commit id must not stand in for the commit.
func TestCheckoutIgnoresBranchNamedLikeACommit(t *testing.T) {
	url, first, second := server(t)
	mustRun(t, url, "git", "update-ref", "refs/heads/"+first, second)
	mustRun(t, url, "git", "update-ref", "refs/tags/"+first, second)
	for _, ws := range []Workspace{mirrored(t), {Dir: t.TempDir()}} {
		if err := Checkout(t.Context(), loadRepo(t, "url: "+url+", commit: "+first), ws); err != nil {
			t.Fatal(err)
		}
		if got := headOf(t, filepath.Join(ws.Dir, "r")); got != first {
			t.Errorf("HEAD is %s; want the commit %s", got, first)
		}
	}
}

func TestCheckoutAgainDoesNothing(t *testing.T) {
	url, _, second := server(t)
	dir := t.TempDir()
	p := load(t, dir, repoFile("url: "+url+", branch: main"))
	seen := &progresstest.Recorder{}
	ctx := progress.With(t.Context(), progress.New(seen))
	for i, want := range []progress.State{progress.Done, progress.Cached} {
		if err := Checkout(ctx, p, Workspace{Dir: dir, Build: filepath.Join(dir, "build")}); err != nil {
			t.Fatal(err)
		}
		if seen.Last("layers").State != want {
			t.Errorf("run %d ended as %q; want %q", i+1, seen.Last("layers").State, want)
		}
	}
	mustRun(t, url, "git", "commit", "-q", "--allow-empty", "-m", "three")
	if err := Checkout(ctx, p, Workspace{Dir: dir}); err != nil || headOf(t, filepath.Join(dir, "r")) != second {
		t.Errorf("Checkout = %v; want the branch kept at %s until it is locked anew", err, second)
	}
}

// The command that checks out ends with the error, so its step does not say it too.
func TestFailedCheckoutIsSaidOnce(t *testing.T) {
	dir := t.TempDir()
	p := load(t, dir, repoFile("url: "+filepath.Join(dir, "nowhere")+", commit: "+strings.Repeat("0", 40)))
	seen := &progresstest.Recorder{}
	err := Checkout(progress.With(t.Context(), progress.New(seen)), p, Workspace{Dir: dir})
	if err == nil {
		t.Fatal("a server that is not there: no error")
	}
	if last := seen.Last("layers"); last.State != progress.Failed || !last.Returned {
		t.Errorf("the step ended as %q with %q; want it without the error", last.State, last.Detail)
	}
	if want := "repos.r: cannot fetch from " + filepath.Join(dir, "nowhere") + ": '" + filepath.Join(dir, "nowhere") + "' does not appear to be a git repository\nnext: git ls-remote"; !strings.Contains(err.Error(), want) {
		t.Errorf("Checkout = %v; want %s", err, want)
	}
	p = load(t, dir, repoFile("url: "+filepath.Join(dir, "nowhere")+", branch: main"))
	if err := Lock(progress.With(t.Context(), progress.New(seen)), p, Workspace{Dir: dir}, nil); err == nil || strings.Contains(err.Error(), "ls-remote --symref") {
		t.Errorf("Lock = %v; want an error without git's arguments", err)
	}
	if last := seen.Last("lock"); last.State != progress.Failed || !last.Returned {
		t.Errorf("the step ended as %q with %q; want it without the error", last.State, last.Detail)
	}
}

// A build uses what the user edited, so nobody shall take the tree for the commit.
func TestCheckoutNamesEditedFiles(t *testing.T) {
	url, _, second := server(t)
	dir := t.TempDir()
	p := load(t, dir, repoFile("url: "+url+", commit: "+second))
	warned := func() string {
		t.Helper()
		seen := &progresstest.Recorder{}
		if err := Checkout(progress.With(t.Context(), progress.New(seen)), p, Workspace{Dir: dir}); err != nil {
			t.Fatal(err)
		}
		return seen.Last("warning").Detail
	}
	for range 2 {
		if got := warned(); got != "" {
			t.Errorf("Checkout of an untouched tree warned %q", got)
		}
	}
	r := filepath.Join(dir, "r")
	write(t, r, map[string]string{"notes": "of no commit", "conf/layer.conf": "mine", "lib/__pycache__/a.pyc": "bitbake's"})
	mustRun(t, r, "git", "init", "-q", "nested") // another repository
	want := "repository r has local changes, which a build uses: conf/layer.conf, notes (in " + r + ")"
	if got := warned(); got != want {
		t.Errorf("Checkout warned %q; want %q", got, want)
	}
	write(t, r, map[string]string{"new-one/file": "", "new-two/file": "", "recipes/one.bb": ""})
	mustRun(t, r, "git", "add", "conf", "new-one", "new-two", "recipes")
	want = "conf/layer.conf, new-one/file, new-two/file, ... and 2 more (in "
	if got := warned(); !strings.Contains(got, want) {
		t.Errorf("Checkout warned %q; want %q in it", got, want)
	}
	if headOf(t, r) != second {
		t.Error("the checkout moved")
	}
}

func TestLockMovesABranch(t *testing.T) {
	url, _, _ := server(t)
	dir := t.TempDir()
	p := load(t, dir, repoFile("url: "+url+", branch: main"))
	for range 2 { // the second time over the lock that the first one wrote
		mustRun(t, url, "git", "commit", "-q", "--allow-empty", "-m", "more")
		if err := Lock(t.Context(), p, Workspace{Dir: dir}, []string{AllPins}); err != nil {
			t.Fatal(err)
		}
		var err error
		if p, err = Load(t.Context(), p.File, Workspace{Dir: dir}); err != nil {
			t.Fatal(err)
		}
		if err := Checkout(t.Context(), p, Workspace{Dir: dir}); err != nil {
			t.Fatal(err)
		}
		states, err := Status(t.Context(), p, Workspace{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		if want := headOf(t, url); states[0].Head != want || states[0].Wanted != want || states[0].Edited {
			t.Errorf("Status = %+v; want HEAD and wanted at %s", states[0], want)
		}
	}
}

func TestCheckoutStopped(t *testing.T) {
	url, _, _ := server(t)
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	err := Checkout(ctx, load(t, dir, repoFile("url: "+url+", branch: main")), Workspace{Dir: dir})
	if err == nil || !strings.HasPrefix(err.Error(), dir+": the checkout was stopped: ") || !strings.HasSuffix(err.Error(), "\nnext: repeat the line  # it continues") {
		t.Errorf("Checkout of a stopped context = %v; want it to say so", err)
	}
	if localfile.Exists(filepath.Join(dir, ".partial-r")) {
		t.Error("a stopped checkout left its folder behind")
	}
}

// Wherever a disk is full, nothing half-written takes more of it, and once there
// is space, the next run succeeds.
func TestCheckoutOnAFullDisk(t *testing.T) {
	noise := make([]byte, 1<<20)
	if _, err := rand.NewChaCha8([32]byte{}).Read(noise); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, content, full string }{
		{"mirrors", string(noise), "mirrors"},
		{"packs", string(noise), "checkouts"},
		{"files", strings.Repeat("x", len(noise)), "checkouts"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			url, _, _ := server(t)
			write(t, url, map[string]string{"conf/layer.conf": tt.content})
			mustRun(t, url, "git", "commit", "-q", "-a", "-m", "large")
			ws := mirrored(t)
			disk := filepath.Join(filepath.Dir(ws.Dir), tt.full)
			if err := os.MkdirAll(disk, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=512k"); err != nil {
				t.Skipf("cannot mount a tmpfs (needs CAP_SYS_ADMIN): %v", err)
			}
			t.Cleanup(func() { unix.Unmount(disk, unix.MNT_DETACH) })
			p := loadRepo(t, "url: "+url+", branch: main")
			if err := Checkout(t.Context(), p, ws); err == nil || !strings.HasPrefix(err.Error(), disk+": the disk is full: ") || !strings.Contains(err.Error(), "\nnext: df -h "+disk+"  # make room there") {
				t.Errorf("Checkout = %v; want it to say that %s is full", err, disk)
			}
			var stat unix.Statfs_t
			if err := unix.Statfs(disk, &stat); err != nil || stat.Bfree*2 < stat.Blocks {
				t.Errorf("%d of %d blocks are free, %v; want what was half-written removed", stat.Bfree, stat.Blocks, err)
			}
			if err := unix.Mount("tmpfs", disk, "tmpfs", unix.MS_REMOUNT, "size=8m"); err != nil {
				t.Fatal(err)
			}
			if err := Checkout(t.Context(), p, ws); err != nil || headOf(t, filepath.Join(ws.Dir, "r")) != headOf(t, url) {
				t.Errorf("Checkout with free space = %v; want HEAD as the server's", err)
			}
		})
	}
}

func TestCheckoutKeepsWhatIsInTheWay(t *testing.T) {
	url, _, _ := server(t)
	for _, mine := range []string{"r/mine", "r"} {
		dir := t.TempDir()
		write(t, dir, map[string]string{mine: "x"})
		err := Checkout(t.Context(), load(t, dir, repoFile("url: "+url+", branch: main")), Workspace{Dir: dir})
		if err == nil || !strings.Contains(err.Error(), "is in the way") || !localfile.Exists(filepath.Join(dir, mine)) {
			t.Errorf("Checkout = %v; want it to refuse %s, which is no checkout", err, mine)
		}
	}
}

func TestCheckoutOfADamagedRepository(t *testing.T) {
	url, first, _ := server(t)
	ws := Workspace{Dir: t.TempDir()}
	p := loadRepo(t, "url: "+url+", commit: "+first)
	if err := Checkout(t.Context(), p, ws); err != nil {
		t.Fatal(err)
	}
	write(t, ws.Dir, map[string]string{"r/.git/HEAD": "", "r/mine": "x"})
	err := Checkout(t.Context(), p, ws)
	if err == nil || !strings.Contains(err.Error(), "move it away") || !localfile.Exists(filepath.Join(ws.Dir, "r/mine")) {
		t.Errorf("Checkout = %v; want it to leave the folder and say what to do", err)
	}
}

// The pack is one file with the mirror's: both are damaged, and nothing of git's
// notices before it is read.
func TestCheckoutOfADamagedPack(t *testing.T) {
	url, first, second := server(t)
	ws := mirrored(t)
	p := loadRepo(t, "url: "+url+", commit: "+first)
	if err := Checkout(t.Context(), p, ws); err != nil {
		t.Fatal(err)
	}
	r := filepath.Join(ws.Dir, "r")
	flip(t, onlyPack(t, filepath.Join(r, ".git")))
	_, looked := Status(t.Context(), p, ws)
	for what, err := range map[string]error{
		"Status":                looked,
		"Checkout":              Checkout(t.Context(), p, ws),
		"Checkout of the other": Checkout(t.Context(), loadRepo(t, "url: "+url+", commit: "+second), ws),
	} {
		if err == nil || !strings.HasPrefix(err.Error(), r+": is damaged; save what is yours in it, move it away") {
			t.Errorf("%s = %v; want it to say what to do", what, err)
		}
	}
	if err := os.Rename(r, r+".damaged"); err != nil {
		t.Fatal(err)
	}
	if err := Checkout(t.Context(), p, ws); err != nil {
		t.Fatal(err)
	}
	mustRun(t, r, "git", "fsck", "--full")
}

// A folder that a user made, with a name that means something in patterns.
func TestCheckoutIntoAnEmptyFolder(t *testing.T) {
	url, first, second := server(t)
	dir := filepath.Join(t.TempDir(), "a[b]*")
	ws := Workspace{Dir: filepath.Join(dir, "checkouts"), Mirrors: filepath.Join(dir, "mirrors")}
	r := filepath.Join(ws.Dir, "r")
	if err := os.MkdirAll(r, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, commit := range []string{first, second} {
		if err := Checkout(t.Context(), loadRepo(t, "url: "+url+", commit: "+commit), ws); err != nil || headOf(t, r) != commit {
			t.Errorf("Checkout = %v; want HEAD at %s", err, commit)
		}
	}
}

// In a hook, git tells every program that it runs where its own index is.
func TestCheckoutInAHookOfAnotherRepository(t *testing.T) {
	url, first, second := server(t)
	mine := t.TempDir()
	mustRun(t, mine, "git", "init", "-q")
	write(t, mine, map[string]string{"staged": "mine"})
	mustRun(t, mine, "git", "add", "-A")
	t.Setenv("GIT_INDEX_FILE", filepath.Join(mine, ".git/index"))
	t.Setenv("GIT_OBJECT_DIRECTORY", filepath.Join(mine, ".git/objects"))
	ws := mirrored(t)
	for _, commit := range []string{first, second} {
		if err := Checkout(t.Context(), loadRepo(t, "url: "+url+", commit: "+commit), ws); err != nil {
			t.Error(err)
		}
	}
	if got := mustRun(t, mine, "git", "status", "--porcelain"); got != "A  staged" {
		t.Errorf("git status in the other repository says %q; want what was staged there", got)
	}
}

// The commit is checked out already; the tag that the project now names has not been seen at it.
func TestCheckoutLooksAtANewTag(t *testing.T) {
	url, first, second := server(t)
	for _, ws := range []Workspace{mirrored(t), {Dir: t.TempDir()}} {
		for _, commit := range []string{first, second} {
			if err := Checkout(t.Context(), loadRepo(t, "url: "+url+", commit: "+commit), ws); err != nil {
				t.Fatal(err)
			}
			err := Checkout(t.Context(), loadRepo(t, "url: "+url+", tag: v1, commit: "+commit), ws)
			if moved := err != nil && strings.Contains(err.Error(), "the tag was moved"); moved != (commit == second) {
				t.Errorf("Checkout of tag v1 at %s = %v; want it at %s alone", commit, err, first)
			}
		}
	}
}

// A whole clone that a user made stays whole, and a nested repository comes
// after the one around it.
func TestCheckoutIntoOthersFolders(t *testing.T) {
	url, first, _ := server(t)
	dir := t.TempDir()
	mustRun(t, dir, "git", "clone", "-q", url, "r")
	p := load(t, dir, "header: {version: 14}\nrepos:\n  nested: {url: "+url+", branch: main, path: r/nested}\n  r: {url: "+url+", commit: "+first+"}\n")
	if err := Checkout(t.Context(), p, Workspace{Dir: dir}); err != nil {
		t.Fatal(err)
	}
	if localfile.Exists(filepath.Join(dir, "r/.git/shallow")) || !localfile.Exists(filepath.Join(dir, "r/nested/.git/shallow")) {
		t.Error("want a whole r as it was and a shallow r/nested")
	}
}

// A layer that is not there, and a pin of no repository, are named with their file.
func TestCheckoutNamesWhatHasNoEffect(t *testing.T) {
	url, first, _ := server(t)
	dir := t.TempDir()
	write(t, dir, map[string]string{"p.lock.yml": "header: {version: 14}\noverrides: {repos: {rr: {commit: " + first + "}}}\n"})
	p := load(t, dir, repoFile("url: "+url+", commit: "+first+", layers: {conf: , cnf: }"))
	if want := dir + `/p.lock.yml:2:25: overrides.repos.rr has no effect: repos names no repository "rr": did you mean r?`; !slices.Contains(p.Warnings, want) {
		t.Errorf("warnings %q; want %q", p.Warnings, want)
	}
	seen := &progresstest.Recorder{}
	if err := Checkout(progress.With(t.Context(), progress.New(seen)), p, Workspace{Dir: dir, Build: filepath.Join(dir, "b")}); err != nil {
		t.Fatal(err)
	}
	if got := seen.Last("warning").Detail; !strings.HasPrefix(got, dir+`/p.yml:3:6: repository r has no layer "cnf", `) {
		t.Errorf("warned %q; want the missing layer", got)
	}
}
