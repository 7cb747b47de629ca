package bus

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"slipway/layers/plaintext"
)

// Access is how a user reaches a hub. It is secret.
type Access struct {
	Name      string   `json:"name"`
	Addresses []string `json:"addresses"` // host:port of each server
	JWT       string   `json:"jwt"`
	Seed      string   `json:"seed"`      // of the private key
	Authority string   `json:"authority"` // the CA's certificates, PEM
}

const (
	dialLimit    = 5 * time.Second
	pingEvery    = 10 * time.Second
	requestLimit = time.Minute // longer than a hub takes to say that nothing is new
)

// Connect connects to the first server that accepts the user, until ctx ends. A broken connection is
// made again, for ever, with the JWT that newest returns. One that is refused twice, because its user
// is revoked or expired, is closed.
func Connect(ctx context.Context, a Access, newest func() string) (*nats.Conn, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(a.Authority)) || len(a.Addresses) == 0 {
		return nil, errors.New("connect to the hub: its address or the certificate of its CA is not known here" + joinAgain)
	}
	opts := []nats.Option{
		nats.Name(a.Name), nats.UserJWT(func() (string, error) { return newest(), nil }, a.Sign), nats.CustomInboxPrefix("_INBOX_" + Token(a.Name)),
		nats.Secure(&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}),
	}
	var errs []error
	for _, at := range a.Addresses {
		nc, err := dial(ctx, "tls://"+at, opts...)
		if err == nil {
			return nc, SetAddresses(nc, a.Addresses)
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("connect to %s: %w", at, context.Cause(ctx))
		}
		errs = append(errs, explainRefusal(at, a, err))
	}
	return nil, errors.Join(errs...)
}

// dial makes a connection that comes back for ever. ctx ends only the first attempt.
func dial(ctx context.Context, urls string, opts ...nats.Option) (*nats.Conn, error) {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer context.AfterFunc(ctx, cancel)() // once connected, the caller's ctx ends nothing
	d := &dialer{ctx: own}
	opts = append(opts, nats.SetCustomDialer(d), nats.SkipHostLookup(), nats.Timeout(dialLimit), nats.PingInterval(pingEvery),
		nats.MaxReconnects(-1), nats.CustomReconnectDelay(reconnectDelay),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})) // else the client prints on stderr, where bars are
	nc, err := nats.Connect(urls, opts...)
	if err != nil {
		return nil, cmp.Or(d.failed, err)
	}
	return nc, nil
}

// SetAddresses replaces the servers to which a connection comes back.
func SetAddresses(nc *nats.Conn, addresses []string) error {
	var urls []string
	for _, at := range addresses {
		urls = append(urls, "tls://"+at)
	}
	return nc.SetServerPool(urls)
}

// Sign proves that the user has the private key.
func (a Access) Sign(nonce []byte) ([]byte, error) {
	key, err := nkeys.FromSeed([]byte(a.Seed))
	if err != nil {
		return nil, err
	}
	return key.Sign(nonce)
}

// ValidFor returns for how long servers accept a JWT, 0 if it cannot be read.
func ValidFor(token string) time.Duration {
	c, err := jwt.DecodeUserClaims(token)
	if err != nil {
		return 0
	}
	return time.Until(time.Unix(c.Expires, 0))
}

// reconnectDelay is one to two seconds, doubled with each attempt up to half a minute. It differs, so
// that not all users of a hub come back at once.
func reconnectDelay(attempts int) time.Duration {
	most := min(time.Second<<min(attempts, 5), 30*time.Second)
	return most/2 + rand.N(most/2)
}

// dialer opens connections that end with ctx, which ends with the caller's until the first connection
// is made.
type dialer struct {
	ctx    context.Context
	failed error // of the last Dial; the client says only that there are no servers
}

