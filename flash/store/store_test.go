package store

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"slipway/flash/fetch"
	"slipway/images"
)

// eachStore runs a test on a repository of a registry, and on a folder.
func eachStore(t *testing.T, test func(t *testing.T, ref string)) {
	t.Run("registry", func(t *testing.T) { test(t, startRegistry(t)+"/lab/images") })
	t.Run("folder", func(t *testing.T) { test(t, filepath.Join(t.TempDir(), "store")) })
}

func TestPushAndPull(t *testing.T) {
	eachStore(t, func(t *testing.T, ref string) {
		dir := newArtifact(t, version{key: "0123456789abcdef", extra: map[string]string{"report.json": `{"version":1}`, "inputs.json": "[]", "artifact.json.sig": "signed", "known_hosts": "x"}})
		first := push(t, dir, ref)
		if want := []string{"orin-lab-0123456789ab"}; !slices.Equal(first.Tags, want) || first.Files != 7 || len(first.Sent) != 7 {
			t.Errorf("Push = %+v; want 7 files and the tag %v", first, want)
		}
		if again := push(t, dir, ref+":v1", "stable"); again.Digest != first.Digest || again.SentBytes != 0 || !slices.Equal(again.Tags, []string{"v1", "stable"}) {
			t.Errorf("the second Push = %+v; want the digest %s and nothing sent", again, first.Digest)
		}
		second := push(t, newArtifact(t, version{key: "2"}), ref+":v2")
		if want := []string{"artifact.json", "disk.img"}; !slices.Equal(second.Sent, want) {
			t.Errorf("a version with another disk sent %v; want %v", second.Sent, want)
		}
		for _, name := range []string{ref + ":stable", ref + "@" + first.Digest} {
			into := filepath.Join(t.TempDir(), "a", "b")
			if p := pullInto(t, name, into); p.Digest != first.Digest || len(p.Fetched) != 5 {
				t.Errorf("Pull = %+v", p)
			}
			os.WriteFile(filepath.Join(into, "known_hosts"), []byte("x"), 0o644)
			sameFiles(t, into, dir)
		}
	})
}

// The digest depends on the artifact alone.
func TestSameDigestEverywhere(t *testing.T) {
	v := version{key: "1", extra: map[string]string{"report.json": "{}"}}
	one := push(t, newArtifact(t, v), filepath.Join(t.TempDir(), "one"))
	two := push(t, newArtifact(t, v), filepath.Join(t.TempDir(), "two"))
	if one.Digest != two.Digest {
		t.Errorf("digests %s and %s", one.Digest, two.Digest)
	}
	if want := "sha256:a550d4d1ac431ddf72303fbd105d69bfa0808a410eeb0ddc3aaeb420c72e6f1e"; one.Digest != want { // of another digest, all that was pushed travels anew
		t.Errorf("digest %s; want %s", one.Digest, want)
	}
}

func TestPullIntoFolder(t *testing.T) {
	eachStore(t, func(t *testing.T, ref string) {
		one, two := newArtifact(t, version{key: "1", extra: map[string]string{"artifact.json.sig": "signed"}}), newArtifact(t, version{key: "2"})
		push(t, one, ref+":v1")
		push(t, two, ref+":v2")
		into := t.TempDir()
		pullInto(t, ref+":v1", into)
		if p := pullInto(t, ref+":v1", into); len(p.Fetched) != 0 {
			t.Errorf("the second Pull fetched %v", p.Fetched)
		}
		write(t, filepath.Join(into, "disk.img"), string(random(300_000, "damaged")))
		if p := pullInto(t, ref+":v1", into); !slices.Equal(p.Fetched, []string{"disk.img"}) {
			t.Errorf("a Pull over a damaged disk fetched %v", p.Fetched)
		}
		write(t, filepath.Join(into, "mine.txt"), "mine")
		if p := pullInto(t, ref+":v2", into); !slices.Equal(p.Fetched, []string{"disk.img"}) {
			t.Errorf("a Pull of another version fetched %v", p.Fetched)
		}
		if data, err := os.ReadFile(filepath.Join(into, "mine.txt")); err != nil || os.Remove(filepath.Join(into, "mine.txt")) != nil || string(data) != "mine" {
			t.Errorf("a file of the user's: %q, %v", data, err)
		}
		sameFiles(t, into, two) // without the signature of the first
	})
}

