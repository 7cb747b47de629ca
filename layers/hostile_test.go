package layers

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"slipway/layers/git"
	"slipway/layers/localfile"
	"slipway/layers/progress"
	"slipway/layers/progress/progresstest"
)

// With these in its environment the test binary is the ssh to a git server that
// takes a wish for one commit as a wish for another.
const (
	liarServes = "SLIPWAY_LIAR_SERVES"
	liarWanted = "SLIPWAY_LIAR_WANTED"
	liarGives  = "SLIPWAY_LIAR_GIVES"
)

func init() {
	dir, set := os.LookupEnv(liarServes)
	if !set {
		return
	}
	server := exec.Command("git", "upload-pack", dir)
	server.Stdout, server.Stderr = os.Stdout, os.Stderr
	in, err := server.StdinPipe()
	if err != nil || server.Start() != nil {
		os.Exit(1)
	}
	wanted, given := []byte("want "+os.Getenv(liarWanted)), []byte("want "+os.Getenv(liarGives))
	for buf := make([]byte, 1<<16); ; {
		n, err := os.Stdin.Read(buf)
		io.Copy(in, bytes.NewReader(bytes.ReplaceAll(buf[:n], wanted, given)))
		if err != nil {
			break
		}
	}
	in.Close()
	server.Wait()
	os.Exit(server.ProcessState.ExitCode())
}

func TestCheckoutFromAServerThatGivesAnotherCommit(t *testing.T) {
	url, first, second := server(t)
	mustRun(t, url, "git", "config", "uploadpack.allowAnySHA1InWant", "true")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"GIT_SSH": self, "GIT_SSH_VARIANT": "simple", liarServes: url, liarWanted: second, liarGives: second,
	} {
		t.Setenv(name, value)
	}
	p := loadRepo(t, "url: ssh://git@server.example/r, commit: "+second)
	honest := mirrored(t)
	if err := Checkout(t.Context(), p, honest); err != nil || headOf(t, filepath.Join(honest.Dir, "r")) != second {
		t.Fatalf("Checkout from an honest server = %v; want HEAD at %s", err, second)
	}
	t.Setenv(liarGives, first)
	for _, ws := range []Workspace{mirrored(t), {Dir: t.TempDir()}} {
		if err := Checkout(t.Context(), p, ws); err == nil || localfile.Exists(filepath.Join(ws.Dir, "r")) {
			t.Errorf("Checkout from a liar = %v; want an error and no checkout", err)
		}
	}
}

// A repository may hold a link that leads out of it. Nothing else may be checked out through that.
func TestCheckoutNotThroughALink(t *testing.T) {
	url, _, _ := server(t)
	outside := t.TempDir()
	if err := os.Symlink(outside, filepath.Join(url, "way-out")); err != nil {
		t.Fatal(err)
	}
	mustRun(t, url, "git", "add", "-A")
	mustRun(t, url, "git", "commit", "-q", "-m", "link")
	ws := mirrored(t)
	p := load(t, t.TempDir(), "header: {version: 14}\nrepos:\n  r: {url: "+url+", branch: main}\n  in: {url: "+url+", branch: main, path: r/way-out/in}\n")
	err := Checkout(t.Context(), p, ws)
	if err == nil || !strings.Contains(err.Error(), "r/way-out is a link; give it another path") {
		t.Errorf("Checkout = %v; want the link refused", err)
	}
	if entries, err := os.ReadDir(outside); err != nil || len(entries) > 0 {
		t.Errorf("outside the workspace are %v, %v; want nothing", entries, err)
	}
}

