package bus

import (
	"cmp"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
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
}

// Cluster is what a server of three needs.
type Cluster struct {
	Name   string
	Listen string   // host:port for the other servers
	Routes []string // host:port of all servers; the certificates hold for these names
}

// Server is a NATS server in this process.
type Server struct {
	nats     *server.Server
	opts     ServerOptions
	accounts *server.MemAccResolver

	mu      sync.Mutex
	revoked []string
	conns   []*nats.Conn
}

const (
	maxPayload = 8 << 20
	startLimit = time.Minute
	maxRevoked = 64 << 20 // bytes of the file
)

// Start starts a server, and returns once it listens. A cluster can answer later.
func Start(o ServerOptions) (*Server, error) {
	s := &Server{opts: o, accounts: &server.MemAccResolver{}}
	if err := s.start(); err != nil {
		return nil, fmt.Errorf("start a NATS server at %s: %w", cmp.Or(o.Listen, "no address"), localfile.Unwritable(o.StoreDir, err))
	}
	return s, nil
}

func (s *Server) start() error {
	if s.opts.TLS == nil && (s.opts.Listen != "" || s.opts.Cluster != nil) {
		return errors.New("it has no certificate, and never listens without TLS")
	}
	if err := s.readRevoked(); err != nil {
		return err
	}
	o, err := s.options()
	if err != nil {
		return err
	}
	if s.nats, err = server.NewServer(o); err != nil {
		return err
	}
	l := newLogger(s.opts.Log)
	s.nats.SetLoggerV2(l, false, false, false)
	s.nats.Start()
	for end := time.Now().Add(startLimit); !s.nats.ReadyForConnections(100 * time.Millisecond); {
		if l.fatal.Load() != nil || time.Now().After(end) {
			break
		}
	}
	if err := l.err(); err != nil {
		s.Close()
		return err
	}
	if !s.nats.Running() || !s.nats.ReadyForConnections(time.Second) {
		s.Close()
		return fmt.Errorf("it does not listen after %v", startLimit)
	}
	return nil
}

func (s *Server) options() (*server.Options, error) {
	operator, _, err := s.opts.Keys.operator()
	if err != nil {
		return nil, err
	}
	system, err := s.storeSystem()
	if err != nil {
		return nil, err
	}
	if _, err := s.storeAccount(); err != nil {
		return nil, err
	}
	most, err := storeLimit(s.opts.StoreDir)
	if err != nil {
		return nil, err
	}
	trusted := jwt.NewOperatorClaims(operator)
	trusted.SystemAccount = system
	o := &server.Options{
		ServerName: s.opts.Name, NoSigs: true, DontListen: s.opts.Listen == "", MaxPayload: maxPayload,
		JetStream: true, StoreDir: s.opts.StoreDir, JetStreamMaxStore: most, SyncAlways: true, DisableJetStreamBanner: true,
		TrustedOperators: []*jwt.OperatorClaims{trusted}, SystemAccount: system, AccountResolver: s.accounts,
	}
	if !o.DontListen {
		if o.Host, o.Port, err = splitListen(s.opts.Listen); err != nil {
			return nil, err
		}
		o.TLSConfig, o.TLS, o.TLSTimeout = s.opts.TLS, true, 5
	}
	if s.opts.Cluster != nil {
		err = s.setCluster(o)
	}
	return o, err
}

// setCluster makes the server one of several. They know each other by certificate and password.
func (s *Server) setCluster(o *server.Options) error {
	password, err := s.opts.Keys.routePassword()
	if err != nil {
		return err
	}
	c := s.opts.Cluster
	o.Cluster = server.ClusterOpts{Name: c.Name, Username: "hub", Password: password, TLSConfig: s.opts.TLS, TLSTimeout: 5, NoAdvertise: true}
	if o.Cluster.Host, o.Cluster.Port, err = splitListen(c.Listen); err != nil {
		return err
	}
	for _, at := range c.Routes {
		o.Routes = append(o.Routes, &url.URL{Scheme: "tls", Host: at, User: url.UserPassword("hub", password)})
	}
	return nil
}

