package report

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What is longer than the report keeps lies whole beside it, and is gone with the
// report; logs of a flash stay.
func TestLongLogsLieBesideTheReport(t *testing.T) {
	dir := t.TempDir()
	flashed := filepath.Join(dir, "logs", "output.log")
	if err := os.MkdirAll(filepath.Dir(flashed), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(flashed, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	const lines = MaxLogBytes / 4 // of 5 characters: more than a report keeps
	r := failing()
	r.Logs = []Log{NewLog("short", "text"), NewLog("../long", "begin\n"+strings.Repeat("line\x1b[2J\n", lines)+"end")}
	if err := r.Write(dir); err != nil {
		t.Fatal(err)
	}
	all, err := ReadReports(filepath.Join(dir, ReportJSON))
	if err != nil {
		t.Fatal(err)
	}
	logs := all[0].Logs
	if logs[0].File != "" || logs[1].File != "logs/smoke-long.txt" || len(logs[1].Text) > MaxLogBytes+100 {
		t.Fatalf("files %q and %q, %d bytes in the report", logs[0].File, logs[1].File, len(logs[1].Text))
	}
	data, err := os.ReadFile(filepath.Join(dir, logs[1].File))
	if text := string(data); err != nil || text != "begin\n"+strings.Repeat("line\n", lines)+"end" {
		t.Errorf("%d bytes in its file, %v; want all that is text", len(text), err)
	}
	if err := Remove(dir); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(dir, "logs", "*"))
	if err != nil || len(left) != 1 || left[0] != flashed {
		t.Errorf("%v, %v are left; want the log of the flash", left, err)
	}
}
