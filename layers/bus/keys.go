package bus

import (
	"context"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
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
	"slipway/layers/plaintext"
)

// Keys are the secrets of a hub. All are made of one secret, so that the hubs of a cluster have the
// same ones, also of a role that a later version adds. A key does not tell the secret or another key.
type Keys struct {
	V      int    `json:"v"`
	Secret []byte `json:"secret"`
}

const keysVersion, secretSize = 1, 32

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
	name := filepath.Join(dir, "keys.json")
	k, err := readKeys(name)
	if !errors.Is(err, fs.ErrNotExist) {
		return k, err
	}
	k = &Keys{keysVersion, make([]byte, secretSize)}
	_, _ = rand.Read(k.Secret) // never fails
	return k, localfile.WriteJSON(name, k, 0o600)
}

func readKeys(name string) (*Keys, error) {
	data, err := localfile.Read(name, 4<<10)
	if err != nil {
		return nil, err
	}
	var k Keys
	switch err := json.Unmarshal(data, &k); {
	case err != nil:
		return nil, fmt.Errorf("read the keys in %s: %w", name, plaintext.JSONError(err))
	case k.V > keysVersion:
		return nil, fmt.Errorf("read the keys in %s: made by a newer Slipway", name)
	case k.V < 1 || len(k.Secret) != secretSize:
		return nil, fmt.Errorf("read the keys in %s: no secret of %d bytes", name, secretSize)
	}
	return &k, nil
}

// User signs a user of a role. Servers accept it for this long, from whoever has the private key.
func (k *Keys) User(role, name, publicKey string, valid time.Duration) (string, error) {
	if name == "" || valid < time.Second || !nkeys.IsValidPublicUserKey(publicKey) {
		return "", fmt.Errorf("sign the user %q: it needs a name, a public key of a user, and a time", name)
	}
	account, _, err := k.account()
	if err != nil {
		return "", err
	}
	_, pair, err := k.pair(nkeys.PrefixByteAccount, "role "+role)
	if err != nil {
		return "", err
	}
	c := jwt.NewUserClaims(publicKey)
	c.Name, c.IssuerAccount, c.Expires = Token(name), account, time.Now().Add(valid).Unix()
	c.SetScoped(true)
	return c.Encode(pair)
}

// hub makes a user that may all.
func (k *Keys) hub() (token, seed string, err error) {
	user, err := nkeys.CreateUser()
	if err != nil {
		return "", "", err
	}
	public, _ := user.PublicKey() // neither fails for a pair that was just made
	secret, _ := user.Seed()
	_, account, err := k.account()
	if err != nil {
		return "", "", err
	}
	c := jwt.NewUserClaims(public)
	c.Name = "hub"
	token, err = c.Encode(account)
	return token, string(secret), err
}

// forever is after every time at which a JWT was issued. A revocation has no other time, because the
// clocks of hubs differ.
const forever = 1 << 40

// claims are the account's roles and limits, and the public keys of users that it refuses.
func (k *Keys) claims(roles []Role, revoked []string) (*jwt.AccountClaims, error) {
	account, _, err := k.account()
	if err != nil {
		return nil, err
	}
	c := jwt.NewAccountClaims(account)
	c.Name = "SLIPWAY"
	c.Limits.JetStreamLimits = jwt.JetStreamLimits{MemoryStorage: jwt.NoLimit, DiskStorage: jwt.NoLimit, Streams: jwt.NoLimit, Consumer: jwt.NoLimit}
	for _, r := range roles {
		scope := jwt.NewUserScope()
		scope.Role = r.Name
		scope.Template.Pub, scope.Template.Sub = allow(r.Publish), allow(r.Subscribe)
		if scope.Key, _, err = k.pair(nkeys.PrefixByteAccount, "role "+r.Name); err != nil {
			return nil, err
		}
		c.SigningKeys.AddScopedSigner(scope)
	}
	c.Revocations = jwt.RevocationList{}
	for _, key := range revoked {
		c.Revocations[key] = forever
	}
	return c, nil
}

// allow permits these subjects. The server takes an empty list for all subjects.
func allow(subjects []string) jwt.Permission {
	if len(subjects) == 0 {
		return jwt.Permission{Deny: jwt.StringList{">"}}
	}
	return jwt.Permission{Allow: subjects}
}

func (k *Keys) account() (string, nkeys.KeyPair, error) {
	return k.pair(nkeys.PrefixByteAccount, "account")
}
func (k *Keys) system() (string, nkeys.KeyPair, error) {
	return k.pair(nkeys.PrefixByteAccount, "system")
}
func (k *Keys) operator() (string, nkeys.KeyPair, error) {
	return k.pair(nkeys.PrefixByteOperator, "operator")
}

// pair returns the key pair for a purpose, and its public key.
func (k *Keys) pair(prefix nkeys.PrefixByte, purpose string) (string, nkeys.KeyPair, error) {
	raw, err := k.derive(purpose)
	if err != nil {
		return "", nil, err
	}
	pair, err := nkeys.FromRawSeed(prefix, raw)
	if err != nil {
		return "", nil, err
	}
	public, err := pair.PublicKey()
	return public, pair, err
}

// routePassword is what the servers of a cluster show each other.
func (k *Keys) routePassword() (string, error) {
	raw, err := k.derive("cluster")
	return hex.EncodeToString(raw), err
}

func (k *Keys) derive(purpose string) ([]byte, error) {
	return hkdf.Key(sha256.New, k.Secret, nil, purpose, secretSize)
}
