package bmap

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"slipway/layers/plaintext"

	"github.com/google/go-cmp/cmp"
)

const kib, mib = 1 << 10, 1 << 20

// sparse makes an image file with random data in the given places.
func sparse(t *testing.T, size int64, data ...segment) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "disk.img"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	random := rand.NewChaCha8([32]byte{})
	for _, s := range data {
		p := make([]byte, s.end-s.start)
		random.Read(p)
		if _, err := f.WriteAt(p, s.start); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func TestCreate(t *testing.T) {
	tests := []struct {
		name  string
		size  int64
		data  []segment
		zeros []segment // written as data
		want  []Range   // without sums
	}{
		{name: "empty"},
		{name: "all hole", size: mib},
		{name: "short last block", size: 10000, data: []segment{{8192, 10000}}, want: []Range{{First: 2, Last: 2}}},
		{
			name: "zeros written as data", size: mib,
			data: []segment{{0, 4 * kib}, {256 * kib, 260 * kib}}, zeros: []segment{{4 * kib, 256 * kib}},
			want: []Range{{First: 0, Last: 0}, {First: 64, Last: 64}},
		},
		{
			name: "a hole of 15 blocks stays, one of 16 splits", size: mib,
			data: []segment{{0, 4 * kib}, {64 * kib, 68 * kib}, {132 * kib, 136 * kib}},
			want: []Range{{First: 0, Last: 16}, {First: 33, Last: 33}},
		},
		{
			name: "cut at tiles", size: 20 * mib, data: []segment{{6 * mib, 17 * mib}},
			want: []Range{{First: 1536, Last: 2047}, {First: 2048, Last: 4095}, {First: 4096, Last: 4351}},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := sparse(t, test.size, test.data...)
			for _, z := range test.zeros {
				if _, err := f.WriteAt(make([]byte, z.end-z.start), z.start); err != nil {
					t.Fatal(err)
				}
			}
			m, err := Create(t.Context(), f)
			if err != nil {
				t.Fatal(err)
			}
			proveSums(t, m, f)
			for i := range m.Ranges {
				m.Ranges[i].Sum = ""
			}
			if diff := cmp.Diff(Map{test.size, blockBytes, test.want}, m); diff != "" {
				t.Errorf("Create (-want +got):\n%s", diff)
			}
		})
	}
}

func proveSums(t *testing.T, m Map, f io.ReaderAt) {
	t.Helper()
	for _, r := range m.Ranges {
		h := sha256.New()
		offset, length := m.Span(r)
		if _, err := io.Copy(h, io.NewSectionReader(f, offset, length)); err != nil {
			t.Fatal(err)
		}
		if got := hex.EncodeToString(h.Sum(nil)); got != r.Sum {
			t.Errorf("sum of %d-%d = %s; want %s", r.First, r.Last, r.Sum, got)
		}
	}
}

func TestCreateStops(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Create(ctx, sparse(t, mib, segment{0, mib})); err == nil {
		t.Error("Create with an ended context succeeded")
	}
}

func TestHoles(t *testing.T) {
	m := Map{ImageSize: 10*4096 + 100, BlockSize: 4096, Ranges: []Range{{First: 2, Last: 3}, {First: 4, Last: 4}, {First: 7, Last: 8}}}
	var got []segment
	for offset, length := range m.Holes {
		got = append(got, segment{offset, offset + length})
	}
	want := []segment{{0, 2 * 4096}, {5 * 4096, 7 * 4096}, {9 * 4096, m.ImageSize}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(segment{})); diff != "" {
		t.Errorf("Holes (-want +got):\n%s", diff)
	}
}

func TestRoundTrip(t *testing.T) {
	m, err := Create(t.Context(), sparse(t, 3*mib+5, segment{0, 5000}, segment{2 * mib, 3*mib + 5}))
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := m.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	got, err := Read(&b)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(m, got); diff != "" {
		t.Errorf("Read(WriteTo) (-want +got):\n%s", diff)
	}
}

// sealed puts the right digest of the file into the field that holds zeros.
func sealed(file string) string {
	placeholder := strings.Repeat("0", 64)
	file = strings.Replace(file, "DIGEST", placeholder, 1)
	return strings.Replace(file, placeholder, hexDigest([]byte(file)), 1)
}

const sum256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

func file20(size, blocks, mapped, ranges string) string {
	return sealed(`<?xml version="1.0" ?><bmap version="2.0"><ImageSize> ` + size + ` </ImageSize><BlockSize> 4096 </BlockSize>
<BlocksCount> ` + blocks + ` </BlocksCount><MappedBlocksCount> ` + mapped + ` </MappedBlocksCount><ChecksumType> sha256 </ChecksumType>
<BmapFileChecksum> DIGEST </BmapFileChecksum><BlockMap>` + ranges + `</BlockMap></bmap>`)
}

