package sbom

import (
	"slices"
	"strings"

	"slipway/layers/plaintext"
)

// Limits on the content of a copyright file. Some name a licence for each of a hundred files.
const (
	MaxCopyright = 1 << 20
	maxLicences  = 20
)

var (
	licenceField = plaintext.Regexp(`(?mi)^License:[ \t]*([^\n]*)`)
	licenceName  = plaintext.Regexp(`^[A-Za-z0-9][A-Za-z0-9.+-]{0,60}$`)
	gnuLicence   = plaintext.Regexp(`^(A?GPL|LGPL|GFDL)-(\d+)(\.\d+)?(\+)?$`)
	commonText   = plaintext.Regexp(`/usr/share/common-licenses/([A-Za-z0-9.+-]*[A-Za-z0-9+])`)
)

// debianNames are the names of DEP-5 and of /usr/share/common-licenses that SPDX has not.
var debianNames = map[string]string{"Expat": "MIT", "BSD-2-clause": "BSD-2-Clause", "BSD-3-clause": "BSD-3-Clause", "BSD": "BSD-3-Clause", "Apache-2": "Apache-2.0", "Artistic": "Artistic-1.0-Perl", "zlib": "Zlib", "public-domain": "LicenseRef-public-domain"}

// LicenceOf returns the licences that a Debian copyright file names, as an SPDX expression of at
// most maxLicences joined with AND, "" if there are none: those in DEP-5's fields, or else the
// common licences that the text refers to. It treats alternatives ("or") like the others.
func LicenceOf(copyright string) string {
	copyright = copyright[:min(len(copyright), MaxCopyright)]
	found, only := commonText(), ""
	if strings.HasPrefix(copyright, "Format:") {
		found, only = licenceField(), "-only"
	}
	var all []string
	for _, m := range found.FindAllStringSubmatch(copyright, -1) {
		for _, name := range namesIn(m[1]) {
			if name = spdxName(name, only); len(all) < maxLicences && !slices.Contains(all, name) {
				all = append(all, name)
			}
		}
	}
	slices.Sort(all)
	return strings.Join(all, " AND ")
}

// betweenNames matches the text between two licences of DEP-5, with exceptions: they allow more.
var betweenNames = plaintext.Regexp(`(?i)[ ,]+(?:and|or)[ ,]+|,\s*| with .*$`)

func namesIn(expression string) []string {
	return slices.DeleteFunc(betweenNames().Split(strings.TrimSpace(expression), -1), func(name string) bool { return !licenceName().MatchString(name) })
}

// spdxName returns the SPDX name of a Debian licence name; an unknown one stays. only is the suffix
// for a GNU licence without "+": "-only" in DEP-5, "" for a reference to its text.
func spdxName(name, only string) string {
	if m := gnuLicence().FindStringSubmatch(name); m != nil {
		if m[3] == "" {
			m[3] = ".0"
		}
		if m[4] == "+" {
			return m[1] + "-" + m[2] + m[3] + "-or-later"
		}
		return m[1] + "-" + m[2] + m[3] + only
	}
	if other := debianNames[name]; other != "" {
		return other
	}
	return name
}