func splitListen(at string) (host string, port int, err error) {
	host, digits, err := net.SplitHostPort(at)
	if err != nil {
		return "", 0, err
	}
	n, err := strconv.ParseUint(digits, 10, 16)
	if n == 0 {
		return host, server.RANDOM_PORT, err
	}
	return host, int(n), err
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
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		info, err := e.Info()
		if err == nil {
			space += info.Size()
		}
		return err
	})
	return space / 5 * 4, err
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

// Address returns the host:port where the server listens, "" if other processes cannot connect.
func (s *Server) Address() string {
	if at := s.nats.Addr(); at != nil {
		return at.String()
	}
	return ""
}

// ClusterAddress returns the host:port for the other servers, "" for a server alone.
func (s *Server) ClusterAddress() string {
	if at := s.nats.ClusterAddr(); at != nil {
		return at.String()
	}
	return ""
}

// Close ends the server and its connections, and waits for it.
func (s *Server) Close() {
	s.mu.Lock()
	conns := s.conns
	s.conns = nil
	s.mu.Unlock()
	for _, nc := range conns {
		nc.Close()
	}
	s.nats.Shutdown()
	s.nats.WaitForShutdown()
}

// Revoke refuses a user's key for ever, and closes the user's connections, of this server alone.
func (s *Server) Revoke(publicKey string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.revoke(append(slices.Clone(s.revoked), publicKey))
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
	kept := localfile.WriteJSON(s.revokedName(), s.revoked, 0o600)
	claims, err := s.storeAccount()
	if err != nil {
		return err
	}
	account, err := s.nats.LookupAccount(claims.Subject)
	if err != nil {
		return err
	}
	s.nats.UpdateAccountClaims(account, claims)
	return kept
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

// storeAccount signs the account's claims for this server.
func (s *Server) storeAccount() (*jwt.AccountClaims, error) {
	claims, err := s.opts.Keys.claims(s.opts.Roles, s.revoked)
	if err != nil {
		return nil, err
	}
	return claims, s.store(claims)
}

func (s *Server) storeSystem() (string, error) {
	public, _, err := s.opts.Keys.system()
	if err != nil {
		return "", err
	}
	return public, s.store(jwt.NewAccountClaims(public))
}

func (s *Server) store(claims *jwt.AccountClaims) error {
	_, operator, err := s.opts.Keys.operator()
	if err != nil {
		return err
	}
	token, err := claims.Encode(operator)
	if err != nil {
		return err
	}
	return s.accounts.Store(claims.Subject, token)
}

// logger writes the server's lines, and keeps the first error that ends it.
type logger struct {
	to    *log.Logger
	fatal atomic.Pointer[string]
}

func newLogger(to io.Writer) *logger {
	if to == nil {
		to = io.Discard
	}
	return &logger{to: log.New(to, "", log.LstdFlags|log.LUTC)}
}

func (l *logger) err() error {
	if said := l.fatal.Load(); said != nil {
		return errors.New(*said)
	}
	return nil
}

func (l *logger) Fatalf(format string, v ...any) {
	said := plaintext.OneLine(fmt.Sprintf(format, v...))
	l.fatal.CompareAndSwap(nil, &said)
	l.Errorf(format, v...)
}

func (l *logger) Noticef(format string, v ...any) { l.print("", format, v) }
func (l *logger) Warnf(format string, v ...any)   { l.print("warning: ", format, v) }
func (l *logger) Errorf(format string, v ...any)  { l.print("error: ", format, v) }
func (l *logger) Debugf(string, ...any)           {}
func (l *logger) Tracef(string, ...any)           {}

func (l *logger) print(kind, format string, v []any) {
	l.to.Print(kind + plaintext.OneLine(fmt.Sprintf(format, v...)))
}
