package hub

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"slipway/ci/job"
	"slipway/flash/identity"
	"slipway/flash/place"
	"slipway/layers/bus"
	"slipway/layers/plaintext"
)

// Limits of what a station says of a card, and of an answer.
const (
	cardsAtOnce   = 50
	rowsAtOnce    = 5000
	maxTableRows  = 100_000
	maxTableBytes = 1 << 20 // of the rows that are added at once
)

// keepCard keeps what a place's record has of a card, in place of what it had before. The row that the
// card has is used before the station hears that its card is kept.
func (h *Hub) keepCard(ctx context.Context, who string, in job.Card) (nothing, error) {
	e, err := in.Check()
	if err == nil && in.Table != "" && e.Taken && e.Row != "" {
		err = h.useRow(ctx, who, in, e)
	}
	if err != nil {
		return nothing{}, err
	}
	day, file, _ := strings.Cut(in.Name, "/")
	subject := "card." + bus.Key(who, in.Place, day, file)
	last, err := lastOf(ctx, h.cards, subject)
	if err != nil {
		return nothing{}, err
	}
	old, _ := place.ParseEntry(last.Data) // none has not finished
	if bytes.Equal(last.Data, in.Entry) || !old.Finished.IsZero() && e.Finished.IsZero() {
		return nothing{}, nil
	}
	_, err = h.js.Publish(ctx, subject, in.Entry, jetstream.WithExpectLastSequencePerSubject(last.Sequence))
	return nothing{}, err
}

// listCards returns some of the cards of a day and a station, from a number on.
func (h *Hub) listCards(ctx context.Context, _ string, in job.CardsWish) (all job.Cards, err error) {
	of := func(name string) string { return plaintext.Either(name == "", "*", bus.Token(name)) }
	subject := "card." + of(in.Station) + ".*." + of(in.Day) + ".*"
	for all.N = max(in.N, 1); len(all.Cards) < cardsAtOnce; {
		m, err := readFrom(ctx, h.cards, all.N, subject)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			all.N = 0
			return all, nil
		}
		if err != nil {
			return all, err
		}
		key := strings.Split(m.Subject, ".")
		all.Cards = append(all.Cards, job.Card{Station: bus.Name(key[1]), Place: bus.Name(key[2]), Name: bus.Name(key[3]) + "/" + bus.Name(key[4]), Entry: m.Data})
		all.N = m.Sequence + 1
	}
	return all, nil
}

// tableRow is the key of a row, <table>.<row>, or of a table, <table>, which has only the line with the
// columns' names. A row without a station is free, and one with a card is that card's for ever.
type tableRow struct {
	V      job.Form `json:"v"`
	Head   string   `json:"head,omitempty"`
	N      int      `json:"n"` // its place in the table
	Line   string   `json:"line"`
	Holder string   `json:"holder,omitempty"`
	job.TableRow
}

// table returns a table's first line, and its rows in order.
func (h *Hub) table(name string) (head string, rows []record[tableRow], err error) {
	first, _, known := get[tableRow](h.index, "rows", bus.Key(name))
	if !known {
		return "", nil, fmt.Errorf("the hub has no table %q\nnext: slipway hub table list", plaintext.ShortLine(name))
	}
	rows = list[tableRow](h.index, "rows", bus.Key(name)+".")
	slices.SortStableFunc(rows, func(a, b record[tableRow]) int { return a.form.N - b.form.N })
	return first.Head, rows, nil
}

// addTable adds rows to a table, which it makes if there is none. A row that is there stays as it is.
func (h *Hub) addTable(ctx context.Context, who string, in job.TableRows) (nothing, error) {
	if err := job.CheckName("the table", in.Table); err != nil || len(in.CSV) > maxTableBytes {
		return nothing{}, cmp.Or(err, fmt.Errorf("at most %d bytes are added at once", maxTableBytes))
	}
	head, keys, lines, err := identity.Lines(in.Table, []byte(in.CSV))
	if err == nil {
		err = h.audit(ctx, Record{Who: who, Role: job.Admin, Verb: job.VerbTableAdd, What: fmt.Sprintf("%s: %d rows, from %s on", in.Table, len(keys), keys[0])})
	}
	if err != nil {
		return nothing{}, err
	}
	h.taking.Lock()
	defer h.taking.Unlock()
	was, _, err := create(ctx, h, h.rows, bus.Key(in.Table), tableRow{V: job.Version, Head: head})
	if err != nil && !errors.Is(err, bus.ErrConflict) {
		return nothing{}, err
	}
	_, have, err := h.table(in.Table)
	switch {
	case err != nil:
		return nothing{}, err
	case was.Head != head:
		return nothing{}, fmt.Errorf("the table %s has other columns: %s", in.Table, strings.TrimSpace(was.Head))
	case len(have)+len(keys) > maxTableRows:
		return nothing{}, fmt.Errorf("a table has at most %d rows", maxTableRows)
	}
	for i, key := range keys {
		row := tableRow{V: job.Version, N: len(have) + i, Line: lines[i], TableRow: job.TableRow{Row: key}}
		now, _, err := create(ctx, h, h.rows, bus.Key(in.Table, key), row)
		if err != nil && !(errors.Is(err, bus.ErrConflict) && now.Line == row.Line) {
			return nothing{}, fmt.Errorf("the table %s has another row %q: %w", in.Table, key, err)
		}
	}
	return nothing{}, nil
}