// A pull that breaks over another artifact leaves nothing that looks whole.
func TestBrokenPullOverAnother(t *testing.T) {
	ref, into := filepath.Join(t.TempDir(), "store"), t.TempDir()
	push(t, newArtifact(t, version{key: "1"}), ref+":v1")
	push(t, newArtifact(t, version{key: "2"}), ref+":v2")
	pullInto(t, ref+":v1", into)
	disk := filepath.Join(ref, blobsDir, digest.FromBytes(random(300_000, "2")).Encoded())
	if err := os.Truncate(disk, 1000); err != nil {
		t.Fatal(err)
	}
	if _, err := Pull(t.Context(), ref+":v2", PullOptions{Into: into}); err == nil {
		t.Fatal("Pull of a damaged store succeeded")
	}
	if _, err := images.ReadArtifact(into); err == nil {
		t.Error("artifact.json is there, and its files may be of two artifacts")
	}
}

// A file whose place something else takes during the pull is not counted as fetched.
func TestPullCountsWhatArrived(t *testing.T) {
	ref, into := filepath.Join(t.TempDir(), "store"), t.TempDir()
	push(t, newArtifact(t, version{key: "1"}), ref+":v1")
	s, place, err := openFor(ref+":v1", toPull)
	p := pull{store: s, Pulled: Pulled{Folder: into}}
	if err == nil {
		err = p.resolve(t.Context(), place)
	}
	if err == nil {
		p.root, err = os.OpenRoot(into)
	}
	defer func() {
		if p.root != nil {
			p.root.Close()
		}
	}()
	if err != nil || os.MkdirAll(filepath.Join(into, "disk.img", "in the way"), 0o755) != nil {
		t.Fatal(err)
	}
	disk, _ := layerNamed(p.manifest, "disk.img")
	if err := p.fetch(t.Context(), []v1.Descriptor{disk}); err == nil || len(p.Fetched) != 0 || p.FetchedBytes != 0 {
		t.Errorf("fetch = %v, fetched %v of %d bytes; want an error and nothing", err, p.Fetched, p.FetchedBytes)
	}
}

// Without --into, an artifact of another build is not replaced.
func TestPullBelow(t *testing.T) {
	ref := filepath.Join(t.TempDir(), "store")
	push(t, newArtifact(t, version{key: "1"}), ref+":v1")
	push(t, newArtifact(t, version{key: "2"}), ref+":v2")
	opt := PullOptions{Below: t.TempDir()}
	for range 2 {
		if p, err := Pull(t.Context(), ref+":v1", opt); err != nil || p.Folder != filepath.Join(opt.Below, "orin-lab") {
			t.Errorf("Pull = %s, %v", p.Folder, err)
		}
	}
	if _, err := Pull(t.Context(), ref+":v2", opt); err == nil || !strings.Contains(err.Error(), "next: repeat the line with --into=") {
		t.Errorf("Pull over another artifact = %v; want it refused", err)
	}
	if _, err := Pull(t.Context(), ref, opt); err == nil || !strings.Contains(err.Error(), "store list "+ref) {
		t.Errorf("Pull without a tag = %v; want the next step", err)
	}
}

// A file that is not what artifact.json says is refused, and nothing is tagged.
func TestPushChangedFile(t *testing.T) {
	eachStore(t, func(t *testing.T, ref string) {
		for name, change := range map[string]func(string) error{
			"content": func(f string) error { return os.WriteFile(f, random(300_000, "other"), 0o644) },
			"size":    func(f string) error { return os.Truncate(f, 200_000) },
		} {
			dir := newArtifact(t, version{key: name})
			if err := change(filepath.Join(dir, "disk.img")); err != nil {
				t.Fatal(err)
			}
			if _, err := Push(t.Context(), dir, reportsOf(dir), ref+":bad", nil); err == nil || !strings.Contains(err.Error(), "next: build orin-lab") && !strings.Contains(err.Error(), "200000 bytes, want 300000") {
				t.Errorf("Push with another %s = %v; want it refused", name, err)
			}
		}
		if _, err := Pull(t.Context(), ref+":bad", PullOptions{Into: t.TempDir()}); err == nil {
			t.Error("it is tagged")
		}
	})
}

