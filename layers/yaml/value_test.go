package yaml

import "testing"

// ReplacePath makes the dicts that are missing, keeps keys that are numbers, and changes no other
// value that shares a dict.
func TestReplacePath(t *testing.T) {
	anything := &Shape{Kinds: Text | Null | Dict, Numbered: true}
	anything.Each = anything
	text := func(s string) *Value { return &Value{Kind: Text, Text: s} }
	for _, tt := range []struct {
		name, before string
		e            *Value
		keys         []string
		want         string
	}{
		{"replaced", "a:\n  b: x\n  c: y\n", text("z"), []string{"a", "b"}, "a:\n  b: z\n  c: y\n"},
		{"removed", "a:\n  b: x\n  c: y\n", nil, []string{"a", "b"}, "a:\n  c: y\n"},
		{"nothing to remove", "a:\n  b: x\n", nil, []string{"a", "c", "d"}, "a:\n  b: x\n"},
		{"no dict above", "a: x\n", text("z"), []string{"b", "c"}, "a: x\nb:\n  c: z\n"},
		{"no value above", "a:\n", text("z"), []string{"a", "b", "c"}, "a:\n  b:\n    c: z\n"},
		{"beside a number", "a:\n  7: x\n  b: y\n", nil, []string{"a", "b"}, "a:\n  7: x\n"},
	} {
		v, _, err := Decode("p.yml", []byte(tt.before), anything, false)
		if err != nil {
			t.Fatal(err)
		}
		shared := NewDict()
		for _, key := range v.Keys {
			shared.Set(key, v.Dict[key])
		}
		v.ReplacePath(tt.e, tt.keys...)
		if got := string(v.YAML()); got != tt.want || string(shared.YAML()) != tt.before {
			t.Errorf("%s: ReplacePath leaves %q, and %q in a value that shares it; want %q and %q", tt.name, got, shared.YAML(), tt.want, tt.before)
		}
	}
}
