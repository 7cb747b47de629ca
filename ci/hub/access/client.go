package access

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"slipway/ci/job"
	"slipway/layers/bus"
	"slipway/layers/run"
)

// Client asks a hub.
type Client struct {
	Identity
	*nats.Conn

	mu      sync.Mutex
	now     Identity // Identity, as the hub renewed it
	end     context.CancelFunc
	renewal sync.WaitGroup
}

const (
	renewEvery = time.Hour
	renewBelow = 365 * 24 * time.Hour / 2 // of the time for which a JWT is valid
	renewLimit = 2 * time.Second
)

// Dial connects to the hub. The connection comes back by itself, also to another hub of a cluster. It
// renews the identity, now and each hour.
func (id Identity) Dial(ctx context.Context) (*Client, error) {
	c := &Client{Identity: id, now: id}
	var err error
	if c.Conn, err = bus.Connect(ctx, id.Access, func() string { return c.newest().JWT }); err != nil {
		return nil, err
	}
	c.renew(ctx)
	own, end := context.WithCancel(context.WithoutCancel(ctx))
	c.end = end
	c.renewal.Go(func() {
		for run.Sleep(own, renewEvery) == nil {
			c.renew(own)
		}
	})
	return c, nil
}

// Close closes the connection.
func (c *Client) Close() error {
	c.end()
	c.Conn.Close()
	c.renewal.Wait()
	return nil
}

func (c *Client) newest() Identity {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// renew asks for the addresses of all hubs, and for a new JWT if the old one expires soon. It writes the
// identity if something changed. If the hub does not answer, renew runs again in an hour.
func (c *Client) renew(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, renewLimit)
	defer cancel()
	id, verb := c.newest(), job.VerbRenew
	if id.Role == job.AStation {
		verb = job.VerbRenewStation
	}
	joined, err := Ask[job.Joined](ctx, c, verb, job.Renewal{JWT: bus.ValidFor(id.JWT) < renewBelow})
	if err != nil {
		return
	}
	isNew := joined.JWT != ""
	if isNew {
		id.JWT = joined.JWT
	}
	if len(joined.Pages) > 1 && !(sameNames(id.Addresses, joined.Addresses) && sameNames(id.Pages, joined.Pages)) {
		id.Addresses, id.Pages, isNew = joined.Addresses, joined.Pages, true
		_ = bus.SetAddresses(c.Conn, id.Addresses) // fails only for a closed connection
	}
	if !isNew {
		return
	}
	c.mu.Lock()
	c.now = id
	c.mu.Unlock()
	_ = id.write(id.Seed) // else it is renewed again
}

func sameNames(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// pageDialer returns a function that connects to a page of a cluster's hubs that answers, each time to
// another one: the one before may have refused. All have one authority.
func (id Identity) pageDialer() func(ctx context.Context, network, _ string) (net.Conn, error) {
	d := &tls.Dialer{
		NetDialer: &net.Dialer{Timeout: reachLimit},
		Config:    &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: id.roots(), NextProtos: []string{"h2", "http/1.1"}},
	}
	var dials atomic.Uint32
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		first := int(dials.Add(1)-1) % len(id.Pages)
		var errs []error
		for _, at := range slices.Concat(id.Pages[first:], id.Pages[:first]) {
			conn, err := d.DialContext(ctx, network, at)
			if err == nil {
				return conn, nil
			}
			errs = append(errs, err)
		}
		return nil, errors.Join(errs...)
	}
}

// Page returns the page of the hub that the connection reached.
func (c *Client) Page() string {
	id := c.newest()
	i := slices.Index(id.Addresses, strings.TrimPrefix(c.ConnectedUrl(), "tls://"))
	if i < 0 || len(id.Pages) < 2 || len(id.Pages) != len(id.Addresses) {
		return id.Hub
	}
	return id.Pages[i]
}
