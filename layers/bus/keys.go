package bus

import (
	"context"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"slipway/layers/localfile"
)

// Keys are the secrets of a hub. All are made of one secret, so that the hubs of a cluster have the
// same ones, also of a role that a later version adds. A key does not tell the secret or another key.
type Keys struct {
	V      int    `json:"v"`
	Secret []byte `json:"secret"`
}

const keysVersion, secretSize, keysName = 1, 32, "keys.json"

// Role is what its users may publish and subscribe to. {{name()}} stands for the Token of the user's
// name. An empty list is nothing.
type Role struct {
	Name               string
	Publish, Subscribe []string
}

// LoadKeys reads a folder's keys, or makes them. Only their owner can read the file.
func LoadKeys(dir string) (*Keys, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	lock, err := localfile.Lock(context.Background(), filepath.Join(dir, "keys.lock"), 0o600)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	name := filepath.Join(dir, keysName)
	data, err := localfile.Read(name, 4<<10)
	if err == nil {
		return parseKeys(name, data)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	k := &Keys{keysVersion, make([]byte, secretSize)}
	_, _ = rand.Read(k.Secret) // never fails
	return k, localfile.WriteJSON(name, k, 0o600)
}

// KeepSecret keeps the secret of another hub in a folder, for LoadKeys.
func KeepSecret(dir string, secret []byte) error {
	if len(secret) != secretSize {
		return fmt.Errorf("the hub's secret has %d bytes, want %d", len(secret), secretSize)
	}
	return localfile.WriteJSON(filepath.Join(dir, keysName), Keys{keysVersion, secret}, 0o600)
}

// Public names the keys to others.
func (k *Keys) Public() string {
	_, public := k.operator()
	return public
}

func parseKeys(name string, data []byte) (*Keys, error) {
	var k Keys
	if err := json.Unmarshal(data, &k); err != nil || k.V < 1 || k.V == keysVersion && len(k.Secret) != secretSize {
		return nil, fmt.Errorf("read %s: it has no secret of %d bytes", name, secretSize)
	}
	if k.V > keysVersion {
		return nil, fmt.Errorf("read %s: it was made by a newer Slipway", name)
	}
	return &k, nil
}

// User signs a user of a role. Servers accept it for this long, from whoever has the private key.
func (k *Keys) User(role, name, publicKey string, valid time.Duration) (string, error) {
	if name == "" || valid < time.Second || !nkeys.IsValidPublicUserKey(publicKey) {
		return "", fmt.Errorf("sign the user %q: it needs a name, a public key of a user, and a time", name)
	}
	c := jwt.NewUserClaims(publicKey)
	c.SetScoped(true)
	c.Name, c.Expires = Token(name), time.Now().Add(valid).Unix()
	_, c.IssuerAccount = k.account()
	signer, _ := k.role(role)
	return c.Encode(signer)
}

// hub makes a user that may all.
func (k *Keys) hub() (token, seed string, err error) {
	user, err := nkeys.CreateUser()
	if err != nil {
		return "", "", err
	}
	public, _ := user.PublicKey() // neither fails for a new pair
	secret, _ := user.Seed()
	c := jwt.NewUserClaims(public)
	c.Name = "hub"
	account, _ := k.account()
	token, err = c.Encode(account)
	return token, string(secret), err
}

// claims are the account's roles, and the public keys of users that it refuses.
func (k *Keys) claims(roles []Role, revoked []string) *jwt.AccountClaims {
	_, account := k.account()
	c := jwt.NewAccountClaims(account)
	c.Name = "SLIPWAY"
	c.Limits.JetStreamLimits = jwt.JetStreamLimits{MemoryStorage: jwt.NoLimit, DiskStorage: jwt.NoLimit, Streams: jwt.NoLimit, Consumer: jwt.NoLimit}
	for _, r := range roles {
		scope := jwt.NewUserScope()
		_, scope.Key = k.role(r.Name)
		scope.Role, scope.Template.Pub, scope.Template.Sub = r.Name, allow(r.Publish), allow(r.Subscribe)
		c.SigningKeys.AddScopedSigner(scope)
	}
	c.Revocations = jwt.RevocationList{}
	for _, key := range revoked {
		c.Revocations[key] = forever
	}
	return c
}

// forever is after every time at which a JWT was issued. A revocation has no other time, because the
// clocks of hubs differ.
const forever = 1 << 40

// allow permits these subjects. The server takes an empty list for all subjects.
func allow(subjects []string) jwt.Permission {
	if len(subjects) == 0 {
		return jwt.Permission{Deny: jwt.StringList{">"}}
	}
	return jwt.Permission{Allow: subjects}
}

func (k *Keys) operator() (nkeys.KeyPair, string) {
	return k.pair(nkeys.PrefixByteOperator, "operator")
}

func (k *Keys) system() (nkeys.KeyPair, string) { return k.pair(nkeys.PrefixByteAccount, "system") }

func (k *Keys) account() (nkeys.KeyPair, string) { return k.pair(nkeys.PrefixByteAccount, "account") }

func (k *Keys) role(name string) (nkeys.KeyPair, string) {
	return k.pair(nkeys.PrefixByteAccount, "role "+name)
}

// pair returns the key pair for a purpose, and its public key.
func (k *Keys) pair(prefix nkeys.PrefixByte, purpose string) (nkeys.KeyPair, string) {
	pair, _ := nkeys.FromRawSeed(prefix, k.derive(purpose)) // fails only for other sizes
	public, _ := pair.PublicKey()
	return pair, public
}

func (k *Keys) derive(purpose string) []byte {
	raw, _ := hkdf.Key(sha256.New, k.Secret, nil, purpose, secretSize) // fails only for long keys
	return raw
}
