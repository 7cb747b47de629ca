package station

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"slipway/ci/fleet"
	"slipway/ci/hub/access"
	"slipway/ci/job"
	"slipway/flash/device"
	"slipway/layers/localfile"
)

// stationOf returns a station that no hub knows, with a station.yml.
func stationOf(t *testing.T, text string) *station {
	t.Helper()
	dir := t.TempDir()
	hosts := "all: {children: {racks: {hosts: {node-1: {ansible_host: 10.0.0.1, slipway_board: orin, slipway_serial: S1}, node-2: {}}}, lab: {hosts: {node-1: }}}}"
	if err := os.WriteFile(filepath.Join(dir, "hosts.yml"), []byte(hosts), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := parseConfig(filepath.Join(dir, "station.yml"), []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return &station{config: c, boards: newBoards()}
}

func TestBoards(t *testing.T) {
	s := stationOf(t, `
inventory: hosts.yml
boards:
  card: {board: pi, port: "usb:2-1", power: ["true"]}
  lab: {board: orin, port: "usb:1-2", host: root@10.0.0.7}
  new: {board: pi, device: "file:new.img"}
  system: {board: pi, port: mmc0}
virtual: [virt]
does: [flash, boot, smoke]
`)
	log := &safeText{}
	s.Log = log
	for _, d := range []device.Device{
		{Path: "/dev/sdx", Kind: device.Block, Bus: "usb", Model: "Flash Drive", Serial: "1421", Port: "usb:2-1", SizeBytes: 16e9},
		{Path: "/dev/mmcblk0", Kind: device.Block, Port: "mmc0", SizeBytes: 8e9, Refused: "it holds the running system"},
		{Path: "/dev/sdy", Kind: device.Block, Bus: "usb", Model: "Stick", Serial: "77", Port: "usb:9-9", SizeBytes: 4e9},
		{Path: "/dev/sdz", Kind: device.Block, Bus: "usb", Port: "usb:9-8", SizeBytes: 4e9, Refused: "mounted"},
		{Path: "/dev/loop0", Kind: device.Block, Bus: "loop", SizeBytes: 4e9},
	} {
		if err := s.plug(device.Change{Action: "present", Device: d}); err != nil {
			t.Fatal(err)
		}
	}
	all := s.list()
	if want := []string{"card", "lab", "new", "node-1", "sdy", "system", "virt"}; !slices.Equal(slices.Sorted(maps.Keys(all)), want) {
		t.Fatalf("boards = %v; want %v", slices.Sorted(maps.Keys(all)), want)
	}
	card := all["card"]
	want := job.Board{V: 1, Name: "card", Board: "pi", Does: []job.Do{job.Flash}, Device: "usb:2-1", Token: "1421", Serial: "1421", Shows: card.Shows}
	if diff := cmp.Diff(want, card.Board); diff != "" || card.how.Device != "/dev/sdx" || !slices.Equal(card.how.Power, []string{"true"}) {
		t.Errorf("card: %s; how %+v", diff, card.how)
	}
	if !strings.Contains(card.Shows, "Flash Drive 1421") || !strings.Contains(card.Shows, "14.9 GiB") {
		t.Errorf("card shows %q; want model, serial and size", card.Shows)
	}
	for name, want := range map[string]struct {
		does []job.Do
		note string
	}{
		"lab":    {[]job.Do{job.Smoke}, "nothing is plugged in at usb:1-2"},
		"new":    {[]job.Do{job.Flash}, ""},
		"node-1": {[]job.Do{job.Smoke}, ""},
		"sdy":    {nil, `name it in station.yml: sdy: {board: BOARD, port: "usb:9-9"}`},
		"system": {nil, "it is not flashed: it holds the running system"},
		"virt":   {[]job.Do{job.Flash, job.Boot, job.Smoke}, ""},
	} {
		if b := all[name]; !slices.Equal(b.Does, want.does) || !strings.Contains(b.Note, want.note) || want.note == "" && b.Note != "" {
			t.Errorf("%s = %+v; want %+v", name, b.Board, want)
		}
	}
	if file := filepath.Join(filepath.Dir(s.config.path), "new.img"); all["new"].Token != file || all["new"].how.Device != "file:"+file {
		t.Errorf("new = %+v; want the token and the device %s, which is beside station.yml", all["new"], file)
	}
	node := all["node-1"]
	if !slices.Equal(node.Labels, []string{"racks", "lab"}) && !slices.Equal(node.Labels, []string{"lab", "racks"}) || !strings.Contains(node.how.Inventory, `"ansible_host":"10.0.0.1"`) {
		t.Errorf("node-1 = %+v; want its groups and address", node)
	}
	if !strings.Contains(log.String(), "the host node-2 is left out") {
		t.Errorf("log = %q; want node-2, whose board is not known", log)
	}
	if err := s.plug(device.Change{Action: "removed", Device: device.Device{Path: "/dev/sdx"}}); err != nil {
		t.Fatal(err)
	}
	if b, _ := s.board("card"); len(b.Does) > 0 || b.Token != "" || !strings.Contains(b.Note, "nothing is plugged in") {
		t.Errorf("card, unplugged = %+v", b.Board)
	}
}

// A virtual disk that appears is announced to the hub, and what no board names takes no job.
func TestAnnounceDevice(t *testing.T) {
	t.Parallel()
	w := newWorld(t, longLease)
	b := w.newBench("bench-1", 1, 1)
	disk := filepath.Join(w.dir, "disk.img")
	text, err := os.ReadFile(b.config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(b.config, append(text, "  card: {board: pi, device: \"file:"+disk+"\"}\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	b.start()
	shows := func(want string) func() bool {
		return func() bool {
			list := w.boards()
			return slices.ContainsFunc(list, func(b job.HubBoard) bool { return b.Name == "card" && strings.Contains(b.Shows, want) })
		}
	}
	w.until("the new file is announced", shows("a new file"))
	if err := os.WriteFile(disk, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	w.until("the file is announced", shows("1.0 MiB"))
}

// Folders go a week after the hub acknowledged the end, and artifacts that no job uses when there are
// too many.
func TestSweep(t *testing.T) {
	s := stationOf(t, "keepGiB: 1")
	s.State, s.works = t.TempDir(), map[string]*work{}
	used := job.Job{ID: "0000000000000003", Name: "b1", Artifact: "hub:orin@sha256:" + strings.Repeat("1", 64)}
	s.works[used.ID] = s.newWork(job.Change{Job: used}, running)
	long := time.Now().Add(-keepFor - time.Minute)
	files := map[string]int{
		"jobs/0000000000000001/ended": 0, "jobs/0000000000000002/ended": 0, "jobs/0000000000000003/order.json": 2,
		"artifacts/" + strings.Repeat("1", 64) + "/a": 900 << 20, "artifacts/2/a": 300 << 20, "projects/2/a": 10, "artifacts/3/a": 300 << 20,
		"artifacts/4.old/a": 10,
	}
	for name, size := range files {
		name = filepath.Join(s.State, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, nil, 0o600), os.Truncate(name, int64(size))); err != nil {
			t.Fatal(err)
		}
	}
	for name, at := range map[string]time.Time{
		"jobs/0000000000000001/ended": long, "jobs/0000000000000003": long,
		"artifacts/" + strings.Repeat("1", 64): long, "artifacts/2": long.Add(time.Hour), "projects/2": long.Add(time.Hour),
	} {
		if err := os.Chtimes(filepath.Join(s.State, name), at, at); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // after the first time
	if err := s.sweep(ctx); err != nil {
		t.Fatal(err)
	}
	for name := range files {
		want := name != "jobs/0000000000000001/ended" && name != "artifacts/4.old/a"
		if got := localfile.Exists(filepath.Join(s.State, name)); got != want {
			t.Errorf("%s is there: %v; want %v", name, got, want)
		}
	}
	if err := os.Truncate(filepath.Join(s.State, "artifacts/3/a"), 1<<30+1); err != nil {
		t.Fatal(err)
	}
	if err := s.sweepArtifacts(); err != nil {
		t.Fatal(err)
	}
	left, _ := filepath.Glob(filepath.Join(s.State, "[ap]r*/*"))
	if want := s.artifactOf(used); len(left) != 1 || left[0] != want {
		t.Errorf("artifacts left = %v; want that of a job alone", left)
	}
}

// An admin names a device that station.yml does not name. The station keeps the name over a restart,
// takes jobs for it, and refuses a name that station.yml has.
func TestNameDevice(t *testing.T) {
	t.Parallel()
	w := newWorld(t, longLease/5) // which is renewed each 2 seconds
	b := w.newBench("bench-1", 1, 1)
	b.devices = []device.Device{{Path: "/dev/sdy", Kind: device.Block, Bus: "usb", Model: "Stick", Serial: "77", Port: "usb:9-9", SizeBytes: 4e9}}
	first := b.start()
	find := func(name string) (found job.HubBoard) {
		for _, b := range w.boards() {
			if b.Name == name {
				found = b
			}
		}
		return found
	}
	name := func(device, name string) error {
		_, err := access.Ask[struct{}](t.Context(), w.admin, job.VerbNameDevice, job.NameDevice{Station: "bench-1", Device: device, Name: name, Board: "pi"})
		return err
	}
	w.until("the device is announced", func() bool { return find("sdy").Open })
	for _, tt := range [][3]string{{"sdy", "b1", "has a board b1 already"}, {"b1", "x", "announces no device b1"}, {"none", "x", "announces no device none"}, {"sdy", "a/b", "is no name"}} {
		if err := name(tt[0], tt[1]); err == nil || !strings.Contains(err.Error(), tt[2]) {
			t.Errorf("name %s %s = %v; want %q", tt[0], tt[1], err, tt[2])
		}
	}
	if err := name("sdy", "card-1"); err != nil {
		t.Fatal(err)
	}
	w.until("the device has its name", func() bool { return slices.Contains(find("card-1").Does, job.Flash) && find("sdy").Name == "" })
	if card := find("card-1"); card.Token != "77" || card.Board.Board != "pi" || card.Device != "usb:9-9" || !card.Open {
		t.Errorf("card-1 = %+v", card.Board)
	}
	if err := name("card-1", "card-2"); err != nil { // a typing error
		t.Fatal(err)
	}
	w.until("it has another name", func() bool { return find("card-2").Open && find("card-1").Name == "" })
	if err := name("card-2", ""); err != nil {
		t.Fatal(err)
	}
	w.until("it has no name any more", func() bool {
		return find("card-2").Name == "" && slices.Equal(find("sdy").Does, nil) && find("sdy").Open
	})
	if err := name("sdy", "card-2"); err != nil {
		t.Fatal(err)
	}
	w.until("it has a name", func() bool { return find("card-2").Open })
	first.end(t)
	w.stop() // a hub that lost its disk hears of the name, too
	if err := os.RemoveAll(filepath.Join(w.dir, "hub", "engine")); err != nil {
		t.Fatal(err)
	}
	w.startHub()
	b.start()
	w.until("it has its name again", func() bool { return slices.Contains(find("card-2").Does, job.Flash) })
	j := job.Job{Station: "bench-1", Name: "card-2", Board: "pi", Steps: []job.Step{{Do: job.Flash, Token: "77"}}, LimitMS: 60_000, StartWithinMS: 60_000}
	added, err := access.Submit(t.Context(), w.admin, j)
	if err != nil {
		t.Fatal(err)
	}
	ended, err := access.Wait(t.Context(), w.admin, added.Job.ID)
	if err != nil || ended.Claim == nil {
		t.Errorf("the job ended as %+v, %v; want that the station took it", ended, err)
	}
}

// What station.yml says does not yield to a name from the hub.
func TestNamesYield(t *testing.T) {
	s := stationOf(t, `boards: {card: {board: pi, port: "usb:2-1"}}`)
	s.State = t.TempDir()
	for path, port := range map[string]string{"/dev/sdx": "usb:2-1", "/dev/sdy": "usb:9-9", "/dev/sdz": "usb:9-8"} {
		_ = s.plug(device.Change{Action: "present", Device: device.Device{Path: path, Kind: device.Block, Bus: "usb", Port: port, SizeBytes: 4e9}})
	}
	names := []job.DeviceName{{Port: "usb:2-1", Name: "mine", Board: "pi"}, {Port: "usb:9-9", Name: "card", Board: "orin"}, {Port: "usb:9-8", Name: "free", Board: "orin"}}
	s.takeNames(append(names, job.DeviceName{Port: "/dev/sda", Name: "system", Board: "pi"}))
	if len(s.deviceNames()) > 0 || localfile.Exists(filepath.Join(s.State, recordName)) {
		t.Errorf("a path was taken for a port: %v", s.deviceNames())
	}
	s.takeNames(names)
	if all := s.list(); all["card"].Board.Board != "pi" || all["card"].Device != "usb:2-1" || all["mine"].Name != "" || all["sdy"].Name == "" || all["free"].Board.Board != "orin" {
		t.Errorf("boards = %+v", all)
	}
}

// The last result is that of the last end: the IDs of a rollout's jobs are in no order.
func TestLastResult(t *testing.T) {
	s := stationOf(t, `boards: {card: {board: pi, port: "usb:2-1"}}`)
	at := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	for i, id := range []string{"8", "2", "5"} {
		hours := []int{1, 3, 2}[i]
		s.noteResult(job.Job{ID: id, Name: "card"}, job.Result{Result: fleet.Result{Kind: fleet.Passed}}, at.Add(time.Duration(hours)*time.Hour))
	}
	if got := s.boards.last["card"].Job; got != "2" {
		t.Errorf("the last result is that of the job %s; want 2", got)
	}
}

// An error is said once, and again after an hour.
func TestSayError(t *testing.T) {
	s := stationOf(t, "{}")
	log := &safeText{}
	s.Log, s.State = log, t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _ = s.sweep(ctx) }()
		for i, want := range []int{1, 1, 2} {
			s.sayError(ctx, "the hub", errors.New("no answer"))
			if got := strings.Count(log.String(), "no answer"); got != want {
				t.Errorf("after %d minutes it was said %d times; want %d", 45*i, got, want)
			}
			time.Sleep(45 * time.Minute)
		}
		cancel()
		synctest.Wait()
	})
}
