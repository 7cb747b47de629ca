package artifacts

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"cuelabs.dev/go/oci/ociregistry"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"slipway/flash/fetch"
	"slipway/flash/store"
	"slipway/layers/bus"
)

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "docker-registry" {
		if err := serveAsRegistry(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// startEngine starts NATS with a store in dir.
func startEngine(t testing.TB, dir string) bus.Engine {
	t.Helper()
	keys, err := bus.LoadKeys(dir)
	if err != nil {
		t.Fatal(err)
	}
	s, err := bus.Start(bus.ServerOptions{Name: "hub", StoreDir: filepath.Join(dir, "engine"), Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	nc, err := s.Connect()
	if err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return bus.Engine{JetStream: js, Replicas: 1}
}

// registry is Artifacts behind a server, whose clients say their role.
type registry struct {
	t testing.TB
	*Artifacts
	url string
}

func startRegistry(t testing.TB) *registry { return startRegistryIn(t, t.TempDir()) }

func startRegistryIn(t testing.TB, dir string) *registry {
	t.Helper()
	a, err := New(t.Context(), startEngine(t, dir), 0, func(r *http.Request) (string, error) {
		if role := r.Header.Get("Role"); role != "" {
			return role, nil
		}
		return "", errors.New("nobody")
	})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(a)
	t.Cleanup(s.Close)
	return &registry{t, a, s.URL}
}

// answer is what a test looks at of a response.
type answer struct {
	status int
	header http.Header
	body   string
}

// do sends a request as a role. header is pairs.
func (r *registry) do(role, method, path string, body io.Reader, header ...string) answer {
	r.t.Helper()
	if !strings.HasPrefix(path, "http") {
		path = r.url + path
	}
	request, err := http.NewRequestWithContext(r.t.Context(), method, path, body)
	if err != nil {
		r.t.Fatal(err)
	}
	request.Header.Set("Role", role)
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return answer{body: err.Error()}
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		return answer{body: err.Error()}
	}
	return answer{response.StatusCode, response.Header, string(data)}
}

func (r *registry) want(what string, got answer, status int) answer {
	r.t.Helper()
	if got.status != status {
		r.t.Fatalf("%s: %d %.300s; want %d", what, got.status, got.body, status)
	}
	return got
}

// begin begins an upload and returns its address.
func (r *registry) begin() string {
	r.t.Helper()
	a := r.want("begin", r.do("operator", "POST", "/v2/lab/blobs/uploads/", nil), http.StatusAccepted)
	return r.url + a.header.Get("Location")
}

// put pushes a blob in one piece.
func (r *registry) put(data []byte) v1.Descriptor {
	r.t.Helper()
	d := descriptorOf(data)
	r.want("PUT of a blob", r.do("operator", "PUT", r.begin()+"?digest="+string(d.Digest), bytes.NewReader(data)), http.StatusCreated)
	return d
}

func descriptorOf(data []byte) v1.Descriptor {
	return v1.Descriptor{MediaType: "application/octet-stream", Digest: digest.FromBytes(data), Size: int64(len(data))}
}

func manifestOf(t testing.TB, layers ...v1.Descriptor) []byte {
	t.Helper()
	m := v1.Manifest{MediaType: v1.MediaTypeImageManifest, Layers: layers}
	m.SchemaVersion = 2
	if len(layers) > 0 {
		m.Config = layers[0]
	}
	data, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// tag pushes a manifest with a name, which is a tag or a digest.
func (r *registry) tag(repo, name string, manifest []byte) answer {
	r.t.Helper()
	return r.do("operator", "PUT", "/v2/"+repo+"/manifests/"+name, bytes.NewReader(manifest), "Content-Type", v1.MediaTypeImageManifest)
}

func (r *registry) get(path string, header ...string) answer {
	r.t.Helper()
	return r.do("viewer", "GET", path, nil, header...)
}

func blobPath(d v1.Descriptor) string { return "/v2/lab/blobs/" + string(d.Digest) }

func random(seed uint64, n int) []byte {
	data := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}).Read(data) //nolint:errcheck // never fails
	return data
}

// stored returns how many chunks and how many entries there are.
func (r *registry) stored() (n [2]int) {
	r.t.Helper()
	info, err := r.chunks.Info(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	entries, err := list(r.t.Context(), r.blobs, "*")
	if err != nil {
		r.t.Fatal(err)
	}
	return [2]int{int(info.State.Msgs), len(entries)}
}

// read returns an entry as it is.
func (r *registry) read(d digest.Digest) jetstream.KeyValueEntry {
	r.t.Helper()
	e, err := r.blobs.Get(r.t.Context(), bus.Token(string(d)))
	if err != nil {
		r.t.Fatal(err)
	}
	return e
}

func TestBlob(t *testing.T) {
	r := startRegistry(t)
	for _, size := range []int{0, 1, chunkBytes - 1, chunkBytes, 2*chunkBytes + 7} {
		data := random(1, size)
		d := r.put(data)
		if got := r.want("GET", r.get(blobPath(d)), 200); got.body != string(data) || got.header.Get("Docker-Content-Digest") != string(d.Digest) {
			t.Errorf("%d bytes: got %d others, or no digest: %v", size, len(got.body), got.header)
		}
		head := r.want("HEAD", r.do("viewer", "HEAD", blobPath(d), nil), 200)
		if head.header.Get("Content-Length") != strconv.Itoa(size) {
			t.Errorf("HEAD of %d bytes: %v", size, head.header)
		}
	}
}

func TestRange(t *testing.T) {
	r := startRegistry(t)
	data := random(1, 3*chunkBytes+11)
	d, end := r.put(data), len(data)
	for _, from := range []int{0, 1, chunkBytes - 1, chunkBytes, 2*chunkBytes + 3, end - 1} {
		got := r.want("GET", r.get(blobPath(d), "Range", fmt.Sprintf("bytes=%d-", from)), 206)
		if want := fmt.Sprintf("bytes %d-%d/%d", from, end-1, end); got.body != string(data[from:]) || got.header.Get("Content-Range") != want {
			t.Errorf("from %d: %d bytes, %s; want %d", from, len(got.body), got.header.Get("Content-Range"), end-from)
		}
	}
	part := r.want("GET", r.get(blobPath(d), "Range", fmt.Sprintf("bytes=%d-%d", chunkBytes-5, 2*chunkBytes)), 206)
	if part.body != string(data[chunkBytes-5:2*chunkBytes+1]) {
		t.Errorf("a part: %d bytes", len(part.body))
	}
	r.want("a range after the end", r.get(blobPath(d), "Range", fmt.Sprintf("bytes=%d-", end)), 416)
}

// A range begins at its first chunk, not at the blob's.
func TestRangeReadsNoMore(t *testing.T) {
	r := startRegistry(t)
	d := r.put(random(1, 4*chunkBytes))
	if err := r.chunks.DeleteMsg(t.Context(), 2); err != nil { // the second chunk
		t.Fatal(err)
	}
	r.want("GET behind a lost chunk", r.get(blobPath(d), "Range", fmt.Sprintf("bytes=%d-", 3*chunkBytes)), 206)
	if got := r.get(blobPath(d)); got.status != 0 || !strings.Contains(got.body, "EOF") {
		t.Errorf("GET of a blob without its second chunk: %d, %d bytes; want a broken answer", got.status, len(got.body))
	}
}

// A blob comes in one request, and nothing of it stays if the line breaks.
func TestBrokenUpload(t *testing.T) {
	r := startRegistry(t)
	data := random(1, 3*chunkBytes)
	upload := r.begin()
	r.want("PATCH", r.do("operator", "PATCH", upload, bytes.NewReader(data)), 403)
	ctx, cancel := context.WithCancel(t.Context())
	in, out := io.Pipe()
	go func() {
		out.Write(data[:2*chunkBytes+1]) //nolint:errcheck // the answer says
		for r.stored() != [2]int{2, 0} {
			time.Sleep(time.Millisecond)
		}
		cancel()
		out.CloseWithError(errors.New("cut"))
	}()
	digest := "?digest=" + string(descriptorOf(data).Digest)
	request, err := http.NewRequestWithContext(ctx, "PUT", upload+digest, in)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Role", "operator")
	if response, err := http.DefaultClient.Do(request); err == nil {
		response.Body.Close()
		t.Fatal("a request that was cut succeeded")
	}
	for r.stored() != [2]int{} { // until the server has seen the cut
		time.Sleep(time.Millisecond)
	}
	r.want("the rest alone", r.do("operator", "PUT", upload+digest, bytes.NewReader(data[7:]), "Content-Range", fmt.Sprintf("7-%d", len(data)-1)), 416)
	r.want("PUT", r.do("operator", "PUT", upload+digest, bytes.NewReader(data)), 201)
}

func TestWrongDigest(t *testing.T) {
	r := startRegistry(t)
	data := random(1, 2*chunkBytes)
	other := descriptorOf([]byte("other"))
	r.want("PUT", r.do("operator", "PUT", r.begin()+"?digest="+string(other.Digest), bytes.NewReader(data)), 400)
	r.want("PUT with sha512", r.do("operator", "PUT", r.begin()+"?digest="+string(digest.SHA512.FromBytes(data)), bytes.NewReader(data)), 400)
	for _, d := range []v1.Descriptor{other, descriptorOf(data)} {
		r.want("GET", r.get(blobPath(d)), 404)
	}
	if n := r.stored(); n != [2]int{} {
		t.Errorf("%v stay of refused blobs", n)
	}
}

// Two pushes of one blob at once both succeed, and it is there once.
func TestTwoPushesAtOnce(t *testing.T) {
	r := startRegistry(t)
	data := random(1, 3*chunkBytes)
	var group sync.WaitGroup
	for range 4 {
		upload := r.begin()
		group.Go(func() {
			if got := r.do("operator", "PUT", upload+"?digest="+string(descriptorOf(data).Digest), bytes.NewReader(data)); got.status != 201 {
				t.Errorf("PUT: %d %s", got.status, got.body)
			}
		})
	}
	group.Wait()
	if got := r.want("GET", r.get(blobPath(descriptorOf(data))), 200); got.body != string(data) {
		t.Errorf("%d other bytes", len(got.body))
	}
	if n := r.stored(); n != [2]int{3, 1} {
		t.Errorf("%v chunks and entries of a blob of 3 chunks", n)
	}
}

func TestManifest(t *testing.T) {
	r := startRegistry(t)
	layer := r.put([]byte("layer"))
	one, two := manifestOf(t, layer), manifestOf(t, layer, layer)
	r.want("tag", r.tag("lab", "v1", one), 201)
	r.want("another tag", r.tag("lab", "v2", one), 201)
	r.want("a tag overwritten", r.tag("lab", "v1", two), 201)
	for name, want := range map[string][]byte{"v1": two, "v2": one, string(digest.FromBytes(one)): one} {
		for _, method := range []string{"GET", "HEAD"} {
			got := r.want(method, r.do("station", method, "/v2/lab/manifests/"+name, nil), 200)
			if method == "GET" && got.body != string(want) || got.header.Get("Content-Type") != v1.MediaTypeImageManifest ||
				got.header.Get("Docker-Content-Digest") != string(digest.FromBytes(want)) || got.header.Get("Content-Length") != strconv.Itoa(len(want)) {
				t.Errorf("%s of %s: %s, %v", method, name, got.body, got.header)
			}
		}
	}
	r.want("a layer as a manifest", r.get("/v2/lab/manifests/"+string(layer.Digest)), 404)
	r.want("an unknown tag", r.get("/v2/lab/manifests/v3"), 404)
	r.want("a tag of another repository", r.get("/v2/other/manifests/v1"), 404)
}

func TestRefusedManifests(t *testing.T) {
	r := startRegistry(t)
	layer := r.put([]byte("layer"))
	wrongSize, missing := layer, descriptorOf([]byte("missing"))
	wrongSize.Size++
	good := manifestOf(t, layer)
	for _, tt := range []struct {
		what, name, mediaType string
		manifest              []byte
		status                int
	}{
		{"of another digest", string(digest.FromBytes([]byte("other"))), v1.MediaTypeImageManifest, good, 400},
		{"of a missing layer", "v1", v1.MediaTypeImageManifest, manifestOf(t, layer, missing), 404},
		{"of a layer of another size", "v1", v1.MediaTypeImageManifest, manifestOf(t, wrongSize), 404},
		{"that is no JSON", "v1", v1.MediaTypeImageManifest, []byte("{"), 500}, // as the library answers
		{"that is a list", "v1", v1.MediaTypeImageManifest, []byte("[]"), 500},
		{"of another type than it says", "v1", v1.MediaTypeImageIndex, good, 400},
		{"of a type that is none", "v1", "text/html", good, 400},
		{"of 4 MiB and a byte", "v1", v1.MediaTypeImageManifest, append(good, bytes.Repeat([]byte(" "), 4<<20)...), 413},
	} {
		got := r.do("operator", "PUT", "/v2/lab/manifests/"+tt.name, bytes.NewReader(tt.manifest), "Content-Type", tt.mediaType)
		if got.status != tt.status {
			t.Errorf("a manifest %s: %d %.200s; want %d", tt.what, got.status, got.body, tt.status)
		}
	}
	chunked := r.do("operator", "PUT", "/v2/lab/manifests/v1", io.MultiReader(bytes.NewReader(good)), "Content-Type", v1.MediaTypeImageManifest)
	r.want("a manifest without a length", chunked, 413)
	r.want("GET", r.get("/v2/lab/manifests/v1"), 404)
}

func TestRoles(t *testing.T) {
	r := startRegistry(t)
	layer := r.put([]byte("layer"))
	manifest := manifestOf(t, layer)
	for _, tt := range []struct {
		role               string
		pull, push, remove int
	}{
		{"viewer", 200, 403, 403},
		{"station", 200, 403, 403},
		{"operator", 200, 201, 403},
		{"admin", 200, 201, 202},
		{"hub", 403, 403, 403},
		{"", 401, 401, 401},
	} {
		r.want("tag", r.tag("lab", "v1", manifest), 201)
		upload := r.begin()
		blob := tt.role + " pushes"
		for _, request := range []struct {
			what string
			got  answer
			want int
		}{
			{"ping", r.do(tt.role, "GET", "/v2/", nil), tt.pull},
			{"GET of a blob", r.do(tt.role, "GET", blobPath(layer), nil), tt.pull},
			{"HEAD of a blob", r.do(tt.role, "HEAD", blobPath(layer), nil), tt.pull},
			{"GET of a manifest", r.do(tt.role, "GET", "/v2/lab/manifests/v1", nil), tt.pull},
			{"list", r.do(tt.role, "GET", "/v2/lab/tags/list", nil), tt.pull},
			{"begin", r.do(tt.role, "POST", "/v2/lab/blobs/uploads/", nil), map[int]int{201: 202}[tt.push] + map[int]int{401: 401, 403: 403}[tt.push]},
			{"PUT of a blob", r.do(tt.role, "PUT", upload+"?digest="+string(digest.FromString(blob)), strings.NewReader(blob)), tt.push},
			{"PUT of a manifest", r.do(tt.role, "PUT", "/v2/lab/manifests/v2", bytes.NewReader(manifest), "Content-Type", v1.MediaTypeImageManifest), tt.push},
			{"DELETE of a manifest", r.do(tt.role, "DELETE", "/v2/lab/manifests/"+string(digest.FromBytes(manifest)), nil), tt.remove},
		} {
			if request.got.status != request.want {
				t.Errorf("%s by %q: %d %s; want %d", request.what, tt.role, request.got.status, request.got.body, request.want)
			}
		}
	}
}

// Stations push what they built, and change nothing else.
func TestRolesOfBuilders(t *testing.T) {
	r := startRegistry(t)
	layer := r.put([]byte("layer"))
	for repo, want := range map[string]int{"builds": 201, "lab": 403, "buildsx": 403, "lab/v2/builds": 403} {
		path := "/v2/" + repo
		at := r.do("operator", "POST", path+"/blobs/uploads/", nil).header.Get("Location") + "?digest=" + string(layer.Digest)
		manifest := manifestOf(t, layer)
		for what, got := range map[string]answer{
			"PUT of a blob":     r.do("station", "PUT", at, strings.NewReader("layer")),
			"PUT of a manifest": r.do("station", "PUT", path+"/manifests/v1", bytes.NewReader(manifest), "Content-Type", v1.MediaTypeImageManifest),
		} {
			if got.status != want {
				t.Errorf("%s in %s by a station: %d %s; want %d", what, repo, got.status, got.body, want)
			}
		}
		r.want("DELETE by a station", r.do("station", "DELETE", path+"/manifests/"+string(digest.FromBytes(manifest)), nil), 403)
		r.want("PUT by a viewer", r.do("viewer", "PUT", at, strings.NewReader("layer")), 403)
	}
}

func TestDelete(t *testing.T) {
	r := startRegistry(t)
	manifest := manifestOf(t, r.put([]byte("layer")))
	path := "/manifests/" + string(digest.FromBytes(manifest))
	for _, name := range []string{"lab", "other"} {
		r.want("tag", r.tag(name, "v1", manifest), 201)
		r.want("tag", r.tag(name, "v2", manifest), 201)
	}
	r.want("DELETE", r.do("admin", "DELETE", "/v2/lab"+path, nil), 202)
	r.want("tags of a repository without any", r.get("/v2/lab/tags/list"), 404)
	r.want("the manifest of another repository", r.get("/v2/other/manifests/v1"), 200)
	r.want("DELETE", r.do("admin", "DELETE", "/v2/other"+path, nil), 202)
	r.want("a removed manifest", r.get("/v2/other"+path), 404)
	r.want("DELETE of what is gone", r.do("admin", "DELETE", "/v2/other"+path, nil), 404)
	r.want("a tag again", r.tag("lab", "v1", manifest), 201)
}

func TestLongNames(t *testing.T) {
	r := startRegistry(t)
	long := strings.Repeat("a", 64<<10)
	for _, path := range []string{"/v2/" + long + "/tags/list", "/v2/lab/manifests/" + long, "/v2/" + long[:600] + "/tags/list"} {
		if got := r.get(path); got.status < 400 || got.status >= 500 {
			t.Errorf("GET of %.40s…: %d", path, got.status)
		}
	}
	got := r.do("operator", "POST", "/v2/"+long[:600]+"/blobs/uploads/", nil)
	r.want("a push to a repository of 600 bytes", got, 400)
	manifest := manifestOf(t, r.put([]byte("layer")))
	r.want("a manifest in a repository of 600 bytes", r.tag(long[:600], "v1", manifest), 400)
	r.want("a repository of 255 bytes", r.tag(long[:255], long[:128], manifest), 201)
	if got := r.get("/v2/" + long[:255] + "/tags/list"); !strings.Contains(got.body, long[:128]) {
		t.Errorf("its tags: %d %.200s", got.status, got.body)
	}
}

func TestManyTags(t *testing.T) {
	r := startRegistry(t)
	manifest := manifestOf(t, r.put([]byte("layer")))
	r.want("tag", r.tag("lab", "v0000", manifest), 201)
	var want []string
	for i := range 150 {
		want = append(want, fmt.Sprintf("v%04d", i))
		if _, err := r.tags.Put(t.Context(), bus.Key("lab", want[i]), []byte(digest.FromBytes(manifest))); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	next := "/v2/lab/tags/list?n=40"
	for pages := 0; next != "" && pages < 10; pages++ {
		a := r.want("list", r.get(next), 200)
		var page struct{ Tags []string }
		if err := json.Unmarshal([]byte(a.body), &page); err != nil {
			t.Fatal(err)
		}
		got = append(got, page.Tags...)
		next, _, _ = strings.Cut(strings.TrimPrefix(a.header.Get("Link"), "<"), ">")
	}
	if !slices.Equal(got, want) {
		t.Errorf("%d tags in pages; want 150", len(got))
	}
}

func TestTooManyUploads(t *testing.T) {
	r := startRegistry(t)
	var all []ociregistry.BlobWriter
	for range maxUploads {
		u, err := r.PushBlobChunked(t.Context(), "lab", 0)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, u)
	}
	r.want("one more", r.do("operator", "POST", "/v2/lab/blobs/uploads/", nil), 429)
	if err := all[0].Close(); err != nil {
		t.Fatal(err)
	}
	r.begin()
	r.put([]byte("blob"))
}

// A full store refuses what is new, and keeps what it has. Its keys can still be written.
func TestFullStore(t *testing.T) {
	js := startEngine(t, t.TempDir())
	a, err := New(t.Context(), js, 1<<20, func(*http.Request) (string, error) { return "operator", nil })
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(a)
	t.Cleanup(s.Close)
	place := fetch.Place{Host: strings.TrimPrefix(s.URL, "http://"), Name: "projects"}
	kept := place
	if kept.Digest, err = store.PutFile(t.Context(), place, []byte("the files")); err != nil {
		t.Fatal(err)
	}
	if _, err := store.PutFile(t.Context(), place, make([]byte, 2<<20)); err == nil || !strings.Contains(err.Error(), "no space for this artifact") {
		t.Errorf("2 MiB in a store of 1 MiB: %v", err)
	}
	if got, err := store.GetFile(t.Context(), kept, 9); err != nil || string(got) != "the files" {
		t.Errorf("GetFile of what was there = %q, %v", got, err)
	}
	if _, err := a.tags.Update(t.Context(), "key", []byte("1"), 0, 0); err != nil {
		t.Errorf("a key beside a full store: %v", err)
	}
}

// The files of a project are sent once. Their time counts from the last time that somebody wanted to.
func TestPutFile(t *testing.T) {
	a, err := New(t.Context(), startEngine(t, t.TempDir()), 0, func(*http.Request) (string, error) { return "operator", nil })
	if err != nil {
		t.Fatal(err)
	}
	var sent []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "PUT" {
			sent = append(sent, fmt.Sprint(r.ContentLength))
		}
		a.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	place := fetch.Place{Host: strings.TrimPrefix(s.URL, "http://"), Name: "projects"}
	var renewed [2]time.Time
	for i := range renewed {
		if place.Digest, err = store.PutFile(t.Context(), place, []byte("the files")); err != nil {
			t.Fatal(err)
		}
		renewed[i] = (&registry{t: t, Artifacts: a}).read(digest.FromString("the files")).Created()
	}
	if len(sent) != 4 || sent[0] != "9" || sent[1] != "2" || sent[2] != sent[3] || !renewed[1].After(renewed[0]) {
		t.Errorf("these sizes were sent: %v, at %v; want the file, {}, and the manifest twice", sent, renewed)
	}
	if got, err := store.GetFile(t.Context(), place, 9); err != nil || string(got) != "the files" {
		t.Errorf("GetFile = %q, %v", got, err)
	}
	if _, err := store.GetFile(t.Context(), place, 8); err == nil {
		t.Error("GetFile of more than the limit succeeded")
	}
}
