package fetch

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

func TestParsePlace(t *testing.T) {
	sum := "sha256:" + strings.Repeat("a", 64)
	for _, tt := range []struct {
		text    string
		want    Place
		wantErr string
	}{
		{text: "h.example/lab/images", want: Place{Host: "h.example", Name: "lab/images"}},
		{text: "oci://h.example/a:v1", want: Place{Host: "h.example", Name: "a", Tag: "v1"}},
		{text: "h:5000/a:latest", want: Place{Host: "h:5000", Name: "a", Tag: "latest"}},
		{text: "localhost/a@" + sum, want: Place{Host: "localhost", Name: "a", Digest: sum}},
		{text: "[::1]:5000/a", want: Place{Host: "[::1]:5000", Name: "a"}},
		{text: "./a", want: Place{Folder: "./a"}},
		{text: "/a:b/c:v1", want: Place{Folder: "/a:b/c", Tag: "v1"}},
		{text: "../a@" + sum, want: Place{Folder: "../a", Digest: sum}},
		{text: "oci-dir:a:v1", want: Place{Folder: "a", Tag: "v1"}},
		{text: "hub:5000/a", want: Place{Host: "hub:5000", Name: "a"}},
		{text: "hub:", wantErr: "knows no hub"},
		{text: "lab/images", wantErr: "no registry in it"},
		{text: "images", wantErr: "no registry in it"},
		{text: "", wantErr: "no registry in it"},
		{text: "h.example/a#f", wantErr: "an artifact is all of them"},
		{text: "./a#f", wantErr: "an artifact is all of them"},
		{text: "ann:secret@h.example/a", wantErr: "a user in"},
		{text: "h.example/../a", wantErr: "no name of a repository"},
		{text: "h.example/a:v 1", wantErr: "neither a tag"},
		{text: "./a\x00", wantErr: "want HOST/REPOSITORY"},
		{text: "./" + strings.Repeat("a", 5000), wantErr: "want HOST/REPOSITORY"},
	} {
		got, err := ParsePlace(tt.text)
		if tt.wantErr != "" {
			if err == nil || !strings.Contains(err.Error(), tt.wantErr) || strings.Contains(err.Error(), "secret") {
				t.Errorf("ParsePlace(%.80q) = %v; want an error with %q", tt.text, err, tt.wantErr)
			}
			continue
		}
		if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
			t.Errorf("ParsePlace(%q): %v\n%s", tt.text, err, diff)
		}
	}
}

func TestParsePlaceOfHub(t *testing.T) {
	knowHub(t)
	sum := "sha256:" + strings.Repeat("a", 64)
	for _, tt := range []struct{ text, want, tag, digest, wantErr string }{
		{text: "hub:", want: "hub:artifacts"},
		{text: "hub::v1", want: "hub:artifacts", tag: "v1"},
		{text: "hub:@" + sum, want: "hub:artifacts", digest: sum},
		{text: "hub:orin-lab", want: "hub:orin-lab"},
		{text: "hub:lab/orin:v1@" + sum, want: "hub:lab/orin", tag: "v1", digest: sum},
		{text: "hub:Orin", wantErr: "no name of a repository"},
		{text: "hub:a b", wantErr: "no name of a repository"},
		{text: "hub:../a", wantErr: "no name of a repository"},
		{text: "hub:a@sha256:1", wantErr: "neither a tag nor"},
		{text: "hub:a#disk.img", wantErr: "an artifact is all of them"},
	} {
		p, err := ParsePlace(tt.text)
		if tt.wantErr != "" {
			if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("ParsePlace(%q) = %v; want an error with %q", tt.text, err, tt.wantErr)
			}
			continue
		}
		if err != nil || p.String() != tt.want || p.Tag != tt.tag || p.Digest != tt.digest || p.Host != "127.0.0.1:8443" || p.Hub == nil {
			t.Errorf("ParsePlace(%q) = %+v, %v; want %s", tt.text, p, err, tt.want)
		}
		if p.Repository().r.repo.PlainHTTP {
			t.Errorf("%s is reached without TLS", tt.text)
		}
	}
}

// knowHub makes a hub known to the test.
func knowHub(t testing.TB) {
	was := Hub
	t.Cleanup(func() { Hub = was })
	Hub = func() (HubAccess, error) { return HubAccess{Address: "127.0.0.1:8443"}, nil }
}

