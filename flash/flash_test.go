package flash

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/crypto/ssh"

	"slipway/flash/device"
	"slipway/flash/flashtest"
	"slipway/images"
	"slipway/images/bmap"
	"slipway/layers/progress"
)

const (
	mib       = 1 << 20
	imageSize = 12 * mib
	dataStart = 7 * mib
	dataSize  = 4 * mib
	mapped    = 6*mib - 4096
)

var spec = images.Spec{Board: "toy", Flash: images.Flash{Kinds: []string{device.File, device.Block, device.RShim}}}

// artifact builds an image: data at its beginning and scattered, a data
// partition in which something lies already, a hole at its end.
func artifact(t *testing.T) images.Artifact {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "disk.img")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	random := rand.NewChaCha8([32]byte{})
	for _, span := range [][2]int64{{0, mib}, {2*mib + 4096, 6 * mib}, {dataStart + mib, dataStart + 2*mib}} {
		p := make([]byte, span[1]-span[0])
		random.Read(p)
		if _, err := f.WriteAt(p, span[0]); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Truncate(imageSize); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(tableOf(imageSize), tableAt); err != nil {
		t.Fatal(err)
	}
	return describe(t, dir, mapOf(t, f))
}

// tableAt is where the old kind of partition table lies.
const tableAt = 446

// tableOf is a table with one partition, which an image of this size can have for
// sectors of 512 bytes and for those of 4096.
func tableOf(size int) []byte {
	p := make([]byte, 66)
	p[4], p[8] = 0x83, 1
	binary.LittleEndian.PutUint32(p[12:], uint32(size/4096-1))
	p[64], p[65] = 0x55, 0xaa
	return p
}

// tabled gives an image a partition table.
func tabled(p []byte) []byte {
	copy(p[tableAt:], tableOf(len(p)))
	return p
}

// describe writes the artifact.json of the disk.img in dir.
func describe(t *testing.T, dir string, m bmap.Map) images.Artifact {
	t.Helper()
	var b bytes.Buffer
	if _, err := m.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "disk.bmap"), b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	a := images.Artifact{
		Board: spec.Board, Key: "0123456789abcdef",
		Partitions: []images.Partition{{Name: "data", Use: "data", OffsetBytes: dataStart, SizeBytes: dataSize}},
	}
	for _, f := range []images.File{{Kind: images.DiskImage, Name: "disk.img"}, {Kind: images.BlockMap, Name: "disk.bmap"}} {
		content := read(t, filepath.Join(dir, f.Name))
		sum := sha256.Sum256(content)
		f.SizeBytes, f.SHA256 = int64(len(content)), hex.EncodeToString(sum[:])
		a.Files = append(a.Files, f)
	}
	if err := a.Save(dir); err != nil {
		t.Fatal(err)
	}
	a, err := images.OpenArtifact(dir)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// read reads a file or a device at once. os.ReadFile asks stat, which gives devices no
// size, and copies what it has again and again.
func read(t *testing.T, path string) []byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, size)
	if _, err := f.ReadAt(data, 0); err != nil {
		t.Fatal(err)
	}
	return data
}

func image(t *testing.T, a images.Artifact) []byte {
	t.Helper()
	return read(t, filepath.Join(a.Dir(), "disk.img"))
}

// same compares without printing megabytes.
func same(t *testing.T, what string, got, want []byte) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s has %d bytes; want %d", what, len(got), len(want))
		return
	}
	for i := 0; i < len(want); i += 4096 {
		if end := min(i+4096, len(want)); !bytes.Equal(got[i:end], want[i:end]) {
			t.Errorf("%s differs from byte %d on", what, i)
			return
		}
	}
}

func needMke2fs(t *testing.T) { t.Helper(); flashtest.E2fs(t, "mke2fs") }

