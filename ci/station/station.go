// Package station is a machine that has boards. It tells a hub about them, claims the hub's jobs for
// them, runs each as a child process, and reports its result once. What was done is in its state
// folder, which it reads before it asks the hub: see job.Folder.
package station

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"slipway/ci/hub/access"
	"slipway/ci/job"
	"slipway/flash/device"
	"slipway/images"
	"slipway/layers/bus"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// Options are what a station needs.
type Options struct {
	Identity access.Identity
	State    string // folder, for one run at a time
	Config   string // path of station.yml; "" is none
	Program  string // this program's path, for the children
	Parallel int    // jobs at once; 0 is what station.yml says
	Log      io.Writer

	// Tests set these.
	reached  func(point string)
	devices  []device.Device // beside those of the machine
	tick     time.Duration   // how often a child's files are read; 0 is half a second
	overtime time.Duration   // in which a child ends after its limit; 0 is 3 minutes
}

// station is one run of the program.
type station struct {
	Options
	config *Config
	record record
	boards boards
	lease  atomic.Pointer[lease]
	leased chan struct{} // holds one: the lease is new

	client, logs atomic.Pointer[access.Client] // logs has a connection of its own: what waits there stops nothing else
	running      sync.WaitGroup
	said         sync.Map      // texts
	reconnected  chan struct{} // holds one: the hub may have lost the lease

	mu         sync.Mutex
	works      map[string]*work  // by ID
	done       map[string]uint64 // revisions of ends that an answer on its way may not know
	cancelPoll context.CancelFunc
	listAll    bool
}

// record is what a state folder says of itself. The place of the folder is a random name, given when
// a run finds that the lock is another file than the last run's: the folder is new, or a copy. Then
// the processes of the jobs in it may live elsewhere.
type record struct {
	Place string `json:"place"`
	Lock  string `json:"lock"`  // inode and birth of the lock's file, which no copy shares
	Epoch int64  `json:"epoch"` // counts the runs

	Names []job.DeviceName `json:"names,omitempty"` // of the last run
}

const recordName = "run.json"

// instance names this run. Runs of one place follow each other, as each holds the lock.
func (r record) instance() string { return fmt.Sprintf("%s-%d", r.Place, r.Epoch) }

// Run is a station until ctx ends. Its children go on then, and the next run finds them.
func Run(ctx context.Context, o Options) error {
	config, err := LoadConfig(o.Config)
	if err != nil {
		return err
	}
	lock, err := localfile.HoldFile(filepath.Join(o.State, "lock"))
	if err != nil {
		return fmt.Errorf("%s: the state folder %s: %w", o.Identity.Name, o.State, localfile.Unwritable(o.State, err))
	}
	defer lock.Close()
	home, err := images.StateHome()
	if err == nil && os.Getenv(images.LocksVariable) == "" {
		err = os.Setenv(images.LocksVariable, filepath.Join(home, "locks")) // the children inherit it
	}
	if err != nil {
		return err
	}
	o.Parallel, o.tick, o.overtime = cmp.Or(o.Parallel, config.Parallel), cmp.Or(o.tick, 500*time.Millisecond), cmp.Or(o.overtime, 3*time.Minute)
	s := &station{
		Options: o, config: config, boards: newBoards(), leased: make(chan struct{}, 1), reconnected: make(chan struct{}, 1),
		works: map[string]*work{}, done: map[string]uint64{},
	}
	s.lease.Store(noLease(30 * time.Second))
	if s.reached == nil {
		s.reached = func(string) {}
	}
	if s.record, err = nextRecord(o.State, lock); err != nil {
		return localfile.Unwritable(o.State, err)
	}
	s.boards.names = s.record.Names
	return s.serve(ctx)
}

// nextRecord counts a run, before the hub hears of it.
func nextRecord(dir string, lock *os.File) (r record, err error) {
	name := filepath.Join(dir, recordName)
	data, err := localfile.Read(name, 1<<20)
	if err == nil {
		err = plaintext.JSONError(json.Unmarshal(data, &r))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return r, fmt.Errorf("%s: %w", name, err)
	}
	var stat unix.Statx_t
	if err := unix.Statx(int(lock.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_INO|unix.STATX_BTIME, &stat); err != nil {
		return r, err
	}
	if now := fmt.Sprintf("%d %d.%d", stat.Ino, stat.Btime.Sec, stat.Btime.Nsec); r.Lock != now {
		r.Lock, r.Place = now, rand.Text()
	}
	r.Epoch++
	return r, errors.Join(localfile.WriteJSON(name, r, 0o600), localfile.SyncFolder(dir))
}

// serve does all that a station does. Children are looked after before a hub is there.
func (s *station) serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	err := s.attach(ctx)
	if err == nil {
		group, ctx := errgroup.WithContext(ctx)
		group.Go(func() error { return s.watchDevices(ctx) })
		group.Go(func() error { return s.sweep(ctx) })
		group.Go(func() error {
			if err := s.connect(ctx); err != nil {
				return err
			}
			group.Go(func() error { return s.keepLease(ctx) })
			group.Go(func() error { return s.announceBoards(ctx) })
			group.Go(func() error { return s.poll(ctx) })
			for name := range s.config.Places {
				group.Go(func() error { return s.keepPlace(ctx, name) })
			}
			return nil
		})
		err = group.Wait()
	}
	cancel()
	s.running.Wait()
	s.disconnect()
	return err
}

