// Package report turns the result of a run on a board into JSON, JUnit, TAP or a page.
// It also writes what a CI server shows beside a job's log. It asks no board; see ci.
package report

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"slipway/images"
	"slipway/layers/git"
	"slipway/layers/host"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// Status is how a stage or a check ended.
type Status string

// The ways to end.
const (
	Passed  Status = "passed"
	Failed  Status = "failed"
	Skipped Status = "skipped"
	Cached  Status = "cached" // nothing to do: an earlier result serves
)

// Report is the result of a run: the stages up to the board, and the checks on the board.
type Report struct {
	Version   int               `json:"version"`
	Board     string            `json:"board"`
	Target    string            `json:"target,omitempty"` // what it was reached as
	Started   time.Time         `json:"started"`
	ElapsedMS int64             `json:"elapsedMs"`
	Reason    string            `json:"reason,omitempty"` // of a failure: unreachable, check, suite or other
	Slipway   images.Program    `json:"slipway,omitzero"` // that asked
	Host      Host              `json:"host"`
	Identity  Identity          `json:"identity"`
	Source    *git.FolderCommit `json:"source,omitempty"` // of the image
	Boot      Boot              `json:"boot,omitzero"`
	Stages    []Stage           `json:"stages"`
	Suites    []SuiteResult     `json:"suites"`
	Logs      []Log             `json:"logs,omitempty"`
}

// Host is the machine that ran the checks.
type Host struct {
	Name string `json:"name"`
	OS   string `json:"os"`
	Arch string `json:"arch"`
	CPUs int    `json:"cpus"`
}

// Identity is what the board itself says of its hardware and software. Nothing confirms it.
type Identity struct {
	Hostname  string `json:"hostname,omitempty"`
	Model     string `json:"model,omitempty"`
	Serial    string `json:"serial,omitempty"`
	MachineID string `json:"machineId,omitempty"`
	BootID    string `json:"bootId,omitempty"`
	OS        string `json:"os,omitempty"`
	Image     string `json:"image,omitempty"` // os-release's IMAGE_ID and IMAGE_VERSION
	L4T       string `json:"l4t,omitempty"`
	BlueField string `json:"bluefield,omitempty"` // the release of its software
	Firmware  string `json:"firmware,omitempty"`
	Kernel    string `json:"kernel,omitempty"`
	Slot      string `json:"slot,omitempty"`
	UptimeSec int64  `json:"uptimeSec,omitempty"`
	ImageKey  string `json:"imageKey,omitempty"` // of the artifact that was deployed
}

// Boot is how long a virtual board took from power-on to a login.
type Boot struct {
	ElapsedMS int64  `json:"elapsedMs"`
	Accel     string `json:"accel,omitempty"` // kvm or tcg
}

// Stage is one step of a run before its checks: build, flash, boot, ...
type Stage struct {
	Name      string `json:"name"`
	Status    Status `json:"status"`
	ElapsedMS int64  `json:"elapsedMs"`
	Saw       string `json:"saw,omitempty"`
	Next      string `json:"next,omitempty"` // what to do after a failure
}

// SuiteResult is the result of one suite.
type SuiteResult struct {
	Name      string        `json:"name"`
	ElapsedMS int64         `json:"elapsedMs"`
	Checks    []CheckResult `json:"checks"`
}

// CheckResult is the result of one check.
type CheckResult struct {
	Name      string `json:"name"`
	Kind      string `json:"kind"`
	Status    Status `json:"status"`
	StartMS   int64  `json:"startMs"` // after its suite began
	ElapsedMS int64  `json:"elapsedMs"`
	Saw       string `json:"saw,omitempty"`
	Want      string `json:"want,omitempty"` // of a failure
	Next      string `json:"next,omitempty"`

	Proves   Proof    `json:"proves,omitempty"`   // of a check that passed and distinguishes hardware from software
	Attempts int      `json:"attempts,omitempty"` // how often it was tried, if more than once
	Metrics  []Metric `json:"metrics,omitempty"`
	Table    *Table   `json:"table,omitempty"`
}

