package bus

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/jwt/v2"
)

func encode(data []byte) string { return base64.StdEncoding.EncodeToString(data) }

func TestLoadKeysAtOnce(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	var all [8]*Keys
	var group sync.WaitGroup
	for i := range all {
		group.Go(func() {
			k, err := LoadKeys(dir)
			if err != nil {
				t.Error(err)
			}
			all[i] = k
		})
	}
	group.Wait()
	for _, k := range all[1:] {
		if diff := cmp.Diff(all[0], k); diff != "" {
			t.Errorf("two loads at once differ:\n%s", diff)
		}
	}
	for name, mode := range map[string]os.FileMode{dir: 0o700 | os.ModeDir, filepath.Join(dir, "keys.json"): 0o600} {
		if info, err := os.Stat(name); err != nil || info.Mode() != mode {
			t.Errorf("mode of %s = %v, %v; want %v", name, info.Mode(), err, mode)
		}
	}
}

func TestKeysDiffer(t *testing.T) {
	t.Parallel()
	one, _ := parseKeys("keys", []byte(`{"v":1,"secret":"`+encode(make([]byte, secretSize))+`"}`))
	two, err := LoadKeys(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, k := range []*Keys{one, two} {
		_, operator := k.operator()
		_, system := k.system()
		_, account := k.account()
		_, viewer := k.role("viewer")
		_, admin := k.role("admin")
		for _, public := range []string{operator, system, account, viewer, admin} {
			if seen[public] {
				t.Errorf("two keys are %s", public)
			}
			seen[public] = true
		}
	}
	// Hubs that were joined earlier keep their users: a change of the derivation would remove all.
	if _, account := one.account(); account != fixedAccount {
		t.Errorf("the account of a secret of zeros = %s; want %s", account, fixedAccount)
	}
}

const fixedAccount = "ADG4F4P3STDAOL3BLDZST2UCAITXQLMIOKXDWWTMY3EGR2ZKYEXY2H6G"

func TestParseKeys(t *testing.T) {
	t.Parallel()
	for data, want := range map[string]string{
		``:                      "no secret of 32 bytes",
		`{}`:                    "no secret of 32 bytes",
		`{"v":1,"secret":"AA"}`: "no secret of 32 bytes",
		`{"v":2}`:               "newer Slipway",
	} {
		if _, err := parseKeys("keys.json", []byte(data)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("parseKeys(%q) = %v; want %q", data, err, want)
		}
	}
	name := filepath.Join(t.TempDir(), "keys.json")
	if err := os.WriteFile(name, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadKeys(filepath.Dir(name)); err == nil {
		t.Error("LoadKeys of a broken file = nil; want an error, not new keys")
	}
}

func TestUser(t *testing.T) {
	t.Parallel()
	k, err := LoadKeys(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	_, account := k.account()
	public := "UA6KOMQ67XOE3FHE37W4OXADVXVYISBNLTBUT2LSY5VFKAIJ7CRDR2RZ"
	for _, c := range []struct {
		name, key string
		valid     time.Duration
	}{{"", public, time.Hour}, {"alice", account, time.Hour}, {"alice", "", time.Hour}, {"alice", public, 0}, {"alice", public, -time.Hour}} {
		if token, err := k.User("viewer", c.name, c.key, c.valid); err == nil {
			t.Errorf("User(%q, %q, %v) = %q; want an error", c.name, c.key, c.valid, token)
		}
	}
	token, err := k.User("viewer", "a.> {{", public, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	c, err := jwt.DecodeUserClaims(token)
	if err != nil || c.Name != "a=2E=3E=20=7B=7B" || !c.HasEmptyPermissions() {
		t.Errorf("User = %+v, %v; want the name as a token, and no permissions of its own", c, err)
	}
}

func FuzzParseKeys(f *testing.F) {
	f.Add([]byte(`{"v":1,"secret":"` + encode(make([]byte, secretSize)) + `"}`))
	f.Add([]byte(`{"v":2,"secret":null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		k, err := parseKeys("keys.json", data)
		if err != nil {
			return
		}
		again, _ := json.Marshal(k)
		if other, err := parseKeys("keys.json", again); err != nil || cmp.Diff(k, other) != "" {
			t.Errorf("%s was read as %s: %v", data, again, err)
		}
	})
}

func FuzzToken(f *testing.F) {
	for _, name := range []string{"node.example.com", "", "a=41", "%41", "*", ">", " \x00é", "{{name()}}", strings.Repeat("x", maxToken+1), strings.Repeat("*", maxToken/2)} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		token := Token(name)
		if len(token) > maxToken {
			t.Errorf("the token of %q has %d bytes", name, len(token))
		}
		if strings.HasPrefix(token, "=long-") && len(name) > maxToken/3 {
			return
		}
		if Name(token) != name || strings.ContainsAny(token, ".*> \t\r\n{}%") {
			t.Errorf("Token(%q) = %q, Name of it %q; want one token, and the name again", name, token, Name(token))
		}
		if again := Token(Name(name)); again != name && Name(name) != name {
			t.Errorf("Name(%q) = %q, whose token is %q", name, Name(name), again)
		}
	})
}
