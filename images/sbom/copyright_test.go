package sbom

import (
	"strings"
	"testing"
)

func TestLicenceOf(t *testing.T) {
	many := "Format: x\n"
	for i := range 1000 {
		many += "License: L" + strings.Repeat("x", i%50) + "\n"
	}
	for name, tt := range map[string]struct{ text, want string }{
		"DEP-5":               {"Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\nFiles: *\nLicense: GPL-2+\n text\n\nFiles: b\nlicense: Expat\n", "GPL-2.0-or-later AND MIT"},
		"an alternative":      {"Format: x\nLicense: GPL-2 or Artistic, and LGPL-2.1+\n", "Artistic-1.0-Perl AND GPL-2.0-only AND LGPL-2.1-or-later"},
		"an exception":        {"Format: x\nLicense: GPL-3+ with GCC exception\n", "GPL-3.0-or-later"},
		"twice":               {"Format: x\nLicense: MIT\nLicense: Expat\n", "MIT"},
		"no field of DEP-5":   {"Format: x\n see /usr/share/common-licenses/GPL-2\n", ""},
		"common texts":        {"It is free.\nSee `/usr/share/common-licenses/GPL-2', and /usr/share/common-licenses/Apache-2.0.\n", "Apache-2.0 AND GPL-2.0"},
		"nothing":             {"All rights reserved.\n", ""},
		"empty":               {"", ""},
		"a terminal's escape": {"Format: x\nLicense: \x1b[2J\nLicense: MIT\n", "MIT"},
		"a line of its own":   {"Format: x\nLicense:\n MIT\n", ""},
	} {
		if got := LicenceOf(tt.text); got != tt.want {
			t.Errorf("%s: LicenceOf = %q; want %q", name, got, tt.want)
		}
	}
	if n := len(SplitLicence(LicenceOf(many))); n != maxLicences {
		t.Errorf("%d licences; want %d at most", n, maxLicences)
	}
	late := "Format: x\n" + strings.Repeat(" x\n", MaxCopyright/3) + "License: MIT\n"
	if got := LicenceOf(late); got != "" {
		t.Errorf("a licence after %d bytes is %q; want it left out", MaxCopyright, got)
	}
}

func FuzzLicenceOf(f *testing.F) {
	f.Add("Format: x\nLicense: GPL-2+ or MIT\n")
	f.Add("/usr/share/common-licenses/GPL-2.")
	f.Fuzz(func(t *testing.T, text string) {
		for _, name := range SplitLicence(LicenceOf(text)) {
			if strings.ContainsAny(name, "\n\x1b \t") {
				t.Errorf("LicenceOf(%q) has the name %q", text, name)
			}
		}
	})
}

func TestStatusWithLicences(t *testing.T) {
	b, err := Decode(strings.NewReader("Package: a\n" + LicenceField + ": MIT\nStatus: install ok installed\nVersion: 1\n\nPackage: b\nStatus: install ok installed\nVersion: 1\n"))
	if err != nil || len(b.Packages) != 2 || b.Packages[0].Licence != "MIT" || b.Packages[1].Licence != "" {
		t.Errorf("Decode = %+v, %v", b, err)
	}
}
