// Package access is how a machine or a person reaches a hub: it joins once, keeps its identity in the
// state folder, and asks.
package access

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nkeys"

	"slipway/ci/job"
	"slipway/images"
	"slipway/layers/bus"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// Variable names the hub, if several were joined.
const Variable = "SLIPWAY_HUB"

// Identity is what a machine or a person keeps of a hub that it joined.
type Identity struct {
	V    job.Form `json:"v"`
	Hub  string   `json:"hub"` // host and port of its page
	Role job.Role `json:"role"`
	bus.Access
	Pages []string `json:"pages,omitempty"` // of all hubs of a cluster, in the order of Addresses
}

// HubToken begins the token of another hub of a cluster.
const HubToken = "HUB-"

// Token returns what an invited person types: the secret, and the digest of the hub's authority.
func Token(secret string, authority []byte) string {
	block, _ := pem.Decode(authority)
	return secret + "." + digestOf(block.Bytes)
}

func digestOf(der []byte) string {
	sum := sha256.Sum256(der)
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// Join takes an invitation at the first of the addresses, with commas between them, that answers, and
// keeps the new identity. It makes the key here; the hub sees only its public half. It sends nothing to
// a hub whose authority is not the token's.
func Join(ctx context.Context, addresses, token string) (Identity, error) {
	key, err := nkeys.CreateUser()
	if err != nil {
		return Identity{}, err
	}
	public, _ := key.PublicKey() // neither fails for a new pair
	seed, _ := key.Seed()
	id, joined, err := join(ctx, addresses, token, public)
	if err != nil {
		return Identity{}, err
	}
	id.Seed, id.Name, id.Role, id.JWT, id.Addresses, id.Pages = string(seed), joined.Name, joined.Role, joined.JWT, joined.Addresses, joined.Pages
	return id, id.save()
}

// JoinHub takes the invitation of a hub, and returns what it shares with the other hubs.
func JoinHub(ctx context.Context, addresses, token string) (job.Joined, error) {
	_, joined, err := join(ctx, addresses, token, "")
	if err == nil && joined.Hub == nil {
		err = errors.New("the hub does not answer as one that was asked by another hub")
	}
	return joined, err
}

// join sends an invitation to the first of the addresses that shows the token's authority.
func join(ctx context.Context, addresses, token, public string) (id Identity, joined job.Joined, err error) {
	secret, digest, found := strings.Cut(token, ".")
	if !found {
		return id, joined, errors.New("want HOST:PORT TOKEN, as \"slipway hub invite\" prints them")
	}
	var errs []error
	for _, address := range strings.Split(addresses, ",") {
		id = Identity{V: job.Version, Hub: address}
		if id.Authority, err = post(ctx, address, digest, job.Join{Secret: secret, Key: public}, &joined); err == nil {
			return id, joined, nil
		}
		errs = append(errs, fmt.Errorf("join %s: %w", address, err))
	}
	return id, joined, errors.Join(errs...)
}

// findAuthority returns the certificate of the authority with this digest, if a connection shows it and
// one that it signed for a host.
func findAuthority(s tls.ConnectionState, digest, host string) (*x509.Certificate, error) {
	i := slices.IndexFunc(s.PeerCertificates, func(c *x509.Certificate) bool { return digestOf(c.Raw) == digest })
	if i < 1 {
		return nil, errors.New("another hub answers, or a machine between here and it: its authority is not the invitation's")
	}
	roots := x509.NewCertPool()
	roots.AddCert(s.PeerCertificates[i])
	_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{DNSName: host, Roots: roots})
	return s.PeerCertificates[i], err
}

// roots returns the hub's own authority.
func (id Identity) roots() *x509.CertPool {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(id.Authority))
	return roots
}

// maxAnswerBytes limits an answer of the hub's page to Join.
const maxAnswerBytes = 1 << 20

// reachLimit is how long a hub may take to show its certificate. Its answer may take longer: one that
// came too late would have used the invitation.
var reachLimit = 5 * time.Second