func TestRead(t *testing.T) {
	one := `<Range chksum="` + sum256 + `"> 1-2 </Range>`
	whole := file20("12289", "4", "2", one)
	tests := []struct {
		name, input string
		want        Map
		wantErr     string
	}{
		{name: "2.0", input: whole, want: Map{12289, 4096, []Range{{1, 2, sum256}}}},
		{name: "1.3", input: strings.Replace(whole, `"2.0"`, `"1.3"`, 1), wantErr: `version "1.3"; known is 2.0: make the map again`},
		{name: "sha1", input: strings.Replace(whole, "> sha256 <", "> sha1 <", 1), wantErr: `checksum type "sha1"; want sha256: make the map again`},
		{name: "unknown version", input: strings.Replace(file20("12289", "4", "2", one), `"2.0"`, `"3.0"`, 1), wantErr: `version "3.0"`},
		{name: "damaged", input: strings.Replace(file20("12289", "4", "2", one), "1-2", "0-1", 1), wantErr: "damaged"},
		{name: "no digest of the file", input: strings.ReplaceAll(whole, "BmapFileChecksum", "Other"), wantErr: "missing"},
		{name: "overlapping", input: file20("40960", "10", "4", one+strings.Replace(one, "1-2", "2-3", 1)), wantErr: "out of order"},
		{name: "backwards", input: file20("40960", "10", "2", strings.Replace(one, "1-2", "2-1", 1)), wantErr: "out of order"},
		{name: "outside", input: file20("4096", "1", "2", one), wantErr: "outside"},
		{name: "huge", input: file20("9223372036854775807", "1", "2", one), wantErr: "image size"},
		{name: "count", input: file20("12289", "4", "3", one), wantErr: "counts 4 blocks, 3 mapped"},
		{name: "no digest of a range", input: file20("12289", "4", "2", "<Range>1-2</Range>"), wantErr: "with checksums"},
		{name: "not a number", input: file20("12289", "4", "2", strings.Replace(one, "1-2", "1-x", 1)), wantErr: "not a number"},
		{name: "too many ranges", input: strings.Repeat("<Range></Range>", maxRanges+otherMarks+1), wantErr: "at most"},
		{name: "too many ranges without an end", input: strings.Repeat("<Range/>", maxRanges+otherMarks+1), wantErr: "at most"},
		{name: "too many elements", input: strings.Repeat("<a>", maxRanges+otherMarks+1), wantErr: "at most"},
		{name: "too many attributes", input: "<bmap " + strings.Repeat(`a="" `, maxRanges+otherMarks+1) + "/>", wantErr: "at most"},
		{name: "an error that quotes much", input: "<bmap><" + strings.Repeat("a", 1<<16) + "></b></bmap>", wantErr: "XML syntax error"},
		{name: "control characters", input: `<bmap version="2.0"><ChecksumType>sha256</ChecksumType><BmapFileChecksum>` + "a\u009b2J" + `</BmapFileChecksum></bmap>`, wantErr: "damaged"},
		{name: "another file", input: `<html></html>`, wantErr: "not a bmap"},
		{name: "no XML", input: "\x00", wantErr: "XML"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := Read(strings.NewReader(test.input))
			if test.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), test.wantErr) {
					t.Fatalf("Read = %v; want an error with %q", err, test.wantErr)
				}
				if text := err.Error(); len(text) > 500 || strings.ContainsFunc(text, unicode.IsControl) {
					t.Errorf("an error of %d bytes, or with control characters: %.200q", len(text), text)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("Read (-want +got):\n%s", diff)
			}
		})
	}
}

var digestField = plaintext.Regexp(`(<BmapFileChecksum>\s*)[0-9a-f]+`)

// FuzzRead seals each input anew, so that the fuzzer gets past the digest.
func FuzzRead(f *testing.F) {
	one := `<Range chksum="` + sum256 + `"> 1-2 </Range>`
	f.Add(file20("12289", "4", "2", one))
	f.Add(file20("40960", "10", "4", one+strings.Replace(one, "1-2", "2-3", 1)))
	f.Add(file20("9223372036854775807", "1", "2", strings.Replace(one, "1-2", "9223372036854775807", 1)))
	f.Add(sealed(`<bmap version="2.0"><ChecksumType>sha256</ChecksumType><BmapFileChecksum> DIGEST </BmapFileChecksum></bmap>`))
	f.Fuzz(func(t *testing.T, input string) {
		m, err := Read(strings.NewReader(sealed(digestField().ReplaceAllString(input, "${1}DIGEST"))))
		if err != nil {
			return
		}
		var end, mapped int64
		for _, r := range m.Ranges {
			offset, length := m.Span(r)
			if offset < end || length <= 0 || offset+length > m.ImageSize {
				t.Fatalf("range %v of %d bytes lies outside or out of order", r, m.ImageSize)
			}
			end, mapped = offset+length, mapped+length
		}
		for _, length := range m.Holes {
			mapped += length
		}
		if mapped != m.ImageSize {
			t.Fatalf("ranges and holes cover %d of %d bytes", mapped, m.ImageSize)
		}
		var b bytes.Buffer
		if _, err := m.WriteTo(&b); err != nil {
			t.Fatal(err)
		}
		again, err := Read(&b)
		if err != nil || !cmp.Equal(m, again) {
			t.Fatalf("written and read again: %v, %v; want %v", again, err, m)
		}
	})
}

