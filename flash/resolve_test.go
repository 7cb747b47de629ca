package flash

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"slipway/flash/device"
	"slipway/flash/flashtest"
	"slipway/flash/trust"
	"slipway/images"
)

// shelf is a folder of images that a web server shows too, with what it was asked for.
type shelf struct {
	dir, url string

	mu    sync.Mutex
	asked []string
}

func newShelf(t *testing.T, a images.Artifact) *shelf {
	t.Helper()
	s := &shelf{dir: t.TempDir()}
	for _, name := range []string{"disk.img", "disk.bmap"} {
		s.put(t, name, read(t, filepath.Join(a.Dir(), name)))
	}
	files := http.FileServer(http.Dir(s.dir))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.asked = append(s.asked, r.URL.Path)
		s.mu.Unlock()
		files.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

func (s *shelf) path(name string) string { return filepath.Join(s.dir, name) }

func (s *shelf) put(t *testing.T, name string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(s.path(name)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.path(name), data, 0o644); err != nil {
		t.Fatal(err)
	}
}

func (s *shelf) wasAsked(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.asked, "/"+name)
}

func sumOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// elsewhere flashes without an artifact of the board, to a new virtual disk.
func elsewhere(t *testing.T, spec images.Spec, o Options) (disk string, receipt Receipt, err error) {
	t.Helper()
	disk = filepath.Join(t.TempDir(), "disk.img")
	dir := filepath.Join(t.TempDir(), spec.Board)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	a := images.NoArtifact(spec, dir)
	receipt, err = Write(t.Context(), spec, a, disk, o)
	if _, left := os.Stat(receiptOf(t, a)); (left == nil) != (err == nil) {
		t.Errorf("Write = %v, its receipt: %v", err, left)
	}
	return disk, receipt, err
}

// refused fails where a flash that has to be refused was not, or wrote something.
func refused(t *testing.T, disk string, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Write = %v; want an error with %q", err, want)
	}
	if left, _ := os.ReadDir(filepath.Dir(disk)); len(left) > 0 {
		t.Errorf("a flash that was refused left %v", left)
	}
}

func TestImageFromElsewhere(t *testing.T) {
	a := artifact(t)
	want, s := image(t, a), newShelf(t, a)
	s.put(t, "packed/disk.img.gz", gzipped(t, want))
	s.put(t, "packed/disk.img.bmap", read(t, s.path("disk.bmap")))
	for name, ref := range map[string]string{
		"path": s.path("disk.img"), "file": "file://" + s.path("disk.img"), "http": s.url + "/disk.img",
		"packed": s.url + "/packed/disk.img.gz",
	} {
		t.Run(name, func(t *testing.T) {
			disk, receipt, err := elsewhere(t, spec, Options{Image: ref})
			if err != nil {
				t.Fatal(err)
			}
			same(t, "virtual disk", read(t, disk), want)
			if receipt.Origin == "" || !strings.HasPrefix(receipt.Image, "disk.img") || receipt.MapSHA256 != sumOf(read(t, s.path("disk.bmap"))) || receipt.Key != "" {
				t.Errorf("receipt %+v; want where the image is from, its name and its map's digest", receipt)
			}
		})
	}
}

