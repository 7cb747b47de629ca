package layers

import (
	"io/fs"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"slipway/layers/progress"
	"slipway/layers/progress/progresstest"
)

const password = "S3CRET"

// privateServer serves a repository over HTTP to whoever has the password, in the address or
// as a token in the query.
func privateServer(t *testing.T, dir string) (address string) {
	t.Helper()
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("git is not installed (Debian package git)")
	}
	backend := &cgi.Handler{Path: git, Args: []string{"http-backend"}, Env: []string{"GIT_PROJECT_ROOT=" + filepath.Dir(dir), "GIT_HTTP_EXPORT_ALL=1"}}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, pass, _ := r.BasicAuth(); pass != password && user != password {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		backend.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://") + "/" + filepath.Base(dir)
}

// mustNotHold fails if a file below a folder, or its name, has the password.
func mustNotHold(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if strings.Contains(path, password) {
			t.Errorf("%s has the password in its name", path)
		}
		if data, err := os.ReadFile(path); d.Name() != "p.yml" && d.Type().IsRegular() && (err != nil || strings.Contains(string(data), password)) {
			t.Errorf("%s has the password (%v)", path, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestCheckoutStoresNoPassword(t *testing.T) {
	url, first, second := server(t)
	host := privateServer(t, url)
	for _, address := range []string{"http://" + password + "@" + host, "http://user:" + password + "@" + host} {
		for _, ws := range []Workspace{mirrored(t), {Dir: t.TempDir()}} {
			for _, keys := range []string{"branch: main", "commit: " + first, "tag: v1, commit: " + first, "refspec: main"} {
				seen := &progresstest.Recorder{}
				ctx := progress.With(t.Context(), progress.New(seen))
				if err := Checkout(ctx, loadRepo(t, "url: '"+address+"', "+keys), ws); err != nil {
					t.Fatalf("Checkout of %s, %s: %v", address, keys, err)
				}
			}
			if got := headOf(t, filepath.Join(ws.Dir, "r")); got != second {
				t.Errorf("HEAD is %s; want %s", got, second)
			}
			mustNotHold(t, filepath.Dir(ws.Dir))
		}
	}
	if _, err := Reach(t.Context(), loadRepo(t, "url: http://user:"+password+"@"+host+", branch: main"), Workspace{Dir: t.TempDir()}, 0); err != nil {
		t.Error(err)
	}
}

func TestRefusedLoginIsNotShown(t *testing.T) {
	url, _, second := server(t)
	host := privateServer(t, url)
	for _, login := range []string{password + "x@", "user:" + password + "x@", "user:a@" + password + "x@", "user:" + password + "%20x@", "", "HTTP"} {
		for _, query := range []string{"", "?a=b&access_token=" + password} {
			for _, keys := range []string{"refspec: main", "commit: " + second} {
				for _, ws := range []Workspace{mirrored(t), {Dir: t.TempDir()}} {
					address := "http://" + login + host + query
					if login == "HTTP" { // no protocol of git's
						address = "HTTP://user:" + password + "@" + host + query
					}
					err := Checkout(t.Context(), loadRepo(t, "url: '"+address+"', "+keys), ws)
					if err == nil || strings.Contains(err.Error(), password) {
						t.Errorf("Checkout as %q%q, %s = %v; want an error without the password", login, query, keys, err)
					}
					mustNotHold(t, filepath.Dir(ws.Dir))
				}
			}
		}
	}
}
