package source

import (
	"cmp"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"slipway/layers/lazy"
	"slipway/layers/plaintext"
)

const slowest = 5

// printSummary writes the summary of a run. The failures come last, before the totals,
// where a terminal still shows them.
func printSummary(w io.Writer, r *testResults) {
	fmt.Fprintln(w)
	printUntested(w, r)
	printSkips(w, r)
	printSlowest(w, r)
	printFailures(w, r)
	cached := ""
	if n := r.cached(); n > 0 {
		cached = fmt.Sprintf(", %d unchanged since they passed", n)
	}
	fmt.Fprintf(w, "%d passed, %d failed, %d skipped in %d packages%s, %s\n",
		len(r.in(passed)), len(r.failed()), len(r.in(skipped)), len(r.order), cached, time.Since(r.began).Round(100*time.Millisecond))
}

func printUntested(w io.Writer, r *testResults) {
	var names []string
	for _, p := range r.order {
		if p.state == skipped {
			names = append(names, p.path)
		}
	}
	if len(names) > 0 {
		fmt.Fprintf(w, "without tests: %s\n", strings.Join(names, " "))
	}
}

func printSkips(w io.Writer, r *testResults) {
	for _, c := range r.in(skipped) {
		fmt.Fprintf(w, "SKIP  %s %s: %s\n", c.pkg.path, c.name, c.skipReason())
	}
}

// logPrefix matches the position that t.Log prints before its text.
var logPrefix = lazy.Regexp(`^\s*[\w.-]+\.go:\d+: `)

// skipReason returns the message of a skipped test in one line.
func (t *testResult) skipReason() string {
	var words []string
	for _, line := range t.output.all() {
		words = append(words, strings.Fields(logPrefix().ReplaceAllString(line, ""))...)
	}
	if len(words) == 0 {
		return "no reason given"
	}
	return strings.Join(words, " ")
}

func printSlowest(w io.Writer, r *testResults) {
	var tops []caseResult
	for _, p := range r.order {
		for _, t := range p.order {
			if !strings.Contains(t.name, "/") && t.elapsed >= 100*time.Millisecond {
				tops = append(tops, caseResult{p, t})
			}
		}
	}
	slices.SortStableFunc(tops, func(a, b caseResult) int { return cmp.Compare(b.elapsed, a.elapsed) })
	if len(tops) == 0 {
		return
	}
	fmt.Fprintln(w, "slowest:")
	for _, c := range tops[:min(slowest, len(tops))] {
		fmt.Fprintf(w, "  %6.1fs  %s %s\n", c.elapsed.Seconds(), c.pkg.path, c.name)
	}
}

func printFailures(w io.Writer, r *testResults) {
	failures := r.failed()
	for _, c := range failures {
		fmt.Fprintf(w, "FAIL  %s %s (%.1fs)\n", c.pkg.path, c.name, c.elapsed.Seconds())
		for _, line := range c.output.all() {
			fmt.Fprintf(w, "  | %s\n", line)
		}
		fmt.Fprintf(w, "  again: %s\n", c.rerunCommand())
	}
	if len(failures) > 0 && len(r.stray.all()) > 0 {
		fmt.Fprintf(w, "Output that belongs to no test:\n  | %s\n", strings.ReplaceAll(r.stray.String(), "\n", "\n  | "))
	}
}

// rerunCommand returns the command that runs only this test again, in the same order.
func (c caseResult) rerunCommand() string {
	if c.pkg.module == "" {
		return "go tool mage test"
	}
	argv := []string{"go"}
	if c.pkg.module != "." {
		argv = append(argv, "-C", c.pkg.module)
	}
	argv = append(append(argv, "test"), buildArgs(c.pkg.race)...)
	if c.pkg.shuffle != "" {
		argv = append(argv, "-shuffle="+c.pkg.shuffle)
	}
	if c.name != "" {
		var parts []string
		for part := range strings.SplitSeq(c.name, "/") {
			parts = append(parts, "^"+regexp.QuoteMeta(part)+"$")
		}
		argv = append(argv, "-run", plaintext.Quote(strings.Join(parts, "/")))
	}
	return strings.Join(append(argv, c.pkg.path), " ")
}
