package images

import (
	"encoding/hex"
	"runtime/debug"
	"strings"

	"slipway/layers/lazy"
	"slipway/layers/plaintext"
)

// Program is the Slipway that made something.
type Program struct {
	Version  string `json:"version"`
	Commit   string `json:"commit"`
	Modified bool   `json:"modified,omitempty"` // its source differed from the commit
}

// String is the program as a person reads it.
func (p Program) String() string {
	text := plaintext.Either(p.Version == unknown, "development build", p.Version) + ", commit " + p.Commit
	if p.Modified {
		text += ", modified"
	}
	return text
}

// Describe is the command whose output Described takes, with the commit in full.
var Describe = []string{"git", "describe", "--always", "--dirty", "--long", "--abbrev=40"}

// unknown is said of what nobody told the program, rather than guessed.
const unknown = "unknown"

// described is what Describe prints where this program was compiled: set by the linker's
// -X, since the go command records no commit in what Mage compiles.
var described string

// Described says what this program was compiled of, where somebody else knows.
func Described(text string) { described = strings.TrimSpace(text) }

// ThisProgram is the Slipway that runs.
func ThisProgram() Program {
	if p, ok := parseDescribed(described); ok {
		return p
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		return recordedProgram(info)
	}
	return Program{Version: unknown, Commit: unknown}
}

// parseDescribed reads v1.2-3-gCOMMIT-dirty, or COMMIT where no tag is known.
func parseDescribed(text string) (Program, bool) {
	text, modified := strings.CutSuffix(text, "-dirty")
	p := Program{Version: unknown, Commit: text, Modified: modified}
	if i := strings.LastIndex(text, "-g"); i >= 0 {
		p.Version, p.Commit = strings.TrimSuffix(text[:i], "-0"), text[i+2:]
	}
	id, err := hex.DecodeString(p.Commit)
	return p, err == nil && (len(id) == 20 || len(id) == 32)
}

// pseudoVersion is what the go command calls a commit without a tag, or its end.
var pseudoVersion = lazy.Regexp(`[.-]\d{14}-[0-9a-f]{12}$`)

// recordedProgram returns what the go command recorded.
func recordedProgram(info *debug.BuildInfo) Program {
	p := Program{Version: unknown, Commit: unknown}
	if v := strings.TrimSuffix(info.Main.Version, "+dirty"); v != "" && v != "(devel)" && !pseudoVersion().MatchString(v) {
		p.Version = v
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			p.Commit = s.Value
		case "vcs.modified":
			p.Modified = s.Value == "true"
		}
	}
	return p
}
