package suite

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

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

// The scripts of dpu-steering find a rule in what the parsers print, with its fields and its
// actions. Parts of two rules are no rule.
func TestSteeringScripts(t *testing.T) {
	s, err := Load("dpu-steering")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name     string
		software string
		hardware string
		want     string // of both checks
	}{
		{"the rule", steeringDump, hardwareDump, "passed"},
		{"another port", strings.ReplaceAll(steeringDump, "35,", "36,"), strings.Replace(hardwareDump, "0x35", "0x36", 1), "failed"},
		{"the action is another rule's", strings.Replace(steeringDump, "MODIFY_HDR", "DROP", 1), strings.Replace(hardwareDump, "Counter:", "Drop:", 1) + "Counter: idx: 0x81\n", "failed"},
		{"no rules", "", "", "failed"},
	} {
		dir := t.TempDir()
		t.Setenv("PATH", dir+":/usr/bin:/bin")
		t.Setenv("TMPDIR", dir)
		for name, text := range map[string]string{
			"software": tt.software, "hardware": tt.hardware, "pidof": "#!/bin/sh\necho 811\n",
			"mlx_steering_dump":    "#!/bin/sh\n[ \"$3 $4\" = '-p 811' ] && cat " + dir + "/software\n",
			"mlx_hw_steering_dump": "#!/bin/sh\n[ \"$3 $4\" = '--pid 811' ] && cp " + dir + "/hardware \"$2.parsed\"\n",
		} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		session := &Session{Board: suitetest.LocalBoard{}}
		for _, c := range session.runSuite(t.Context(), s).Checks {
			if string(c.Status) != tt.want {
				t.Errorf("%s: %s: %s; want %s", tt.name, c.Name, suitetest.FormatResult(c), tt.want)
			}
		}
		if left, err := filepath.Glob(filepath.Join(dir, "tmp.*")); err != nil || len(left) > 0 {
			t.Errorf("%s: left behind: %v, %v", tt.name, left, err)
		}
	}
}
