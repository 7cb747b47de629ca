package place

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"slipway/flash/device"
	"slipway/flash/flashtest"
	"slipway/flash/identity"
	"slipway/images"
	"slipway/images/statetest"
	"slipway/layers/plaintext"
)

func TestMain(m *testing.M) { statetest.Main(m) }

const (
	mib       = 1 << 20
	imageSize = 12 * mib
	cardSize  = 16 * mib
	fatStart  = 5 * mib
)

var spec = images.Spec{Board: "toy", Flash: images.Flash{Kinds: []string{device.Block}}}

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
	flashtest.CardImage(t, path)
	b := &bench{t: t, shown: map[string]Port{}, states: map[string][]State{}}
	b.image, _ = os.ReadFile(path)
	a := images.Artifact{Board: spec.Board, Key: "0123456789abcdef"}
	err := a.Save(dir)
	if err != nil {
		t.Fatal(err)
	}
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

// counts returns the totals that the screen would show now.
func (b *bench) counts() Totals {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.totals
}

// went returns the states that a port has shown until now.
func (b *bench) went(label string) []State {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.states[label])
}

// run runs the place until the test ends it.
func (b *bench) run(o Options) (stop func() error) {
	ctx, cancel := context.WithCancel(b.t.Context())
	o.Show, o.Tick = b.show, 20*time.Millisecond
	done := make(chan error, 1)
	go func() {
		_, err := Run(ctx, spec, b.artifact, b.config, o)
		done <- err
	}()
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
	err := eachEntry(b.config.Record, func(e Entry) { all = append(all, e) })
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
	flashtest.Attach(t, b.file(0))
	if p = b.wait("a", Known); !strings.Contains(p.Text, "again: true") {
		t.Errorf("the card that came again shows %q", p.Text)
	}
	b.plug(1, cardSize, nil)
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
	if b.totals.String() != "2 good, 0 bad, 1 refused" {
		t.Errorf("totals = %+v; want 2 good, 1 refused", b.totals)
	}
	verdicts := map[string]int{}
	for _, e := range b.entries() {
		verdicts[e.Verdict]++
	}
	if verdicts["PASS"] != 2 || verdicts["KNOWN"] != 1 || verdicts["REFUSED"] != 1 {
		t.Errorf("the record has %v", verdicts)
	}
}

// What is plugged into a port without a name is named, and not touched. What was there before is
// not named.
func TestPlaceUnnamedPort(t *testing.T) {
	needRoot(t)
	b := newBench(t, 1, "")
	_, before := flashtest.Loop(t, cardSize)
	stop := b.run(Options{})
	b.wait("a", Empty)
	card, after := flashtest.Loop(t, cardSize)
	untouched, _ := os.ReadFile(after)
	p := b.wait("loop:"+after, Unnamed)
	if !strings.Contains(p.Text, "not touched: what is at loop:"+after+", a port that is not in place.yml") || p.Device != card {
		t.Errorf("the port without a name shows %+v", p)
	}
	flashtest.Detach(t, card)
	b.wait("loop:"+after, Empty)
	if err := stop(); err != nil || len(b.entries()) > 0 {
		t.Errorf("Run = %v, with entries %+v", err, b.entries())
	}
	if _, shown := b.shown["loop:"+before]; shown {
		t.Error("a disk that was there before is shown")
	}
	if content, _ := os.ReadFile(after); string(content) != string(untouched) {
		t.Error("the card at a port without a name was changed")
	}
}

// The run ends after the count.
func TestPlaceCount(t *testing.T) {
	needRoot(t)
	b := newBench(t, 2, "")
	b.plug(0, cardSize, nil)
	b.plug(1, cardSize, nil)
	o := Options{Count: 1, Show: b.show, Tick: 20 * time.Millisecond}
	if _, err := Run(t.Context(), spec, b.artifact, b.config, o); err != nil {
		t.Fatal(err)
	}
	if b.totals.Good != 1 || len(b.entries()) != 1 {
		t.Errorf("totals = %+v with %d entries; want 1 good", b.totals, len(b.entries()))
	}
}