func TestDigestOfImage(t *testing.T) {
	a := artifact(t)
	want, s := image(t, a), newShelf(t, a)
	right, wrong := sumOf(want), sumOf([]byte("another"))
	mapSum := sumOf(read(t, s.path("disk.bmap")))
	s.put(t, "SHA256SUMS", fmt.Appendf(nil, "%s  disk.img\n%s *disk.bmap\n", right, mapSum))
	s.put(t, "old", fmt.Appendf(nil, "%s  disk.img\n", wrong))
	s.put(t, "oldmap", fmt.Appendf(nil, "%s  disk.img\n%s  disk.bmap\n", right, wrong))
	s.put(t, "others", fmt.Appendf(nil, "%s  other.img\n", right))
	tests := []struct{ name, digest, wantErr string }{
		{"right", "sha256:" + right, ""},
		{"wrong", "sha256:" + wrong, "want " + wrong},
		{"short", "sha256:" + right[1:], "64 hex digits"},
		{"list", s.path("SHA256SUMS"), ""},
		{"list on the web", s.url + "/SHA256SUMS", ""},
		{"list with another", s.path("old"), "want " + wrong},
		{"list with another map", s.path("oldmap"), "disk.bmap: sha256 " + mapSum},
		{"list of others", s.url + "/others", "names no digest of disk.img"},
		{"no list", s.url + "/none", "404"},
		{"the image as a list", s.path("disk.img"), "no block map has"},
	}
	for _, test := range tests {
		for _, ref := range []string{s.path("disk.img"), s.url + "/disk.img"} {
			t.Run(test.name, func(t *testing.T) {
				disk, receipt, err := elsewhere(t, spec, Options{Image: ref, Digest: test.digest})
				if test.wantErr != "" {
					if test.name == "the image as a list" {
						test.wantErr = "disk.img"
					}
					refused(t, disk, err, test.wantErr)
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				same(t, "virtual disk", read(t, disk), want)
				if receipt.ImageSHA256 != right {
					t.Errorf("the receipt has the digest %s; want %s", receipt.ImageSHA256, right)
				}
			})
		}
	}
}

// A digest is of all of the image. A map from the same place says which parts of it
// are written, and could leave out any: it takes no part where nobody vouches for it.
func TestDigestIsOfWhatIsWritten(t *testing.T) {
	a := artifact(t)
	want := image(t, a)
	digest := "sha256:" + sumOf(want)
	for _, packed := range []bool{false, true} {
		s := newShelf(t, a)
		name := "disk.img"
		if packed {
			name = "disk.img.gz"
			b := gzipped(t, want)
			s.put(t, name, b)
			digest = "sha256:" + sumOf(b)
		}
		s.put(t, "disk.bmap", leavesOut(t, s.path("disk.bmap")))
		for _, ref := range []string{s.path(name), s.url + "/" + name} {
			var out strings.Builder
			disk, receipt, err := elsewhere(t, spec, Options{Image: ref, Digest: digest, Out: &out})
			if err != nil {
				t.Fatal(err)
			}
			same(t, "virtual disk", read(t, disk), want)
			if receipt.MapSHA256 != "" || !strings.Contains(out.String(), "disk.bmap is left out") {
				t.Errorf("map %q, shown: %s", receipt.MapSHA256, out.String())
			}
		}
	}
}

// leavesOut is a right map of an image but for its last range.
func leavesOut(t *testing.T, path string) []byte {
	t.Helper()
	m := mapFrom(t, path)
	m.Ranges = m.Ranges[:len(m.Ranges)-1]
	var b bytes.Buffer
	if _, err := m.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// The line that signs names the image by its path. If only the artifact beside it is signed, the
// next line flashes that.
func TestUnsignedImageInAFolder(t *testing.T) {
	a, ann := little(t), newPerson(t, "ann")
	t.Chdir(filepath.Dir(a.Dir()))
	image := filepath.Join(filepath.Base(a.Dir()), "disk.img")
	disk, _, err := elsewhere(t, spec, Options{Image: image, Signers: ann.list})
	refused(t, disk, err, "there is no "+image+".sig\nnext: ssh-keygen -Y sign -f ~/.ssh/id_ed25519 -n file "+image+" ")
	ann.sign(t, images.ArtifactPath(a.Dir()))
	disk, _, err = elsewhere(t, spec, Options{Image: image, Signers: ann.list})
	refused(t, disk, err, "\nnext: flash "+filepath.Base(a.Dir())+" "+disk+" --signers="+ann.list)
	ann.sign(t, image)
	if _, _, err := elsewhere(t, spec, Options{Image: image, Signers: ann.list}); err != nil {
		t.Error(err)
	}
}

// The missing signature is named, where another list's is there.
func TestWhichSignatureIsMissing(t *testing.T) {
	a := artifact(t)
	ann, bob, s := newPerson(t, "ann"), flashtest.NewGPG(t, "bob@example.com", "never"), newShelf(t, a)
	policy := images.Spec{Board: spec.Board, Flash: spec.Flash}.WithFile("signers", string(read(t, bob.Ring)))
	policy.Flash.Signers = "signers"
	bob.Sign(t, s.path("disk.img"), ".asc")
	disk, _, err := elsewhere(t, policy, Options{Image: s.path("disk.img"), Signers: ann.list})
	refused(t, disk, err, "disk.img is not signed, and --signers wants that")
	refused(t, disk, err, "ssh-keygen -Y sign")
}

// What was proved is what is written, however long a person thinks about it.
func TestChangedSinceItWasProved(t *testing.T) {
	a := artifact(t)
	ann := newPerson(t, "ann")
	s := newShelf(t, a)
	path := s.path("disk.img")
	if err := os.Remove(s.path("disk.bmap")); err != nil {
		t.Fatal(err)
	}
	ann.sign(t, path)
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
	out := onText{"Image disk.img", func() { fill(t, path, strings.Repeat("x", imageSize)) }}
	disk, _, err := elsewhere(t, spec, Options{Image: path, Signers: ann.list, Out: out})
	refused(t, disk, err, "disk.img changed since it was proved")
}

// onText does something when a text is shown.
type onText struct {
	text string
	do   func()
}

func (o onText) Write(p []byte) (int, error) {
	if strings.Contains(string(p), o.text) {
		o.do()
	}
	return len(p), nil
}

// What is shown of an image without a map is what proves it.
func TestWhatProvesIsShown(t *testing.T) {
	a := artifact(t)
	ann, s := newPerson(t, "ann"), newShelf(t, a)
	if err := os.Remove(s.path("disk.bmap")); err != nil {
		t.Fatal(err)
	}
	ann.sign(t, s.path("disk.img"))
	packed := gzipped(t, image(t, a))
	s.put(t, "disk.img.gz", packed)
	for name, test := range map[string]struct {
		o    Options
		want string
	}{
		"digest":           {Options{Image: s.path("disk.img"), Digest: "sha256:" + sumOf(image(t, a))}, "and its digest proves it"},
		"digest of packed": {Options{Image: s.url + "/disk.img.gz", Digest: "sha256:" + sumOf(packed)}, "and its digest proves it"},
		"signature":        {Options{Image: s.url + "/disk.img", Signers: ann.list}, "and its signature proves it"},
		"packing":          {Options{Image: s.url + "/disk.img.gz"}, "and only its packing proves it"},
		"nothing":          {Options{Image: s.url + "/disk.img"}, "and nothing proves it: --digest or --signers would"},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			test.o.Out = &out
			if _, _, err := elsewhere(t, spec, test.o); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(out.String(), "all of it is written, "+test.want+".") {
				t.Errorf("shown: %s\nwant %q", out.String(), test.want)
			}
		})
	}
}

