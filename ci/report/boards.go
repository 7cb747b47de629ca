package report

import (
	"bytes"
	"cmp"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"slipway/layers/plaintext"
)

// BoardsPage is the HTML page of several boards: verdict, failures by cause, and a table of checks.
type BoardsPage struct {
	Title   string
	Verdict Status
	About   string // the run
	Counts  []Count
	Causes  []Cause
	Columns []Column
	Rows    []BoardRow
	Files   []string // with the same content, beside the page
}

// Count is the number of boards with the same outcome.
type Count struct {
	Boards int
	Words  string
}

// BoardFailure is one failure on one board.
type BoardFailure struct {
	Board, Link string
	Failure
}

// Cause groups failures that look alike on several boards. Failure is that of the first board.
type Cause struct {
	Failure
	Status Status
	Boards []BoardFailure
	Same   bool // all boards have these words
}

// BoardRow is a board's row of the table.
type BoardRow struct {
	Board, Link, Result, Note, Took string
	Status                          Status
	Cells                           []Cell
	Facts                           map[string]string // those of factColumns, by name
}

// factColumns are the facts of Identity.Facts that have a column, after those of the checks.
var factColumns = []string{"Image", "Slot"}

// Column is a stage or a check in the table.
type Column struct {
	Name   string
	Title  string // its name and suite, which no other column has
	Failed int    // on how many boards
}

// Cell is the result of a stage or a check on one board.
type Cell struct {
	Status Status // "" if the board was not contacted
	Text   string
}

// Sign returns the sign of the cell's status, or its text if the status has no sign.
func (c Cell) Sign() string { return cmp.Or(signs[c.Status], c.Text) }

// Limits of a page that a browser still shows.
const (
	maxColumns   = 60
	maxCauses    = 200
	maxEachWords = 100 // boards of a cause that are shown with their own words
	maxCellBytes = 200
)

// Each returns the first boards of the cause, for which the page shows their own words.
func (c Cause) Each() []BoardFailure { return c.Boards[:min(len(c.Boards), maxEachWords)] }

// ByNameOnly returns how many boards of the cause the page shows by name only.
func (c Cause) ByNameOnly() int { return len(c.Boards) - len(c.Each()) }

// Shown returns the causes that the page shows.
func (p BoardsPage) Shown() []Cause { return p.Causes[:min(len(p.Causes), maxCauses)] }

// LeftOut returns how many causes the page does not show.
func (p BoardsPage) LeftOut() int { return len(p.Causes) - len(p.Shown()) }

// ShownColumns returns the columns that the page shows.
func (p BoardsPage) ShownColumns() []Column { return p.Columns[:min(len(p.Columns), maxColumns)] }

// FirstFolded returns the position, from 2 on, of the first column without a failure, or 1 if there
// is none. The page hides columns from there on at first.
func (p BoardsPage) FirstFolded() int {
	return 2 + slices.IndexFunc(p.ShownColumns(), func(c Column) bool { return c.Failed == 0 })
}

// FactColumns returns the factColumns that have a value for any board.
func (p BoardsPage) FactColumns() []string {
	return slices.DeleteFunc(slices.Clone(factColumns), func(name string) bool {
		return !slices.ContainsFunc(p.Rows, func(r BoardRow) bool { return r.Facts[name] != "" })
	})
}

// Headline returns the counts as a line, like "37 passed, 2 failed, 1 not reached".
func (p BoardsPage) Headline() string {
	var words []string
	for _, c := range p.Counts {
		if c.Boards > 0 {
			words = append(words, fmt.Sprintf("%d %s", c.Boards, c.Words))
		}
	}
	return strings.Join(words, ", ")
}

// Boards returns a number of boards in words.
func Boards(n int) string {
	return fmt.Sprintf("%d %s", n, plaintext.Either(n == 1, "board", "boards"))
}

// BoardsTitle returns "3 boards" if all or none passed, or "2 of 3 boards" if 2 did not.
func BoardsTitle(passed, all int) string {
	if passed == 0 || passed == all {
		return Boards(all)
	}
	return fmt.Sprintf("%d of %s", all-passed, Boards(all))
}

// VerdictWords returns the verb of the page's verdict: "passed" or "did not pass".
func (p BoardsPage) VerdictWords() string {
	return plaintext.Either(p.Verdict == Passed, "passed", "did not pass")
}

