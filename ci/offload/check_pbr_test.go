package offload

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"

	"slipway/ci/report"
	"slipway/ci/suite/suitetest"
	"slipway/flash/boardssh"
	"slipway/images"
)

// runDaemon is the simulated zebra or pbrd.
func (d *simulatedDPU) runDaemon(ctx context.Context, stdout io.Writer, argv []string) (int, error) {
	if d.faults["zebra fails"] {
		io.WriteString(stdout, "loader error: dplane_dpdk.so: cannot open shared object file\n")
		return 1, nil
	}
	if d.faults["no ports"] {
		io.WriteString(stdout, "vdev_probe(): failed to initialize net_swflow0 device\n")
	}
	d.mu.Lock()
	d.zebra = d.zebra || argv[len(argv)-1] == "dplane_dpdk:--no-huge --vdev=net_swflow0,iface=pf0vf0" || argv[len(argv)-1] == "dplane_doca:p0 pf0vf0"
	d.mu.Unlock()
	<-ctx.Done()
	return 0, context.Cause(ctx)
}

// answerVtysh answers in the form that FRR 10.3 with our patches prints, by its source.
func (d *simulatedDPU) answerVtysh(argv []string) (boardssh.Result, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.zebra {
		return boardssh.Result{Status: 1, Stderr: []byte("failed to connect to any daemons.\n")}, nil
	}
	var out strings.Builder
	policy, rule := "", &pbrRule{}
	for _, c := range argv {
		switch {
		case c == "show dplane dpdk port json":
			var ports []string
			for i, name := range simulatedSpec.Ports {
				ports = append(ports, fmt.Sprintf(`{"port":%d,"used":%v,"device":"net_swflow%d","driver":%q,"interface":%q,"ifIndex":%d}`, i, !d.faults["no ports"], i, d.driver, name, 7+i))
			}
			fmt.Fprintf(&out, `{"ealStarted":true,"ports":[%s]}`, strings.Join(ports, ","))
		case c == "show dplane dpdk pbr flows":
			out.WriteString(d.showFlows())
		case c == "show dplane doca port json":
			out.WriteString("{\n  \"ports\":[\n {\"port\":0,\"interface\":\"p0\",\"ifindex\":8},\n {\"port\":1,\"interface\":\"pf0vf0\",\"ifindex\":7}\n ]\n}\n")
		case c == "show dplane doca pbr flow json":
			out.WriteString(d.showDOCAFlows())
		case strings.HasPrefix(c, "pbr-map "):
			rule = &pbrRule{}
			fmt.Sscanf(c, "pbr-map %s seq %d", &policy, &rule.seq)
			d.rules[policy] = append(d.rules[policy], rule)
		case strings.HasPrefix(c, "match dst-port "):
			port, _ := strconv.Atoi(c[len("match dst-port "):])
			rule.port = uint16(port)
		case c == "match mark 7":
			rule.why = "it matches more than addresses, ports and IP protocol"
		case c == "show pbr map slipway-check":
			for _, r := range d.rules["slipway-check"] {
				fmt.Fprintf(&out, "    Seq: %d rule: %d\n        Installed: no Reason: %s\n", r.seq, 299+r.seq, map[bool]string{true: "Invalid Src or Dst", false: "Valid"}[r.port == 7])
			}
		case c == "match colour blue":
			out.WriteString("% Unknown command: match colour blue\n")
		case c == "show pbr interface" && d.faults["has a policy"]:
			out.WriteString("  eth7(3) with pbr-policy other\n  pf0vf0(7) with pbr-policy dns\n")
		case strings.HasPrefix(c, "pbr-policy "):
			d.applyPolicy(c[len("pbr-policy "):])
		case strings.HasPrefix(c, "no pbr-policy "):
			d.withdrawPolicy(c[len("no pbr-policy "):])
		case strings.HasPrefix(c, "no pbr-map ") && strings.Contains(c, " seq "):
			seq := 0
			fmt.Sscanf(c, "no pbr-map %s seq %d", &policy, &seq)
			d.rules[policy] = slices.DeleteFunc(d.rules[policy], func(r *pbrRule) bool { return r.seq == seq && !d.faults["keeps a sequence"] })
			if seq == ruleSeq && !d.faults["keeps its flow"] {
				d.rule = nil
			}
		case strings.HasPrefix(c, "no pbr-map "):
			if !d.faults["keeps the flow"] {
				delete(d.rules, c[len("no pbr-map "):])
			}
		case c == "pbr nexthop-resolve" && d.faults["an old zebra"]:
			out.WriteString("% Unknown command: pbr nexthop-resolve\n")
		}
	}
	return boardssh.Result{Stdout: []byte(out.String())}, nil
}

