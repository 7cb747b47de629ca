package fetch

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// ociServer is the part of a registry that pulls need.
type ociServer struct {
	*httptest.Server
	mu        sync.Mutex
	names     []string // titles, in order
	files     map[string][]byte
	blobs     map[string][]byte
	manifests map[string][]byte
	blobsAt   string                          // another server that has the blobs
	wrap      func(http.Handler) http.Handler // asks for a login
	asked     []string
}

func newOCIServer(t *testing.T) server { return newRegistryServer(t) }

func newRegistryServer(t *testing.T) *ociServer {
	noLogins(t)
	s := &ociServer{files: map[string][]byte{}, blobs: map[string][]byte{}, manifests: map[string][]byte{}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		wrap := s.wrap
		s.asked = append(s.asked, r.URL.Path)
		s.mu.Unlock()
		if wrap != nil {
			wrap(http.HandlerFunc(s.serve)).ServeHTTP(w, r)
			return
		}
		s.serve(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *ociServer) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kind, name, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v2/lab/disk/"), "/")
	if data, ok := s.manifests[name]; ok && kind == "manifests" {
		w.Header().Set("Content-Type", ocispec.MediaTypeImageManifest)
		w.Header().Set("Docker-Content-Digest", string(digest.FromBytes(data)))
		w.Write(data)
		return
	}
	if data, ok := s.blobs[name]; ok && kind == "blobs" {
		if s.blobsAt != "" {
			http.Redirect(w, r, s.blobsAt+r.URL.Path, http.StatusTemporaryRedirect)
			return
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
		return
	}
	http.Error(w, `{"errors":[{"code":"MANIFEST_UNKNOWN"}]}`, http.StatusNotFound)
}

func (s *ociServer) put(t *testing.T, name string, data []byte) {
	s.mu.Lock()
	if s.files[name] == nil {
		s.names = append(s.names, name)
	}
	s.files[name] = data
	var layers []ocispec.Descriptor
	for _, name := range s.names {
		l := ocispec.Descriptor{MediaType: "application/octet-stream", Digest: digest.FromBytes(s.files[name]), Size: int64(len(s.files[name]))}
		l.Annotations = map[string]string{ocispec.AnnotationTitle: name}
		s.blobs[string(l.Digest)] = s.files[name]
		layers = append(layers, l)
	}
	s.mu.Unlock()
	s.tag(t, "v1", manifest(layers...))
}

func manifest(layers ...ocispec.Descriptor) ocispec.Manifest {
	return ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Layers: layers}
}

// tag stores a manifest or an index and returns its digest.
func (s *ociServer) tag(t *testing.T, tag string, m any) digest.Digest {
	t.Helper()
	data, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sum := digest.FromBytes(data)
	s.manifests[tag], s.manifests[string(sum)] = data, data
	return sum
}

func (s *ociServer) blob(data []byte) ocispec.Descriptor {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum := digest.FromBytes(data)
	s.blobs[string(sum)] = data
	return ocispec.Descriptor{MediaType: "application/octet-stream", Digest: sum, Size: int64(len(data))}
}

func (s *ociServer) addr() string { return s.Listener.Addr().String() }

func (s *ociServer) reference(addr, _ string) string { return "oci://" + addr + "/lab/disk:v1" }

func titled(d ocispec.Descriptor, title string) ocispec.Descriptor {
	d.Annotations = map[string]string{ocispec.AnnotationTitle: title}
	return d
}

func TestRegistryByDigest(t *testing.T) {
	s := newRegistryServer(t)
	data := content(1000, 20)
	sum := s.tag(t, "v1", manifest(titled(s.blob(data), "disk.wic")))
	ref := fmt.Sprintf("oci://%s/lab/disk@%s", s.addr(), sum)
	file, err := fetchIt(t, t.TempDir(), ref, "")
	if err != nil {
		t.Fatal(err)
	}
	same(t, file, data)
	s.mu.Lock()
	s.manifests[string(sum)] = append(s.manifests[string(sum)], ' ')
	s.mu.Unlock()
	if _, err := fetchIt(t, t.TempDir(), ref, ""); err == nil || !strings.Contains(err.Error(), "digest mismatch") {
		t.Errorf("a manifest with another digest: %v; want it refused", err)
	}
}

func TestRegistryDamagedBlob(t *testing.T) {
	s := newRegistryServer(t)
	data := content(1000, 21)
	d := titled(s.blob(data), "disk.img")
	s.tag(t, "v1", manifest(d))
	damaged := bytes.Clone(data)
	damaged[500]++
	for name, sent := range map[string][]byte{"damaged": damaged, "short": data[:900], "long": append(data, 'x'), "empty": {}} {
		t.Run(name, func(t *testing.T) {
			s.mu.Lock()
			s.blobs[string(d.Digest)] = sent
			s.mu.Unlock()
			dir := t.TempDir()
			if _, err := fetchIt(t, dir, s.reference(s.addr(), ""), ""); err == nil {
				t.Error("Get succeeded")
			}
			nothing(t, dir)
		})
	}
}

func TestRegistryIndex(t *testing.T) {
	s := newRegistryServer(t)
	arm, amd := content(1000, 22), content(1000, 23)
	entry := func(data []byte, arch string) ocispec.Descriptor {
		sum := s.tag(t, arch, manifest(titled(s.blob(data), "disk.img")))
		return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: sum, Size: 500, Platform: &ocispec.Platform{Architecture: arch, OS: "linux"}}
	}
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}
	index.Manifests = []ocispec.Descriptor{entry(amd, "amd64"), entry(arm, "arm64")}
	s.tag(t, "v1", index)
	file, err := fetchIt(t, t.TempDir(), s.reference(s.addr(), ""), "")
	if err != nil {
		t.Fatal(err)
	}
	same(t, file, arm)
	index.Manifests = append(index.Manifests, entry(append(arm, 1), "arm64"))
	s.tag(t, "v1", index)
	if _, err := fetchIt(t, t.TempDir(), s.reference(s.addr(), ""), ""); err == nil || !strings.Contains(err.Error(), "2 of the index's 3 manifests are for arm64") {
		t.Errorf("an index with two for one architecture: %v", err)
	}
}

