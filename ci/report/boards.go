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

// BoardsPage is the page of several boards: the verdict, what failed by its cause, and a
// table of boards and checks.
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

// Count is how many boards ended in one way.
type Count struct {
	Boards int
	Words  string
}

// BoardFailure is what failed on one board.
type BoardFailure struct {
	Board, Link string
	Failure
}

// Cause is what failed in the same way on some boards. It has the words of the first one.
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
}

// Column is a stage or a check.
type Column struct {
	Name   string
	Title  string // its name and suite, which no other column has
	Failed int    // on how many boards
}

// Cell is a check of a board.
type Cell struct {
	Status Status // "" if the board was not contacted
	Text   string
}

// Sign returns the text of the cell.
func (c Cell) Sign() string { return cmp.Or(signs[c.Status], c.Text) }

// Limits of a page that a browser still shows.
const (
	maxColumns   = 60
	maxCauses    = 200
	maxEachWords = 100 // boards of a cause that are shown with their own words
	maxCellBytes = 200
)

// Each returns the boards that are shown with their own words.
func (c Cause) Each() []BoardFailure { return c.Boards[:min(len(c.Boards), maxEachWords)] }

// Unsaid returns how many boards are shown without their own words. With so many boards,
// the page folds their names.
func (c Cause) Unsaid() int { return len(c.Boards) - len(c.Each()) }

// Shown returns the causes that are shown.
func (p BoardsPage) Shown() []Cause { return p.Causes[:min(len(p.Causes), maxCauses)] }

// LeftOut returns how many causes are not shown.
func (p BoardsPage) LeftOut() int { return len(p.Causes) - len(p.Shown()) }

// ShownColumns returns the columns that are shown.
func (p BoardsPage) ShownColumns() []Column { return p.Columns[:min(len(p.Columns), maxColumns)] }

// FirstFolded returns the place in a row of the first column that failed on no board, or 1.
// The page hides such columns at first.
func (p BoardsPage) FirstFolded() int {
	return 2 + slices.IndexFunc(p.ShownColumns(), func(c Column) bool { return c.Failed == 0 })
}

// Headline returns "37 passed, 2 failed, 1 not reached".
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

// BoardsTitle returns the boards that a page's verdict is of: "2 of 3 boards" did not pass.
func BoardsTitle(passed, all int) string {
	if passed == 0 || passed == all {
		return Boards(all)
	}
	return fmt.Sprintf("%d of %s", all-passed, Boards(all))
}

// VerdictWords returns what the boards of the title did.
func (p BoardsPage) VerdictWords() string {
	return plaintext.Either(p.Verdict == Passed, "passed", "did not pass")
}

// Render returns the page. Boards that failed come first.
func (p BoardsPage) Render() ([]byte, error) {
	sortRows(p.Rows)
	var b bytes.Buffer
	err := pages().ExecuteTemplate(&b, "report_boards.html.tmpl", p)
	return b.Bytes(), err
}

func sortRows(all []BoardRow) {
	slices.SortStableFunc(all, func(a, b BoardRow) int { return cmp.Compare(a.Status.rank(), b.Status.rank()) })
}

// rank orders the boards of a table.
func (s Status) rank() int { return slices.Index([]Status{Failed, Skipped, Passed}, s) }

// RelativeLink returns the link to a file below the folder of a page. It returns "" for a
// file elsewhere.
func RelativeLink(file string) string {
	if !filepath.IsLocal(file) {
		return ""
	}
	return (&url.URL{Path: filepath.ToSlash(file)}).String()
}

// causeWords are the words of a failure. The status of a program is one word.
var causeWords = plaintext.Regexp(`status:? \d+\b|[^\s"(),;]+`)

// causeOf returns the words of a failure without those that differ from board to board:
// its name, and all that has a digit, except for the status of a program.
func (f BoardFailure) causeOf() string {
	board, _, _ := strings.Cut(f.Board, timeMark)
	return causeWords().ReplaceAllStringFunc(f.Saw, func(word string) string {
		own := strings.ContainsAny(word, "0123456789") || slices.Contains(strings.FieldsFunc(word, isMark), board)
		return plaintext.Either(own && !strings.HasPrefix(word, "status"), "#", word)
	})
}

func isMark(r rune) bool { return strings.ContainsRune("@:/'[]<>=", r) }

// GroupCauses groups failures by their causes. Those of most boards come first.
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

// CheckTable has a column for each stage and check, and a row of cells for each report.
// Columns that failed on most boards come first. A row has those that are shown.
func CheckTable(all []Report) (columns []Column, cells [][]Cell) {
	at, names := map[string]int{}, map[string]int{}
	for _, r := range all {
		for _, p := range r.listPoints() {
			i, known := at[p.key()]
			if !known {
				i, at[p.key()] = len(columns), len(columns)
				names[p.name]++
				columns = append(columns, Column{Name: p.name, Title: p.key()})
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
		row := make([]Cell, min(len(columns), maxColumns))
		for _, p := range r.listPoints() {
			if i := at[p.key()]; i < len(row) {
				row[i] = Cell{p.Status, plaintext.Clean(plaintext.FirstLine(p.Saw), maxCellBytes)}
			}
		}
		cells = append(cells, row)
	}
	return columns, cells
}

// key tells a stage or check from all others of a report.
func (p point) key() string { return p.suite + ": " + p.name }
