package bus

import (
	"cmp"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// ServerOptions are what a server needs.
type ServerOptions struct {
	Name     string      // unlike those of the other servers of its cluster
	StoreDir string      // of streams and of revoked keys
	Keys     *Keys       // the same for all servers of a cluster
	Roles    []Role      // likewise
	Listen   string      // host:port; 0 is a port that the kernel chooses; "" is no other process
	TLS      *tls.Config // its GetCertificate may return another one each time; its RootCAs are of other servers
	Log      io.Writer   // nil is none
	Cluster  *Cluster    // nil is a server alone
	MaxStore int64       // bytes that streams take at most; 0 is 80 % of the disk, less than 0 is no JetStream
}

// Cluster is what a server of three needs.
type Cluster struct {
	Name   string
	Listen string   // host:port for the other servers
	Routes []string // host:port of all servers; their certificates hold for these names
}

// Server is a NATS server in this process.
type Server struct {
	nats     *server.Server
	opts     ServerOptions
	accounts server.MemAccResolver

	mu      sync.Mutex
	revoked []string
	conns   []*nats.Conn
}

// MaxPayload is how many bytes a message has at most. A server drops a longer one.
const MaxPayload = 8 << 20

const (
	maxRevoked = 64 << 20 // bytes of the file
	startLimit = time.Minute
)

// Start starts a server, and returns once it listens. A cluster can answer later.
func Start(o ServerOptions) (*Server, error) {
	s := &Server{opts: o}
	if err := s.start(); err != nil {
		return nil, fmt.Errorf("start a NATS server at %s: %w", cmp.Or(o.Listen, "no address"), localfile.Unwritable(o.StoreDir, err))
	}
	return s, nil
}

func (s *Server) start() error {
	o, err := s.options()
	if err != nil {
		return err
	}
	if s.nats, err = server.NewServer(o); err != nil {
		return err
	}
	l := &logger{to: cmp.Or(s.opts.Log, io.Discard)}
	s.nats.SetLogger(l, false, false)
	s.nats.Start()
	for end := time.Now().Add(startLimit); !s.nats.ReadyForConnections(100*time.Millisecond) && l.fatal() == nil && time.Now().Before(end); {
	}
	switch err = l.fatal(); {
	case err == nil && !s.nats.ReadyForConnections(time.Second):
		err = fmt.Errorf("it does not listen after %v", startLimit)
	case err != nil && strings.Contains(err.Error(), "address already in use"):
		err = fmt.Errorf("%w\nnext: ss -ltnp  # see which program listens there", err)
	}
	if err != nil {
		s.Close()
	}
	return err
}

func (s *Server) options() (*server.Options, error) {
	if s.opts.TLS == nil && (s.opts.Listen != "" || s.opts.Cluster != nil) {
		return nil, errors.New("it has no certificate, and never listens without TLS")
	}
	_, operator := s.opts.Keys.operator()
	_, system := s.opts.Keys.system()
	trusted := jwt.NewOperatorClaims(operator)
	trusted.SystemAccount = system
	most, err := storeLimit(s.opts.StoreDir)
	most = cmp.Or(s.opts.MaxStore, most)
	if err := errors.Join(err, s.readRevoked(), s.store(jwt.NewAccountClaims(system)), s.store(s.claims())); err != nil {
		return nil, err
	}
	o := &server.Options{
		ServerName: s.opts.Name, NoSigs: true, MaxPayload: MaxPayload, DontListen: s.opts.Listen == "",
		JetStream: most > 0, StoreDir: s.opts.StoreDir, JetStreamMaxStore: most, SyncAlways: true, DisableJetStreamBanner: true,
		TrustedOperators: []*jwt.OperatorClaims{trusted}, SystemAccount: system, AccountResolver: &s.accounts,
		TLSConfig: s.opts.TLS, TLS: s.opts.TLS != nil, TLSTimeout: 5,
	}
	if !o.DontListen {
		if o.Host, o.Port, err = splitListen(s.opts.Listen); err != nil {
			return nil, err
		}
	}
	return o, s.joinCluster(o)
}

// joinCluster makes the server one of several. They know each other by certificate and password.
func (s *Server) joinCluster(o *server.Options) (err error) {
	c := s.opts.Cluster
	if c == nil {
		return nil
	}
	password := hex.EncodeToString(s.opts.Keys.derive("cluster"))
	o.Cluster = server.ClusterOpts{
		Name: c.Name, Username: "hub", Password: password, TLSConfig: s.opts.TLS, TLSTimeout: 5, NoAdvertise: true,
		PingInterval: pingEvery / 2, // Others is wrong until a silent server counts as gone
	}
	for _, at := range c.Routes {
		o.Routes = append(o.Routes, &url.URL{Scheme: "tls", Host: at, User: url.UserPassword("hub", password)})
	}
	o.Cluster.Host, o.Cluster.Port, err = splitListen(c.Listen)
	return err
}

func splitListen(at string) (string, int, error) {
	host, digits, err := net.SplitHostPort(at)
	port, noPort := strconv.ParseUint(digits, 10, 16)
	return host, cmp.Or(int(port), server.RANDOM_PORT), cmp.Or(err, noPort)
}

// storeLimit is 80 % of the space that is free, or taken by the streams themselves.
func storeLimit(dir string) (int64, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 0, err
	}
	space, err := localfile.FreeBytes(dir)
	if err != nil {
		return 0, err
	}
	taken, err := localfile.FolderBytes(dir)
	return (space + taken) / 5 * 4, err
}

