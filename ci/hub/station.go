package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"slipway/ci/job"
	"slipway/layers/bus"
)

// errNoLease is the answer to a station whose lease is over, or another run's.
var errNoLease = fmt.Errorf("the lease is over, or another run of this station has it: %w", bus.ErrConflict)

// leaseOf returns who holds a station's lease, and when it was renewed.
func (h *Hub) leaseOf(station string) (a job.Alive, at time.Time, held bool) {
	a, e, held := get[job.Alive](h.index, "alive", bus.Key(station))
	return a, e.at, held
}

// hello gives a station its lease, and keeps what it is.
func (h *Hub) hello(ctx context.Context, who string, in job.Hello) (job.Lease, error) {
	s := in.Station
	if s.Name != who || s.Instance == "" {
		return job.Lease{}, fmt.Errorf("a station %q cannot speak for %q", who, s.Name)
	}
	key := bus.Key(who)
	revision, err := h.takeLease(ctx, key, job.Alive{Instance: s.Instance, Epoch: s.Epoch, FreeBytes: s.FreeBytes})
	if errors.Is(err, bus.ErrConflict) {
		return job.Lease{}, h.explainTaken(who, err)
	}
	if err != nil {
		return job.Lease{}, err
	}
	before, old, known := get[job.Station](h.index, "stations", key)
	if known { // else it is new, and may know its names
		s.Draining, s.Names = before.Draining, before.Names
	}
	_, err = h.write(ctx, h.stations, key, s, old.revision)
	return h.leaseFor(s, revision), err
}

// leaseFor is what a station with a lease hears.
func (h *Hub) leaseFor(s job.Station, revision uint64) job.Lease {
	return job.Lease{Revision: revision, TTLMS: h.lease.Milliseconds(), Draining: s.Draining, Names: s.Names}
}

// takeLease writes a lease at the revision that its holder knows. The lease of an earlier run of the
// same state folder is over, as the folder's lock says. So is one of this run whose answer was lost.
func (h *Hub) takeLease(ctx context.Context, key string, a job.Alive) (uint64, error) {
	now := job.Alive{Instance: a.Instance, Epoch: a.Epoch, FreeBytes: a.FreeBytes}
	revision, err := h.write(ctx, h.alive, key, now, a.Revision)
	if !errors.Is(err, bus.ErrConflict) || h.index.reread(ctx, h.alive, key) != nil {
		return revision, err
	}
	if old, e, held := get[job.Alive](h.index, "alive", key); held && a.Follows(old) {
		return h.write(ctx, h.alive, key, now, e.revision)
	}
	return 0, err
}

// explainTaken names the run that has a station's lease.
func (h *Hub) explainTaken(station string, err error) error {
	if _, at, held := h.leaseOf(station); held && h.station(station).Name != "" {
		return fmt.Errorf("%s runs on the machine %s, last heard %s: %w", station, h.station(station).Machine, at.UTC().Format(time.RFC3339), err)
	}
	return fmt.Errorf("%s is taken by another run: %w", station, err)
}

// renew renews a lease at its revision.
func (h *Hub) renew(ctx context.Context, who string, in job.Alive) (job.Lease, error) {
	if in.Instance == "" { // no run of a station is without a name
		return job.Lease{}, errNoLease
	}
	revision, err := h.takeLease(ctx, bus.Key(who), in)
	if errors.Is(err, bus.ErrConflict) {
		return job.Lease{}, errNoLease
	}
	return h.leaseFor(h.station(who), revision), err
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
	entries, _ := h.index.list("boards", bus.Key(who)+".")
	old := map[string]entry{}
	for _, e := range entries {
		old[e.key] = e
	}
	for _, b := range in.Boards {
		if err := errors.Join(job.CheckName("the board's name", b.Name), job.CheckName("the board", b.Board)); err != nil {
			return nothing{}, err
		}
		key := bus.Key(who, b.Name)
		was, known := old[key].holds.(*job.Board)
		if b.Has = nil; known {
			b.Has = was.Has
		}
		data, err := json.Marshal(b)
		if err == nil {
			b, err = job.Parse[job.Board](data) // as it will be read
		}
		if err == nil && !(known && reflect.DeepEqual(*was, b)) {
			_, err = h.write(ctx, h.boards, key, b, old[key].revision)
		}
		if err != nil {
			return nothing{}, err
		}
		delete(old, key)
	}
	for key, e := range old {
		if err := h.boards.Delete(ctx, key, e.revision); err != nil {
			return nothing{}, err
		}
	}
	return nothing{}, nil
}

// listBoards returns a part of the boards: all, or those of a name or a kind.
func (h *Hub) listBoards(_ context.Context, _ string, in job.ListWish) (out job.BoardList, _ error) {
	some, next := part(h.index, "boards", in.After, func(b *job.Board) bool { return in.Board == "" || in.Board == b.Name || in.Board == b.Board })
	for _, b := range some {
		_, _, heard := h.leaseOf(stationOf(b.key))
		out.Boards = append(out.Boards, job.HubBoard{Board: b.form, Station: stationOf(b.key), Heard: heard})
	}
	out.Next = next
	return out, nil
}

func (h *Hub) listStations(_ context.Context, _ string, _ nothing) (all job.StationList, _ error) {
	stations := list[job.Station](h.index, "stations", "")
	for _, s := range stations {
		a, at, heard := h.leaseOf(s.form.Name)
		if heard {
			s.form.FreeBytes = a.FreeBytes
		}
		all.Stations = append(all.Stations, job.HubStation{Station: s.form, Heard: heard, At: at})
	}
	return all, nil
}

// drain asks a station to take no more jobs, or to take them again.
func (h *Hub) drain(ctx context.Context, _ string, in job.Drain) (nothing, error) {
	return h.changeStation(ctx, in.Station, func(s *job.Station) error {
		s.Draining = !in.Back
		return nil
	})
}

// changeStation changes what a station hears with its lease.
func (h *Hub) changeStation(ctx context.Context, name string, change func(*job.Station) error) (nothing, error) {
	_, _, err := edit(ctx, h, h.stations, bus.Key(name), func(s *job.Station, known bool) error {
		if !known {
			return fmt.Errorf("no station %q\nnext: slipway station list", name)
		}
		return change(s)
	})
	return nothing{}, err
}

// nameDevice asks a station to give a device a name, which it keeps.
func (h *Hub) nameDevice(ctx context.Context, _ string, in job.NameDevice) (nothing, error) {
	b, _, _ := get[job.Board](h.index, "boards", bus.Key(in.Station, in.Device))
	if !b.Open {
		return nothing{}, fmt.Errorf("%s announces no device %s that needs a name\nnext: slipway hub boards", in.Station, in.Device)
	}
	n := job.DeviceName{Port: b.Device, Name: in.Name, Board: in.Board}
	if err := n.Check(); err != nil {
		return nothing{}, err
	}
	if _, taken := h.index.get("boards", bus.Key(in.Station, in.Name)); taken && in.Name != in.Device {
		return nothing{}, fmt.Errorf("%s has a board %s already", in.Station, in.Name)
	}
	return h.changeStation(ctx, in.Station, func(s *job.Station) error {
		others := slices.DeleteFunc(slices.Clone(s.Names), func(old job.DeviceName) bool { return old.Port == n.Port || old.Name == n.Name })
		if len(others) >= job.MaxNames {
			return fmt.Errorf("%s has %d names from here: write further ones into its station.yml", in.Station, job.MaxNames)
		}
		s.Names = append(others, n)
		return nil
	})
}
