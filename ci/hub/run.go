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
	"time"

	"golang.org/x/sync/errgroup"

	"slipway/ci/hub/access"
	"slipway/ci/hub/artifacts"
	"slipway/ci/job"
	"slipway/layers/bus"
	"slipway/layers/localfile"
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
	Dir    string        // state folder, for one hub at a time
	Names  []string      // host names and addresses, the first of them in invitations
	Listen string        // host:port of NATS
	Page   string        // host:port of the page
	Lease  time.Duration // of stations; 0 is 30 s
	Log    io.Writer
	// Admin is the name of the first admin, whom Ready gets an invitation for, unless there is one.
	Admin        string
	AlwaysInvite bool                        // Admin, also if there is one: an earlier identity of that name ends
	Ready        func(address, token string) // called once the hub answers; token is "" for a hub with admins
	// Handler makes the page, beside /join. It follows the hub until ctx ends, and puts the authority's
	// certificate (PEM) into invitations.
	Handler func(ctx context.Context, h *Hub, names []string, authority []byte) (http.Handler, error)
}

// Run is a hub alone, until ctx ends.
func Run(ctx context.Context, o Options) error {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return err
	}
	unlock, err := localfile.Hold(filepath.Join(o.Dir, "lock"))
	if err != nil {
		return fmt.Errorf("the hub's state folder %s: %w", o.Dir, err)
	}
	defer unlock()
	authority, err := OpenAuthority(o.Dir, o.Names)
	if err != nil {
		return err
	}
	keys, err := bus.LoadKeys(o.Dir)
	if err != nil {
		return err
	}
	server, err := bus.Start(bus.ServerOptions{Name: o.Names[0], StoreDir: filepath.Join(o.Dir, "engine"), Keys: keys, Roles: Roles, Listen: o.Listen, TLS: authority.TLS(), Log: o.Log})
	if err != nil {
		return err
	}
	defer server.Close()
	nc, err := server.Connect()
	if err != nil {
		return err
	}
	h, err := open(ctx, nc, 1, cmp.Or(o.Lease, leaseTTL))
	if err != nil {
		return err
	}
	h.Revoke = server.SetRevocations
	h.Admit = func(role job.Role, name, publicKey string) (string, error) {
		return keys.User(string(role), name, publicKey, userFor)
	}
	if h.artifacts, err = artifacts.New(ctx, h.js, 1, access.Who(server.Prove)); err != nil {
		return err
	}
	_, port, _ := net.SplitHostPort(server.Address())
	h.Addresses = []string{net.JoinHostPort(o.Names[0], port)}
	return h.serveAll(ctx, o, authority)
}

// serveAll answers requests of NATS and of the page until ctx ends.
func (h *Hub) serveAll(ctx context.Context, o Options, authority *Authority) error {
	listener, err := net.Listen("tcp", o.Page)
	if err != nil {
		return fmt.Errorf("listen for the page at %s: %w\nnext: slipway hub --page=:8444", o.Page, err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /join", h.ServeJoin)
	mux.Handle("/v2/", h.artifacts)
	if o.Handler != nil {
		page, err := o.Handler(ctx, h, o.Names, authority.PEM)
		if err != nil {
			listener.Close()
			return err
		}
		mux.Handle("/", page)
	}
	web := &http.Server{
		Handler: mux, TLSConfig: authority.TLS(), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 64 << 10, BaseContext: func(net.Listener) context.Context { return ctx },
	}
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	address := net.JoinHostPort(o.Names[0], port)
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
	group.Go(func() error { return h.Serve(ctx) })
	group.Go(func() error { return h.collect(ctx, o.Log) })
	group.Go(func() error { return h.welcome(ctx, o, address, authority) })
	return group.Wait()
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
func (h *Hub) welcome(ctx context.Context, o Options, address string, authority *Authority) error {
	token := ""
	if o.AlwaysInvite || h.admins() == 0 {
		i, err := h.invite(ctx, "the hub", job.Person{Name: o.Admin, Role: job.Admin})
		if err != nil {
			return err
		}
		token = access.Token(i.Secret, authority.PEM)
	}
	o.Ready(address, token)
	return nil
}
