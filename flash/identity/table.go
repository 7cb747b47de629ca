package identity

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"slipway/layers/plaintext"
)

// Limits of a table.
const (
	maxTableBytes = 16 << 20
	maxRows       = 100_000
	maxColumns    = 64
	maxCellBytes  = 64 << 10
)

var columnName = plaintext.Regexp(`^[a-z][a-z0-9_]*$`)

// Table is a CSV file whose first line names the columns. Each other line is the row of one board.
type Table struct {
	file    string
	columns []string
	key     int
	rows    []Row
}

// Row is the line of one board. Without a table it has no cells.
type Row struct {
	Key   string // its cell in the key column: a name, and no secret
	Line  int
	cells []string
}

func readTable(path, key string) (*Table, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, err
	}
	return parseTable(path, data, key)
}

// parseTable parses a table. key is the column whose cells name the rows; "" is the first one.
// Errors have the file's name, and no cell but the key's.
func parseTable(file string, data []byte, key string) (*Table, error) {
	t := &Table{file: file}
	r := csv.NewReader(bytes.NewReader(bytes.TrimPrefix(data, []byte("\ufeff"))))
	for {
		cells, err := r.Read()
		if wrong, ok := errors.AsType[*csv.ParseError](err); ok {
			return nil, t.errorAt(wrong.Line, wrong.Err)
		} else if err == io.EOF {
			break
		}
		line, _ := r.FieldPos(0)
		if t.columns == nil {
			err = t.setColumns(cells, key)
		} else {
			err = t.addRow(Row{cells[t.key], line, cells})
		}
		if err != nil {
			return nil, t.errorAt(line, err)
		}
	}
	if len(t.rows) == 0 {
		return nil, t.errorAt(1, errors.New("want a line with the columns' names, and a line for each board"))
	}
	return t, t.checkColumn(t.columns[t.key])
}

// Lines returns the first line of a table, and the line of each row with its key, the first cell.
func Lines(file string, data []byte) (head string, keys, lines []string, err error) {
	t, err := parseTable(file, data, "")
	if err != nil {
		return "", nil, nil, err
	}
	for _, row := range t.rows {
		keys, lines = append(keys, row.Key), append(lines, csvLine(row.cells))
	}
	return csvLine(t.columns), keys, lines, nil
}

func csvLine(cells []string) string {
	var b strings.Builder
	w := csv.NewWriter(&b)
	_ = w.Write(cells) // memory takes all
	w.Flush()
	return b.String()
}

// setColumns checks the names of the columns, and finds the one called key.
func (t *Table) setColumns(names []string, key string) error {
	t.columns, t.key = names, max(0, slices.Index(names, key))
	for i, name := range names {
		if !columnName().MatchString(name) || slices.Contains(names[:i], name) || i == maxColumns {
			return fmt.Errorf("column %d, %s: want at most %d different names of a-z, 0-9 and _, which begin with a letter", i+1, quote(name), maxColumns)
		}
	}
	if key != "" && names[t.key] != key {
		return fmt.Errorf("no column is called %s%s", quote(key), plaintext.DidYouMean(key, names))
	}
	return nil
}

// addRow adds a row, and checks its cells.
func (t *Table) addRow(row Row) error {
	for i, cell := range row.cells {
		if len(cell) > maxCellBytes || plaintext.HasControls(cell) {
			return fmt.Errorf("%s: want at most %d bytes of one visible line in UTF-8", t.columns[i], maxCellBytes)
		}
	}
	if t.rows = append(t.rows, row); len(t.rows) > maxRows || row.Key == "" || len(row.Key) > 255 {
		return fmt.Errorf("want at most %d rows, and 1 to 255 bytes in %s, which names the row", maxRows, t.columns[t.key])
	}
	return nil
}

// checkColumn returns an error unless there is a column with this name, and all its cells differ,
// but for empty ones.
func (t *Table) checkColumn(name string) error {
	at, lines := slices.Index(t.columns, name), map[string]int{}
	if at < 0 {
		return fmt.Errorf("the table has no column %s", name)
	}
	for _, row := range t.rows {
		cell := row.cells[at]
		if before := lines[cell]; before > 0 && cell != "" {
			return t.errorAt(row.Line, fmt.Errorf("%s %s is that of line %d too", name, quote(cell), before))
		}
		lines[cell] = row.Line
	}
	return nil
}

// errorAt returns an error at a line of the table.
func (t *Table) errorAt(line int, err error) error {
	return fmt.Errorf("%s:%d: %w", t.file, line, err)
}

// find returns the row with this cell in a column, or with this key if column is "".
func (t *Table) find(column, cell string) (Row, bool) {
	at := slices.Index(t.columns, column)
	for _, row := range t.rows {
		if cell != "" && (at < 0 && row.Key == cell || at >= 0 && row.cells[at] == cell) {
			return row, true
		}
	}
	return Row{}, false
}

// quote quotes the beginning of a text from outside.
func quote(text string) string { return fmt.Sprintf("%q", plaintext.ShortLine(text)) }
