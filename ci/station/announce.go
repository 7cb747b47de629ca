package station

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"slipway/ci/fleet"
	"slipway/ci/job"
	"slipway/flash/device"
	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// local is a board of this station: what the hub is told, and how a job reaches it.
type local struct {
	job.Board
	how job.How
}

// boards are the boards of a station, as the devices that are plugged in make them.
type boards struct {
	mu      sync.Mutex
	devices map[string]device.Device // by path
	all     map[string]local
	last    map[string]job.Last // result of each board
	runs    map[string]string   // version of each board
	names   []job.DeviceName    // that admins gave
	notes   map[string]string   // why a board or a place takes no job now
	dirty   chan struct{}       // holds one: the hub is to be told
}

func newBoards() boards {
	return boards{devices: map[string]device.Device{}, last: map[string]job.Last{}, runs: map[string]string{}, notes: map[string]string{}, dirty: make(chan struct{}, 1)}
}

// notify puts a value into a channel that holds one.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// watchDevices keeps the list of devices until ctx ends.
func (s *station) watchDevices(ctx context.Context) error {
	var files []string
	for _, b := range s.config.Boards {
		if name, isFile := strings.CutPrefix(b.Device, device.FilePrefix); isFile {
			files = append(files, name)
		}
	}
	for _, d := range s.devices {
		_ = s.plug(device.Change{Action: "present", Device: d}) // never fails
	}
	for ctx.Err() == nil {
		if err := device.Watch(ctx, files, s.plug); err != nil {
			s.say("the devices of this machine: %v", err)
			_ = run.Sleep(ctx, 10*time.Second)
		}
	}
	return nil
}

// plug notes what was plugged in or out.
func (s *station) plug(c device.Change) error {
	s.boards.mu.Lock()
	defer s.boards.mu.Unlock()
	if c.Action == "removed" {
		delete(s.boards.devices, c.Device.Path)
	} else {
		s.boards.devices[c.Device.Path] = c.Device
	}
	s.boards.all = nil
	notify(s.boards.dirty)
	return nil
}

// board returns a board of this station.
func (s *station) board(name string) (local, bool) {
	s.boards.mu.Lock()
	defer s.boards.mu.Unlock()
	b, known := s.list()[name]
	return b, known
}

// list returns all boards. The caller has the mutex.
func (s *station) list() map[string]local {
	if s.boards.all == nil {
		s.boards.all = s.compose()
	}
	return s.boards.all
}

// compose makes the list of all boards from what is configured and what is plugged in.
func (s *station) compose() map[string]local {
	all, used := map[string]local{}, map[string]bool{}
	if inv := s.config.inventory; inv != nil {
		for _, h := range inv.Hosts {
			s.addHost(all, inv, h)
		}
	}
	for name, n := range s.config.Boards {
		b := all[name]
		b.V, b.Name, b.Board.Board, b.how.Power, b.how.Recovery = job.Version, name, n.Board, n.Power, n.Recovery
		if n.Host != "" {
			at := strings.Index(n.Host, "@") // -1 without a user
			b.reachBySSH(fleet.Access{Host: n.Host[at+1:], User: n.Host[:max(at, 0)], Board: n.Board})
		}
		if at := cmp.Or(n.Port, n.Device); at != "" {
			b.plugIn(at, s.boards.devices, used)
		}
		all[name] = b
	}
	for _, kind := range s.config.Virtual {
		b := local{job.Board{V: job.Version, Name: kind, Board: kind}, job.How{Virtual: true}}
		_ = b.reachBySSH(fleet.Access{Board: kind}) // never fails
		b.Does = job.OfBoards
		all[kind] = b
	}
	for name, p := range s.config.Places {
		all[name] = p.board(name, s.boards.notes[name])
		for path, d := range s.boards.devices {
			used[path] = used[path] || p.config.Ports[d.Port] != ""
		}
	}
	s.addNamed(all, used)
	for name, b := range all {
		b.Does = slices.DeleteFunc(slices.Clone(b.Does), func(d job.Do) bool { return !slices.Contains(s.config.Does, d) })
		b.Note = cmp.Or(s.boards.notes[name], b.Note)
		all[name] = b
	}
	for path, d := range s.boards.devices {
		if name := filepath.Base(path); !used[path] && d.Refused == "" && d.HasMedium() && d.Bus != "loop" && job.CheckName("", name) == nil {
			if _, taken := all[name]; !taken {
				note := fmt.Sprintf("it has no name here, and takes no job; name it in station.yml: %s: {board: BOARD, port: %q}", name, cmp.Or(d.Port, path))
				if d.Port != "" {
					note += fmt.Sprintf("; or: slipway station name %s %s NAME --board=BOARD", s.Identity.Name, name)
				}
				all[name] = local{Board: job.Board{V: job.Version, Name: name, Board: d.Kind, Does: []job.Do{}, Device: d.Port, Open: d.Port != "", Shows: show(d), Serial: d.Serial, Note: note}}
			}
		}
	}
	return all
}

