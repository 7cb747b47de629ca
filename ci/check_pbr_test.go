package ci

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	"slipway/flash/target"
	"slipway/images"
)

// daemon is zebra or pbrd of the played DPU.
func (d *playedDPU) daemon(ctx context.Context, stdout io.Writer, argv []string) (int, error) {
	if d.faults["zebra fails"] {
		io.WriteString(stdout, "loader error: dplane_dpdk.so: cannot open shared object file\n")
		return 1, nil
	}
	d.mu.Lock()
	d.zebra = d.zebra || argv[len(argv)-1] == "dplane_dpdk:--no-huge --vdev=net_swflow0,iface=pf0vf0"
	d.mu.Unlock()
	<-ctx.Done()
	return 0, context.Cause(ctx)
}

// vtysh answers in the form that the source of FRR 10.3, with our patches, prints.
func (d *playedDPU) vtysh(argv []string) (target.Result, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.zebra {
		return target.Result{Status: 1, Stderr: []byte("failed to connect to any daemons.\n")}, nil
	}
	var out strings.Builder
	for _, c := range argv {
		switch {
		case c == "show dplane dpdk port detail":
			for i, name := range playedSpec.Ports {
				fmt.Fprintf(&out, "DPDK port: %d\n Device: net_swflow%d\n Driver: %s\n Interface: %s (%d)\n Switch: net_swflow Domain: 0 Port: %d\n\n", i, i, d.driver, name, 7+i, i)
			}
		case c == "show dplane dpdk pbr flows":
			out.WriteString(d.flows())
		case c == "pbr-policy "+pbrMap:
			if d.policy = !d.faults["no flow"]; !d.many && d.policy {
				d.rule = &playedRule{port: 53}
			}
		case c == "no pbr-policy "+pbrMap:
			if d.policy = d.policy && d.faults["keeps the flow"]; !d.policy {
				d.rule = nil
			}
			if d.many && d.faults["leaks a flow"] {
				d.stuck++
			}
		case strings.HasPrefix(c, "no pbr-map "+pbrMap+" seq"):
			d.many = true
		case c == "pbr nexthop-resolve" && d.faults["an old zebra"]:
			out.WriteString("% Unknown command: pbr nexthop-resolve\n")
		}
	}
	return target.Result{Stdout: []byte(out.String())}, nil
}

func (d *playedDPU) flows() string {
	const rule = "Rules if pf0vf0\n  Seq %d pri 310\n  IP protocol Match: 17\n  DST Port Match: %d\n  Tableid: 10000\n  Action: nh: 192.0.2.2 intf: p0\n  Action: mac: 02:00:00:00:01:02\n"
	var all strings.Builder
	stuck := d.stuck
	if d.policy && d.many {
		stuck += churnRules
	}
	for i := range stuck {
		fmt.Fprintf(&all, rule+"  DPDK stats: packets 0 bytes 0\n", 100+i, 20000+i)
	}
	if d.policy && !d.many {
		hits := 0
		if d.rule != nil {
			hits = d.rule.hits
		}
		fmt.Fprintf(&all, rule, 10, 53)
		if !d.faults["shows no counter"] {
			fmt.Fprintf(&all, "  DPDK stats: packets %d bytes %d\n", hits, 60*hits)
		}
	}
	return all.String()
}

func TestPBR(t *testing.T) {
	parts := images.DPU{EAL: playedSpec.EAL, Ports: playedSpec.Ports}
	const suite = "pbr: {x: {packets: 7, other-packets: 3}}"
	for _, tt := range []struct {
		name, fault, suite string
		spec               *images.DPU
		want               string
		proves             Proof
	}{
		{"a rule", "", suite, &playedSpec, "passed: pf0vf0 is net_swflow; p0 is net_swflow; without a rule 1 of 1 packets arrived at other; the rule has a flow; 7 of 7 packets arrived at to; all of them from " + p0MAC, ProvesSoftware},
		{"no traffic", "", suite, &parts, "passed: pf0vf0 is net_swflow; p0 is net_swflow; no packets were sent", ProvesParts},
		{"many rules", "", "pbr: {x: {rules: 120, max-growth: 100}}", &playedSpec, "150 rules added and removed; zebra's growth ", ProvesSoftware},
		{"many rules leak flows", "leaks a flow", "pbr: {x: {rules: 50}}", &playedSpec, "failed: 1 flows are left:", ""},
		{"zebra grows", "grows", "pbr: {x: {rules: 50, max-growth: 100}}", &playedSpec, "failed: zebra's growth 4096 KiB / zebra's growth: at most 100 KiB", ""},
		{"no vtysh", "no vtysh", suite, &playedSpec, "skipped: the board lacks what it needs: it has no program vtysh", ""},
		{"zebra fails", "zebra fails", suite, &playedSpec, "failed: zebra ended: loader error: dplane_dpdk.so: cannot open", ""},
		{"a command that is not there", "an old zebra", suite, &playedSpec, "% Unknown command: pbr nexthop-resolve", ""},
		{"no flow", "no flow", suite, &playedSpec, "failed: the rule has no flow of its own:\n(nothing)", ""},
		{"no counter", "shows no counter", suite, &playedSpec, "failed: the rule has no flow of its own:\nRules if pf0vf0", ""},
		{"a wrong count", "counts twice", suite, &playedSpec, "failed: the flow counts 14 of 7 packets", ""},
		{"the flow stays", "keeps the flow", suite, &playedSpec, "failed: flows are left:", ""},
		{"the TTL stays", "keeps the TTL", suite, &playedSpec, "failed: a packet has TTL 64, sent with 64", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			shorten(t)
			plays := recorded{"true": "", "install -d -m 700 -o frr -g frr /tmp/slipway-": "", "rm -rf /tmp/slipway-": "", "touch /tmp/slipway-": "", "cat /tmp/slipway-": "77\n"}
			d := &playedDPU{driver: "net_swflow", faults: map[string]bool{tt.fault: true}, plays: plays}
			if d.faults["grows"] {
				d.grow = 4096
			}
			r := d.prove(t, tt.spec, tt.suite)
			if got := judged(r); !strings.Contains(got, tt.want) || r.Proves != tt.proves {
				t.Errorf("proves %q: %s\nwant %q: %s", r.Proves, got, tt.proves, tt.want)
			}
		})
	}
}

func FuzzFlows(f *testing.F) {
	f.Add("Rules if pf0vf0\n  Seq 10 pri 310\n  DST Port Match: 53\n  DPDK stats: packets 7 bytes 420\n")
	f.Add("DPDK port: 0\n Device: net_swflow0\n Driver: net_swflow\n Interface: pf0vf0 (7)\n")
	f.Add("  DPDK stats: packets 99999999999999999999 bytes 0\nRules if \x1b[31m\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, flow := range parseFlows(text) {
			if flow.packets < 0 || strings.ContainsAny(flow.iface, "\x1b\n") {
				t.Errorf("%+v", flow)
			}
		}
		if ports := parseFRRPorts(text); len(ports) > 64 {
			t.Errorf("%d ports", len(ports))
		}
	})
}