func newTestIdentity(t *testing.T) Identity {
	t.Helper()
	id, err := NewIdentity(filepath.Join(t.TempDir(), "ssh"))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestWriteFile(t *testing.T) {
	a := artifact(t)
	path := filepath.Join(a.Dir(), "machine", "disk.img")
	var out bytes.Buffer
	receipt, err := Write(t.Context(), spec, a, path, Options{Out: &out})
	if err != nil {
		t.Fatal(err)
	}
	same(t, "virtual disk", read(t, path), image(t, a))
	if !strings.Contains(out.String(), path) {
		t.Errorf("shown: %q; want it to name %s", out.String(), path)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode() != 0o600 {
		t.Errorf("mode = %v; want 0600", info.Mode())
	}
	if want := int64(mapped); receipt.WrittenBytes != want || receipt.VerifiedBytes != want {
		t.Errorf("written, verified = %d, %d; want %d", receipt.WrittenBytes, receipt.VerifiedBytes, want)
	}
	var saved []Receipt
	if err := json.Unmarshal(read(t, receiptOf(t, a)), &saved); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Receipt{receipt}, saved, cmp.FilterPath(unexported, cmp.Ignore())); diff != "" {
		t.Errorf("receipts (-returned +saved):\n%s", diff)
	}
}

func unexported(p cmp.Path) bool {
	name := p.Last().String()
	return name == ".exists" || name == ".sequence"
}

func TestWriteFileReplacesOnlyWhatWasConfirmed(t *testing.T) {
	a := artifact(t)
	path := filepath.Join(t.TempDir(), "disk.img")
	link := filepath.Join(t.TempDir(), "link.img")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	old := []byte("thesis")
	refuse := errors.New("no")
	tests := []struct {
		name    string
		to      string
		options Options
		wantErr string
	}{
		{name: "not confirmed", to: path, wantErr: "not confirmed"},
		{name: "another path", to: path, options: Options{Yes: []string{"/disk.img"}}, wantErr: "--yes names"},
		{name: "answered no", to: path, options: Options{Confirm: func([]device.Device) error { return refuse }}, wantErr: "no"},
		{name: "typed wrongly", to: path, options: Options{Confirm: device.Ask(strings.NewReader("sdb\n"), io.Discard)}, wantErr: "not confirmed"},
		{name: "dry run", to: path, options: Options{Yes: []string{path}, DryRun: true}},
		{name: "typed", to: path, options: Options{Confirm: device.Ask(strings.NewReader("disk.img\n"), io.Discard)}},
		{name: "path", to: path, options: Options{Yes: []string{path}}},
		{name: "through a link", to: link, options: Options{Yes: []string{link}}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if err := os.WriteFile(path, old, 0o644); err != nil {
				t.Fatal(err)
			}
			_, err := Write(t.Context(), spec, a, test.to, test.options)
			if test.wantErr != "" && (err == nil || !strings.Contains(err.Error(), test.wantErr)) {
				t.Errorf("Write = %v; want an error with %q", err, test.wantErr)
			}
			if test.wantErr == "" && err != nil {
				t.Error(err)
			}
			want := image(t, a)
			if test.wantErr != "" || test.options.DryRun {
				want = old
			}
			same(t, "virtual disk", read(t, path), want)
		})
	}
}

// A dry run proves a plain image too, though it writes nothing.
func TestDryRunProvesTheImage(t *testing.T) {
	a := artifact(t)
	damaged := image(t, a)
	damaged[len(damaged)/2] ^= 1
	file, err := a.File(images.DiskImage)
	if err := errors.Join(err, os.WriteFile(a.Path(file), damaged, 0o644)); err != nil {
		t.Fatal(err)
	}
	if _, err := Write(t.Context(), spec, a, filepath.Join(t.TempDir(), "disk.img"), Options{DryRun: true}); !errors.Is(err, ErrImage) || !strings.Contains(err.Error(), "sha256") && !strings.Contains(err.Error(), "digest") {
		t.Errorf("Write = %v; want %v, and the digest", err, ErrImage)
	}
}

func TestWriteIdentity(t *testing.T) {
	needMke2fs(t)
	a, id := artifact(t), newTestIdentity(t)
	path := filepath.Join(t.TempDir(), "disk.img")
	receipt, err := Write(t.Context(), spec, a, path, Options{Identity: &id})
	if err != nil {
		t.Fatal(err)
	}
	got, want := read(t, path), image(t, a)
	same(t, "before the data partition", got[:dataStart], want[:dataStart])
	same(t, "behind the data partition", got[dataStart+dataSize:], want[dataStart+dataSize:])
	data := filepath.Join(t.TempDir(), "data.img")
	if err := os.WriteFile(data, got[dataStart:dataStart+dataSize], 0o600); err != nil {
		t.Fatal(err)
	}
	proveIdentity(t, data, id)
	if receipt.HostKey != id.Fingerprint() || !strings.HasPrefix(receipt.HostKey, "SHA256:") {
		t.Errorf("host key in the receipt = %q; want %q", receipt.HostKey, id.Fingerprint())
	}
	if known := string(read(t, images.KnownHostsPath(id.dir))); !strings.HasPrefix(known, "toy ssh-ed25519 ") || strings.Count(known, "\n") != 1 {
		t.Errorf("known_hosts = %q; want one line for toy", known)
	}
}

