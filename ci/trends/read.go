package trends

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unique"

	"slipway/ci/report"
	"slipway/images"
	"slipway/layers/git"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// Limits for the files to read. They may come from anywhere.
const (
	maxReportBytes = 32 << 20
	maxEntries     = 500_000 // files and folders below those that were named
	maxRuns        = 20_000
	maxDepth       = 10
	maxNotes       = 50
	maxNameBytes   = 120
)

// Run is one run of a board, read from the folder that a CI job left.
type Run struct {
	Board  string
	Device string // its serial or address; "" if the run reached no device, or a virtual board
	Name   string // the folder or file
	Time   time.Time
	Source git.FolderCommit
	Key    string // of the image

	built  time.Time // of the artifact; a later run may be of the same one
	build  []value
	device []value
	checks []outcome
}

// metric identifies a series: its name, its check or suite, and its unit.
type metric struct{ name, of, unit string }

// value is one number of a run. worse is 1 if larger values are worse, -1 if smaller, 0 if unknown.
type value struct {
	metric
	v     float64
	worse int
}

// outcome is how a stage or a check ended.
type outcome struct {
	name, of string
	failed   bool
}

// Runs are the runs of FromReports, the oldest first, with notes on what could not be read.
type Runs struct {
	All   []Run
	Notes []string
}

// Found is what FromReports makes a run of: a report, an artifact, or both if the report is of it.
type Found struct {
	Name     string // says where it was found
	Report   *report.Report
	Artifact *images.Artifact
	Note     string // instead of both: what could not be read
}

// FromReports makes runs of reports and artifacts. It ends with the first error. After maxRuns it
// ends the iteration, and the caller says so.
func FromReports(ctx context.Context, found iter.Seq2[Found, error]) (Runs, error) {
	r := reader{known: map[string]int{}}
	err := progress.Run(ctx, "read", func(s *progress.Step) (string, error) {
		r.step = s
		for one, err := range found {
			if err != nil {
				return "", err
			}
			if len(r.all) == maxRuns {
				break
			}
			r.addFound(one)
		}
		return fmt.Sprintf("%d runs", len(r.all)), nil
	})
	if err != nil {
		return Runs{}, err
	}
	if r.unsaid > 0 {
		r.notes = append(r.notes, fmt.Sprintf("%d more notes", r.unsaid))
	}
	slices.SortStableFunc(r.all, func(a, b Run) int {
		return cmp.Or(a.Time.Compare(b.Time), strings.Compare(a.Name, b.Name))
	})
	return Runs{r.all, r.notes}, nil
}

// Read finds the runs below folders. A run is a folder with report.json, artifact.json or both, or
// an earlier report in a folder "reports", where smoke keeps them.
func Read(ctx context.Context, folders []string) (Runs, error) {
	var f finder
	var failed error
	runs, err := FromReports(ctx, func(yield func(Found, error) bool) {
		f.yield = yield
		for _, folder := range folders {
			if failed = f.walk(ctx, folder); failed != nil {
				f.send(Found{}, failed)
				return
			}
		}
	})
	if err := cmp.Or(err, failed); err != nil {
		return Runs{}, err
	}
	if f.full {
		runs.Notes = append(runs.Notes, fmt.Sprintf("only %d runs in %d files were read; name fewer folders", len(runs.All), f.entries))
	}
	return runs, nil
}

// finder finds reports and artifacts in folders.
type finder struct {
	yield   func(Found, error) bool
	entries int
	full    bool // no more is read
}

func (f *finder) send(found Found, err error) { f.full = f.full || !f.yield(found, err) }

func (f *finder) note(err error) { f.send(Found{Note: err.Error()}, nil) }

// reader makes runs.
type reader struct {
	all    []Run
	known  map[string]int // the places of runs: a report may lie in several folders
	notes  []string
	unsaid int
	step   *progress.Step
}

// addFound adds a run or a note.
func (r *reader) addFound(f Found) {
	switch {
	case f.Note != "":
		r.note("%s", f.Note)
	case f.Report == nil && f.Artifact != nil:
		r.addArtifact(f.Name, *f.Artifact)
	case f.Report == nil || f.Report.Started.IsZero():
		r.note("%s: a report without its time", f.Name)
	default:
		run := r.ofReport(f.Name, *f.Report)
		if f.Artifact != nil {
			r.addBuild(&run, *f.Artifact)
		}
		r.add(run)
	}
}