// Render sorts the rows, with failed boards first, and returns the page as HTML.
func (p BoardsPage) Render() ([]byte, error) {
	slices.SortStableFunc(p.Rows, func(a, b BoardRow) int { return cmp.Compare(a.Status.rank(), b.Status.rank()) })
	var b bytes.Buffer
	err := pages().ExecuteTemplate(&b, "report_boards.html.tmpl", p)
	return b.Bytes(), err
}

// rank returns the position of a status in a table: failed, skipped, passed.
func (s Status) rank() int { return slices.Index([]Status{Failed, Skipped, Passed}, s) }

// RelativeLink returns a URL for a file below the page's folder, or "" for a file elsewhere.
func RelativeLink(file string) string {
	if !filepath.IsLocal(file) {
		return ""
	}
	return (&url.URL{Path: filepath.ToSlash(file)}).String()
}

// causeWords matches the words of a failure's text. "status 3" is one word.
var causeWords = plaintext.Regexp(`status:? \d+\b|[^\s"(),;]+`)

// causeOf returns the failure's text with # for each word that differs from board to board: the
// board's name, and words with a digit, except for an exit status.
func (f BoardFailure) causeOf() string {
	board, _, _ := strings.Cut(f.Board, timeMark)
	isMark := func(r rune) bool { return strings.ContainsRune("@:/'[]<>=", r) }
	return causeWords().ReplaceAllStringFunc(f.Saw, func(word string) string {
		own := strings.ContainsAny(word, "0123456789") || slices.Contains(strings.FieldsFunc(word, isMark), board)
		return plaintext.Either(own && !strings.HasPrefix(word, "status"), "#", word)
	})
}

// GroupCauses groups failures by check and causeOf. Causes with the most boards come first.
func GroupCauses(all []BoardFailure) []Cause {
	at := map[string]int{}
	var found []Cause
	for _, f := range all {
		key := f.Where + "\n" + f.Name + "\n" + f.causeOf()
		i, known := at[key]
		if !known {
			i = len(found)
			at[key] = i
			found = append(found, Cause{Failure: f.Failure, Status: Failed, Same: true})
		}
		c := &found[i]
		c.Boards, c.Same = append(c.Boards, f), c.Same && f.Failure == c.Failure
	}
	slices.SortStableFunc(found, func(a, b Cause) int { return cmp.Compare(len(b.Boards), len(a.Boards)) })
	return found
}

// CheckTable returns a column for each stage and check, those with the most failures first, and for
// each report a row with its factColumns and the cells of the first maxColumns columns. If checks
// of two suites have the same name, their columns have the suite's name too.
func CheckTable(all []Report) (columns []Column, rows []BoardRow) {
	at, names := map[string]int{}, map[string]int{}
	for _, r := range all {
		for _, p := range r.listPoints() {
			i, known := at[p.key()]
			if !known {
				i, at[p.key()] = len(columns), len(columns)
				names[p.Name]++
				columns = append(columns, Column{Name: p.Name, Title: p.key()})
			}
			if p.Status == Failed {
				columns[i].Failed++
			}
		}
	}
	slices.SortStableFunc(columns, func(a, b Column) int { return cmp.Compare(b.Failed, a.Failed) })
	for i, c := range columns {
		at[c.Title] = i
		columns[i].Name = plaintext.Either(names[c.Name] > 1, c.Title, c.Name)
	}
	for _, r := range all {
		row := BoardRow{Cells: make([]Cell, min(len(columns), maxColumns)), Facts: map[string]string{}}
		for _, f := range r.Identity.Facts() {
			if slices.Contains(factColumns, f.Name) {
				row.Facts[f.Name] = plaintext.Clean(plaintext.FirstLine(f.Value), maxCellBytes)
			}
		}
		for _, p := range r.listPoints() {
			if i := at[p.key()]; i < len(row.Cells) {
				row.Cells[i] = Cell{p.Status, plaintext.Clean(plaintext.FirstLine(p.Saw), maxCellBytes)}
			}
		}
		rows = append(rows, row)
	}
	return columns, rows
}

// key identifies a stage or check within a report.
func (p point) key() string { return p.suite + ": " + p.Name }
