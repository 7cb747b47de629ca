package bitbake

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// eventLine is a line of the event log with a pickle of that class.
func eventLine(class, pickle string) []byte {
	return fmt.Appendf(nil, `{"class": %q, "vars": %q}`, class, base64.StdEncoding.EncodeToString([]byte(pickle)))
}

// A pickle of an event with a state of one entry, whose value is inserted.
func eventWith(value string) string {
	return "\x80\x04\x8c\x08bb.event\x8c\x05Event\x93)\x81}\x8c\x01v" + value + "sb."
}

// Python's own pickle format, from outside: values come out inert and within limits, or not
// at all. The reader goes on with the next event.
func TestUnpickler(t *testing.T) {
	u, err := startUnpickler()
	must(t, err)
	defer u.close()
	manyTimes := "]\x940" // a list of the list before it, twice, 40 times
	for i := range 40 {
		manyTimes += fmt.Sprintf("](h%[1]ch%[1]ce\x940", i)
	}
	manyTimes += "h\x28"
	tests := []struct {
		name, pickle string
		want         any
		wantErr      string
	}{
		{"a number", eventWith("J\xfe\xff\xff\xff"), -2.0, ""},
		{"a large number", eventWith("\x8a\x06\x00\x00\x00\x00\x00\x01"), float64(1 << 40), ""},
		{"a number of 900 kB", eventWith("\x8b\x00\xa0\x0d\x00" + strings.Repeat("\x7f", 0xda000)), nil, ""},
		{"text, true and none", eventWith("(\x8c\x01a\x88Nl"), []any{"a", true, nil}, ""},
		{"bytes", eventWith("C\x01z"), nil, ""},
		{"not a number", eventWith("G\x7f\xf8\x00\x00\x00\x00\x00\x00"), nil, ""},
		{"an object of bitbake's", eventWith("\x8c\x0bbb.runqueue\x8c\x05Stats\x93)\x81}\x8c\x05totalK\x07sb"), map[string]any{"total": 7.0}, ""},
		{"an object with slots", eventWith("\x8c\x0bbb.runqueue\x8c\x05Stats\x93)\x81N}\x8c\x05totalK\x07s\x86b"), map[string]any{"total": 7.0}, ""},
		{"a set", eventWith("\x8c\x08builtins\x8c\x03set\x93](K\x01e\x85R"), []any{1.0}, ""},
		{"a dict of a class", eventWith("\x8c\x0bcollections\x8c\x0bOrderedDict\x93)R\x8c\x01aK\x01s"), map[string]any{"a": 1.0}, ""},
		{"a function of the system", eventWith("\x8c\x05posix\x8c\x06system\x93\x8c\x02id\x85R"), nil, "it names posix.system, which is no part of an event; refused"},
		{"a function by a class", eventWith("\x8c\x08builtins\x8c\x0cset.__init__\x93"), nil, "it names builtins.set.__init__"},
		{"eval", eventWith("cbuiltins\neval\n"), nil, "it names builtins.eval"},
		{"a module below bitbake's name", eventWith("cbb\nutils.os\n"), nil, "it names bb.utils.os"},
		{"code for a function of ours", eventWith("cre\n_compile\nN}\x8c\x08__code__K\x01s\x86b"), nil, "__code__"},
		{"the registry", eventWith("\x82\x01"), nil, "extension"},
		{"a persistent id", eventWith("PX\n"), nil, "persistent"},
		{"bytes of 2^40", eventWith("\x8e\x00\x00\x00\x00\x00\x01\x00\x00"), nil, "*"},
		{"a frame of 2^40", "\x80\x04\x95\x00\x00\x00\x00\x00\x01\x00\x00N.", nil, "*"},
		{"a list that holds itself", eventWith("]\x94h\x00a"), nil, "too many values"},
		{"a list in many places", eventWith(manyTimes), nil, "too many values"},
		{"a text in many places", eventWith("(" + "X\x00\x00\x08\x00" + strings.Repeat("x", 1<<19) + "\x94" + strings.Repeat("h\x00", 100) + "l"), nil, "too many values"},
		{"depth", eventWith(strings.Repeat("](", 5000) + strings.Repeat("e", 5000)), nil, "too many values"},
		{"the middle of a value", eventWith("J\xfe")[:30], nil, "*"},
		{"nothing", "", nil, "*"},
		{"no object", "\x80\x04N.", nil, "it holds something else"},
		{"another class", "\x80\x04\x8c\x08bb.build\x8c\x05Event\x93)\x81.", nil, "it holds something else"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			state, err := u.decode(eventLine("bb.event.Event", tt.pickle))
			if tt.wantErr != "" {
				if err == nil || tt.wantErr != "*" && !strings.Contains(err.Error(), tt.wantErr) || strings.Contains(err.Error(), "ended") {
					t.Errorf("decode = %v, %v; want an error with %q", state, err, tt.wantErr)
				}
				return
			}
			if diff := cmp.Diff(tt.want, state["v"]); diff != "" || err != nil {
				t.Errorf("decode: %v (-want +got)\n%s", err, diff)
			}
		})
	}
}

// A pickle that ends its reader costs the event log, not the build.
func TestUnpicklerThatEnded(t *testing.T) {
	u, err := startUnpickler()
	must(t, err)
	must(t, u.cmd.Process.Kill())
	_ = u.cmd.Wait()
	for range 2 {
		if _, err := u.decode(eventLine("bb.event.Event", eventWith("N"))); err == nil || !strings.Contains(err.Error(), "the Python that reads it has ended") {
			t.Errorf("decode = %v; want that it has ended", err)
		}
	}
}
