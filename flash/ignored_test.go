package flash

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A signature that nobody verified is named, in what is shown and in the receipt:
// whoever sees it beside the image would think that it was verified.
func TestSignaturesThatAreIgnored(t *testing.T) {
	a := little(t)
	ann := newPerson(t, "ann")
	for name, test := range map[string]struct {
		beside  []string // what lies beside the image
		signed  bool     // by ssh-keygen, which is wanted
		options func(s *shelf) Options
		want    []string
	}{
		"a map with GPG's signature": {
			beside: []string{"disk.bmap.asc"}, options: func(s *shelf) Options { return Options{Image: s.path("disk.img")} },
			want: []string{"disk.bmap.asc"},
		},
		"both, and both endings": {
			beside:  []string{"disk.bmap.sig", "disk.img.asc"},
			options: func(s *shelf) Options { return Options{Image: s.path("disk.img")} },
			want:    []string{"disk.bmap.sig", "disk.img.asc"},
		},
		"from a web server": {
			beside: []string{"disk.bmap.asc"}, options: func(s *shelf) Options { return Options{Image: s.url + "/disk.img"} },
			want: []string{"disk.bmap.asc"},
		},
		"a map that is given": {
			beside:  []string{"disk.bmap.asc"},
			options: func(s *shelf) Options { return Options{Image: s.path("disk.img"), BlockMap: s.path("disk.bmap")} },
			want:    []string{"disk.bmap.asc"},
		},
		"beside one that is verified": {
			beside: []string{"disk.bmap.asc"}, signed: true,
			options: func(s *shelf) Options { return Options{Image: s.path("disk.img"), Signers: ann.list} },
			want:    []string{"disk.bmap.asc"},
		},
		"none": {options: func(s *shelf) Options { return Options{Image: s.path("disk.img")} }},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShelf(t, a)
			for _, name := range test.beside {
				s.put(t, name, []byte("-----BEGIN PGP SIGNATURE-----\n"))
			}
			if test.signed {
				ann.sign(t, s.path("disk.img"))
				ann.sign(t, s.path("disk.bmap"))
			}
			var out bytes.Buffer
			o := test.options(s)
			o.Out = &out
			_, receipt, err := elsewhere(t, spec, o)
			if err != nil {
				t.Fatal(err)
			}
			slices.Sort(receipt.Ignored)
			if !slices.Equal(receipt.Ignored, test.want) {
				t.Errorf("the receipt names %q as ignored; want %q", receipt.Ignored, test.want)
			}
			for _, name := range test.want {
				if !strings.Contains(out.String(), name+" is ignored: Slipway did not verify it.") {
					t.Errorf("shown is %q; want %s named", out.String(), name)
				}
			}
		})
	}
}

// The board's own build can have such signatures too.
func TestIgnoredSignatureOfABuild(t *testing.T) {
	a := little(t)
	if err := os.WriteFile(filepath.Join(a.Dir(), "disk.bmap.asc"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	receipt, err := Write(t.Context(), spec, a, filepath.Join(t.TempDir(), "x.img"), Options{})
	if err != nil || !slices.Equal(receipt.Ignored, []string{"disk.bmap.asc"}) {
		t.Errorf("Write = %+v, %v; want the signature named", receipt.Ignored, err)
	}
}
