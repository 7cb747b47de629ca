package identity

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"slipway/flash/flashtest"
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

func openClaims(t testing.TB, dir string, p *Plan) *Claims {
	t.Helper()
	c, err := OpenClaims(dir, p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
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
	p, dir := planOf(t, rowsTable(3), Config{}), filepath.Join(t.TempDir(), "new", "claims")
	c := openClaims(t, dir, p)
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder: %v, %v; want mode 0700", info.Mode(), err)
	}
	if _, err := OpenClaims(dir, p); err == nil || !strings.Contains(err.Error(), "another place") || !strings.Contains(err.Error(), "\nnext: ls ") {
		t.Errorf("a second place = %v; want that another place has the folder", err)
	}
	one, two := reserve(t, c, Card{Port: "usb:1"}), reserve(t, c, Card{Serial: "S", Medium: "32 GiB", Port: "usb:2"})
	if one.Row.Key != "row1" || two.Row.Key != "row2" || len(one.Card.Stamp) != 32 || one.Card.Stamp == two.Card.Stamp {
		t.Errorf("claims = %+v, %+v; want row1 and row2, each with a stamp", one, two)
	}
	if _, err := c.Reserve(Card{Serial: "S", Medium: "32 GiB"}); err != nil {
		t.Errorf("a card that has no row on disk = %v; want a new row", err)
	}
	if _, err := c.Reserve(Card{}); err == nil || !strings.Contains(err.Error(), "of 3, 0 are used, and 3 in work") {
		t.Errorf("Reserve = %v; want that no row is free", err)
	}
	if err := errors.Join(c.Take(two), c.Done(two), c.Take(one)); err != nil {
		t.Fatal(err)
	}
	c.Release(one)
	if err := c.Take(one); err == nil {
		t.Error("Take took a row that is not reserved")
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	flashtest.Put(t, filepath.Join(dir, ".x.json123"), "half")
	c = openClaims(t, dir, p)
	if all, err := filepath.Glob(filepath.Join(dir, "*")); len(all) != 3 {
		t.Errorf("the folder has %v, %v; want the lock and two claims", all, err)
	}
	if open := c.Unfinished(); len(open) != 1 || open[0].Row.Key != "row1" || open[0].Card != one.Card {
		t.Errorf("Unfinished = %+v; want row1", open)
	}
	for _, card := range []Card{{Stamp: two.Card.Stamp}, {Serial: "S", Medium: "32 GiB"}, {Serial: "S", Medium: "32 GiB", Stamp: strings.Repeat("0", 32)}} {
		again := reserve(t, c, card)
		if again.Row.Key != "row2" || again.State != Done || again.Card.Stamp != two.Card.Stamp {
			t.Errorf("card %+v again = %+v; want row2, which is done", card, again)
		}
		if _, err := c.Reserve(card); err == nil || !strings.Contains(err.Error(), "another port") {
			t.Errorf("the card at two ports = %v; want an error", err)
		}
		c.Release(again)
	}
	for _, card := range []Card{{Serial: "S", Medium: "8 GiB"}, {Serial: "T", Medium: "32 GiB", Stamp: two.Card.Stamp}} {
		if other := reserve(t, c, card); other.Row.Key != "row3" {
			t.Errorf("another card %+v got %+v; want row3", card, other)
		}
		c.Release(Claim{Row: Row{Key: "row3"}})
	}
}

func TestClaimsBy(t *testing.T) {
	for by, card := range map[string]Card{"serial": {Serial: "S2"}, "port": {Port: "usb:1-2"}} {
		c := openClaims(t, t.TempDir(), planOf(t, rowsTable(3), Config{By: by}))
		claim := reserve(t, c, card)
		if claim.Row.Key != "row2" {
			t.Errorf("by %s: %+v; want row2", by, claim)
		}
		if _, err := c.Reserve(card); err == nil || !strings.Contains(err.Error(), "in work") {
			t.Errorf("by %s: a second card = %v; want that the row is in work", by, err)
		}
		if err := errors.Join(c.Take(claim), c.Done(claim)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Reserve(Card{Serial: card.Serial, Port: card.Port, Medium: "another"}); err == nil || !strings.Contains(err.Error(), "boards.csv:3: another card has the row") {
			t.Errorf("by %s: another card = %v; want that the row is used", by, err)
		}
		if _, err := c.Reserve(Card{Serial: "none", Port: "none"}); err == nil || !strings.Contains(err.Error(), "no row has the "+by) {
			t.Errorf("by %s: an unknown card = %v; want an error", by, err)
		}
	}
}

func TestClaimsRefuse(t *testing.T) {
	p := planOf(t, rowsTable(1), Config{})
	for _, text := range []string{"", "{}", `{"row":{"key":"row1"},"state":"whole"}`, `{"row":{"key":"row2"},"state":"done"}`} {
		dir := t.TempDir()
		flashtest.Put(t, (&Claims{dir: dir}).Path(Row{Key: "row1"}), text)
		if _, err := OpenClaims(dir, p); err == nil || !strings.Contains(err.Error(), "is no claim of a row\nnext: cat ") {
			t.Errorf("claim %q = %v; want an error", text, err)
		}
	}
}

// Cards at random ports fail, are killed with the process or become whole. No two whole cards have
// one row, and each row that was taken is done or unfinished.
func TestNoRowTwice(t *testing.T) {
	const rows, ports = 60, 6
	p := planOf(t, rowsTable(rows), Config{})
	for seed := range uint64(4) {
		random, dir := rand.New(rand.NewPCG(seed, 0)), t.TempDir()
		whole, taken := map[string]string{}, map[string]bool{} // cards by their rows
		var mu sync.Mutex
		for range 8 { // processes
			c, err := OpenClaims(dir, p)
			if err != nil {
				t.Fatal(err)
			}
			var all sync.WaitGroup
			for range ports {
				n, old := random.IntN(9), 0
				for range n {
					old = random.IntN(40)
				}
				fate := random.IntN(6)
				all.Go(func() {
					for i := range n {
						card := Card{}
						if (i+old)%3 == 0 {
							card = Card{Serial: fmt.Sprint("S", (i+old)%40)}
						}
						claim, err := c.Reserve(card)
						if err != nil {
							continue // the same card at two ports, or no row is free
						}
						if fate == i { // failed before it was whole, or killed
							c.Release(claim)
							continue
						}
						if err := c.Take(claim); err != nil {
							t.Error(err)
						}
						mu.Lock()
						taken[claim.Row.Key] = true
						if before, ok := whole[claim.Row.Key]; ok && (before != card.Serial || card.Serial == "") {
							t.Errorf("seed %d: row %s has two cards, %q and %q", seed, claim.Row.Key, before, card.Serial)
						}
						whole[claim.Row.Key] = card.Serial
						mu.Unlock()
						if fate == i+1 {
							continue // killed before Done; the row stays in work
						}
						if err := c.Done(claim); err != nil {
							t.Error(err)
						}
					}
				})
			}
			all.Wait()
			c.Close()
		}
		c := openClaims(t, dir, p)
		listed := len(c.Unfinished())
		for _, claim := range c.all {
			if claim.State == Done {
				listed++
			}
		}
		if listed != len(taken) {
			t.Errorf("seed %d: %d rows are done or unfinished; want %d", seed, listed, len(taken))
		}
		c.Close()
	}
}

// What a power cut leaves of a disk at any time after Take has the claim: the test copies the disk
// below a mounted file system, which writes by itself only after five minutes.
func TestTakeOutlivesAPowerCut(t *testing.T) {
	p := planOf(t, rowsTable(5), Config{})
	disk, file := flashtest.Loop(t, 16<<20)
	flashtest.MustRun(t, flashtest.E2fs(t, "mkfs.ext4"), "-qF", disk)
	mount := func(disk string) string {
		at := t.TempDir()
		flashtest.MustRun(t, "mount", "-o", "commit=300", disk, at)
		t.Cleanup(func() { flashtest.MustRun(t, "umount", at) })
		return at
	}
	live := mount(disk)
	c := openClaims(t, filepath.Join(live, "record", "claims"), p)
	done, taken, released := reserve(t, c, Card{}), reserve(t, c, Card{Serial: "S"}), reserve(t, c, Card{})
	if err := errors.Join(c.Take(done), c.Done(done), c.Take(taken)); err != nil {
		t.Fatal(err)
	}
	c.Release(released)
	cut := filepath.Join(t.TempDir(), "cut")
	flashtest.MustRun(t, "cp", file, cut)
	c.Close() // before it is unmounted
	after := openClaims(t, filepath.Join(mount(flashtest.Attach(t, cut)), "record", "claims"), p)
	defer after.Close()
	if open := after.Unfinished(); len(open) != 1 || open[0].Row.Key != "row2" || after.all["row1"].State != Done || len(after.all) != 2 {
		t.Errorf("after the power cut: %+v; want row1 done and row2 unfinished", after.all)
	}
	if again := reserve(t, after, Card{Serial: "S"}); again.Row.Key != "row2" || again.Card.Stamp != taken.Card.Stamp {
		t.Errorf("the card again = %+v; want row2", again)
	}
}
