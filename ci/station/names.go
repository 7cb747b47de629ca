package station

import (
	"context"
	"errors"
	"path/filepath"
	"slices"

	"slipway/ci/job"
	"slipway/layers/localfile"
)

// Admins can name devices that station.yml does not name. The names come with the lease, and this
// station keeps them in its state folder. Nothing in station.yml yields to them.

// deviceNames returns the names that were given.
func (s *station) deviceNames() []job.DeviceName {
	s.boards.mu.Lock()
	defer s.boards.mu.Unlock()
	return s.boards.names
}

// takeNames takes names from the hub, unless they are known. It keeps them before it uses them.
func (s *station) takeNames(names []job.DeviceName) {
	if len(names) == 0 || len(names) > job.MaxNames || slices.Equal(names, s.deviceNames()) {
		return
	}
	for _, n := range names {
		if err := n.Check(); err != nil {
			s.sayError(context.Background(), "names that the hub sent", err)
			return
		}
	}
	r := s.record
	r.Names = names
	if err := localfile.WriteJSON(filepath.Join(s.State, recordName), r, 0o600); err != nil {
		s.sayError(context.Background(), "keep the names of devices", err) // the next renewal has them again
		return
	}
	s.boards.mu.Lock()
	s.boards.names, s.boards.all = names, nil
	s.boards.mu.Unlock()
	notify(s.boards.dirty)
}

// addNamed adds the boards that admins named. A name or a port that another board here has is refused.
func (s *station) addNamed(all map[string]local, used map[string]bool) {
	for _, n := range s.boards.names {
		if n.Name == "" {
			continue
		}
		_, taken := all[n.Name]
		for name, b := range s.config.Boards {
			taken = taken || name == n.Name || b.Port == n.Port
		}
		for _, p := range s.config.Places {
			taken = taken || p.config.Ports[n.Port] != ""
		}
		if taken {
			s.sayError(context.Background(), "the name "+n.Name+" of the device at "+n.Port, errors.New("another board here has the name or the port"))
			continue
		}
		b := local{Board: job.Board{V: job.Version, Name: n.Name, Board: n.Board}}
		b.plugIn(n.Port, s.boards.devices, used)
		b.Device, b.Open = n.Port, true
		all[n.Name] = b
	}
}