// Proof says what a passed check showed of a function that hardware or software can do: which of
// the two did it, or only that the parts exist.
type Proof string

// The proofs that a check can give, by the name of the driver that did the work.
const (
	ProvesHardware Proof = "hardware"
	ProvesSoftware Proof = "software"
	ProvesParts    Proof = "parts" // they exist; they were not seen at work
)

// proofs are the texts of proofs for a person.
var proofs = map[Proof]string{
	"": "", ProvesHardware: "proved in hardware", ProvesSoftware: "proved in software", ProvesParts: "the parts are there; nothing was seen at work",
}

// proofList returns the distinct proofs of a suite's checks, like "parts, software".
func (s SuiteResult) proofList() string {
	var all []string
	for _, c := range s.Checks {
		if c.Proves != "" {
			all = append(all, string(c.Proves))
		}
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), ", ")
}

// Metric is a number that a check read on the board, with its limits.
type Metric struct {
	Name  string   `json:"name"`
	Unit  string   `json:"unit,omitempty"`
	Value float64  `json:"value"`
	Min   *float64 `json:"min,omitempty"`
	Max   *float64 `json:"max,omitempty"`
	Last  *float64 `json:"last,omitempty"` // in the last run that passed
}

// Log is one log of the board, for the report of a failed run.
type Log struct {
	Name  string `json:"name"`
	Text  string `json:"text"`           // its end
	File  string `json:"file,omitempty"` // that has all of it, beside the report
	Whole string `json:"-"`              // the whole text, if that is longer
}

// The files of a report.
const (
	ReportJSON  = "report.json"
	ReportJUnit = "junit.xml"
	ReportHTML  = "report.html"
)

// New returns a report of a run on this machine that starts now, without results.
func New(spec images.Spec) Report {
	return Report{Board: spec.Board, Started: time.Now().UTC(), Slipway: images.ThisProgram(), Host: thisHost()}
}

// startStage is the name of the only stage in the report of a refused run.
const startStage = "start"

// Refused returns a report with one failed stage for err, and err itself.
func Refused(spec images.Spec, err error) (Report, error) {
	r := New(spec)
	r.AddFailure(startStage, err, "")
	return r, err
}

// Failed reports whether a stage or check failed, or nothing passed, which proves nothing either.
func (r Report) Failed() bool {
	n := r.Counts()
	return n.Stages[Failed]+n.Checks[Failed] > 0 || n.Stages[Passed]+n.Stages[Cached]+n.Checks[Passed] == 0
}

// Tallies are the numbers of stages and of checks by status.
type Tallies struct{ Stages, Checks map[Status]int }

// Counts counts the stages and the checks of the report by status.
func (r Report) Counts() Tallies {
	n := Tallies{map[Status]int{}, map[Status]int{}}
	for _, s := range r.Stages {
		n.Stages[s.Status]++
	}
	for _, s := range r.Suites {
		for _, c := range s.Checks {
			n.Checks[c.Status]++
		}
	}
	return n
}

// TotalChecks returns the number of checks, without stages.
func (n Tallies) TotalChecks() int {
	sum := 0
	for _, v := range n.Checks {
		sum += v
	}
	return sum
}

// CountWords returns counts as a line, like "1 failed, 11 passed", or "none".
func CountWords(n map[Status]int) string {
	var words []string
	for _, s := range []Status{Failed, Passed, Cached, Skipped} {
		if n[s] > 0 {
			words = append(words, fmt.Sprintf("%d %s", n[s], s))
		}
	}
	if len(words) == 0 {
		return "none"
	}
	return strings.Join(words, ", ")
}

// Write writes the report into dir as JSON, JUnit and HTML, and long logs as files, all atomically.
func (r Report) Write(dir string) error {
	r = r.Tidy()
	if err := r.writeLogs(dir); err != nil {
		return err
	}
	p := page{dir, []file{{ReportJSON, ReportJSON}, {ReportJUnit, ReportJUnit}}}
	return writeForms(dir, []Report{r}, func() ([]byte, error) { return p.render(r) })
}

