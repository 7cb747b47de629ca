package main

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	tests := []struct {
		args string
		want runtimeCall
	}{
		{"", runtimeCall{}},
		{"--version", runtimeCall{}},
		{"state c1", runtimeCall{}},
		{"--root /run/r --log /l.json --log-format json create --bundle /b --pid-file /p c1", runtimeCall{true, "/b/config.json", "/l.json", true}},
		{"--root=/run/r --log=/l --log-format=text --systemd-cgroup create --bundle=/b c1", runtimeCall{true, "/b/config.json", "/l", false}},
		{"-root /run/r -debug run -bundle /b c1", runtimeCall{true, "/b/config.json", "", false}},
		{"--cgroup-manager systemd --log-level error run -b /b c1", runtimeCall{true, "/b/config.json", "", false}},
		{"create c1 -b /b", runtimeCall{true, "/b/config.json", "", false}},
		{"create -b/b c1", runtimeCall{true, "/b/config.json", "", false}},
		{"create -b=/b c1", runtimeCall{true, "/b/config.json", "", false}},
		{"create --bun /b c1", runtimeCall{true, "/b/config.json", "", false}},
		{"create --bun=/b c1", runtimeCall{true, "/b/config.json", "", false}},
		{"create -b /a --bundle /b c1", runtimeCall{true, "/b/config.json", "", false}},
		{"create --pid-file --bundle -b /b c1", runtimeCall{true, "/b/config.json", "", false}},
		{"create c1 -- -b /b", runtimeCall{true, "config.json", "", false}},
		{"create --config c.json --bundle /b c1", runtimeCall{true, "/b/c.json", "", false}},
		{"create -f /x/c.json --bundle /b c1", runtimeCall{true, "/x/c.json", "", false}},
		{"create", runtimeCall{true, "config.json", "", false}},
		{"create --bundle", runtimeCall{true, "config.json", "", false}},
		{"--root create delete create", runtimeCall{}},
		{"--new-option value run -b /b c1", runtimeCall{true, "/b/config.json", "", false}},
		{"exec c1 run -b /b", runtimeCall{}},
		{"- create", runtimeCall{true, "config.json", "", false}},
		{"-- create", runtimeCall{true, "config.json", "", false}},
	}
	for _, tt := range tests {
		if got := parseCall(strings.Fields(tt.args)); got != tt.want {
			t.Errorf("Parse(%q) = %+v; want %+v", tt.args, got, tt.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("--log /l create -b /b c1")
	f.Add("run -f - -b= -- -")
	f.Fuzz(func(t *testing.T, args string) {
		c := parseCall(strings.Split(args, " "))
		if c.Creates != (c.Config != "") || c.Config != "" && filepath.Clean(c.Config) != c.Config && !filepath.IsAbs(c.Config) {
			t.Errorf("%q: %+v", args, c)
		}
	})
}
