package layers

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"slipway/layers/git"
	"slipway/layers/localfile"

	"golang.org/x/sys/unix"
)

// mirrored is a workspace with mirrors, in a folder of its own.
func mirrored(t *testing.T) Workspace {
	t.Helper()
	dir := t.TempDir()
	return Workspace{Dir: filepath.Join(dir, "checkouts"), Mirrors: filepath.Join(dir, "mirrors")}
}

func loadRepo(t *testing.T, keys string) Project {
	t.Helper()
	return load(t, t.TempDir(), repoFile(keys))
}

// Whatever becomes of a mirror, its checkouts are whole.
func TestCheckoutOutlivesItsMirror(t *testing.T) {
	url, first, second := server(t)
	ws := mirrored(t)
	r := filepath.Join(ws.Dir, "r")
	for _, commit := range []string{first, second, first} {
		if err := Checkout(t.Context(), loadRepo(t, "url: "+url+", commit: "+commit), ws); err != nil {
			t.Fatal(err)
		}
		if got := headOf(t, r); got != commit {
			t.Errorf("HEAD is %s; want %s", got, commit)
		}
	}
	mirrors, err := filepath.Glob(filepath.Join(ws.Mirrors, "*.git"))
	if err != nil || len(mirrors) != 1 {
		t.Fatalf("mirrors: %q, %v; want one", mirrors, err)
	}
	mustRun(t, mirrors[0], "git", "update-ref", "-d", "refs/slipway/keep/"+second)
	mustRun(t, mirrors[0], "git", "gc", "-q", "--prune=now")
	mustRun(t, r, "git", "fsck", "--full", "--strict")
	if err := os.RemoveAll(ws.Mirrors); err != nil {
		t.Fatal(err)
	}
	mustRun(t, r, "git", "checkout", "-q", second)
	mustRun(t, r, "git", "gc", "-q", "--prune=now")
	mustRun(t, r, "git", "fsck", "--full", "--strict")
	if got := mustRun(t, r, "git", "rev-list", "--count", "HEAD"); got != "1" {
		t.Errorf("the checkout has %s commits of history; want it shallow", got)
	}
}

// Every fetch costs a server's time: a second board requests only what is new.
func TestMirrorServesWithoutItsServer(t *testing.T) {
	url, first, _ := server(t)
	ws := mirrored(t)
	p := loadRepo(t, "url: "+url+", commit: "+first)
	if err := Checkout(t.Context(), p, ws); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(url); err != nil {
		t.Fatal(err)
	}
	other := Workspace{Dir: filepath.Join(t.TempDir(), "other"), Mirrors: ws.Mirrors}
	if err := Checkout(t.Context(), p, other); err != nil || headOf(t, filepath.Join(other.Dir, "r")) != first {
		t.Errorf("Checkout = %v; want it from the mirror", err)
	}
	if got, want := packOf(t, filepath.Join(other.Dir, "r/.git")), packOf(t, filepath.Join(ws.Dir, "r/.git")); !os.SameFile(got, want) {
		t.Error("two checkouts have a pack each; want one file")
	}
}

func onlyPack(t *testing.T, gitDir string) string {
	t.Helper()
	packs, err := filepath.Glob(filepath.Join(gitDir, "objects/pack/*.pack"))
	if err != nil || len(packs) != 1 {
		t.Fatalf("packs of %s: %q, %v; want one", gitDir, packs, err)
	}
	return packs[0]
}

