package station

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"slipway/ci/job"
	"slipway/flash/place"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// NamedPlace is a flashing place of this machine.
type NamedPlace struct {
	Board string `yaml:"board"` // its kind
	Place string `yaml:"place"` // the path of its place.yml

	config *place.Config
}

// checkPlaces reads the place.yml of each place. No port is of two, and no record.
func (c *Config) checkPlaces() (err error) {
	records := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(c.Places)) {
		p, key := c.Places[name], "places."+name
		if err := errors.Join(job.CheckName("the place's name", name), job.CheckName("board", p.Board)); err != nil {
			return c.errorAt(key, "%w", err)
		}
		if _, taken := c.Boards[name]; taken || slices.Contains(c.Virtual, name) {
			return c.errorAt(key, "%s is the name of a board here", name)
		}
		p.Place = c.beside(p.Place)
		if p.config, err = place.Load(p.Place); err != nil {
			return c.errorAt(key, "%w", err)
		}
		if image := p.config.Image; image != "" && !filepath.IsAbs(image) && !strings.Contains(image, "://") {
			return c.errorAt(key, "%s: the image %q is neither an address nor an absolute path", p.Place, image)
		}
		if other := records[p.config.Record]; other != "" {
			return c.errorAt(key, "%s and %s have one record: %s", other, name, p.config.Record)
		}
		for port := range p.config.Ports {
			if other := c.users[port]; other != "" {
				return c.errorAt(key, "%s and %s are both at %s", other, name, port)
			}
			c.users[port] = name
		}
		records[p.config.Record], c.Places[name] = name, p
	}
	return nil
}

// board returns what the hub is told of a place.
func (p NamedPlace) board(name, note string) local {
	shows := "what is plugged in at " + strings.Join(slices.Sorted(maps.Values(p.config.Ports)), ", ")
	b := job.Board{V: job.Version, Name: name, Board: p.Board, Does: []job.Do{job.Place}, Shows: plaintext.OneLine(shows), Image: plaintext.OneLine(p.config.Image), Note: note}
	if note != "" {
		b.Does = nil
	}
	return local{b, job.How{Place: p.Place}}
}

// keeper sends what the record of a place has to the hub, and reserves rows of the hub's table.
type keeper struct {
	s    *station
	name string
	*place.Config
	holder string
	marker string                 // file with days
	days   map[string]int64       // the times of the days' folders of which the hub has all
	sent   map[string]os.FileInfo // entries by name

	used  int // rows that cards got since the hub was asked
	short bool
	asked time.Time // zero: not yet by this run
}

// keepPlace keeps a place until ctx ends, also while nothing is flashed there.
func (s *station) keepPlace(ctx context.Context, name string) error {
	k := &keeper{
		s: s, name: name, Config: s.config.Places[name].config, marker: filepath.Join(s.State, "places", name),
		days: map[string]int64{}, sent: map[string]os.FileInfo{},
	}
	data, _ := localfile.Read(k.marker, 1<<20)
	_ = json.Unmarshal(data, &k.days) // none: all is sent again, and the hub has each card once
	for ctx.Err() == nil {
		s.sayError(ctx, "the place "+name, k.keep(ctx))
		pause(ctx, nil, 2*s.tick)
	}
	return nil
}

func (k *keeper) keep(ctx context.Context) (err error) {
	if k.HubTable() != "" && k.holder == "" {
		k.holder, err = k.Holder()
	}
	if err == nil {
		err = k.sendCards(ctx)
	}
	if err == nil && k.HubTable() != "" {
		err = k.reserve(ctx)
	}
	return err
}

// sendCards sends the entries of the record that are new or changed, the oldest first. The hub keeps
// one of each name. So what it got before this station was killed is no second card.
func (k *keeper) sendCards(ctx context.Context) error {
	days, err := filepath.Glob(filepath.Join(localfile.QuoteGlob(k.Record), "[0-9]*-[0-9]*-[0-9]*"))
	days = slices.DeleteFunc(days, func(dir string) bool { return filepath.Ext(dir) != "" })
	for _, dir := range days {
		if err == nil {
			err = k.sendDay(ctx, dir)
		}
	}
	if len(days) > 0 {
		last := filepath.Base(days[len(days)-1])
		if tomorrow := time.Now().Add(24 * time.Hour).UTC().Format(time.DateOnly); last > tomorrow {
			k.s.sayError(ctx, "the place "+k.name, fmt.Errorf("its record has the day %s, so this machine's clock is behind, or was ahead; the hub gets all cards\nnext: timedatectl", last))
		}
	}
	return err
}

