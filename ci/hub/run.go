package hub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"slipway/ci/hub/access"
	"slipway/ci/job"
	"slipway/layers/bus"
	"slipway/layers/localfile"
	"slipway/layers/progress"
	"slipway/layers/run"
)

// userFor is how long an identity is valid. It is renewed while it is.
const userFor = 365 * 24 * time.Hour

// Roles are what people and stations may publish and read. None of them reaches JetStream: a request
// to it may name any subject for its answer, and the engine would write there what the client may not.
var Roles = []bus.Role{
	{Name: string(job.Viewer), Publish: asks(job.Viewer), Subscribe: reads("prog.>")},
	{Name: string(job.Operator), Publish: asks(job.Viewer, job.Operator), Subscribe: reads("prog.>")},
	{Name: string(job.Admin), Publish: asks(job.Viewer, job.Operator, job.Admin), Subscribe: reads("prog.>")},
	{Name: string(job.AStation), Publish: append(asks(job.AStation), "prog.{{name()}}.>"), Subscribe: reads()},
}

func asks(roles ...job.Role) (subjects []string) {
	for _, role := range roles {
		subjects = append(subjects, "api."+string(role)+".{{name()}}.>")
	}
	return subjects
}

func reads(more ...string) []string { return append([]string{"_INBOX_{{name()}}.>"}, more...) }

// Options say where a hub keeps its state, and where it listens.
type Options struct {
	Dir    string   // state folder, for one hub at a time
	Names  []string // host names and addresses, the first of them in invitations
	Listen string   // host:port of NATS
	Page   string   // host:port of the page
	// Cluster has HOST or HOST:PORT of each hub of a cluster. None is a hub alone.
	Cluster []string
	// NATS has the URLs of another NATS that keeps the records, with commas between them. Creds is a file
	// for it, or "". Replicas is how many of its servers keep each record, 0 is what they can.
	NATS, Creds string
	Replicas    int
	Space       int64         // bytes that the records take at most; 0 is 80 % of the disk at the first start
	Lease       time.Duration // of stations; 0 is 30 s
	Log         io.Writer
	// Admin is the name of the first admin, whom Ready gets an invitation for, unless there is one.
	Admin        string
	AlwaysInvite bool                        // Admin, also if there is one: an earlier identity of that name ends
	Ready        func(address, token string) // called once the hub answers; token is "" for a hub with admins
	// First is called at the first start of a cluster's first hub, which the others must join.
	First func(others []string)
	// Handler makes the page, beside /join. It follows the hub until ctx ends, and puts the authority's
	// certificate (PEM) into invitations.
	Handler func(ctx context.Context, h *Hub, names []string, authority []byte) (http.Handler, error)
}

// Run is a hub, until ctx ends.
func Run(ctx context.Context, o Options) error {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return err
	}
	unlock, err := localfile.Hold(filepath.Join(o.Dir, "lock"))
	if err != nil {
		return fmt.Errorf("the hub's state folder %s: %w", o.Dir, err)
	}
	defer unlock()
	f, err := openFolder(o)
	if err != nil {
		return err
	}
	authority, err := OpenAuthority(o.Dir, o.Names)
	if err != nil {
		return err
	}
	keys, err := bus.LoadKeys(o.Dir)
	if err != nil {
		return err
	}
	if o.NATS != "" {
		o.Space = -1
	}
	server, err := bus.Start(bus.ServerOptions{
		Name: f.Name, StoreDir: filepath.Join(o.Dir, "engine"), Keys: keys, Roles: Roles, Listen: o.Listen, TLS: authority.TLS(), Log: o.Log, Cluster: f.server(o.Listen), MaxStore: o.Space,
	})
	if err != nil {
		return err
	}
	defer server.Close()
	r := &running{Options: o, folder: f, authority: authority, keys: keys, server: server}
	err = r.serve(ctx)
	return cmp.Or(context.Cause(ctx), err)
}

// running is a hub whose NATS server runs.
type running struct {
	Options
	folder    folder
	authority *Authority
	keys      *bus.Keys
	server    *bus.Server
	place     job.HubPlace
	lease     *lease // of another NATS, or nil

	hub  atomic.Pointer[Hub] // nil before the engine answers
	open atomic.Pointer[http.Handler]
}

// serve answers requests of NATS and of the page until ctx ends.
func (r *running) serve(ctx context.Context) error {
	listener, err := net.Listen("tcp", r.Page)
	if err != nil {
		return fmt.Errorf("listen for the page at %s: %w\nnext: slipway hub --page=:8444", r.Page, err)
	}
	r.place = job.HubPlace{Address: r.at(r.server.Address()), Page: r.at(listener.Addr().String())}
	r.folder.Page = r.place.Page
	if err := localfile.WriteJSON(folderName(r.Dir), r.folder, 0o600); err != nil {
		listener.Close()
		return err
	}
	web := &http.Server{
		Handler: r, TLSConfig: r.authority.TLS(), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 64 << 10, BaseContext: func(net.Listener) context.Context { return ctx },
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := web.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		return cmp.Or(web.Shutdown(end), web.Close())
	})
	group.Go(func() error { return r.work(ctx) })
	return group.Wait()
}

