package source

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestFlaky fails in its third round. Its rounds are files.
const flaky = `
-- go.mod --
module slipway

go 1.22
-- flaky/flaky_test.go --
package flaky

import (
	"os"
	"testing"
	"time"
)

func TestFlaky(t *testing.T) {
	if os.Mkdir("1", 0o755) == nil || os.Mkdir("2", 0o755) == nil {
		return
	}
	if os.Mkdir("3", 0o755) == nil {
		t.Error("Flaky = 1; want 2")
	}
}

func TestSlow(t *testing.T) { time.Sleep(time.Hour) }
-- plain/plain.go --
package plain
`

func TestUnderLoad(t *testing.T) {
	tools, err := ourTools()
	if err != nil {
		t.Fatal(err)
	}
	root := unpack(t, flaky)
	for _, tt := range []struct {
		only    string
		rounds  int
		each    time.Duration
		logs    int
		out     string
		wantErr string
	}{
		{"slipway/flaky TestFlaky", 2, 0, 0, "2 runs total, 0 failures", ""},
		{"slipway/flaky TestFlaky", 2, 0, 1, "Flaky = 1; want 2", "the tests of 1 of 1 packages failed under load"},
		{"flaky TestFlaky", 2, 0, 0, "2 runs total, 0 failures", ""},
		{"flaky TestSlow", 2, time.Second, 0, "", ""},
		{"plain", 2, 0, 0, "", `no package with tests matches "plain"`},
		{"[", 2, 0, 0, "", "--only: "},
	} {
		var out bytes.Buffer
		err := loadRun{tools["stress"], tt.rounds, tt.each}.underLoad(t.Context(), &out, root, tt.only)
		if (err == nil) != (tt.wantErr == "") || err != nil && !strings.Contains(err.Error(), tt.wantErr) || !strings.Contains(out.String(), tt.out) {
			t.Errorf("underLoad(%q) = %v, want %q; printed %q, want %q", tt.only, err, tt.wantErr, &out, tt.out)
		}
		if logs, _ := filepath.Glob(filepath.Join(root, loadDir, "*.failed-*")); len(logs) != tt.logs {
			t.Errorf("underLoad(%q) left %q; want %d logs", tt.only, logs, tt.logs)
		}
	}
}
