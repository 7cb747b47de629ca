package builder

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"slipway/images"
	"slipway/images/bitbake"
	"slipway/images/cache"
	"slipway/layers/progress"
	"slipway/layers/progress/progresstest"
)

// fakeCheckout puts into a folder what of a bitbake is only looked at.
func fakeCheckout(t *testing.T, dir, version string) {
	t.Helper()
	for name, text := range map[string]string{"bin/bitbake-hashserv": "", "lib/bb/__init__.py": "__version__ = \"" + version + "\"\n"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// A cache that does not answer stops a build before bitbake begins; "off" builds without it.
func TestBuildChecksItsCache(t *testing.T) {
	dir := t.TempDir()
	fakeCheckout(t, dir, "2.8.1")
	spec := images.Spec{Board: "b", Cache: cache.Setting{Server: "http://127.0.0.1:1", From: "board.yml:4:8"}}
	ask := func() (tree bitbake.Tree, err error) {
		tree = bitbake.Tree{Dir: dir, Programs: filepath.Join(dir, "bin")}
		return tree, useCache(t.Context(), spec, &tree)
	}
	t.Setenv(cache.Environment, "")
	if _, err := ask(); err == nil || !strings.Contains(err.Error(), "board.yml:4:8: cache http://127.0.0.1:1: nothing answers") {
		t.Errorf("with a cache that is gone: %v", err)
	}
	t.Setenv(cache.Environment, "off")
	if tree, err := ask(); err != nil || tree.Pre+tree.Shared != "" {
		t.Errorf("switched off: %+v, %v; want nothing", tree, err)
	}
	t.Setenv(cache.Environment, "")
	t.Setenv("XDG_CONFIG_HOME", dir)
	if err := os.Mkdir(filepath.Join(dir, "slipway"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "slipway/config.yml"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	seen := &progresstest.Recorder{}
	if err := useCache(progress.With(t.Context(), progress.New(seen)), images.Spec{}, &bitbake.Tree{Dir: dir}); err != nil || !seen.Saw("warning", "slipway/config.yml is not read any more; set SLIPWAY_CACHE") {
		t.Errorf("with the file of an earlier version: %v, %+v; want a warning", err, seen.Last("warning"))
	}
	t.Setenv(cache.Environment, "half")
	if _, err := ask(); err == nil || !strings.Contains(err.Error(), "SLIPWAY_CACHE: ") {
		t.Errorf("with a setting that is none: %v", err)
	}
}

// What bitbake is told of the cache comes in a file of its own, so that local.conf
// stays what the project file makes it.
func TestBuildTellsBitbakeOfItsCache(t *testing.T) {
	replayed(t)
	p, dir := tinyProject(t, standIn(t), "tiny-image")
	server := fakeCacheServe(t)
	t.Setenv(cache.Environment, server)
	own := "/own.conf" // the project's must not hide the cache's
	p.Env = map[string]*string{"BBPRECONF": &own}
	if _, err := buildProject(t.Context(), tiny, p, images.Options{Dir: filepath.Dir(dir)}); err != nil {
		t.Fatal(err)
	}
	asked, err := os.ReadFile(filepath.Join(dir, "bitbake/asked"))
	conf := filepath.Join(dir, "cache.conf")
	if err != nil || !strings.Contains(string(asked), "\npre="+conf) {
		t.Errorf("bitbake was asked %q, %v; want BBPRECONF=%s", asked, err, conf)
	}
	said, err := os.ReadFile(conf)
	if err != nil || !strings.Contains(string(said), `SSTATE_MIRRORS = "file://.* `+server+`/sstate/PATH;downloadfilename=PATH"`) {
		t.Errorf("%s says %q, %v; want the mirror", conf, said, err)
	}
	local, err := os.ReadFile(filepath.Join(dir, "bitbake/conf/local.conf"))
	if err != nil || strings.Contains(string(local), "SSTATE") {
		t.Errorf("local.conf = %q, %v; want nothing of the cache in it", local, err)
	}
}

// fakeCacheServe returns the address of a server that describes itself as a cache serve of bitbake
// 2.8 does. Its own port is also that of bitbake's servers.
func fakeCacheServe(t *testing.T) string {
	t.Helper()
	web := httptest.NewUnstartedServer(nil)
	port := web.Listener.Addr().(*net.TCPAddr).Port
	web.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"slipway": "cache 1", "bitbake": "2.8", "hashserv": %d, "prserv": %[1]d}`, port)
	})
	web.Start()
	t.Cleanup(web.Close)
	return web.URL
}

func TestCheckedOutBitbake(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "[1]") // no pattern, but a folder's name
	boards, err := images.Boards()
	if err != nil {
		t.Fatal(err)
	}
	opt := images.Options{Dir: dir}
	if _, err := checkedOutBitbake(t.Context(), opt, ""); err == nil || !strings.Contains(err.Error(), "layers checkout") {
		t.Errorf("with no checkout: %v; want what to do", err)
	}
	old, newest := filepath.Join(dir, boards[0], "layers/poky/bitbake"), filepath.Join(dir, boards[1], "layers/bitbake")
	fakeCheckout(t, old, "2.0.0")
	fakeCheckout(t, newest, "2.18.0")
	fakeCheckout(t, filepath.Join(dir, "other/layers/bitbake"), "2.8.1")
	for board, want := range map[string]string{"": newest, boards[0]: old, boards[1]: newest} {
		if got, err := checkedOutBitbake(t.Context(), opt, board); err != nil || got != want {
			t.Errorf("bitbake of %q = %s, %v; want %s", board, got, err, want)
		}
	}
	if _, err := checkedOutBitbake(t.Context(), opt, "no-such"); err == nil || !strings.Contains(err.Error(), "unknown board") {
		t.Errorf("of an unknown board: %v", err)
	}
}
