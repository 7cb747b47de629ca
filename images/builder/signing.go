package builder

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/renameio/v2"

	"slipway/images"
	"slipway/layers"
	"slipway/layers/localfile"
)

// signing holds the paths of PEM files: the key and certificate that sign a board's update bundles,
// and the keyring that its image trusts. The names of the variables are meta-rauc's.
type signing struct{ keyring, key, cert string }

const (
	keyringVariable = "RAUC_KEYRING_FILE"
	keyVariable     = "RAUC_KEY_FILE"
	certVariable    = "RAUC_CERT_FILE"
)

const maxPEMBytes = 1 << 20

// signingOf returns the files that the environment names, or else the build folder's own key, which
// it creates at the first call. In the environment, a key needs a certificate, and these a keyring.
// Anybody with the build folder's key can update the boards built in this folder.
func signingOf(ctx context.Context, opt images.Options) (signing, error) {
	s := signing{os.Getenv(keyringVariable), os.Getenv(keyVariable), os.Getenv(certVariable)}
	if (s.key == "") != (s.cert == "") {
		return s, fmt.Errorf("%s and %s belong together, and one of them is not set", keyVariable, certVariable)
	}
	switch {
	case s.keyring == "" && s.cert != "":
		return s, fmt.Errorf("%s is set, and %s is not: a board takes the bundles only of those whose certificates are in its keyring", certVariable, keyringVariable)
	case s != (signing{}):
		return s, nil
	}
	dir := opt.KeyDir()
	cert := filepath.Join(dir, "update.cert.pem")
	s = signing{keyring: cert, key: filepath.Join(dir, "update.key.pem"), cert: cert}
	return s, s.makeKey(ctx, dir)
}

// signingVariables returns the signing variables as NAME=path if the project lists all of them in
// env, without values, and the environment sets none; otherwise nil. It may make the key
// (signingOf). So a board that bitbake builds accepts the same updates as Slipway's other boards.
func signingVariables(ctx context.Context, p layers.Project, opt images.Options) ([]string, error) {
	for _, name := range []string{keyringVariable, keyVariable, certVariable} {
		if value, named := p.Env[name]; !named || value != nil || os.Getenv(name) != "" {
			return nil, nil
		}
	}
	s, err := signingOf(ctx, opt)
	if err != nil {
		return nil, err
	}
	var set []string
	for name, path := range map[string]string{keyringVariable: s.keyring, keyVariable: s.key, certVariable: s.cert} {
		if path, err = filepath.Abs(path); err != nil {
			return nil, err
		}
		set = append(set, name+"="+path)
	}
	slices.Sort(set)
	return set, nil
}

// checkSigner returns an error if there is no key to sign with, or one of the files is missing.
func (s signing) checkSigner() error {
	if s.key == "" {
		return fmt.Errorf("%s is set; a bundle is signed with %s and %s, which are not", keyringVariable, keyVariable, certVariable)
	}
	for name, file := range map[string]string{keyringVariable: s.keyring, keyVariable: s.key, certVariable: s.cert} {
		if _, err := os.Stat(file); err != nil {
			return fmt.Errorf("sign an update bundle with %s: %w", name, err)
		}
	}
	return nil
}

// makeKey creates the development key and its certificate in dir, unless the certificate exists. It
// writes the certificate last, so that there is no certificate without a key.
func (s signing) makeKey(ctx context.Context, dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	unlock, err := waitLock(ctx, filepath.Join(dir, "keys.lock"), func() {})
	if err != nil {
		return err
	}
	defer unlock()
	if localfile.Exists(s.cert) {
		return nil
	}
	key, cert, err := newSigner()
	if err != nil {
		return fmt.Errorf("make a key for updates: %w", err)
	}
	if err := renameio.WriteFile(s.key, key, 0o600); err != nil {
		return err
	}
	return renameio.WriteFile(s.cert, cert, 0o644)
}

// validYears is long: what a board trusts cannot be changed but by an update.
const validYears = 30

// newSigner returns a new ECDSA key with a self-signed certificate for validYears, in PEM.
func newSigner() (keyPEM, certPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	now := time.Now()
	template := x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{Organization: []string{"Slipway"}, CommonName: "development updates"},
		NotBefore: now.AddDate(-1, 0, 0), // boards' clocks may be behind
		NotAfter:  now.AddDate(validYears, 0, 0),
		IsCA:      true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	cert, err := x509.CreateCertificate(rand.Reader, &template, &template, key.Public(), key)
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), err
}
