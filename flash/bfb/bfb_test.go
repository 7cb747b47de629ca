package bfb

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// folder holds files that streams are made of.
type folder struct {
	*testing.T
	dir string
}

func newFolder(t *testing.T) folder { return folder{t, t.TempDir()} }

func (f folder) path(name string) string { return filepath.Join(f.dir, name) }

// random writes a file of so many bytes, which are the same in each run.
func (f folder) random(name string, size int) string {
	f.Helper()
	data := make([]byte, size)
	seed := [32]byte{}
	copy(seed[:], name)
	rand.NewChaCha8(seed).Read(data)
	if err := os.WriteFile(f.path(name), data, 0o644); err != nil {
		f.Fatal(err)
	}
	return f.path(name)
}

func (f folder) read(name string) []byte {
	f.Helper()
	data, err := os.ReadFile(f.path(name))
	if err != nil {
		f.Fatal(err)
	}
	return data
}

// make makes a stream of parts and returns it.
func (f folder) make(name, parts string) []byte {
	f.Helper()
	p, err := ParseParts(parts)
	if err == nil {
		_, err = Make(f.Context(), f.path(name), Recipe{Parts: p})
	}
	if err != nil {
		f.Fatal(err)
	}
	return f.read(name)
}

// usual is a stream with two versions of an image, one of no bytes and one that needs
// no padding.
func usual(t *testing.T) []byte {
	f := newFolder(t)
	return f.make("usual.bfb", "bl2="+f.random("a", 1001)+",bl2-v1="+f.random("b", 2003)+",image="+f.random("c", 4096)+",boot-args==console=ttyAMA1,boot-timeout==")
}

func TestRead(t *testing.T) {
	data := usual(t)
	s, err := Read(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	var list bytes.Buffer
	if err := s.List(&list); err != nil {
		t.Fatal(err)
	}
	want := "" +
		"      1001 Trusted Boot Firmware BL2 bin (version 0)\n" +
		"      2003 Trusted Boot Firmware BL2 bin (version 1)\n" +
		"        15 Arguments for boot image (version 0)\n" +
		"         0 Boot menu timeout (version 0)\n" +
		"      4096 Boot image (version 0)\n"
	if diff := cmp.Diff(want, list.String()); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
	if s.TrailingBytes != 0 || s.StreamBytes != int64(len(data)) || len(s.Notes) != 0 {
		t.Errorf("stream has %d bytes, %d behind them, notes %q; want %d, 0, none", s.StreamBytes, s.TrailingBytes, s.Notes, len(data))
	}
	counted := int64(0)
	if err := s.Check(t.Context(), bytes.NewReader(data), func(n int64) { counted += n }); err != nil {
		t.Error(err)
	}
	if want := int64(len(data) - 5*headerBytes); counted != want {
		t.Errorf("Check counted %d bytes; want %d", counted, want)
	}
}

func TestTrailing(t *testing.T) {
	data := usual(t)
	for _, trailing := range []string{"A=1\n", strings.Repeat("#", 3*headerBytes)} {
		whole := append(bytes.Clone(data), trailing...)
		s, err := Read(bytes.NewReader(whole), int64(len(whole)))
		if err != nil || s.TrailingBytes != int64(len(trailing)) {
			t.Errorf("Read with %d bytes after the images: %d, %v", len(trailing), s.TrailingBytes, err)
			continue
		}
		f := newFolder(t)
		if _, err := s.Extract(t.Context(), bytes.NewReader(whole), f.path("x-"), []string{Trailing}); err != nil {
			t.Error(err)
		} else if got := string(f.read("x-" + Trailing)); got != trailing {
			t.Errorf("trailing is %q; want %q", got, trailing)
		}
		if info, err := os.Stat(f.path("x-" + Trailing)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("what may hold hashes of passwords has %v, %v; want mode 0600", info, err)
		}
	}
}

// second is where the header of the stream's second image begins.
const second = headerBytes + 1008

func TestBroken(t *testing.T) {
	good := usual(t)
	third := second + headerBytes + 2008
	put := func(at int, b ...byte) func([]byte) []byte {
		return func(d []byte) []byte { copy(d[at:], b); return d }
	}
	cut := func(n int) func([]byte) []byte { return func(d []byte) []byte { return d[:n] } }
	for _, test := range []struct {
		name   string
		break_ func([]byte) []byte
		want   string
	}{
		{"empty", cut(0), "too few"},
		{"no header", cut(23), "too few"},
		{"no stream", put(0, 0), "header at byte 0: it is not that of an image"},
		{"another major version", put(4, 0x22), "version 2.2 of the format"},
		{"a newer minor version", put(4, 0x31), "version 1.3 of the format"},
		{"a longer header", put(6, 0x40), "it says that it has 32 bytes"},
		{"cut in an image", cut(500), "the file only 476 more"},
		{"cut in the padding", cut(len(usual(t)) - 4096 - headerBytes - headerBytes - 1), "with padding"},
		{"cut between images", cut(second), "announces bl2, boot-args, boot-timeout, image, which does not follow"},
		{"cut in a header", cut(second + 10), "header at byte 1032: the file ends 10 bytes into it"},
		{"a header is gone", put(second, 0), "announces"},
		{"a huge image", put(11, 0xff), "it was cut off"},
		{"a version twice", put(second+6, 0x30), "the versions of one image ascend"},
		{"versions descend", put(6, 0x32), "the versions of one image ascend"},
		{"a wrong bitmap", put(third+16, 0xff), "announces"},
	} {
		data := test.break_(bytes.Clone(good))
		_, err := Read(bytes.NewReader(data), int64(len(data)))
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v; want %q", test.name, err, test.want)
		}
	}
}

