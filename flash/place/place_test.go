package place

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"slipway/flash"
	"slipway/flash/device"
	"slipway/flash/flashtest"
	"slipway/images"
	"slipway/images/statetest"
)

func TestMain(m *testing.M) { statetest.Main(m) }

const (
	mib       = 1 << 20
	imageSize = 12 * mib
	cardSize  = 16 * mib
)

var spec = images.Spec{Board: "toy", Flash: images.Flash{Kinds: []string{device.File, device.Block}}}

// bench is a place of a test: an image, ports with loop devices, and what the screen showed last.
type bench struct {
	t        *testing.T
	config   *Config
	artifact images.Artifact
	image    []byte

	mu     sync.Mutex
	shown  map[string]Port
	states map[string][]State // by port, without repetitions
	totals Totals
}

// newBench makes a place with the given number of ports, called a, b and so on.
func newBench(t *testing.T, ports int, extra string) *bench {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "card.img")
	flashtest.Put(t, path, "")
	if err := os.Truncate(path, imageSize); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/sbin/sfdisk", "--quiet", path)
	cmd.Stdin = strings.NewReader("label: gpt\nname=root, start=2048, size=16384\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("sfdisk (Debian package fdisk): %v %s", err, out)
	}
	flashtest.Scribble(t, path, 2*mib, flashtest.Random(3*mib))
	b := &bench{t: t, shown: map[string]Port{}, states: map[string][]State{}}
	b.image, _ = os.ReadFile(path)
	a := images.Artifact{Board: spec.Board, Key: "0123456789abcdef"}
	if err := a.Save(dir); err != nil {
		t.Fatal(err)
	}
	var err error
	if b.artifact, err = images.ReadArtifact(dir); err != nil {
		t.Fatal(err)
	}
	text := "image: " + path + "\n" + extra + "ports:\n"
	for i := range ports {
		text += fmt.Sprintf("  loop:%s: %c\n", filepath.Join(dir, fmt.Sprintf("port%d", i)), 'a'+i)
	}
	config := filepath.Join(dir, "place.yml")
	flashtest.Put(t, config, text)
	if b.config, err = Load(config); err != nil {
		t.Fatal(err)
	}
	return b
}

// file returns the path of the file that stands for the card at a port.
func (b *bench) file(port int) string {
	return filepath.Join(b.artifact.Dir(), fmt.Sprintf("port%d", port))
}

// plug puts a card with this content at its beginning into a port, and returns its device.
func (b *bench) plug(port int, size int64, content []byte) string {
	b.t.Helper()
	name := b.file(port)
	flashtest.Put(b.t, name, string(content))
	if err := os.Truncate(name, size); err != nil {
		b.t.Fatal(err)
	}
	return flashtest.Attach(b.t, name)
}

// show keeps what the screen would show.
func (b *bench) show(ports []Port, totals Totals) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.totals = totals
	for _, p := range ports {
		b.shown[p.Label] = p
		if all := b.states[p.Label]; len(all) == 0 || all[len(all)-1] != p.State {
			b.states[p.Label] = append(all, p.State)
		}
	}
}

// wait waits until a port shows a state.
func (b *bench) wait(label string, state State) (shown Port) {
	b.t.Helper()
	flashtest.Eventually(b.t, label+" to show "+string(state), func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		shown = b.shown[label]
		return shown.State == state
	})
	return shown
}

// run runs the place until the test ends it.
func (b *bench) run(o Options) (stop func() error) {
	ctx, cancel := context.WithCancel(b.t.Context())
	o.Show, o.Tick = b.show, 20*time.Millisecond
	done := make(chan error, 1)
	go func() { done <- Run(ctx, spec, b.artifact, b.config, o) }()
	stop = sync.OnceValue(func() error { cancel(); return <-done })
	b.t.Cleanup(func() { _ = stop() })
	return stop
}

// isImage fails the test unless the card at a port has the image, but for its stamp.
func (b *bench) isImage(port int) {
	b.t.Helper()
	got, err := os.ReadFile(b.file(port))
	if err != nil {
		b.t.Fatal(err)
	}
	clear(got[mib-4096 : mib-4096+64])
	if string(got[:imageSize]) != string(b.image) {
		b.t.Errorf("the card at %d is not the image", port)
	}
}

func (b *bench) entries() (all []Entry) {
	b.t.Helper()
	err := eachEntry(b.config.Record, func(e Entry) error { all = append(all, e); return nil })
	if err != nil {
		b.t.Fatal(err)
	}
	return all
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, for loop devices")
	}
}

