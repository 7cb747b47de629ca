package oci

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestReadState(t *testing.T) {
	tests := []struct {
		name, input string
		want        State
		wantErr     string
	}{
		{"runc at createRuntime", `{"ociVersion":"1.0.2-dev","id":"c1","status":"creating","pid":4711,"bundle":"/run/b"}`, State{"c1", 4711, "/run/b"}, ""},
		{"runc at createContainer", `{"ociVersion":"1.0.2-dev","id":"c1","status":"creating","pid":1,"bundle":"/run/b"}`, State{"c1", 1, "/run/b"}, ""},
		{"crun", `{"ociVersion":"1.0","id":"c1","pid":0,"root":"rootfs","bundle":"/run/b/","status":"created","annotations":{"a":"b"}}`, State{"c1", 0, "/run/b"}, ""},
		{"nothing", ``, State{}, "unexpected end"},
		{"a list", `[]`, State{}, "cannot unmarshal"},
		{"no id", `{"pid":1,"bundle":"/b"}`, State{}, "no id"},
		{"relative bundle", `{"id":"c","bundle":"b"}`, State{}, "not an absolute path"},
		{"NUL in bundle", `{"id":"c","bundle":"/b\u0000"}`, State{}, "not an absolute path"},
		{"pid below 0", `{"id":"c","bundle":"/b","pid":-4}`, State{}, "pid -4"},
		{"pid too large", `{"id":"c","bundle":"/b","pid":1e99}`, State{}, "pid"},
		{"pid as text", `{"id":"c","bundle":"/b","pid":"1"}`, State{}, "pid"},
		{"more behind it", `{"id":"c","bundle":"/b"}{}`, State{}, "after top-level value"},
		{"too large", `{"id":"` + strings.Repeat("x", 2<<20) + `","bundle":"/b"}`, State{}, "larger than 1 MiB"},
		{"deep", strings.Repeat(`{"annotations":`, 20000), State{}, "depth"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ReadState(strings.NewReader(tt.input))
			check(t, got, tt.want, err, tt.wantErr)
		})
	}
}

func TestParseConfig(t *testing.T) {
	tests := []struct {
		name, input string
		want        Config
		wantErr     string
	}{
		{"relative root", `{"root":{"path":"rootfs"},"process":{"env":["A=1"]},"linux":{"namespaces":[{"type":"pid"},{"type":"mount"}]}}`, Config{"/bundle/rootfs", []string{"A=1"}, true, nil}, ""},
		{"absolute root", `{"root":{"path":"/var/lib/c/merged"}}`, Config{"/var/lib/c/merged", nil, false, nil}, ""},
		{"no mount namespace", `{"root":{"path":"r"},"linux":{"namespaces":[{"type":"pid"}]}}`, Config{"/bundle/r", nil, false, nil}, ""},
		{
			"mounts", `{"root":{"path":"/r"},"mounts":[{"destination":"/a","options":["rbind","ro"]},{"destination":"/b","options":["ro","rw"]},{"destination":"/c"},{"destination":"/d","options":["rro"]}]}`,
			Config{"/r", nil, false, []string{"/a", "/d"}},
			"",
		},
		{"no root", `{"process":{"env":[]}}`, Config{}, "no root.path"},
		{"empty root", `{"root":{"path":""}}`, Config{}, "no root.path"},
		{"NUL in root", `{"root":{"path":"a\u0000"}}`, Config{}, "no root.path"},
		{"env of numbers", `{"root":{"path":"r"},"process":{"env":[1]}}`, Config{}, "cannot unmarshal"},
		{"null", `null`, Config{}, "no root.path"},
		{"half", `{"root":{"path":"r"`, Config{}, "unexpected end"},
		{"too large", strings.Repeat(" ", maxConfigBytes+1), Config{}, "larger than 32 MiB"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseConfig(strings.NewReader(tt.input), "/bundle")
			check(t, got, tt.want, err, tt.wantErr)
		})
	}
}

func check(t *testing.T, got, want any, err error, wantErr string) {
	t.Helper()
	if wantErr != "" {
		if err == nil || !strings.Contains(err.Error(), wantErr) {
			t.Fatalf("error %v; want one with %q", err, wantErr)
		}
		return
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
}

func TestReadConfigNamesTheFile(t *testing.T) {
	bundle := t.TempDir()
	path := filepath.Join(bundle, "config.json")
	if err := os.WriteFile(path, []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadConfig(bundle); err == nil || !strings.HasPrefix(err.Error(), path+": ") {
		t.Errorf("ReadConfig = %v; want an error that begins with %s", err, path)
	}
}

func FuzzReadState(f *testing.F) {
	for _, s := range []string{`{"id":"c","pid":7,"bundle":"/b"}`, `{"id":"c","pid":1,"bundle":"/b/../c","root":"rootfs"}`, `{}`, `{"id":null,"bundle":[]}`, "\xff"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := ReadState(strings.NewReader(string(data)))
		if err == nil && (s.ID == "" || s.Pid < 0 || s.Bundle != filepath.Clean(s.Bundle) || !filepath.IsAbs(s.Bundle)) {
			t.Errorf("let through %+v", s)
		}
	})
}

func FuzzParseConfig(f *testing.F) {
	for _, s := range []string{`{"root":{"path":"r"},"process":{"env":["NVIDIA_VISIBLE_DEVICES=all"]},"linux":{"namespaces":[{"type":"mount","path":"/x"}]}}`, `{"root":{"path":"../../.."}}`, `{"Root":null,"root":{"PATH":"/"}}`, `{"root":{"path":"r"},"linux":null,"process":null}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := parseConfig(strings.NewReader(string(data)), "/bundle")
		if err != nil {
			return
		}
		if !filepath.IsAbs(c.Rootfs) || strings.ContainsRune(c.Rootfs, 0) {
			t.Errorf("let through %+v", c)
		}
	})
}