func (d *dialer) Dial(network, address string) (net.Conn, error) {
	c, err := (&net.Dialer{Timeout: dialLimit}).DialContext(d.ctx, network, address)
	if d.failed = err; err != nil {
		return nil, err
	}
	return &dialed{c, context.AfterFunc(d.ctx, func() { c.Close() })}, nil
}

type dialed struct {
	net.Conn
	stop func() bool
}

func (c *dialed) Close() error {
	c.stop()
	return c.Conn.Close()
}

const joinAgain = "\nnext: slipway join ADDRESS TOKEN  # an admin gets both from slipway hub invite"

// explainRefusal says why a server was not reached, or did not accept a user.
func explainRefusal(at string, a Access, err error) error {
	var certificate *tls.CertificateVerificationError
	switch {
	case errors.As(err, &certificate):
		return fmt.Errorf("connect to %s: it is not the hub that was joined, or its certificate is not for this name: %w%s", at, err, joinAgain)
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired), errors.Is(err, nats.ErrAuthRevoked):
		return fmt.Errorf("connect to %s: the hub refuses %s, %s: %w%s", at, a.Name, whyRefused(a.JWT), err, joinAgain)
	}
	host, _, _ := net.SplitHostPort(at)
	return fmt.Errorf("connect to %s: %w\nnext: ping -c 3 %s  # see that the hub is on and in this network", at, err, plaintext.Quote(host))
}

// whyRefused reads the user's JWT, because a server does not say why.
func whyRefused(token string) string {
	c, err := jwt.DecodeUserClaims(token)
	if err != nil {
		return "whose JWT cannot be read"
	}
	if end := time.Unix(c.Expires, 0); c.Expires > 0 && time.Now().After(end) {
		return "whose access expired on " + end.UTC().Format(time.DateTime)
	}
	return "whose key an admin removed, or which the hub never knew"
}

// Request sends in as JSON, and reads the answer into out, which may be nil. It returns the hub's
// error, which is ErrConflict if the hub says so, and ErrAway without an answer.
func Request(caller context.Context, nc *nats.Conn, subject string, in, out any) error {
	ctx, cancel := context.WithTimeout(caller, requestLimit)
	defer cancel()
	data, err := json.Marshal(in)
	if err != nil {
		return err
	}
	msg, err := nc.RequestWithContext(ctx, subject, data)
	if err != nil && !nc.IsClosed() && caller.Err() == nil {
		err = errors.Join(ErrAway, err)
	}
	if err != nil {
		return fmt.Errorf("ask the hub for %s: %w", subject, err)
	}
	return parseAnswer(msg.Data, out)
}

// ErrAway means that the hub does not answer now, and may later.
var ErrAway = errors.New("the hub does not answer")

// away is an error that is ErrAway.
type away struct{ error }

func (away) Is(target error) bool { return target == ErrAway }

// AsAway returns an error that is ErrAway, with a text of its own.
func AsAway(text string) error { return away{errors.New(text)} }

// Refusal is the answer of a hub that did not do what it was asked for.
type Refusal struct {
	Text     string `json:"error"`
	Conflict bool   `json:"conflict,omitempty"`
	Away     bool   `json:"away,omitempty"` // it may do it later
	Next     string `json:"next,omitempty"`
}

func (r Refusal) Error() string {
	text := plaintext.Printable(r.Text)
	if r.Next != "" {
		text += "\nnext: " + plaintext.OneLine(r.Next)
	}
	return text
}

// Is makes a conflict ErrConflict, and what may be done later ErrAway.
func (r Refusal) Is(target error) bool {
	return r.Conflict && target == ErrConflict || r.Away && target == ErrAway
}

func parseAnswer(data []byte, out any) error {
	var r Refusal
	err := json.Unmarshal(data, &r)
	if err == nil && (r.Text != "" || r.Conflict) {
		return r
	}
	if err == nil && out != nil {
		err = json.Unmarshal(data, out)
	}
	if err != nil {
		return fmt.Errorf("read the hub's answer: %w", plaintext.JSONError(err))
	}
	return nil
}
