package place

import (
	"cmp"
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/renameio/v2"

	"slipway/flash/identity"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// A hub may keep one table of identities for several places. It reserves rows for a place's record,
// which has them in a file. So a place without a hub goes on with them, and a record that is lost
// takes its rows along: no later one can give them to other cards.

// tableName is a name of a hub's table.
var tableName = plaintext.Regexp(`^[A-Za-z0-9][A-Za-z0-9._:-]{0,62}$`)

// How many rows of a hub's table a station reserves for a place, if place.yml does not say, and at most.
const defaultAhead, MaxAhead = 50, 1000

// HubTable returns the table of identities that a hub keeps for several stations; "": there is none.
func (c *Config) HubTable() string {
	if c.Identity == nil {
		return ""
	}
	name, _ := strings.CutPrefix(c.Identity.Table, "hub:")
	return plaintext.Either(name != c.Identity.Table, name, "")
}

// ReservedFile returns the file with the rows of HubTable that this place may give to cards. It is in
// the record: what says which card has which row is lost only with the rows.
func (c *Config) ReservedFile() string { return filepath.Join(c.Record, "hub-"+c.HubTable()+".csv") }

// readReserved reads the rows that are reserved, if there are any yet.
func (c *Config) readReserved() (err error) {
	own, name := *c.Identity, c.HubTable()
	c.Identity.Ahead = cmp.Or(own.Ahead, defaultAhead)
	switch own.Table = c.ReservedFile(); {
	case !tableName().MatchString(name):
		return c.errorAt("identity.table", "%.60q is no name of a table", name)
	case own.Key != "" || own.By != "" && own.By != "next":
		return c.errorAt("identity.table", "a hub's table gives its rows one after another, named by its first column: leave out key and by")
	case own.Ahead < 0 || own.Ahead > MaxAhead:
		return c.errorAt("identity.ahead", "%d is no number of rows: want 1 to %d", own.Ahead, MaxAhead)
	case !localfile.Exists(own.Table):
		c.noRows = c.errorAt("identity.table", "no row of the hub's table %s is reserved for this place\nnext: place BOARD NAME --hub  # its station reserves them", name)
		return nil
	}
	if c.plan, err = identity.NewPlan(c.path, own, c.places); err == nil {
		c.plan.Grows()
	}
	return err
}

// Holder returns the random name of the record, for which a hub reserves rows, and makes it.
func (c *Config) Holder() (string, error) {
	file := filepath.Join(c.Record, "hub-holder")
	data, err := localfile.Read(file, 100)
	if !errors.Is(err, fs.ErrNotExist) {
		return string(data), err
	}
	if err = localfile.MkdirAll(c.Record); err == nil {
		data = []byte(rand.Text())
		err = c.keep(file, data)
	}
	return string(data), err
}

// keep writes a file of the record, which holds secrets. No power cut loses it after that.
func (c *Config) keep(file string, data []byte) error {
	return cmp.Or(renameio.WriteFile(file, data, 0o600), localfile.SyncFolder(c.Record))
}

// Reserve makes the rows of a hub's answer those that cards may get from now on: all, or none if one
// of them gives no identity. The rows of cards of the record stay. A row that the hub took back, as
// its station had been removed, goes.
func (c *Config) Reserve(head string, lines []string) error {
	old, err := localfile.Read(c.ReservedFile(), maxReserved)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	kept, err := c.usedLines(old)
	if err != nil {
		return err
	}
	lines = slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return slices.Contains(kept, line) })
	text := head + strings.Join(append(kept, lines...), "")
	if text == head || text == string(old) { // a table without a row is none
		return nil
	}
	own := *c.Identity
	own.Table = c.ReservedFile() + ".new"
	if err := c.keep(own.Table, []byte(text)); err != nil {
		return err
	}
	if _, err := identity.NewPlan(c.path, own, c.places); err != nil {
		return errors.Join(err, os.Remove(own.Table))
	}
	return cmp.Or(os.Rename(own.Table, c.ReservedFile()), localfile.SyncFolder(c.Record))
}

// maxReserved limits the rows of one place, as a table's file is limited.
const maxReserved = 16 << 20

// usedLines returns the lines of a table whose rows cards of the record have.
func (c *Config) usedLines(table []byte) (used []string, err error) {
	if len(table) == 0 {
		return nil, nil
	}
	_, keys, lines, err := identity.Lines(c.ReservedFile(), table)
	if err != nil {
		return nil, err
	}
	byKey := map[string]bool{}
	err = eachEntry(c.Record, func(e Entry) { byKey[e.Row] = byKey[e.Row] || e.Taken })
	for i, key := range keys {
		if byKey[key] {
			used = append(used, lines[i])
		}
	}
	return used, err
}