func (d *simulatedDPU) applyPolicy(policy string) {
	if d.faults["no flow"] {
		return
	}
	d.applied[policy] = true
	for _, r := range d.rules[policy] {
		switch {
		case r.why != "":
		case r.port == 53:
			d.rule = &simulatedRule{port: 53}
		case r.port == 0 && d.wide == nil:
			d.wide = &simulatedRule{}
		}
	}
}

func (d *simulatedDPU) withdrawPolicy(policy string) {
	if d.faults["keeps the flow"] {
		return
	}
	delete(d.applied, policy)
	d.rule, d.wide = nil, nil
}

func (d *simulatedDPU) showFlows() string {
	const rule = "Rules if pf0vf0\n  Seq %d pri 310\n  IP protocol Match: 17\n  DST Port Match: %d\n  Tableid: 10000\n  Action: nh: 192.0.2.2 intf: p0\n  Action: mac: 02:00:00:00:01:02\n"
	var all strings.Builder
	for policy := range d.applied {
		for _, r := range d.rules[policy] {
			if r.port == 65535 && !d.faults["keeps what the kernel refuses"] {
				continue
			}
			fmt.Fprintf(&all, rule, r.seq, r.port)
			if r.why != "" {
				fmt.Fprintf(&all, "  DPDK: not offloaded: %s\n", r.why)
				continue
			}
			var t tally
			for _, flow := range []*simulatedRule{d.rule, d.wide} {
				if flow != nil && flow.port == r.port {
					t = flow.tally
				}
			}
			if !d.faults["shows no counter"] {
				fmt.Fprintf(&all, "  DPDK stats: packets %d bytes %d\n", t.packets, t.bytes)
			}
		}
	}
	return all.String()
}

// showDOCAFlows returns the flows in the form that our plugin for DOCA prints.
func (d *simulatedDPU) showDOCAFlows() string {
	all := []string{`{"seq":5,"in":"pf0vf0","refused":"its next hop is not resolved"}`}
	for _, f := range parseFlows(d.showFlows()) {
		if f.refused != "" {
			all = append(all, fmt.Sprintf(`{"seq":%d,"in":%q,"refused":%q}`, f.seq, f.iface, f.refused))
			continue
		}
		all = append(all, fmt.Sprintf(`{"seq":%d,"in":%q,"out":"p0","proto":17,"src":"10.0.0.0/8","srcPort":0,"dst":"0.0.0.0/0","dstPort":%s,"packets":%d,"bytes":%d}`, f.seq, f.iface, f.port, f.packets, f.bytes))
	}
	return `{"flows":[` + strings.Join(all, ",") + "]}\n"
}

// showKernelRules answers in the form that iproute2 of Debian 12 prints.
func (d *simulatedDPU) showKernelRules() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all strings.Builder
	for policy := range d.applied {
		for i, r := range d.rules[policy] {
			fmt.Fprintf(&all, "%d:\tfrom 198.51.100.2 iif pf0vf0 ipproto udp%s lookup %d proto zebra\n", 300+i, map[bool]string{false: fmt.Sprintf(" dport %d", r.port)}[d.faults["a kernel without ports"]], 10000+i)
		}
	}
	if d.faults["leaves a rule"] {
		all.WriteString("300:\tfrom all iif pf0vf0 ipproto udp dport 53 lookup 10000\n")
	}
	return all.String()
}