func FuzzPlace(f *testing.F) {
	knowHub(f)
	for _, text := range []string{"hub:", "hub::v1", "hub:a@sha256:0", "hub:5000/a", "h.example/a:v1", "./a@sha256:0", "oci-dir:x#y", "[::1]:1/a"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ParsePlace(text)
		switch {
		case err != nil:
		case (p.Folder == "") == (p.Host == "" || p.Name == ""):
			t.Errorf("ParsePlace(%q) = %+v: neither a folder nor a repository", text, p)
		case p.Tag != "" && CheckTag(p.Tag) != nil || p.Digest != "" && !sumPattern().MatchString(p.Digest):
			t.Errorf("ParsePlace(%q) = %+v", text, p)
		}
	})
}

// logInTo names a login file with a password for a host.
func logInTo(t *testing.T, host string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "auth.json")
	if err := os.WriteFile(file, []byte(`{"auths":{"`+host+`":{"auth":"YW5uOnNlY3JldA=="}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("REGISTRY_AUTH_FILE", file)
}

// askLogin reports whether a request has the login of logInTo, and asks for it.
func askLogin(w http.ResponseWriter, r *http.Request) bool {
	_, password, _ := r.BasicAuth()
	if password != "secret" {
		w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		w.WriteHeader(http.StatusUnauthorized)
	}
	return password == "secret"
}

func startServer(t *testing.T, serve http.HandlerFunc) (host string) {
	t.Helper()
	s := httptest.NewServer(serve)
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

func upload(t *testing.T, host, text string) error {
	t.Helper()
	r := Place{Host: host, Name: "a"}.Repository()
	t.Cleanup(r.Close)
	d := v1.Descriptor{MediaType: "text/plain", Digest: digest.FromString("whole"), Size: 5}
	return r.Upload(t.Context(), d, "text", func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(text)), nil }, func(int64) {})
}

// A registry that sends uploads to another server is refused, and nothing is sent there.
func TestUploadElsewhere(t *testing.T) {
	noLogins(t)
	other := startServer(t, func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("another server was sent %s %v", r.Method, r.Header)
	})
	for _, to := range []string{"http://" + other + "/upload", "http://h.example/x", "ftp://127.0.0.1/x", "https://u:p@h.example/x"} {
		host := startServer(t, func(w http.ResponseWriter, r *http.Request) {
			if askLogin(w, r) {
				w.Header().Set("Location", to)
				w.WriteHeader(http.StatusAccepted)
			}
		})
		logInTo(t, host)
		if err := upload(t, host, "whole"); err == nil || !strings.Contains(err.Error(), "on a different host") {
			t.Errorf("to %s: %v; want it refused", to, err)
		}
	}
}

// An upload whose login is refused at first is sent again whole, after a broken connection too.
func TestUploadTwice(t *testing.T) {
	noLogins(t)
	puts, got := 0, ""
	host := startServer(t, func(w http.ResponseWriter, r *http.Request) {
		switch data, _ := io.ReadAll(r.Body); {
		case !askLogin(w, r):
		case r.Method == http.MethodPost:
			w.Header().Set("Location", "/v2/a/blobs/uploads/one?state=x")
			w.WriteHeader(http.StatusAccepted)
		case puts == 0:
			puts++
			panic(http.ErrAbortHandler)
		default:
			got = string(data) + " " + r.URL.Query().Get("state") + " " + r.URL.Query().Get("digest")
			w.WriteHeader(http.StatusCreated)
		}
	})
	logInTo(t, host)
	if err := upload(t, host, "whole"); err != nil || got != "whole x "+string(digest.FromString("whole")) {
		t.Errorf("Upload = %v; the registry got %q", err, got)
	}
	for _, text := range []string{"whol", "whole.", "other", ""} {
		if err := upload(t, host, text); !errors.Is(err, ErrOther) {
			t.Errorf("Upload of %q = %v; want it refused", text, err)
		}
	}
}

// A registry that says nothing does not hold a push for ever.
func TestSilentRegistry(t *testing.T) {
	noLogins(t)
	before, wait := silenceLimit, firstWait
	silenceLimit, firstWait = 100*time.Millisecond, time.Millisecond
	t.Cleanup(func() { silenceLimit, firstWait = before, wait })
	done := make(chan struct{})
	host := startServer(t, func(http.ResponseWriter, *http.Request) { <-done })
	t.Cleanup(func() { close(done) })
	if err := upload(t, host, "whole"); err == nil || !strings.Contains(err.Error(), "fell silent") {
		t.Errorf("Upload = %v; want it to end", err)
	}
}
