package station

import (
	"context"
	"errors"
	"os"
	"runtime"
	"slices"
	"time"

	"slipway/ci/job"
	"slipway/images"
	"slipway/layers/bus"
	"slipway/layers/localfile"
)

// lease is what the hub said last of this station's key. Its times are of the boot clock, which also
// counts while the machine is suspended.
type lease struct {
	job.Lease               // without a revision, another run may have it
	sent      time.Duration // when the renewal was sent that the hub took
}

// noLease is that of a station that has none, until the hub says how long one holds.
func noLease(ttl time.Duration) *lease {
	return &lease{Lease: job.Lease{TTLMS: ttl.Milliseconds()}}
}

func (l lease) ttl() time.Duration { return time.Duration(l.TTLMS) * time.Millisecond }

// end is the time from which no job may be begun: 25 of 30 seconds after the last renewal was sent.
// 0 is no lease.
func (l lease) end() time.Duration {
	if l.Revision == 0 {
		return 0
	}
	return l.sent + l.ttl()*5/6
}

// holds reports whether no other run can have the lease.
func (l lease) holds() bool { return job.BootTime() < l.end() }

// keepLease renews the lease until ctx ends. Once it is lost, it takes it again as soon as it is free.
func (s *station) keepLease(ctx context.Context) error {
	for wait := s.lease.Load().ttl() / 3; ctx.Err() == nil; {
		pause(ctx, s.reconnected, wait)
		err := s.renew(ctx)
		ttl := s.lease.Load().ttl()
		if wait = ttl / 3; err == nil {
			continue
		}
		if isRefused(err) {
			return err
		}
		if errors.Is(err, bus.ErrConflict) && s.lease.Swap(noLease(ttl)).Revision != 0 {
			s.say("the lease was lost, and nothing more is begun: %v", err)
		}
		wait = ttl / 30
	}
	return nil
}

// renew renews the lease, or asks for one.
func (s *station) renew(ctx context.Context) error {
	old, now := s.lease.Load(), lease{sent: job.BootTime()} // what the hub takes later holds longer
	ctx, cancel := context.WithTimeout(ctx, old.ttl()/3)
	defer cancel()
	var err error
	if old.Revision != 0 {
		now.Lease, err = ask[job.Lease](ctx, s, job.VerbAlive, s.alive())
	} else {
		now.Lease, err = ask[job.Lease](ctx, s, job.VerbHello, job.Hello{Station: s.form()})
	}
	if err != nil {
		return err
	}
	s.lease.Store(&now)
	s.takeNames(now.Names)
	if old.Revision == 0 {
		s.say("%s has the lease of %s", s.record.instance(), s.Identity.Name)
		s.forgetRevisions()
		notify(s.leased)
	}
	if old.Revision == 0 || old.Draining != now.Draining {
		s.listAgain()
	}
	return nil
}

// alive is what renews the lease, and ends it.
func (s *station) alive() job.Alive {
	free, _ := localfile.FreeBytes(s.State) // 0 says that it is not known
	return job.Alive{Instance: s.record.instance(), Epoch: s.record.Epoch, Revision: s.lease.Load().Revision, FreeBytes: free}
}

// form is what the hub is told of this station.
func (s *station) form() job.Station {
	machine, _ := os.Hostname()
	return job.Station{
		V: job.Version, Name: s.Identity.Name, Instance: s.record.instance(), Epoch: s.record.Epoch, Machine: machine,
		Program: images.ThisProgram().Version, Arch: runtime.GOARCH, Parallel: s.Parallel,
		Builds: slices.Contains(s.config.Does, job.Build), FreeBytes: s.alive().FreeBytes, Names: s.deviceNames(),
	}
}