// A complete device has a receipt, also if the host key cannot be pinned.
func TestReceiptWithoutPin(t *testing.T) {
	needMke2fs(t)
	a, id := artifact(t), newTestIdentity(t)
	if err := os.Mkdir(images.KnownHostsPath(id.dir), 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "disk.img")
	receipts, err := WriteAll(t.Context(), spec, a, []string{path}, Options{Identity: &id})
	if err == nil || !strings.Contains(err.Error(), "pin the host key") || len(receipts) != 1 || receipts[0].HostKey != id.Fingerprint() {
		t.Errorf("WriteAll = %+v, %v; want the receipt, and an error about the pin", receipts, err)
	}
}

// proveIdentity looks into the file system with e2fsprogs, not with our own code.
func proveIdentity(t *testing.T, data string, id Identity) {
	t.Helper()
	debugfs := func(request string) string {
		out, err := exec.CommandContext(t.Context(), flashtest.E2fs(t, "debugfs"), "-R", request, data).Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	if out, err := exec.CommandContext(t.Context(), flashtest.E2fs(t, "e2fsck"), "-fn", data).CombinedOutput(); err != nil {
		t.Errorf("e2fsck: %v\n%s", err, out)
	}
	signer, err := ssh.ParsePrivateKey([]byte(debugfs("cat /ssh/ssh_host_ed25519_key")))
	if err != nil {
		t.Fatal(err)
	}
	if got := ssh.FingerprintSHA256(signer.PublicKey()); got != id.Fingerprint() {
		t.Errorf("host key = %s; want %s", got, id.Fingerprint())
	}
	if got, want := debugfs("cat /ssh/authorized_keys"), string(read(t, images.ClientKeyPath(id.dir)+".pub")); got != want {
		t.Errorf("authorized_keys = %q; want %q", got, want)
	}
	for _, file := range []string{"/ssh/ssh_host_ed25519_key", "/ssh/authorized_keys"} {
		stat := debugfs("stat " + file)
		if !strings.Contains(stat, "Mode:  0600") || !strings.Contains(stat, "User:     0   Group:     0") {
			t.Errorf("%s is not root's alone:\n%s", file, stat)
		}
	}
}

// The files of a user who is not root must end up as root's all the same.
func TestChownToRoot(t *testing.T) {
	needMke2fs(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make files of another user")
	}
	id, dir := newTestIdentity(t), t.TempDir()
	content, data := filepath.Join(dir, "content"), filepath.Join(dir, "data.img")
	if err := writeTree(content, id.seedFiles()); err != nil {
		t.Fatal(err)
	}
	chown := func(path string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, 1234, 1234))
	}
	if err := filepath.WalkDir(content, chown); err != nil {
		t.Fatal(err)
	}
	if err := makeFileSystem(t.Context(), flashtest.Open(t, data, os.O_CREATE), content, images.Partition{Name: "data", SizeBytes: 8 * mib}); err != nil {
		t.Fatal(err)
	}
	if err := chownToRoot(t.Context(), data, content); err != nil {
		t.Fatal(err)
	}
	proveIdentity(t, data, id)
}

