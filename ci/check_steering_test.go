package ci

import (
	"slices"
	"strings"
	"testing"
)

// steeringDump is in the form that mlx_steering_dump (2510) gives a dump's rules; that of
// the post, and one that drops.
const steeringDump = `domain 0x1ee802, table 0x7f0011000010, matcher 0x7f0011000100, rule 0x7f0011000200
   match: outer_l4_dport: 0x00000035, outer_ip_version: 0x00000004 outer_l4_dport: 0x00000035, outer_ip_version: 0x00000004 
   action: MODIFY_HDR, rewrite index 0x7f00110002000xe & CTR(counter), index 0x8011ff & VPORT, num 0xffff
domain 0x1ee802, table 0x7f0011000010, matcher 0x7f0011000100, rule 0x7f0011000300
   match:   
   action: CTR(counter), index 0x8011fe & DROP
`

const eswitchShown = `{"dev":{"pci/0000:03:00.0":{"mode":"switchdev","inline-mode":"none","encap-mode":"basic"}}}`

const representors = "/sys/class/net/p0/phys_port_name:p0\n/sys/class/net/pf0hpf/phys_port_name:pf0hpf\n/sys/class/net/pf0vf0/phys_port_name:pf0vf0\n" +
	"/sys/class/net/pf0vf1/phys_port_name:c1pf0vf1\n/sys/class/net/pf1vf0/phys_port_name:pf1vf0\n" +
	"/sys/class/net/p0/phys_switch_id:aa\n/sys/class/net/pf0hpf/phys_switch_id:aa\n/sys/class/net/pf0vf0/phys_switch_id:aa\n" +
	"/sys/class/net/pf0vf1/phys_switch_id:aa\n/sys/class/net/pf1vf0/phys_switch_id:bb\n"

func TestSteeringAndSRIOV(t *testing.T) {
	const (
		match = "steering: {x: {match: [outer_l4_dport=53], actions: [CTR, VPORT]}}"
		two   = "sriov: {p0: {vfs: 2}}"
	)
	dump := recorded{"true": "", "sh -c": "", "pidof zebra": "811\n", "mkdir": "", "rm -rf": "", "mlx_steering_dump -p 811 -port 0 -f /tmp/slipway-": steeringDump, "mlx_steering_dump -f /var/d.csv": steeringDump}
	pci := recorded{
		"true": "", "sh -c command": "", "readlink": "/sys/devices/pci0000:00/0000:03:00.0\n", "sh -c grep": representors,
		"devlink -j dev eswitch show pci/0000:03:00.0": eswitchShown,
	}
	legacy := recorded{"sh -c": "", "readlink": "/x/0000:03:00.0\n", "devlink": strings.Replace(eswitchShown, "switchdev", "legacy", 1)}
	for _, tt := range []struct {
		name, suite string
		board       recorded
		want        string
		proves      Proof
	}{
		{"a rule of the device's", match, dump, "passed: the device holds 2 rules; rule 0x7f0011000200 does MODIFY_HDR, rewrite index 0x7f00110002000xe & CTR(counter), index 0x8011ff & VPORT, num 0xffff", ProvesHardware},
		{"a dump that lies there", strings.Replace(match, "{match", "{file: /var/d.csv, match", 1), dump, "passed: the device holds 2 rules", ""},
		{"another port", strings.Replace(match, "53", "54", 1), dump, "failed: none of 2 rules:", ""},
		{"another action", strings.Replace(match, "VPORT", "DROP", 1), dump, "failed: none of 2 rules:", ""},
		{"nobody made rules", match, recorded{"true": "", "sh -c": "", "pidof zebra": "exit 1\n"}, "skipped: 0 programs called zebra run on the board", ""},
		{"two that may have", match, recorded{"true": "", "sh -c": "", "pidof zebra": "4 5\n"}, "skipped: 2 programs called zebra", ""},
		{"no program", match, recorded{"sh -c": "exit 1\n"}, "skipped: the board lacks what it needs: it has no program mlx_steering_dump", ""},
		{"VFs", two, pci, "passed: the switch of 0000:03:00.0 is in mode switchdev; 2 VFs with a representor on the switch of p0: pf0vf0, pf0vf1", ProvesParts},
		{"too few VFs", "sriov: {x: {pf: p0, vfs: {ge: 3}}}", pci, "failed: 2 VFs with a representor on the switch of p0: pf0vf0, pf0vf1 / VFs: at least 3", ""},
		{"another mode", two, legacy, "failed: the switch of 0000:03:00.0 is in mode legacy", ""},
		{"no such interface", two, recorded{"sh -c": "", "readlink": "exit 1\n"}, "skipped: there is no interface p0", ""},
		{"devlink talks", two, recorded{"true": "", "sh -c": "", "readlink": "/x/0000:03:00.0\n", "devlink": "kernel answers: Operation not supported\n"}, "failed: devlink answered", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := ask(t, tt.board, tt.suite)
			if got := judged(r); !strings.HasPrefix(got, tt.want) || r.Proves != tt.proves {
				t.Errorf("proves %q: %s\nwant %q: %s", r.Proves, got, tt.proves, tt.want)
			}
		})
	}
}

func TestParseSteering(t *testing.T) {
	rules := parseSteering("\x1b[1m" + steeringDump + "domain 0x1, rule 0x5\n")
	if len(rules) != 3 || !slices.Contains(rules[0].fields, fieldValue{"outer_l4_dport", 53}) || !slices.Equal(rules[1].actions, []string{"CTR(counter), index 0x8011fe", "DROP"}) || len(rules[1].fields) != 0 {
		t.Errorf("parseSteering = %+v", rules)
	}
}

func FuzzSteering(f *testing.F) {
	f.Add(steeringDump)
	f.Add(eswitchShown)
	f.Add(representors)
	f.Fuzz(func(t *testing.T, text string) {
		for _, r := range parseSteering(text) {
			if !strings.HasPrefix(r.id, "rule 0x") {
				t.Errorf("%+v", r)
			}
		}
		for _, name := range parseRepresentors(text, "p0") {
			if strings.Contains(name, "/") {
				t.Errorf("interface %q", name)
			}
		}
		if mode, err := parseEswitch(text, "pci/0000:03:00.0"); err == nil && len(mode) > 100 {
			t.Errorf("mode %q", mode)
		}
	})
}