// A blob that grows, shrinks or changes while it travels is refused.
func TestPutChangingBlob(t *testing.T) {
	eachStore(t, func(t *testing.T, ref string) {
		s, _, err := openFor(ref, toPush)
		if err != nil {
			t.Fatal(err)
		}
		defer s.close()
		good := random(100_000, "a")
		for _, tt := range []struct {
			name string
			data []byte
		}{{"shorter", good[:99_999]}, {"other", random(100_000, "b")}, {"empty", nil}, {"longer", append(slices.Clone(good), 'x')}} {
			name, data := tt.name, tt.data
			b := bytesBlob("disk.img", describe("disk.img", digest.FromBytes(good), int64(len(good))), data)
			if err := s.put(t.Context(), b, func(int64) {}); err == nil || !strings.Contains(err.Error(), "not what artifact.json says") {
				t.Errorf("%s: put = %v; want it refused", name, err)
			}
			if name == "longer" {
				continue // its beginning is the blob, and a registry may keep that
			}
			if there, err := s.has(t.Context(), b.Descriptor); there || err != nil {
				t.Errorf("%s: has = %v, %v", name, there, err)
			}
		}
		if err := s.put(t.Context(), bytesBlob("disk.img", describe("disk.img", digest.FromBytes(good), int64(len(good))), good), func(int64) {}); err != nil {
			t.Error(err)
		}
	})
}

func TestListAndClean(t *testing.T) {
	eachStore(t, func(t *testing.T, ref string) {
		now := time.Now().UTC().Truncate(time.Second)
		day := func(n int) time.Time { return now.AddDate(0, 0, -n) }
		for i := range 4 {
			push(t, newArtifact(t, version{key: fmt.Sprintf("%d%011d", i, 0), built: day(10 * i), extra: map[string]string{"artifact.json.asc": "x"}}), ref)
		}
		push(t, newArtifact(t, version{key: "5", built: day(90), board: "other"}), ref)
		push(t, newArtifact(t, version{key: "6", built: day(99)}), ref+":release-1")
		push(t, newArtifact(t, version{key: "7", built: day(98)}), ref+":nightly-7")
		all, err := List(t.Context(), ref)
		if err != nil || len(all) != 7 || !all[0].Built.Equal(day(0)) || !all[0].Signed || all[6].Signed || all[0].Board != "orin-lab" {
			t.Errorf("List = %.500v, %v", all, err)
		}
		clean := func(opt CleanOptions) string {
			c, err := Clean(t.Context(), ref, opt)
			if err != nil {
				t.Fatal(err)
			}
			var gone []string
			for _, e := range c.Gone {
				gone = append(gone, e.Tags...)
			}
			return strings.Join(gone, " ")
		}
		const second, third, fourth = "orin-lab-100000000000", "orin-lab-200000000000", "orin-lab-300000000000"
		for _, tt := range []struct {
			opt  CleanOptions
			want string
		}{
			{CleanOptions{Keep: 1}, strings.Join([]string{second, third, fourth}, " ")},
			{CleanOptions{Keep: 3}, fourth},
			{CleanOptions{Keep: 4}, ""},
		} {
			if got := clean(tt.opt); got != tt.want {
				t.Errorf("Clean(%+v) = %s; want %s", tt.opt, got, tt.want)
			}
		}
		if got := clean(CleanOptions{Keep: 1, Yes: true}); got != strings.Join([]string{second, third, fourth}, " ") {
			t.Errorf("Clean --yes = %s", got)
		}
		if all, err = List(t.Context(), ref); err != nil || len(all) != 4 {
			t.Errorf("List = %d artifacts, %v; want 4", len(all), err)
		}
		pullInto(t, ref+":orin-lab-000000000000", t.TempDir())
		pullInto(t, ref+":release-1", t.TempDir())
		if _, err := Clean(t.Context(), ref, CleanOptions{Yes: true}); err == nil {
			t.Error("Clean without a rule succeeded")
		}
		if _, err := Clean(t.Context(), ref+":release-1", CleanOptions{Keep: 1}); err == nil || !strings.Contains(err.Error(), "whole store") {
			t.Errorf("Clean of a tag = %v; want it refused", err)
		}
	})
}

// blobsOf returns the names of a folder's blobs.
func blobsOf(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, blobsDir))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// A clean of a folder removes what nothing needs, and no more: also where others wrote
// there, or a push broke.
func TestCollectGarbage(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	push(t, newArtifact(t, version{key: "1"}), dir+":keep")
	before := blobsOf(t, dir)
	push(t, newArtifact(t, version{key: "2", built: time.Date(2026, 10, 1, 0, 0, 0, 0, time.UTC)}), dir)
	left := "lost"
	write(t, filepath.Join(dir, blobsDir, digest.FromString(left).Encoded()), left)
	write(t, filepath.Join(dir, blobsDir, ".tmp-1"), "x")
	write(t, filepath.Join(dir, blobsDir, "README"), "a person's")
	image := addForeign(t, dir)
	opt := CleanOptions{Keep: 1}
	dry, err := Clean(t.Context(), dir, opt)
	if err != nil || len(blobsOf(t, dir)) != len(before)+3+3+len(image) {
		t.Errorf("a dry run: %v, %d blobs", err, len(blobsOf(t, dir)))
	}
	opt.Yes = true
	c, err := Clean(t.Context(), dir, opt)
	if err != nil || c.FreedBytes != dry.FreedBytes || c.FreedBytes < 300_000 {
		t.Errorf("Clean frees %d bytes, %v; the dry run said %d", c.FreedBytes, err, dry.FreedBytes)
	}
	want := slices.Sorted(slices.Values(slices.Concat(before, image, []string{"README"})))
	if diff := cmp.Diff(want, blobsOf(t, dir)); diff != "" {
		t.Error(diff)
	}
	if err := os.Remove(filepath.Join(dir, blobsDir, image[2])); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, blobsDir, digest.FromString(left).Encoded()), left)
	if _, err := Clean(t.Context(), dir, opt); err == nil || len(blobsOf(t, dir)) != len(want) {
		t.Errorf("a clean of a damaged folder: %v, %d blobs; want it refused", err, len(blobsOf(t, dir)))
	}
}

