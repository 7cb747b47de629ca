package station

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sys/unix"

	"slipway/ci"
	"slipway/ci/hub/access"
	"slipway/ci/job"
	"slipway/flash/device"
	"slipway/flash/flashtest"
	"slipway/flash/identity"
	"slipway/flash/place"
	"slipway/images"
	"slipway/layers/progress"
)

// placeMain is "slipway place BOARD FILE" of a board without an artifact.
func placeMain() error {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, unix.SIGINT)
	sink, err := progress.ForOutput(os.Stderr)
	if err != nil {
		return err
	}
	r := progress.New(sink)
	defer r.Close()
	ctx, cancel := context.WithCancel(progress.With(context.Background(), r))
	now := make(chan struct{})
	go func() { <-signals; cancel(); <-signals; close(now) }()
	o := place.Options{Now: now, Tick: testTick}
	if len(os.Args) > 4 {
		_, _ = fmt.Sscanf(os.Args[4], "--count=%d", &o.Count)
	}
	spec := images.Spec{Board: os.Args[2], Flash: images.Flash{Kinds: []string{device.Block}}}
	return ci.Place(ctx, os.Stdout, spec, images.Options{Dir: "build"}, os.Args[3], o, false, false)
}

// line is a bench with one flashing place, line-1, at ports that are files.
type line struct {
	*bench
	dir string // of place.yml
}

// newLine makes a station with a place of some ports: a, b and so on.
func (w *world) newLine(name string, ports int, extra string) line {
	w.t.Helper()
	l := line{w.newBench(name, 0, 1), filepath.Join(w.dir, name+".place")}
	if err := os.MkdirAll(l.dir, 0o755); err != nil {
		w.t.Fatal(err)
	}
	text := "image: " + filepath.Join(w.dir, "card.img") + "\n" + extra + "ports:\n"
	for i := range ports {
		text += fmt.Sprintf("  loop:%s: %c\n", l.port(i), 'a'+i)
	}
	flashtest.Put(w.t, filepath.Join(l.dir, "place.yml"), text)
	flashtest.Put(w.t, l.config, fmt.Sprintf("places: {line-1: {board: toy, place: %s}}\n", filepath.Join(l.dir, "place.yml")))
	return l
}

const identityOf = `identity: {table: "hub:lab", ahead: %d, form: nocloud, hostname: "{{host}}"}` + "\n"

func (l line) port(i int) string { return filepath.Join(l.dir, fmt.Sprintf("port%d", i)) }

// plug puts an empty card into a port.
func (l line) plug(port int) (device string) {
	l.w.t.Helper()
	flashtest.Put(l.w.t, l.port(port), "")
	if err := os.Truncate(l.port(port), 16<<20); err != nil {
		l.w.t.Fatal(err)
	}
	return flashtest.Attach(l.w.t, l.port(port))
}

// begin starts the place, once the station announces it.
func (l line) begin(count int) job.Job {
	l.w.t.Helper()
	var c job.Change
	l.w.until("the place is started", func() bool {
		var err error
		c, err = access.Ask[job.Change](l.w.t.Context(), l.w.admin, job.VerbJobAdd, job.Job{
			V: job.Version, Station: l.id.Name, Name: "line-1", Board: "toy", Steps: []job.Step{{Do: job.Place, Count: count}}, LimitMS: 60_000, StartWithinMS: 60_000,
		})
		return err == nil
	})
	l.w.t.Cleanup(func() { // it waits for no card
		f := job.Folder(filepath.Join(l.state, "jobs", c.Job.ID))
		for state, _, _ := f.State(); state == job.Held; state, _, _ = f.State() {
			_ = f.Stop(job.Now)
			time.Sleep(100 * time.Millisecond)
		}
	})
	return c.Job
}

