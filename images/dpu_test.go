package images

import (
	"strings"
	"testing"
)

const smallDPU = `dpu:
  eal: [--no-huge, -m, "256", -d, /usr/lib/slipway/librte_net_swflow.so, "--vdev=net_swflow0,iface=pf0vf0,switch=esw-pf0vf0"]
  doca: [p0, pf0vf0, counters=100]
  ports: [pf0vf0, p0]
  from: {run: [ip, netns, exec, vf0], interface: eth0, address: 198.51.100.2}
  to: {run: [ip, netns, exec, leaf2], interface: eth0, address: 192.0.2.2}
  other: {interface: eth0, address: 192.0.2.1}
`

func TestDPU(t *testing.T) {
	for _, tt := range []struct{ name, from, to, wantErr string }{
		{"whole", "", "", ""},
		{"parts alone", smallDPU[strings.Index(smallDPU, "  from:"):], "", ""},
		{"an argument that FRR would split", "--no-huge", `"--no-huge -m 256"`, `dpu.eal: "--no-huge -m 256" is no argument`},
		{"the end of EAL's arguments", "--no-huge", "--", `dpu.eal: "--" is no argument`},
		{"an argument for DOCA that FRR would split", "counters=100", `"counters=100 pf0hpf"`, `dpu.doca: "counters=100 pf0hpf" is no argument`},
		{"a port of a wrong name", "[pf0vf0, p0]", "[pf0vf0, ../p0]", `dpu.ports: "../p0" is no name`},
		{"one port", "[pf0vf0, p0]", "[pf0vf0]", "dpu.ports: 1 interfaces; want 2"},
		{"packets to nowhere", "  to: {run: [ip, netns, exec, leaf2], interface: eth0, address: 192.0.2.2}\n", "", "dpu.from: packets need"},
		{"a command with a space", "[ip, netns, exec, vf0]", "[ip netns exec vf0]", "dpu.from.run: want at most 64 words"},
		{"no interface", "leaf2], interface: eth0", "leaf2], interface: ''", `dpu.to.interface: "" is no name`},
		{"an interface that would be an option", "leaf2], interface: eth0", "leaf2], interface: -w", `dpu.to.interface: "-w" is no name`},
		{"no address", "192.0.2.1}", "leaf1}", `dpu.other.address: "leaf1" is no IPv4 address`},
		{"an address of IPv6", "192.0.2.1}", "'2001:db8::1'}", `dpu.other.address: "2001:db8::1" is no IPv4 address`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dpu := strings.Replace(smallDPU, tt.from, tt.to, 1)
			spec, err := LoadFrom(board(map[string]string{"b/board.yml": small + dpu, "b/kas.yml": ""}), "b")
			if tt.wantErr == "" {
				if err != nil || spec.DPU == nil || spec.DPU.Ports[1] != "p0" {
					t.Errorf("LoadFrom = %+v, %v", spec.DPU, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("LoadFrom = %v; want %q", err, tt.wantErr)
			}
		})
	}
}