// A list's address may hold a password or a token, which no message repeats.
func TestListKeepsItsSecrets(t *testing.T) {
	a := artifact(t)
	want, s := image(t, a), newShelf(t, a)
	other := sumOf([]byte("another"))
	s.put(t, "none", fmt.Appendf(nil, "%s  other.img\n", other))
	s.put(t, "map", fmt.Appendf(nil, "%s  disk.img\n%s  disk.bmap\n", sumOf(want), other))
	for name, wantErr := range map[string]string{"none": "names no digest of disk.img", "map": "disk.bmap: sha256"} {
		list := strings.Replace(s.url, "http://", "http://ann:secret@", 1) + "/" + name + "?token=hidden"
		disk, _, err := elsewhere(t, spec, Options{Image: s.path("disk.img"), Digest: list})
		refused(t, disk, err, wantErr)
		if strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "hidden") {
			t.Errorf("Write = %v; want an error without what is secret", err)
		}
	}
}

func TestDigestOfArtifact(t *testing.T) {
	a := artifact(t)
	disk := filepath.Join(t.TempDir(), "disk.img")
	_, err := Write(t.Context(), spec, a, disk, Options{Digest: "sha256:" + sumOf([]byte("another"))})
	refused(t, disk, err, "want "+sumOf([]byte("another")))
	if _, err := Write(t.Context(), spec, a, disk, Options{Digest: "sha256:" + sumOf(image(t, a))}); err != nil {
		t.Fatal(err)
	}
	same(t, "virtual disk", read(t, disk), image(t, a))
}

// person has a key, and is in a list of signers.
type person struct{ key, list string }

