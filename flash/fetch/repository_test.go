package fetch

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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

func FuzzPlace(f *testing.F) {
	for _, text := range []string{"h.example/a:v1", "./a@sha256:0", "oci-dir:x#y", "[::1]:1/a"} {
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

// A registry may have uploads go to another server, which does not get the login, and never
// to one without TLS elsewhere.
func TestSendElsewhere(t *testing.T) {
	noLogins(t)
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			t.Errorf("another server was sent %q", r.Header.Get("Authorization"))
		}
		if r.Method == http.MethodPut {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	t.Cleanup(other.Close)
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, password, _ := r.BasicAuth(); password != "secret" {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.Header().Set("Location", other.URL+"/upload")
	}))
	t.Cleanup(registry.Close)
	host := strings.TrimPrefix(registry.URL, "http://")
	file := filepath.Join(t.TempDir(), "auth.json")
	if err := os.WriteFile(file, []byte(`{"auths":{"`+host+`":{"auth":"YW5uOnNlY3JldA=="}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("REGISTRY_AUTH_FILE", file)
	r := Place{Host: host, Name: "a"}.Repository("pull,push")
	defer r.Close()
	answer, err := r.Send(t.Context(), Request{Method: http.MethodPost, Address: "/blobs/uploads/"})
	if err != nil || answer.Location() != other.URL+"/upload" {
		t.Fatalf("Send = %q, %v", answer.Location(), err)
	}
	if _, err := r.Send(t.Context(), Request{Method: http.MethodGet, Address: answer.Location()}); err != nil {
		t.Error(err)
	}
	if _, err := r.Send(t.Context(), Request{Method: http.MethodPut, Address: answer.Location()}); err == nil {
		t.Error("a login that another server asks for was given")
	}
	for from, to := range map[string]string{host: "http://h.example/x", "h.example": other.URL + "/x", "127.0.0.1:1": "ftp://127.0.0.1/x", "localhost": "https://u:p@h.example/x"} {
		r := Place{Host: from, Name: "a"}.Repository("pull")
		if _, err := r.Send(t.Context(), Request{Method: http.MethodGet, Address: to}); err == nil || !strings.Contains(err.Error(), "not https") {
			t.Errorf("from %s to %s: %v; want it refused", from, to, err)
		}
		r.Close()
	}
}

// A request whose login is refused at first is sent again whole.
func TestSendBodyTwice(t *testing.T) {
	noLogins(t)
	asked, got := 0, ""
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		if asked++; asked == 1 {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		got = string(data)
	}))
	t.Cleanup(registry.Close)
	host := strings.TrimPrefix(registry.URL, "http://")
	file := filepath.Join(t.TempDir(), "auth.json")
	if err := os.WriteFile(file, []byte(`{"auths":{"`+host+`":{"auth":"YW5uOnNlY3JldA=="}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("REGISTRY_AUTH_FILE", file)
	r := Place{Host: host, Name: "a"}.Repository("pull,push")
	defer r.Close()
	body := func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("whole")), nil }
	if _, err := r.Send(t.Context(), Request{Method: http.MethodPut, Address: "/manifests/v1", Body: body, SizeBytes: 5}); err != nil || got != "whole" {
		t.Errorf("Send = %v; the registry got %q", err, got)
	}
}

// A registry that says nothing does not hold a push for ever.
func TestSendToSilence(t *testing.T) {
	noLogins(t)
	before := silenceLimit
	silenceLimit = 100 * time.Millisecond
	t.Cleanup(func() { silenceLimit = before })
	done := make(chan struct{})
	registry := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-done }))
	t.Cleanup(registry.Close)
	t.Cleanup(func() { close(done) })
	r := Place{Host: strings.TrimPrefix(registry.URL, "http://"), Name: "a"}.Repository("pull")
	defer r.Close()
	if _, err := r.Send(t.Context(), Request{Method: http.MethodGet, Address: "/x"}); err == nil || !strings.Contains(err.Error(), "fell silent") {
		t.Errorf("Send = %v; want it to end", err)
	}
}
