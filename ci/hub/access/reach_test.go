package access

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"slipway/ci/job"
	"slipway/layers/bus"
)

// startPage starts a page that answers a join, and returns its address and its authority.
func startPage(t *testing.T) (address string, authority []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, NotAfter: time.Now().Add(time.Hour)}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	var chain [][]byte
	for _, c := range []*x509.Certificate{leaf, ca} {
		der, err := x509.CreateCertificate(rand.Reader, c, ca, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		chain = append(chain, der)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(w).Encode(job.Joined{Name: "ann", Role: job.Viewer})
	}))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: chain, PrivateKey: key}}}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.Listener.Addr().String(), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: chain[1]})
}

// startSilent starts a server that accepts connections and says nothing, as a hub that hangs.
func startSilent(t *testing.T) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

// A hub that hangs does not hold up a join at the next one.
func TestJoinLeavesASilentHub(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	was := reachLimit
	t.Cleanup(func() { reachLimit = was })
	reachLimit = time.Second
	good, authority := startPage(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second) // else the request itself ends after a minute
	defer cancel()
	id, err := Join(ctx, startSilent(t)+","+good, Token("secret", authority))
	if err != nil || id.Hub != good || id.Name != "ann" {
		t.Errorf("Join = %+v, %v; want ann at %s", id, err, good)
	}
}

// What is tried again goes to another hub: the one before may answer, and lack a majority.
func TestPagesInTurn(t *testing.T) {
	good, authority := startPage(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead := l.Addr().String()
	l.Close()
	other, otherAuthority := startPage(t)
	id := Identity{Access: bus.Access{Authority: string(authority) + string(otherAuthority)}, Pages: []string{dead, good, other}}
	dial := id.pageDialer()
	var reached []string
	for range 4 {
		conn, err := dial(t.Context(), "tcp", "")
		if err != nil {
			t.Fatal(err)
		}
		reached = append(reached, conn.RemoteAddr().String())
		conn.Close()
	}
	if want := []string{good, good, other, good}; !slices.Equal(reached, want) {
		t.Errorf("dials reach %s; want %s", strings.Join(reached, " "), strings.Join(want, " "))
	}
}
