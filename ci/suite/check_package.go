package suite

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"slipway/ci/suite/match"
	"slipway/layers/plaintext"
)

// installedPackage is a package of the board's package manager.
type installedPackage struct {
	name      string
	installed bool
	versions  match.Matcher
}

func readPackage(e *Entry) Probe {
	p := installedPackage{name: e.Text("name", e.Name), installed: true, versions: e.Matcher("versions", match.List)}
	if i := e.Flag("installed"); i != nil {
		p.installed = *i
	}
	if p.name == "" || strings.HasPrefix(p.name, "-") || strings.ContainsAny(p.name, " \n\x00*?[") {
		e.Fail(e.Key, "%q is not a package's name", p.name)
	}
	return p
}

// packageScript prints the name of the board's package manager, then what that prints
// about the package. It exits with 127 if there is none, and with 3 where dpkg or rpm says
// neither that the package is installed nor, by the status 1, that it is not.
const packageScript = `if command -v dpkg-query >/dev/null; then
	echo dpkg; said=$(dpkg-query -W -f='${db:Status-Status} ${Version}\n' "$1" 2>/dev/null)
elif command -v rpm >/dev/null; then
	echo rpm; said=$(rpm -q --queryformat 'installed %{VERSION}-%{RELEASE}\n' "$1")
elif command -v opkg >/dev/null; then
	echo opkg; opkg list-installed "$1"; exit 0
else
	exit 127
fi
case "$?:$said" in 0:?* | 1:*) echo "$said" ;; *) exit 3 ;; esac`

func (p installedPackage) Inspect(ctx context.Context, s *Session) (Finding, error) {
	var f Finding
	r, err := s.Board.Run(ctx, "sh", "-c", packageScript, "sh", p.name)
	if err != nil {
		return f, err
	}
	if r.Status == 3 {
		return f, fmt.Errorf("no answer of the package manager about %s", p.name)
	}
	if r.Status != 0 {
		f.Next = "ask for a file of the package instead, or build the image with package management"
		return f, fmt.Errorf("the board has no dpkg, rpm or opkg: %s", DescribeResult(r))
	}
	if len(r.Stdout) == 0 {
		return f, errors.New("no answer about the board's package manager")
	}
	versions := p.parseVersions(string(r.Stdout))
	have := len(versions) > 0
	f.Expect(have == p.installed, p.name+plaintext.Either(p.installed, " is installed", " is not installed"), p.name+plaintext.Either(have, " is installed", " is not installed"))
	if have && p.installed {
		f.ExpectMatch("versions", p.versions, versions, "version "+strings.Join(versions, ", "))
	}
	return f, nil
}

// parseVersions reads lines like "installed 1.2-3", or like "name - 1.2-3" from opkg.
func (p installedPackage) parseVersions(text string) []string {
	var versions []string
	for _, line := range plaintext.Lines(text) {
		if version, ok := strings.CutPrefix(line, "installed "); ok {
			versions = append(versions, version)
		}
		if version, ok := strings.CutPrefix(line, p.name+" - "); ok {
			versions = append(versions, strings.TrimSpace(version))
		}
	}
	return versions
}

func (p installedPackage) Next() string {
	return "add it to the image's packages (debian.packages in board.yml, IMAGE_INSTALL of a recipe), build and flash again"
}
