package boardssh

import (
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
		{in: "root:secret@board", wantErr: true},
		{in: "ssh://root:secret@board:22/", wantErr: true},
		{in: ":secret@board", wantErr: true},
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
		if (err != nil) != tt.wantErr || err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("parseHost(%q) = %v; want error %v", tt.in, err, tt.wantErr)
			continue
		}
		if diff := cmp.Diff(tt.want, got); diff != "" && err == nil {
			t.Errorf("parseHost(%q) (-want +got):\n%s", tt.in, diff)
		}
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