// say writes a line into the station's log.
func (s *station) say(format string, args ...any) {
	if s.Log != nil {
		fmt.Fprintln(s.Log, time.Now().UTC().Format(time.RFC3339), plaintext.Printable(fmt.Sprintf(format, args...)))
	}
}

// sayError says an error once, unless ctx ended and so made it.
func (s *station) sayError(ctx context.Context, what string, err error) {
	text := fmt.Sprintf("%s: %v", what, err)
	if err == nil || ctx.Err() != nil {
		return
	}
	if _, said := s.said.LoadOrStore(text, true); !said {
		s.say("%s", text)
	}
}

// connect connects to the hub and gets the lease. It waits for a hub that is away, but not for one
// that refuses this station. Another run that has the lease may have ended with its machine: it has
// not if the hub heard it again meanwhile, as the hub's error says.
func (s *station) connect(ctx context.Context) error {
	taken := ""
	for wait := time.Second; ; wait = min(2*wait, 30*time.Second) {
		err := s.dial(ctx)
		if err == nil {
			if err = s.renew(ctx); err == nil {
				return nil
			}
		}
		if errors.Is(err, bus.ErrConflict) {
			if taken != "" && taken != err.Error() {
				return err
			}
			taken, wait = err.Error(), s.lease.Load().ttl()/30
		}
		if ctx.Err() != nil || isRefused(err) {
			return err
		}
		s.sayError(ctx, "this station waits", err)
		if err := run.Sleep(ctx, wait); err != nil {
			return err
		}
	}
}

func isRefused(err error) bool {
	var certificate *tls.CertificateVerificationError
	refusals := []error{nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrConnectionClosed}
	return errors.As(err, &certificate) || slices.ContainsFunc(refusals, func(one error) bool { return errors.Is(err, one) })
}

// dial makes the connections that are not there yet.
func (s *station) dial(ctx context.Context) error {
	for _, to := range []*atomic.Pointer[access.Client]{&s.client, &s.logs} {
		if to.Load() != nil {
			continue
		}
		c, err := s.Identity.Dial(ctx)
		if err != nil {
			return err
		}
		c.SetReconnectHandler(func(*nats.Conn) {
			s.say("connected to the hub again")
			notify(s.reconnected)
			s.listAgain()
		})
		to.Store(c)
	}
	return nil
}

// disconnect gives the lease back, so that the next run need not wait for its end.
func (s *station) disconnect() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if a := s.alive(); a.Revision != 0 {
		_, _ = ask[struct{}](ctx, s, job.VerbAway, a) // else it expires
	}
	for _, c := range []*access.Client{s.client.Load(), s.logs.Load()} {
		if c != nil {
			c.Close()
		}
	}
}

// How long a request may take. A hub says after 25 s that nothing is new.
const askLimit, waitLimit = 10 * time.Second, 30 * time.Second

// ask asks the hub. A broken connection ends it at once, as no answer comes then.
func ask[Out any](ctx context.Context, s *station, verb string, in any) (out Out, err error) {
	c, limit := s.client.Load(), askLimit
	switch verb {
	case job.VerbLog, job.VerbReport, job.VerbCard:
		c = s.logs.Load()
	case job.VerbMine:
		limit = waitLimit
	}
	if c == nil {
		return out, bus.ErrAway
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	broken := c.StatusChanged(nats.RECONNECTING)
	defer c.RemoveStatusListener(broken) // and closes it
	if !c.IsConnected() && !c.IsClosed() {
		return out, bus.ErrAway
	}
	go func() { <-broken; cancel() }()
	return access.Ask[Out](ctx, c, verb, in)
}

// Drain asks a station of a hub to begin no more jobs, and waits until those that it runs have ended.
// With back, it asks it to begin jobs again.
func Drain(ctx context.Context, c *access.Client, name string, back bool) error {
	if _, err := access.Ask[struct{}](ctx, c, job.VerbDrain, job.Drain{Station: name, Back: back}); err != nil || back {
		return err
	}
	all, err := access.List[job.Changes](ctx, c, job.VerbJobList, job.ListWish{Station: name, Open: true})
	for _, change := range all.Jobs {
		if j := change.Job; err == nil && j.State == job.Running {
			_, err = access.Wait(ctx, c, j.ID)
		}
	}
	return err
}
