package hub

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/google/renameio/v2"

	"slipway/layers/localfile"
)

// How long certificates are valid. The hub's own is made again in its last third.
const (
	caFor   = 10 * 365 * 24 * time.Hour
	certFor = 90 * 24 * time.Hour
)

// Authority is a hub's own certificate authority, and the certificate that it shows. Joining machines
// know the authority by its digest.
type Authority struct {
	PEM []byte // the authority's certificate

	names []string
	ca    tls.Certificate
	mu    sync.Mutex
	own   *tls.Certificate
}

const maxAuthorityBytes = 1 << 16

func authorityName(dir string) string { return filepath.Join(dir, "ca.pem") }

// OpenAuthority reads the authority in a state folder, or makes it. names are the hub's host names and
// addresses.
func OpenAuthority(dir string, names []string) (*Authority, error) {
	name := authorityName(dir)
	data, err := localfile.Read(name, maxAuthorityBytes)
	if errors.Is(err, os.ErrNotExist) {
		if data, err = newAuthority(); err == nil {
			err = renameio.WriteFile(name, data, 0o600) // synced: without it no identity is good
		}
	}
	if err != nil {
		return nil, err
	}
	ca, err := tls.X509KeyPair(data, data) // it parses Leaf, too
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Certificate[0]})
	return &Authority{PEM: certificate, names: names, ca: ca}, nil
}

// newAuthority returns a new authority's certificate and key in PEM.
func newAuthority() ([]byte, error) {
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "Slipway hub"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, NotAfter: time.Now().Add(caFor),
	}
	certificate, key, err := sign(template, nil)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})...), nil
}

// sign makes a key and its certificate, signed by ca, or by itself if ca is nil.
func sign(template *x509.Certificate, ca *tls.Certificate) (der []byte, key *ecdsa.PrivateKey, err error) {
	if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, nil, err
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)); err != nil {
		return nil, nil, err
	}
	template.NotBefore = time.Unix(0, 0) // clocks differ, and one without a battery begins there
	parent, signer := template, any(key)
	if ca != nil {
		parent, signer = ca.Leaf, ca.PrivateKey
	}
	der, err = x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	return der, key, err
}

// TLS returns the settings of a server that shows the hub's certificate, and trusts other hubs.
func (a *Authority) TLS() *tls.Config {
	roots := x509.NewCertPool()
	roots.AddCert(a.ca.Leaf)
	return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return a.current() }}
}

// current returns the hub's certificate, and makes a new one in time.
func (a *Authority) current() (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.own != nil && time.Until(a.own.Leaf.NotAfter) > certFor/3 {
		return a.own, nil
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: a.names[0]}, NotAfter: time.Now().Add(certFor),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, name := range a.names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	der, key, err := sign(template, &a.ca)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	a.own = &tls.Certificate{Certificate: [][]byte{der, a.ca.Certificate[0]}, PrivateKey: key, Leaf: leaf}
	return a.own, nil
}
