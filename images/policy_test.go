package images

import (
	"strings"
	"testing"
	"testing/fstest"
)

func TestParsePolicy(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"all keys", "signers: keys\nbuilders: [https://ci.example.com/*]\ncommitted: true\nsince: 2026-11-01\nnewest: true\npackages: true\nlicences: {refuse: [AGPL-*], except: [tool]}\nflaws: {below: 9, except: [CVE-2026-1]}\n", ""},
		{"a time", "since: 2026-11-01T12:00:00Z\n", ""},
		{"a time in quotes", `since: "2026-11-01T12:00:00+01:00"`, ""},
		{"nothing", "", "p.yml: the file has no values"},
		{"an empty mapping", "{}", "p.yml: the policy asks for nothing; name one of signers"},
		{"an unknown key", "signer: keys\n", `p.yml:1:1: unknown key "signer": did you mean signers?`},
		{"a wrong kind", "builders: https://ci.example.com\n", "p.yml:1:"},
		{"no date", "newest: true\nsince: yesterday\n", `p.yml:2:1: since: "yesterday" is no date as 2026-11-28`},
		{"a score", "flaws: {below: 11}\n", "p.yml:1:9: flaws.below: 11 is not between 0 and 10"},
		{"no number", "flaws: {below: .nan}\n", "p.yml:1:9: flaws.below: NaN is not between"},
		{"a pattern", "builders: ['[']\n", `p.yml:1:1: builders: "[" is no name and no pattern`},
		{"an empty name", "licences: {refuse: ['']}\n", `p.yml:1:12: licences.refuse: "" is no name`},
		{"an exception alone", "newest: true\nflaws: {except: [CVE-2026-1]}\n", "p.yml:2:9: flaws.except: it needs flaws.below"},
		{"another exception alone", "newest: true\nlicences: {except: [tool]}\n", "p.yml:2:12: licences.except: it needs licences.refuse"},
		{"builders alone", "builders: [https://ci.example.com/*]\n", "p.yml:1:1: builders: it needs signers"},
		{"builders without signers", "newest: true\nbuilders: [https://ci.example.com/*]\n", "p.yml:2:1: builders: it needs signers"},
		{"empty signers", "newest: true\nsigners: ''\n", "p.yml:2:1: signers: it is empty"},
		{"signers without a value", "newest: true\nsigners:\n", "p.yml:2:1: signers: it is empty"},
		{"no builders", "signers: keys\nbuilders: []\n", "p.yml:2:1: builders: it is empty"},
		{"a list", "- signers\n", "p.yml:1:"},
	} {
		_, err := ParsePolicy("p.yml", []byte(tt.text))
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v; want %q", tt.name, err, tt.want)
		}
	}
}

// A board inherits the policy of the one that it extends, key by key.
func TestBoardsPolicy(t *testing.T) {
	const board = "arch: arm64\ndescription: a board\nflash: {kinds: [block]}\nsuites: []\n"
	load := func(child string) (Spec, error) {
		return LoadFrom(fstest.MapFS{
			"old/board.yml": {Data: []byte(board + "policy: {signers: keys, newest: true}\n")},
			"old/kas.yml":   {Data: []byte("header: {version: 14}\n")},
			"old/keys":      {Data: []byte("a")},
			"new/board.yml": {Data: []byte("extends: old\n" + child)},
		}, "new")
	}
	s, err := load("policy: {newest: false, packages: true}\n")
	if err != nil || s.Policy == nil || s.Policy.Signers != "keys" || s.Policy.Newest || !s.Policy.Packages {
		t.Errorf("policy = %+v, %v; want the signers of the board that it extends", s.Policy, err)
	}
	for text, want := range map[string]string{
		"policy: {signers: none}\n":          "new/board.yml:2:10: policy.signers: ",
		"policy: {since: soon}\n":            "new/board.yml:2:10: policy: since: ",
		"policy: {signers: ''}\n":            "new/board.yml:2:10: policy: signers: it is empty",
		"policy: {builders: []}\n":           "new/board.yml:2:10: policy: builders: it is empty",
		"policy:\n":                          "policy: it is empty",
		"policy: {}\nflash: {signers: ''}\n": "flash.signers: it is empty",
		"policy: {sign: keys}\n":             `unknown key "sign": did you mean signers?`,
	} {
		if _, err := load(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", text, err, want)
		}
	}
}

func FuzzParsePolicy(f *testing.F) {
	f.Add([]byte("signers: keys\nbuilders: [https://ci.example.com/*]\nsince: 2026-11-01\nflaws: {below: 9}\n"))
	f.Add([]byte("licences: {refuse: [AGPL-*], except: [tool]}\nnewest: yes\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := ParsePolicy("p.yml", data)
		if err != nil {
			return
		}
		if key, err := p.validate(); err != nil {
			t.Errorf("it is taken, and %s is wrong: %v", key, err)
		}
	})
}