// writeForms renders the reports in each form that has a file, and writes the files into dir. page
// renders the HTML page, which has links to the files beside it.
func writeForms(dir string, all []Report, page func() ([]byte, error)) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, f := range forms {
		if f.file == "" {
			continue
		}
		render := func() ([]byte, error) { return f.render(all) }
		if f.file == ReportHTML {
			render = page
		}
		data, err := render()
		if err != nil {
			return fmt.Errorf("render %s: %w", f.file, err)
		}
		if err := renameio.WriteFile(filepath.Join(dir, f.file), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// Remove removes the report's files in dir, so that they are not taken for those of a stopped run.
func Remove(dir string) error {
	names, err := filepath.Glob(logFiles(dir))
	if err != nil {
		return err
	}
	names = append(names, filepath.Join(dir, ReportJSON), filepath.Join(dir, ReportJUnit), filepath.Join(dir, ReportHTML))
	return localfile.Unwritable(dir, localfile.Remove(names...))
}

// Summary writes the failures with their next steps, the verdict and the counts for a terminal. For
// a refused run it writes nothing, because the error says all.
func (r Report) Summary(w io.Writer) {
	if len(r.Stages) == 1 && r.Stages[0].Name == startStage {
		return
	}
	r = r.Tidy()
	for _, f := range r.Failures() {
		fmt.Fprintf(w, "%s  %s: %s\n%s\n", plaintext.Bad.On(w, "FAILED"), f.Where, f.Name, f.lines("  "))
	}
	n := r.Counts()
	verdict := plaintext.Good.On(w, "PASSED")
	if r.Failed() {
		verdict = plaintext.Bad.On(w, "FAILED")
	}
	fmt.Fprintf(w, "%s  %s in %s\n", verdict, r.Board, formatMS(r.ElapsedMS))
	fmt.Fprintf(w, "  stages  %s\n  checks  %s\n", CountWords(n.Stages), CountWords(n.Checks))
}

// lines returns what was seen, what was wanted, and the next step, each with its name.
func (f Failure) lines(indent string) string {
	var text strings.Builder
	for _, part := range []fact{{"saw", f.Saw}, {"want", f.Want}, {"next", f.Next}} {
		if part.Value != "" {
			fmt.Fprintf(&text, "%s%-5s %s\n", indent, part.Name, strings.ReplaceAll(part.Value, "\n", "\n      "+indent))
		}
	}
	return text.String()
}

// formatMS returns a time as text, like "900 ms" or "1.2 s".
func formatMS(ms int64) string {
	if ms < 1000 {
		return fmt.Sprintf("%d ms", ms)
	}
	return fmt.Sprintf("%.1f s", float64(ms)/1000)
}

// thisHost describes this machine.
func thisHost() Host {
	name, _ := os.Hostname()
	h := Host{Name: name, OS: runtime.GOOS, Arch: runtime.GOARCH, CPUs: runtime.NumCPU()}
	if data, err := os.ReadFile("/etc/os-release"); err == nil {
		h.OS = cmp.Or(strings.Trim(plaintext.Properties(string(data))["PRETTY_NAME"], `"'`), h.OS)
	}
	return h
}

// Limits for text from a board.
const (
	MaxFactBytes = 500
	MaxSawBytes  = 4000
	MaxLogBytes  = 64 << 10
)

// Tidy returns a copy with version, texts cut to their limits, and no secrets or control
// characters, which a terminal or XML parser obeys. Reports are written only from such copies.
func (r Report) Tidy() Report {
	r.Version = reportVersion
	id := &r.Identity
	names := []*string{
		&r.Target, &r.Board, &r.Host.Name, &r.Host.OS, &r.Reason, &r.Slipway.Version, &r.Slipway.Commit, &r.Boot.Accel,
		&id.Hostname, &id.Model, &id.Serial, &id.MachineID, &id.BootID,
		&id.OS, &id.Kernel, &id.Slot, &id.ImageKey, &id.Image, &id.L4T, &id.BlueField, &id.Firmware,
	}
	if r.Source != nil {
		r.Source = new(*r.Source)
		names = append(names, &r.Source.URL, &r.Source.Commit, &r.Source.Branch)
	}
	for _, name := range names {
		*name = plaintext.Clean(*name, 200)
	}
	// Empty lists, not null, for whoever reads the JSON.
	r.Stages = append([]Stage{}, r.Stages...)
	for i := range r.Stages {
		s := &r.Stages[i]
		s.Name, s.Saw, s.Next = plaintext.Clean(s.Name, 200), plaintext.Clean(s.Saw, MaxSawBytes), plaintext.Clean(s.Next, MaxSawBytes)
	}
	r.Suites = append([]SuiteResult{}, r.Suites...)
	for i := range r.Suites {
		r.Suites[i].Name = plaintext.Clean(r.Suites[i].Name, 200)
		r.Suites[i].Checks = append([]CheckResult{}, r.Suites[i].Checks...)
		for j := range r.Suites[i].Checks {
			c := &r.Suites[i].Checks[j]
			c.Name, c.Saw = plaintext.Clean(c.Name, 200), plaintext.Clean(c.Saw, MaxSawBytes)
			c.Want, c.Next = plaintext.Clean(c.Want, MaxSawBytes), plaintext.Clean(c.Next, MaxSawBytes)
			c.Metrics, c.Table = tidyMetrics(c.Metrics), c.Table.tidy()
		}
	}
	r.Logs = slices.Clone(r.Logs)
	for i := range r.Logs {
		l := &r.Logs[i]
		l.Name, l.Text, l.File = plaintext.Clean(l.Name, 200), plaintext.CleanTail(l.Text, MaxLogBytes), plaintext.Clean(l.File, 300)
	}
	return r
}

// tidyMetrics returns the metrics with clean texts, without NaN and infinity (JSON has neither).
func tidyMetrics(all []Metric) []Metric {
	var known []Metric
	for _, m := range all {
		m.Name, m.Unit = plaintext.Clean(m.Name, 200), plaintext.Clean(m.Unit, 50)
		for _, bound := range []**float64{&m.Min, &m.Max, &m.Last} {
			if *bound != nil && !isNumber(**bound) {
				*bound = nil
			}
		}
		if isNumber(m.Value) {
			known = append(known, m)
		}
	}
	return known
}

func isNumber(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// AddFailure adds a failed stage with err's text and its next step, or next if err has none. It
// sets r.Reason and r.ElapsedMS.
func (r *Report) AddFailure(stage string, err error, next string) {
	took := time.Since(r.Started).Milliseconds()
	r.Reason, r.ElapsedMS = ReasonFor(err), took
	saw, next := SplitNext(err, next)
	r.Stages = append(r.Stages, Stage{Name: stage, Status: Failed, ElapsedMS: took, Saw: saw, Next: next})
}

// SplitNext splits an error whose second and last line is "next: STEP", and returns STEP as the
// user types it. For other errors saw is the whole text, which may have a board's output, and next
// is ofStage.
func SplitNext(err error, ofStage string) (saw, next string) {
	saw, rest, _ := strings.Cut(err.Error(), "\n")
	step, ok := strings.CutPrefix(strings.TrimSpace(rest), "next: ")
	if !ok || strings.Contains(step, "\n") {
		return err.Error(), ofStage
	}
	return saw, host.TypedStep(step)
}

// Tally returns the counts of a suite in words, also as an error if checks failed.
func (r SuiteResult) Tally() (string, error) {
	n := Report{Suites: []SuiteResult{r}}.Counts().Checks
	text := CountWords(n)
	if n[Failed] > 0 {
		return text, errors.New(text)
	}
	return text, nil
}

// WriteAndPrintPath writes the report into dir with a copy for the history, and prints its path.
func (r Report) WriteAndPrintPath(w io.Writer, dir string) error {
	if err := errors.Join(r.Write(dir), r.saveCopy(dir)); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "report: %s (and %s, %s)\n", filepath.Join(dir, ReportHTML), ReportJSON, ReportJUnit)
	return err
}