// cards returns what the hub's history has.
func (w *world) cards() (all []job.Card) {
	w.t.Helper()
	for n := uint64(1); n != 0; {
		some, err := access.Ask[job.Cards](w.t.Context(), w.admin, job.VerbCards, job.CardsWish{N: n})
		if err != nil {
			w.t.Fatal(err)
		}
		all, n = append(all, some.Cards...), some.N
	}
	return all
}

// verdicts counts the verdicts of the hub's history.
func (w *world) verdicts() string {
	counts := map[string]int{}
	for _, c := range w.cards() {
		e, err := place.ParseEntry(c.Entry)
		if err != nil {
			w.t.Fatal(err)
		}
		counts[e.Verdict]++
	}
	return fmt.Sprint(counts)
}

// shows follows what the ports show, as the hub's page hears it.
func (w *world) shows() func(step, detail string) bool {
	w.t.Helper()
	var mu sync.Mutex
	last := map[string]string{}
	sub, err := w.admin.Subscribe("prog.>", func(m *nats.Msg) {
		var e progress.Event
		if json.Unmarshal(m.Data, &e) == nil {
			mu.Lock()
			last[e.Step] = e.Detail
			mu.Unlock()
		}
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = sub.Unsubscribe() })
	return func(step, detail string) bool {
		mu.Lock()
		defer mu.Unlock()
		return strings.Contains(last[step], detail)
	}
}

func (w *world) addTable(name string, rows ...string) {
	w.t.Helper()
	text := "host\n" + strings.Join(rows, "\n") + "\n"
	if _, err := access.Ask[struct{}](w.t.Context(), w.admin, job.VerbTableAdd, job.TableRows{Table: name, CSV: text}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) table(name string) (rows []job.TableRow) {
	w.t.Helper()
	t, err := access.Ask[job.Table](w.t.Context(), w.admin, job.VerbTable, job.TableWish{Table: name})
	if err != nil {
		w.t.Fatal(err)
	}
	return t.Rows
}

func needLoops(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, for loop devices")
	}
}

