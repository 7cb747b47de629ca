package images

import (
	"strings"
	"testing"
)

const smallRig = `arch: amd64
debian: {suite: bookworm, packages: [iproute2]}
rig:
  source:
    - {name: drivers, from: [recipes/a], script: drivers.sh}
  ports:
    - {name: p0, address: 192.0.2.254/24}
  places:
    - {name: leaf1, port: p0, address: 192.0.2.1/24}
suites: [rig]
`

func TestRig(t *testing.T) {
	for _, tt := range []struct{ name, from, to, wantErr string }{
		{"whole", "", "", ""},
		{"no userland", "debian: {suite: bookworm, packages: [iproute2]}\n", "", "neither debian nor a project file"},
		{"something to flash", "suites:", "flash: {kinds: [file]}\nsuites:", "rig: a rig has a userland"},
		{"a script that is not there", "script: drivers.sh", "script: other.sh", `source "drivers": script: "other.sh" is no file`},
		{"a script of the machine's", "script: drivers.sh", "script: /etc/passwd", `script: "/etc/passwd" is no file`},
		{"sources of elsewhere", "recipes/a", "../a", `source "drivers": from: "../a" leads out`},
		{"a variable of others", "script: drivers.sh", "script: drivers.sh, given: HOME", `source "drivers": given: "HOME" is no variable`},
		{"a layer that is no name", "name: drivers", "name: a/b", `source "a/b": want a name`},
		{"a port with a long name", "name: p0,", "name: p0123456789,", `port "p0123456789": want a name of at most 10`},
		{"a port that would be an option", "name: p0,", "name: -p0,", `port "-p0": want a name`},
		{"a port without a network", "192.0.2.254/24", "192.0.2.254", `port "p0": want a name`},
		{"a port of IPv6", "192.0.2.254/24", `"2001:db8::1/64"`, `port "p0": want a name`},
		{"a place behind no port", "port: p0", "port: p1", `place "leaf1": want an address of the network of its port "p1"`},
		{"a place of another network", "192.0.2.1/24", "192.0.3.1/24", `place "leaf1": want an address`},
		{"two places of one name", "suites:", "    - {name: leaf1, port: p0, address: 192.0.2.2/24}\nsuites:", "have one name"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text := strings.Replace(smallRig, tt.from, tt.to, 1)
			spec, err := LoadFrom(board(map[string]string{"b/board.yml": text, "b/drivers.sh": "true"}), "b")
			if tt.wantErr == "" {
				if err != nil || spec.Rig.Places[0].Name != "leaf1" {
					t.Errorf("LoadFrom = %+v, %v", spec.Rig, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("LoadFrom = %v; want %q", err, tt.wantErr)
			}
		})
	}
}
