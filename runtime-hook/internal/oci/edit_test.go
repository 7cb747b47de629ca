package oci

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

func additions() Additions {
	major, minor := int64(10), int64(3)
	return Additions{
		Nodes: []specs.LinuxDevice{{Path: "/dev/a", Type: "c", Major: 10, Minor: 3}},
		Rules: []specs.LinuxDeviceCgroup{{Allow: true, Type: "c", Major: &major, Minor: &minor, Access: "rwm"}},
		GIDs:  []uint32{44},
		Hook:  &specs.Hook{Path: "/h"},
	}
}

func TestEdit(t *testing.T) {
	const (
		node = `{"path":"/dev/a","type":"c","major":10,"minor":3}`
		rule = `{"allow":true,"type":"c","major":10,"minor":3,"access":"rwm"}`
		hook = `{"path":"/h"}`
		user = `"process":{"user":{"additionalGids":[44]}}`
		dev  = `"hooks":{"createRuntime":[` + hook + `]},"linux":{"devices":[` + node + `],"resources":{"devices":[` + rule + `]}}`
		made = dev + `,` + user
	)
	tests := []struct {
		name, input, want, wantErr string
	}{
		{"empty", `{}`, `{` + made + `}`, ""},
		{"other fields", "{ \"a\" : 1e999 }\n", `{"a":1e999,` + made + "}", ""},
		{"null", `{"linux":null,"hooks":{"createRuntime":null}}`, `{` + made + `}`, ""},
		{"a user", `{"process":{"user":{"uid":1,"additionalGids":[2]}}}`, `{` + dev + `,"process":{"user":{"additionalGids":[2,44],"uid":1}}}`, ""},
		{
			"there already", `{"linux":{"x":"<\ud800>","resources":{"devices":[ ],"y":[]},"devices":[{"path":"/dev/b"}
]},"hooks":{"createRuntime":[{}],"poststop":[1]}}`,
			`{"hooks":{"createRuntime":[{},` + hook + `],"poststop":[1]},"linux":{"devices":[{"path":"/dev/b"},` + node + `],"resources":{"devices":[` + rule + `],"y":[]},"x":"\u003c\ud800\u003e"},` + user + `}`, "",
		},
		{"a name in escapes", `{"\u006cinux":{},"hooks":{}}`, `{` + made + `}`, ""},
		{"not JSON", `{`, "", "not JSON"},
		{"a list", `[]`, "", "want {}"},
		{"linux is a list", `{"linux":[]}`, "", "linux: "},
		{"devices are a number", `{"linux":{"devices":7}}`, "", `linux: devices: "7" is there; want []`},
		{"twice", `{"linux":{},"linux":{}}`, "", "one field"},
		{"twice but for the case", `{"linux":{},"Linux":{}}`, "", "one field"},
		{"other case", `{"Hooks":{}}`, "", "one field"},
		{"another field twice", `{"root":{},"Root":{}}`, "", `"Root" and "root" are one field`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Edit([]byte(tt.input), additions())
			check(t, string(got), tt.want, err, tt.wantErr)
		})
	}
}

func TestEditNothing(t *testing.T) {
	const text = " {\"a\" : [ ] } \n"
	if got, err := Edit([]byte(text), Additions{}); err != nil || string(got) != text {
		t.Errorf("Edit = %q, %v; want what was there", got, err)
	}
}

// Whatever a config.json holds, it holds after the edit, and the additions too.
func FuzzEdit(f *testing.F) {
	for _, s := range []string{`{}`, `{"linux":null,"x":1}`, `{"linux":{"devices":[{}],"resources":{"memory":{}}},"hooks":{"createRuntime":[],"prestart":[{}]}}`, "{\"\xff\":\"\xff\", \"hooks\" : { } } "} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := Edit(data, additions())
		if err != nil {
			return
		}
		var before, after map[string]any
		if err := decode(data, &before); err != nil {
			t.Fatalf("took %q: %v", data, err)
		}
		if err := decode(got, &after); err != nil {
			t.Fatalf("made %q of %q: %v", got, data, err)
		}
		removeLast(t, after, "hooks", "createRuntime")
		removeLast(t, after, "linux", "devices")
		removeLast(t, after, "linux", "resources", "devices")
		removeLast(t, after, "process", "user", "additionalGids")
		if !reflect.DeepEqual(plain(before), plain(after)) {
			t.Errorf("made %q of %q", got, data)
		}
	})
}

// decode reads with numbers as they are written.
func decode(data []byte, to any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	return d.Decode(to)
}

// removeLast removes what the edit added to the list at path.
func removeLast(t *testing.T, in map[string]any, path ...string) {
	t.Helper()
	for _, key := range path[:len(path)-1] {
		in, _ = in[key].(map[string]any)
	}
	key := path[len(path)-1]
	items, _ := in[key].([]any)
	if len(items) == 0 {
		t.Fatalf("no %s", strings.Join(path, "."))
	}
	in[key] = items[:len(items)-1]
}

// plain leaves out what is empty, as the edit makes what it needs.
func plain(v any) any {
	object, ok := v.(map[string]any)
	if !ok {
		if items, ok := v.([]any); ok && len(items) == 0 {
			return nil
		}
		return v
	}
	out := map[string]any{}
	for key, value := range object {
		if p := plain(value); p != nil {
			out[key] = p
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}