// Connect returns a connection of this process that may all. Close closes it.
func (s *Server) Connect() (*nats.Conn, error) {
	token, seed, err := s.opts.Keys.hub()
	if err != nil {
		return nil, err
	}
	nc, err := nats.Connect("", nats.InProcessServer(s.nats), nats.UserJWTAndSeed(token, seed), nats.Name("hub"), nats.MaxReconnects(-1))
	if err != nil {
		return nil, fmt.Errorf("connect to the NATS server of this process: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns = append(s.conns, nc)
	return nc, nil
}

// MaxStore returns how many bytes streams take at most.
func (s *Server) MaxStore() int64 { return s.nats.JetStreamConfig().MaxStore }

// Others returns the names of the other servers of the cluster that this one reaches.
func (s *Server) Others() (names []string) {
	routes, _ := s.nats.Routez(nil) // never fails without options
	for _, r := range routes.Routes {
		names = append(names, r.RemoteName)
	}
	return slices.Compact(slices.Sorted(slices.Values(names)))
}

// Majority reports whether this server reaches so many that they and it are more than half of all.
func (s *Server) Majority() bool {
	return s.opts.Cluster == nil || 2*(s.nats.NumRemotes()+1) > len(s.opts.Cluster.Routes)
}

// Address returns the host:port where the server listens. Call it only if it does.
func (s *Server) Address() string { return s.nats.Addr().String() }

// Close ends the server and its connections, and waits for it.
func (s *Server) Close() {
	s.mu.Lock()
	for _, nc := range s.conns {
		nc.Close()
	}
	s.mu.Unlock()
	s.nats.Shutdown()
	s.nats.WaitForShutdown()
}

// SetRevocations replaces the public keys of users that this server refuses.
func (s *Server) SetRevocations(publicKeys []string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.revoke(publicKeys)
}

// revoke also keeps a file, because nobody may connect between a start and SetRevocations.
func (s *Server) revoke(keys []string) error {
	for _, key := range keys {
		if !nkeys.IsValidPublicUserKey(key) {
			return fmt.Errorf("revoke %q: it is no public key of a user", key)
		}
	}
	s.revoked = slices.Compact(slices.Sorted(slices.Values(keys)))
	err := localfile.WriteJSON(s.revokedName(), s.revoked, 0o600)
	claims := s.claims()
	account, missing := s.nats.LookupAccount(claims.Subject)
	if err := errors.Join(err, s.store(claims), missing); missing != nil {
		return err
	}
	s.nats.UpdateAccountClaims(account, claims)
	return err
}

func (s *Server) claims() *jwt.AccountClaims {
	c := s.opts.Keys.claims(s.opts.Roles, s.revoked)
	if s.opts.MaxStore < 0 {
		c.Limits.JetStreamLimits = jwt.JetStreamLimits{} // else the server passes requests for JetStream on
	}
	return c
}

func (s *Server) revokedName() string { return filepath.Join(s.opts.StoreDir, "revoked.json") }

func (s *Server) readRevoked() error {
	data, err := localfile.Read(s.revokedName(), maxRevoked)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = plaintext.JSONError(json.Unmarshal(data, &s.revoked))
	}
	return err
}

// store signs an account's claims for this server.
func (s *Server) store(claims *jwt.AccountClaims) error {
	operator, _ := s.opts.Keys.operator()
	token, err := claims.Encode(operator)
	if err != nil {
		return err
	}
	return s.accounts.Store(claims.Subject, token)
}

// logger writes the server's lines, and keeps the first error that ends it.
type logger struct {
	mu  sync.Mutex
	to  io.Writer
	end error
}

func (l *logger) fatal() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end
}

func (l *logger) print(kind, format string, v []any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	said := plaintext.OneLine(fmt.Sprintf(format, v...))
	if kind == "fatal: " {
		l.end = cmp.Or(l.end, errors.New(said))
	}
	fmt.Fprintln(l.to, time.Now().UTC().Format(time.RFC3339), kind+said)
}

func (l *logger) Fatalf(format string, v ...any)  { l.print("fatal: ", format, v) }
func (l *logger) Noticef(format string, v ...any) { l.print("", format, v) }
func (l *logger) Warnf(format string, v ...any)   { l.print("warning: ", format, v) }
func (l *logger) Errorf(format string, v ...any)  { l.print("error: ", format, v) }
func (l *logger) Debugf(string, ...any)           {}
func (l *logger) Tracef(string, ...any)           {}
