package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"slipway/ci/job"
	"slipway/layers/bus"
)

// errNoLease is the answer to a station whose lease is over, or another run's.
var errNoLease = fmt.Errorf("the lease is over, or another run of this station has it: %w", bus.ErrConflict)

// leaseOf returns who holds a station's lease.
func (h *Hub) leaseOf(station string) (a job.Alive, at time.Time, held bool) {
	e, held := h.index.get("alive", bus.Key(station))
	if held {
		held = json.Unmarshal(e.value, &a) == nil
	}
	return a, e.at, held
}

// hello gives a station its lease, and keeps what it is.
func (h *Hub) hello(ctx context.Context, who string, in job.Hello) (job.Lease, error) {
	s := in.Station
	if s.Name != who || s.Instance == "" {
		return job.Lease{}, fmt.Errorf("a station %q cannot speak for %q", who, s.Name)
	}
	key := bus.Key(who)
	revision, err := h.takeLease(ctx, key, job.Alive{Instance: s.Instance, Epoch: s.Epoch, Revision: in.Revision})
	if errors.Is(err, bus.ErrConflict) {
		return job.Lease{}, h.explainTaken(who, err)
	}
	if err != nil {
		return job.Lease{}, err
	}
	old, _ := h.index.get("stations", key)
	if before, err := job.Parse[job.Station](old.value); err == nil { // else it is new, and may know its names
		s.Draining, s.Names = before.Draining, before.Names
	}
	if _, err := h.write(ctx, h.stations, key, s, old.revision, 0); err != nil {
		return job.Lease{}, err
	}
	return job.Lease{Revision: revision, TTLMS: h.lease.Milliseconds(), Draining: s.Draining, Names: s.Names}, nil
}

// takeLease writes a lease at the revision that its holder knows. The lease of an earlier run of the
// same state folder is over, as the folder's lock says. So is one of this run whose answer was lost.
func (h *Hub) takeLease(ctx context.Context, key string, a job.Alive) (uint64, error) {
	now := job.Alive{Instance: a.Instance, Epoch: a.Epoch}
	revision, err := h.write(ctx, h.alive, key, now, a.Revision, 0)
	if !errors.Is(err, bus.ErrConflict) || h.index.reread(ctx, h.alive, key) != nil {
		return revision, err
	}
	e, held := h.index.get("alive", key)
	var old job.Alive
	if held && json.Unmarshal(e.value, &old) == nil && a.Follows(old) {
		return h.write(ctx, h.alive, key, now, e.revision, 0)
	}
	return 0, err
}

// explainTaken names the run that has a station's lease.
func (h *Hub) explainTaken(station string, err error) error {
	_, at, held := h.leaseOf(station)
	e, known := h.index.get("stations", bus.Key(station))
	if s, parseErr := job.Parse[job.Station](e.value); held && known && parseErr == nil {
		return fmt.Errorf("%s runs on the machine %s, last heard %s: %w", station, s.Machine, at.UTC().Format(time.RFC3339), err)
	}
	return fmt.Errorf("%s is taken by another run: %w", station, err)
}

// renew renews a lease at its revision.
func (h *Hub) renew(ctx context.Context, who string, in job.Alive) (job.Lease, error) {
	revision, err := h.takeLease(ctx, bus.Key(who), in)
	if errors.Is(err, bus.ErrConflict) {
		return job.Lease{}, errNoLease
	}
	e, _ := h.index.get("stations", bus.Key(who))
	s, _ := job.Parse[job.Station](e.value) // of a newer Slipway: none of both
	return job.Lease{Revision: revision, TTLMS: h.lease.Milliseconds(), Draining: s.Draining, Names: s.Names}, err
}

// isDraining reports whether a station, as its key has it, takes no more jobs.
func isDraining(station []byte) bool {
	s, err := job.Parse[job.Station](station)
	return err == nil && s.Draining
}

// away ends a lease, so that the next run of the station need not wait for its end. A renewal whose
// answer the station did not wait for may have changed its revision.
func (h *Hub) away(ctx context.Context, who string, in job.Alive) (nothing, error) {
	if err := h.holdsLease(who, in.Instance); err != nil {
		return nothing{}, err
	}
	e, _ := h.index.get("alive", bus.Key(who))
	return nothing{}, h.alive.Delete(ctx, bus.Key(who), max(in.Revision, e.revision))
}

// holdsLease returns an error unless an instance of a station has its lease.
func (h *Hub) holdsLease(who, instance string) error {
	if a, _, held := h.leaseOf(who); !held || a.Instance != instance {
		return errNoLease
	}
	return nil
}

