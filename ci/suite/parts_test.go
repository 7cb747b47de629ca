package suite

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// outcomeText returns an outcome as lines.
func outcomeText(o outcome) []string {
	all := []string{}
	for _, p := range o.Parts {
		text := string(p.Status) + " " + p.Name
		if p.Saw != "" {
			text += ": " + p.Saw
		}
		all = append(all, text)
	}
	for _, p := range o.Problems {
		all = append(all, "problem: "+p)
	}
	return all
}

const tapOutput = `TAP version 14
1..8
ok 1 - opens the device
not ok 2 - reads \# of frames
  ---
  message: short read
  severity: fail
  ...
# tried 3 times
ok 3 # SKIP no sensor at hand
not ok 4 - rotates # TODO the driver cannot yet
    # Subtest: modes
    1..2
    ok 1 - slow
    not ok 2 - fast
not ok 5 - modes
ok
ok 7 closes # TODO done by now
ok 8 - last
`

func TestTAP(t *testing.T) {
	for _, tt := range []struct {
		name, give string
		want       []string
	}{
		{"all that there is", tapOutput, []string{
			"passed opens the device", "failed reads # of frames: message: short read\nseverity: fail\ntried 3 times",
			"skipped test 3: no sensor at hand", "skipped rotates: to do: the driver cannot yet", "failed modes: not ok 2 - fast",
			"passed test 6", "passed closes", "passed last",
		}},
		{"the plan at the end", "ok\nok\n1..2\n", []string{"passed test 1", "passed test 2"}},
		{"too few", "1..3\nok 1 a\n", []string{"passed a", "problem: 3 results are planned, and there are 1"}},
		{"too many", "1..1\nok 1 a\nok 2 b\n", []string{"passed a", "passed b", "problem: 1 results are planned, and there are 2"}},
		{"no plan", "ok 1 a\n", []string{"passed a", "problem: no plan like 1..1: the output may have ended too early"}},
		{"two plans", "1..1\nok\n1..1\n", []string{"passed test 1", "problem: a second plan: 1..1"}},
		{"bailed out", "1..2\nok 1 a\nBail out! no GPU\nok 2 b\n", []string{"passed a", "problem: bailed out: no GPU"}},
		{"all skipped", "1..0 # SKIP no camera\n", []string{"skipped all: no camera"}},
		{"nothing", "sh: not found\n", []string{"problem: no TAP: neither a plan like 1..3 nor a result"}},
		{"carriage returns", "1..1\r\nok 1 - a\r\n", []string{"passed a"}},
		{"other words", "1..1\nokay then\nnot okay\nok 1 a\n", []string{"passed a"}},
		{"escapes", "1..1\nnot ok 1 - \x1b[31mred\x1b[0m\n# \x07\x1b]0;t\x07loud\n", []string{"failed red: loud"}},
	} {
		if diff := cmp.Diff(tt.want, outcomeText(readTAP(tt.give))); diff != "" {
			t.Errorf("%s: %s", tt.name, diff)
		}
	}
}

const ptestText = `START: ptest-runner
2026-11-22T10:00
BEGIN: /usr/lib/zlib/ptest
hello world
PASS: zlib static
cannot open the other
FAIL: zlib shared
SKIP: zlib 64-bit
DURATION: 1
END: /usr/lib/zlib/ptest
BEGIN: /usr/lib/attr/ptest
PASS: attr
ERROR: Exit status is 3
END: /usr/lib/attr/ptest
2026-11-22T10:01
STOP: ptest-runner
TOTAL: 2 FAIL: 1
`

func TestPtest(t *testing.T) {
	for _, tt := range []struct {
		name, give string
		want       []string
	}{
		{"two packages", ptestText, []string{
			"passed zlib/zlib static", "failed zlib/zlib shared: cannot open the other\nFAIL: zlib shared", "skipped zlib/zlib 64-bit",
			"passed attr/attr", "failed attr/Exit status is 3: ERROR: Exit status is 3",
		}},
		{"without a runner", "PASS: a\nXFAIL: b\nXPASS: c\n", []string{"passed a", "skipped b: it is known to fail", "failed c: XPASS: c"}},
		{"a package that did not end", "BEGIN: /usr/lib/x/ptest\nPASS: a\n", []string{"passed x/a", "problem: x began and did not end"}},
		{"no name", "FAIL:\n", []string{"failed result 1: FAIL:"}},
		{"nothing", "-sh: ptest-runner: not found\n", []string{}},
	} {
		if diff := cmp.Diff(tt.want, outcomeText(readPtest(tt.give))); diff != "" {
			t.Errorf("%s: %s", tt.name, diff)
		}
	}
}