func needBmaptool(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("bmaptool"); err != nil {
		t.Skip("bmaptool is missing (Debian package bmap-tools)")
	}
}

func bmaptool(t *testing.T, args ...string) error {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "bmaptool", args...).CombinedOutput()
	t.Logf("bmaptool %s: %v\n%s", strings.Join(args, " "), err, out)
	return err
}

// mapFile returns the map of f as a file.
func mapFile(t *testing.T, f *os.File) []byte {
	t.Helper()
	m, err := Create(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := m.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Another digit of a size, of a count, of a range, of a digest, of the file's digest is seen.
func TestDamagedMap(t *testing.T) {
	file := mapFile(t, sparse(t, 3*mib+5, segment{0, 5000}, segment{2 * mib, 3*mib + 5}))
	for _, field := range []string{"ImageSize>", "BlocksCount>", "MappedBlocksCount>", "Range ", "chksum=", "FileChecksum>"} {
		at := bytes.Index(file, []byte(field))
		at += bytes.IndexAny(file[at:], "0123456789")
		bad := bytes.Clone(file)
		bad[at] = '0' + (bad[at]-'0'+1)%10
		if _, err := Read(bytes.NewReader(bad)); err == nil {
			t.Errorf("a map with another %s was taken", strings.Trim(field, "> "))
		}
	}
}

func TestBmaptoolTakesOurs(t *testing.T) {
	needBmaptool(t)
	f := sparse(t, 20*mib+1000, segment{0, 40 * kib}, segment{7 * mib, 9 * mib}, segment{20 * mib, 20*mib + 1000})
	copyBy := func(file []byte, image string) (string, error) {
		dir := t.TempDir()
		bmap, to := filepath.Join(dir, "disk.bmap"), filepath.Join(dir, "copy.img")
		if err := os.WriteFile(bmap, file, 0o644); err != nil {
			t.Fatal(err)
		}
		return to, bmaptool(t, "copy", "--bmap", bmap, image, to)
	}
	other := sparse(t, 20*mib+1000, segment{0, 40 * kib}, segment{7 * mib, 9 * mib}, segment{20 * mib, 20*mib + 1000})
	if _, err := other.WriteAt([]byte("damage"), 8*mib); err != nil {
		t.Fatal(err)
	}
	file := mapFile(t, f)
	to, err := copyBy(file, f.Name())
	if err != nil {
		t.Fatal(err)
	}
	equalFiles(t, f.Name(), to)
	if _, err := copyBy(bytes.Replace(file, []byte(" 0-"), []byte(" 1-"), 1), f.Name()); err == nil {
		t.Error("bmaptool took a damaged map")
	}
	if _, err := copyBy(file, other.Name()); err == nil {
		t.Error("bmaptool took a damaged image")
	}
}

func equalFiles(t *testing.T, a, b string) {
	t.Helper()
	one, err := os.ReadFile(a)
	if err != nil {
		t.Fatal(err)
	}
	two, err := os.ReadFile(b)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(one, two) {
		t.Errorf("%s and %s differ", a, b)
	}
}

func TestWeTakeBmaptools(t *testing.T) {
	needBmaptool(t)
	f := sparse(t, 20*mib+1000, segment{0, 40 * kib}, segment{7 * mib, 9 * mib}, segment{20 * mib, 20*mib + 1000})
	path := filepath.Join(t.TempDir(), "disk.bmap")
	if err := bmaptool(t, "create", "-o", path, f.Name()); err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	m, err := Read(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	proveSums(t, m, f)
	if want := int64(40*kib + 2*mib + 1000); m.Mapped() != want {
		t.Errorf("mapped = %d; want %d", m.Mapped(), want)
	}
	file[bytes.LastIndexByte(file, '-')]++
	if _, err := Read(bytes.NewReader(file)); err == nil {
		t.Error("Read took a damaged map")
	}
}

func TestReadText(t *testing.T) {
	for _, text := range []string{"", "no map\n"} {
		if _, err := Read(strings.NewReader(text)); err == nil || strings.Contains(err.Error(), "EOF") || !strings.Contains(err.Error(), "not a bmap") {
			t.Errorf("Read(%q) = %v; want that it is not a bmap", text, err)
		}
	}
}
