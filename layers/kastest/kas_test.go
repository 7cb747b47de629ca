package kastest

import (
	"errors"
	"testing"
)

func TestArchiveIn(t *testing.T) {
	tests := []struct{ name, file, want string }{
		{"a line", "deb http://a/debian trixie main contrib\n", "http://a/debian"},
		{"options", "# deb http://no/ trixie main\ndeb [arch=amd64 signed-by=/k.gpg] http://a/debian trixie main\n", "http://a/debian"},
		{"a paragraph", "Types: deb\n# a word\nURIs: http://a/debian\nSuites: trixie trixie-updates\nComponents: main\n", "http://a/debian"},
		{"the second paragraph", "Types: deb\nURIs: http://s/\nSuites: trixie-security\nComponents: main\n\nTypes: deb\nURIs: http://a/debian\nSuites: trixie\nComponents: main\n", "http://a/debian"},
		{"of another suite", "deb http://a/debian bookworm main\n", ""},
		{"of another vendor", "deb https://a/apt trixie stable\n", ""},
		{"sources only", "deb-src http://a/debian trixie main\n", ""},
		{"nothing", "deb\ndeb [\n", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := findArchive(tt.file, "trixie"); got != tt.want {
				t.Errorf("findArchive = %q; want %q", got, tt.want)
			}
		})
	}
}

func TestKasIsFound(t *testing.T) {
	for name, suite := range map[string]Suite{"installed": Installed, "testing": Testing} {
		t.Run(name, func(t *testing.T) {
			k, err := Find(t.Context(), suite)
			if errors.Is(err, ErrMissing) {
				t.Skip(err)
			}
			if err != nil || k.Version < "3" {
				t.Errorf("found %q, %v; want kas 3 or later", k.Version, err)
			}
		})
	}
}