// As with kas, submodules stay empty. Each checkout says so until the user fetches them.
func TestCheckoutLeavesSubmodulesAlone(t *testing.T) {
	url, first, _ := server(t)
	mustRun(t, url, "git", "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", url, "sub")
	mustRun(t, url, "git", "commit", "-q", "-m", "submodule")
	mustRun(t, url, "git", "rm", "-q", "--cached", "-r", ".")
	ws := mirrored(t)
	r, second := filepath.Join(ws.Dir, "r"), headOf(t, url)
	warned := func(commit string) string {
		t.Helper()
		seen := &progresstest.Recorder{}
		if err := Checkout(progress.With(t.Context(), progress.New(seen)), loadRepo(t, "url: "+url+", commit: "+commit), ws); err != nil {
			t.Fatal(err)
		}
		return seen.Last("warning").Detail
	}
	want := "repository r has submodules, which Slipway does not fetch, nor does kas: sub; \"git -C " + r + " submodule update --init\" does"
	for _, commit := range []string{second, second, first, second} {
		if got := warned(commit); (got == want) != (commit == second) {
			t.Errorf("Checkout of %s warned %q; want %q of the commit with a submodule", commit, got, want)
		}
	}
	if entries, err := os.ReadDir(filepath.Join(r, "sub")); err != nil || len(entries) > 0 {
		t.Errorf("the submodule's folder has %v, %v; want it empty", entries, err)
	}
	mustRun(t, r, "git", "-c", "protocol.file.allow=always", "submodule", "--quiet", "update", "--init")
	if got := warned(second); got != "" {
		t.Errorf("Checkout warned %q; want nothing once the submodule is here", got)
	}
	write(t, r, map[string]string{"sub/conf/layer.conf": "mine"})
	if got := warned(second); !strings.Contains(got, "local changes, which a build uses: sub (in ") {
		t.Errorf("Checkout warned %q; want the edited submodule", got)
	}
}

// A pointer of Git LFS in place of a file is named, unless its filter made the file.
func TestCheckoutNamesPointersOfLFS(t *testing.T) {
	url, _, _ := server(t)
	pointer := "version https://git-lfs.github.com/spec/v1\noid sha256:" + strings.Repeat("0", 64) + "\nsize 1\n"
	write(t, url, map[string]string{"deep/.gitattributes": "*.bin filter=lfs -text\n", "deep/a.bin": pointer, "deep/b.bin": "not a pointer", "other/.gitattributes": "x -text\n", "other.bin": pointer})
	if err := os.Symlink("/dev/zero", filepath.Join(url, "other/z.bin")); err != nil {
		t.Fatal(err)
	}
	mustRun(t, url, "git", "add", "-A")
	mustRun(t, url, "git", "commit", "-q", "-m", "lfs")
	for smudge, want := range map[string]string{
		"": "repository r has files of Git LFS, of which only pointers are here: deep/a.bin; install git-lfs", "sed s/.*/content/": "",
	} {
		config := filepath.Join(t.TempDir(), "gitconfig")
		write(t, filepath.Dir(config), map[string]string{"gitconfig": "[filter \"lfs\"]\n\tsmudge = " + smudge + "\n"})
		t.Setenv("GIT_CONFIG_GLOBAL", config)
		dir := t.TempDir()
		for range 2 {
			seen := &progresstest.Recorder{}
			if err := Checkout(progress.With(t.Context(), progress.New(seen)), loadRepo(t, "url: "+url+", branch: main"), Workspace{Dir: dir}); err != nil {
				t.Fatal(err)
			}
			if got := seen.Last("warning").Detail; !strings.HasPrefix(got, want) || want == "" && strings.Contains(got, "Git LFS") {
				t.Errorf("Checkout with the filter %q warned %q; want %q", smudge, got, want)
			}
		}
	}
}

// git is told what it may do, whatever the user's configuration or the address
// says: nothing that runs a command of a project's.
func TestCheckoutRefusesAddressesThatRunCommands(t *testing.T) {
	ran := filepath.Join(t.TempDir(), "ran")
	config := filepath.Join(t.TempDir(), "gitconfig")
	write(t, filepath.Dir(config), map[string]string{"gitconfig": "[protocol \"ext\"]\n\tallow = always\n"})
	t.Setenv("GIT_CONFIG_GLOBAL", config)
	for _, url := range []string{"ext::touch% " + ran, "--upload-pack=touch " + ran, "-x"} {
		p := Project{Repos: []Repo{{Name: "r", Remote: git.Remote{ID: "r", URL: url, Branch: "main"}}}}
		for _, ws := range []Workspace{mirrored(t), {Dir: t.TempDir()}} {
			if err := Checkout(t.Context(), p, ws); err == nil || localfile.Exists(ran) {
				t.Errorf("Checkout of %q = %v; want it refused", url, err)
			}
		}
		if _, err := p.Repos[0].LookUp(t.Context()); err == nil || localfile.Exists(ran) {
			t.Errorf("the tip of %q, %v; want it refused", url, err)
		}
	}
}