// setBoards keeps the boards of a station. Those that it no longer names are removed.
func (h *Hub) setBoards(ctx context.Context, who string, in job.Boards) (nothing, error) {
	if err := h.holdsLease(who, in.Instance); err != nil {
		return nothing{}, err
	}
	prefix := bus.Key(who) + "."
	keys, old, _ := h.index.list("boards", prefix)
	for _, b := range in.Boards {
		if err := errors.Join(job.CheckName("the board's name", b.Name), job.CheckName("the board", b.Board)); err != nil {
			return nothing{}, err
		}
		key := prefix + bus.Token(b.Name)
		keys = slices.DeleteFunc(keys, func(k string) bool { return k == key })
		if b.Has = nil; old[key].board != nil {
			b.Has = old[key].board.Has
		}
		data, err := json.Marshal(b)
		if err != nil {
			return nothing{}, err
		}
		if _, err := job.Parse[job.Board](data); err != nil {
			return nothing{}, err
		}
		if string(old[key].value) == string(data) {
			continue
		}
		if _, err := h.write(ctx, h.boards, key, b, old[key].revision, 0); err != nil {
			return nothing{}, err
		}
	}
	for _, key := range keys {
		if err := h.boards.Delete(ctx, key, old[key].revision); err != nil {
			return nothing{}, err
		}
	}
	return nothing{}, nil
}

func (h *Hub) listBoards(_ context.Context, _ string, _ nothing) (list job.BoardList, _ error) {
	keys, entries, _ := h.index.list("boards", "")
	for _, key := range keys {
		if b := entries[key].board; b != nil { // else of a newer Slipway
			station := stationOf(key)
			_, _, heard := h.leaseOf(station)
			list.Boards = append(list.Boards, job.HubBoard{Board: *b, Station: station, Heard: heard})
		}
	}
	return list, nil
}

func (h *Hub) listStations(_ context.Context, _ string, _ nothing) (list job.StationList, _ error) {
	keys, entries, _ := h.index.list("stations", "")
	for _, key := range keys {
		s, err := job.Parse[job.Station](entries[key].value)
		if err != nil {
			continue // of a newer Slipway
		}
		_, at, heard := h.leaseOf(s.Name)
		list.Stations = append(list.Stations, job.HubStation{Station: s, Heard: heard, At: at})
	}
	return list, nil
}

// drain asks a station to take no more jobs, or to take them again.
func (h *Hub) drain(ctx context.Context, _ string, in job.Drain) (nothing, error) {
	return h.changeStation(ctx, in.Station, func(s *job.Station) { s.Draining = !in.Back })
}

// changeStation changes what a station hears with its lease.
func (h *Hub) changeStation(ctx context.Context, name string, edit func(*job.Station)) (nothing, error) {
	key := bus.Key(name)
	e, known := h.index.get("stations", key)
	s, err := job.Parse[job.Station](e.value)
	if !known || err != nil {
		return nothing{}, errors.Join(fmt.Errorf("no station %q\nnext: slipway station list", name), err)
	}
	edit(&s)
	_, err = h.write(ctx, h.stations, key, s, e.revision, 0)
	return nothing{}, err
}

// nameDevice asks a station to give a device a name, which it keeps.
func (h *Hub) nameDevice(ctx context.Context, _ string, in job.NameDevice) (nothing, error) {
	e, _ := h.index.get("boards", bus.Key(in.Station, in.Device))
	if e.board == nil || !e.board.Open {
		return nothing{}, fmt.Errorf("%s announces no device %s that needs a name\nnext: slipway hub boards", in.Station, in.Device)
	}
	n := job.DeviceName{Port: e.board.Device, Name: in.Name, Board: in.Board}
	if err := n.Check(); err != nil {
		return nothing{}, err
	}
	if _, taken := h.index.get("boards", bus.Key(in.Station, in.Name)); taken && in.Name != in.Device {
		return nothing{}, fmt.Errorf("%s has a board %s already", in.Station, in.Name)
	}
	full := false
	_, err := h.changeStation(ctx, in.Station, func(s *job.Station) {
		s.Names = slices.DeleteFunc(s.Names, func(old job.DeviceName) bool { return old.Port == n.Port || old.Name == n.Name })
		if full = len(s.Names) >= job.MaxNames; !full {
			s.Names = append(s.Names, n)
		}
	})
	if full {
		err = fmt.Errorf("%s has %d names from here: write further ones into its station.yml", in.Station, job.MaxNames)
	}
	return nothing{}, err
}
