package oci

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
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
		{"too large", `{"id":"` + strings.Repeat("x", 2<<20) + `","bundle":"/b"}`, State{}, "larger than 1024 KiB"},
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
		{"relative root", `{"root":{"path":"rootfs"},"process":{"env":["A=1"]},"linux":{"namespaces":[{"type":"pid"},{"type":"mount"}]}}`, Config{Rootfs: "/bundle/rootfs", Env: []string{"A=1"}, MountNamespace: true}, ""},
		{"absolute root", `{"root":{"path":"/var/lib/c/merged"}}`, Config{Rootfs: "/var/lib/c/merged"}, ""},
		{"no mount namespace", `{"root":{"path":"r"},"linux":{"namespaces":[{"type":"pid"}]}}`, Config{Rootfs: "/bundle/r"}, ""},
		{
			"mounts", `{"root":{"path":"/r"},"mounts":[{"destination":"/a","options":["rbind","ro"]},{"destination":"/b","options":["ro","rw"]},{"destination":"/c"},{"destination":"/d","options":["rro"]}]}`,
			Config{Rootfs: "/r", ReadOnly: []string{"/a", "/d"}},
			"",
		},
		{"volume that the board sees", `{"root":{"path":"/r"},"mounts":[{"destination":"/a","options":["rbind","rshared"]}]}`, Config{Rootfs: "/r", Shared: true}, ""},
		{"root that the board sees", `{"root":{"path":"/r"},"linux":{"rootfsPropagation":"shared"}}`, Config{Rootfs: "/r", Shared: true}, ""},
		{"user namespace", `{"root":{"path":"/r"},"linux":{"namespaces":[{"type":"user"}]}}`, Config{Rootfs: "/r", UserNamespace: true}, ""},
		{"our hook", `{"root":{"path":"/r"},"hooks":{"prestart":[{"path":"/x"}],"createRuntime":[{"path":"/opt/slipway-hook","args":["slipway-hook","hook","--devices=all"]}]}}`, Config{Rootfs: "/r", Hooked: true}, ""},
		{"another's hook", `{"root":{"path":"/r"},"hooks":{"createRuntime":[{"path":"/opt/slipway-hook","args":["slipway-hook"]},{"path":"/bin/hook","args":["hook","hook"]}],"poststop":[{"path":"/opt/slipway-hook","args":["slipway-hook","hook"]}]}}`, Config{Rootfs: "/r"}, ""},
		{"no root", `{"process":{"env":[]}}`, Config{}, "no root.path"},
		{"empty root", `{"root":{"path":""}}`, Config{}, "no root.path"},
		{"NUL in root", `{"root":{"path":"a\u0000"}}`, Config{}, "no root.path"},
		{"env of numbers", `{"root":{"path":"r"},"process":{"env":[1]}}`, Config{}, "cannot unmarshal"},
		{"null", `null`, Config{}, "no root.path"},
		{"half", `{"root":{"path":"r"`, Config{}, "unexpected end"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseConfig([]byte(tt.input), "/bundle")
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
	tests := []struct {
		name string
		make func(path string) error
		want string
	}{
		{"nothing in it", func(path string) error { return os.WriteFile(path, []byte("{}"), 0o644) }, "no root.path"},
		{"missing", func(string) error { return nil }, "no such file"},
		{"a FIFO", func(path string) error { return syscall.Mkfifo(path, 0o644) }, "not a regular file"},
		{"a folder", func(path string) error { return os.Mkdir(path, 0o755) }, "not a regular file"},
		{"large", func(path string) error {
			return errors.Join(os.WriteFile(path, nil, 0o644), os.Truncate(path, maxConfigBytes+1))
		}, "larger than 32768 KiB"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bundle := t.TempDir()
			path := filepath.Join(bundle, "config.json")
			if err := tt.make(path); err != nil {
				t.Fatal(err)
			}
			_, err := ReadConfig(bundle)
			if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("ReadConfig = %v; want an error that names %s and %q", err, path, tt.want)
			}
		})
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
		c, err := ParseConfig(data, "/bundle")
		if err != nil {
			return
		}
		if !filepath.IsAbs(c.Rootfs) || strings.ContainsRune(c.Rootfs, 0) {
			t.Errorf("let through %+v", c)
		}
	})
}
