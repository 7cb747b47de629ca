package cache

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/renameio/v2"
)

// plan holds the settings for bitbake that make it use the cache.
type plan struct {
	Assign   []assignment
	Shared   string // the folder of downloads and shared state, where builds fill the cache
	Warnings []string
	Summary  string
}

// assignment is one variable in bitbake's configuration.
type assignment struct{ name, value string }

// newPlan returns the settings that make bitbake v use the cache. On the machine that serves it,
// builds write into its folder, and use the PR server: PRSERV_HOST is in each package's hash.
func newPlan(c Cache, v Version) plan {
	p := plan{Assign: []assignment{{"BB_SIGNATURE_HANDLER", "OEEquivHash"}, {"PRSERV_HOST", c.PRServ}}}
	if c.Fill != "" {
		p.Summary, p.Shared = "fills "+c.Fill, c.Fill
		p.Assign = append(p.Assign,
			assignment{"BB_HASHSERVE", "unix://" + filepath.Join(c.Fill, stateDir, writerSocket)},
			assignment{"BB_GENERATE_MIRROR_TARBALLS", "1"}) // git repositories go to others as archives
		return p
	}
	p.Summary = "builds from " + c.Sstate
	p.Assign = append(p.Assign,
		assignment{"BB_HASHSERVE", "auto"},
		assignment{"BB_HASHSERVE_UPSTREAM", c.Hashserv},
		assignment{"SSTATE_MIRRORS", "file://.* " + c.Sstate + "/PATH;downloadfilename=PATH"},
		assignment{"PREMIRRORS:prepend", premirrorsValue(c.Downloads, v)})
	if os.Getenv("BB_NO_NETWORK") == "1" {
		p.Warnings = append(p.Warnings, `BB_NO_NETWORK keeps bitbake from the cache; unset it, or set SSTATE_MIRROR_ALLOW_NETWORK = "1"`)
	}
	return p
}

// premirrorsValue returns the value of PREMIRRORS that sends the sources of all schemes to the
// mirror at. It leaves out schemes that this bitbake does not know, as bitbake would warn.
func premirrorsValue(at string, v Version) string {
	schemes := []string{"git", "gitsm", "http", "https", "ftp", "npm", "svn", "hg", "p4", "s3", "crate"}
	if v.atLeast(Version{2, 6}) {
		schemes = append(schemes, "gs")
	}
	var b strings.Builder
	for _, scheme := range schemes {
		fmt.Fprintf(&b, "%s://.*/.* %s/ ", scheme, at)
	}
	return b.String()
}

// confText returns the text of cache.conf, which bitbake reads before all other files (BBPRECONF).
// So a line of the user's own with = overrides it, and the defaults of layers (?=) do not.
func (p plan) confText() []byte {
	var b bytes.Buffer
	b.WriteString("# Written by slipway from the setting of its cache. bitbake reads it first (BBPRECONF).\n")
	for _, a := range p.Assign {
		fmt.Fprintf(&b, "%s = \"%s\"\n", a.name, a.value)
	}
	return b.Bytes()
}

// writeConf writes cache.conf, unless the plan is empty, and returns bitbake's options. It writes
// only a changed text: if one of its files is newer than before, bitbake parses everything again.
func (p plan) writeConf(path string) (BitbakeOptions, error) {
	if len(p.Assign) == 0 {
		return BitbakeOptions{}, nil
	}
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return BitbakeOptions{}, err
	}
	if content := p.confText(); !bytes.Equal(old, content) {
		if err := renameio.WriteFile(path, content, 0o644); err != nil {
			return BitbakeOptions{}, err
		}
	}
	return BitbakeOptions{Pre: path, Shared: p.Shared}, nil
}