// addForeign adds an index with a container's image to a layout, and returns its blobs.
func addForeign(t *testing.T, dir string) (names []string) {
	t.Helper()
	put := func(kind string, data []byte) v1.Descriptor {
		d := v1.Descriptor{MediaType: kind, Digest: digest.FromBytes(data), Size: int64(len(data))}
		write(t, filepath.Join(dir, blobsDir, d.Digest.Encoded()), string(data))
		names = append(names, d.Digest.Encoded())
		return d
	}
	marshal := func(v any) []byte {
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	m := v1.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest}
	m.Config, m.Layers = put(v1.MediaTypeImageConfig, []byte("config")), []v1.Descriptor{put(v1.MediaTypeImageLayer, []byte("layer"))}
	index := v1.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex, Manifests: []v1.Descriptor{put(v1.MediaTypeImageManifest, marshal(m))}}
	top := put(v1.MediaTypeImageIndex, marshal(index))
	top.Annotations = map[string]string{v1.AnnotationRefName: "app"}
	f := &folder{dir: dir}
	all, err := f.index()
	if err != nil {
		t.Fatal(err)
	}
	all.Manifests = append(all.Manifests, top)
	if err := f.saveIndex(all); err != nil {
		t.Fatal(err)
	}
	return names
}

// A folder with other files is not made a store, and two writers do not meet.
func TestFolderInUse(t *testing.T) {
	dir, other := newArtifact(t, version{key: "1"}), t.TempDir()
	write(t, filepath.Join(other, "a"), "mine")
	if _, err := Push(t.Context(), dir, reportsOf(dir), other, nil); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("Push into a folder of files = %v; want it refused", err)
	}
	ref := filepath.Join(t.TempDir(), "store")
	s, _, err := openFor(ref, toPush)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Push(t.Context(), dir, reportsOf(dir), ref, nil); err == nil || !strings.Contains(err.Error(), "another slipway writes there") {
		t.Errorf("Push beside another = %v; want it refused", err)
	}
	s.close()
	push(t, dir, ref)
	if _, err := List(t.Context(), filepath.Join(other, "none")); err == nil || !strings.Contains(err.Error(), "nothing is kept there") {
		t.Errorf("List of nothing = %v", err)
	}
}

// Reports of the newest artifacts travel, and nothing else of them.
func TestFetchReports(t *testing.T) {
	addr := startRegistry(t)
	p := startProxy(t, addr)
	repo, into := p.addr()+"/lab/images", filepath.Join(t.TempDir(), "reports")
	at := func(n int) time.Time { return time.Date(2026, 11, n, 8, 0, 0, 0, time.UTC) }
	for _, n := range []int{3, 1, 2} {
		push(t, newArtifact(t, version{key: fmt.Sprint(n), built: at(n), bytes: 2 << 20, extra: map[string]string{"report.json": fmt.Sprintf(`{"n":%d}`, n)}}), repo)
	}
	push(t, newArtifact(t, version{key: "4", built: at(4)}), repo) // without a report
	p.cutAfter(0, 0)
	for range 2 {
		folders, err := FetchReports(t.Context(), repo, 2, into)
		if err != nil || len(folders) != 2 {
			t.Fatalf("FetchReports = %v, %v", folders, err)
		}
		for i, folder := range folders {
			text, err := os.ReadFile(filepath.Join(folder, "report.json"))
			if a, err2 := images.ReadArtifact(folder); err != nil || err2 != nil || string(text) != fmt.Sprintf(`{"n":%d}`, i+2) || !a.Built.Equal(at(i+2)) {
				t.Errorf("%s: %q, %v, %v; want the report of day %d", folder, text, err, err2, i+2)
			}
		}
	}
	if entries, err := os.ReadDir(into); err != nil || len(entries) != 2 {
		t.Errorf("%v, %v; want two folders and nothing else", entries, err)
	}
	if down := p.down.Load(); down > 200_000 {
		t.Errorf("%d bytes travelled", down)
	}
}

