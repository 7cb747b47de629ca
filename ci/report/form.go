package report

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"slipway/layers/plaintext"
)

// A Form is a way in which reports are shown to programs or people. Each shows one
// report, or those of several boards as one.
type Form struct {
	name   string
	file   string // below a board's folder; "" for those that are only printed
	render func(all []Report) ([]byte, error)
}

var forms = []Form{
	{"json", ReportJSON, jsonOf},
	{"junit", ReportJUnit, junitOf},
	{"html", ReportHTML, htmlOf},
	{"tap", "", tapOf},
	{"lava", "", lavaOf},
}

// FormOf is the form that a person names, or JSON where that was asked for in the
// other way. Nothing named is no form: what is shown then is for a person.
func FormOf(name string, json bool) (*Form, error) {
	if json && name == "" {
		name = "json"
	}
	if name == "" {
		return nil, nil
	}
	i := slices.IndexFunc(forms, func(f Form) bool { return f.name == name })
	if i < 0 {
		return nil, fmt.Errorf("-as=%s: no such form of a report (have %s)", name, formNames())
	}
	return &forms[i], nil
}

// withPage is all forms, with a page that knows more than the reports.
func withPage(render func([]Report) ([]byte, error)) []Form {
	all := slices.Clone(forms)
	for i := range all {
		if all[i].file == ReportHTML {
			all[i].render = render
		}
	}
	return all
}

func formNames() string {
	var names []string
	for _, f := range forms {
		names = append(names, f.name)
	}
	return strings.Join(names, ", ")
}

// WriteAs writes reports in a form.
func WriteAs(w io.Writer, f *Form, all ...Report) error {
	data, err := f.render(tidied(all))
	if err != nil {
		return fmt.Errorf("render the report as %s: %w", f.name, err)
	}
	_, err = w.Write(data)
	return err
}

func tidied(all []Report) []Report {
	clean := make([]Report, len(all))
	for i, r := range all {
		clean[i] = r.Tidy()
	}
	return clean
}

// point is a stage or a check, for forms that have one list of them.
type point struct {
	suite, name string
	CheckResult
}

// points are all stages and checks of a report.
func (r Report) points() []point {
	var all []point
	for _, s := range r.Stages {
		all = append(all, point{"stages", s.Name, CheckResult{Kind: "stage", Status: s.Status, ElapsedMS: s.ElapsedMS, Saw: s.Saw, Next: s.Next}})
	}
	for _, s := range r.Suites {
		for _, c := range s.Checks {
			all = append(all, point{s.Name, c.Name, c})
		}
	}
	return all
}

// label tells a report from those of other boards of its kind.
func (r Report) label() string { return cmp.Or(r.Target, r.Board) }

// oneLine is for forms in which a line has a meaning.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// about are lines on the board, for forms with a place for remarks.
func (r Report) about() []string {
	lines := []string{"board: " + oneLine(r.Board)}
	if r.Target != "" {
		lines = append(lines, "reached as: "+oneLine(r.Target))
	}
	for _, f := range r.Identity.Facts() {
		lines = append(lines, strings.ToLower(f.Name)+": "+oneLine(f.Value))
	}
	return lines
}

// jsonOf is the report, or an object with several.
func jsonOf(all []Report) ([]byte, error) {
	if len(all) == 1 {
		return all[0].json()
	}
	var b bytes.Buffer
	err := plaintext.WriteJSON(&b, reportsFile{Version: reportVersion, Reports: all})
	return b.Bytes(), err
}

// ids gives the names of one list an id each.
type ids map[string]bool

func (n ids) of(name string) string {
	id := plain(name)
	for i := 2; n[id]; i++ {
		id = fmt.Sprintf("%s-%d", plain(name), i)
	}
	n[id] = true
	return id
}

// plain has the characters that LAVA takes in a name, and a file system too: no
// blanks, nothing that ends a signal or leads to another folder.
func plain(name string) string {
	words := strings.FieldsFunc(name, func(c rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._", c)
	})
	return cmp.Or(strings.TrimLeft(strings.Join(words, "-"), ".-"), "unnamed")
}
