package identity

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"slipway/layers/localfile"
	"slipway/layers/plaintext"

	"github.com/google/renameio/v2"
)

// The states of a claim that is on disk.
const (
	Taken = "taken" // the card may be whole
	Done  = "done"  // the card is whole
)

// Card is what a port has. Serial is the card's own, and "" if another card can have it, as that of a
// card reader. With the same Serial and another Medium, such as model and size, it is another card.
type Card struct {
	Serial string `json:"serial,omitempty"`
	Stamp  string `json:"stamp,omitempty"` // that write.ReadStamp finds, or that Reserve makes
	Port   string `json:"port,omitempty"`
	Medium string `json:"medium,omitempty"`
}

// Claim is the row that a card has.
type Claim struct {
	Row   Row       `json:"row"` // only its key is on disk
	Card  Card      `json:"card"`
	State string    `json:"state"` // Taken, Done, or "" if the card has the row for the first time
	Time  time.Time `json:"time"`  // of the state
}

// Claims records in a folder which card has which row, one file each, so that no row has two cards.
type Claims struct {
	dir  string
	plan *Plan
	lock *os.File

	mu   sync.Mutex
	all  map[string]Claim // on disk, by the rows' keys
	work map[string]bool  // keys of the rows that Reserve returned, until Done or Release
}

// OpenClaims makes or reads the folder dir, which no other process can open until Close.
func OpenClaims(dir string, plan *Plan) (_ *Claims, err error) {
	c := &Claims{dir: filepath.Clean(dir), plan: plan, all: map[string]Claim{}, work: map[string]bool{}}
	defer func() { err = localfile.Unwritable(dir, err) }()
	above := localfile.NearestFolder(filepath.Join(c.dir, "lock"))
	err = os.MkdirAll(c.dir, 0o700)
	for made := c.dir; err == nil && made != above; made = filepath.Dir(made) {
		err = syncFolder(filepath.Dir(made))
	}
	if err != nil {
		return nil, err
	}
	c.lock, err = localfile.LockNow(filepath.Join(c.dir, "lock"), 0o600)
	if errors.Is(err, localfile.ErrLocked) {
		return nil, fmt.Errorf("another place has the record of rows in %s\nnext: ls -l %s  # end the other place first", dir, plaintext.Quote(dir))
	}
	if err == nil {
		err = c.read()
	}
	if err != nil {
		c.lock.Close() // nil is an error that nobody needs
		return nil, err
	}
	return c, nil
}

// read reads all claims, and removes files that a killed process did not finish.
func (c *Claims) read() error {
	paths, err := filepath.Glob(filepath.Join(localfile.QuoteGlob(c.dir), "*.json*"))
	for _, path := range paths {
		if strings.HasPrefix(filepath.Base(path), ".") {
			err = errors.Join(err, os.Remove(path))
			continue
		}
		var claim Claim
		data, unread := localfile.Read(path, 64<<10)
		if unread != nil {
			return unread
		}
		if json.Unmarshal(data, &claim) != nil || c.Path(claim.Row) != path || claim.State != Taken && claim.State != Done {
			return fmt.Errorf("%s: this is no claim of a row\nnext: cat %s", path, plaintext.Quote(path))
		}
		c.all[claim.Row.Key] = claim
	}
	return err
}

// Close lets another process open the folder.
func (c *Claims) Close() error { return c.lock.Close() }

// Path is the file of a row's claim. Its name is a digest, because a key can have any character.
func (c *Claims) Path(row Row) string {
	return filepath.Join(c.dir, fmt.Sprintf("%x", sha256.Sum256([]byte(row.Key)))[:32]+".json")
}

// Reserve returns the row of a card: that which it has already, or a free one by Config.By, with a new
// stamp. Nothing is on disk yet. Until Done or Release, it returns the row for no other card.
func (c *Claims) Reserve(card Card) (Claim, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	claim, err := c.choose(card)
	if err == nil && c.work[claim.Row.Key] {
		err = fmt.Errorf("row %s is in work at another port: two cards have one serial or stamp, or a row's port\nnext: devices", quote(claim.Row.Key))
	}
	if err != nil {
		return Claim{}, err
	}
	c.work[claim.Row.Key] = true
	return claim, nil
}