// These are outputs of test binaries of Go 1.26: with -test.v=test2json, with -test.v, and
// with a panic.
const (
	goMarked = "\x16=== RUN   TestGPU\nloading\n\x16=== RUN   TestGPU/clock\n\x16=== NAME  TestGPU/clock\n    gpu_test.go:9: 300 MHz\n" +
		"half a line\x16--- FAIL: TestGPU (0.12s)\n\x16    --- FAIL: TestGPU/clock (0.10s)\n\x16=== RUN   TestDLA\n\x16=== NAME  TestDLA\n    dla_test.go:3: no DLA\n" +
		"\x16--- SKIP: TestDLA (0.00s)\n\x16=== RUN   TestFake\n--- FAIL: TestOfNobody (0.00s)\n\x16--- PASS: TestFake (1.50s)\n\x16FAIL\n"
	goPlain  = "=== RUN   TestA\n    a_test.go:5: hm\n--- PASS: TestA (0.00s)\n=== RUN   TestB\n    b_test.go:7: wrong\n--- FAIL: TestB (0.01s)\nFAIL\n"
	goPanics = "=== RUN   TestA\n--- PASS: TestA (0.00s)\n=== RUN   TestB\npanic: runtime error: index out of range\n"
)

func TestGoTestOutput(t *testing.T) {
	for _, tt := range []struct {
		name, give string
		want       []string
	}{
		{"marked", goMarked, []string{
			"failed TestGPU: loading", "failed TestGPU/clock: gpu_test.go:9: 300 MHz\nhalf a line", "skipped TestDLA: dla_test.go:3: no DLA", "passed TestFake",
		}},
		{"plain", goPlain, []string{"passed TestA", "failed TestB: b_test.go:7: wrong"}},
		{"a panic", goPanics, []string{
			"passed TestA", "failed TestB: panic: runtime error: index out of range\nit began and did not end",
			"problem: the last line is not PASS or FAIL: the program was ended, or it is no Go test",
		}},
		{"nothing", "", []string{"problem: the last line is not PASS or FAIL: the program was ended, or it is no Go test"}},
	} {
		if diff := cmp.Diff(tt.want, outcomeText(readGoTest(tt.give))); diff != "" {
			t.Errorf("%s: %s", tt.name, diff)
		}
	}
	if took := readGoTest(goMarked).Parts[3].TookMS; took != 1500 {
		t.Errorf("TestFake took %d ms; want 1500", took)
	}
}

func TestTooManyParts(t *testing.T) {
	for name, text := range map[string]string{
		"tap": "1..5000\n" + strings.Repeat("ok\n", 5000), "ptest": strings.Repeat("FAIL: a\n", 5000),
		"go": strings.Repeat("=== RUN   TestA\n--- PASS: TestA (0.00s)\n", 5000) + "PASS\n",
	} {
		o := outputFormats[name](text)
		if len(o.Parts) != maxParts || len(o.Problems) != 1 || !strings.Contains(o.Problems[0], "more than 2000 results") {
			t.Errorf("%s: %d parts, problems %q", name, len(o.Parts), o.Problems)
		}
	}
}

// FuzzParts checks that no output makes a reader panic, or a report too long.
func FuzzParts(f *testing.F) {
	for _, text := range []string{tapOutput, ptestText, goMarked, goPlain, goPanics, "1..0 # skip", "Bail out!", "BEGIN:\nTIMEOUT: x"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for name, read := range outputFormats {
			o := read(text)
			for _, p := range o.Parts {
				if p.Name == "" || len(p.Saw) > 3*maxPartNotes || strings.ContainsRune(p.Name, '\x1b') || p.TookMS < 0 {
					t.Fatalf("%s: %+v", name, p)
				}
			}
		}
	})
}
