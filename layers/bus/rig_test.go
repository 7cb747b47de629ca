package bus

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
)

// authority is a CA with the certificate of a server at 127.0.0.1.
type authority struct {
	pem  string
	pool *x509.CertPool
	leaf *tls.Certificate
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "CA of a test"}, IsCA: true, BasicConstraintsValid: true,
		NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "hub"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	root, err := x509.CreateCertificate(rand.Reader, ca, ca, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	a := authority{pool: x509.NewCertPool(), leaf: &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}}
	a.pem = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root}))
	a.pool.AppendCertsFromPEM([]byte(a.pem))
	return a
}

// hub is a server of a test with what its users need.
type hub struct {
	*Server
	keys *Keys
	ca   authority
	leaf *atomic.Pointer[tls.Certificate]
}

// options are those of a server alone, in new folders.
func options(t *testing.T, ca authority, leaf *atomic.Pointer[tls.Certificate]) ServerOptions {
	t.Helper()
	keys, err := LoadKeys(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	leaf.Store(ca.leaf)
	certificate := func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return leaf.Load(), nil }
	return ServerOptions{
		Name: "one", StoreDir: t.TempDir(), Keys: keys, Roles: testRoles, Listen: "127.0.0.1:0",
		TLS: &tls.Config{GetCertificate: certificate, RootCAs: ca.pool}, Log: t.Output(),
	}
}

var (
	people    = []string{"_INBOX_{{name()}}.>", "prog.>"}
	testRoles = []Role{
		{"viewer", []string{"api.viewer.{{name()}}.>"}, people},
		{"operator", []string{"api.viewer.{{name()}}.>", "api.operator.{{name()}}.>"}, people},
		{"admin", []string{"api.viewer.{{name()}}.>", "api.operator.{{name()}}.>", "api.admin.{{name()}}.>"}, people},
		{"station", []string{"api.station.{{name()}}.>", "prog.{{name()}}.>"}, people[:1]},
		{"nothing", nil, nil},
	}
)

func startHub(t *testing.T) hub {
	t.Helper()
	ca, leaf := newAuthority(t), new(atomic.Pointer[tls.Certificate])
	o := options(t, ca, leaf)
	return hub{startServer(t, o), o.Keys, ca, leaf}
}

func startServer(t *testing.T, o ServerOptions) *Server {
	t.Helper()
	s, err := Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// user makes a user of a role, and returns its public key too.
func (h hub) user(t *testing.T, role, name string) (a Access, public string) {
	t.Helper()
	pair, _ := nkeys.CreateUser()
	public, _ = pair.PublicKey()
	seed, _ := pair.Seed()
	token, err := h.keys.User(role, name, public, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return Access{name, []string{h.Address()}, token, string(seed), h.ca.pem}, public
}

// dialAs is Connect for a user whose JWT stays.
func dialAs(ctx context.Context, a Access) (*nats.Conn, error) {
	return Connect(ctx, a, func() string { return a.JWT })
}

func connect(t *testing.T, a Access) *nats.Conn {
	t.Helper()
	nc, err := dialAs(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func bucket(t *testing.T, s *Server, name string, replicas int, ttl time.Duration) *Bucket {
	t.Helper()
	nc, err := s.Connect()
	if err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	b, err := NewBucket(t.Context(), Engine{JetStream: js, Replicas: replicas}, name, ttl, 0)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// startThree starts a cluster. Each server knows the addresses of forwarders, because the kernel
// chooses the servers' own ports later.
func startThree(t *testing.T) [3]hub {
	t.Helper()
	ca := newAuthority(t)
	var hubs [3]hub
	var listeners [3]net.Listener
	var routes []string
	for i := range listeners {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners[i], routes = l, append(routes, l.Addr().String())
	}
	keys := (*Keys)(nil)
	for i := range hubs {
		leaf := new(atomic.Pointer[tls.Certificate])
		o := options(t, ca, leaf)
		if keys == nil {
			keys = o.Keys
		}
		o.Name, o.Keys, o.Cluster = string(rune('a'+i)), keys, &Cluster{"three", "127.0.0.1:0", routes}
		hubs[i] = hub{startServer(t, o), keys, ca, leaf}
		forward(t, listeners[i], hubs[i].nats.ClusterAddr().String())
	}
	return hubs
}

// forward copies between the listener's connections and an address until the test ends.
func forward(t *testing.T, l net.Listener, to string) {
	var all sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() { cancel(); l.Close(); all.Wait() })
	all.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { copyBoth(ctx, in, to) })
		}
	})
}

func copyBoth(ctx context.Context, in net.Conn, to string) {
	defer in.Close()
	out, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer out.Close()
	defer context.AfterFunc(ctx, func() { in.Close(); out.Close() })()
	go func() { io.Copy(out, in); out.Close() }()
	io.Copy(in, out)
}

// withLimit is a time in which what must happen has happened, also on a loaded machine.
func withLimit(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func flush(t *testing.T, nc *nats.Conn) {
	t.Helper()
	if err := nc.FlushWithContext(withLimit(t)); err != nil {
		t.Fatal(err)
	}
}
