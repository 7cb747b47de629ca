package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// reportVersion is the version of report.json. A program must refuse unknown versions.
const reportVersion = 1

// Limits of a report from elsewhere: far above those that a run writes.
const (
	maxReportBytes  = 256 << 20
	maxReports      = 20000
	maxReportParts  = 500  // stages, suites, logs
	MaxChecks       = 2000 // of one suite
	maxReportMillis = int64(1) << 40
)

// reportsFile is the content of report.json for several boards.
type reportsFile struct {
	Version int      `json:"version"`
	Reports []Report `json:"reports"`
}

// ReadReports reads a report.json as Parse does.
func ReadReports(path string) ([]Report, error) {
	data, err := localfile.Read(path, maxReportBytes)
	if err != nil {
		return nil, localfile.ExplainUnreadable(path, err)
	}
	all, err := Parse(data)
	if err != nil && filepath.Base(path) == "fleet.json" {
		return nil, fmt.Errorf("%s: the boards' reports are in folders beside it\nnext: report %s", path, plaintext.Quote(filepath.Dir(path)))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return all, nil
}

// Parse parses a report.json of one board or of several. The text may come from anywhere, so the
// reports are checked against limits and cleaned.
func Parse(data []byte) ([]Report, error) {
	if len(data) > maxReportBytes {
		return nil, fmt.Errorf("a report of %d bytes; want at most %d", len(data), maxReportBytes)
	}
	var file struct {
		Version int             `json:"version"`
		Reports json.RawMessage `json:"reports"`
	}
	if err := json.Unmarshal(data, &file); err != nil {
		return nil, fmt.Errorf("not a report.json: %w\nnext: find . -maxdepth 6 -name report.json", plaintext.JSONError(err))
	}
	if file.Version == 0 {
		return nil, errors.New("not a report.json: it has no version\nnext: find . -maxdepth 6 -name report.json")
	}
	if file.Version != reportVersion {
		return nil, fmt.Errorf("version %d of report.json; this Slipway reads %d: run it with the one that wrote it", file.Version, reportVersion)
	}
	all := make([]Report, 1)
	into := any(&all[0])
	if file.Reports != nil {
		data, into = file.Reports, &all
	}
	if err := json.Unmarshal(data, into); err != nil {
		return nil, fmt.Errorf("not a report.json: %w\nnext: find . -maxdepth 6 -name report.json", plaintext.JSONError(err))
	}
	if len(all) == 0 || len(all) > maxReports {
		return nil, fmt.Errorf("%d reports in one file; want 1 to %d", len(all), maxReports)
	}
	for i, r := range all {
		if err := r.checkLimits(); err != nil {
			return nil, fmt.Errorf("report %d: %w", i+1, err)
		}
	}
	return tidyAll(all), nil
}

// checkLimits refuses a report with unknown values, or that is larger than any run writes.
func (r Report) checkLimits() error {
	if r.Version != reportVersion || r.Board == "" {
		return fmt.Errorf("version %d of board %q; want version %d and a board's name", r.Version, plaintext.Clean(r.Board, 100), reportVersion)
	}
	if n := max(len(r.Stages), len(r.Suites), len(r.Logs)); n > maxReportParts {
		return fmt.Errorf("%d stages, suites or logs; want at most %d", n, maxReportParts)
	}
	spans := []int64{r.ElapsedMS, r.Boot.ElapsedMS}
	for _, s := range r.Suites {
		if len(s.Checks) > MaxChecks {
			return fmt.Errorf("suite %q has %d checks; want at most %d", plaintext.Clean(s.Name, 100), len(s.Checks), MaxChecks)
		}
		spans = append(spans, s.ElapsedMS)
		for _, c := range s.Checks {
			spans = append(spans, c.StartMS)
		}
	}
	for _, p := range r.listPoints() {
		if signs[p.Status] == "" {
			return fmt.Errorf("%q ended as %q; want passed, failed, skipped or cached", plaintext.Clean(p.Name, 100), plaintext.Clean(string(p.Status), 100))
		}
		if _, known := proofs[p.Proves]; !known {
			return fmt.Errorf("%q proves %q; want hardware, software or parts", plaintext.Clean(p.Name, 100), plaintext.Clean(string(p.Proves), 100))
		}
		spans = append(spans, p.ElapsedMS)
	}
	for _, ms := range spans {
		if ms < 0 || ms > maxReportMillis {
			return fmt.Errorf("a time of %d ms", ms)
		}
	}
	return nil
}

// Convert reads the reports of files or folders. It writes them into dir, if not "", and prints
// them in the form f. Without f it prints the path of the page in dir, or without dir summaries.
func Convert(w io.Writer, files []string, f *Form, dir string) error {
	var all []Report
	for _, file := range files {
		for _, file := range reportFiles(file) {
			reports, err := ReadReports(file)
			if err != nil {
				return err
			}
			all = append(all, reports...)
		}
	}
	if dir != "" {
		if err := WriteAll(dir, all); err != nil {
			return err
		}
	}
	if f != nil {
		return WriteAs(w, f, all...)
	}
	if dir == "" {
		for _, r := range all {
			r.Summary(w)
		}
		return nil
	}
	_, err := fmt.Fprintf(w, "report: %s (and %s, %s)\n", filepath.Join(dir, ReportHTML), ReportJSON, ReportJUnit)
	return err
}

// lastOfFleet returns the pages that dir/fleet.json names, like HOST/report.html: those of its
// last run. Other folders are of older runs. It returns nil without a valid fleet.json.
func lastOfFleet(dir string) []string {
	var run struct {
		Results []struct {
			Report string `json:"report"`
		} `json:"results"`
	}
	data, err := localfile.Read(filepath.Join(dir, "fleet.json"), maxReportBytes)
	if err != nil || json.Unmarshal(data, &run) != nil {
		return nil
	}
	names := []string{}
	for _, r := range run.Results {
		names = append(names, filepath.FromSlash(r.Report))
	}
	return names
}

// reportFiles returns the path of a folder's report.json, or if it has none, those in the folders
// directly below, in a fleet's folder only those of lastOfFleet. Without any it returns the path in
// the folder. A name that is no folder is returned as it is.
func reportFiles(name string) []string {
	if info, err := os.Stat(name); err != nil || !info.IsDir() {
		return []string{name}
	}
	own := filepath.Join(name, ReportJSON)
	if _, err := os.Stat(own); err != nil {
		entries, _ := os.ReadDir(name) // without any, the error names the folder's own report
		last := lastOfFleet(name)
		var below []string
		for _, e := range entries {
			if last != nil && !slices.Contains(last, filepath.Join(e.Name(), ReportHTML)) {
				continue
			}
			file := filepath.Join(name, e.Name(), ReportJSON)
			if _, err := os.Stat(file); err == nil {
				below = append(below, file)
			}
		}
		if len(below) > 0 {
			return below
		}
	}
	return []string{own}
}