func TestPBR(t *testing.T) {
	parts := images.DPU{EAL: simulatedSpec.EAL, Ports: simulatedSpec.Ports}
	doca := simulatedSpec
	doca.DOCA = []string{"p0", "pf0vf0"}
	alone := simulatedSpec
	alone.Other = nil
	const widerSuite = "pbr: {x: {wider: true, packets: 7, other-packets: 3}}"
	const groupSuite = "pbr: {x: {group: true, packets: 7, other-packets: 3}}"
	const suite, docaSuite = "pbr: {x: {packets: 7, other-packets: 3}}", "pbr: {x: {plugin: doca, packets: 7, other-packets: 3}}"
	for _, tt := range []struct {
		name, fault, suite string
		spec               *images.DPU
		want               string
		proves             report.Proof
	}{
		{"a rule", "", suite, &simulatedSpec, "passed: pf0vf0 is net_swflow; p0 is net_swflow; without a rule: 105 by the kernel, 12 no further; the rule has", report.ProvesSoftware},
		{"no traffic", "", suite, &parts, "passed: pf0vf0 is net_swflow; p0 is net_swflow; no packets were sent", report.ProvesParts},
		{"others", "", suite, &simulatedSpec, "the rule has a flow; the kernel has the rule too; with the rule: 24 rewritten to to, 81 by the kernel, 12 no further; the flow counts 24 packets, ", report.ProvesSoftware},
		{"a kernel's rule without ports", "a kernel without ports", suite, &simulatedSpec, "failed: the kernel's own rules do not name the rule's ports, so that they take more (FRR without our patch kernel-ports):\n300:", ""},
		{"a rule for TCP too", "moves TCP too", suite, &simulatedSpec, "failed: with the rule: TCP to port 53: 3 packets at to, not 0", ""},
		{"a port of TCP and UDP", "moves TCP too", "pbr: {x: {packets: 7, other-packets: 3, any-protocol: true}}", &simulatedSpec, "; with the rule: 27 rewritten to to, 76 by the kernel", report.ProvesSoftware},
		{"a port of UDP alone", "", "pbr: {x: {packets: 7, other-packets: 3, any-protocol: true}}", &simulatedSpec, "failed: with the rule: TCP to port 53: 0 packets at to, not 3", ""},
		{"a rule stays in the kernel", "leaves a rule", suite, &simulatedSpec, "failed: the kernel has rules still:\n300:", ""},
		{"by DOCA", "", docaSuite, &doca, "passed: pf0vf0 is doca_flow; p0 is doca_flow; without a rule: 105 by the kernel", report.ProvesHardware},
		{"a wrong count by DOCA", "counts twice", docaSuite, &doca, "failed: the flow counts 48 packets, ", ""},
		{"DOCA is not asked for", "", docaSuite, &simulatedSpec, "skipped: the board's board.yml has no dpu.doca", ""},
		{"a wider rule", "", widerSuite, &simulatedSpec, "; the flow is gone; with the wider rule: 71 rewritten to other, ", report.ProvesSoftware},
		{"a next hop that changes", "", groupSuite, &simulatedSpec, "; the rule has a flow; the kernel has the rule too; with the rule: 24 rewritten to to", report.ProvesSoftware},
		{"a next hop that changes, and nowhere to go", "", groupSuite, &alone, "skipped: the board's board.yml has no dpu.other", ""},
		{"a wider rule is done", "does the older rule", widerSuite, &simulatedSpec, "failed: with both rules: UDP to port 53: 0 packets at to, not 7", ""},
		{"a wider rule that counts nothing", "shows no counter", widerSuite, &simulatedSpec, "the rule for all UDP has no flow:", ""},
		{"a wider rule, and nowhere to go", "", widerSuite, &alone, "skipped: the board's board.yml has no dpu.other", ""},
		{"no vtysh", "no vtysh", suite, &simulatedSpec, "skipped: the board lacks what it needs: it has no program vtysh", ""},
		{"zebra fails", "zebra fails", suite, &simulatedSpec, "failed: zebra ended: loader error: dplane_dpdk.so: cannot open", ""},
		{"a command that is not there", "an old zebra", suite, &simulatedSpec, "% Unknown command: pbr nexthop-resolve", ""},
		{"no ports", "no ports", suite, &simulatedSpec, "}\nvdev_probe(): failed to initialize net_swflow0 device", ""},
		{"no flow", "no flow", suite, &simulatedSpec, "failed: the rule has no flow of its own:\n(nothing)", ""},
		{"no counter", "shows no counter", suite, &simulatedSpec, "failed: the rule has no flow of its own:\nRules if pf0vf0", ""},
		{"a wrong count", "counts twice", suite, &simulatedSpec, "failed: the flow counts 48 packets, ", ""},
		{"the flow stays", "keeps the flow", suite, &simulatedSpec, "failed: flows are left:", ""},
		{"the TTL stays", "keeps the TTL", suite, &simulatedSpec, "failed: with the rule: UDP to port 53: the TTL is 64, not 63", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			shortenTimeouts(t)
			d := simulatedFRR(tt.fault, "")
			r := d.runCheck(t, tt.spec, tt.suite)
			if got := suitetest.FormatResult(r); !strings.Contains(got, tt.want) || r.Proves != tt.proves {
				t.Errorf("proves %q: %s\nwant %q: %s", r.Proves, got, tt.proves, tt.want)
			}
		})
	}
}

func simulatedFRR(fault, cases string) *simulatedDPU {
	return &simulatedDPU{
		driver: "net_swflow", rules: map[string][]*pbrRule{}, applied: map[string]bool{}, faults: map[string]bool{fault: true},
		recorded: suitetest.Recorded{
			"true": "", "install -d -m 700 -o frr -g frr /tmp/slipway-": "", "rm -rf /tmp/slipway-": "", "touch /tmp/slipway-": "",
			"cat -- /rules": cases,
		},
	}
}

