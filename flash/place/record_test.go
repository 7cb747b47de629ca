package place

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"slipway/flash/device"
	"slipway/flash/flashtest"
	"slipway/flash/identity"
)

// planOf returns a plan with a table of n rows, cam-1 and so on.
func planOf(t *testing.T, n int) *identity.Plan {
	t.Helper()
	c, err := parse(filepath.Join(t.TempDir(), "place.yml"), []byte("ports: {mmc0: }\n"+(*bench)(nil).rows(t, n)))
	if err != nil {
		t.Fatal(err)
	}
	return c.plan
}

// openRows opens a record with the claims of its rows.
func openRows(t *testing.T, dir string, plan *identity.Plan) (*record, *identity.Claims) {
	t.Helper()
	claims := identity.NewClaims(plan)
	r, err := openRecord(dir, claims)
	if err != nil {
		t.Fatal(err)
	}
	return r, claims
}

// Cards become whole, fail before or after their row is taken, come again, or the place is killed.
// No two cards that may be whole have one row, and each of them gets its own row again.
func TestNoRowTwice(t *testing.T) {
	const rows, cards = 30, 45
	plan := planOf(t, rows)
	for seed := range uint64(2) {
		random, dir := rand.New(rand.NewPCG(seed, 0)), filepath.Join(t.TempDir(), "record")
		owner, stamps := map[string]int{}, map[int]string{} // of the cards that may be whole
		began := time.Now().UTC()
		r, claims := openRows(t, dir, plan)
		for range 100 {
			n := random.IntN(cards)
			began = began.Add(time.Second)
			e := Entry{Port: fmt.Sprint("mmc", n%4), Began: began, Stamp: stamps[n]}
			claim, err := claims.Reserve(e.card())
			if err != nil {
				if len(owner) < rows || stamps[n] != "" {
					t.Fatalf("seed %d: card %d of %d whole ones: %v", seed, n, len(owner), err)
				}
				continue
			}
			e.Row, e.Stamp = claim.Row.Key, claim.Card.Stamp
			fate := random.IntN(6)
			if fate > 0 { // 0 fails before
				if err := r.take(&e); err != nil {
					t.Fatal(err)
				}
				if before, taken := owner[e.Row]; taken && before != n {
					t.Fatalf("seed %d: cards %d and %d have row %s", seed, before, n, e.Row)
				}
				if was := stamps[n]; was != "" && was != e.Stamp {
					t.Fatalf("seed %d: card %d had another row before %s", seed, n, e.Row)
				}
				owner[e.Row], stamps[n] = n, e.Stamp
			}
			if e.Verdict = string(Fail); fate > 1 {
				e.Verdict = string(Pass)
			}
			if fate != 5 { // 5 is a kill
				if err := r.add(&e); err != nil {
					t.Fatal(err)
				}
				claims.Release(claim)
			} else {
				r.unlock()
				r, claims = openRows(t, dir, plan)
			}
		}
		r.unlock()
		if len(owner) < rows/2 {
			t.Errorf("seed %d: only %d rows were used", seed, len(owner))
		}
	}
}

// What a power cut leaves of a disk at any time after take has the entry: the test copies the disk
// below a mounted file system, which writes by itself only after five minutes.
func TestTakeOutlivesAPowerCut(t *testing.T) {
	plan := planOf(t, 5)
	disk, file := flashtest.Loop(t, 64*mib)
	flashtest.MustRun(t, flashtest.E2fs(t, "mkfs.ext4"), "-qF", disk)
	mount := func(disk string) string {
		at := t.TempDir()
		flashtest.MustRun(t, "mount", "-o", "commit=300", disk, at)
		t.Cleanup(func() { flashtest.MustRun(t, "umount", at) })
		return filepath.Join(at, "record")
	}
	r, claims := openRows(t, mount(disk), plan)
	claim, err := claims.Reserve(identity.Card{Port: "mmc0"})
	if err != nil {
		t.Fatal(err)
	}
	e := Entry{Port: "mmc0", Began: time.Now().UTC(), Row: claim.Row.Key, Stamp: claim.Card.Stamp}
	if err := r.take(&e); err != nil {
		t.Fatal(err)
	}
	cut := filepath.Join(t.TempDir(), "cut")
	flashtest.MustRun(t, "cp", file, cut)
	r.unlock() // before it is unmounted
	after, rows := openRows(t, mount(flashtest.Attach(t, cut)), plan)
	defer after.unlock()
	if other, err := rows.Reserve(identity.Card{Port: "mmc0"}); err != nil || other.Row.Key != "cam-2" {
		t.Errorf("after the power cut another card got %+v, %v; want cam-2", other, err)
	}
	if again, err := rows.Reserve(identity.Card{Port: "mmc1", Stamp: e.Stamp}); err != nil || again.Row.Key != "cam-1" {
		t.Errorf("after the power cut the same card got %+v, %v; want cam-1", again, err)
	}
}

// Makers give many cards one serial, and people copy whole cards.
func TestRecordFindsTheCard(t *testing.T) {
	r, _ := openRows(t, filepath.Join(t.TempDir(), "record"), planOf(t, 1))
	t.Cleanup(r.unlock)
	small := device.Device{Model: "QEMU!", SizeBytes: mib}
	if err := r.take(&Entry{Port: "mmc0", Serial: "0xdeadbeef", Stamp: "5", Device: small}); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		now  Entry
		want bool
	}{
		{Entry{Serial: "0xdeadbeef", Device: small}, true},
		{Entry{Serial: "0xdeadbeef", Device: small, Stamp: "5"}, true},
		{Entry{Stamp: "5"}, true}, // in a reader
		{Entry{Serial: "0xdeadbeef", Device: device.Device{Model: "QEMU!", SizeBytes: 2 * mib}}, false},
		{Entry{Serial: "0x1", Device: small, Stamp: "5"}, false},
		{Entry{}, false},
		{Entry{Port: "mmc0", Boot: "1"}, false},
	} {
		if e, found := r.find(test.now); found != test.want {
			t.Errorf("find(%+v) = %+v, %v; want %v", test.now, e, found, test.want)
		}
	}
}

