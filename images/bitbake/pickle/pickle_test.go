package pickle

import (
	"encoding/base64"
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func ours(c Class) bool { return strings.HasPrefix(c.Module, "bb.") || c.Module == "builtins" }

func TestDecode(t *testing.T) {
	event := &Object{
		Class: Class{"bb.event", "Event"}, Args: Tuple{},
		State: Dict{"pid": int64(7), "stats": &Object{Class: Class{"bb.runqueue", "Stats"}, Args: Tuple{}, State: Dict{"total": int64(300)}}},
	}
	tests := []struct {
		name, in string // Python's pickle, in Go's escapes
		want     any
		wantErr  string
	}{
		{"nothing", "\x80\x04N.", nil, ""},
		{
			"numbers", "\x80\x04(K\x05M\x2c\x01J\xfe\xff\xff\xff\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80\x8a\x01\xffG\x3f\xf8\x00\x00\x00\x00\x00\x00\x88t.",
			Tuple{int64(5), int64(300), int64(-2), int64(-1 << 63), int64(-1), 1.5, true},
			"",
		},
		{"an object with another in it", "\x80\x04\x8c\x08bb.event\x8c\x05Event\x93)\x81}(\x8c\x03pidK\x07\x8c\x05stats" +
			"\x8c\x0bbb.runqueue\x8c\x05Stats\x93)\x81}\x8c\x05totalM\x2c\x01sbub.", event, ""},
		{"what was kept", "\x80\x04\x8c\x01a\x94h\x00h\x00\x86\x86.", Tuple{"a", Tuple{"a", "a"}}, ""},
		{"a list that grows", "\x80\x04](K\x01K\x02eK\x03a.", &List{Items: []any{int64(1), int64(2), int64(3)}}, ""},
		{"a set", "\x80\x04\x8c\x08builtins\x8c\x03set\x93]\x94K\x01a\x85R.", &List{Items: []any{&List{Items: []any{int64(1)}}}}, ""},
		{"protocol 2's classes", "\x80\x02cbb.event\nEvent\nq\x00)\x81.", &Object{Class: Class{"bb.event", "Event"}, Args: Tuple{}}, ""},

		{"a function of the system", "\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02id\x85R.", nil, "it names os.system, which is no part of an event; refused"},
		{"the same in old words", "cos\nsystem\n\x8c\x02id\x85R.", nil, "it names os.system"},
		{"old words end early", "cos", nil, "ends in the middle"},
		{"a length that is not there", "\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f\x8e\xff\xff\xff\xff\xff\xff\xff\xff.", nil, "ends in the middle"},
		{"an opcode of none", "\x80\x04\xff.", nil, "opcode 0xff"},
		{"an empty stack", "\x80\x04.", nil, "empty stack"},
		{"a mark for a value", "\x80\x04(.", nil, "a mark for a value"},
		{"no mark", "\x80\x04K\x01t.", nil, "no mark"},
		{"kept far away", "\x80\x04Nr\xff\xff\xff\x7f.", nil, "gap"},
		{"recalled too early", "\x80\x04h\x00.", nil, "did not keep"},
		{"half an entry", "\x80\x04}(K\x01u.", nil, "half an entry"},
		{"an object of a text", "\x80\x04\x8c\x01a)R.", nil, "no class"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Decode([]byte(tt.in), ours)
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Errorf("Decode = %v, %v; want an error with %q", got, err, tt.wantErr)
				}
				return
			}
			if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
				t.Errorf("Decode: %v (-want +got)\n%s", err, diff)
			}
		})
	}
}

// A list that holds itself must not be walked by anybody, only kept.
func TestDecodeOfWhatHoldsItself(t *testing.T) {
	v, err := Decode([]byte("\x80\x04]\x94h\x00a."), ours)
	l, is := v.(*List)
	if err != nil || !is || len(l.Items) != 1 || l.Items[0] != v {
		t.Errorf("Decode = %T, %v; want a list of itself", v, err)
	}
}

func TestRefusedIsAnError(t *testing.T) {
	_, err := Decode([]byte("\x80\x04\x8c\x05posix\x8c\x06system\x93."), ours)
	var refused Refused
	if !errors.As(err, &refused) || refused.Class != (Class{"posix", "system"}) {
		t.Errorf("Decode = %v; want it refused by name", err)
	}
}

// Python itself writes what is read here, in every protocol that it has for it.
func TestDecodeOfPython(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("python3 is not installed (Debian package python3)")
	}
	const program = `
import pickle, base64, sys
v = {"a": [1, -1, 70000, 2**40, -2**40, 1.25, None, True, False], "t": (1, (2, 3), ()), "s": {"x"},
     "f": frozenset(["y"]), "b": b"z" * 300, "u": "\u00e9" * 300, "again": None}
v["again"] = v["a"]
for p in range(2, min(5, pickle.HIGHEST_PROTOCOL) + 1):
    print(base64.b64encode(pickle.dumps(v, p)).decode())
`
	out, err := exec.Command("python3", "-c", program).Output()
	if err != nil {
		t.Fatal(err)
	}
	a := &List{Items: []any{int64(1), int64(-1), int64(70000), int64(1 << 40), int64(-1 << 40), 1.25, nil, true, false}}
	want := Dict{
		"a": a, "again": a, "t": Tuple{int64(1), Tuple{int64(2), int64(3)}, Tuple{}}, "u": strings.Repeat("é", 300),
	}
	for i, line := range strings.Fields(string(out)) {
		raw, err := base64.StdEncoding.DecodeString(line)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Decode(raw, func(c Class) bool { return c.Module != "os" })
		d, is := got.(Dict)
		if err != nil || !is {
			t.Fatalf("protocol %d: %T, %v", i+2, got, err)
		}
		for _, k := range []string{"s", "f", "b"} { // each protocol has other opcodes for these
			if d[k] == nil {
				t.Errorf("protocol %d lost %s", i+2, k)
			}
			delete(d, k)
		}
		if diff := cmp.Diff(want, d); diff != "" {
			t.Errorf("protocol %d: (-want +got)\n%s", i+2, diff)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte("\x80\x04\x8c\x08bb.event\x8c\x05Event\x93)\x81}(\x8c\x03pidK\x07ub."))
	f.Add([]byte("\x80\x02cbb.event\nEvent\nq\x00)\x81}q\x01X\x01\x00\x00\x00aK\x01sb."))
	f.Add([]byte("\x80\x04]\x94h\x00ah\x00R."))
	f.Fuzz(func(t *testing.T, in []byte) {
		v, err := Decode(in, ours)
		if o, is := v.(*Object); is && err == nil && !ours(o.Class) {
			t.Errorf("Decode made a %v, which was not allowed", o.Class)
		}
	})
}
