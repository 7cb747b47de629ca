package suite

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

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
		session := &Session{Board: localBoard{}}
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

// mldevSays returns output in the form that dpdk-test-mldev prints to a pipe.
func mldevSays(result string) string {
	return "\tdriver               : ml_sw\n\ttest                 : inference_ordered\n" +
		"\x1b[33mError: nothing\x1b[0m\n Average End-to-End Latency (ns)                                  = 1530\n" +
		" Average Throughput (inferences / second)                         = 653594\n" +
		"--------------------------------------------------------------------------------\nResult: \x1b[32m" + result + "\x1b[0m\n"
}

// The scripts of dpu-mldev give dpdk-test-mldev the words and files of the board's mldev.conf.
// Success passes, a wrong reference must fail, and nothing else passes: not an exit status of 0
// without success, and not a program that crashes.
func TestMldevScripts(t *testing.T) {
	text, err := os.ReadFile("workloads/dpu-mldev/suite.yml")
	if err != nil {
		t.Fatal(err)
	}
	conf, err := os.ReadFile("../../recipes/dynamic-layers/dpdk/dpdk-ml-sw/files/mldev.conf")
	if err != nil {
		t.Fatal(err)
	}
	const (
		start = "--lcores=0@0,1@0,2@1 --no-huge -m 128 --no-pci -d /usr/lib/dpdk-slipway/librte_ml_sw.so --vdev=ml_sw0 -- --debug --test="
		first = "--filelist=F/model.bin,F/input.bin,D/output,F/reference.bin"
		other = " --filelist=F/other-model.bin,F/other-input.bin,D/other-output,F/other-reference.bin"
		wrong = "--filelist=F/model.bin,F/input.bin,D/output,F/wrong.bin"
	)
	asked := []string{
		start + "device_ops",
		start + "model_ops --models=F/model.bin",
		start + "inference_ordered " + first + other + " --repetitions=10000 --stats --tolerance=1",
		start + "inference_interleave " + first + other + " --repetitions=1000 --stats --tolerance=1",
		start + "inference_ordered " + wrong + " --repetitions=10 --stats --tolerance=1",
	}
	success, failed, unsupported := mldevSays("Success"), "exit 1\n"+mldevSays("Failed"), mldevSays("Unsupported")
	for _, tt := range []struct {
		name, right, wrong string // says the program of the right reference, and of the wrong one
		want               []string
	}{
		{"a device that computes", success, failed, []string{"passed", "passed", "passed", "passed", "passed"}},
		{"wrong answers", failed, failed, []string{"failed", "failed", "failed", "skipped", "skipped"}},
		{"tests that it does not support", unsupported, unsupported, []string{"failed", "failed", "failed", "skipped", "skipped"}},
		{"a wrong reference that passes", success, success, []string{"passed", "passed", "passed", "passed", "failed"}},
		{"a wrong reference that is not compared", success, unsupported, []string{"passed", "passed", "passed", "passed", "failed"}},
		{"a wrong reference, and a crash", success, "exit 139\n", []string{"passed", "passed", "passed", "passed", "failed"}},
		{"a wrong reference, and a status of 0", success, mldevSays("Failed"), []string{"passed", "passed", "passed", "passed", "failed"}},
		{"a crash after success", "exit 139\n" + success, failed, []string{"failed", "failed", "failed", "skipped", "skipped"}},
		{"success and failure", success + mldevSays("Failed"), failed, []string{"failed", "failed", "failed", "skipped", "skipped"}},
		{"no figures", "Result: Success\n", failed, []string{"passed", "passed", "failed", "skipped", "skipped"}},
		{"no word", "", failed, []string{"failed", "failed", "failed", "skipped", "skipped"}},
	} {
		dir := t.TempDir()
		t.Setenv("PATH", dir+":/usr/bin:/bin")
		t.Setenv("TMPDIR", dir)
		files := map[string]string{
			"mldev.conf":      string(conf),
			"dpdk-test-mldev": "#!/bin/sh\necho \"$*\" >>" + dir + "/asked\ncase $* in *wrong.bin*) said=wrong ;; *) said=right ;; esac\ncat " + dir + "/$said.out\nexit $(cat " + dir + "/$said.status)\n",
		}
		for name, says := range map[string]string{"right": tt.right, "wrong": tt.wrong} {
			files[name+".out"], files[name+".status"] = says, "0"
			if rest, found := strings.CutPrefix(says, "exit "); found {
				files[name+".status"], files[name+".out"], _ = strings.Cut(rest, "\n")
			}
		}
		for name, data := range files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		r := runHere(t, t.Context(), dir, strings.ReplaceAll(string(text), "/etc/slipway/mldev.conf", dir+"/mldev.conf"))
		var got []string
		for _, c := range r.Checks {
			got = append(got, string(c.Status))
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q; want %q:\n%s", tt.name, got, tt.want, strings.Join(resultTexts(r), "\n"))
		}
		if left, err := filepath.Glob(filepath.Join(dir, "tmp.*")); err != nil || len(left) > 0 {
			t.Errorf("%s: left behind: %v, %v", tt.name, left, err)
		}
		if tt.name != "a device that computes" {
			continue
		}
		lines, err := os.ReadFile(filepath.Join(dir, "asked"))
		if err != nil {
			t.Fatal(err)
		}
		said := regexp.MustCompile(regexp.QuoteMeta(dir)+`/tmp\.\w+/`).ReplaceAllString(strings.ReplaceAll(string(lines), "/usr/share/slipway/ml_sw/", "F/"), "D/")
		if diff := cmp.Diff(asked, strings.Split(strings.TrimSpace(said), "\n")); diff != "" {
			t.Errorf("arguments of dpdk-test-mldev (-want +got):\n%s", diff)
		}
		if got := resultTexts(r)[0]; !strings.Contains(got, "driver               : ml_sw") {
			t.Errorf("%s; want the driver's name", got)
		}
		if got := resultTexts(r)[2]; !strings.Contains(got, "latency 1.53 µs; throughput 653594 inferences/s") {
			t.Errorf("%s; want both figures", got)
		}
	}
}

