package ci

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"slipway/ci/report"
	"slipway/images"
)

// The outcome is a whole one also where no report can be written.
func TestUpdateWithoutReportFolder(t *testing.T) {
	opt, spec := images.Options{Dir: t.TempDir()}, images.Spec{Board: "toy"}
	if err := os.MkdirAll(filepath.Join(opt.ReportDir(spec), report.ReportJSON, "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	outcome, err := Update(t.Context(), opt, spec, "lab", "new.raucb", UpdateOptions{Out: io.Discard})
	if want := "lab: nothing was written, and what ran before still runs"; err == nil || outcome.String() != want {
		t.Errorf("Update = %q, %v; want %q", outcome, err, want)
	}
}

// The answer may end without a line feed. What follows begins on a new line all the same.
func TestAskYesWithoutAnswer(t *testing.T) {
	var out strings.Builder
	err := AskYes(strings.NewReader(""), &out, "not confirmed")("Write?")
	if err == nil || err.Error() != "not confirmed" || !strings.HasSuffix(out.String(), ": \n") {
		t.Errorf("AskYes = %v, after %q", err, out.String())
	}
}