// takeRows returns the rows that a place holds and no card has, after it took free ones, each by
// compare-and-set, until there are as many as wanted or no more.
func (h *Hub) takeRows(ctx context.Context, who string, in job.RowsWish) (out job.Rows, err error) {
	if err := errors.Join(h.holdsLease(who, in.Instance), job.CheckName("the place", in.Place), job.CheckName("the record", in.Holder)); err != nil {
		return out, err
	}
	h.taking.Lock()
	defer h.taking.Unlock()
	var rows []record[tableRow]
	if out.Head, rows, err = h.table(in.Table); err != nil {
		return out, err
	}
	for _, r := range rows {
		if r.form.Station == who && r.form.Holder == in.Holder && r.form.Card == "" {
			out.Lines = append(out.Lines, r.form.Line)
		}
	}
	for _, r := range rows {
		row := r.form
		if len(out.Lines) >= min(in.Want, place.MaxAhead) {
			break
		}
		if row.Station != "" {
			continue
		}
		row.Station, row.Place, row.Holder = who, in.Place, in.Holder
		if _, err := h.write(ctx, h.rows, r.key, row, r.revision); err == nil {
			out.Lines = append(out.Lines, row.Line)
		} else if !errors.Is(err, bus.ErrConflict) { // else another hub gave it away
			return out, err
		}
	}
	return out, nil
}

// useRow notes which card has a row. If the row was not the place's to give, the audit says so: two
// cards may have it.
func (h *Hub) useRow(ctx context.Context, who string, in job.Card, e place.Entry) error {
	notHis := fmt.Errorf("the row %q of the table %s is not this place's: another card may have it", e.Row, in.Table)
	use := func(row *tableRow, _ bool) error {
		switch {
		case row.Station == who && row.Card == e.Stamp:
			return errSame
		case row.Station != who || row.Holder != in.Holder || row.Card != "":
			return notHis
		}
		row.Card, row.Used = e.Stamp, e.Began
		return nil
	}
	key := bus.Key(in.Table, e.Row)
	_, _, err := edit(ctx, h, h.rows, key, use)
	if errors.Is(err, notHis) { // or another hub gave it to this place just now
		if err := h.index.reread(ctx, h.rows, key); err != nil && !errors.Is(err, jetstream.ErrKeyNotFound) {
			return err
		}
		_, _, err = edit(ctx, h, h.rows, key, use)
	}
	if errors.Is(err, notHis) {
		return h.audit(ctx, Record{Who: who, Role: job.AStation, Verb: job.VerbCard, What: in.Place + ", " + in.Name, Refused: notHis.Error()})
	}
	return err
}

func (h *Hub) listTables(_ context.Context, _ string, _ nothing) (all job.Tables, _ error) {
	keys, _ := h.index.list("rows", "")
	for _, e := range keys {
		if strings.Contains(e.key, ".") {
			continue
		}
		t := job.TableCount{Table: bus.Name(e.key)}
		_, rows, err := h.table(t.Table)
		if err != nil {
			return all, err
		}
		for _, row := range rows {
			t.Rows++
			switch {
			case row.form.Card != "":
				t.Used++
			case row.form.Station != "":
				t.Reserved++
			}
		}
		all.Tables = append(all.Tables, t)
	}
	return all, nil
}

func (h *Hub) showTable(_ context.Context, _ string, in job.TableWish) (out job.Table, _ error) {
	_, rows, err := h.table(in.Table)
	rows = rows[max(0, min(in.From, len(rows))):]
	for _, row := range rows[:min(len(rows), rowsAtOnce)] {
		out.Rows = append(out.Rows, row.form.TableRow)
	}
	out.More = len(rows) > rowsAtOnce
	return out, err
}

// freeRows gives back the rows that a removed station held and no card has.
func (h *Hub) freeRows(ctx context.Context, _ string, in job.TableWish) (out job.Table, err error) {
	if p, known := h.person(in.Station); known && p.Key != "" {
		return out, fmt.Errorf("%s may still write cards with its rows: only those of a removed station are given back\nnext: slipway hub remove %s", in.Station, in.Station)
	}
	h.taking.Lock()
	defer h.taking.Unlock()
	_, rows, err := h.table(in.Table)
	used := 0
	for _, r := range rows {
		row := r.form
		switch {
		case in.Station == "" || row.Station != in.Station:
			continue
		case row.Card != "":
			used++
			continue
		}
		row.Station, row.Place, row.Holder = "", "", ""
		if _, err := h.write(ctx, h.rows, r.key, row, r.revision); err != nil {
			return out, err
		}
		out.Rows = append(out.Rows, row.TableRow)
	}
	if err == nil && len(out.Rows) == 0 {
		err = fmt.Errorf("%s holds no row of %s that no card has; cards have %d of its rows for ever", in.Station, in.Table, used)
	}
	return out, err
}

// refusePlaceTwice returns an error for a job of a place that has one.
func (h *Hub) refusePlaceTwice(j job.Job) error {
	all := list[job.Job](h.index, "jobs", bus.Key(j.Station, j.Name)+".")
	for _, r := range all {
		if r.form.State != job.Ended && r.form.ID != j.ID && j.Steps[0].Do == job.Place {
			return fmt.Errorf("the place %s of %s runs already, by %s\nnext: slipway job stop %s", j.Name, j.Station, r.form.By, r.form.ID)
		}
	}
	return nil
}
