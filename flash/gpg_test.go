package flash

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"slipway/flash/flashtest"
	"slipway/flash/trust"
)

// What a user of bmaptool has: signatures of GPG beside the block map, and a
// keyring. A signed map proves the image; a signature that fails refuses.
func TestSignedByGPG(t *testing.T) {
	a := little(t)
	ann, bob := flashtest.NewGPG(t, "ann@example.com", "never"), flashtest.NewGPG(t, "bob@example.com", "never")
	const clear = "clearsigned by GPG, and Slipway takes a detached signature; nothing was written\nnext: gpg -d "
	for name, test := range map[string]struct {
		prepare func(t *testing.T, s *shelf, o *Options)
		wantErr string
		noMap   bool
	}{
		"map":                   {prepare: func(t *testing.T, s *shelf, _ *Options) { ann.Sign(t, s.path("disk.bmap"), ".asc") }},
		"map, the other ending": {prepare: func(t *testing.T, s *shelf, _ *Options) { ann.Sign(t, s.path("disk.bmap"), ".sig") }},
		"image":                 {prepare: func(t *testing.T, s *shelf, _ *Options) { ann.Sign(t, s.path("disk.img"), ".asc") }, noMap: true},
		"both, and others that nobody verifies": {prepare: func(t *testing.T, s *shelf, _ *Options) {
			ann.Sign(t, s.path("disk.img"), ".asc")
			ann.Sign(t, s.path("disk.bmap"), ".asc")
			bob.Sign(t, s.path("disk.bmap"), ".sig")
		}},
		"list": {prepare: func(t *testing.T, s *shelf, o *Options) {
			s.put(t, "SHA256SUMS", []byte(sumOf(read(t, s.path("disk.img")))+"  disk.img\n"+sumOf(read(t, s.path("disk.bmap")))+"  disk.bmap\n"))
			ann.Sign(t, s.path("SHA256SUMS"), ".asc")
			o.Digest = s.path("SHA256SUMS")
		}},
		"unsigned":             {prepare: func(*testing.T, *shelf, *Options) {}, wantErr: "disk.img is not signed, and --signers wants that"},
		"map by another key":   {prepare: func(t *testing.T, s *shelf, _ *Options) { bob.Sign(t, s.path("disk.bmap"), ".asc") }, wantErr: "disk.bmap.asc (--signers): signed by GPG key "},
		"image by another key": {prepare: func(t *testing.T, s *shelf, _ *Options) { bob.Sign(t, s.path("disk.img"), ".asc") }, wantErr: "disk.img.asc (--signers): signed by GPG key "},
		"map changed since": {prepare: func(t *testing.T, s *shelf, _ *Options) {
			ann.Sign(t, s.path("disk.bmap"), ".asc")
			s.put(t, "disk.bmap", leavesOut(t, s.path("disk.bmap")))
		}, wantErr: "the signature is not of this file"},
		"image changed since": {prepare: func(t *testing.T, s *shelf, _ *Options) {
			ann.Sign(t, s.path("disk.bmap"), ".asc")
			data := read(t, s.path("disk.img"))
			data[mib]++
			s.put(t, "disk.img", data)
		}, wantErr: "disk.img"},
		"clearsigned map": {prepare: func(t *testing.T, s *shelf, _ *Options) { clearsign(t, ann, s.path("disk.bmap")) }, wantErr: clear},
		"given clearsigned map, no keyring": {prepare: func(t *testing.T, s *shelf, o *Options) {
			clearsign(t, ann, s.path("disk.bmap"))
			o.Signers, o.BlockMap = "", s.path("disk.bmap")
		}, wantErr: clear},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShelf(t, a)
			o := Options{Image: s.url + "/disk.img", Signers: ann.Ring}
			test.prepare(t, s, &o)
			disk, receipt, err := elsewhere(t, spec, o)
			if test.wantErr != "" {
				refused(t, disk, err, test.wantErr)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			same(t, "virtual disk", read(t, disk), image(t, a))
			if len(receipt.SignedBy) != 1 || !strings.HasPrefix(receipt.SignedBy[0], "ann@example.com (GPG ") ||
				(receipt.MapSHA256 == "") != test.noMap {
				t.Errorf("receipt: signed by %q, map %q", receipt.SignedBy, receipt.MapSHA256)
			}
		})
	}
}

// The environment names a keyring for every flash; the option replaces it.
func TestSignersVariable(t *testing.T) {
	ann, bob := flashtest.NewGPG(t, "ann@example.com", "never"), flashtest.NewGPG(t, "bob@example.com", "never")
	s := newShelf(t, little(t))
	t.Setenv(trust.SignersVariable, ann.Ring)
	disk, _, err := elsewhere(t, spec, Options{Image: s.path("disk.img")})
	refused(t, disk, err, "disk.img is not signed, and SLIPWAY_SIGNERS wants that")
	bob.Sign(t, s.path("disk.bmap"), ".asc")
	disk, _, err = elsewhere(t, spec, Options{Image: s.path("disk.img")})
	refused(t, disk, err, "disk.bmap.asc (SLIPWAY_SIGNERS)")
	if _, _, err = elsewhere(t, spec, Options{Image: s.path("disk.img"), Signers: bob.Ring}); err != nil {
		t.Error(err)
	}
	t.Setenv(trust.SignersVariable, filepath.Join(t.TempDir(), "none"))
	disk, _, err = elsewhere(t, spec, Options{Image: s.path("disk.img")})
	refused(t, disk, err, "SLIPWAY_SIGNERS: read ")
}

// clearsign replaces a text file by its clearsigned form.
func clearsign(t *testing.T, by flashtest.Person, path string) {
	t.Helper()
	by.Run(t, "--output", path+".clear", "--clearsign", path)
	if err := os.Rename(path+".clear", path); err != nil {
		t.Fatal(err)
	}
}