// evil is a store with a manifest as somebody wrote it.
func evil(t *testing.T, manifest []byte, blobs ...[]byte) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "store")
	s, err := openFolder(dir, toPush)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	for _, data := range blobs {
		write(t, s.path(digest.FromBytes(data)), string(data))
	}
	if err := s.tag(t.Context(), manifest, []string{"v1"}); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestEvilManifests(t *testing.T) {
	disk := []byte("disk")
	a := images.Artifact{Board: "orin-lab", Files: []images.File{{Kind: "disk", Name: "disk.img", SizeBytes: 4, SHA256: digest.FromBytes(disk).Encoded()}}}
	described, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	layer := func(name string, data []byte) v1.Descriptor {
		return describe(name, digest.FromBytes(data), int64(len(data)))
	}
	good := func() v1.Manifest {
		return manifestOf(a, []blob{bytesBlob("", layer("artifact.json", described), nil), bytesBlob("", layer("disk.img", disk), nil)})
	}
	listing := func(files ...images.File) []byte {
		data, err := json.Marshal(images.Artifact{Board: "orin-lab", Files: append(slices.Clone(a.Files), files...)})
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	titled := func(name string) func(*v1.Manifest) {
		return func(m *v1.Manifest) { m.Layers = append(m.Layers, layer(name, disk)) }
	}
	describing := func(data []byte, more ...v1.Descriptor) func(*v1.Manifest) {
		return func(m *v1.Manifest) { m.Layers = append(append(m.Layers, more...), layer("artifact.json", data))[1:] }
	}
	twice := listing(images.File{Name: "report.json", SizeBytes: 4, SHA256: digest.FromBytes(disk).Encoded()})
	hosts := listing(images.File{Name: "known_hosts", SizeBytes: 4, SHA256: digest.FromBytes(disk).Encoded()})
	key := listing(images.File{Name: "Id_ed25519", SizeBytes: 4, SHA256: digest.FromBytes(disk).Encoded()})
	outside := listing(images.File{Name: "../../x", SizeBytes: 4, SHA256: digest.FromBytes(disk).Encoded()})
	tests := []struct {
		name   string
		change func(*v1.Manifest)
		want   string
	}{
		{"a title that climbs", titled("../x"), "no name of an artifact's file"},
		{"a title of two dots", titled(".."), "no name of an artifact's file"},
		{"an absolute title", titled("/etc/passwd"), "no name of an artifact's file"},
		{"a title with a folder", titled("a/b"), "no name of an artifact's file"},
		{"a title with a NUL", titled("a\x00b"), "no name of an artifact's file"},
		{"a title with an escape", titled("a\x1b[2Jb"), "no name of an artifact's file"},
		{"a hidden title", titled(partName), "no name of an artifact's file"},
		{"a long title", titled(strings.Repeat("a", 300)), "no name of an artifact's file"},
		{"no title", titled(""), "no name of an artifact's file"},
		{"one title twice", titled("disk.img"), "two files with the name"},
		{"listed host keys", describing(hosts, layer("known_hosts", disk)), "no name for a file"},
		{"a listed key", describing(key, layer("Id_ed25519", disk)), "no name for a file"},
		{"a file that is not listed", titled("known_hosts"), "does not list"},
		{"a listed file that is not there", func(m *v1.Manifest) { m.Layers = m.Layers[:1] }, "has no such file"},
		{"a listed file of another size", func(m *v1.Manifest) { m.Layers[1].Size++ }, "has no such file"},
		{"a listed file of another digest", func(m *v1.Manifest) { m.Layers[1].Digest = digest.FromString("x") }, "has no such file"},
		{"a listed report", describing(twice, layer("report.json", disk)), "no name for a file"},
		{"a listed file outside", describing(outside), "no name for a file"},
		{"artifact.json is no JSON", describing([]byte("x")), "artifact.json"},
		{"no artifact.json", func(m *v1.Manifest) { m.Layers = m.Layers[1:] }, "no artifact.json"},
		{"a huge artifact.json", func(m *v1.Manifest) { m.Layers[0].Size = 1 << 40 }, "make sense"},
		{"a huge file", func(m *v1.Manifest) { m.Layers[1].Size = 1 << 60 }, "makes no sense"},
		{"a negative size", func(m *v1.Manifest) { m.Layers[1].Size = -1 }, "makes no sense"},
		{"a digest that climbs", func(m *v1.Manifest) { m.Layers[1].Digest = "sha256:../../x" }, "64 hex digits"},
		{"a foreign type", func(m *v1.Manifest) { m.ArtifactType = "application/vnd.cncf.helm.chart" }, "not an artifact of Slipway"},
		{"many layers", func(m *v1.Manifest) { m.Layers = append(m.Layers, make([]v1.Descriptor, 600)...) }, "more than 512"},
	}
	pulls := func(name, ref, want string) {
		t.Run(name, func(t *testing.T) {
			top := t.TempDir()
			into := filepath.Join(top, "into")
			_, err := Pull(t.Context(), ref+":v1", PullOptions{Into: into})
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("Pull = %v; want %q", err, want)
			}
			entries, _ := filepath.Glob(filepath.Join(top, "into", "*"))
			if above, _ := os.ReadDir(top); len(above) > 1 || len(entries) > 0 {
				t.Errorf("it left %v, %v", above, entries)
			}
			if _, err := List(t.Context(), ref); err != nil {
				t.Errorf("List = %v", err)
			}
		})
	}
	for _, tt := range tests {
		m := good()
		tt.change(&m)
		text, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		pulls(tt.name, evil(t, text, described, disk, twice, outside, hosts, key, []byte("x")), tt.want)
	}
	text, err := json.Marshal(good())
	if err != nil {
		t.Fatal(err)
	}
	pullInto(t, evil(t, text, described, disk)+":v1", t.TempDir())
	index, _ := json.Marshal(v1.Index{MediaType: v1.MediaTypeImageIndex, Manifests: []v1.Descriptor{layer("x", text)}})
	pulls("an index", evil(t, index), "an index of several manifests")
	pulls("not JSON", evil(t, []byte("x")), "not one")
	for name, content := range map[string]string{"a damaged blob": "disc", "a short blob": "dis", "a long blob": "disks"} {
		ref := evil(t, text, described)
		write(t, filepath.Join(ref, blobsDir, digest.FromBytes(disk).Encoded()), content)
		pulls(name, ref, "another digest or size")
	}
	pulls("a missing blob", evil(t, text, described), "no such file")
	damaged := evil(t, text, disk)
	write(t, filepath.Join(damaged, blobsDir, digest.FromBytes(described).Encoded()), "{}")
	pulls("a damaged artifact.json", damaged, "another digest or size")
	if _, err := parseManifest(bytes.Repeat([]byte(" "), 5<<20)); err == nil || !strings.Contains(err.Error(), "more than 4 MiB") {
		t.Errorf("a manifest of 5 MiB: %v", err)
	}
}