// choose returns the row for a card, which may be in work.
func (c *Claims) choose(card Card) (Claim, error) {
	rows, by := c.plan.table, c.plan.config.By
	if own, ok := c.find(card); ok {
		row, ok := rows.find("", own.Row.Key)
		if !ok {
			return Claim{}, rows.errorAt(1, fmt.Errorf("the card has row %s, which the table has no more", quote(own.Row.Key)))
		}
		card.Stamp = own.Card.Stamp
		own.Row, own.Card = row, card
		return own, nil
	}
	card.Stamp = fmt.Sprintf("%x", sha256.Sum256([]byte(rand.Text())))[:32]
	if by != "next" {
		cell := map[string]string{"serial": card.Serial, "port": card.Port}[by]
		row, ok := rows.find(by, cell)
		if used, is := c.all[row.Key]; is {
			return Claim{}, rows.errorAt(row.Line, fmt.Errorf("another card has the row since %s", used.Time.Format(time.DateTime)))
		} else if !ok {
			return Claim{}, rows.errorAt(1, fmt.Errorf("no row has the %s %s", by, quote(cell)))
		}
		return Claim{Row: row, Card: card}, nil
	}
	for _, row := range rows.rows {
		if _, used := c.all[row.Key]; !used && !c.work[row.Key] {
			return Claim{Row: row, Card: card}, nil
		}
	}
	return Claim{}, rows.errorAt(1, fmt.Errorf("no row is free: of %d, %d are used, and %d in work", len(rows.rows), len(c.all), len(c.work)))
}

// find returns the claim of a card that is known by its stamp, or else by its serial. Another serial
// than that of the stamp's claim means a copy of that card, and so another card.
func (c *Claims) find(card Card) (found Claim, ok bool) {
	for _, claim := range c.all {
		same := card.Serial == claim.Card.Serial && card.Medium == claim.Card.Medium
		switch {
		case card.Serial != "" && claim.Card.Serial != "" && !same:
		case card.Stamp != "" && card.Stamp == claim.Card.Stamp:
			return claim, true
		case card.Serial != "" && same:
			found, ok = claim, true
		}
	}
	return found, ok
}

// Take records that the card may be whole from now on. Once it returns nil, no power cut undoes it.
func (c *Claims) Take(claim Claim) error { return c.write(claim, Taken) }

// Done records that the card is whole, and ends the work on the row.
func (c *Claims) Done(claim Claim) error {
	defer c.Release(claim)
	return c.write(claim, Done)
}

// Release ends the work on a row. A row that was not taken is free again. A row that was taken stays
// so, because the card may be whole; only the same card gets it again.
func (c *Claims) Release(claim Claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.work, claim.Row.Key)
}

// Unfinished returns the rows that were taken and not done, and on which no work goes on. To free a
// row whose card is not whole, remove the file that Path returns, while no process has the folder.
func (c *Claims) Unfinished() (found []Claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, claim := range c.all {
		if claim.State == Taken && !c.work[claim.Row.Key] {
			found = append(found, claim)
		}
	}
	return slices.SortedFunc(slices.Values(found), func(a, b Claim) int { return cmp.Compare(a.Row.Key, b.Row.Key) })
}

// write writes the claim's file with a new state, and waits until file and folder are on the disk.
func (c *Claims) write(claim Claim, state string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.work[claim.Row.Key] {
		return fmt.Errorf("row %s is not reserved", quote(claim.Row.Key))
	}
	claim.State, claim.Time = state, time.Now().UTC()
	data, err := json.Marshal(claim)
	if err == nil {
		err = renameio.WriteFile(c.Path(claim.Row), append(data, '\n'), 0o600)
	}
	if err == nil {
		err = syncFolder(c.dir)
	}
	if err != nil {
		return localfile.Unwritable(c.dir, fmt.Errorf("record row %s: %w", quote(claim.Row.Key), err))
	}
	c.all[claim.Row.Key] = claim
	return nil
}

// syncFolder waits until the names in a folder are on the disk.
func syncFolder(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
