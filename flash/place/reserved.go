package place

import (
	"cmp"
	"crypto/rand"
	"errors"
	"io/fs"
	"path/filepath"
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

// Reserve makes the rows of a hub's answer those that cards may get from now on. The rows of cards of
// the record stay. A row that the hub took back, as its station had been removed, goes.
func (c *Config) Reserve(head string, lines []string) error {
	data, err := localfile.Read(c.ReservedFile(), maxReserved)
	text, given := head, map[string]bool{}
	if err == nil {
		var keys, old []string
		if _, keys, old, err = identity.Lines(c.ReservedFile(), data); err != nil {
			return err
		}
		used, err := c.usedRows()
		if err != nil {
			return err
		}
		for i, key := range keys {
			if given[old[i]] = used[key]; used[key] {
				text += old[i]
			}
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, line := range lines {
		if !given[line] {
			text += line
		}
	}
	if text == head || text == string(data) { // a table without a row is none
		return nil
	}
	if _, _, _, err := identity.Lines(c.ReservedFile(), []byte(text)); err != nil {
		return err
	}
	return c.keep(c.ReservedFile(), []byte(text))
}

// maxReserved limits the rows of one place, as a table's file is limited.
const maxReserved = 16 << 20

// usedRows returns the rows that cards of the record have.
func (c *Config) usedRows() (map[string]bool, error) {
	used := map[string]bool{}
	err := eachEntry(c.Record, func(e Entry) { used[e.Row] = used[e.Row] || e.Taken })
	return used, err
}
