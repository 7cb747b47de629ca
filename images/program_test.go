package images

import (
	"encoding/json"
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
	for version, want := range map[string]string{
		"(devel)": unknown, "": unknown, "v0.0.0-20261128131158-0be958aaab64": unknown, "v1.2.4-0.20261128131158-0be958aaab64+dirty": unknown,
		"v1.2.4-rc1.0.20261128131158-0be958aaab64": unknown, "v1.2.3+dirty": "v1.2.3", "v1.2.3-rc1": "v1.2.3-rc1",
	} {
		info = &debug.BuildInfo{}
		info.Main.Version = version
		if got := recordedProgram(info); got != (Program{want, unknown, false}) {
			t.Errorf("recorded %q = %+v; want %s", version, got, want)
		}
	}
}

func TestProgramInWords(t *testing.T) {
	for p, want := range map[Program]string{
		{"v1.2", "abc", false}:    "v1.2, commit abc",
		{unknown, "abc", true}:    "development build, commit abc, modified",
		{unknown, unknown, false}: "development build, commit unknown",
		{"v1.2", unknown, false}:  "v1.2, commit unknown",
	} {
		if got := p.String(); got != want {
			t.Errorf("%+v = %q; want %q", p, got, want)
		}
	}
}

func FuzzParseStatement(f *testing.F) {
	a := Artifact{Board: "virt", Key: "k", Files: []File{{Kind: DiskImage, Name: "disk.img", SHA256: strings.Repeat("a", 64)}}, Slipway: Program{Version: "1", Commit: "c"}}
	text, err := a.statement()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"_type": "https://in-toto.io/Statement/v1"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := parseStatement(data)
		if err == nil && (s.Builder == "" || len(s.Subjects) == 0 || !json.Valid(data)) {
			t.Errorf("%q is taken: %+v", data, s)
		}
	})
}
