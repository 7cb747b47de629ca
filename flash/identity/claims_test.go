package identity

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// planOf returns a plan with a table of this text, and the keys of config beside the table.
func planOf(t testing.TB, table string, config Config) *Plan {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "boards.csv"), []byte(table), 0o600); err != nil {
		t.Fatal(err)
	}
	config.Table = "boards.csv"
	if config.Form == "" {
		config.Form = "slipway"
	}
	p, err := NewPlan(filepath.Join(dir, "place.yml"), config, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func reserve(t testing.TB, c *Claims, card Card) Claim {
	t.Helper()
	claim, err := c.Reserve(card)
	if err != nil {
		t.Fatal(err)
	}
	return claim
}

// rowsTable has the rows row1 to row<n>.
func rowsTable(n int) string {
	var b strings.Builder
	b.WriteString("host,serial,port\n")
	for i := range n {
		fmt.Fprintf(&b, "row%d,S%[1]d,usb:1-%[1]d\n", i+1)
	}
	return b.String()
}

func TestClaims(t *testing.T) {
	c := NewClaims(planOf(t, rowsTable(3), Config{}))
	one, two := reserve(t, c, Card{Port: "usb:1"}), reserve(t, c, Card{Serial: "S", Medium: "32 GiB", Port: "usb:2"})
	if one.Row.Key != "row1" || two.Row.Key != "row2" || len(one.Card.Stamp) != 32 || one.Card.Stamp == two.Card.Stamp {
		t.Errorf("claims = %+v, %+v; want row1 and row2, each with a stamp", one, two)
	}
	third := reserve(t, c, Card{Serial: "S", Medium: "32 GiB"})
	if _, err := c.Reserve(Card{}); err == nil || !strings.Contains(err.Error(), "of 3, 0 are used, and 3 in work") {
		t.Errorf("Reserve = %v; want that no row is free", err)
	}
	c.Note(two)
	for _, claim := range []Claim{one, two, third} {
		c.Release(claim)
	}
	for _, card := range []Card{{Stamp: two.Card.Stamp}, {Serial: "S", Medium: "32 GiB"}, {Serial: "S", Medium: "32 GiB", Stamp: strings.Repeat("0", 32)}} {
		again := reserve(t, c, card)
		if again.Row.Key != "row2" || again.Card.Stamp != two.Card.Stamp {
			t.Errorf("card %+v again = %+v; want row2 and its stamp", card, again)
		}
		if _, err := c.Reserve(card); err == nil || !strings.Contains(err.Error(), "another port") {
			t.Errorf("the card at two ports = %v; want an error", err)
		}
		c.Release(again)
	}
	for _, card := range []Card{{Serial: "S", Medium: "8 GiB"}, {Serial: "T", Medium: "32 GiB", Stamp: two.Card.Stamp}} {
		other := reserve(t, c, card)
		if other.Row.Key != "row1" {
			t.Errorf("another card %+v got %+v; want row1", card, other)
		}
		c.Release(other)
	}
}

func TestClaimsBy(t *testing.T) {
	for by, card := range map[string]Card{"serial": {Serial: "S2"}, "port": {Port: "usb:1-2"}} {
		c := NewClaims(planOf(t, rowsTable(3), Config{By: by}))
		claim := reserve(t, c, card)
		if claim.Row.Key != "row2" {
			t.Errorf("by %s: %+v; want row2", by, claim)
		}
		if _, err := c.Reserve(card); err == nil || !strings.Contains(err.Error(), "in work") {
			t.Errorf("by %s: a second card = %v; want that the row is in work", by, err)
		}
		c.Note(claim)
		c.Release(claim)
		if _, err := c.Reserve(Card{Serial: card.Serial, Port: card.Port, Medium: "another"}); err == nil || !strings.Contains(err.Error(), "boards.csv:3: another card has the row") {
			t.Errorf("by %s: another card = %v; want that the row is used", by, err)
		}
		if _, err := c.Reserve(Card{Serial: "none", Port: "none"}); err == nil || !strings.Contains(err.Error(), "no row has the "+by) {
			t.Errorf("by %s: an unknown card = %v; want an error", by, err)
		}
	}
}

// Rows that are added while cards are written are given to the next ones: all of a file, or none.
func TestTableGrows(t *testing.T) {
	p := planOf(t, rowsTable(1), Config{Hostname: "{{host}}"})
	p.Grows()
	c := NewClaims(p)
	write := func(text string) {
		t.Helper()
		part := p.table.file + ".new"
		if err := errors.Join(os.WriteFile(part, []byte(text), 0o600), os.Rename(part, p.table.file)); err != nil {
			t.Fatal(err)
		}
	}
	first := reserve(t, c, Card{Port: "usb:1"})
	c.Note(first)
	for text, want := range map[string]string{
		"": "want a line", "host\nrow1\nrow2\n": "the columns are others", "host,serial,port\nrow1,,\na b,,\n": "hostname: want a host name",
	} {
		write(text)
		if _, err := c.Reserve(Card{Port: "usb:2"}); err == nil || !strings.Contains(err.Error(), want) || c.Left() != 0 {
			t.Errorf("with the table %q: %v, %d rows left; want %q, and none", text, err, c.Left(), want)
		}
	}
	write(rowsTable(3))
	if second := reserve(t, c, Card{Port: "usb:2"}); second.Row.Key != "row2" || c.Left() != 2 {
		t.Errorf("Reserve = %+v, with %d rows left; want row2, and two rows that no card has", second, c.Left())
	}
}