// settled is after which time a folder that is as it was has nothing new: its time grows in steps.
const settled = 2 * time.Second

// sendDay sends the entries of a day's folder, whose time changes with each of them. It is no later or
// earlier than another one: the clock of this machine may be wrong.
func (k *keeper) sendDay(ctx context.Context, dir string) error {
	day := filepath.Base(dir)
	info, err := os.Stat(dir)
	if err != nil || k.days[day] == info.ModTime().UnixNano() {
		return err
	}
	files, err := os.ReadDir(dir)
	for _, e := range files {
		if err == nil && filepath.Ext(e.Name()) == ".json" {
			err = k.sendCard(ctx, filepath.Join(day, e.Name()))
		}
	}
	if err != nil || time.Since(info.ModTime()).Abs() < settled {
		return err
	}
	k.days[day] = info.ModTime().UnixNano()
	maps.DeleteFunc(k.sent, func(name string, _ os.FileInfo) bool {
		return filepath.Dir(name) != day && k.days[filepath.Dir(name)] != 0
	})
	return errors.Join(localfile.MkdirAll(filepath.Dir(k.marker)), localfile.WriteJSON(k.marker, k.days, 0o600))
}

// sendCard sends an entry, unless the hub has it as it is.
func (k *keeper) sendCard(ctx context.Context, name string) error {
	file := filepath.Join(k.Record, name)
	info, err := os.Stat(file)
	if old := k.sent[name]; err != nil || old != nil && os.SameFile(info, old) && info.ModTime().Equal(old.ModTime()) {
		return err
	}
	card := job.Card{Place: k.name, Name: name, Table: k.HubTable(), Holder: k.holder}
	if card.Entry, err = localfile.Read(file, 1<<20); err != nil {
		return err
	}
	e, err := card.Check()
	if err != nil {
		k.s.say("%s is not sent: %v", file, err)
		k.sent[name] = info
		return nil
	}
	k.s.reached("card")
	if _, err := ask[struct{}](ctx, k.s, job.VerbCard, card); err != nil {
		return err
	}
	k.s.reached("card sent")
	if k.sent[name] = info; e.Taken && e.Row != "" {
		k.used++
	}
	return nil
}

// reserve asks the hub for rows once less than half of those in advance may be left. It sent the cards
// before, so that the hub knows which rows are used.
func (k *keeper) reserve(ctx context.Context) error {
	switch since := time.Since(k.asked); {
	case k.asked.IsZero(), 2*k.used >= k.Identity.Ahead, k.short && since > 20*k.s.tick:
	default:
		return nil
	}
	wish := job.RowsWish{Instance: k.s.record.instance(), Table: k.HubTable(), Place: k.name, Holder: k.holder, Want: k.Identity.Ahead}
	rows, err := ask[job.Rows](ctx, k.s, job.VerbRows, wish)
	if err == nil {
		k.s.reached("rows")
		k.used, k.short, k.asked = 0, len(rows.Lines) < wish.Want, time.Now()
		err = k.Reserve(rows.Head, rows.Lines)
	}
	k.s.reached("rows kept")
	if note := k.noRows(err); note != "" || err == nil {
		k.s.setNote(k.name, note)
	}
	return err
}

// noRows says why the place has no rows, "" if it has.
func (k *keeper) noRows(err error) string {
	switch {
	case localfile.Exists(k.ReservedFile()):
		return ""
	case err != nil:
		return plaintext.FirstLine(err.Error())
	}
	return "the hub's table " + k.HubTable() + " has no free row"
}

// setNote notes why a place takes no job.
func (s *station) setNote(name, note string) {
	s.boards.mu.Lock()
	defer s.boards.mu.Unlock()
	if s.boards.notes[name] != note {
		s.boards.notes[name], s.boards.all = note, nil
		notify(s.boards.dirty)
	}
}
