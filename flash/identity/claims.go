package identity

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"
)

// Card is what a port has. Serial is the card's own, and "" if another card can have it, as that of
// a card reader. With the same Serial and another Medium, such as model and size, it is another
// card.
type Card struct {
	Serial string
	Stamp  string // that write.ReadStamp finds, or that Reserve makes
	Port   string
	Medium string
}

// Claim is the row that a card has.
type Claim struct {
	Row  Row
	Card Card
	Time time.Time // since when
}

// Claims says which card has which row, so that no row has two cards. It is only in memory: who
// calls Note records the claim before.
type Claims struct {
	plan *Plan

	mu   sync.Mutex
	rows *Table
	read os.FileInfo      // of the file of rows, if that grows
	left int              // of Left, -1: to be counted
	all  map[string]Claim // of Note, by the rows' keys
	work map[string]bool  // keys of the rows that Reserve returned, until Release
}

// NewClaims returns claims without any.
func NewClaims(plan *Plan) *Claims {
	return &Claims{plan: plan, rows: plan.table, left: -1, all: map[string]Claim{}, work: map[string]bool{}}
}

// Left returns how many rows no card has.
func (c *Claims) Left() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left < 0 {
		c.left = 0
		for _, row := range c.rows.rows {
			if _, used := c.all[row.Key]; !used {
				c.left++
			}
		}
	}
	return c.left
}

// reread reads a table that grows again, if its file is another one: whole, or not at all.
func (c *Claims) reread() error {
	now, err := os.Stat(c.rows.file)
	if err != nil || c.read != nil && os.SameFile(now, c.read) && now.ModTime().Equal(c.read.ModTime()) {
		return err
	}
	fresh := *c.plan
	if fresh.table, err = readTable(c.rows.file, c.plan.config.Key); err == nil {
		err = fresh.checkRows()
	}
	if err == nil && !slices.Equal(fresh.table.columns, c.rows.columns) {
		err = fresh.table.errorAt(1, errors.New("the columns are others than those of the start"))
	}
	if err == nil {
		c.rows, c.read, c.left = fresh.table, now, -1
	}
	return err
}

// Note notes that a card has a row, because it is whole, or may be from now on.
func (c *Claims) Note(claim Claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all[claim.Row.Key], c.left = claim, -1
}

// Reserve returns the row of a card: that which it has already, or a free one by Config.By, with a
// new stamp. Until Release, it returns the row for no other card.
func (c *Claims) Reserve(card Card) (Claim, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.plan.grows {
		if err := c.reread(); err != nil {
			return Claim{}, err
		}
	}
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
	rows, by := c.rows, c.plan.config.By
	if own, ok := c.find(card); ok {
		row, ok := rows.find("", own.Row.Key)
		if !ok {
			return Claim{}, rows.errorAt(1, fmt.Errorf("the card has row %s, which the table has no more", quote(own.Row.Key)))
		}
		card.Stamp = own.Card.Stamp
		own.Row, own.Card = row, card
		return own, nil
	}
	card.Stamp = NewStamp()
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

// find returns the claim of a card that is known by its stamp, or else by its serial. Another
// serial than that of the stamp's claim means a copy of that card, and so another card.
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

// NewStamp returns 32 random hexadecimal digits, for a card.
func NewStamp() string {
	var b [16]byte
	rand.Read(b[:])
	return fmt.Sprintf("%x", b)
}

// Release ends the work on a row. Without Note it is free again, else only the same card gets it
// again.
func (c *Claims) Release(claim Claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.work, claim.Row.Key)
}
