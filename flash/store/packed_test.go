package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"slipway/flash/fetch"
	"slipway/images"
	"slipway/layers/progress"
)

// sparseDisk is a disk image that is mostly holes.
func sparseDisk(seed string) []byte {
	disk := make([]byte, 16<<20)
	copy(disk, random(100_000, seed))
	copy(disk[7<<20+12345:], random(100_000, seed+"2"))
	copy(disk[len(disk)-512:], random(512, seed+"3"))
	return disk
}

// newDisk gives an artifact another disk image.
func newDisk(t *testing.T, dir string, disk []byte) {
	t.Helper()
	a, err := images.OpenArtifact(dir)
	if err != nil {
		t.Fatal(err)
	}
	a.Files[0].SizeBytes, a.Files[0].SHA256 = int64(len(disk)), digest.FromBytes(disk).Encoded()
	f, err := os.Create(a.Path(a.Files[0]))
	if err != nil {
		t.Fatal(err)
	}
	for at := 0; at < len(disk); at += 4096 {
		if block := disk[at:min(at+4096, len(disk))]; !bytes.Equal(block, make([]byte, len(block))) {
			if _, err := f.WriteAt(block, int64(at)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := errors.Join(f.Truncate(int64(len(disk))), f.Close(), a.Save(dir)); err != nil {
		t.Fatal(err)
	}
}

// storedBytes is what a file takes of the disk.
func storedBytes(t *testing.T, path string) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

// A disk image travels without its holes, and has them again where it is pulled.
func TestSparseDisk(t *testing.T) {
	eachStore(t, func(t *testing.T, ref string) {
		dir := newArtifact(t, version{key: "1"})
		newDisk(t, dir, sparseDisk("1"))
		first := push(t, dir, ref+":v1")
		if !slices.Contains(first.Sent, "disk.img") || first.SentBytes > 1<<20 {
			t.Errorf("Push = %+v; want less than a MiB sent", first)
		}
		steps := map[string]bool{}
		ctx := progress.With(t.Context(), progress.New(sink(func(e progress.Event) { steps[e.Step] = true })))
		again, err := Push(ctx, dir, reportsOf(dir), ref+":v1", nil)
		if err != nil || again.Digest != first.Digest || again.SentBytes != 0 || steps["pack disk.img"] {
			t.Errorf("the second Push = %+v, %v; want nothing packed or sent", again, err)
		}
		if other := push(t, dir, filepath.Join(t.TempDir(), "other")); other.Digest != first.Digest {
			t.Errorf("another store has the digest %s; want %s", other.Digest, first.Digest)
		}
		into := t.TempDir()
		if p := pullInto(t, ref+":v1", into); !slices.Contains(p.Fetched, "disk.img") {
			t.Errorf("Pull = %+v", p)
		}
		sameFiles(t, into, dir)
		if n := storedBytes(t, filepath.Join(into, "disk.img")); n > 1<<20 {
			t.Errorf("the pulled disk takes %d bytes of the disk; want its holes", n)
		}
		if p := pullInto(t, ref+":v1", into); len(p.Fetched) != 0 {
			t.Errorf("the second Pull fetched %v", p.Fetched)
		}
		newDisk(t, dir, sparseDisk("2"))
		push(t, dir, ref+":v1") // the tag has another disk
		pullInto(t, ref+":v1", into)
		sameFiles(t, into, dir)
		if err := os.WriteFile(filepath.Join(dir, "disk.img"), sparseDisk("3"), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := Push(t.Context(), dir, reportsOf(dir), ref+":v2", nil); !errors.Is(err, errChanged) {
			t.Errorf("Push of a changed disk = %v; want it refused", err)
		}
		if _, err := Pull(t.Context(), ref+":v2", PullOptions{Into: t.TempDir()}); err == nil {
			t.Error("a refused push is tagged")
		}
	})
}

// A disk image that zstd makes little smaller travels as it is.
func TestFullDiskImage(t *testing.T) {
	dir, ref := newArtifact(t, version{key: "1"}), filepath.Join(t.TempDir(), "store")
	newDisk(t, dir, random(2<<20, "full"))
	packs := 0
	ctx := progress.With(t.Context(), progress.New(sink(func(e progress.Event) {
		if e.Step == "pack disk.img" && e.State == progress.Done {
			packs++
		}
	})))
	for range 2 {
		if p, err := Push(ctx, dir, reportsOf(dir), ref+":v1", nil); err != nil || p.SizeBytes < 2<<20 {
			t.Errorf("Push = %+v, %v", p, err)
		}
	}
	if packs != 1 {
		t.Errorf("it was packed %d times; want once, as the store has it then", packs)
	}
	if _, err := os.Stat(filepath.Join(ref, blobsDir, digest.FromBytes(random(2<<20, "full")).Encoded())); err != nil {
		t.Errorf("the disk image is not a blob of its own: %v", err)
	}
	into := t.TempDir()
	pullInto(t, ref+":v1", into)
	sameFiles(t, into, dir)
}

type sink func(progress.Event)

func (s sink) Event(e progress.Event) { s(e) }
func (sink) Close()                   {}

// A blob that changes while it is sent is no blob of the manifest.
func TestPackedDiskThatChanges(t *testing.T) {
	dir := newArtifact(t, version{key: "1"})
	newDisk(t, dir, sparseDisk("1"))
	store := filepath.Join(t.TempDir(), "store")
	ctx := progress.With(t.Context(), progress.New(sink(func(e progress.Event) {
		if e.Step == "pack disk.img" && e.State == progress.Done {
			_ = os.WriteFile(filepath.Join(dir, "disk.img"), sparseDisk("2"), 0o644)
		}
	})))
	if _, err := Push(ctx, dir, reportsOf(dir), store+":v1", nil); !errors.Is(err, errChanged) {
		t.Errorf("Push = %v; want it refused", err)
	}
	if all, err := List(t.Context(), store); err != nil || len(all) > 0 {
		t.Errorf("List = %v, %v; want nothing", all, err)
	}
}

// Other programs take the disk out of a store, and flash --image takes it by its own name.
func TestPackedDiskElsewhere(t *testing.T) {
	dir, repository := newArtifact(t, version{key: "1"}), startRegistry(t)+"/lab"
	disk := sparseDisk("1")
	newDisk(t, dir, disk)
	push(t, dir, repository+":v1")
	for _, name := range []string{"disk.img", "disk.img.zst"} {
		o, err := fetch.Open(t.Context(), "oci://"+repository+":v1#"+name, fetch.Options{Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		file, err := o.Get(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		defer file.Content.Close()
		if file.Name != "disk.img.zst" {
			t.Errorf("%s is fetched as %s", name, file.Name)
		}
		out, err := exec.CommandContext(t.Context(), "zstd", "-dcq", file.Path).Output()
		if errors.Is(err, exec.ErrNotFound) {
			t.Skip("zstd is missing (Debian package of that name)")
		}
		if err != nil || !bytes.Equal(out, disk) {
			t.Errorf("zstd -d gives %d bytes, %v; want the disk", len(out), err)
		}
	}
}

// What a packed layer says of itself is not believed.
func TestEvilPackedDisks(t *testing.T) {
	disk, other := sparseDisk("1"), sparseDisk("2")
	a := images.Artifact{Board: "orin-lab", Files: []images.File{{Kind: "disk", Name: "disk.img", SizeBytes: int64(len(disk)), SHA256: digest.FromBytes(disk).Encoded()}}}
	described, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	pack := func(p []byte) []byte {
		var b bytes.Buffer
		if err := writePacked(&b, bytes.NewReader(p), int64(len(p))); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	bomb := func() []byte { // a tebibyte of zeros
		var b bytes.Buffer
		e, _ := zstd.NewWriter(&b)
		if _, err := io.CopyN(e, zeroReader{}, 256<<20); err != nil || e.Close() != nil {
			t.Fatal(err)
		}
		return bytes.Repeat(b.Bytes(), 4096)
	}
	keep := func(*v1.Descriptor) {}
	const otherContent = "another digest or size" // then what was fetched is removed too
	for _, tt := range []struct {
		name   string
		packed []byte
		change func(*v1.Descriptor)
		want   string
	}{
		{"good", pack(disk), keep, ""},
		{"another disk", pack(other), keep, otherContent},
		{"a short disk", pack(disk[:len(disk)-1]), keep, otherContent},
		{"a long disk", pack(append(slices.Clone(disk), 0)), keep, otherContent},
		{"a bomb", bomb(), keep, otherContent},
		{"nothing packed", disk, keep, ""}, // the digest of the content counts
		{"another disk that is not packed", other, keep, otherContent},
		{"cut off", pack(disk)[:100_000], keep, "cut off"},
		{"damaged", append(slices.Clone(pack(disk)[:150_000]), pack(disk)[150_001:]...), keep, "damaged"},
		{"a text", []byte("<html>404</html>"), keep, "a web page"},
		{"the digest of another file", pack(disk), func(l *v1.Descriptor) { l.Annotations[unpackedKey] = string(digest.FromBytes(other)) }, "has no such file"},
		{"without a digest", pack(disk), func(l *v1.Descriptor) { delete(l.Annotations, unpackedKey) }, "has no such file"},
		{"of another type", pack(disk), func(l *v1.Descriptor) { l.MediaType = "application/octet-stream" }, "has no such file"},
		{"with another name", pack(disk), func(l *v1.Descriptor) { l.Annotations[v1.AnnotationTitle] = "x.img.zst" }, "has no such file"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := describe("disk.img.zst", digest.FromBytes(tt.packed), int64(len(tt.packed)))
			l.MediaType, l.Annotations[unpackedKey] = packedType, string(digest.FromBytes(disk))
			tt.change(&l)
			m := manifestOf(a, []blob{bytesBlob("", describe("artifact.json", digest.FromBytes(described), int64(len(described))), nil), {Descriptor: l}})
			text, err := json.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			into := filepath.Join(t.TempDir(), "into")
			_, err = Pull(t.Context(), evil(t, text, described, tt.packed)+":v1", PullOptions{Into: into})
			if tt.want == "" {
				if got, err2 := os.ReadFile(filepath.Join(into, "disk.img")); err != nil || err2 != nil || !bytes.Equal(got, disk) {
					t.Errorf("Pull = %v, %v, and %d bytes; want the disk", err, err2, len(got))
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Pull = %v; want %q", err, tt.want)
			}
			_ = filepath.WalkDir(into, func(path string, d fs.DirEntry, _ error) error {
				if d != nil && d.Type().IsRegular() && (d.Name() == "disk.img" || d.Name() == "artifact.json" || strings.HasSuffix(d.Name(), ".unpacked") || tt.want == otherContent && strings.HasPrefix(path, filepath.Join(into, partName))) {
					t.Errorf("it left %s", path)
				}
				return nil
			})
		})
	}
}

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) { clear(p); return len(p), nil }
