package images

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"slipway/images/cache"
	"slipway/layers"
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

// A cache that does not answer stops a build before bitbake begins; "off" builds
// without it.
func TestBuildChecksItsCache(t *testing.T) {
	dir := t.TempDir()
	fakeCheckout(t, dir, "2.8.1")
	spec := Spec{Board: "b", Cache: cache.Setting{Server: "http://127.0.0.1:1", From: "board.yml:4:8"}}
	ask := func() (cache.BitbakeOptions, error) {
		return cacheFor(t.Context(), spec, layers.Project{}, filepath.Join(dir, "bin"), dir, dir)
	}
	t.Setenv(cache.Environment, "")
	if _, err := ask(); err == nil || !strings.Contains(err.Error(), "board.yml:4:8: cache http://127.0.0.1:1: nothing answers") {
		t.Errorf("with a cache that is gone: %v", err)
	}
	t.Setenv(cache.Environment, "off")
	if given, err := ask(); err != nil || !cmp.Equal(given, cache.BitbakeOptions{}) {
		t.Errorf("switched off: %+v, %v; want nothing", given, err)
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
	if _, err := buildProject(t.Context(), tiny, p, Options{Dir: filepath.Dir(dir)}); err != nil {
		t.Fatal(err)
	}
	asked, err := os.ReadFile(filepath.Join(dir, "bitbake/asked"))
	conf := filepath.Join(dir, "cache.conf")
	if err != nil || !strings.Contains(string(asked), "-R\n"+conf+"\n") {
		t.Errorf("bitbake was asked %q, %v; want -R %s", asked, err, conf)
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
	var port int
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"slipway": "cache 1", "bitbake": "2.8", "hashserv": %d, "prserv": %[1]d}`, port)
	}))
	t.Cleanup(web.Close)
	port = web.Listener.Addr().(*net.TCPAddr).Port
	return web.URL
}

func TestCheckedOutBitbake(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "[1]") // no pattern, but a folder's name
	boards, err := Boards()
	if err != nil {
		t.Fatal(err)
	}
	opt := Options{Dir: dir}
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

// What a person sets in the environment is theirs; what Slipway sets is not.
func TestBitbakeEnvironment(t *testing.T) {
	t.Setenv("DL_DIR", "/mine")
	for _, name := range []string{"SSTATE_DIR", "BB_NO_NETWORK"} {
		t.Setenv(name, "") // so that it comes back
		os.Unsetenv(name)
	}
	t.Setenv("PRSERV_HOST", "p:1")
	value := "project's"
	got := bitbakeEnvironment(layers.Project{Env: map[string]*string{"EDITION": &value, "PRSERV_HOST": nil}})
	if diff := cmp.Diff(map[string]string{"DL_DIR": "/mine", "EDITION": value, "PRSERV_HOST": "p:1"}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestBoardsCache(t *testing.T) {
	load := func(text string) (Spec, error) {
		return LoadFrom(board(map[string]string{"b/board.yml": small + text, "b/kas.yml": ""}), "b")
	}
	spec, err := load("cache: http://builder:8600\n")
	if err != nil || spec.Cache.Server != "http://builder:8600" || spec.Cache.From != "board.yml:3:8" {
		t.Errorf("cache = %+v, %v; want the server, and where it is named", spec.Cache, err)
	}
	_, err = load("cache:\n  sstate: http://builder\n")
	if want := "images/boards/b/board.yml:4:3: cache is no address"; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("a cache's parts: %v; want %q", err, want)
	}
}
