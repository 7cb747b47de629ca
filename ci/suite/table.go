package suite

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	goyaml "go.yaml.in/yaml/v4"

	"slipway/ci/report"
	"slipway/layers/yaml"
)

// table turns a program's output into a table: words KEY=VALUE of matching lines become columns.
type table struct {
	lines  *regexp.Regexp
	labels []string // columns that name a row
}

// readTable parses the attribute table of a check. Without one it returns nil.
func (e *Entry) readTable() *table {
	n := e.Fields["table"]
	if n == nil {
		return nil
	}
	if n.Kind != goyaml.MappingNode {
		e.Fail(n, "table must be a mapping with lines and labels, not %s", yaml.KindOf(n))
		return nil
	}
	one, err := yaml.NewEntry(e.File, "table", []string{"lines", "labels"}, e.Key, n)
	if err != nil {
		e.Err = cmp.Or(e.Err, err)
		return nil
	}
	inner := &Entry{Entry: one}
	t := &table{labels: inner.List("labels")}
	if text := inner.Scalar("lines", "a regular expression"); text == nil {
		inner.Fail(n, "table needs lines: a regular expression that finds its rows")
	} else if t.lines, err = regexp.Compile(text.Value); err != nil {
		inner.Fail(text, "lines: %v", err)
	}
	e.Err = cmp.Or(e.Err, one.Err)
	return t
}

// read makes the table of an output: a row of each line that t.lines matches, at most
// report.MaxTableRows, from its words KEY=VALUE. The first row sets the columns, labels first.
// Other keys of later rows are dropped.
func (t *table) read(output string) *report.Table {
	all := report.Table{}
	for line := range strings.Lines(output) {
		if !t.lines.MatchString(strings.TrimSpace(line)) || len(all.Rows) == report.MaxTableRows {
			continue
		}
		cells := map[string]string{}
		var keys []string
		for word := range strings.FieldsSeq(line) {
			if key, value, ok := strings.Cut(word, "="); ok && key != "" && cells[key] == "" {
				cells[key] = value
				keys = append(keys, key)
			}
		}
		if len(keys) == 0 {
			continue
		}
		if all.Columns == nil {
			var values []string
			for _, key := range keys {
				if slices.Contains(t.labels, key) {
					all.Columns = append(all.Columns, key)
				} else {
					values = append(values, key)
				}
			}
			all.Labels = len(all.Columns)
			all.Columns = append(all.Columns, values...)
		}
		row := make([]string, len(all.Columns))
		for i, column := range all.Columns {
			row[i] = cells[column]
		}
		all.Rows = append(all.Rows, row)
	}
	return &all
}

// addTo reads the lines of an output that match t into the finding's table. A check that would pass
// fails if no line matches. A nil t does nothing.
func (t *table) addTo(f *Finding, output string) {
	if t == nil {
		return
	}
	f.table = t.read(output)
	if f.OK() && len(f.table.Rows) == 0 {
		f.Expect(false, "a line that matches /"+t.lines.String()+"/", "no row of the table")
	}
}
