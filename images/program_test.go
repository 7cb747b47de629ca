package images

import (
	"runtime/debug"
	"strings"
	"testing"
)

func TestParseDescribed(t *testing.T) {
	sha1, sha256 := strings.Repeat("0a", 20), strings.Repeat("f3", 32)
	for text, want := range map[string]Program{
		sha1:                                  {unknown, sha1, false},
		sha1 + "-dirty":                       {unknown, sha1, true},
		"v1.2-0-g" + sha1:                     {"v1.2", sha1, false},
		"v1.2-rc-gamma-10-g" + sha1:           {"v1.2-rc-gamma-10", sha1, false},
		"v2-3-g" + sha256 + "-dirty":          {"v2-3", sha256, true},
		"":                                    {},
		"-dirty":                              {},
		"v1.2":                                {},
		sha1[:12]:                             {},
		"v1.2-0-g" + sha1[:39] + "z":          {},
		"fatal: not a git repository " + sha1: {},
	} {
		if got, ok := parseDescribed(text); ok != (want.Commit != "") || ok && got != want {
			t.Errorf("parseDescribed(%q) = %+v, %v; want %+v", text, got, ok, want)
		}
	}
}

func TestRecordedByGo(t *testing.T) {
	info := &debug.BuildInfo{Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: "true"}}}
	info.Main.Version = "v1.0.1"
	if got := recordedProgram(info); got != (Program{"v1.0.1", "abc", true}) {
		t.Errorf("recorded = %+v", got)
	}
	info = &debug.BuildInfo{}
	info.Main.Version = "(devel)"
	if got := recordedProgram(info); got != (Program{unknown, unknown, false}) {
		t.Errorf("nothing recorded = %+v; want it unknown", got)
	}
}
