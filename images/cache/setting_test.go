package cache

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestParseSetting(t *testing.T) {
	tests := []struct {
		name, text string
		want       Setting
		wantErr    string
	}{
		{"nothing", "", Setting{}, ""},
		{"off", "off", Setting{Off: true}, ""},
		{"a server", "http://builder:8600", Setting{Server: "http://builder:8600"}, ""},
		{"with a slash at the end", "http://builder:8600/", Setting{Server: "http://builder:8600"}, ""},
		{"a server without its PR server", "{server: http://builder:8600, prserv: none}", Setting{Server: "http://builder:8600", PRServ: "none"}, ""},
		{
			"parts", "sstate: https://s.example.com/all/\nhashserv: wss://h.example.com/ws\nprserv: none\ndownloads: file:///mnt/sources\n",
			Setting{Sstate: "https://s.example.com/all", Hashserv: "wss://h.example.com/ws", PRServ: "none", Downloads: "file:///mnt/sources"},
			"",
		},
		{"ports", "{sstate: file:///s, hashserv: h:1, prserv: p:65535}", Setting{Sstate: "file:///s", Hashserv: "h:1", PRServ: "p:65535"}, ""},
		{"half: no hash equivalence server", "{sstate: http://s, prserv: none}", Setting{}, "t.yml:1:1: cache: has no hashserv: without"},
		{"half: no sstate", "{hashserv: h:1, prserv: none}", Setting{}, "has no sstate"},
		{"half: no PR server", "{sstate: http://s, hashserv: h:1}", Setting{}, "prserv: none"},
		{"a server and parts", "{server: http://b, sstate: http://s}", Setting{}, "server says where its parts are"},
		{"unknown part", "sstate: http://s\nhash: h:1\n", Setting{}, `t.yml:2:1: cache: unknown part "hash"`},
		{"a list", "[a]", Setting{}, "t.yml:1:1: cache is neither"},
		{"not YAML", "{", Setting{}, "not valid YAML"},
		{"not UTF-8", "mode: \xff", Setting{}, "not valid YAML: invalid leading UTF-8 octet"},
		{"a part that is a list", "{sstate: [a]}", Setting{}, "sstate is not an address"},
		{"no scheme", "builder:8600", Setting{}, "begins with http:// or https://"},
		{"a path", "http://builder:8600/x", Setting{}, "goes on after the host"},
		{"a login", "http://me:pw@builder", Setting{}, "~/.netrc"},
		{"ends the assignment", `'http://b"'`, Setting{}, "characters that no address"},
		{"runs Python", "{sstate: 'http://s/${@os.system(1)}', hashserv: h:1, prserv: none}", Setting{}, "characters that no address"},
		{"another mirror", "{sstate: 'http://s/PATH file://.* http://t', hashserv: h:1, prserv: none}", Setting{}, "characters that no address"},
		{"URL parameters", "{sstate: 'http://s;downloadfilename=x', hashserv: h:1, prserv: none}", Setting{}, "characters that no address"},
		{"no port", "{sstate: http://s, hashserv: host, prserv: none}", Setting{}, `"host" is not HOST:PORT`},
		{"port 0", "{sstate: http://s, hashserv: 'host:0', prserv: none}", Setting{}, "port between 1 and 65535"},
		{"IPv6 for bitbake", "{sstate: http://s, hashserv: '[::1]:1', prserv: none}", Setting{}, "is not HOST:PORT"},
		{"IPv6", "'http://[::1]:8600'", Setting{}, "write the host's name"},
		{"a host in capitals", "http://BUILDHOST:8600", Setting{Server: "http://buildhost:8600"}, ""},
		{"off in capitals", "OFF", Setting{Off: true}, ""},
		{"a word that bitbake replaces in mirrors", "{sstate: http://s/MYHOST, hashserv: h:1, prserv: none}", Setting{}, `bitbake replaces HOST in the address of a mirror`},
		{"ftp", "{sstate: ftp://s, hashserv: h:1, prserv: none}", Setting{}, "http:// or https:// or file://"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseSetting("t.yml", []byte(tt.text))
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Errorf("error %v; want %q", err, tt.wantErr)
				}
				return
			}
			if diff := cmp.Diff(tt.want, got, cmpopts.IgnoreFields(Setting{}, "From")); diff != "" || err != nil {
				t.Errorf("error %v (-want +got)\n%s", err, diff)
			}
		})
	}
}

// The environment holds before the user's file, and that before the board's.
func TestChoose(t *testing.T) {
	home := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", home)
	t.Setenv(Environment, "")
	board := Setting{Server: "http://board"}
	expect := func(want string) {
		t.Helper()
		if got, err := Choose(board); err != nil || got.Server != want {
			t.Errorf("Choose = %+v, %v; want %q", got, err, want)
		}
	}
	expect("http://board")
	write(t, filepath.Join(home, "slipway/config.yml"), "cache: http://user\n")
	expect("http://user")
	t.Setenv(Environment, "http://environment")
	expect("http://environment")
	t.Setenv(Environment, "off")
	if got, err := Choose(board); err != nil || !got.isNone() {
		t.Errorf("Choose = %+v, %v; want none", got, err)
	}
	t.Setenv(Environment, "")
	path := filepath.Join(home, "slipway/config.yml")
	write(t, path, "cache: http://user\ncolour: red\n")
	if _, err := Choose(board); err == nil || !strings.Contains(err.Error(), path+":2:1: unknown key") {
		t.Errorf("Choose = %v; want the line of the unknown key", err)
	}
	write(t, path, "cache: http://user\ncache: off\n")
	if _, err := Choose(board); err == nil || !strings.Contains(err.Error(), path+":2:1: cache is set twice") {
		t.Errorf("Choose = %v; want the line of the second", err)
	}
}

// A password in an address is not repeated.
func TestSettingHidesLogins(t *testing.T) {
	for _, text := range []string{"http://me:s3cret@builder", "http://me:s3cret$@builder", "{sstate: 'http://me:s3cret%@b', hashserv: h:1, prserv: none}"} {
		if _, err := parseSetting("t.yml", []byte(text)); err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v; want it refused without its password", text, err)
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Whatever is taken for an address means nothing else to bitbake.
func FuzzSetting(f *testing.F) {
	f.Add("http://builder:8600")
	f.Add("{sstate: https://s/all, hashserv: wss://h/ws, prserv: none, downloads: http://d}")
	f.Add("{server: http://b, prserv: none}")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parseSetting("fuzz", []byte(text))
		if err != nil {
			return
		}
		for _, value := range []string{s.Server, s.Sstate, s.Hashserv, s.PRServ, s.Downloads} {
			if strings.ContainsAny(value, "\"'\\$;{}@ \t\r\n") || strings.Contains(value, "://") && mirrorWord().MatchString(value) {
				t.Errorf("took %q", value)
			}
		}
		if !s.isNone() && s.Server == "" && (s.Sstate == "" || s.Hashserv == "" || s.PRServ == "") {
			t.Errorf("took half a cache: %+v", s)
		}
	})
}