// Links in the folder lead nowhere.
func TestPullOverLinks(t *testing.T) {
	eachStore(t, func(t *testing.T, ref string) {
		dir := newArtifact(t, version{key: "1"})
		push(t, dir, ref+":v1")
		outside := t.TempDir()
		victim := filepath.Join(outside, "victim")
		write(t, victim, "mine")
		into := t.TempDir()
		for _, name := range []string{"disk.img", "artifact.json"} {
			if err := os.Symlink(victim, filepath.Join(into, name)); err != nil {
				t.Fatal(err)
			}
		}
		pullInto(t, ref+":v1", into)
		sameFiles(t, into, dir)
		if text, err := os.ReadFile(victim); err != nil || string(text) != "mine" {
			t.Errorf("a file outside: %.20q, %v", text, err)
		}
		into = t.TempDir()
		if err := os.Symlink(outside, filepath.Join(into, partName)); err != nil {
			t.Fatal(err)
		}
		if _, err := Pull(t.Context(), ref+":v1", PullOptions{Into: into}); err == nil {
			t.Error("Pull through a linked folder succeeded")
		}
		if entries, err := os.ReadDir(outside); err != nil || len(entries) != 1 {
			t.Errorf("%v, %v; want only the file", entries, err)
		}
		into = t.TempDir()
		if err := os.Mkdir(filepath.Join(into, "disk.img"), 0o755); err != nil {
			t.Fatal(err)
		}
		if _, err := Pull(t.Context(), ref+":v1", PullOptions{Into: into}); err == nil || !strings.Contains(err.Error(), "is a folder") {
			t.Errorf("Pull over a folder = %v; want it refused", err)
		}
	})
}

