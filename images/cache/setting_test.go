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
		{"no scheme", "builder:8600", Setting{}, "t.yml: cache: \"builder:8600\" is no address that begins with http:// or https://"},
		{"ftp", "ftp://s", Setting{}, "http:// or https://"},
		{"a path", "http://builder:8600/x", Setting{}, "goes on after the host"},
		{"a login", "http://me:pw@builder", Setting{}, "characters that no address"},
		{"ends the assignment", `http://b"`, Setting{}, "characters that no address"},
		{"runs Python", "http://${@os.system(1)}", Setting{}, "characters that no address"},
		{"another mirror", "http://s file://.* http://t", Setting{}, "characters that no address"},
		{"URL parameters", "http://s;downloadfilename=x", Setting{}, "characters that no address"},
		{"IPv6", "http://[::1]:8600", Setting{}, "write the host's name"},
		{"a host in capitals", "http://BUILDHOST:8600", Setting{Server: "http://buildhost:8600"}, ""},
		{"off in capitals", "OFF", Setting{Off: true}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseSetting("t.yml", tt.text)
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

// The environment holds before the board's.
func TestChoose(t *testing.T) {
	board := Setting{Server: "http://board"}
	for text, want := range map[string]string{"": "http://board", "http://environment": "http://environment", "off": ""} {
		t.Setenv(Environment, text)
		if got, err := Choose(board); err != nil || got.Server != want {
			t.Errorf("with %q, Choose = %+v, %v; want %q", text, got, err, want)
		}
	}
}

// A password in an address is not repeated.
func TestSettingHidesLogins(t *testing.T) {
	for _, text := range []string{"http://me:s3cret@builder", "http://me:s3cret$@builder", "http://me:s3cret%@b"} {
		if _, err := parseSetting("t.yml", text); err == nil || strings.Contains(err.Error(), "s3cret") {
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
	f.Add("off")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parseSetting("fuzz", text)
		if err == nil && strings.ContainsAny(s.Server, "\"'\\$;{}@ \t\r\nTHPABM") {
			t.Errorf("took %q", s.Server)
		}
	})
}