func TestRegistryWhichFile(t *testing.T) {
	s := newRegistryServer(t)
	one, two := content(100, 24), content(100, 25)
	s.put(t, "one.wic.zst", one)
	s.put(t, "one.wic.bmap", []byte("map"))
	s.put(t, "SHA256SUMS", []byte("sums"))
	file, err := fetchIt(t, t.TempDir(), s.reference(s.addr(), ""), "")
	if err != nil {
		t.Fatal(err)
	}
	same(t, file, one)
	s.put(t, "two.wic.zst", two)
	ref := s.reference(s.addr(), "")
	if _, err := fetchIt(t, t.TempDir(), ref, ""); err == nil || !strings.Contains(err.Error(), "one.wic.zst, one.wic.bmap, SHA256SUMS, two.wic.zst") {
		t.Errorf("two images: %v; want their names", err)
	}
	file, err = fetchIt(t, t.TempDir(), ref+"#two.wic.zst", "")
	if err != nil {
		t.Fatal(err)
	}
	same(t, file, two)
}

// A registry that hands out tokens; the blobs lie on another server, which must not
// see them.
func TestRegistryLogin(t *testing.T) {
	other := newRegistryServer(t)
	s := newRegistryServer(t)
	data := content(5000, 26)
	other.blob(data)
	s.blobsAt = other.URL
	s.put(t, "disk.img", data)
	other.wrap = func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "" {
				t.Errorf("another server was sent %q", r.Header.Get("Authorization"))
			}
			next.ServeHTTP(w, r)
		})
	}
	s.wrap = func(next http.Handler) http.Handler { return tokens(t, s, next) }
	ref := s.reference(s.addr(), "")
	if _, err := fetchIt(t, t.TempDir(), ref, ""); err == nil || !strings.Contains(err.Error(), "podman login "+s.addr()) {
		t.Errorf("without a password: %v; want to be told to log in", err)
	}
	dir := t.TempDir()
	t.Setenv("DOCKER_CONFIG", dir)
	auth := base64.StdEncoding.EncodeToString([]byte("ann:secret"))
	config := fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, s.addr(), auth)
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := fetchIt(t, t.TempDir(), ref, "")
	if err != nil {
		t.Fatal(err)
	}
	same(t, file, data)
}

