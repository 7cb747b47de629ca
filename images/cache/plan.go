package cache

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/renameio/v2"
)

// plan holds the settings for bitbake that make it use the cache.
type plan struct {
	Assign   []assignment
	Env      []string
	Warnings []string
	Summary  string
}

// assignment is one variable in bitbake's configuration.
type assignment struct{ name, value string }

// part is a group of variables that only work together. If the user's own configuration sets one of
// them to another value, Slipway sets none of them.
type part struct {
	name   string
	assign []assignment
	env    []assignment // in bitbake's environment
	others []string     // variables that mean the same, and that this part does not set
	lost   string       // what the user's own setting costs
}

// newPlan returns the settings that make bitbake v use the cache. It leaves out each part that
// conflicts with the user's own settings, with a warning.
func newPlan(c Cache, v Version, own []ownSetting) plan {
	parts, summary := c.readerParts(v), "builds from "+c.Sstate
	if c.Fill != "" {
		parts, summary = c.writerParts(), "fills "+c.Fill
	}
	p := plan{Summary: summary}
	if i := slices.IndexFunc(own, func(o ownSetting) bool { return o.name == noNetwork && o.value == "1" }); i >= 0 && c.Fill == "" {
		p.Warnings = append(p.Warnings, fmt.Sprintf("%s: %s keeps bitbake from the cache; unset it, or set SSTATE_MIRROR_ALLOW_NETWORK = \"1\"", own[i].at, noNetwork))
	}
	for _, part := range parts {
		i := slices.IndexFunc(own, part.clashesWith)
		if i < 0 {
			p.Assign = append(p.Assign, part.assign...)
			for _, e := range part.env {
				p.Env = append(p.Env, e.name+"="+e.value)
			}
			continue
		}
		p.Warnings = append(p.Warnings, fmt.Sprintf("%s: %s is your own setting and holds, so the cache's %s is left out: %s", own[i].at, own[i].name, part.name, part.lost))
	}
	return p
}

// clashesWith reports whether the user's own setting conflicts with this group of variables: it
// gives one of them another value, or sets a variable with the same meaning.
func (p part) clashesWith(own ownSetting) bool {
	for _, a := range slices.Concat(p.assign, p.env) {
		name, _, _ := strings.Cut(a.name, ":")
		if own.name == name && (!own.whole || own.value != a.value) {
			return true
		}
	}
	return slices.Contains(p.others, own.name)
}

// readerParts returns the variables of a machine that builds from another machine's cache.
func (c Cache) readerParts(v Version) []part {
	sstate := part{
		name: "sstate and hash equivalence", lost: "the two match only as a pair",
		assign: []assignment{
			{"SSTATE_MIRRORS", "file://.* " + c.Sstate + "/PATH;downloadfilename=PATH"},
			{"BB_SIGNATURE_HANDLER", "OEEquivHash"},
			{"BB_HASHSERVE", "auto"},
			{"BB_HASHSERVE_UPSTREAM", c.Hashserv},
		},
	}
	downloads := part{
		name: "downloads", assign: []assignment{{"PREMIRRORS:prepend", premirrorsValue(c.Downloads, v)}},
		others: []string{"SOURCE_MIRROR_URL"},
		lost:   "sources come from where your setting says",
	}
	return []part{sstate, c.prPart(), downloads}
}

// writerParts returns the variables of the machine that serves the folder, where its builds write.
func (c Cache) writerParts() []part {
	hashes := part{
		name: "hash equivalence", others: []string{"BB_HASHSERVE_UPSTREAM"}, lost: "other machines will not find what this build makes",
		assign: []assignment{{"BB_SIGNATURE_HANDLER", "OEEquivHash"}, {"BB_HASHSERVE", "unix://" + filepath.Join(c.Fill, stateDir, writerSocket)}},
	}
	folders := part{
		name:   "folder",
		env:    []assignment{{"SSTATE_DIR", filepath.Join(c.Fill, "sstate-cache")}, {"DL_DIR", filepath.Join(c.Fill, "downloads")}},
		assign: []assignment{{"BB_GENERATE_MIRROR_TARBALLS", "1"}}, // git repositories go to others as archives
		lost:   "what this build makes there is not served",
	}
	return []part{hashes, folders, c.prPart()}
}

// prPart returns the variables of the PR server. The machine that fills the cache needs them too:
// the server's use is part of each package's hash.
func (c Cache) prPart() part {
	return part{
		name: "PR server", assign: []assignment{{"PRSERV_HOST", c.PRServ}},
		lost: "packages of the same version may differ between machines",
	}
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

// confText returns the text of cache.conf, which bitbake reads after all other files (-R).
func (p plan) confText() []byte {
	var b bytes.Buffer
	b.WriteString("# Written by slipway from the setting of its cache, and given to bitbake as -R.\n")
	for _, a := range p.Assign {
		fmt.Fprintf(&b, "%s = \"%s\"\n", a.name, a.value)
	}
	return b.Bytes()
}

// writeConf writes cache.conf and returns bitbake's options. It writes only a changed text: if one
// of its files is newer than before, bitbake parses everything again.
func (p plan) writeConf(path string) (BitbakeOptions, error) {
	if len(p.Assign) == 0 {
		return BitbakeOptions{Set: p.Env}, nil
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
	return BitbakeOptions{Post: []string{path}, Set: p.Env}, nil
}