// at returns an address under the name by which others reach this machine.
func (r *running) at(listens string) string {
	_, port, _ := net.SplitHostPort(listens)
	return net.JoinHostPort(r.Names[0], port)
}

// ServeHTTP answers requests of the page. Before the engine answers, only another hub can join.
func (r *running) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	h, open := r.hub.Load(), r.open.Load()
	switch {
	case q.Method == http.MethodPost && q.URL.Path == "/join":
		r.serveJoin(w, q)
	case open != nil && (h.Majority() || !strings.HasPrefix(q.URL.Path, "/v2/")):
		(*open).ServeHTTP(w, q)
	default:
		w.Header().Set("Connection", "close") // the next try may reach another hub
		http.Error(w, r.folder.away().Error(), http.StatusServiceUnavailable)
	}
}

// work waits for the engine, and works until ctx ends.
func (r *running) work(ctx context.Context) error {
	h, err := r.connect(ctx)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/v2/", h.artifacts)
	if r.Handler != nil {
		page, err := r.Handler(ctx, h, r.Names, r.authority.PEM)
		if err != nil {
			return err
		}
		mux.Handle("/", page)
	}
	handler := http.Handler(mux)
	r.hub.Store(h)
	r.open.Store(&handler)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return h.Serve(ctx) })
	group.Go(func() error { return h.collect(ctx, r.Log) })
	group.Go(func() error { return h.welcome(ctx, r.Options, r.authority) })
	if r.lease != nil {
		group.Go(func() error { return r.lease.hold(ctx) })
	}
	return group.Wait()
}

// connect returns a hub with its records, once a majority of the hubs has them.
func (r *running) connect(ctx context.Context) (h *Hub, err error) {
	if len(r.folder.Hubs) == 0 {
		return r.openAll(ctx)
	}
	if r.First != nil && !r.folder.Joined && !r.folder.Began {
		r.First(r.folder.others())
	}
	err = progress.Run(ctx, "hubs", func(step *progress.Step) (string, error) {
		shown, cancel := context.WithCancel(ctx)
		var group sync.WaitGroup
		group.Go(func() { r.folder.showMissing(shown, r.server, step.Detail) })
		defer group.Wait()
		defer cancel()
		h, err = r.openAll(ctx)
		return "", err
	})
	return h, err
}

// openAll opens all that the engine keeps.
func (r *running) openAll(ctx context.Context) (*Hub, error) {
	nc, err := r.server.Connect()
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, nc.Close) // else the end of each watch waits for an answer, also without a majority
	h := &Hub{nc: nc, lease: cmp.Or(r.Lease, leaseTTL), folder: r.folder, Place: r.place, Revoke: r.server.SetRevocations, Majority: r.server.Majority}
	h.Admit = func(role job.Role, name, publicKey string) (string, error) {
		return r.keys.User(string(role), name, publicKey, userFor)
	}
	space := int64(theirSpace)
	if r.NATS != "" {
		err = r.openElsewhere(ctx, h)
	} else {
		h.js.Replicas, space = r.folder.replicas(), r.server.MaxStore()
		h.js.JetStream, err = jetstream.New(nc)
	}
	if err == nil {
		err = h.openStreams(ctx, space, access.Who(r.server.Prove))
	}
	if err != nil {
		if r.lease != nil {
			r.lease.end()
		}
		return nil, err
	}
	r.folder.Began = true
	return h, errors.Join(h.announce(ctx), localfile.WriteJSON(folderName(r.Dir), r.folder, 0o600))
}

// collect removes old artifacts once a day, until ctx ends.
func (h *Hub) collect(ctx context.Context, log io.Writer) error {
	for run.Sleep(ctx, 24*time.Hour) == nil {
		if err := h.artifacts.Collect(ctx); err != nil {
			fmt.Fprintf(log, "remove old artifacts: %v\n", err) // the next day tries again
		}
	}
	return nil
}

// welcome calls o.Ready, with an invitation for the first admin if nobody is one yet.
func (h *Hub) welcome(ctx context.Context, o Options, authority *Authority) error {
	token := ""
	isNew := len(h.folder.NATS) > 0 && !h.folder.Began // then its keys are new, also if its records have admins
	if o.AlwaysInvite || isNew || h.admins() == 0 && !h.folder.Joined {
		i, err := h.invite(ctx, "the hub", job.Person{Name: o.Admin, Role: job.Admin})
		if err != nil {
			return err
		}
		token = access.Token(i.Secret, authority.PEM)
	}
	o.Ready(h.Place.Page, token)
	return nil
}