// tokens makes a registry require a token, which its token server issues for the
// password.
func tokens(t *testing.T, s *ociServer, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/token" {
			user, password, _ := r.BasicAuth()
			if r.Method == http.MethodPost {
				body, _ := io.ReadAll(r.Body)
				form, _ := url.ParseQuery(string(body))
				user, password = form.Get("username"), form.Get("password")
			}
			if user != "ann" || password != "secret" {
				http.Error(w, "no", http.StatusUnauthorized)
				return
			}
			json.NewEncoder(w).Encode(map[string]string{"token": "T", "access_token": "T"})
			return
		}
		if r.Header.Get("Authorization") != "Bearer T" {
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="lab",scope="repository:lab/disk:pull"`, s.URL))
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// A container image is refused before any layer is fetched. A layer with a title is a file
// that ORAS pushed.
func TestContainerImageRefused(t *testing.T) {
	s := newRegistryServer(t)
	for _, kind := range layerTypes {
		d := s.blob(content(1000, 30))
		d.MediaType = kind
		for name, m := range map[string]ocispec.Manifest{"one layer": manifest(d), "two layers": manifest(d, d), "a file beside it": manifest(titled(s.blob([]byte("x")), "disk.img"), d)} {
			s.tag(t, "v1", m)
			dir := t.TempDir()
			if _, err := fetchIt(t, dir, s.reference(s.addr(), ""), ""); !errors.Is(err, errContainerImage) || !strings.Contains(err.Error(), "next: skopeo --help") {
				t.Errorf("%s, %s: Get = %v; want it refused with a next step", kind, name, err)
			}
			nothing(t, dir)
		}
		s.tag(t, "v1", manifest(titled(d, "disk.img")))
		file, err := fetchIt(t, t.TempDir(), s.reference(s.addr(), ""), "")
		if err != nil {
			t.Fatal(err)
		}
		same(t, file, content(1000, 30))
	}
}

func TestManifestRefuses(t *testing.T) {
	s := newRegistryServer(t)
	good := titled(s.blob([]byte("image")), "disk.img")
	with := func(change func(*ocispec.Descriptor)) ocispec.Manifest {
		d := good
		d.Annotations = map[string]string{ocispec.AnnotationTitle: "disk.img"}
		change(&d)
		return manifest(d)
	}
	tests := []struct {
		name    string
		doc     any
		wantErr string
	}{
		{"no layers", manifest(), "names no files"},
		{"a title with a folder", with(func(d *ocispec.Descriptor) { d.Annotations[ocispec.AnnotationTitle] = "../../etc/passwd" }), "no name of a file"},
		{"a title that climbs", with(func(d *ocispec.Descriptor) { d.Annotations[ocispec.AnnotationTitle] = ".." }), "no name of a file"},
		{"a folder", with(func(d *ocispec.Descriptor) { d.Annotations[unpackMark] = "true" }), "folders are not taken"},
		{"a digest that climbs", with(func(d *ocispec.Descriptor) { d.Digest = "sha256:../../x" }), "64 hex digits"},
		{"sha512", with(func(d *ocispec.Descriptor) { d.Digest = digest.Digest("sha512:" + strings.Repeat("a", 128)) }), "64 hex digits"},
		{"a negative size", with(func(d *ocispec.Descriptor) { d.Size = -1 }), "makes no sense"},
		{"a huge size", with(func(d *ocispec.Descriptor) { d.Size = 1 << 60 }), "makes no sense"},
		{"one title twice", manifest(good, good), "two files with the name"},
		{"another kind", map[string]string{"mediaType": "application/vnd.docker.distribution.manifest.v1+json"}, "of type"},
		{"not an object", []int{1}, "is not one"},
		{"both kinds", map[string]any{"layers": []any{good}, "manifests": []any{good}}, "an index too"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s.tag(t, "v1", test.doc)
			if _, err := fetchIt(t, t.TempDir(), s.reference(s.addr(), ""), ""); err == nil || !strings.Contains(err.Error(), test.wantErr) {
				t.Errorf("Get = %v; want an error with %q", err, test.wantErr)
			}
		})
	}
}

func TestLayout(t *testing.T) {
	if _, err := Open(t.Context(), "oci-dir:store:v1#disk.img", Options{Dir: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "next: oras pull --oci-layout store:v1") {
		t.Errorf("an image in a layout: %v; want it refused", err)
	}
}

// A server of tokens that answers without end is not listened to without end, and no
// connection to it stays.
func TestRegistryTokensWithoutEnd(t *testing.T) {
	s := newRegistryServer(t)
	var sent atomic.Int64
	gone := make(chan struct{}, 64)
	tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { gone <- struct{}{} }()
		io.WriteString(w, `{"token":"`)
		for chunk := bytes.Repeat([]byte("x"), 64<<10); sent.Load() < 1<<30; {
			n, err := w.Write(chunk)
			if sent.Add(int64(n)); err != nil {
				return
			}
		}
	}))
	t.Cleanup(tokens.Close)
	s.wrap = func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="lab"`, tokens.URL))
			w.WriteHeader(http.StatusUnauthorized)
		})
	}
	if _, err := fetchIt(t, t.TempDir(), s.reference(s.addr(), ""), ""); err == nil {
		t.Error("Get succeeded")
	}
	<-gone
	if sent.Load() > 64<<20 {
		t.Errorf("%d bytes of a token were read", sent.Load())
	}
}

// No connection to the token server stays open.
func TestRegistryLeavesNoConnections(t *testing.T) {
	s := newRegistryServer(t)
	data := content(100, 27)
	s.put(t, "disk.img", data)
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	tokens := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"token":"T"}`)
	}))
	tokens.Config.ConnState = func(c net.Conn, state http.ConnState) {
		mu.Lock()
		defer mu.Unlock()
		open[c] = true
		if state == http.StateClosed {
			delete(open, c)
		}
	}
	tokens.Start()
	t.Cleanup(tokens.Close)
	s.wrap = func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") == "" {
				w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="lab"`, tokens.URL))
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
	file, err := fetchIt(t, t.TempDir(), s.reference(s.addr(), ""), "")
	if err != nil {
		t.Fatal(err)
	}
	same(t, file, data)
	await(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(open) == 0
	})
}

// Passwords leave this machine only over TLS, even where a local registry names another
// token server.
func TestTokensNeedTLS(t *testing.T) {
	for _, test := range []struct{ registry, tokens string }{
		{"h.example", "http://tokens.example/"}, {"h.example", "http://127.0.0.1/"}, {"127.0.0.1:1", "http://tokens.example/"}, {"127.0.0.1:1", "https://u:p@h.example/"},
	} {
		r := newRegistry(reference{host: test.registry, repo: "a"})
		req := httptest.NewRequest(http.MethodGet, test.tokens, nil)
		if _, err := r.client.Transport.RoundTrip(req); err == nil || !strings.Contains(err.Error(), "not https") {
			t.Errorf("from %s to %s: %v; want it refused", test.registry, test.tokens, err)
		}
	}
}
