package offload

import (
	"strings"
	"testing"

	"slipway/ci/report"
	"slipway/ci/suite"
	"slipway/ci/suite/suitetest"
)

const eswitchShown = `{"dev":{"pci/0000:03:00.0":{"mode":"switchdev","inline-mode":"none","encap-mode":"basic"}}}`

const representors = "/sys/class/net/p0/phys_port_name:p0\n/sys/class/net/pf0hpf/phys_port_name:pf0hpf\n/sys/class/net/pf0vf0/phys_port_name:pf0vf0\n" +
	"/sys/class/net/pf0vf1/phys_port_name:c1pf0vf1\n/sys/class/net/pf1vf0/phys_port_name:pf1vf0\n" +
	"/sys/class/net/p0/phys_switch_id:aa\n/sys/class/net/pf0hpf/phys_switch_id:aa\n/sys/class/net/pf0vf0/phys_switch_id:aa\n" +
	"/sys/class/net/pf0vf1/phys_switch_id:aa\n/sys/class/net/pf1vf0/phys_switch_id:bb\n"

func TestSRIOV(t *testing.T) {
	const (
		two = "sriov: {p0: {vfs: 2}}"
	)
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

func FuzzSRIOV(f *testing.F) {
	f.Add(eswitchShown)
	f.Add(representors)
	f.Fuzz(func(t *testing.T, text string) {
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