func packOf(t *testing.T, gitDir string) os.FileInfo {
	t.Helper()
	info, err := os.Stat(onlyPack(t, gitDir))
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// On another file system there are no hard links to a mirror.
func TestMirrorOnAnotherFileSystem(t *testing.T) {
	url, first, _ := server(t)
	ws := mirrored(t)
	if err := os.MkdirAll(ws.Mirrors, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", ws.Mirrors, "tmpfs", 0, ""); err != nil {
		t.Skipf("cannot mount a tmpfs (needs CAP_SYS_ADMIN): %v", err)
	}
	t.Cleanup(func() { unix.Unmount(ws.Mirrors, unix.MNT_DETACH) })
	if err := Checkout(t.Context(), loadRepo(t, "url: "+url+", commit: "+first), ws); err != nil || headOf(t, filepath.Join(ws.Dir, "r")) != first {
		t.Errorf("Checkout = %v; want HEAD at %s", err, first)
	}
}

func TestMirrorIsSharedAtOnce(t *testing.T) {
	url, first, second := server(t)
	mirrors := filepath.Join(t.TempDir(), "mirrors")
	var all sync.WaitGroup
	for i := range 6 {
		commit := []string{first, second}[i%2]
		p := loadRepo(t, "url: "+url+", commit: "+commit)
		ws := Workspace{Dir: t.TempDir(), Mirrors: mirrors}
		all.Go(func() {
			err := Checkout(t.Context(), p, ws)
			if head, _ := git.TreeIn(filepath.Join(ws.Dir, "r"), nil).Resolve(t.Context(), "HEAD"); err != nil || head != commit {
				t.Errorf("Checkout beside others = %v; want HEAD at %s", err, commit)
			}
		})
	}
	all.Wait()
}

// What a killed fetch leaves in a mirror must not be in the way of the next.
func TestMirrorAfterAKill(t *testing.T) {
	url, first, second := server(t)
	ws := mirrored(t)
	m := git.MirrorFor(ws.Mirrors, git.Remote{URL: url, Commit: first})
	write(t, m.Dir+".partial", map[string]string{"HEAD": "half"})
	if err := Checkout(t.Context(), loadRepo(t, "url: "+url+", commit: "+first), ws); err != nil {
		t.Fatal(err)
	}
	write(t, m.Dir, map[string]string{"shallow.lock": "", "refs/slipway/keep/" + second + ".lock": "", "objects/pack/tmp_pack_x": "half"})
	if err := Checkout(t.Context(), loadRepo(t, "url: "+url+", commit: "+second), ws); err != nil {
		t.Fatal(err)
	}
	if localfile.Exists(filepath.Join(m.Dir, "objects/pack/tmp_pack_x")) {
		t.Error("half a pack was left in the mirror")
	}
	write(t, m.Dir, map[string]string{"refs/slipway/at/heads/main.lock": "", "refs/slipway/all/heads/main.lock": ""})
	if err := Checkout(t.Context(), loadRepo(t, "url: "+url+", branch: main"), ws); err != nil {
		t.Errorf("Checkout beside the lock of a branch that a killed fetch left = %v; want none", err)
	}
}

// A checkout without a mirror fetches into the tree itself.
func TestTreeAfterAKilledFetch(t *testing.T) {
	m := movedTree(t)
	write(t, m.r, map[string]string{".git/slipway-fetching": "", ".git/shallow.lock": ""})
	if err := m.checkout(t, t.Context(), m.second); err != nil || headOf(t, m.r) != m.second {
		t.Errorf("Checkout after a fetch that was killed = %v; want HEAD at %s", err, m.second)
	}
}

// A mirror that a full disk or a loss of power damaged must not be in the way of
// what it holds or of what it lacks.
func TestMirrorIsRepaired(t *testing.T) {
	cut := func(t *testing.T, path string) {
		if err := errors.Join(os.Chmod(path, 0o644), os.Truncate(path, 100)); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		name   string
		damage func(t *testing.T, dir, pack string)
	}{
		{"a pack cut off", func(t *testing.T, _, pack string) { cut(t, pack+".pack") }},
		{"an index cut off", func(t *testing.T, _, pack string) { cut(t, pack+".idx") }},
		{"a pack of other bytes", func(t *testing.T, _, pack string) { flip(t, pack+".pack") }},
		{"an empty HEAD", func(t *testing.T, dir, _ string) { write(t, dir, map[string]string{"HEAD": ""}) }},
		{"other settings", func(t *testing.T, dir, _ string) { write(t, dir, map[string]string{"config": "[["}) }},
		{"no end of history", func(t *testing.T, dir, _ string) { write(t, dir, map[string]string{"shallow": "x\n"}) }},
	}
	url, first, second := server(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, commit := range []string{first, second} {
				ws := mirrored(t)
				p := loadRepo(t, "url: "+url+", commit: "+first)
				if err := Checkout(t.Context(), p, ws); err != nil {
					t.Fatal(err)
				}
				dir, r := git.MirrorFor(ws.Mirrors, p.Repos[0].Remote).Dir, filepath.Join(ws.Dir, "r")
				if err := os.RemoveAll(r); err != nil {
					t.Fatal(err)
				}
				tt.damage(t, dir, strings.TrimSuffix(onlyPack(t, dir), ".pack"))
				if err := Checkout(t.Context(), loadRepo(t, "url: "+url+", commit: "+commit), ws); err != nil {
					t.Fatal(err)
				}
				mustRun(t, r, "git", "fsck", "--full")
				mustRun(t, r, "git", "diff", "--exit-code", commit)
			}
		})
	}
}

// flip changes a file, under all its names, without changing its end.
func flip(t *testing.T, path string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range data[12 : len(data)-20] {
		data[12+i] ^= 0xff
	}
	if err := errors.Join(os.Chmod(path, 0o644), os.WriteFile(path, data, 0o444)); err != nil {
		t.Fatal(err)
	}
}