// Cards come one after another, and no key is pressed. One that is whole already is known, one with
// another product is refused, and a port without a name is never touched.
func TestPlace(t *testing.T) {
	needRoot(t)
	b := newBench(t, 2, "")
	unnamed, file := flashtest.Loop(t, cardSize)
	before, _ := os.ReadFile(file)
	stop := b.run(Options{})
	first := b.plug(0, cardSize, nil)
	p := b.wait("a", Pass)
	b.isImage(0)
	if p.Device != first || p.Receipt == "" || !strings.Contains(p.Text, " in ") {
		t.Errorf("the port shows %+v", p)
	}
	flashtest.Detach(t, first)
	b.wait("a", Empty)
	first = flashtest.Attach(t, b.file(0))
	if p = b.wait("a", Known); !strings.Contains(p.Text, "again: true") {
		t.Errorf("the card that came again shows %q", p.Text)
	}
	other := flashtest.Random(64)
	b.plug(1, cardSize, append(make([]byte, 446), other...))
	small := b.wait("b", Pass)
	flashtest.Detach(t, small.Device)
	b.wait("b", Empty)
	b.plug(1, imageSize-mib, nil)
	if p = b.wait("b", Refused); !strings.Contains(p.Text, "too small") {
		t.Errorf("the card that is too small shows %q", p.Text)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if after, _ := os.ReadFile(file); string(after) != string(before) {
		t.Errorf("%s, whose port has no name, was changed", unnamed)
	}
	if got := b.states["a"]; got[0] != Check && got[0] != Empty {
		t.Errorf("port a went through %v", got)
	}
	if b.totals.Good != 2 || b.totals.Bad != 1 {
		t.Errorf("totals = %+v; want 2 good, 1 bad", b.totals)
	}
	verdicts := map[string]int{}
	for _, e := range b.entries() {
		verdicts[e.Verdict]++
	}
	if verdicts["PASS"] != 2 || verdicts["KNOWN"] != 1 || verdicts["REFUSED"] != 1 {
		t.Errorf("the record has %v", verdicts)
	}
}

// The run ends after the count.
func TestPlaceCount(t *testing.T) {
	needRoot(t)
	b := newBench(t, 2, "")
	b.plug(0, cardSize, nil)
	b.plug(1, cardSize, nil)
	o := Options{Count: 1, Show: b.show, Tick: 20 * time.Millisecond}
	if err := Run(t.Context(), spec, b.artifact, b.config, o); err != nil {
		t.Fatal(err)
	}
	if b.totals.Good != 1 || len(b.entries()) != 1 {
		t.Errorf("totals = %+v with %d entries; want 1 good", b.totals, len(b.entries()))
	}
}

// What holds another product is refused, unless place.yml says overwrite.
func TestPlaceOverwrite(t *testing.T) {
	needRoot(t)
	for _, overwrite := range []string{"", "overwrite: true\n"} {
		b := newBench(t, 1, overwrite)
		card := b.plug(0, cardSize, nil)
		flashtest.MustRun(t, "mke2fs", "-q", "-F", "-L", "photos", card)
		b.run(Options{})
		if overwrite != "" {
			b.wait("a", Pass)
			b.isImage(0)
			continue
		}
		if p := b.wait("a", Refused); !strings.Contains(p.Text, "photos") {
			t.Errorf("the card with another product shows %q", p.Text)
		}
	}
}

// fixedRows gives each card a row, and counts what happens to it.
type fixedRows struct {
	mu    sync.Mutex
	calls []string
	err   error // of Take
}

func (r *fixedRows) note(call string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, call)
}

func (r *fixedRows) Reserve(c Card, _ *flash.Prepared) (Own, error) {
	r.note("reserve")
	return Own{
		Key: "row1", Stamp: newStamp(), Take: func() error { r.note("take"); return r.err },
		Done: func() error { r.note("done"); return nil }, Release: func() { r.note("release") },
	}, nil
}

// A row is taken before the card is whole. Without that, the card is not whole and the row is free.
func TestPlaceRows(t *testing.T) {
	needRoot(t)
	for _, err := range []error{nil, errors.New("disk full")} {
		b := newBench(t, 1, "")
		rows := &fixedRows{err: err}
		stop := b.run(Options{Rows: rows})
		b.plug(0, cardSize, nil)
		want, state := "reserve take done", Pass
		if err != nil {
			want, state = "reserve take release", Fail
		}
		b.wait("a", state)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(rows.calls, " "); got != want {
			t.Errorf("calls = %q; want %q", got, want)
		}
		if got, _ := os.ReadFile(b.file(0)); err != nil && string(got[:mib]) != string(make([]byte, mib)) {
			t.Error("the card of a row that could not be taken is whole")
		}
	}
}

// A port that fails too often is closed, and its program of after gets each result.
func TestPlaceAfterAndClosed(t *testing.T) {
	needRoot(t)
	log := filepath.Join(t.TempDir(), "log")
	tool := filepath.Join(t.TempDir(), "label")
	flashtest.Put(t, tool, "#!/bin/sh\necho \"$@\" >>"+log+"\nexit 3\n")
	if err := os.Chmod(tool, 0o755); err != nil {
		t.Fatal(err)
	}
	b := newBench(t, 1, "failures: 2\nafter: ["+tool+", '{label}', '{verdict}', '{cause}']\n")
	rows := &fixedRows{err: errors.New("no room for the claim")}
	b.run(Options{Rows: rows})
	card := b.plug(0, cardSize, nil)
	p := b.wait("a", Fail)
	if !strings.Contains(p.Note, "exit status 3") {
		t.Errorf("note = %q; want the failure of the program", p.Note)
	}
	flashtest.Detach(t, card)
	b.wait("a", Empty)
	flashtest.Attach(t, b.file(0))
	if p = b.wait("a", Closed); !strings.Contains(p.Text, "2 failures") {
		t.Errorf("the closed port shows %q", p.Text)
	}
	if got, _ := os.ReadFile(log); strings.Count(string(got), "a FAIL no room for the claim") != 2 {
		t.Errorf("the program was called with %q", got)
	}
}

// A place never has another one's record, and its lock ends with it.
func TestRecordLocked(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "record")
	r, err := openRecord(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openRecord(dir); err == nil || !strings.Contains(err.Error(), "another place's record") {
		t.Errorf("openRecord = %v; want an error", err)
	}
	if err := r.close(); err != nil {
		t.Fatal(err)
	}
	again, err := openRecord(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer again.close()
}