// TestPBRCases compares what becomes of each rule with a file of the board.
func TestPBRCases(t *testing.T) {
	const suite, other = "pbr: {x: {cases: /rules}}", "match mark 7 | | kernel: it matches more than addresses, ports and IP protocol\n"
	const cases = "# a comment\n\nmatch src-ip 10.0.0.0/8; match dst-port 5 | | udp 10.0.0.0/8 to any:5\n" + other +
		"match colour blue | | any any to any\nmatch dst-port 7 | | udp any to any:7\nmatch dst-port 65535 | kernel-refuses | any any to any\nmatch mark 7 | unresolved | kernel: nobody answers\n"
	for _, tt := range []struct{ name, fault, cases, want string }{
		{"all", "", cases, "passed: pf0vf0 is net_swflow; p0 is net_swflow; 3 rules are as /rules says; 2 rules match what this FRR cannot, and were left out; the flow is gone"},
		{"a flow that should not be", "", "match dst-port 5 | | kernel: it is not IPv4\n", "failed: 1 of 1 rules are not as they should be:\n/rules:1: match dst-port 5: it has a flow, and should be the kernel's: it is not IPv4"},
		{"no flow", "", "match mark 7 | | any any to any\n", "/rules:1: match mark 7: it has no flow: it matches more than"},
		{"another reason", "", "match mark 7 | | kernel: it sleeps\n", `it is the kernel's as "it matches more than addresses, ports and IP protocol"; want "it sleeps"`},
		{"not there", "", "match dst-port 65535 | | any any to any\n", "match dst-port 65535: zebra has it no more"},
		{"what the kernel refused", "keeps what the kernel refuses", cases, "/rules:7: match dst-port 65535: the kernel refuses it, and the ports keep it"},
		{"a flow that stays", "keeps the flow", "match dst-port 5 | | any any to any\n", "failed: flows are left:"},
		{"no outcome", "", "match dst-port 5 | |\n", "/rules: line 1: what comes of it is missing"},
		{"two columns", "", "match dst-port 5 | any\n", "/rules: line 1: want a rule, its state and its result"},
		{"a command of others", "", other + "match dst-port 5; exit | | any\n", `/rules: line 2: "exit" is no match of a pbr-map`},
		{"a long line", "", "match dst-port 5 " + strings.Repeat("5", 500) + " | | any\n", "/rules: line 1: want"},
		{"nothing", "", "# none\n", "/rules: no rules"},
		{"a port with a policy", "has a policy", cases, "skipped: the port pf0vf0 has a policy, which the check would replace: withdraw it first (no pbr-policy dns)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			shortenTimeouts(t)
			if got := suitetest.FormatResult(simulatedFRR(tt.fault, tt.cases).runCheck(t, &simulatedSpec, suite)); !strings.Contains(got, tt.want) {
				t.Errorf("%s\nwant %s", got, tt.want)
			}
		})
	}
}

func FuzzCases(f *testing.F) {
	f.Add("# a comment\nmatch src-ip 10.0.0.0/8; match dst-port 5 | | udp 10.0.0.0/8 to any:5\nmatch mark 7 | | kernel: no\n")
	f.Add("match dst-port 65535 | kernel-refuses | any any to any\n|||\n")
	f.Fuzz(func(t *testing.T, text string) {
		all, err := parseCases(text)
		if (err == nil) != (len(all) > 0) || len(all) > maxRules {
			t.Fatalf("%d rules, %v", len(all), err)
		}
		for _, c := range all {
			for _, match := range c.matches {
				if !strings.HasPrefix(match, "match ") || strings.ContainsAny(match, "\n;|") {
					t.Errorf("a command %q", match)
				}
			}
		}
	})
}

func FuzzFlows(f *testing.F) {
	f.Add("Rules if pf0vf0\n  Seq 10 pri 310\n  DST Port Match: 53\n  DPDK stats: packets 7 bytes 420\n")
	f.Add(`{"ealStarted":true,"ports":[{"port":0,"used":true,"driver":"net_swflow","interface":"pf0vf0"}]}`)
	f.Add("  DPDK stats: packets 99999999999999999999 bytes 0\nRules if \x1b[31m\n")
	f.Add(`{"flows":[{"in":"p\u001b","dstPort":53,"packets":7},{"in":"p0","refused":"no"},{"packets":-1}]}`)
	f.Add(`{"ports":[{"port":0,"interface":"p0","ifindex":8}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		for _, flow := range slices.Concat(parseFlows(text), parseDOCAFlows(text)) {
			if flow.counted && flow.packets < 0 || strings.ContainsAny(flow.iface, "\x1b\n") {
				t.Errorf("%+v", flow)
			}
		}
		if ports := parsePluginPorts(text, ""); len(ports) > maxPorts {
			t.Errorf("%d ports", len(ports))
		}
	})
}