// A fetch may outlive a slipway that was killed, for a moment.
func TestCheckoutWaitsForAnOrphanedFetch(t *testing.T) {
	url, first, _ := server(t)
	for _, shared := range []bool{true, false} {
		ws := mirrored(t)
		p := loadRepo(t, "url: "+url+", commit: "+first)
		at := git.MirrorFor(ws.Mirrors, p.Repos[0].Remote).Dir
		if !shared {
			at, ws.Mirrors = filepath.Join(ws.Dir, ".partial-r/.git"), ""
		}
		write(t, at, map[string]string{"slipway-fetching": "", "objects/pack/tmp_pack_x": "half"})
		orphan, err := localfile.Lock(t.Context(), filepath.Join(at, "slipway-fetching"), 0o644)
		if err != nil {
			t.Fatal(err)
		}
		var ended atomic.Bool
		time.AfterFunc(200*time.Millisecond, func() {
			ended.Store(true)
			orphan.Close()
		})
		if err := Checkout(t.Context(), p, ws); err != nil || !ended.Load() || headOf(t, filepath.Join(ws.Dir, "r")) != first {
			t.Errorf("Checkout beside an orphan, which ended: %v, = %v; want it to wait", ended.Load(), err)
		}
		if localfile.Exists(filepath.Join(ws.Dir, "r/.git/slipway-fetching")) || localfile.Exists(filepath.Join(at, "slipway-fetching")) {
			t.Error("a fetch that ended left its lock")
		}
	}
}

func TestMirrorIsRepackedNowAndThen(t *testing.T) {
	url, first, second := server(t)
	ws := mirrored(t)
	p := loadRepo(t, "url: "+url+", commit: "+first)
	if err := Checkout(t.Context(), p, ws); err != nil {
		t.Fatal(err)
	}
	pack := strings.TrimSuffix(onlyPack(t, git.MirrorFor(ws.Mirrors, p.Repos[0].Remote).Dir), ".pack")
	for i := range 40 { // git does not mind the same pack under many names
		for _, ending := range []string{".pack", ".idx"} {
			if err := os.Link(pack+ending, fmt.Sprintf("%s-%d%s", pack, i, ending)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := Checkout(t.Context(), loadRepo(t, "url: "+url+", commit: "+second), ws); err != nil {
		t.Fatal(err)
	}
	onlyPack(t, git.MirrorFor(ws.Mirrors, p.Repos[0].Remote).Dir)
	mustRun(t, filepath.Join(ws.Dir, "r"), "git", "fsck", "--full")
}

// A user who wants history in a checkout gets it with git and keeps it.
func TestMirrorLeavesHistoryThatAUserFetched(t *testing.T) {
	url, _, second := server(t)
	ws := mirrored(t)
	if err := Checkout(t.Context(), loadRepo(t, "url: "+url+", commit: "+second), ws); err != nil {
		t.Fatal(err)
	}
	r := filepath.Join(ws.Dir, "r")
	mustRun(t, r, "git", "-c", "protocol.file.allow=always", "fetch", "-q", "--unshallow", "origin")
	mustRun(t, url, "git", "commit", "-q", "--allow-empty", "-m", "three")
	if err := Checkout(t.Context(), loadRepo(t, "url: "+url+", commit: "+headOf(t, url)), ws); err != nil {
		t.Fatal(err)
	}
	if got := mustRun(t, r, "git", "rev-list", "--count", "HEAD"); got != "3" {
		t.Errorf("the checkout has %s commits of history; want all 3", got)
	}
}

// Git's own insteadOf sends an url to another place, as a company's mirror.
func TestMirrorFollowsInsteadOf(t *testing.T) {
	url, first, _ := server(t)
	config := filepath.Join(t.TempDir(), "gitconfig")
	write(t, filepath.Dir(config), map[string]string{"gitconfig": "[url \"" + url + "\"]\n\tinsteadOf = https://layers.example/r\n"})
	t.Setenv("GIT_CONFIG_GLOBAL", config)
	ws := mirrored(t)
	p := loadRepo(t, "url: https://layers.example/r, commit: "+first)
	if err := Checkout(t.Context(), p, ws); err != nil || headOf(t, filepath.Join(ws.Dir, "r")) != first {
		t.Errorf("Checkout = %v; want HEAD at %s", err, first)
	}
}

func TestMirrorThatCannotBeWritten(t *testing.T) {
	url, first, second := server(t)
	filled := mirrored(t)
	if err := Checkout(t.Context(), loadRepo(t, "url: "+url+", commit: "+first), filled); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(filled.Mirrors, filled.Mirrors, "", unix.MS_BIND, ""); err != nil {
		t.Skipf("cannot bind a folder (needs CAP_SYS_ADMIN): %v", err)
	}
	t.Cleanup(func() { unix.Unmount(filled.Mirrors, unix.MNT_DETACH) })
	if err := unix.Mount("", filled.Mirrors, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	want := "read-only file system\nnext: ls -ld " + filled.Mirrors
	ws := Workspace{Dir: t.TempDir(), Mirrors: filled.Mirrors}
	if err := Checkout(t.Context(), loadRepo(t, "url: "+url+", commit: "+second), ws); err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("Checkout = %v; want %q at the end", err, want)
	}
	older, newer := loadRepo(t, "url: "+url+", commit: "+first), loadRepo(t, "url: "+url+", commit: "+second)
	if moves, err := Diff(t.Context(), older, newer, filled, 5); err != nil || len(moves) != 1 || !strings.Contains(moves[0].Unknown, "read-only file system") {
		t.Errorf("Diff = %+v, %v; want a move whose commits are unknown", moves, err)
	}
}