func newPerson(t *testing.T, name string) person {
	t.Helper()
	if _, err := exec.LookPath("ssh-keygen"); err != nil {
		t.Skip("ssh-keygen is missing (Debian package openssh-client)")
	}
	dir := t.TempDir()
	p := person{filepath.Join(dir, "key"), filepath.Join(dir, "allowed_signers")}
	flashtest.MustRun(t, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", p.key)
	if err := os.WriteFile(p.list, append([]byte(name+" "), read(t, p.key+".pub")...), 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p person) sign(t *testing.T, path string) {
	t.Helper()
	os.Remove(path + ".sig") // ssh-keygen asks before it replaces one
	flashtest.MustRun(t, "ssh-keygen", "-q", "-Y", "sign", "-f", p.key, "-n", "file", path)
}

func TestSignedImage(t *testing.T) {
	a := artifact(t)
	want := image(t, a)
	ann, bob := newPerson(t, "ann"), newPerson(t, "bob")
	sums := fmt.Appendf(nil, "%s  disk.img\n%s  disk.bmap\n", sumOf(want), sumOf(read(t, filepath.Join(a.Dir(), "disk.bmap"))))
	tests := []struct {
		name    string
		prepare func(t *testing.T, s *shelf, o *Options)
		wantErr string
		noMap   bool
	}{
		{name: "image and map", prepare: func(t *testing.T, s *shelf, _ *Options) {
			ann.sign(t, s.path("disk.img"))
			ann.sign(t, s.path("disk.bmap"))
		}},
		{name: "unsigned", wantErr: "disk.img is not signed, and --signers wants that"},
		{name: "by somebody else", prepare: func(t *testing.T, s *shelf, _ *Options) { bob.sign(t, s.path("disk.img")) }, wantErr: "does not name"},
		{name: "of another image", prepare: func(t *testing.T, s *shelf, _ *Options) {
			ann.sign(t, s.path("disk.img"))
			s.put(t, "disk.img", append(bytes.Clone(want[1:]), 'x'))
		}, wantErr: "is not of this file"},
		{name: "no signature in the file", prepare: func(t *testing.T, s *shelf, _ *Options) { s.put(t, "disk.img.sig", []byte("yes")) }, wantErr: "not an SSH signature"},
		{name: "image alone", prepare: func(t *testing.T, s *shelf, _ *Options) { ann.sign(t, s.path("disk.img")) }, noMap: true},
		{name: "map by somebody else", prepare: func(t *testing.T, s *shelf, _ *Options) {
			ann.sign(t, s.path("disk.img"))
			bob.sign(t, s.path("disk.bmap"))
		}, wantErr: "disk.bmap.sig"},
		{name: "given map unsigned", prepare: func(t *testing.T, s *shelf, o *Options) {
			ann.sign(t, s.path("disk.img"))
			o.BlockMap = s.path("disk.bmap")
		}, wantErr: "disk.bmap is not signed"},
		{name: "list", prepare: func(t *testing.T, s *shelf, o *Options) {
			s.put(t, "SHA256SUMS", sums)
			ann.sign(t, s.path("SHA256SUMS"))
			o.Digest = s.url + "/SHA256SUMS"
		}},
		{name: "unsigned list", prepare: func(t *testing.T, s *shelf, o *Options) {
			s.put(t, "SHA256SUMS", sums)
			o.Digest = s.url + "/SHA256SUMS"
		}, wantErr: "disk.img is not signed"},
		{name: "list by somebody else", prepare: func(t *testing.T, s *shelf, o *Options) {
			s.put(t, "SHA256SUMS", sums)
			bob.sign(t, s.path("SHA256SUMS"))
			o.Digest = s.url + "/SHA256SUMS"
		}, wantErr: "does not name"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := newShelf(t, a)
			o := Options{Image: s.url + "/disk.img", Signers: ann.list}
			if test.prepare != nil {
				test.prepare(t, s, &o)
			}
			disk, receipt, err := elsewhere(t, spec, o)
			if test.wantErr != "" {
				refused(t, disk, err, test.wantErr)
				if test.name == "unsigned" && s.wasAsked("disk.img") {
					t.Error("an image that nobody signed was fetched")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			same(t, "virtual disk", read(t, disk), want)
			if len(receipt.SignedBy) != 1 || !strings.HasPrefix(receipt.SignedBy[0], "ann (ssh-ed25519 SHA256:") || (receipt.MapSHA256 == "") != test.noMap {
				t.Errorf("receipt: signed by %q, map %q", receipt.SignedBy, receipt.MapSHA256)
			}
		})
	}
}

func TestSignedArtifact(t *testing.T) {
	ann, bob := newPerson(t, "ann"), newPerson(t, "bob")
	described := func(a images.Artifact) string { return filepath.Join(a.Dir(), images.ArtifactName) }
	tests := []struct {
		name    string
		prepare func(t *testing.T, a images.Artifact)
		wantErr string
	}{
		{"signed", func(t *testing.T, a images.Artifact) { ann.sign(t, described(a)) }, ""},
		{"unsigned", func(*testing.T, images.Artifact) {}, "is not signed"},
		{"by somebody else", func(t *testing.T, a images.Artifact) { bob.sign(t, described(a)) }, "does not name"},
		{"changed since", func(t *testing.T, a images.Artifact) {
			ann.sign(t, described(a))
			fill(t, described(a), string(read(t, described(a)))+" ")
		}, "is not of this file"},
		{"another disk", func(t *testing.T, a images.Artifact) {
			ann.sign(t, described(a))
			data := image(t, a)
			data[11*mib+1]++ // where the map has a hole
			fill(t, filepath.Join(a.Dir(), "disk.img"), string(data))
		}, "disk.img: sha256"},
		{"another map", func(t *testing.T, a images.Artifact) {
			ann.sign(t, described(a))
			path := filepath.Join(a.Dir(), "disk.bmap")
			fill(t, path, strings.Replace(string(read(t, path)), "<?xml", "<?XML", 1))
		}, "disk.bmap: sha256"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			a := artifact(t)
			test.prepare(t, a)
			disk := filepath.Join(t.TempDir(), "disk.img")
			receipt, err := Write(t.Context(), spec, a, disk, Options{Signers: ann.list})
			if test.wantErr != "" {
				refused(t, disk, err, test.wantErr)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			same(t, "virtual disk", read(t, disk), image(t, a))
			if len(receipt.SignedBy) != 1 || !strings.HasPrefix(receipt.SignedBy[0], "ann (") {
				t.Errorf("signed by %q", receipt.SignedBy)
			}
		})
	}
}

// What a board's policy wants, no option takes away.
func TestSignersOfBoard(t *testing.T) {
	ann, bob := newPerson(t, "ann"), newPerson(t, "bob")
	policy := images.Spec{Board: spec.Board, Flash: spec.Flash}.WithFile("release/signers", string(read(t, ann.list)))
	policy.Flash.Signers = "release/signers"
	for name, test := range map[string]struct {
		signs   []person
		signers string
		wantErr string
	}{
		"signed":                   {[]person{ann}, "", ""},
		"unsigned":                 {nil, "", "board.yml's flash.signers wants that"},
		"by whom the option names": {[]person{bob}, bob.list, "board.yml's flash.signers"},
		"by whom the board names":  {[]person{ann}, bob.list, "--signers"},
		"both the same":            {[]person{ann}, ann.list, ""},
	} {
		t.Run(name, func(t *testing.T) {
			a := artifact(t)
			for _, p := range test.signs {
				p.sign(t, filepath.Join(a.Dir(), images.ArtifactName))
			}
			disk := filepath.Join(t.TempDir(), "disk.img")
			_, err := Write(t.Context(), policy, a, disk, Options{Signers: test.signers})
			if test.wantErr != "" {
				refused(t, disk, err, test.wantErr)
			} else if err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestPickEnds(t *testing.T) {
	s := newShelf(t, artifact(t))
	ctx, cancel := context.WithCancelCause(t.Context())
	stopped := errors.New("stopped")
	cancel(stopped)
	disk := filepath.Join(t.TempDir(), "disk.img")
	_, err := Write(ctx, spec, images.NoArtifact(spec, t.TempDir()), disk, Options{Image: s.url + "/disk.img", Cache: t.TempDir()})
	if !errors.Is(err, stopped) {
		t.Errorf("Write = %v; want %v", err, stopped)
	}
	if _, err := os.Stat(disk); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a flash that was stopped made %s: %v", disk, err)
	}
}

// --digest is of the file that the devices are written from.
func TestBuiltFile(t *testing.T) {
	for _, test := range []struct {
		device string
		has    []string
		want   string
	}{
		{device.File, []string{images.BFB, images.DiskImage, images.Tegraflash}, images.DiskImage},
		{device.Block, []string{images.Tegraflash}, images.Tegraflash},
		{device.Tegra, []string{images.DiskImage, images.Tegraflash}, images.Tegraflash},
		{device.RShim, []string{images.DiskImage, images.BFB}, images.BFB},
		{device.Block, []string{images.BFB}, ""},
		{device.RShim, []string{images.DiskImage}, ""},
	} {
		p := imageResolver{request: request{devices: []device.Device{{Kind: test.device}}}}
		for _, kind := range test.has {
			p.artifact.Files = append(p.artifact.Files, images.File{Kind: kind, Name: kind})
		}
		if got, err := p.builtFile(); got.Kind != test.want || (err == nil) != (test.want != "") {
			t.Errorf("%s from %v = %q, %v; want %q", test.device, test.has, got.Kind, err, test.want)
		}
	}
}

// A list of signers that came with the files proves nothing, and a line for another folder's
// file is not of this one.
func TestSuppliedTrust(t *testing.T) {
	mallory := newPerson(t, "mallory")
	list := read(t, mallory.list)
	link := func(t *testing.T, to string) string {
		path := filepath.Join(t.TempDir(), "signers")
		if err := os.Symlink(to, path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, prepare := range map[string]func(t *testing.T, dir string) string{
		"beside": func(t *testing.T, dir string) string {
			fill(t, filepath.Join(dir, "signers"), string(list))
			return filepath.Join(dir, "signers")
		},
		"below": func(t *testing.T, dir string) string {
			(&shelf{dir: dir}).put(t, "keys/signers", list)
			return filepath.Join(dir, "keys/signers")
		},
		"behind a link": func(t *testing.T, dir string) string {
			fill(t, filepath.Join(dir, "signers"), string(list))
			return link(t, filepath.Join(dir, "signers"))
		},
		"by its folder": func(t *testing.T, dir string) string {
			fill(t, filepath.Join(dir, "signers"), string(list))
			return filepath.Join(link(t, dir), "signers")
		},
		"up and down": func(t *testing.T, dir string) string {
			fill(t, filepath.Join(dir, "signers"), string(list))
			return dir + "/../" + filepath.Base(dir) + "/signers"
		},
		"its own link": func(t *testing.T, dir string) string { return linkIn(t, dir, mallory.list) },
	} {
		t.Run(name, func(t *testing.T) {
			a := artifact(t)
			mallory.sign(t, filepath.Join(a.Dir(), images.ArtifactName))
			disk := filepath.Join(t.TempDir(), "disk.img")
			signers := prepare(t, a.Dir())
			_, err := Write(t.Context(), spec, a, disk, Options{Signers: signers})
			refused(t, disk, err, "it lies beside the files")
			t.Setenv(trust.SignersVariable, signers)
			_, err = Write(t.Context(), spec, a, disk, Options{})
			refused(t, disk, err, "it lies beside the files")
			t.Setenv(trust.SignersVariable, "")

			s := newShelf(t, a)
			mallory.sign(t, s.path("disk.img"))
			disk, _, err = elsewhere(t, spec, Options{Image: s.path("disk.img"), Signers: prepare(t, s.dir)})
			refused(t, disk, err, "it lies beside the files")
		})
	}
	s := newShelf(t, artifact(t))
	sum := sumOf(read(t, s.path("disk.img")))
	s.put(t, "SHA256SUMS", []byte(sum+"  ../../debug/disk.img\n"))
	mallory.sign(t, s.path("SHA256SUMS"))
	s.put(t, "digest", []byte(sum+"\n"))
	s.put(t, "disk.img.sha256", []byte(sum+"\n"))
	for _, o := range []Options{{}, {Signers: mallory.list}} {
		o.Image, o.Digest = s.path("disk.img"), s.path("SHA256SUMS")
		disk, _, err := elsewhere(t, spec, o)
		refused(t, disk, err, "names no digest of disk.img")
	}
	disk, _, err := elsewhere(t, spec, Options{Image: s.path("disk.img"), Digest: s.path("digest")})
	refused(t, disk, err, "a digest without a name, and is not called disk.img.sha256")
	if _, _, err := elsewhere(t, spec, Options{Image: s.path("disk.img"), Digest: s.path("disk.img.sha256")}); err != nil {
		t.Error(err)
	}
}

func linkIn(t *testing.T, dir, to string) string {
	path := filepath.Join(dir, "signers")
	if err := os.Symlink(to, path); err != nil {
		t.Fatal(err)
	}
	return path
}
