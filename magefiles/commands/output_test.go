package commands

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"slipway/ci/job"
)

// Each error that a command ends with goes through one filter, for Mage too.
func TestErrorsAreClean(t *testing.T) {
	const text = "a\x1b[2K\u009b\u202eb https://u:S3CRET@h/x?token=S3CRET"
	for _, err := range []error{exitError{errors.New(text)}, usageError{text, []string{text}}} {
		if got := err.Error(); strings.ContainsAny(got, "\x1b\u009b\u202e") || strings.Contains(got, "S3CRET") {
			t.Errorf("%T: %q", err, got)
		}
	}
	var b strings.Builder
	if status := Main([]string{"boards", text}, &b); status != 2 || strings.ContainsAny(b.String(), "\x1b\u009b\u202e") || strings.Contains(b.String(), "S3CRET") {
		t.Errorf("Main = %d, and wrote %q", status, b.String())
	}
}

// What a station or a person wrote stays in its cell, and in its line.
func TestForgedLines(t *testing.T) {
	var b strings.Builder
	const text = "free\nlab-2\torin\x1b[2K"
	if err := table(&b, "NAME\tSTATE", []string{text}, func(s string) []any { return []any{"lab-1", s} }); err != nil {
		t.Fatal(err)
	}
	if want := "NAME   STATE\nlab-1  free lab-2 orin[2K\n"; b.String() != want {
		t.Errorf("table wrote %q; want %q", b.String(), want)
	}
	b.Reset()
	j := job.Job{ID: "1", By: text, Stop: text, Result: &job.Result{Steps: []job.StepResult{{Do: text}}}}
	if err := showJob(&b, j); err != nil {
		t.Fatal(err)
	}
	if strings.Count(b.String(), "\n") != 2 || strings.ContainsAny(b.String(), "\t\x1b") {
		t.Errorf("showJob wrote %q; want two lines", b.String())
	}
}

// rawOutput are the lines that may name the files themselves.
var rawOutput = []string{"audit.Answer(", "RunContainer(", "ConsoleVirtual(", "Completion", "plaintext.Width(", "plaintext.Printer{", "progress.ForOutput("}

func TestCommandsPrintByThePrinter(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(source), "\n") {
			named := strings.Contains(line, "os.Stdout") || strings.Contains(line, "os.Stderr") || strings.Contains(line, "fmt.Print")
			if named && !strings.HasSuffix(file, "_test.go") && !slices.ContainsFunc(rawOutput, func(part string) bool { return strings.Contains(line, part) }) {
				t.Errorf("%s:%d: %s: want stdout or stderr of this package", file, i+1, strings.TrimSpace(line))
			}
		}
	}
}