// A place that the hub starts writes two cards. The hub's history has each once, also if the station
// is killed before and after it sends one. Nobody starts the place twice.
func TestPlaceByHub(t *testing.T) {
	needLoops(t)
	w := newWorld(t, 2*time.Second)
	flashtest.CardImage(t, filepath.Join(w.dir, "card.img"))
	l := w.newLine("bench-1", 2, "")
	first := l.startProcess("card", unix.SIGKILL)
	j := l.begin(2)
	again := j
	again.ID = ""
	if _, err := access.Ask[job.Change](t.Context(), w.admin, job.VerbJobAdd, again); err == nil || !strings.Contains(err.Error(), "runs already, by alice") {
		t.Errorf("a second start of the place: %v; want a refusal", err)
	}
	l.plug(0)
	first.wait()
	if n := len(w.cards()); n != 0 {
		t.Errorf("the history has %d cards before one was sent", n)
	}
	second := l.startProcess("card sent", unix.SIGKILL)
	second.wait()
	third := l.start()
	l.plug(1)
	if j = w.ended(j.ID); j.Result.Status() != 0 || j.Result.Kind != "passed" {
		t.Errorf("the place ended with %+v", j.Result)
	}
	if !strings.Contains(j.Result.Line, "slipway place toy "+filepath.Join(l.dir, "place.yml")+" --count=2") {
		t.Errorf("by hand it is %q", j.Result.Line)
	}
	w.until("the history has both cards, each once", func() bool { return w.verdicts() == "map[PASS:2]" })
	if log := w.kept(j.ID); strings.Count(log, "PASS") != 2 {
		t.Errorf("the log has not two cards:\n%s", log)
	}
	if err := errors.Join(third.stop()); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// A station that is cut off goes on with the rows that it has, and then the place says why it writes
// no more. The hub hears of all cards later, and the station gets the next rows.
func TestPlaceCutOff(t *testing.T) {
	needLoops(t)
	w := newWorld(t, 2*time.Second)
	flashtest.CardImage(t, filepath.Join(w.dir, "card.img"))
	w.addTable("lab", "n1", "n2", "n3")
	l := w.newLine("bench-1", 3, fmt.Sprintf(identityOf, 2))
	shows := w.shows()
	l.start()
	j := l.begin(0)
	w.until("the ports are shown", func() bool { return shows("a", "EMPTY") && shows(place.TotalsStep, "2 rows left") })
	l.link.to("")
	record := filepath.Join(l.dir, "record")
	for i := range 3 {
		l.plug(i)
		w.until("a card is recorded", func() bool {
			r, err := place.ReadReport(record, "")
			return err == nil && len(r.Entries) == i+1 && r.Entries[0].Verdict != "UNFINISHED"
		})
	}
	r, err := place.ReadReport(record, "")
	if err != nil || r.Good != 2 || r.Refused != 1 || !strings.Contains(r.Entries[0].Error, "no row is free: of 2, 2 are used") {
		t.Fatalf("cut off, the record has %+v, %v; want two good ones and one without a row", r, err)
	}
	if n := len(w.cards()); n != 0 {
		t.Errorf("cut off, the hub has %d cards", n)
	}
	l.link.to(w.link.address())
	w.until("the hub has all", func() bool { return w.verdicts() == "map[PASS:2 REFUSED:1]" })
	w.until("the last row is the station's", func() bool {
		rows := w.table("lab")
		return rows[0].Card != "" && rows[1].Card != "" && rows[2].Card == "" && rows[2].Station == "bench-1"
	})
	w.until("the place has it", func() bool {
		data, _ := os.ReadFile(filepath.Join(record, "hub-lab.csv"))
		return strings.HasSuffix(string(data), "n3\n")
	})
	flashtest.MustRun(t, "losetup", "--detach", flashtest.MustRun(t, "losetup", "--noheadings", "--output=NAME", "--associated", l.port(2)))
	w.until("the port is empty", func() bool { return shows("c", "EMPTY") })
	flashtest.Attach(t, l.port(2))
	w.until("the third card has the last row", func() bool { return w.verdicts() == "map[PASS:3 REFUSED:1]" && shows(place.TotalsStep, "0 rows left") })
	if _, err := access.Ask[job.Change](t.Context(), w.admin, job.VerbJobStop, job.StopWish{ID: j.ID, How: job.Gently}); err != nil {
		t.Fatal(err)
	}
	w.ended(j.ID)
}

// flash gives the reserved rows of a record to cards, as a place does, without devices.
func (l line) flash(ctx context.Context) {
	l.w.t.Helper()
	c, err := place.Load(filepath.Join(l.dir, "place.yml"))
	if err != nil {
		l.w.t.Error(err)
		return
	}
	own := *c.Identity
	own.Table = c.ReservedFile()
	plan, err := identity.NewPlan(filepath.Join(l.dir, "place.yml"), own, nil)
	if err != nil {
		l.w.t.Error(err)
		return
	}
	plan.Grows()
	claims := identity.NewClaims(plan)
	for i := 0; ; i++ {
		claim, err := claims.Reserve(identity.Card{Port: "a"})
		select {
		case <-ctx.Done():
			return
		case <-time.After(5 * time.Millisecond):
		}
		if err != nil {
			continue // no row is free now
		}
		began := time.Now().UTC()
		e := place.Entry{Verdict: "PASS", Taken: true, Port: "a", Stamp: claim.Card.Stamp, Row: claim.Row.Key, Began: began, Finished: began}
		data, _ := json.Marshal(e)
		name := filepath.Join(l.dir, "record", began.Format("2006-01-02"), fmt.Sprintf("%s-%d.json", began.Format("150405.000"), i))
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name+".new", data, 0o600), os.Rename(name+".new", name)); err != nil {
			l.w.t.Error(err)
			return
		}
		claims.Note(claim)
		claims.Release(claim)
	}
}

