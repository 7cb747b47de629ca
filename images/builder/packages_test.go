package builder

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"slipway/images"
	"slipway/images/sbom"
)

// The list of packages says the licences of the image's own copyright files, and reads nothing
// outside of the image.
func TestPackagesHaveLicences(t *testing.T) {
	root, out := t.TempDir(), filepath.Join(t.TempDir(), "packages")
	secret := filepath.Join(t.TempDir(), "copyright")
	for file, text := range map[string]string{
		filepath.Join(root, dpkgStatus):                      "Package: a\nStatus: install ok installed\nVersion: 1\n\nPackage: b\nStatus: install ok installed\nVersion: 2\n\nPackage: c\nStatus: install ok installed\nVersion: 3\n\nPackage: ../../../etc\nStatus: install ok installed\nVersion: 4\n",
		filepath.Join(root, "usr/share/doc/a/copyright"):     "Format: x\nLicense: GPL-2+\n",
		filepath.Join(root, "usr/share/doc/b-doc/copyright"): "Format: x\nLicense: ISC\n",
		filepath.Join(root, "etc/copyright"):                 "Format: x\nLicense: ISC\n",
		secret:                                               "Format: x\nLicense: MIT\n",
	} {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{"b": "b-doc", "c": filepath.Dir(secret)} {
		if err := os.Symlink(target, filepath.Join(root, "usr/share/doc", name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := writePackages(root, out); err != nil {
		t.Fatal(err)
	}
	bill, err := sbom.Read(out)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range bill.Packages {
		got = append(got, p.Name+"="+p.Licence)
	}
	if want := "../../../etc= a=GPL-2.0-or-later b=ISC c="; strings.Join(got, " ") != want {
		t.Errorf("licences are %q; want %q", got, want)
	}
}

func TestCopyrightFilesStay(t *testing.T) {
	argv := mmdebstrapArgs(images.Spec{Debian: &images.Debian{Exclude: []string{"/usr/share/doc/*"}}}, "")
	if all := strings.Join(argv, " "); !strings.Contains(all, "path-exclude=/usr/share/doc/* --dpkgopt=path-include=/usr/share/doc/*/copyright") {
		t.Errorf("mmdebstrap gets %s; want the copyright files after what is left out", all)
	}
}
