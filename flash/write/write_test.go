package write

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"slipway/flash/flashtest"
	"slipway/flash/source"
	"slipway/images/bmap"
)

const (
	mib       = 1 << 20
	imageSize = 9*mib + 4096
	diskSize  = 12 * mib
)

// kinds are the targets that an image is written to. Each runs the same tests.
var kinds = []struct {
	name string
	open func(t *testing.T, size int64) string
}{
	{"file", func(t *testing.T, size int64) string { return soiled(t, t.TempDir(), size) }},
	{"file in memory", func(t *testing.T, size int64) string { return soiled(t, memory(t), size) }},
	{"loop device", loopWith("--direct-io=on")},
	{"loop device through the page cache", loopWith("--direct-io=off")},
	{"loop device of 4096-byte sectors", loopWith("--sector-size=4096")},
}

// memory is a folder whose files do not take direct I/O on older kernels.
func memory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "slipway-write-")
	if err != nil {
		t.Skipf("no file system in memory: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// soiled is a file full of a former owner's data.
func soiled(t *testing.T, dir string, size int64) string {
	t.Helper()
	path := filepath.Join(dir, "device")
	if err := os.WriteFile(path, bytes.Repeat([]byte{0xa5}, int(size)), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func loopWith(args ...string) func(*testing.T, int64) string {
	return func(t *testing.T, size int64) string { return attach(t, soiled(t, t.TempDir(), size), args...) }
}

func attach(t *testing.T, file string, args ...string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, for loop devices")
	}
	return flashtest.Attach(t, append(args, file)...)
}

// content is an image: data at its beginning and scattered, zeros inside, a hole at
// its end.
func content() []byte {
	p := make([]byte, imageSize)
	random := rand.NewChaCha8([32]byte{1})
	for _, s := range [][2]int{{0, 2 * mib}, {3*mib + 4096, 6 * mib}, {7 * mib, 7*mib + mib/2 + 512}} {
		random.Read(p[s[0]:s[1]])
	}
	return p
}

// goods is an image file with its map.
type goods struct {
	*source.Image
	blocks bmap.Map
	want   []byte
}

func pack(t *testing.T, p []byte, form string) goods {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk.img")
	if err := os.WriteFile(path, p, 0o600); err != nil {
		t.Fatal(err)
	}
	f := open(t, path)
	m, err := bmap.Create(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	if form == "gz" {
		path += ".gz"
		var b bytes.Buffer
		w, _ := gzip.NewWriterLevel(&b, gzip.BestSpeed)
		w.Write(p)
		w.Close()
		if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		f = open(t, path)
	}
	image, err := source.Open(f, path)
	if err != nil {
		t.Fatal(err)
	}
	return goods{image, m, p}
}

func open(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// target opens a path, as each flash does.
func target(t *testing.T, path string, o CopyOptions) *Copy {
	t.Helper()
	d, err := OpenDisk(open(t, path))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	c, err := NewCopy(d, o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (g goods) options() Options {
	return Options{Name: "image", Remedy: "build again", Blocks: &g.blocks, Size: int64(len(g.want))}
}

// flash is a whole flash of one device.
func flash(ctx context.Context, g goods, c *Copy, o Options) error {
	_, err := Run(ctx, g.Image, []*Copy{c}, o)
	return errors.Join(err, c.Complete(ctx))
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	p, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// same compares without printing megabytes.
func same(t *testing.T, what string, got, want []byte) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s has %d bytes; want %d", what, len(got), len(want))
		return
	}
	if bytes.Equal(got, want) {
		return
	}
	for i := 0; i < len(want); i += 512 {
		if end := min(i+512, len(want)); !bytes.Equal(got[i:end], want[i:end]) {
			t.Errorf("%s differs from byte %d on", what, i)
			return
		}
	}
}

// onDisk returns the expected content of a device of diskSize.
func onDisk(image []byte) []byte {
	p := append(bytes.Clone(image), bytes.Repeat([]byte{0xa5}, diskSize-len(image))...)
	clear(p[diskSize-markBytes:])
	return p
}

func TestTargets(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			suite(t, pack(t, content(), "raw"), kind.open(t, diskSize))
		})
	}
}

// suite flashes one device again and again.
func suite(t *testing.T, g goods, device string) {
	first := target(t, device, CopyOptions{Marked: true})
	if err := flash(t.Context(), g, first, g.options()); err != nil {
		t.Fatal(err)
	}
	same(t, "device", read(t, device), onDisk(g.want))
	if r := first.Result(); r.Left != 0 || r.Written < g.blocks.Mapped() || r.Verified != r.Written {
		t.Errorf("first flash: %+v; want all of %d bytes written and read back", r, g.blocks.Mapped())
	}
	again := target(t, device, CopyOptions{Marked: true})
	if err := flash(t.Context(), g, again, g.options()); err != nil {
		t.Fatal(err)
	}
	if r := again.Result(); r.Written != 0 || r.Left != g.blocks.Mapped()-markBytes || again.Touched() {
		t.Errorf("second flash: %+v, touched: %v; want nothing written", r, again.Touched())
	}
	damage(t, device, 4*mib, 7*mib+100, 8*mib)
	rewritten := target(t, device, CopyOptions{Marked: true})
	if err := flash(t.Context(), g, rewritten, g.options()); err != nil {
		t.Fatal(err)
	}
	same(t, "device, rewritten", read(t, device), onDisk(g.want))
	if r := rewritten.Result(); r.Written > 4*mib+mib/2 { // two parts, both ends
		t.Errorf("flash of what differs in two places: %+v; want little written", r)
	}
}

func damage(t *testing.T, path string, at ...int64) {
	t.Helper()
	f := open(t, path)
	for _, off := range at {
		p := make([]byte, 1)
		if _, err := f.ReadAt(p, off); err != nil {
			t.Fatal(err)
		}
		p[0] ^= 1
		if _, err := f.WriteAt(p, off); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
}

func TestRun(t *testing.T) {
	odd := content()[:imageSize-4096+777]
	copy(odd[len(odd)-777:], bytes.Repeat([]byte("x"), 777))
	tests := []struct {
		name  string
		image []byte
		how   func(*goods, *Options)
		want  func(g goods) []byte // nil: the image
	}{
		{name: "without a map", how: func(_ *goods, o *Options) { o.Blocks = nil }},
		{name: "not read back", how: func(_ *goods, o *Options) { o.Blind = true }},
		{name: "odd size", image: odd, how: func(*goods, *Options) {}},
		{name: "odd size without a map", image: odd, how: func(_ *goods, o *Options) { o.Blocks = nil }},
		{name: "one large range", how: func(g *goods, _ *Options) { g.blocks = oneRange(g.want) }},
		{name: "all zero", image: make([]byte, imageSize), how: func(*goods, *Options) {}},
		{name: "tiny", image: []byte("tiny"), how: func(*goods, *Options) {}, want: func(g goods) []byte {
			p := onDisk(g.want)
			clear(p[len(g.want):markBytes])
			return p
		}},
		{
			name: "keep", how: func(_ *goods, o *Options) { o.Holes = Keep },
			want: func(g goods) []byte {
				p := bytes.Repeat([]byte{0xa5}, diskSize)
				for _, r := range g.blocks.Ranges {
					off, n := g.blocks.Span(r)
					copy(p[off:off+n], g.want[off:])
				}
				clear(p[diskSize-markBytes:])
				return p
			},
		},
		{
			name: "keep, but for content that the map leaves out", how: func(_ *goods, o *Options) {
				o.Holes, o.Content = Keep, []source.Span{{Off: 4096, Len: imageSize / 2}, {Off: imageSize - mib, Len: mib}}
			},
			want: func(g goods) []byte {
				p := bytes.Repeat([]byte{0xa5}, diskSize)
				clear(p[4096 : 4096+imageSize/2])
				clear(p[imageSize-mib : imageSize])
				for _, r := range g.blocks.Ranges {
					off, n := g.blocks.Span(r)
					copy(p[off:off+n], g.want[off:])
				}
				clear(p[diskSize-markBytes:])
				return p
			},
		},
		{
			name: "something else in the middle", how: func(_ *goods, o *Options) { o.Except = []source.Span{{Off: 4 * mib, Len: 2*mib + mib/2 + 4096}} },
			want: func(g goods) []byte {
				p := onDisk(g.want)
				copy(p[4*mib:6*mib+mib/2+4096], bytes.Repeat([]byte{0xa5}, 3*mib))
				return p
			},
		},
		{
			name: "further back", how: func(_ *goods, o *Options) { o.Base = 2 * mib },
			want: func(g goods) []byte {
				p := bytes.Repeat([]byte{0xa5}, diskSize)
				copy(p[2*mib:], g.want)
				clear(p[:mib])
				clear(p[diskSize-markBytes:])
				return p
			},
		},
	}
	for _, form := range []string{"raw", "gz"} {
		for i, test := range tests {
			if form == "gz" && i%3 != 0 {
				continue // the form matters to what decodes, not to each of these
			}
			t.Run(test.name+" "+form, func(t *testing.T) {
				if test.image == nil {
					test.image = content()
				}
				g, device := pack(t, test.image, form), soiled(t, t.TempDir(), diskSize)
				test.how(&g, &Options{})
				o := g.options()
				test.how(&g, &o)
				if err := flash(t.Context(), g, target(t, device, CopyOptions{Marked: true}), o); err != nil {
					t.Fatal(err)
				}
				want := onDisk(g.want)
				if test.want != nil {
					want = test.want(g)
				}
				same(t, "device", read(t, device), want)
			})
		}
	}
}

// oneRange is a map such as bmaptool's of a file without holes.
func oneRange(p []byte) bmap.Map {
	m := bmap.Map{ImageSize: int64(len(p)), BlockSize: 4096}
	sum := sha256.Sum256(p)
	m.Ranges = []bmap.Range{{First: 0, Last: (m.ImageSize - 1) / 4096, Sum: hexOf(sum[:])}}
	return m
}

// The device holds the image, or nothing that could be taken for it, whenever the
// flash ends; the next one goes on.
func TestInterruptedAnywhere(t *testing.T) {
	g, device := pack(t, content(), "raw"), soiled(t, t.TempDir(), diskSize)
	for i := range int64(10) {
		ctx, cancel := context.WithCancel(t.Context())
		var count counter
		c := target(t, device, CopyOptions{Marked: true, Count: func(n int64) {
			if count.n.Add(n) > i*mib+i*1000 {
				cancel()
			}
		}})
		err := flash(ctx, g, c, g.options())
		got := read(t, device)
		switch {
		case err == nil:
			same(t, "device", got, onDisk(g.want))
			fill(t, device, 0xa5)
		case c.Touched():
			same(t, "device's beginning", got[:markBytes], make([]byte, markBytes))
			same(t, "device's end", got[diskSize-markBytes:], make([]byte, markBytes))
		}
		cancel()
	}
	if err := flash(t.Context(), g, target(t, device, CopyOptions{Marked: true}), g.options()); err != nil {
		t.Fatal(err)
	}
	same(t, "device", read(t, device), onDisk(g.want))
}

func fill(t *testing.T, path string, with byte) {
	t.Helper()
	if _, err := open(t, path).WriteAt(bytes.Repeat([]byte{with}, diskSize), 0); err != nil {
		t.Fatal(err)
	}
}

// An image that differs from its map is never complete.
func TestDamagedImage(t *testing.T) {
	for _, test := range []struct {
		name, form string
		damage     func(g *goods)
		wantErr    string
	}{
		{"another digest", "raw", func(g *goods) { g.blocks.Ranges[2].Sum = strings.Repeat("0", 64) }, "the block map has"},
		{"another digest, packed", "gz", func(g *goods) { g.blocks.Ranges[0].Sum = strings.Repeat("0", 64) }, "the block map has"},
		{"longer than its map", "gz", func(g *goods) {
			g.blocks = oneRange(g.want[:7*mib+mib/4])
			g.want = g.want[:7*mib+mib/4]
		}, "unpacks to more than"},
		{"shorter than its map", "gz", func(g *goods) { g.blocks.ImageSize += 8192; g.want = append(g.want, make([]byte, 8192)...) }, "unpacks to"},
	} {
		t.Run(test.name, func(t *testing.T) {
			g, device := pack(t, content(), test.form), soiled(t, t.TempDir(), diskSize)
			test.damage(&g)
			c := target(t, device, CopyOptions{Marked: true})
			_, err := Run(t.Context(), g.Image, []*Copy{c}, g.options())
			if err == nil || !strings.Contains(err.Error(), test.wantErr) {
				t.Fatalf("Run = %v; want an error with %q", err, test.wantErr)
			}
			if got := read(t, device); c.Touched() {
				same(t, "device's beginning", got[:markBytes], make([]byte, markBytes))
			}
		})
	}
}

// Devices of all kinds from one decode; one that fails leaves the others.
func TestManyDevices(t *testing.T) {
	g := pack(t, content(), "gz")
	var to []*Copy
	var devices []string
	for range 3 {
		devices = append(devices, soiled(t, t.TempDir(), diskSize))
		to = append(to, target(t, devices[len(devices)-1], CopyOptions{Marked: true}))
	}
	readOnly, err := OpenDisk(openReadOnly(t, soiled(t, t.TempDir(), diskSize)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(readOnly.Close)
	broken, err := NewCopy(readOnly, CopyOptions{Marked: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), g.Image, slices.Concat(to, []*Copy{broken}), g.options()); err != nil {
		t.Fatal(err)
	}
	for i, c := range to {
		if err := c.Complete(t.Context()); err != nil {
			t.Errorf("device %d: %v", i, err)
		}
		same(t, "device", read(t, devices[i]), onDisk(g.want))
	}
	if err := broken.Complete(t.Context()); err == nil {
		t.Error("a device that cannot be written to was completed")
	}
	if _, err := Run(t.Context(), g.Image, []*Copy{broken}, g.options()); err != nil || broken.Err() == nil {
		t.Errorf("Run without a device that works = %v, and the device says %v; want its own fault", err, broken.Err())
	}
}

func openReadOnly(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// The old ends of a device are saved once, before anything is written.
func TestSave(t *testing.T) {
	g, device := pack(t, content(), "raw"), soiled(t, t.TempDir(), diskSize)
	saved := map[int64][]byte{}
	o := CopyOptions{Marked: true, Save: func(old []byte, off int64) error {
		same(t, "device before it is written", read(t, device), bytes.Repeat([]byte{0xa5}, diskSize))
		saved[off] = bytes.Clone(old)
		return nil
	}}
	if err := flash(t.Context(), g, target(t, device, o), g.options()); err != nil {
		t.Fatal(err)
	}
	for _, off := range []int64{0, diskSize - markBytes} {
		same(t, "saved", saved[off], bytes.Repeat([]byte{0xa5}, markBytes))
	}
	device = soiled(t, t.TempDir(), diskSize)
	no := errors.New("no room")
	o.Save = func([]byte, int64) error { return no }
	c := target(t, device, o)
	if err := flash(t.Context(), g, c, g.options()); !errors.Is(err, no) || c.Touched() {
		t.Errorf("flash = %v, touched: %v; want %v, and nothing written", err, c.Touched(), no)
	}
	same(t, "device", read(t, device), bytes.Repeat([]byte{0xa5}, diskSize))
}

type counter struct{ n atomic.Int64 }

func (c *counter) add(n int64) { c.n.Add(n) }

func hexOf(p []byte) string { return hex.EncodeToString(p) }

func TestCountsAllWork(t *testing.T) {
	for _, blind := range []bool{false, true} {
		for _, mapped := range []bool{false, true} {
			g, device := pack(t, content(), "raw"), soiled(t, t.TempDir(), diskSize)
			o := g.options()
			if o.Blind = blind; !mapped {
				o.Blocks = nil
			}
			var count counter
			var phases []string
			total, counted := int64(0), true
			c := target(t, device, CopyOptions{Marked: true, Count: count.add, Phase: func(what string, bytes int64) {
				counted = counted && count.n.Swap(0) == total
				phases, total = append(phases, what), bytes
			}})
			if err := flash(t.Context(), g, c, o); err != nil {
				t.Fatal(err)
			}
			want := []string{"comparing and writing", "zeroing", "reading back"}
			if blind {
				want = want[:2]
			}
			if !slices.Equal(phases, want) || !counted || count.n.Load() != total {
				t.Errorf("blind: %v, with a map: %v: phases %q, each counted all: %v, %d of %d in the last one", blind, mapped, phases, counted, count.n.Load(), total)
			}
			if r := c.Result(); !blind && (total == 0 || total > r.Verified) {
				t.Errorf("it says that it reads %d bytes back, and verified %d", total, r.Verified)
			}
		}
	}
}

// Runs that share Sums read back by the first one's, so that other content than that is found.
func TestSharedSums(t *testing.T) {
	sums, changed := NewSums(), content()
	changed[4*mib] ^= 1
	for i, p := range [][]byte{content(), content(), changed} {
		g := pack(t, p, "raw")
		o := g.options()
		o.Sums, o.Proved = sums, true
		err := flash(t.Context(), g, target(t, soiled(t, t.TempDir(), diskSize), CopyOptions{}), o)
		if errors.Is(err, ErrLost) != (i == 2) || err != nil && i < 2 {
			t.Errorf("run %d = %v; want ErrLost only for the changed image", i, err)
		}
	}
}
