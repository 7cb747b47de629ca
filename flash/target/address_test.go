package target

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseHost(t *testing.T) {
	tests := []struct {
		in      string
		want    Address
		wantErr bool
	}{
		{in: "board", want: Address{Host: "board"}},
		{in: "root@board", want: Address{Host: "board", User: "root"}},
		{in: "root@board:2222", want: Address{Host: "board", User: "root", Port: 2222}},
		{in: "ssh://root@board:2222/", want: Address{Host: "board", User: "root", Port: 2222}},
		{in: "10.0.0.7:22", want: Address{Host: "10.0.0.7", Port: 22}},
		{in: "fe80::1%eth0", want: Address{Host: "fe80::1%eth0"}},
		{in: "[::1]", want: Address{Host: "::1"}},
		{in: "a@b@[::1]:22", want: Address{Host: "::1", User: "a@b", Port: 22}},
		{in: "", wantErr: true},
		{in: "@board", wantErr: true},
		{in: "root@", wantErr: true},
		{in: "board:", want: Address{Host: "board"}},
		{in: "board:0", wantErr: true},
		{in: "board:65536", wantErr: true},
		{in: "board:ssh", wantErr: true},
		{in: "-oProxyCommand=id", wantErr: true},
		{in: "-l@board", wantErr: true},
		{in: "root@-v", wantErr: true},
		{in: "two words", wantErr: true},
		{in: "a\nb", wantErr: true},
		{in: "[::1", wantErr: true},
	}
	for _, tt := range tests {
		got, err := parseHost(tt.in)
		if (err != nil) != tt.wantErr {
			t.Errorf("parseHost(%q) = %v; want error %v", tt.in, err, tt.wantErr)
			continue
		}
		if diff := cmp.Diff(tt.want, got); diff != "" && err == nil {
			t.Errorf("parseHost(%q) (-want +got):\n%s", tt.in, diff)
		}
	}
}

func TestParseConfig(t *testing.T) {
	home := t.TempDir()
	key, known := filepath.Join(home, "key"), filepath.Join(home, "known")
	for _, f := range []string{key, known} {
		if err := os.WriteFile(f, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := parseConfig(`host board
user field
hostname 10.0.0.7
port 2222
hostkeyalias serial-0042
identityfile ~/key
identityfile ~/missing
userknownhostsfile ~/known ~/known2
globalknownhostsfile `+known+` none
proxyjump none
`, home)
	want := Address{
		Host: "10.0.0.7", Port: 2222, User: "field", HostKeyAlias: "serial-0042",
		Identities: []string{key}, KnownHosts: []string{known, known},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("parseConfig: %v (-want +got):\n%s", err, diff)
	}
	for _, text := range []string{"", "user root\n", "hostname a\nport 0\n", "hostname a\nproxyjump gate\n", "hostname a\nproxycommand nc %h\n"} {
		if _, err := parseConfig(text, home); err == nil {
			t.Errorf("parseConfig(%q): no error", text)
		}
	}
}

func TestResolveAsksSSH(t *testing.T) {
	if _, err := exec.LookPath("ssh"); err != nil {
		t.Skip("ssh is missing: install the Debian package openssh-client")
	}
	got, err := Resolve(t.Context(), "somebody@127.0.0.1:2022")
	if err != nil {
		t.Fatal(err)
	}
	if got.Host != "127.0.0.1" || got.Port != 2022 || got.User != "somebody" {
		t.Errorf("Resolve = %+v", got)
	}
}

func TestResolveWithoutSSH(t *testing.T) {
	home := t.TempDir()
	t.Setenv("PATH", home)
	t.Setenv("HOME", home)
	if err := os.Mkdir(filepath.Join(home, ".ssh"), 0o700); err != nil {
		t.Fatal(err)
	}
	known := filepath.Join(home, ".ssh", "known_hosts")
	if err := os.WriteFile(known, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Resolve(t.Context(), "somebody@board")
	if err != nil {
		t.Fatal(err)
	}
	if got.Port != 22 || len(got.Identities) != 0 || len(got.KnownHosts) == 0 || got.KnownHosts[0] != known {
		t.Errorf("Resolve = %+v; want port 22, no identity, known hosts from %s", got, known)
	}
}

func FuzzParseHost(f *testing.F) {
	for _, s := range []string{"root@board:22", "[::1]:22", "ssh://a@b/", "-x", "a@b@c", "[", ":"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := parseHost(s)
		if err == nil && (a.Host == "" || strings.HasPrefix(a.Host, "-") || strings.HasPrefix(a.User, "-") || a.Port < 0 || a.Port > 65535) {
			t.Errorf("parseHost(%q) = %+v", s, a)
		}
	})
}

func FuzzParseConfig(f *testing.F) {
	f.Add("hostname a\nport 22\nuser b\nidentityfile ~/.ssh/id\n")
	f.Add("hostname\nport -1\n")
	f.Fuzz(func(t *testing.T, s string) {
		a, err := parseConfig(s, "/nonexistent")
		if err == nil && (a.Host == "" || a.Port < 0 || a.Port > 65535) {
			t.Errorf("parseConfig(%q) = %+v", s, a)
		}
	})
}