func TestRefusedReferences(t *testing.T) {
	dir := newArtifact(t, version{key: "1"})
	for ref, want := range map[string]string{
		"lab/images": "no registry in it", "127.0.0.1:1/a@sha256:" + strings.Repeat("0", 64): "known only after the push",
		"127.0.0.1:1/a#disk.img": "an artifact is all of them", "127.0.0.1:1/A": "no name of a repository", "": "no registry",
		"u@127.0.0.1:1/a": "a user in", "127.0.0.1:1/a:..": "neither a tag",
	} {
		if _, err := Push(t.Context(), dir, reportsOf(dir), ref, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Push(%q) = %v; want %q", ref, err, want)
		}
	}
	if _, err := Push(t.Context(), dir, reportsOf(dir), t.TempDir(), []string{"a/b"}); err == nil || !strings.Contains(err.Error(), `tag "a/b"`) {
		t.Errorf("Push with the tag a/b = %v", err)
	}
}

func TestDefaultTag(t *testing.T) {
	for board, want := range map[string]string{"orin-lab": "orin-lab-0123456789ab", "my board/ü": "my-board---0123456789ab", ".x": "x-0123456789ab"} {
		if got := defaultTag(board, "0123456789abcdef"); got != want || fetch.CheckTag(got) != nil {
			t.Errorf("defaultTag(%q) = %q; want %q", board, got, want)
		}
	}
}

// A full disk is named, with what to do, and nothing of the artifact looks whole.
func TestFullDisk(t *testing.T) {
	small := t.TempDir()
	if err := unix.Mount("none", small, "tmpfs", 0, "size=400k"); err != nil {
		t.Skipf("only root mounts a small disk: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(small, 0) })
	dir, ref := newArtifact(t, version{key: "1"}), filepath.Join(t.TempDir(), "store")
	if _, err := Push(t.Context(), dir, reportsOf(dir), small, nil); err == nil || !strings.Contains(err.Error(), "no space left") || !strings.Contains(err.Error(), "next: df -h") {
		t.Errorf("Push = %v; want the next step", err)
	}
	if all, err := List(t.Context(), small); err != nil || len(all) > 0 {
		t.Errorf("List = %v, %v; want nothing", all, err)
	}
	push(t, dir, ref+":v1")
	into := filepath.Join(small, "into")
	if _, err := Pull(t.Context(), ref+":v1", PullOptions{Into: into}); err == nil || !strings.Contains(err.Error(), "are needed") {
		t.Errorf("Pull = %v; want it refused before it begins", err)
	}
	if entries, err := os.ReadDir(into); err != nil || len(entries) > 0 {
		t.Errorf("it left %v, %v", entries, err)
	}
}

// ORAS reads what we write, and we read what it writes.
func TestORAS(t *testing.T) {
	if _, err := exec.LookPath("oras"); err != nil {
		t.Skip("no oras; install it: go install oras.land/oras/cmd/oras@v1.2.3")
	}
	dir := newArtifact(t, version{key: "1"})
	oras := func(in string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "oras", args...)
		cmd.Dir = in
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("oras %v: %v\n%s", args, err, out)
		}
	}
	repo, folder := startRegistry(t)+"/lab/images", filepath.Join(t.TempDir(), "store")
	push(t, dir, repo+":ours")
	push(t, dir, folder+":ours")
	one, two, three, four := t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
	oras(one, "pull", "--plain-http", repo+":ours")
	oras(two, "pull", "--oci-layout", folder+":ours")
	oras(dir, "push", "--plain-http", repo+":theirs", "artifact.json", "disk.img", "app.oci.tar", "provenance.json")
	pullInto(t, repo+":theirs", three)
	oras(dir, "push", "--oci-layout", folder+":theirs", "artifact.json", "disk.img", "app.oci.tar", "provenance.json")
	pullInto(t, folder+":theirs", four)
	for _, got := range []string{one, two, three, four} {
		sameFiles(t, got, dir)
	}
}