// addHost adds a board of the inventory. Its groups are its labels.
func (s *station) addHost(all map[string]local, inv *fleet.Inventory, h *fleet.Host) {
	a, err := inv.ResolveAccess(h)
	a.Board = cmp.Or(s.config.Boards[h.Name].Board, a.Board)
	b := local{Board: job.Board{V: job.Version, Name: h.Name, Board: a.Board, Labels: h.Groups, Serial: a.Serial}}
	if err = cmp.Or(err, job.CheckName("the board's name", h.Name), job.CheckName("slipway_board", a.Board)); err == nil {
		err = b.reachBySSH(a)
	}
	if err != nil {
		s.sayError(context.Background(), inv.File+": the host "+h.Name+" is left out", err)
		return
	}
	all[h.Name] = b
}

func (b *local) reachBySSH(a fleet.Access) (err error) {
	b.Does = []job.Do{job.Deploy, job.Update, job.Smoke}
	b.how.Inventory, err = inventoryOf(b.Name, a)
	return err
}

// plugIn completes a board by the device at a port or a path.
func (b *local) plugIn(at string, devices map[string]device.Device, used map[string]bool) {
	file, isFile := strings.CutPrefix(at, device.FilePrefix)
	for path, d := range devices {
		if d.Port != at && path != at && (!isFile || path != file) {
			continue
		}
		used[path] = true
		b.Serial, b.Shows = cmp.Or(b.Serial, d.Serial), show(d)
		if d.Refused != "" {
			b.Note = "it is not flashed: " + plaintext.OneLine(d.Refused)
			return
		}
		b.Device, b.Token, b.how.Device = at, d.Token(), path
		b.Does = append([]job.Do{job.Flash}, b.Does...)
		return
	}
	if isFile { // the flash makes it, and goes on with it if it is killed
		b.Device, b.Token, b.Shows, b.how.Device = at, file, "a new file", at
		b.Does = append([]job.Do{job.Flash}, b.Does...)
		return
	}
	b.Note = "nothing is plugged in at " + at
}

// show describes a device to who confirms a flash.
func show(d device.Device) string {
	text := strings.TrimSpace(d.Model + " " + d.Serial)
	if d.SizeBytes > 0 {
		text += ", " + device.ExactSize(d.SizeBytes)
	}
	return plaintext.OneLine(strings.TrimPrefix(text+": "+d.ContentSummary(), ", "))
}

// announceBoards tells the hub about the boards whenever they differ from what it knows, until ctx
// ends.
func (s *station) announceBoards(ctx context.Context) error {
	told := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.leased: // of a hub that may have lost what it knew
			told = ""
		case <-s.boards.dirty:
		}
		now := s.announced()
		data, _ := json.Marshal(now) // never fails
		if string(data) == told {
			continue
		}
		if _, err := ask[struct{}](ctx, s, job.VerbBoards, job.Boards{Instance: s.record.instance(), Boards: now}); err != nil {
			s.sayError(ctx, "announce the boards", err)
			notify(s.boards.dirty)
		} else {
			told = string(data)
			s.listAgain()
		}
		_ = run.Sleep(ctx, 2*s.tick) // each board's job and result change it
	}
}

// announced returns all boards with what they do, sorted.
func (s *station) announced() (all []job.Board) {
	busy := s.busy()
	s.boards.mu.Lock()
	defer s.boards.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(s.list())) {
		b := s.list()[name].Board
		b.Job, b.Runs = busy[name], s.boards.runs[name]
		if last, known := s.boards.last[name]; known {
			b.Last = &last
		}
		all = append(all, b)
	}
	return all
}

// noteResult notes a board's result, unless a later one is known.
func (s *station) noteResult(j job.Job, r job.Result, at time.Time) {
	s.boards.mu.Lock()
	defer s.boards.mu.Unlock()
	if s.boards.last[j.Name].At.After(at) { // the IDs of a rollout's jobs say no time
		return
	}
	s.boards.last[j.Name] = job.Last{Job: j.ID, Kind: r.Kind, At: at.UTC()}
	if r.Version != "" {
		s.boards.runs[j.Name] = r.Version
	}
	notify(s.boards.dirty)
}