// note records something that the reader left out. After maxNotes it only counts.
func (r *reader) note(format string, args ...any) {
	if len(r.notes) == maxNotes {
		r.unsaid++
		return
	}
	text, _, _ := strings.Cut(fmt.Sprintf(format, args...), "\n")
	r.notes = append(r.notes, plaintext.Clean(plaintext.OneLine(text), 300))
}

// skipped are folders of a build that have many files and no reports.
var skipped = []string{"bitbake", "layers", "machine", "cache", "downloads", "sstate-cache", "keys", "metrics", "replaced", "node_modules"}

// walk sends all that is below a folder, up to the limits, and notes what it could not read.
func (f *finder) walk(ctx context.Context, folder string) error {
	root, err := filepath.EvalSymlinks(folder)
	if err != nil {
		return localfile.ExplainUnreadable(folder, err)
	}
	if info, err := os.Stat(root); err != nil || !info.IsDir() {
		return cmp.Or(err, fmt.Errorf("%s is no folder\nnext: ls -l %s", plaintext.OneLine(folder), plaintext.Quote(folder)))
	}
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if f.full = f.full || f.entries == maxEntries; f.full {
			return filepath.SkipAll
		}
		below, _ := filepath.Rel(root, path)
		name := filepath.Join(folder, below)
		f.entries++
		switch {
		case err != nil:
			f.note(err)
		case d.IsDir():
			return f.findInFolder(path, name, below)
		case filepath.Base(filepath.Dir(path)) == report.PastFolder && strings.HasSuffix(path, "Z.json"):
			f.sendReports(path, name, nil)
		}
		return nil
	})
}

// findInFolder sends what is in the folder path, called name: its reports, its artifact, and the
// reports of that in reports/ beside it. It returns SkipDir if below, its path from the walk's
// root, is hidden, in skipped or deeper than maxDepth.
func (f *finder) findInFolder(path, name, below string) error {
	base := filepath.Base(below)
	if below != "." && (slices.Contains(skipped, base) || strings.HasPrefix(base, ".")) || strings.Count(below, "/") >= maxDepth {
		return filepath.SkipDir
	}
	var of *images.Artifact
	if _, err := os.Lstat(images.ArtifactPath(path)); err == nil {
		a, err := images.ReadArtifact(path)
		if err == nil {
			of = &a
		} else {
			f.note(err)
		}
	}
	for _, dir := range []string{path, images.ReportDirBeside(path)} {
		file := filepath.Join(dir, report.ReportJSON)
		if _, err := os.Lstat(file); err == nil && (dir == path || of != nil) {
			of = f.sendReports(file, name, of)
		}
	}
	if of != nil {
		f.send(Found{Name: name, Artifact: of}, nil)
	}
	return nil
}

// sendReports sends the reports of a file. It returns nil if a report belongs to the artifact a, and
// else a, so that the caller sends the artifact alone.
func (f *finder) sendReports(file, name string, a *images.Artifact) *images.Artifact {
	all, err := readReports(file)
	if err != nil {
		f.note(err)
		return a
	}
	rest := a
	for _, one := range all {
		found := Found{Name: name, Report: &one}
		if a != nil && belongs(one, *a) {
			found.Artifact, rest = a, nil
		}
		f.send(found, nil)
	}
	return rest
}

// readReports reads the reports of one file. It refuses large files and reports without a time.
func readReports(file string) ([]report.Report, error) {
	if info, err := os.Stat(file); err == nil && info.Size() > maxReportBytes {
		return nil, fmt.Errorf("%s: larger than %d MiB", file, maxReportBytes>>20)
	}
	all, err := report.ReadReports(file)
	if err == nil && slices.ContainsFunc(all, func(r report.Report) bool { return r.Started.IsZero() }) {
		err = fmt.Errorf("%s: a report without its time", file)
	}
	return all, err
}

// belongs reports whether a report names an artifact's board, and its image or else no image and no
// failed build. After a failed build, the folder has an earlier run's artifact.
func belongs(r report.Report, a images.Artifact) bool {
	if r.Board != a.Board {
		return false
	}
	if r.Identity.ImageKey != "" {
		return r.Identity.ImageKey == a.Key
	}
	return !slices.ContainsFunc(r.Stages, func(s report.Stage) bool { return s.Name == "build" && s.Status == report.Failed })
}

// addArtifact adds a run for an artifact without a report, or a note if it lacks board or time.
func (r *reader) addArtifact(name string, a images.Artifact) {
	if a.Board == "" || a.Built.IsZero() {
		r.note("%s: an artifact without its board or time", filepath.Join(name, images.ArtifactName))
		return
	}
	run := Run{Board: r.text(a.Board), Name: r.text(name), Time: a.Built}
	r.addBuild(&run, a)
	r.add(run)
}