func TestDamaged(t *testing.T) {
	good := usual(t)
	for _, at := range []int{headerBytes, headerBytes + 1001, len(good) - 1, 12} {
		data := bytes.Clone(good)
		data[at] ^= 1
		s, err := Read(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			t.Errorf("byte %d: %v", at, err)
			continue
		}
		if err := s.Check(t.Context(), bytes.NewReader(data), nil); err == nil || !strings.Contains(err.Error(), "CRC-32") {
			t.Errorf("with byte %d changed, Check gives %v", at, err)
		}
		f := newFolder(t)
		if files, err := s.Extract(t.Context(), bytes.NewReader(data), f.path("x-"), nil); err == nil || len(files) > 0 {
			t.Errorf("with byte %d changed, Extract gives %v, %v", at, files, err)
		}
	}
}

func TestUnannounced(t *testing.T) {
	data := usual(t)
	binary.LittleEndian.PutUint64(data[16:], 0)
	s, err := Read(bytes.NewReader(data), int64(len(data)))
	if err != nil || len(s.Notes) != 1 || !strings.Contains(s.Notes[0], "boot-args") {
		t.Errorf("a stream whose first header announces nothing: notes %q, %v", s.Notes, err)
	}
}

func TestCheckEndsWithContext(t *testing.T) {
	data := usual(t)
	s, err := Read(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stopped")
	cancel(stop)
	if err := s.Check(ctx, bytes.NewReader(data), nil); !errors.Is(err, stop) {
		t.Errorf("Check after its context ended: %v", err)
	}
}

func TestParseParts(t *testing.T) {
	parts, err := ParseParts("bl2=a,b.bin,boot-args-v2==x,y=1,image==,nicfw=fw")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range parts {
		got = append(got, strings.Join([]string{p.kind.name, string(rune('0' + p.version)), p.path, p.text}, "|"))
	}
	if diff := cmp.Diff([]string{"bl2|0|a,b.bin|", "boot-args|2||x,y=1", "image|0||", "nicfw|0|fw|"}, got); diff != "" {
		t.Errorf("parts (-want +got):\n%s", diff)
	}
	for list, want := range map[string]string{
		"bl4=x":     `no image is called "bl4"`,
		"bl2":       "says no file",
		"bl2=":      "no file is named",
		"bl2-v3=x":  "the versions of an image are 0 to 2",
		"bl2-v=x":   "no image is called",
		"bl2-v-1=x": "no image is called",
	} {
		if _, err := ParseParts(list); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseParts(%q) gives %v; want %q", list, err, want)
		}
	}
}

func TestMakeRefuses(t *testing.T) {
	f := newFolder(t)
	f.make("a.bfb", "bl2="+f.random("x", 100))
	withTrailing := f.path("trailing.bfb")
	if err := os.WriteFile(withTrailing, append(f.read("a.bfb"), "A=1\n"...), 0o644); err != nil {
		t.Fatal(err)
	}
	unknown := f.read("a.bfb")
	unknown[7] = 20
	if err := os.WriteFile(f.path("unknown.bfb"), unknown, 0o644); err != nil {
		t.Fatal(err)
	}
	padding := f.read("a.bfb")
	padding[len(padding)-1] = 1
	if err := os.WriteFile(f.path("padding.bfb"), padding, 0o644); err != nil {
		t.Fatal(err)
	}
	parts, err := ParseParts("bl2=" + f.path("x"))
	if err != nil {
		t.Fatal(err)
	}
	gone, err := ParseParts("bl2=" + f.path("gone"))
	if err != nil {
		t.Fatal(err)
	}
	dir, err := ParseParts("bl2=" + f.dir)
	if err != nil {
		t.Fatal(err)
	}
	f.make("v1.bfb", "bl2-v1="+f.path("x"))
	a := f.path("a.bfb")
	for want, r := range map[string]Recipe{
		"of nothing":                {},
		"one or two can be joined":  {Bases: []string{a, a, a}},
		"take the other stream":     {Bases: []string{a}, Expert: true},
		"without other images":      {Bases: []string{a}, Parts: parts, Hardware: new(int)},
		"would be lost":             {Bases: []string{withTrailing}},
		"is not known":              {Bases: []string{f.path("unknown.bfb")}},
		"the file is damaged":       {Bases: []string{f.path("padding.bfb")}},
		"no such file":              {Parts: gone},
		"is not a regular file":     {Parts: dir},
		"no image is left":          {Bases: []string{f.path("v1.bfb")}, Hardware: new(int)},
		"too few for a boot stream": {Bases: []string{f.random("short", 5)}},
	} {
		out := f.path("out.bfb")
		if _, err := Make(t.Context(), out, r); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), out) {
			t.Errorf("Make gives %v; want %q", err, want)
		}
		if left, _ := filepath.Glob(f.path("*out.bfb*")); len(left) > 0 {
			t.Errorf("%s: left %v", want, left)
		}
	}
}

