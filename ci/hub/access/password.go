package access

import (
	"encoding/base64"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"slipway/flash/fetch"
	"slipway/layers/bus"
)

// passwordFor is how far the clocks of a hub and a person may differ, and how long a stolen password
// is worth something.
const passwordFor = 5 * time.Minute

// maxPasswordBytes limits a password before it is parsed.
const maxPasswordBytes = 8 << 10

// signed is what a password's signature is of: the JWT names the hub by its key.
func signed(seconds, token string) []byte { return []byte("slipway password " + seconds + " " + token) }

// Password returns the password for requests of HTTP to the hub: a time, a signature and the JWT.
func (id Identity) Password(now time.Time) (string, error) {
	seconds := strconv.FormatInt(now.Unix(), 10)
	signature, err := id.Sign(signed(seconds, id.JWT))
	return seconds + "." + base64.RawURLEncoding.EncodeToString(signature) + "." + id.JWT, err
}

// Prove returns whom a password is of. prove is a server's.
func Prove(password string, now time.Time, prove func(jwt string) (bus.User, error)) (bus.User, error) {
	seconds, rest, _ := strings.Cut(password, ".")
	signature, token, whole := strings.Cut(rest, ".")
	at, err := strconv.ParseInt(seconds, 10, 64)
	proof, notBase64 := base64.RawURLEncoding.DecodeString(signature)
	if err != nil || notBase64 != nil || !whole || len(password) > maxPasswordBytes {
		return bus.User{}, errors.New("this is no password of a hub")
	}
	u, err := prove(token)
	switch {
	case err != nil:
		return bus.User{}, err
	case !u.Signed(signed(seconds, token), proof):
		return bus.User{}, errors.New("the password's signature is of another key")
	case now.Sub(time.Unix(at, 0)).Abs() > passwordFor:
		return bus.User{}, errors.New("the password is over, or the clocks of this machine and of the hub differ by more than 5 minutes")
	}
	return u, nil
}

// Who returns a function that returns the role of who sends a request of HTTP.
func Who(prove func(jwt string) (bus.User, error)) func(*http.Request) (role string, err error) {
	return func(r *http.Request) (string, error) {
		name, password, _ := r.BasicAuth()
		u, err := Prove(password, time.Now(), prove)
		if err == nil && u.Name != name {
			err = errors.New("the password is of another name")
		}
		return u.Role, err
	}
}

// Registry returns the hub as a registry, for this person, or else for this machine as a station.
func Registry() (fetch.HubAccess, error) {
	id, err := Load("", false)
	if station, none := Load("", true); err != nil && none == nil {
		id, err = station, nil
	}
	return id.registry(), err
}
