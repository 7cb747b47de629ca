package layers

import (
	"maps"
	"slices"
	"strings"
)

// Block is one of the blocks of configuration that a project's files hold.
type Block struct {
	Name string
	File string
	Line int // of the text's first line
	Text string
}

// LocalConfBlocks returns the blocks of conf/local.conf in the order in which they are
// written there.
func (p Project) LocalConfBlocks() []Block {
	var all []Block
	for _, name := range slices.Sorted(maps.Keys(p.LocalConf)) {
		b := Block{Name: name, File: p.File, Line: 1, Text: p.LocalConf[name]}
		if v := p.merged.get("local_conf_header", name); v != nil {
			b.File, b.Line = v.at.file, v.at.line
			if strings.Contains(b.Text, "\n") {
				b.Line++ // it begins below the | of its key
			}
		}
		all = append(all, b)
	}
	return all
}

// KeyAt returns the position of the machine or distro in the project file, or of the
// file's start.
func (p Project) KeyAt(key string) (file string, line, column int) {
	at := position{p.File, 1, 1}
	if p.setup != nil {
		at = p.setup.chain[len(p.setup.chain)-1].at
	} else if v := p.merged.get(key); v != nil {
		at = v.at
	}
	return at.file, at.line, at.column
}
