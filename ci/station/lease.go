package station

import (
	"context"
	"errors"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"slipway/ci/job"
	"slipway/images"
	"slipway/layers/bus"
	"slipway/layers/localfile"
)

// lease is what this run knows of its key in the hub. Its times are of the boot clock, which also
// counts while the machine is suspended.
type lease struct {
	mu       sync.Mutex
	revision uint64        // 0: another run may have it
	ttl      time.Duration // as the hub says
	sent     time.Duration // when the renewal was sent that the hub took last
	draining bool
	taken    chan struct{} // holds one: the lease is new
}

func newLease() lease { return lease{ttl: 30 * time.Second, taken: make(chan struct{}, 1)} }

// end is the time from which no job may be begun: 25 of 30 seconds after the last renewal was sent.
// 0 is no lease.
func (l *lease) end() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.revision == 0 {
		return 0
	}
	return l.sent + l.ttl*5/6
}

// holds reports whether no other run can have the lease.
func (l *lease) holds() bool { return job.BootTime() < l.end() }

// takes reports whether new jobs may be claimed.
func (l *lease) takes() bool {
	l.mu.Lock()
	draining := l.draining
	l.mu.Unlock()
	return !draining && l.holds()
}

// alive returns what renews the lease, and whether there is one.
func (l *lease) alive(r record) (job.Alive, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return job.Alive{Instance: r.instance(), Epoch: r.Epoch, Revision: l.revision}, l.revision != 0
}

// set notes what the hub says of the lease, and reports whether it is new.
func (l *lease) set(given job.Lease, sent time.Duration) (isNew, changed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	isNew, changed = l.revision == 0, l.draining != given.Draining
	l.revision, l.ttl, l.sent, l.draining = given.Revision, time.Duration(given.TTLMS)*time.Millisecond, sent, given.Draining
	return isNew, changed
}

// lose notes that another run may have the lease, and reports whether that is new.
func (l *lease) lose() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	had := l.revision != 0
	l.revision = 0
	return had
}

// keepLease renews the lease until ctx ends. Once it is lost, it takes it again as soon as it is free.
func (s *station) keepLease(ctx context.Context) error {
	for wait := s.lease.ttl / 3; ctx.Err() == nil; {
		pause(ctx, s.reconnected, wait)
		wait = s.lease.ttl / 3
		err := s.renew(ctx)
		switch {
		case err == nil:
			continue
		case errors.Is(err, bus.ErrConflict) && s.lease.lose():
			s.say("the lease was lost, and nothing more is begun: %v", err)
		case isRefused(err):
			return err
		}
		wait = s.lease.ttl / 30
	}
	return nil
}

// renew renews the lease, or asks for one.
func (s *station) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.lease.ttl/3)
	defer cancel()
	sent := job.BootTime() // what the hub takes later holds longer
	var given job.Lease
	a, held := s.lease.alive(s.record)
	var err error
	if held {
		given, err = ask[job.Lease](ctx, s, job.VerbAlive, a)
	} else {
		given, err = ask[job.Lease](ctx, s, job.VerbHello, job.Hello{Station: s.form()})
	}
	if err != nil {
		return err
	}
	isNew, changed := s.lease.set(given, sent)
	s.takeNames(given.Names)
	if isNew {
		s.say("%s has the lease of %s", s.record.instance(), s.Identity.Name)
		s.forgetRevisions()
		notify(s.lease.taken)
	}
	if isNew || changed {
		s.listAgain()
	}
	return nil
}

// form is what the hub is told of this station.
func (s *station) form() job.Station {
	machine, _ := os.Hostname()
	free, _ := localfile.FreeBytes(s.State) // 0 says that it is not known
	return job.Station{
		V: job.Version, Name: s.Identity.Name, Instance: s.record.instance(), Epoch: s.record.Epoch, Machine: machine,
		Program: images.ThisProgram().Version, Arch: runtime.GOARCH, Parallel: s.Parallel, Builds: slices.Contains(s.config.does, job.Build), FreeBytes: free, Names: s.deviceNames(),
	}
}