// add adds a run. Of one board, device and time it keeps the first, or the one with a build.
func (r *reader) add(run Run) {
	key := fmt.Sprintf("%q %q %d", run.Board, run.Device, run.Time.UnixNano())
	if i, ok := r.known[key]; ok {
		if r.all[i].built.IsZero() && !run.built.IsZero() {
			r.all[i] = run
		}
		return
	}
	r.known[key] = len(r.all)
	r.all = append(r.all, run)
	r.step.Detail(fmt.Sprintf("%d runs", len(r.all)))
}

// text returns a short, clean text on one line. Equal texts share their memory.
func (r *reader) text(s string) string {
	return unique.Make(plaintext.Clean(plaintext.OneLine(s), maxNameBytes)).Value()
}

func (r *reader) source(s git.FolderCommit) git.FolderCommit {
	return git.FolderCommit{URL: r.text(git.WithoutPassword(s.URL)), Commit: r.text(s.Commit), Edited: s.Edited, Branch: r.text(s.Branch)}
}

// sized are the kinds of artifact files whose size becomes a series.
var sized = []string{images.DiskImage, images.Tegraflash, images.BFB, images.Container, images.Bundle}

// addBuild adds an artifact's key, build time, cache hits, file sizes and, if run lacks it, source.
func (r *reader) addBuild(run *Run, a images.Artifact) {
	run.built, run.Key = a.Built, r.text(a.Key)
	if a.Source != nil && run.Source.Commit == "" {
		run.Source = r.source(*a.Source)
	}
	if c := a.Cost; c != nil && c.BuildMS > 0 {
		run.build = append(run.build, value{metric{"build time", "", "s"}, float64(c.BuildMS) / 1000, 1})
		if n := float64(c.CacheHits) + float64(c.CacheMisses); n > 0 && c.CacheHits >= 0 && c.CacheMisses >= 0 {
			run.build = append(run.build, value{metric{"cache hits", "", "%"}, 100 * float64(c.CacheHits) / n, -1})
		}
	}
	for _, kind := range sized {
		sum := 0.0
		for _, f := range a.Files {
			if f.Kind == kind && f.SizeBytes > 0 {
				sum += float64(f.SizeBytes)
			}
		}
		if sum > 0 {
			run.build = append(run.build, value{metric{kind + " size", "", "MiB"}, sum / (1 << 20), 1})
		}
	}
}

// ofReport makes a run from a report: boot time, metrics, and the results of stages and checks.
func (r *reader) ofReport(name string, one report.Report) Run {
	run := Run{
		Board: r.text(one.Board), Device: r.text(cmp.Or(one.Identity.Serial, one.Target)), Name: r.text(name), Time: one.Started,
		Key: r.text(one.Identity.ImageKey),
	}
	if one.Source != nil {
		run.Source = r.source(*one.Source)
	}
	boot := value{metric{"boot time", r.text(one.Boot.Accel), "s"}, float64(one.Boot.ElapsedMS) / 1000, 1}
	for _, s := range one.Stages {
		if s.Status != report.Skipped {
			run.checks = append(run.checks, outcome{r.text(s.Name), "stage", s.Status == report.Failed})
		}
	}
	if boot.v > 0 {
		run.device = append(run.device, boot)
	}
	for _, s := range one.Suites {
		for _, c := range s.Checks {
			r.addCheck(&run, s.Name, c)
		}
	}
	return run
}

// addCheck adds a check's result, restart time and metrics to a run. If a metric has only one
// limit, that says which way is worse.
func (r *reader) addCheck(run *Run, suite string, c report.CheckResult) {
	if c.Status != report.Skipped {
		run.checks = append(run.checks, outcome{r.text(c.Name), r.text(suite), c.Status == report.Failed})
	}
	if c.Kind == "reboot" && c.Status == report.Passed && c.ElapsedMS > 0 {
		run.device = append(run.device, value{metric{"restart time", r.text(suite), "s"}, float64(c.ElapsedMS) / 1000, 1})
	}
	for _, m := range c.Metrics {
		v := value{metric{r.text(m.Name), r.text(suite + ": " + c.Name), r.text(m.Unit)}, m.Value, 0}
		switch {
		case m.Max != nil && m.Min == nil:
			v.worse = 1
		case m.Min != nil && m.Max == nil:
			v.worse = -1
		}
		run.device = append(run.device, v)
	}
}