// The scripts of the suite dpu look at the mode of p0's switch, and at the representors on it.
// Those of another switch do not count.
func TestSwitchScripts(t *testing.T) {
	text, err := os.ReadFile("suites/dpu.yml")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, mode string
		ports      map[string]string // and their switch, by interface
		want       []string
	}{
		{"as it should be", "switchdev", map[string]string{"p0": "p0 aa", "pf0vf0": "pf0vf0 aa", "host": "c1pf0vf1 aa"}, []string{"passed", "passed"}},
		{"another mode", "legacy", map[string]string{"p0": "p0 aa", "pf0vf0": "pf0vf0 aa"}, []string{"failed", "passed"}},
		{"another switch", "switchdev", map[string]string{"p0": "p0 aa", "pf1vf0": "pf1vf0 bb"}, []string{"passed", "failed"}},
		{"no virtual function", "switchdev", map[string]string{"p0": "p0 aa", "pf0hpf": "pf0hpf aa"}, []string{"passed", "failed"}},
	} {
		dir := t.TempDir()
		t.Setenv("PATH", dir+":/usr/bin:/bin")
		files := map[string]string{"devlink": "#!/bin/sh\n[ \"$4\" = pci/0000:03:00.0 ] && echo \"$4: mode " + tt.mode + " inline-mode none\"\n", "net/lo/type": "772\n"}
		for name, port := range tt.ports {
			files["net/"+name+"/phys_port_name"], files["net/"+name+"/phys_switch_id"], _ = strings.Cut(port, " ")
		}
		for name, data := range files {
			if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, name), []byte(data+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(os.Mkdir(filepath.Join(dir, "0000:03:00.0"), 0o755), os.Symlink(filepath.Join(dir, "0000:03:00.0"), filepath.Join(dir, "net/p0/device"))); err != nil {
			t.Fatal(err)
		}
		here := strings.NewReplacer("/sys/class/net", dir+"/net", "{module: mlx5_core}, ", "").Replace(string(text))
		var got []string
		for _, c := range runHere(t, t.Context(), dir, here).Checks {
			if strings.HasPrefix(c.Name, "the switch ") {
				got = append(got, string(c.Status))
			}
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q; want %q", tt.name, got, tt.want)
		}
	}
}
