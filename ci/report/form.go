package report

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"slipway/layers/plaintext"
)

// Form is an output format for one report, or for the reports of several boards together.
type Form struct {
	name   string
	file   string // below a board's folder; "" for those that are only printed
	render func(all []Report) ([]byte, error)
}

var forms = []Form{
	{"json", ReportJSON, renderJSON},
	{"junit", ReportJUnit, renderJUnit},
	{"html", ReportHTML, HTML},
	{"tap", "", renderTAP},
}

// FormOf returns the form of a name, or if that is "" and json is set, JSON. Else it returns nil,
// which means text for a person. An unknown name is an error.
func FormOf(name string, json bool) (*Form, error) {
	if json && name == "" {
		name = "json"
	}
	if name == "" {
		return nil, nil
	}
	i := slices.IndexFunc(forms, func(f Form) bool { return f.name == name })
	if i < 0 {
		return nil, fmt.Errorf("no such form (have %s)", strings.Join(FormNames(), ", "))
	}
	return &forms[i], nil
}

// FormNames returns the names of the forms.
func FormNames() (names []string) {
	for _, f := range forms {
		names = append(names, f.name)
	}
	return names
}

// WriteAs writes reports in one form to w, each as Tidy returns it.
func WriteAs(w io.Writer, f *Form, all ...Report) error {
	data, err := f.render(tidyAll(all))
	if err != nil {
		return fmt.Errorf("render the report as %s: %w", f.name, err)
	}
	_, err = w.Write(data)
	return err
}

func tidyAll(all []Report) []Report {
	clean := make([]Report, len(all))
	for i, r := range all {
		clean[i] = r.Tidy()
	}
	return clean
}

// point is a stage or a check of a report, for forms that list both together.
type point struct {
	suite string
	CheckResult
}

const (
	// stagesName is the suite name of the stages beside those of suites.
	stagesName = "stages"
	stageKind  = "stage"
)

// sections returns the stages as one suite, in which they run one after the other, then the suites.
func (r Report) sections() []SuiteResult {
	if len(r.Stages) == 0 {
		return r.Suites
	}
	stages := SuiteResult{Name: stagesName}
	for _, s := range r.Stages {
		stages.Checks = append(stages.Checks, CheckResult{
			Name: s.Name, Kind: stageKind, Status: s.Status, StartMS: stages.ElapsedMS, ElapsedMS: s.ElapsedMS, Saw: s.Saw, Next: s.Next,
		})
		stages.ElapsedMS += s.ElapsedMS
	}
	return append([]SuiteResult{stages}, r.Suites...)
}

func (p point) isStage() bool { return p.suite == stagesName && p.Kind == stageKind }

// failure returns the point as a failure.
func (p point) failure() Failure {
	where := plaintext.Either(p.isStage(), stageKind, p.suite+" · "+p.Kind)
	return Failure{where, p.Name, p.Saw, p.Want, p.Next}
}

// listPoints returns all stages and checks of a report.
func (r Report) listPoints() []point {
	var all []point
	for _, s := range r.sections() {
		for _, c := range s.Checks {
			all = append(all, point{s.Name, c})
		}
	}
	return all
}

// boardName returns the name that distinguishes the report's board from others: its target or name.
func (r Report) boardName() string { return cmp.Or(r.Target, r.Board) }

// boardLabels labels each report by the board's name, and its time if several have that name.
func boardLabels(all []Report) []string {
	reports := map[string]int{}
	for _, r := range all {
		reports[r.boardName()]++
	}
	labels := make([]string, len(all))
	for i, r := range all {
		labels[i] = r.boardName()
		if reports[r.boardName()] > 1 {
			labels[i] += timeMark + formatTime(r.Started)
		}
	}
	return labels
}

// timeMark separates the board and the time in a label.
const timeMark = ", "

func formatTime(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 MST") }

// oneLine replaces all line ends and blanks of a text by single blanks.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// about returns the board, how it was reached, and its identity, with names in lower case.
func (r Report) about() []fact {
	all := []fact{{"board", r.Board}}
	if r.Target != "" {
		all = append(all, fact{"reached as", r.Target})
	}
	for _, f := range r.Identity.Facts() {
		all = append(all, fact{strings.ToLower(f.Name), f.Value})
	}
	return all
}

// renderJSON returns one report, or an object with several, as JSON.
func renderJSON(all []Report) ([]byte, error) {
	var v any = reportsFile{Version: reportVersion, Reports: all}
	if len(all) == 1 {
		v = all[0]
	}
	var b bytes.Buffer
	err := plaintext.WriteJSON(&b, v)
	return b.Bytes(), err
}

// usedIDs are the IDs that newID has returned.
type usedIDs map[string]bool

// newID returns a safe ID for a name, with a number if the ID is in use already.
func (n usedIDs) newID(name string) string {
	id := safeName(name)
	for i := 2; n[id]; i++ {
		id = fmt.Sprintf("%s-%d", safeName(name), i)
	}
	n[id] = true
	return id
}

// safeName returns a name of only letters, digits, dots and underscores, with a dash for all
// between them. It removes dots and dashes from the beginning. The result is never empty.
func safeName(name string) string {
	words := strings.FieldsFunc(name, func(c rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._", c)
	})
	return cmp.Or(strings.TrimLeft(strings.Join(words, "-"), ".-"), "unnamed")
}