// TestNoFile has a pipe, which would be waited for, and which a rename would take away.
func TestNoFile(t *testing.T) {
	f := newFolder(t)
	parts, err := ParseParts("bl2=" + f.random("bl2", 9))
	if err != nil {
		t.Fatal(err)
	}
	data := f.make("a.bfb", "bl2="+f.path("bl2"))
	s, err := Read(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	fifo := f.path("x-bl2-v0")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	waits, err := ParseParts("bl2=" + fifo)
	if err != nil {
		t.Fatal(err)
	}
	_, read := Make(t.Context(), f.path("b.bfb"), Recipe{Parts: waits})
	for _, err := range []error{read, Show(io.Discard, fifo, false)} {
		if err == nil || !strings.Contains(err.Error(), "is no regular file") {
			t.Errorf("a pipe is read, with error %v", err)
		}
	}
	_, made := Make(t.Context(), fifo, Recipe{Parts: parts})
	_, extracted := s.Extract(t.Context(), bytes.NewReader(data), f.path("x-"), nil)
	for _, err := range []error{made, extracted} {
		if err == nil || !strings.Contains(err.Error(), "exists and is no file") {
			t.Errorf("error %v; want that it is no file", err)
		}
	}
	if info, err := os.Lstat(fifo); err != nil || info.Mode().IsRegular() {
		t.Errorf("%s is %v, %v; want the pipe that it was", fifo, info, err)
	}
}

func TestExtractRefuses(t *testing.T) {
	data := usual(t)
	s, err := Read(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Extract(t.Context(), bytes.NewReader(data), t.TempDir()+"/", []string{"bl2"})
	if err == nil || !strings.Contains(err.Error(), `it holds no "bl2"; it holds bl2-v0 bl2-v1 boot-args-v0`) {
		t.Errorf("Extract of a name without its version gives %v", err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Read(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			return
		}
		if s.StreamBytes+s.TrailingBytes != int64(len(data)) || len(s.Images) == 0 {
			t.Errorf("%d images of %d bytes and %d behind them in a file of %d", len(s.Images), s.StreamBytes, s.TrailingBytes, len(data))
		}
		if s.Check(t.Context(), bytes.NewReader(data), nil) != nil {
			return
		}
		// A valid stream written again is the same.
		for n, i := range s.Images {
			want := data[i.OffsetBytes-headerBytes : i.OffsetBytes]
			if got := i.encodeHeader(); i.Minor == minor && want[5]&0xf == 0 && !bytes.Equal(got[:], want) {
				t.Errorf("header %d is %x; written again it is %x", n, want, got)
			}
		}
	})
}

// FuzzExtractName holds the names under which images are written to be names alone.
func FuzzExtractName(f *testing.F) {
	f.Add("bl2-v1", []byte{})
	f.Fuzz(func(t *testing.T, name string, header []byte) {
		if k, version, err := parseName(name); err == nil {
			if version > maxVersion || version < 0 || !strings.HasPrefix(name, k.name) {
				t.Errorf("%q is read as %q, version %d", name, k.name, version)
			}
		}
		var raw [headerBytes]byte
		copy(raw[:], header)
		i, err := parseHeader(raw)
		if err == nil && (i.Name == "" || strings.ContainsAny(i.Name, "/\x00") || strings.HasPrefix(i.Name, ".")) {
			t.Errorf("an image would be written to %q", i.Name)
		}
	})
}

func TestUnknownNameNamesAll(t *testing.T) {
	_, err := ParseParts("nope=file")
	if err == nil || !strings.Contains(err.Error(), "the names are: psc-bl ") || !strings.HasSuffix(err.Error(), " upgrade-image") {
		t.Errorf("ParseParts = %v; want the names of all images", err)
	}
}