func FuzzManifest(f *testing.F) {
	disk := []byte("disk")
	a := images.Artifact{Board: "b", Files: []images.File{{Name: "disk.img", SizeBytes: 4, SHA256: digest.FromBytes(disk).Encoded()}}}
	described, _ := json.Marshal(a)
	m, _ := json.Marshal(manifestOf(a, []blob{
		bytesBlob("", describe("artifact.json", digest.FromBytes(described), int64(len(described))), nil), bytesBlob("", describe("disk.img", digest.FromBytes(disk), 4), nil),
	}))
	f.Add(m, described)
	f.Add([]byte(`{"layers":[{"digest":"sha256:0","annotations":{"org.opencontainers.image.title":"../x"}}]}`), []byte(`{"files":[{"name":"../x"}]}`))
	f.Fuzz(func(t *testing.T, manifest, described []byte) {
		entryOf(manifest).row()
		m, err := parseManifest(manifest)
		if err != nil {
			return
		}
		for _, l := range m.Layers {
			if name := nameOf(l); !filepath.IsLocal(name) || strings.ContainsAny(name, "/\x00") || strings.HasPrefix(name, ".") {
				t.Errorf("the title %q was taken", name)
			}
			if l.Size < 0 || l.Digest.Validate() != nil {
				t.Errorf("%+v was taken", l)
			}
		}
		a, err := parseArtifact(described, m)
		if err != nil {
			return
		}
		for _, f := range a.Files {
			if l, ok := layerNamed(m, f.Name); !ok || l.Digest.Encoded() != f.SHA256 || l.Size != f.SizeBytes {
				t.Errorf("%+v is not in the manifest", f)
			}
		}
	})
}

// A store gains nothing by the names of its files: what is ours stays as it was.
func TestPullOverOurs(t *testing.T) {
	eachStore(t, func(t *testing.T, ref string) {
		dir := newArtifact(t, version{key: "1", extra: map[string]string{"report.json": `{"identity":{"imageKey":"` + "1" + strings.Repeat("0", 60) + `"}}`}})
		if p := push(t, dir, ref+":v1"); p.Files != 5 {
			t.Errorf("Push = %+v; want 4 files and the report", p)
		}
		into, outside := t.TempDir(), t.TempDir()
		write(t, filepath.Join(outside, "theirs"), "theirs")
		for name, to := range map[string]string{"disk.img": filepath.Join(outside, "theirs"), "artifact.json": filepath.Join(outside, "theirs"), "app.oci.tar": filepath.Join(outside, "new")} {
			if err := os.Symlink(to, filepath.Join(into, name)); err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range []string{"report.json", "known_hosts", "id_ed25519", "flash.json"} {
			write(t, filepath.Join(into, name), "ours")
		}
		pullInto(t, ref+":v1", into)
		for _, name := range []string{"report.json", "known_hosts", "id_ed25519", "flash.json"} {
			if text, err := os.ReadFile(filepath.Join(into, name)); err != nil || string(text) != "ours" || os.Remove(filepath.Join(into, name)) != nil {
				t.Errorf("%s holds %q, %v", name, text, err)
			}
		}
		if left, err := os.ReadDir(outside); err != nil || len(left) != 1 {
			t.Errorf("behind the links lie %v, %v", left, err)
		}
		if text, err := os.ReadFile(filepath.Join(outside, "theirs")); err != nil || string(text) != "theirs" {
			t.Errorf("the file behind a link holds %q, %v", text, err)
		}
		sameFiles(t, into, dir)
		for _, to := range []string{outside, into} {
			link := filepath.Join(into, partName)
			if err := os.Symlink(to, link); err != nil {
				t.Fatal(err)
			}
			if _, err := Pull(t.Context(), ref+":v1", PullOptions{Into: into}); err == nil || !strings.Contains(err.Error(), "is no folder") {
				t.Errorf("Pull with a link for its unfinished files = %v; want it refused", err)
			}
			if err := os.Remove(link); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A list that names one of ours is pushed nowhere.
func TestPushOfOurs(t *testing.T) {
	for _, name := range []string{"known_hosts", "ID_ED25519", "machine", "x.log", "artifact.json", "artifact.json.sig", "inputs.json", "report.html"} {
		dir := newArtifact(t, version{key: "1"})
		a, err := images.ReadArtifact(dir)
		if err != nil {
			t.Fatal(err)
		}
		a.Files = append(a.Files, images.File{Name: name, SizeBytes: 4, SHA256: digest.FromString("disk").Encoded()})
		if name != "artifact.json" {
			write(t, filepath.Join(dir, name), "disk")
		}
		ref := filepath.Join(t.TempDir(), "store")
		if err := a.Save(dir); err != nil {
			t.Fatal(err)
		}
		if _, err := Push(t.Context(), dir, "", ref, nil); err == nil || !strings.Contains(err.Error(), "no name for a file") {
			t.Errorf("Push with %s listed = %v; want it refused", name, err)
		}
		if _, err := os.Stat(ref); err == nil {
			t.Errorf("Push with %s listed made the store", name)
		}
	}
	other := newArtifact(t, version{key: "1", extra: map[string]string{"report.json": `{"identity":{"imageKey":"of another"}}`}})
	if p := push(t, other, filepath.Join(t.TempDir(), "store")); p.Files != 4 {
		t.Errorf("Push = %+v; want no report of another artifact", p)
	}
}