// A flash that fails leaves the old virtual disk and nothing beside it.
func TestWriteFileFails(t *testing.T) {
	for _, test := range failures {
		t.Run(test.name, func(t *testing.T) {
			a, path := artifact(t), filepath.Join(t.TempDir(), "disk.img")
			if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
				t.Fatal(err)
			}
			ctx := test.prepare(t, a)
			_, err := Write(ctx, spec, a, path, Options{Yes: []string{path}})
			if err == nil || !strings.Contains(err.Error(), test.wantErr) {
				t.Errorf("Write = %v; want an error with %q", err, test.wantErr)
			}
			same(t, "virtual disk", read(t, path), []byte("old"))
			if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 1 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

// unsampled lies in a range that is not proved before the first write.
const unsampled = dataStart + mib + 1

// failures are the failures of a flash, most of them after it has begun.
var failures = []struct {
	name    string
	prepare func(*testing.T, images.Artifact) context.Context
	wantErr string
}{
	{"damaged image", func(t *testing.T, a images.Artifact) context.Context {
		damage(t, filepath.Join(a.Dir(), "disk.img"), unsampled)
		return t.Context()
	}, "the block map has"},
	{"damaged where it is proved first", func(t *testing.T, a images.Artifact) context.Context {
		damage(t, filepath.Join(a.Dir(), "disk.img"), 5*mib)
		return t.Context()
	}, "; nothing was written"},
	{"damaged first block", func(t *testing.T, a images.Artifact) context.Context {
		damage(t, filepath.Join(a.Dir(), "disk.img"), 17)
		return t.Context()
	}, "; nothing was written"},
	{"interrupted", func(t *testing.T, _ images.Artifact) context.Context {
		return interrupted(t)
	}, context.Canceled.Error()},
}

func damage(t *testing.T, path string, at int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p := make([]byte, 1)
	if _, err := f.ReadAt(p, at); err != nil {
		t.Fatal(err)
	}
	p[0] ^= 1
	if _, err := f.WriteAt(p, at); err != nil {
		t.Fatal(err)
	}
}

// resize makes a file of the artifact longer by a hole.
func resize(t *testing.T, a images.Artifact, kind string, size int64) {
	t.Helper()
	for i, f := range a.Files {
		if f.Kind == kind {
			a.Files[i].SizeBytes = size
			if err := os.Truncate(a.Path(f), size); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := a.Save(a.Dir()); err != nil {
		t.Fatal(err)
	}
}

// "build again" alone would find that nothing changed: it compares sizes.
func TestDamagedImageSaysWhatToDo(t *testing.T) {
	a := artifact(t)
	damage(t, filepath.Join(a.Dir(), "disk.img"), 5*mib)
	_, err := Write(t.Context(), spec, a, filepath.Join(t.TempDir(), "disk.img"), Options{})
	if want := "remove " + filepath.Join(a.Dir(), images.ArtifactName) + " and build again"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Write = %v; want an error with %q", err, want)
	}
}

// That an image has no place for the identity is said before the person is asked.
func TestNoPlaceForIdentity(t *testing.T) {
	id := newTestIdentity(t)
	for name, parts := range map[string][]images.Partition{
		"no partition": nil,
		"outside":      {{Name: "data", Use: "data", OffsetBytes: dataStart, SizeBytes: imageSize}},
		"at the front": {{Name: "data", Use: "data", OffsetBytes: 0, SizeBytes: dataSize}},
	} {
		t.Run(name, func(t *testing.T) {
			a := artifact(t)
			a.Partitions = parts
			path := filepath.Join(t.TempDir(), "disk.img")
			flashtest.Put(t, path, "old")
			o := Options{Identity: &id, Confirm: func([]device.Device) error {
				t.Error("asked for an image that cannot be written")
				return errors.New("no")
			}}
			for _, o.DryRun = range []bool{true, false} {
				if _, err := Write(t.Context(), spec, a, path, o); err == nil || !strings.Contains(err.Error(), "partition") {
					t.Errorf("Write (dry: %v) = %v; want an error about the partition", o.DryRun, err)
				}
			}
			if _, err := Write(t.Context(), spec, a, path, Options{Yes: []string{path}}); err != nil {
				t.Errorf("Write without an identity: %v", err)
			}
		})
	}
}

// interrupted returns a context that ends as soon as the flash has begun.
func interrupted(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	return progress.With(ctx, progress.New(sink(func(progress.Event) { cancel() })))
}

type sink func(progress.Event)

func (s sink) Event(e progress.Event) { s(e) }
func (s sink) Close()                 {}

// Whenever a flash is ended, the virtual disk is the old one or whole.
func TestWriteFileInterruptedAnywhere(t *testing.T) {
	a := artifact(t)
	want, old := image(t, a), []byte("old")
	for range 10 {
		path := filepath.Join(t.TempDir(), "disk.img")
		if err := os.WriteFile(path, old, 0o600); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), rand.N(100*time.Millisecond))
		_, err := Write(ctx, spec, a, path, Options{Yes: []string{path}})
		cancel()
		if err != nil {
			same(t, "virtual disk", read(t, path), old)
		} else {
			same(t, "virtual disk", read(t, path), want)
		}
		if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 1 {
			t.Errorf("left behind: %v", left)
		}
	}
}

func TestWriteRefuses(t *testing.T) {
	a, dir := artifact(t), t.TempDir()
	tests := []struct {
		name    string
		spec    images.Spec
		device  string
		prepare func(t *testing.T, a images.Artifact)
		wantErr string
	}{
		{name: "another board", spec: images.Spec{Board: "other", Flash: spec.Flash}, wantErr: "an artifact for board toy"},
		{name: "kind not known to the board", spec: images.Spec{Board: "toy", Flash: images.Flash{Kinds: []string{device.Tegra}}}, wantErr: "of kind file"},
		{name: "no boot stream", spec: spec, device: "/dev/rshim0", wantErr: "--image=FILE.bfb"},
		{name: "mistyped device", spec: spec, device: "/dev/sdzz9", wantErr: "no such device"},
		{name: "folder", spec: spec, device: dir, wantErr: "neither a file nor a block device"},
		{name: "character device", spec: spec, device: "/dev/null", wantErr: "neither a file nor a block device"},
		{name: "damaged map", spec: spec, prepare: func(t *testing.T, a images.Artifact) {
			damage(t, filepath.Join(a.Dir(), "disk.bmap"), 300)
		}, wantErr: "/artifact.json and build again"},
		{name: "endless map", spec: spec, prepare: func(t *testing.T, a images.Artifact) {
			resize(t, a, images.BlockMap, mapLimit+1)
		}, wantErr: "disk.bmap: larger than 65536 KiB"},
		{name: "map of another image", spec: spec, prepare: func(t *testing.T, a images.Artifact) {
			describe(t, a.Dir(), bmap.Map{ImageSize: 4096, BlockSize: 4096})
		}, wantErr: "of another image"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			a := a
			if test.prepare != nil {
				a = artifact(t)
				test.prepare(t, a)
				a, _ = images.OpenArtifact(a.Dir())
			}
			device := test.device
			if device == "" {
				device = filepath.Join(dir, "disk.img")
			}
			_, err := Write(t.Context(), test.spec, a, device, Options{})
			if err == nil || !strings.Contains(err.Error(), test.wantErr) {
				t.Errorf("Write = %v; want an error with %q", err, test.wantErr)
			}
		})
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestProgressCountsWritingAndReading(t *testing.T) {
	var mu sync.Mutex
	var events []progress.Event
	ctx := progress.With(t.Context(), progress.New(sink(func(e progress.Event) {
		mu.Lock()
		defer mu.Unlock()
		events = append(events, e)
	})))
	if _, err := Write(ctx, spec, artifact(t), filepath.Join(t.TempDir(), "disk.img"), Options{}); err != nil {
		t.Fatal(err)
	}
	last := events[len(events)-1]
	if last.State != progress.Done || last.Count != last.Total || last.Total != mapped {
		t.Errorf("last event = %+v; want all of the image's %d bytes done", last, mapped)
	}
	if !slices.IsSortedFunc(events, func(a, b progress.Event) int {
		if a.Detail != b.Detail { // each phase starts its count at 0
			return 0
		}
		return int(a.Count - b.Count)
	}) {
		t.Error("progress went backwards")
	}
}

func TestWriteAll(t *testing.T) {
	a, dir := artifact(t), t.TempDir()
	one, two := filepath.Join(dir, "one.img"), filepath.Join(dir, "two.img")
	receipts, err := WriteAll(t.Context(), spec, a, []string{one, two}, Options{})
	if err != nil || len(receipts) != 2 {
		t.Fatalf("WriteAll = %v, %v; want two receipts", receipts, err)
	}
	for i, path := range []string{one, two} {
		same(t, "virtual disk", read(t, path), image(t, a))
		if receipts[i].Device.Path != path {
			t.Errorf("receipt %d is of %s; want %s", i, receipts[i].Device.Path, path)
		}
	}
	id := newTestIdentity(t)
	for _, test := range []struct {
		name    string
		devices []string
		options Options
		wantErr string
	}{
		{name: "none", wantErr: "no device is named"},
		{name: "twice", devices: []string{one, dir + "/../" + filepath.Base(dir) + "/one.img"}, wantErr: "same device"},
		{name: "one not confirmed", devices: []string{one, two}, options: Options{Yes: []string{one}}, wantErr: "--yes names"},
		{name: "one board's keys", devices: []string{one, two}, options: Options{Yes: []string{one, two}, Identity: &id}, wantErr: "one board's"},
		{name: "one cannot be written", devices: []string{one, "/dev/null"}, options: Options{Yes: []string{one, "/dev/null"}}, wantErr: "neither a file nor a block device"},
	} {
		t.Run(test.name, func(t *testing.T) {
			damage(t, one, 5)
			before := read(t, one)
			_, err := WriteAll(t.Context(), spec, a, test.devices, test.options)
			if err == nil || !strings.Contains(err.Error(), test.wantErr) {
				t.Errorf("WriteAll = %v; want an error with %q", err, test.wantErr)
			}
			same(t, "virtual disk", read(t, one), before)
		})
	}
}