// A dry run says at each port what a run would do there, with a row of its own, and changes
// nothing.
func TestPlaceDryRun(t *testing.T) {
	needRoot(t)
	b := newBench(t, 5, (*bench)(nil).rows(t, 3))
	stop := b.run(Options{})
	b.plug(0, cardSize, nil)
	b.wait("a", Pass)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	b.plug(1, cardSize, nil)
	b.plug(2, cardSize, nil)
	b.plug(3, cardSize, nil)
	flashtest.MustRun(t, "mke2fs", "-q", "-F", "-L", "photos", b.plug(4, cardSize, nil))
	before, entries := b.cards(), b.entries()
	for range 2 { // the first one takes no row
		var out strings.Builder
		if err := DryRun(t.Context(), &out, spec, b.artifact, b.config, Options{}); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(out.String(), "\n")
		for i, want := range []string{"would not be written: written ", "would be written, row cam-2 if it comes first", "would be written, row cam-3 if it comes first", "would not be written: ", `"photos"; overwrite: true`} {
			if !strings.HasPrefix(lines[i], string(rune('a'+i))+" (loop:") || !strings.Contains(lines[i], want) {
				t.Errorf("line %d is %q; want %q", i, lines[i], want)
			}
		}
		if !strings.Contains(lines[3], "no row is free: of 3, 1 are used, and 2 in work") {
			t.Errorf("without a free row: %q", lines[3])
		}
	}
	p, err := open(t.Context(), spec, b.artifact, b.config, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if p.totals.Good != 1 || len(p.totals.last) > 0 {
		t.Errorf("a later run begins with %+v; want 1 good, and no pace", p.totals)
	}
	p.close()
	if !slices.Equal(b.cards(), before) || len(b.entries()) != len(entries) {
		t.Error("the dry run changed a card or the record")
	}
}

// cards returns the content of the cards at all ports.
func (b *bench) cards() (all []string) {
	b.t.Helper()
	for i := range len(b.config.Ports) {
		content, err := os.ReadFile(b.file(i))
		if err != nil {
			b.t.Fatal(err)
		}
		all = append(all, string(content))
	}
	return all
}

// Without the partition of its identities, a place does not start, and a dry run says so too.
func TestPlaceWithoutPartition(t *testing.T) {
	b := newBench(t, 1, strings.Replace((*bench)(nil).rows(t, 1), "form: nocloud", "form: nocloud, partition: config", 1))
	ctx, cancel := context.WithCancel(t.Context())
	_, runErr := Run(ctx, spec, b.artifact, b.config, Options{Show: func([]Port, Totals) { cancel() }})
	for name, err := range map[string]error{"Run": runErr, "DryRun": DryRun(t.Context(), &strings.Builder{}, spec, b.artifact, b.config, Options{})} {
		if err == nil || !strings.Contains(err.Error(), `place.yml:2:1: the image has no partition config; it has "root" "CIDATA"`) {
			t.Errorf("%s = %v; want an error of the partition", name, err)
		}
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

// rows is a table of two rows, with the files of each in FAT.
func (b *bench) rows(t *testing.T, count int) string {
	t.Helper()
	table := filepath.Join(t.TempDir(), "boards.csv")
	text := "host,motd\n"
	for i := range count {
		text += fmt.Sprintf("cam-%d,I am %d\n", i+1, i+1)
	}
	flashtest.Put(t, table, text)
	return "identity: {table: " + table + ", form: nocloud, hostname: '{{host}}', files: {etc/motd: '{{motd}}'}}\n"
}

// hostOf returns the host's name in the user-data of the card at a port.
func (b *bench) hostOf(port int) string {
	b.t.Helper()
	out, err := exec.Command("mtype", "-i", fmt.Sprintf("%s@@%d", b.file(port), fatStart), "::/meta-data").Output()
	if err != nil {
		b.t.Fatalf("mtype: %v", err)
	}
	_, host, _ := strings.Cut(string(out), "local-hostname: ")
	return strings.Trim(strings.TrimSpace(plaintext.FirstLine(host)), `"'`)
}

// A card that this place made is written again, if place.yml says so, and counts once. If it has
// another product by now, it is refused, and counts still. Its stamp is left.
func TestPlaceOtherUseOfACard(t *testing.T) {
	needRoot(t)
	b := newBench(t, 1, "again: true\n")
	b.run(Options{})
	card := b.plug(0, cardSize, nil)
	for range 2 {
		b.wait("a", Pass)
		flashtest.Detach(t, card)
		b.wait("a", Empty)
		card = flashtest.Attach(t, b.file(0))
	}
	b.wait("a", Pass)
	flashtest.Detach(t, card)
	b.wait("a", Empty)
	cmd := exec.Command("/sbin/sfdisk", "--quiet", "--wipe=never", b.file(0))
	cmd.Stdin = strings.NewReader("label: gpt\nname=photos, start=10240\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	flashtest.Attach(t, b.file(0))
	if p := b.wait("a", Refused); !strings.Contains(p.Text, "it holds something else") || b.counts().String() != "1 good, 0 bad" {
		t.Errorf("the card with another product shows %q, and the totals are %s", p.Text, b.counts())
	}
}

// Each card gets a row of its own. The same card gets its own row again, and without a free row the
// next one stays as it is.
func TestPlaceRows(t *testing.T) {
	needRoot(t)
	b := newBench(t, 3, (*bench)(nil).rows(t, 2)+"again: true\n")
	stop := b.run(Options{})
	b.plug(0, cardSize, nil)
	first := b.wait("a", Pass)
	b.plug(1, cardSize, nil)
	second := b.wait("b", Pass)
	if first.Row != "cam-1" || second.Row != "cam-2" || b.hostOf(0) != "cam-1" || b.hostOf(1) != "cam-2" {
		t.Errorf("rows %q and %q, hosts %q and %q", first.Row, second.Row, b.hostOf(0), b.hostOf(1))
	}
	b.plug(2, cardSize, nil)
	if p := b.wait("c", Refused); !strings.Contains(p.Text, "no row is free") {
		t.Errorf("without a free row the port shows %q", p.Text)
	}
	if got, _ := os.ReadFile(b.file(2)); string(got) != string(make([]byte, cardSize)) {
		t.Error("the card without a row was written")
	}
	flashtest.Detach(t, first.Device)
	b.wait("a", Empty)
	flashtest.Attach(t, b.file(0))
	again := b.wait("a", Pass)
	if totals := b.counts(); totals.String() != "2 good, 0 bad, 1 refused" {
		t.Errorf("totals = %s; want 2 good: one was written twice", totals)
	}
	if again.Row != "cam-1" || !strings.Contains(again.Text, "before: ") || b.hostOf(0) != "cam-1" {
		t.Errorf("the card that came again has row %q, and the port shows %q", again.Row, again.Text)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}

// endsWithClaim ends once a row is claimed.
type endsWithClaim struct {
	context.Context
	dir string
}

var errKilled = errors.New("killed")

func (c endsWithClaim) Err() error {
	if claims, _ := filepath.Glob(filepath.Join(c.dir, "[0-9]*", "*.json")); len(claims) > 0 {
		return errKilled
	}
	return nil
}

// After a kill between the claim and the end, the same card gets its row, and no other one does.
func TestPlaceKilledAtTheClaim(t *testing.T) {
	needRoot(t)
	rows := (*bench)(nil).rows(t, 2)
	b := newBench(t, 1, rows)
	card := b.plug(0, cardSize, nil)
	ctx := endsWithClaim{context.Background(), b.config.Record}
	p, err := open(ctx, spec, b.artifact, b.config, Options{})
	if err != nil {
		t.Fatal(err)
	}
	plugged, err := device.Plugged()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(plugged, func(d device.Device) bool { return d.Path == card })
	if _, err := p.writeCard(ctx, p.ports[0], plugged[i], &Entry{Port: p.ports[0].Port, Began: time.Now().UTC()}); !errors.Is(err, errKilled) {
		t.Fatalf("writeCard = %v; want %v", err, errKilled)
	}
	p.close()
	flashtest.Detach(t, card)
	other := filepath.Join(t.TempDir(), "other")
	if err := os.Rename(b.file(0), other); err != nil {
		t.Fatal(err)
	}
	b.run(Options{})
	b.plug(0, cardSize, nil)
	if p := b.wait("a", Pass); p.Row != "cam-2" {
		t.Errorf("another card got row %q; want cam-2", p.Row)
	}
	flashtest.Detach(t, b.wait("a", Pass).Device)
	b.wait("a", Empty)
	if err := os.Rename(other, b.file(0)); err != nil {
		t.Fatal(err)
	}
	flashtest.Attach(t, b.file(0))
	if p := b.wait("a", Pass); p.Row != "cam-1" || b.hostOf(0) != "cam-1" {
		t.Errorf("the card of the killed run got row %q; want its own, cam-1", p.Row)
	}
}

// A port that fails too often is closed, and its program of after gets each result.
func TestPlaceAfterAndClosed(t *testing.T) {
	needRoot(t)
	log := filepath.Join(t.TempDir(), "log")
	tool, reason := filepath.Join(t.TempDir(), "label"), strings.Repeat("the printer has no paper, ", 20)+"and no ink"
	flashtest.Put(t, tool, "#!/bin/sh\necho \"$@\" >>"+log+"\necho begun\necho "+reason+"\nexit 3\n")
	if err := os.Chmod(tool, 0o755); err != nil {
		t.Fatal(err)
	}
	b := newBench(t, 1, "failures: 2\nafter: ["+tool+", '{label}', '{verdict}', '{cause}']\n")
	dir := t.TempDir() // with less room than the card says
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("no file system in memory: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	file := filepath.Join(dir, "card")
	b.config.Ports = map[string]string{"loop:" + file: "a"}
	flashtest.Put(t, file, "")
	if err := os.Truncate(file, cardSize); err != nil {
		t.Fatal(err)
	}
	b.run(Options{})
	card := flashtest.Attach(t, file)
	p := b.wait("a", Fail)
	if e := b.entries()[0]; p.Note != "label: exit status 3: "+reason || e.Note != p.Note {
		t.Errorf("the notes are %q and %q; want the program's last line", p.Note, e.Note)
	}
	if p.Text != "lies about its size" {
		t.Errorf("the port shows %q; want an error of the card", p.Text)
	}
	flashtest.Detach(t, card)
	b.wait("a", Empty)
	flashtest.Attach(t, file)
	if p = b.wait("a", Closed); !strings.Contains(p.Text, "2 failures") {
		t.Errorf("the closed port shows %q", p.Text)
	}
	if got, _ := os.ReadFile(log); strings.Count(string(got), "a FAIL lies about its size") != 2 {
		t.Errorf("the program was called with %q", got)
	}
}

// A run whose record cannot be written ends, and the card of that moment is not whole.
func TestPlaceWithoutRecord(t *testing.T) {
	needRoot(t)
	b := newBench(t, 1, (*bench)(nil).rows(t, 2))
	stop := b.run(Options{})
	b.wait("a", Empty)
	day := filepath.Join(b.config.Record, time.Now().UTC().Format(dayForm))
	flashtest.Put(t, day, "where a folder should be")
	b.plug(0, cardSize, nil)
	b.wait("a", Fail)
	if err := stop(); err == nil || !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("Run = %v; want an error of the record", err)
	}
	if got, _ := os.ReadFile(b.file(0)); string(got[:512]) != string(make([]byte, 512)) {
		t.Error("the card without a record has a partition table")
	}
}

// A place never has another one's record, and its lock ends with it.
func TestRecordLocked(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "record")
	r, err := openRecord(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openRecord(dir, nil); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("in use by process %d, since ", os.Getpid())) {
		t.Errorf("openRecord = %v; want an error", err)
	}
	r.unlock()
	again, err := openRecord(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer again.unlock()
}

// What is no product of the image is refused, also if its first partition begins at the same place.
func TestPlaceHoldsSomethingElse(t *testing.T) {
	needRoot(t)
	for name, fill := range map[string]func(card string){
		"one FAT at the image's first partition": func(card string) {
			flashtest.MustRun(t, "/bin/sh", "-c", "printf 'label: dos\\nstart=2048, type=c\\n' | /sbin/sfdisk --quiet --no-reread --no-tell-kernel "+card)
			flashtest.MustRun(t, "mformat", "-i", card+"@@1M", "-v", "PHOTOS", "-T", "20000", "-h", "16", "-s", "63", "::")
		},
		"random data without a table": func(card string) { flashtest.Scribble(t, card, 0, flashtest.Random(mib)) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, 1, "")
			flashtest.Put(t, b.file(0), "")
			if err := os.Truncate(b.file(0), cardSize); err != nil {
				t.Fatal(err)
			}
			fill(b.file(0))
			before, _ := os.ReadFile(b.file(0))
			b.run(Options{})
			flashtest.Attach(t, b.file(0))
			if p := b.wait("a", Refused); !strings.Contains(p.Text, "it holds something else") {
				t.Errorf("the port shows %q", p.Text)
			}
			if after, _ := os.ReadFile(b.file(0)); string(after) != string(before) {
				t.Error("the card was changed")
			}
		})
	}
}

// A second Ctrl-C ends what is being written: that card is neither good nor bad.
func TestPlaceStopped(t *testing.T) {
	needRoot(t)
	b := newBench(t, 1, "")
	now := make(chan struct{})
	close(now)
	b.plug(0, cardSize, nil)
	stop := b.run(Options{Now: now})
	b.wait("a", Stopped)
	if err := stop(); err != nil || b.totals.Good+b.totals.Bad != 0 || !b.totals.ending {
		t.Errorf("Run = %v, totals %+v", err, b.totals)
	}
}

// A blank card with the serial of one that is whole is that card, erased, or another one: nobody
// can tell, so that it gets no row without "again".
func TestPlaceSameSerial(t *testing.T) {
	needRoot(t)
	for _, again := range []bool{false, true} {
		b := newBench(t, 1, fmt.Sprintf("again: %v\n", again))
		p, err := open(t.Context(), spec, b.artifact, b.config, Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer p.close()
		d, err := device.Examine(b.plug(0, cardSize, nil))
		if err != nil {
			t.Fatal(err)
		}
		d.Bus, d.Serial = "mmc", "0x1234"
		prove := func() (before string, err error) {
			e := Entry{Port: d.Port, Device: d, Serial: d.Serial}
			err = p.proveDisk(d, &e)
			return e.Before, err
		}
		if before, err := prove(); err != nil || before != "" {
			t.Errorf("a new card: %q, %v", before, err)
		}
		if err := p.record.take(&Entry{Device: d, Serial: d.Serial, Stamp: identity.NewStamp(), Began: time.Now(), Row: "cam-1"}); err != nil {
			t.Fatal(err)
		}
		before, err := prove()
		if refused := err != nil && strings.Contains(err.Error(), "a card with its serial"); refused == again || again && !strings.Contains(before, "row cam-1") {
			t.Errorf("again %v: %q, %v", again, before, err)
		}
		if d.Serial = "0x00000000"; ownSerial(d) != "" {
			t.Error("zeros are a serial")
		}
	}
}

// A board that is no disk gets the image of place.yml, only if one of its signers signed that, and
// no file with an identity.
func TestPlaceWithoutDisk(t *testing.T) {
	dir := t.TempDir()
	flashtest.Put(t, filepath.Join(dir, "image.bfb"), "not signed")
	flashtest.Put(t, filepath.Join(dir, "signers"), "")
	config := "image: " + filepath.Join(dir, "image.bfb") + "\nsigners: " + filepath.Join(dir, "signers") + "\nports: {pcie-0000:03:00.2: dpu}\n"
	c, err := parse(filepath.Join(dir, "place.yml"), []byte(config))
	if err != nil {
		t.Fatal(err)
	}
	p := &Place{config: c}
	if o := p.flashOptions(); o.Image != c.Image || o.Signers != c.Signers || o.Image == "" || o.Signers == "" {
		t.Errorf("options = %+v; want the image and signers of place.yml", o)
	}
	dpu := images.Spec{Board: "dpu", Flash: images.Flash{Kinds: []string{device.RShim}}}
	if c, err = parse(filepath.Join(dir, "place.yml"), []byte(config+(*bench)(nil).rows(t, 1))); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := Run(ctx, dpu, images.Artifact{}, c, Options{Show: func([]Port, Totals) { cancel() }}); err == nil || !strings.Contains(err.Error(), "place.yml:4:1: board dpu takes no disk image") {
		t.Errorf("Run = %v; want that a DPU gets no identity", err)
	}
}