// Two stations have one table, and are killed at random. Each row is one card's, and each card has one.
func TestOneTableOfTwoStations(t *testing.T) {
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	chance := rand.New(rand.NewPCG(uint64(seed), 0))
	w := newWorld(t, 2*time.Second)
	var rows []string
	for i := range 40 {
		rows = append(rows, fmt.Sprintf("n%02d", i))
	}
	w.addTable("lab", rows...)
	over, stop := context.WithCancel(t.Context())
	defer stop()
	var cards, stations sync.WaitGroup
	for i := range 2 {
		l := w.newLine(fmt.Sprintf("bench-%d", i+1), 1, fmt.Sprintf(identityOf, 6))
		points := []string{"card", "card sent", "rows", "rows kept"}
		at := points[chance.IntN(len(points))]
		stations.Go(func() {
			for _, at := range []string{at, points[(i+2)%len(points)]} {
				r := l.startProcess(at, unix.SIGKILL)
				end := context.AfterFunc(over, func() { _ = r.cmd.Process.Signal(os.Interrupt) }) // it may get no card any more
				r.wait()
				end()
			}
			l.start()
		})
		cards.Go(func() {
			for ; over.Err() == nil; time.Sleep(5 * time.Millisecond) {
				if _, err := os.Stat(filepath.Join(l.dir, "record", "hub-lab.csv")); err == nil {
					l.flash(over)
					return
				}
			}
		})
	}
	w.until("all rows are used", func() bool {
		for _, row := range w.table("lab") {
			if row.Card == "" {
				return false
			}
		}
		return true
	})
	stop()
	cards.Wait()
	stations.Wait()
	has := map[string]string{} // stamps by row
	for _, c := range w.cards() {
		e, err := place.ParseEntry(c.Entry)
		if err != nil || has[e.Row] != "" {
			t.Errorf("%s of %s: %v; the row %s has the card %s, too", c.Name, c.Station, err, e.Row, has[e.Row])
		}
		has[e.Row] = e.Stamp
	}
	for _, row := range w.table("lab") {
		if has[row.Row] != row.Card {
			t.Errorf("the row %s is of card %q; its place says %q", row.Row, row.Card, has[row.Row])
		}
	}
	for _, r := range w.audit() {
		if r.Verb == job.VerbCard {
			t.Errorf("the audit says %q", r.Refused)
		}
	}
}

// The clock of the station's machine was ahead for three days, and is right again. The hub gets all
// cards, also of the next run.
func TestPlaceClock(t *testing.T) {
	t.Parallel()
	w := newWorld(t, longLease)
	l := w.newLine("bench-1", 1, "")
	put := func(name string) {
		at, err := time.Parse(time.DateOnly, name[:10])
		data, _ := json.Marshal(place.Entry{Verdict: "PASS", Port: "a", Began: at, Finished: at})
		name = filepath.Join(l.dir, "record", name)
		if err := errors.Join(err, os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name+".new", data, 0o600), os.Rename(name+".new", name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, day := range []string{"2031-01-01", "2031-01-02", "2031-01-03"} {
		put(day + "/1.json")
	}
	s := l.start()
	w.until("the hub has three cards", func() bool { return w.verdicts() == "map[PASS:3]" })
	w.until("the station notes it", func() bool {
		data, _ := os.ReadFile(filepath.Join(l.state, "places", "line-1"))
		return strings.Count(string(data), "2031-") == 3
	})
	if !strings.Contains(s.log.String(), "the place line-1: its record has the day 2031-01-03, so this machine's clock is behind") {
		t.Errorf("log = %s; want that the clock is wrong", s.log)
	}
	put("2026-01-01/1.json")
	w.until("the hub has the card of an earlier day", func() bool { return w.verdicts() == "map[PASS:4]" })
	s.end(t)
	put("2031-01-01/2.json")
	put("2025-01-01/1.json")
	l.start()
	w.until("the hub has all", func() bool { return w.verdicts() == "map[PASS:6]" })
}
