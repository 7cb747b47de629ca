package access

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nkeys"

	"slipway/ci/job"
	"slipway/layers/bus"
)

// newIdentity returns the identity of an operator, and the server and the keys of its hub.
func newIdentity(t testing.TB, valid time.Duration) (Identity, *bus.Server) {
	t.Helper()
	dir := t.TempDir()
	keys, err := bus.LoadKeys(dir)
	if err != nil {
		t.Fatal(err)
	}
	s, err := bus.Start(bus.ServerOptions{Name: "hub", StoreDir: filepath.Join(dir, "engine"), Keys: keys, Roles: []bus.Role{{Name: "viewer"}, {Name: "operator"}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	key, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, err := key.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := key.Seed()
	if err != nil {
		t.Fatal(err)
	}
	token, err := keys.User("operator", "Ann B.", public, valid)
	if err != nil {
		t.Fatal(err)
	}
	return Identity{V: job.Version, Role: job.Operator, Access: bus.Access{Name: "Ann B.", Seed: string(seed), JWT: token}}, s
}

func TestProve(t *testing.T) {
	id, s := newIdentity(t, time.Hour)
	stranger, _ := newIdentity(t, time.Hour)
	now := time.Now()
	good, err := id.Password(now)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := stranger.Password(now)
	if err != nil {
		t.Fatal(err)
	}
	if u, err := Prove(good, now, s.Prove); err != nil || u.Name != "Ann B." || u.Role != "operator" || !nkeys.IsValidPublicUserKey(u.Key) {
		t.Fatalf("Prove = %+v, %v; want Ann B., an operator", u, err)
	}
	seconds, rest, _ := strings.Cut(good, ".")
	signature, token, _ := strings.Cut(rest, ".")
	_, otherToken, _ := strings.Cut(foreign[len(seconds)+1:], ".")
	for _, tt := range []struct {
		what, password string
		after          time.Duration
		want           string
	}{
		{"a password of 5 minutes", good, passwordFor + 2*time.Second, "over"},
		{"one from the future", good, -passwordFor - 2*time.Second, "over"},
		{"a later time", "9" + good, 0, "another key"},
		{"no time", "x." + rest, 0, "no password"},
		{"no signature", seconds + ".." + token, 0, "another key"},
		{"one of another hub", foreign, 0, "another hub"},
		{"another's JWT", seconds + "." + signature + "." + otherToken, 0, "another hub"},
		{"no JWT", seconds + "." + signature + ".", 0, "cannot be read"},
		{"a JWT alone", token, 0, "no password"},
		{"9 KiB", good + strings.Repeat("a", 9<<10), 0, "no password"},
		{"nothing", "", 0, "no password"},
	} {
		if u, err := Prove(tt.password, now.Add(tt.after), s.Prove); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Prove of %s = %+v, %v; want an error with %q", tt.what, u, err, tt.want)
		}
	}
	key, err := nkeys.FromSeed([]byte(id.Seed))
	if err != nil {
		t.Fatal(err)
	}
	public, err := key.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.SetRevocations([]string{public}); err != nil {
		t.Fatal(err)
	}
	if _, err := Prove(good, now, s.Prove); err == nil || !strings.Contains(err.Error(), "removed") {
		t.Errorf("Prove of a removed key = %v", err)
	}
}

// A JWT that is over proves nothing, although its password is new.
func TestProveExpired(t *testing.T) {
	id, s := newIdentity(t, time.Second)
	for err := error(nil); ; {
		now := time.Now()
		password, sign := id.Password(now)
		if sign != nil {
			t.Fatal(sign)
		}
		if _, err = Prove(password, now, s.Prove); err == nil {
			time.Sleep(20 * time.Millisecond)
			continue
		}
		if !strings.Contains(err.Error(), "the JWT is over") {
			t.Errorf("Prove = %v; want that the JWT is over", err)
		}
		return
	}
}

func FuzzProve(f *testing.F) {
	key, err := nkeys.CreateUser()
	if err != nil {
		f.Fatal(err)
	}
	seed, err := key.Seed()
	if err != nil {
		f.Fatal(err)
	}
	public, err := key.PublicKey()
	if err != nil {
		f.Fatal(err)
	}
	id, now := Identity{Access: bus.Access{Seed: string(seed), JWT: "a.b.c"}}, time.Now()
	good, err := id.Password(now)
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{good, "", "1.2.3", "-1..", good[:len(good)/2], strings.Replace(good, ".", ".A", 1), "9223372036854775807.AA.a.b.c"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, password string) {
		asked := ""
		u, err := Prove(password, now, func(token string) (bus.User, error) { asked = token; return bus.User{Name: "ann", Key: public}, nil })
		if err == nil && (password != good || asked != id.JWT) || err != nil && u != (bus.User{}) {
			t.Errorf("Prove(%q) = %+v, %v", password, u, err)
		}
	})
}
