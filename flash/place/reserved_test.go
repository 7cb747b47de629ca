package place

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"slipway/flash/flashtest"
	"slipway/images"
	"slipway/layers/progress"
)

// The rows of a hub's table are in the record. Those of cards stay, and those that the hub took back go.
func TestReserve(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "place.yml")
	flashtest.Put(t, path, "ports: {mmc0: slot}\nidentity: {table: \"hub:lab\", form: slipway, hostname: \"{{host}}\"}\n")
	load := func() *Config {
		t.Helper()
		c, err := Load(path)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	c := load()
	if _, err := open(context.Background(), spec, images.Artifact{}, c, Options{}); err == nil || !strings.Contains(err.Error(), "no row of the hub's table lab is reserved") {
		t.Errorf("open = %v; want that no row is reserved", err)
	}
	holder, err := c.Holder()
	if again, err2 := load().Holder(); err != nil || err2 != nil || len(holder) < 20 || again != holder {
		t.Errorf("Holder = %q, %v, and then %q, %v", holder, err, again, err2)
	}
	is := func(want string, lines ...string) {
		t.Helper()
		if err := c.Reserve("host\n", lines); err != nil {
			t.Fatal(err)
		}
		if got, _ := os.ReadFile(c.ReservedFile()); string(got) != want {
			t.Errorf("with %q the file is %q; want %q", lines, got, want)
		}
	}
	is("")
	is("host\nn1\nn2\n", "n1\n", "n2\n")
	data, _ := json.Marshal(Entry{Verdict: unfinished, Taken: true, Row: "n1", Stamp: "s", Began: time.Now()})
	flashtest.Put(t, filepath.Join(c.Record, "2026-11-30", "1.json"), string(data))
	is("host\nn1\nn3\n", "n3\n")
	is("host\nn1\nn3\nn4\n", "n3\n", "n4\n")
	info, err := os.Stat(c.ReservedFile())
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file has mode %v, %v; want 0600", info.Mode(), err)
	}
	for _, lines := range [][]string{{"n5\n", "n5\n"}, {"a b\n"}} {
		if err := c.Reserve("host\n", lines); err == nil {
			t.Errorf("a hub's answer %q was taken", lines)
		}
	}
	is("host\nn1\nn3\nn4\n", "n3\n", "n4\n")
	if left := load(); left.plan == nil || left.noRows != nil {
		t.Errorf("the place has no plan: %v", left.noRows)
	}
}

// A hub's page gets each new state of a port once, and few events of its progress.
func TestEvents(t *testing.T) {
	var got []string
	show := Events(func(e progress.Event) { got = append(got, e.Step+"|"+e.Detail) })
	ports := []Port{{Port: "mmc0", Label: "slot", State: Write, Row: "n1"}}
	for i := range 101 {
		ports[0].Percent = i
		show(ports, Totals{Good: 1, left: ", 7 rows left"})
	}
	if len(got) != 22 || got[0] != TotalsStep+"|1 GOOD, 0 BAD today, 7 rows left" || got[1] != "slot|WRITE: n1" {
		t.Errorf("%d events: %q", len(got), got)
	}
	if state, text := Split("REFUSED: it holds: x"); state != Refused || text != "it holds: x" {
		t.Errorf("Split = %q, %q", state, text)
	}
}
