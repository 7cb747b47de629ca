package offload

import (
	"slices"
	"strings"
	"testing"

	"slipway/ci/report"
	"slipway/ci/suite"
	"slipway/ci/suite/suitetest"
)

// steeringDump has the form that mlx_steering_dump (2510) prints: the rule of the post, and
// one that drops packets.
const steeringDump = `domain 0x1ee802, table 0x7f0011000010, matcher 0x7f0011000100, rule 0x7f0011000200
   match: outer_l4_dport: 0x00000035, outer_ip_version: 0x00000004 outer_l4_dport: 0x00000035, outer_ip_version: 0x00000004, src_ip: 198.51.100.1, ip_protocol: UDP, smac: 02:00:00:00:00:01 
   action: MODIFY_HDR, rewrite index 0x7f00110002000xe & CTR(counter), index 0x8011ff & VPORT, num 0xffff
domain 0x1ee802, table 0x7f0011000010, matcher 0x7f0011000100, rule 0x7f0011000300
   match:   
   action: CTR(counter), index 0x8011fe & DROP
`

// hardwareDump has the form that mlx_hw_steering_parser.py prints.
const hardwareDump = `Context 0x32c3700: hws_support True, dev_name mlx5_0, debug_version 1.0
    Table 0x338be70: type FDB, level 1, miss_tbl NONE
        Matcher 0x3467900: 
            Match_template 0x3467530:
                Match fields:
                    src_ip_o: 0xffffffff 
            Rules:
                Rule:
                    RX STE 0x10000000:
                        Tag:
                            l3_type_o: IPv4, src_ip_o: 198.51.100.1
                        Actions:
                            Go To: 0x0:0xa000007f
                    RX STE 0x10000003:
                        Tag:
                            dst_port_o: 0x35, dmac_o: 0x20000000102
                        Actions:
                            Counter: idx: 0x80 (hits 1)
                            Go To: VPORT 0x2
                Rule:
                    RX STE 0x10000007:
                        Tag:
                            l3_type_o: IPv4, src_ip_o: 6.6.6.6
                        Actions:
                            Go To: 0x0:0xa000007f
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
	hard := suitetest.Recorded{
		"true": "", "sh -c": "", "pidof zebra": "811\n", "mkdir": "", "rm -rf": "", "cp -- /var/d.csv /tmp/slipway-": "",
		"mlx_hw_steering_dump -f /tmp/slipway-": "", "cat -- /tmp/slipway-": hardwareDump,
	}
	dump := suitetest.Recorded{"cp -- /var/d.csv /tmp/slipway-": "", "true": "", "sh -c": "", "pidof zebra": "811\n", "mkdir": "", "rm -rf": "", "mlx_steering_dump -f /tmp/slipway-": steeringDump}
	pci := suitetest.Recorded{
		"true": "", "sh -c command": "", "readlink": "/sys/devices/pci0000:00/0000:03:00.0\n", "sh -c grep": representors,
		"devlink -j dev eswitch show pci/0000:03:00.0": eswitchShown,
	}
	legacy := suitetest.Recorded{"sh -c": "", "readlink": "/x/0000:03:00.0\n", "devlink": strings.Replace(eswitchShown, "switchdev", "legacy", 1)}
	for _, tt := range []struct {
		name, suite string
		board       suitetest.Recorded
		want        string
		proves      report.Proof
	}{
		{"a rule of the device's", match, dump, "passed: the device holds 2 rules; rule 0x7f0011000200 does MODIFY_HDR, rewrite index 0x7f00110002000xe & CTR(counter), index 0x8011ff & VPORT, num 0xffff", report.ProvesHardware},
		{"a dump that lies there", strings.Replace(match, "{match", "{file: /var/d.csv, match", 1), dump, "passed: the device holds 2 rules", ""},
		{"the match of the post", strings.Replace(match, "=53", "=53, src_ip=198.51.100.1, ip_protocol=udp, smac=02:00:00:00:00:01", 1), dump, "passed: the device holds 2 rules; rule 0x7f0011000200 does", report.ProvesHardware},
		{"as numbers", strings.Replace(match, "=53", "=0x35, src_ip=0xc6336401, ip_protocol=17, smac=0x020000000001", 1), dump, "passed: the device holds 2 rules; rule 0x7f0011000200 does", report.ProvesHardware},
		{"another address", strings.Replace(match, "=53", "=53, src_ip=198.51.100.2", 1), dump, "failed: none of 2 rules:", ""},
		{"another MAC", strings.Replace(match, "=53", "=53, smac=02:00:00:00:00:02", 1), dump, "failed: none of 2 rules:", ""},
		{"steered by hardware", "steering: {x: {hardware: true, match: [dst_port_o=53, src_ip_o=198.51.100.1, 'dmac_o=02:00:00:00:01:02'], actions: [Counter, VPORT]}}", hard, "passed: the device holds 2 rules; rule at 0x10000000 does Go To: 0x0:0xa000007f & Counter: idx: 0x80 (hits 1) & Go To: VPORT 0x2", report.ProvesHardware},
		{"of two rules' parts", "steering: {x: {hardware: true, match: [dst_port_o=53, src_ip_o=6.6.6.6]}}", hard, "failed: none of 2 rules:", ""},
		{"a dump of hardware's", "steering: {x: {hardware: true, file: /var/d.csv, match: [src_ip_o=6.6.6.6]}}", hard, "passed: the device holds 2 rules; rule at 0x10000007 does Go To: 0x0:0xa000007f", ""},
		{"another port", strings.Replace(match, "53", "54", 1), dump, "failed: none of 2 rules:", ""},
		{"another action", strings.Replace(match, "VPORT", "DROP", 1), dump, "failed: none of 2 rules:", ""},
		{"nobody made rules", match, suitetest.Recorded{"true": "", "sh -c": "", "pidof zebra": "exit 1\n"}, "skipped: 0 programs called zebra run on the board", ""},
		{"two that may have", match, suitetest.Recorded{"true": "", "sh -c": "", "pidof zebra": "4 5\n"}, "skipped: 2 programs called zebra", ""},
		{"no program", match, suitetest.Recorded{"sh -c": "exit 1\n"}, "skipped: the board lacks what it needs: it has no program mlx_steering_dump", ""},
		{"VFs", two, pci, "passed: the switch of 0000:03:00.0 is in mode switchdev; 2 VFs with a representor on the switch of p0: pf0vf0, pf0vf1", report.ProvesParts},
		{"too few VFs", "sriov: {x: {pf: p0, vfs: {ge: 3}}}", pci, "failed: 2 VFs with a representor on the switch of p0: pf0vf0, pf0vf1 / VFs: at least 3", ""},
		{"another mode", two, legacy, "failed: the switch of 0000:03:00.0 is in mode legacy", ""},
		{"no such interface", two, suitetest.Recorded{"sh -c": "", "readlink": "exit 1\n"}, "skipped: there is no interface p0", ""},
		{"devlink talks", two, suitetest.Recorded{"true": "", "sh -c": "", "readlink": "/x/0000:03:00.0\n", "devlink": "kernel answers: Operation not supported\n"}, "failed: devlink answered", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := runCheckOn(t, &suite.Session{Board: tt.board}, tt.suite)
			if got := suitetest.FormatResult(r); !strings.HasPrefix(got, tt.want) || r.Proves != tt.proves {
				t.Errorf("proves %q: %s\nwant %q: %s", r.Proves, got, tt.proves, tt.want)
			}
		})
	}
}

func TestParseSteering(t *testing.T) {
	rules := parseSteering("\x1b[1m" + steeringDump + "domain 0x1, rule 0x5\n")
	if len(rules) != 3 || !slices.Contains(rules[0].fields, fieldValue{"outer_l4_dport", "53"}) || !slices.Equal(rules[1].actions, []string{"CTR(counter), index 0x8011fe", "DROP"}) || len(rules[1].fields) != 0 {
		t.Errorf("parseSteering = %+v", rules)
	}
}

func FuzzSteering(f *testing.F) {
	f.Add(steeringDump)
	f.Add(hardwareDump)
	f.Add(eswitchShown)
	f.Add(representors)
	f.Fuzz(func(t *testing.T, text string) {
		for _, r := range parseSteering(text) {
			if !strings.HasPrefix(r.id, "rule 0x") {
				t.Errorf("%+v", r)
			}
		}
		for _, r := range parseHardwareSteering(text) {
			if !strings.HasPrefix(r.id, "rule at 0x") {
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