// A card counts once, by its last result. A refused one is not bad, and counts once too.
func TestTotals(t *testing.T) {
	sd := device.Device{Model: "SD", SizeBytes: mib}
	for _, test := range []struct {
		name    string
		entries []Entry
		want    string
	}{
		{"neither", []Entry{{Verdict: "KNOWN"}, {Verdict: unfinished, Stamp: "1"}, {Verdict: "STOPPED"}}, "0 good, 0 bad: "},
		{"again", []Entry{{Verdict: "PASS", Stamp: "1"}, {Verdict: "PASS", Stamp: "2"}, {Verdict: "PASS", Stamp: "1", Port: "usb:1-2"}}, "2 good, 0 bad: "},
		{"worn out by now", []Entry{{Verdict: "PASS", Stamp: "1"}, {Verdict: "FAIL", Stamp: "1", Cause: "worn out"}}, "0 good, 1 bad: 1 × worn out"},
		{"good at last", []Entry{{Verdict: "FAIL", Stamp: "1", Cause: "pulled out"}, {Verdict: "PASS", Stamp: "1"}}, "1 good, 0 bad: "},
		{"one serial for many", []Entry{{Verdict: "PASS", Stamp: "1", Serial: "S", Device: sd}, {Verdict: "PASS", Stamp: "2", Serial: "S", Device: sd}}, "2 good, 0 bad: "},
		{"refused at each start", []Entry{
			{Verdict: "REFUSED", Port: "mmc0", Device: sd, Cause: "too small"},
			{Verdict: "REFUSED", Port: "mmc0", Device: sd, Cause: "too small"},
			{Verdict: "REFUSED", Port: "mmc0", Serial: "S", Device: sd, Cause: "too small"},
			{Verdict: "REFUSED", Port: "mmc1", Serial: "S", Device: sd, Cause: "photos"},
			{Verdict: "REFUSED", Port: "mmc1", Device: device.Device{Model: "SD", SizeBytes: 2 * mib}, Cause: "photos"},
		}, "0 good, 0 bad, 3 refused: 2 × too small, 1 × photos"},
		{"refused after it was made", []Entry{{Verdict: "PASS", Stamp: "1"}, {Verdict: "REFUSED", Stamp: "1"}}, "1 good, 0 bad: "},
		{"made after it was refused", []Entry{{Verdict: "REFUSED", Stamp: "1", Cause: "in use"}, {Verdict: "PASS", Stamp: "1"}}, "1 good, 0 bad: "},
	} {
		var totals Totals
		for _, e := range test.entries {
			totals.add(e)
		}
		if got := totals.String() + ": " + totals.CausesText(); got != test.want {
			t.Errorf("%s: %s; want %s", test.name, got, test.want)
		}
	}
}

// A report counts as the screen does, and a file is no record.
func TestReport(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "record")
	for i := range 3 { // the place is started again, with the same card
		r, _ := openRows(t, dir, planOf(t, 1))
		if err := r.add(&Entry{Verdict: string(Refused), Cause: "too small", Began: time.Now().UTC().Add(time.Duration(i) * time.Millisecond), Port: "mmc0"}); err != nil {
			t.Fatal(err)
		}
		r.unlock()
	}
	r, err := ReadReport(dir, "")
	if err != nil || r.Headline() != "0 good, 0 bad, 1 refused" || len(r.Entries) != 3 {
		t.Errorf("ReadReport = %s with %d entries, %v; want 1 refused", r.Headline(), len(r.Entries), err)
	}
	days, _ := filepath.Glob(filepath.Join(dir, "*.csv"))
	text, err := os.ReadFile(strings.Join(days, ""))
	if lines := strings.Split(string(text), "\n"); err != nil || len(lines) != 5 || !strings.HasPrefix(lines[0], "finished,verdict,cause,port,label,serial,stamp,") || !strings.Contains(lines[3], ",REFUSED,too small,mmc0,") {
		t.Errorf("the CSV is %s, %v; want a line for each result", text, err)
	}
	if page, err := r.Page(); err != nil || !bytes.Contains(page, []byte("0 good, 0 bad, 1 refused")) {
		t.Errorf("Page = %s, %v", page, err)
	}
	if text, err := json.Marshal(r); err != nil || !bytes.HasPrefix(text, []byte(`{"good":0,"bad":0,"refused":1,"causes":{"too small":1},"entries":[`)) {
		t.Errorf("JSON = %.100s, %v", text, err)
	}
	file := filepath.Join(dir, "place.lock")
	if _, err := ReadReport(file, ""); err == nil || !strings.Contains(err.Error(), "place.lock is a file, and a record is a folder\nnext: place report "+dir) {
		t.Errorf("ReadReport of a file = %v", err)
	}
}

// A card of a run that was killed was begun at a time, and never finished.
func TestMadeText(t *testing.T) {
	at := time.Date(2026, 11, 29, 12, 0, 0, 0, time.Local)
	for want, e := range map[string]Entry{
		"begun 29 November 12:00 at a, row cam-1": {Began: at, Label: "a", Row: "cam-1"},
		"written 29 November 12:00 at a":          {Began: at.Add(-time.Minute), Finished: at, Label: "a"},
	} {
		if got := e.madeText(); got != want {
			t.Errorf("madeText = %q; want %q", got, want)
		}
	}
}