// post sends an invitation to the page of a hub, and reads the answer. It sends nothing to one whose
// authority does not have this digest, and returns the authority's certificate in PEM.
func post(ctx context.Context, address, digest string, in job.Join, out *job.Joined) (authority string, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	config := &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, VerifyConnection: func(s tls.ConnectionState) error {
		host, _, _ := net.SplitHostPort(address)
		found, err := findAuthority(s, digest, host)
		if err == nil {
			authority = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: found.Raw}))
		}
		return err
	}}
	dialer := &tls.Dialer{NetDialer: &net.Dialer{Timeout: reachLimit}, Config: config}
	client := &http.Client{Transport: &http.Transport{DialTLSContext: dialer.DialContext, DisableKeepAlives: true}}
	body, _ := json.Marshal(in) // never fails
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+address+"/join", bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", errors.Unwrap(err) // join names the address
	}
	defer response.Body.Close()
	data, err := localfile.ReadAll(response.Body, "the hub's answer", maxAnswerBytes)
	if err == nil && response.StatusCode != http.StatusOK {
		err = errors.New(plaintext.Printable(strings.TrimSpace(string(data))))
	}
	if err != nil {
		return "", err
	}
	return authority, json.Unmarshal(data, out)
}

// folder returns the folder of identities.
func folder() (string, error) {
	home, err := images.StateHome()
	return filepath.Join(home, "hubs"), err
}

// fileOf returns the name of an identity's file. A machine can be a station of a hub, and its user a
// person there.
func fileOf(hub string, station bool) string {
	return bus.Token(hub) + plaintext.Either(station, ".station", "") + ".json"
}

// save keeps an identity, and makes its hub the one of commands that name none.
func (id Identity) save() error {
	dir, err := folder()
	if err == nil {
		err = id.write("")
	}
	if err != nil {
		return err
	}
	return localfile.Replace(filepath.Join(dir, "last"), []byte(id.Hub+"\n"))
}

// write writes the identity's file, unless the file has another seed than this one, which may be "".
// Another process may write at the same time.
func (id Identity) write(seed string) error {
	dir, err := folder()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	lock, err := localfile.Lock(context.Background(), filepath.Join(dir, "lock"), 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	name := filepath.Join(dir, fileOf(id.Hub, id.Role == job.AStation))
	if old, _ := read(name); seed != "" && old.Seed != seed {
		return nil
	}
	return localfile.WriteJSON(name, id, 0o600)
}

func read(name string) (id Identity, err error) {
	data, err := localfile.Read(name, maxAnswerBytes)
	if err == nil {
		err = plaintext.JSONError(json.Unmarshal(data, &id))
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return id, err
}

// Load returns the identity of this person, or of this machine as a station, for a hub: the one with
// this address, or that of SLIPWAY_HUB, or the one that was joined last.
func Load(hub string, station bool) (id Identity, err error) {
	dir, err := folder()
	if err != nil {
		return id, err
	}
	hub = cmp.Or(hub, os.Getenv(Variable))
	if hub == "" {
		last, err := localfile.Read(filepath.Join(dir, "last"), 1<<10)
		if err != nil {
			return id, errors.New("no hub was joined on this machine\nnext: slipway join HOST:PORT TOKEN  # as \"slipway hub invite\" prints it")
		}
		hub = strings.TrimSpace(string(last))
	}
	name := filepath.Join(dir, fileOf(hub, station))
	if id, err = read(name); errors.Is(err, os.ErrNotExist) {
		return id, fmt.Errorf("nobody joined the hub %s here%s\nnext: slipway hub invite %s NAME  # by an admin", hub, plaintext.Either(station, " as a station", ""), plaintext.Either(station, "station", "person"))
	}
	return id, err
}

// AskOn is Ask, also while the hub is away: it asks again until ctx ends.
func AskOn[Out any](ctx context.Context, c *Client, verb string, in any) (Out, error) {
	for {
		out, err := Ask[Out](ctx, c, verb, in)
		switch {
		case err != nil && ctx.Err() != nil:
			return out, context.Cause(ctx)
		case !errors.Is(err, bus.ErrAway):
			return out, err
		}
		_ = run.Sleep(ctx, time.Second)
	}
}

// Ask sends a request and returns the hub's answer.
func Ask[Out any](ctx context.Context, c *Client, verb string, in any) (out Out, err error) {
	if !c.Role.May(verb) { // NATS drops such a request without an answer
		return out, fmt.Errorf("%s is %s at %s, and %q needs the role %s\nnext: slipway hub invite person %s --role=%[5]s  # by an admin, after hub remove", c.Name, c.Role, c.Hub, verb, job.RoleOf(verb), c.Name)
	}
	return out, bus.Request(ctx, c.Conn, job.Subject(c.Name, verb), in, &out)
}

// List asks for a list, and reads all of its parts.
func List[Out any](ctx context.Context, c *Client, verb string, wish job.ListWish) (Out, error) {
	return job.ReadList(wish, func(w job.ListWish) (Out, error) { return Ask[Out](ctx, c, verb, w) })
}
