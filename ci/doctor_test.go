package ci

import (
	"bytes"
	"encoding/json"
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"

	"slipway/images"
)

// What build would stop at in its first second, doctor says before.
func TestDoctorLooksAsBuildDoes(t *testing.T) {
	t.Setenv("PATH", t.TempDir()) // so that every board lacks something
	foreign := map[string]string{"amd64": "virt-arm64", "arm64": "virt"}[runtime.GOARCH]
	for _, tt := range []struct{ board, mend string }{{"jetson-orin-nano-devkit", "sudo "}, {foreign, "as root: "}} {
		spec, err := images.Load(tt.board)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := Doctor(t.Context(), &out, spec, images.Options{Dir: t.TempDir()}, true); !errors.Is(err, errNotReady) {
			t.Errorf("Doctor for %s = %v; want %v", tt.board, err, errNotReady)
		}
		var all []Finding
		if err := json.Unmarshal(out.Bytes(), &all); err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(all, func(f Finding) bool { return f.What == "build" })
		if i < 0 {
			t.Fatalf("Doctor for %s found %+v; want a finding named build", tt.board, all)
		}
		f := all[i]
		if f.OK || f.Saw == "" || f.Why == "" || !strings.Contains(f.Mend, tt.mend) {
			t.Errorf("Doctor for %s: %+v; want %q to mend it", tt.board, f, tt.mend)
		}
		build := images.CheckHost(t.Context(), spec)
		if build == nil || !strings.HasPrefix(build.Error(), f.Saw) {
			t.Errorf("CheckHost(%s) = %v; doctor saw %q", tt.board, build, f.Saw)
		}
		var text bytes.Buffer
		f.print(&text)
		for line := range strings.Lines(text.String()) {
			if !strings.HasPrefix(line, "  ") {
				t.Errorf("line %q is not indented in:\n%s", line, text.String())
			}
		}
	}
}
