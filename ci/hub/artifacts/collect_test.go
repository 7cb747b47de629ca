package artifacts

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// collect collects, of what is older than so long.
func (r *registry) collect(keep time.Duration) {
	r.t.Helper()
	r.keepFor, r.orphanFor = keep, keep
	if err := r.Collect(r.t.Context()); err != nil {
		r.t.Fatalf("Collect = %v", err)
	}
}

func TestCollect(t *testing.T) {
	r := startRegistry(t)
	shared, own, free := r.put([]byte("shared")), r.put(random(1, 2*chunkBytes)), r.put([]byte("free"))
	tagged, untagged := manifestOf(t, shared), manifestOf(t, shared, own)
	r.want("tag", r.tag("lab", "v1", tagged), 201)
	r.want("a manifest without a tag", r.tag("lab", string(digest.FromBytes(untagged)), untagged), 201)
	u, err := r.PushBlobChunked(t.Context(), "lab", 0) // of a hub that is killed
	if err == nil {
		_, err = u.Write(random(2, 2*chunkBytes))
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := u.(*upload).send(0); err != nil {
		t.Fatal(err)
	}
	before := r.stored()
	r.collect(time.Hour)
	if n := r.stored(); n != before {
		t.Errorf("Collect of what is new left %v of %v", n, before)
	}
	r.collect(0)
	for _, tt := range []struct {
		what   string
		path   string
		status int
	}{
		{"a layer of a tag's manifest", blobPath(shared), 200},
		{"a manifest with a tag", "/v2/lab/manifests/v1", 200},
		{"a manifest without one", "/v2/lab/manifests/" + string(digest.FromBytes(untagged)), 404},
		{"its layer", blobPath(own), 404},
		{"a blob that nothing names", blobPath(free), 404},
	} {
		r.want(tt.what, r.get(tt.path), tt.status)
	}
	if n := r.stored(); n != [2]int{1, 2} {
		t.Errorf("%v chunks and entries stay of a layer and a manifest", n)
	}
}

// An index keeps its manifests, and what these name. It may name what is none.
func TestCollectIndex(t *testing.T) {
	r := startRegistry(t)
	layer, odd := r.put([]byte("layer")), r.put([]byte("no manifest"))
	manifest := manifestOf(t, layer)
	r.want("a manifest", r.tag("lab", string(digest.FromBytes(manifest)), manifest), 201)
	index := v1.Index{MediaType: v1.MediaTypeImageIndex, Manifests: []v1.Descriptor{descriptorOf(manifest), odd}}
	data, err := json.Marshal(index)
	if err != nil {
		t.Fatal(err)
	}
	got := r.do("operator", "PUT", "/v2/lab/manifests/v1", bytes.NewReader(data), "Content-Type", v1.MediaTypeImageIndex)
	r.want("an index", got, 201)
	// A manifest with the other one as its layer is no reason to forget what that one names.
	r.want("tag", r.tag("lab", "a", manifestOf(t, descriptorOf(manifest))), 201)
	r.collect(0)
	for _, d := range []v1.Descriptor{layer, odd, descriptorOf(manifest)} {
		r.want("GET", r.get(blobPath(d)), 200)
	}
}

// A manifest that loses its tag stays as long as a new one.
func TestCollectAfterTag(t *testing.T) {
	r := startRegistry(t)
	one := manifestOf(t, r.put([]byte("one")))
	r.want("tag", r.tag("lab", "v1", one), 201)
	for _, d := range []digest.Digest{digest.FromBytes(one), digest.FromString("one")} {
		pushed := r.read(d)
		r.collect(0)
		if renewed := r.read(d); !renewed.Created().After(pushed.Created()) {
			t.Fatalf("%s with a tag is of %v after Collect; want after %v", d, renewed.Created(), pushed.Created())
		}
	}
	r.want("overwrite", r.tag("lab", "v1", manifestOf(t, r.put([]byte("two")))), 201)
	r.collect(time.Hour)
	r.want("the manifest that lost it", r.get("/v2/lab/manifests/"+string(digest.FromBytes(one))), 200)
	r.collect(0)
	r.want("later", r.get("/v2/lab/manifests/"+string(digest.FromBytes(one))), 404)
}

// A blob that a push found there before Collect is there for its tag, or the push is told.
func TestCollectDuringPush(t *testing.T) {
	r := startRegistry(t)
	layer := r.put([]byte("layer"))
	old := r.read(layer.Digest)
	if err := r.checkManifest(t.Context(), manifestOf(t, layer), v1.MediaTypeImageManifest); err != nil {
		t.Fatal(err)
	}
	if now := r.read(layer.Digest); now.Revision() == old.Revision() || !now.Created().After(old.Created()) {
		t.Errorf("after a push found it: %+v; want it renewed", now)
	}
	r.collect(0)
	got := r.tag("lab", "v1", manifestOf(t, layer))
	if r.want("tag", got, 404); !strings.Contains(got.body, string(layer.Digest)) {
		t.Errorf("its error %s does not name the layer", got.body)
	}
}

// All stays over a restart of the engine.
func TestRestart(t *testing.T) {
	dir := t.TempDir()
	data := random(1, 3*chunkBytes)
	manifest := manifestOf(t, descriptorOf(data))
	for round := range 2 {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			r := startRegistryIn(t, dir)
			if round == 0 {
				r.put(data)
				r.want("tag", r.tag("lab", "v1", manifest), 201)
			}
			r.want("the tag", r.get("/v2/lab/manifests/v1"), 200)
			if got := r.want("GET", r.get(blobPath(descriptorOf(data))), 200); got.body != string(data) {
				t.Errorf("%d other bytes", len(got.body))
			}
		})
	}
}
