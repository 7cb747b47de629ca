package offload

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"slipway/ci/report"
	"slipway/ci/suite"
	"slipway/images"
	"slipway/layers/plaintext"
)

// pbr is the check of FRR's policy based routing (PBR), which a plugin of zebra offloads to ports.
type pbr struct {
	trafficOptions
	plugin  string
	daemons string // the folder of zebra and pbrd
	wider   bool   // a second rule, older and of lower priority, sends all UDP elsewhere
	group   bool   // the next hop is in a group, and changes after the rule is created
	cases   string // a file on the board with rules and outcomes, in place of packets
}

var plugins = map[string]plugin{
	"dpdk": {
		module: "dplane_dpdk", ports: "show dplane dpdk port json", flow: "show dplane dpdk pbr flows",
		readFlows: parseFlows, args: func(d *images.DPU) []string { return d.EAL },
	},
	"doca": {
		module: "dplane_doca", ports: "show dplane doca port json", flow: "show dplane doca pbr flow json",
		driver: docaDriver, readFlows: parseDOCAFlows, args: func(d *images.DPU) []string { return d.DOCA },
	},
}

// readPBR parses a check of pbr: FRR's plugin, the rule, its traffic or cases. It sets its limit.
func readPBR(e *suite.Entry) suite.Probe {
	e.Limit = 3 * time.Minute
	p := pbr{
		trafficOptions: readTrafficOptions(e), plugin: e.Text("plugin", "dpdk"), daemons: e.Text("daemons", "/usr/lib/frr"),
		wider: e.Bool("wider", false), group: e.Bool("group", false), cases: e.Text("cases", ""),
	}
	if _, known := plugins[p.plugin]; !known {
		e.Fail(e.Key, "unknown plugin %q (have dpdk, doca)", p.plugin)
	}
	if !strings.HasPrefix(p.daemons, "/") || strings.ContainsAny(p.daemons, "\x00 ") {
		e.Fail(e.Key, "daemons must be an absolute path on the board, not %q", p.daemons)
	}
	if p.cases != "" && !strings.HasPrefix(p.cases, "/") {
		e.Fail(e.Key, "cases must be a file of the board, by its absolute path")
	}
	return p
}

// Alone returns true because the plugin uses the ports exclusively.
func (pbr) Alone() bool { return true }

func (p pbr) Next() string {
	return "on the board: vtysh -c \"" + plugins[p.plugin].ports + "\" -c \"show pbr map\" -c \"" + plugins[p.plugin].flow +
		"\". zebra wants -M with the arguments of eal, or of doca, in board.yml, and FRR the patches of recipes/dynamic-layers/networking-layer/frr"
}

// Inspect connects to FRR or starts it, checks the plugin's ports, and then the rules of p.cases,
// or one rule with packets. Without peers it checks only the ports, else refuses existing policies.
func (p pbr) Inspect(ctx context.Context, s *suite.Session) (f suite.Finding, err error) {
	if err := wantDPUProgram(ctx, s, "vtysh"); err != nil {
		return f, err
	}
	if p.plugin == "doca" && len(s.DPU.DOCA) == 0 {
		return f, suite.Missing("the board's board.yml has no dpu.doca")
	}
	r, err := startFRR(ctx, s, plugins[p.plugin], p.daemons)
	defer func() { err = errors.Join(err, r.close(ctx)) }()
	if err != nil {
		return f, err
	}
	if err := p.checkPorts(ctx, &f, r); err != nil || !f.OK() {
		return f, err
	}
	if why := noTraffic(s.DPU); why != "" {
		f.AddFact(why)
		f.Proves = report.ProvesParts
		return f, nil
	}
	if err := r.wantNoPolicy(ctx); err != nil {
		return f, err
	}
	if p.cases != "" {
		return f, r.runCases(ctx, &f, p.cases)
	}
	if (p.wider || p.group) && s.DPU.Other == nil {
		return f, suite.Missing("the board's board.yml has no dpu.other")
	}
	t, err := startTraffic(ctx, s, s.DPU)
	if err != nil {
		return f, err
	}
	defer t.stop()
	return f, p.checkRule(ctx, &f, r, t)
}

var pbrInterface = plaintext.Regexp(`(?m)^\s*(\S{1,15})\(\d+\) with pbr-policy (\S+)`)

// wantNoPolicy returns a suite.Missing error if a port has a PBR policy, which would be replaced.
func (r *router) wantNoPolicy(ctx context.Context) error {
	out, err := r.runVtysh(ctx, "show pbr interface")
	for _, m := range pbrInterface().FindAllStringSubmatch(out, -1) {
		if slices.Contains(r.DPU.Ports, m[1]) {
			return suite.Missing(fmt.Sprintf("the port %s has a policy, which the check would replace: withdraw it first (no pbr-policy %s)", m[1], plaintext.Clean(m[2], 64)))
		}
	}
	return err
}

// checkPorts records in f whether the plugin uses board.yml's ports, and if drivers are software.
func (p pbr) checkPorts(ctx context.Context, f *suite.Finding, r *router) error {
	said, err := r.runVtysh(ctx, r.plugin.ports)
	if err != nil {
		return err
	}
	drivers := parsePluginPorts(said, r.plugin.driver)
	var names []string
	for _, name := range r.DPU.Ports {
		driver := drivers[name]
		f.Expect(driver != "", "a port "+name, plaintext.Either(driver != "", name+" is "+driver, "the plugin has no port "+name+":\n"+plaintext.Clean(said, 500)+"\n"+r.zebraOutput()))
		names = append(names, driver)
	}
	f.Proves = driverProof(names...)
	return nil
}

// policy is a pbr-map for packets that come in by one port and go to another next hop.
type policy struct{ name, port, from, nexthop string }

// onwardPolicy returns the policy that sends packets from the peer dpu.from to the peer dpu.to.
func onwardPolicy(d *images.DPU) policy {
	return policy{"slipway-check", d.Ports[0], d.From.Address, d.To.Address}
}

// ruleCommands returns the commands that create a rule with these matches.
func (p policy) ruleCommands(seq int, matches ...string) []string {
	return slices.Concat([]string{fmt.Sprintf("pbr-map %s seq %d", p.name, seq)}, matches, []string{"set nexthop " + p.nexthop, "exit"})
}

func (p policy) removeRuleCommand(seq int) string {
	return fmt.Sprintf("no pbr-map %s seq %d", p.name, seq)
}

// matchCommands returns the pattern, with a source address, as match commands of a pbr-map.
func (p pattern) matchCommands(source string) []string {
	all := []string{"match src-ip " + source + "/32"}
	if p.protocol > 0 {
		all = append(all, "match ip-protocol "+map[byte]string{protocolUDP: "udp", protocolTCP: "tcp"}[p.protocol])
	}
	if p.target.IsValid() {
		all = append(all, fmt.Sprintf("match dst-ip %s/32", p.target))
	}
	if p.fromPort > 0 {
		all = append(all, fmt.Sprintf("match src-port %d", p.fromPort))
	}
	if p.toPort > 0 {
		all = append(all, fmt.Sprintf("match dst-port %d", p.toPort))
	}
	return all
}

func (p policy) applyCommands() []string {
	return []string{"interface " + p.port, "pbr-policy " + p.name, "exit"}
}

func (p policy) withdrawCommands() []string {
	return []string{"interface " + p.port, "no pbr-policy " + p.name, "exit"}
}

// removeCommands returns the commands that remove the policy from its port and delete it.
func (p policy) removeCommands() []string { return append(p.withdrawCommands(), "no pbr-map "+p.name) }

// checkRule sends packets without the rule, with it, with only the rule for all UDP (if p.wider),
// and after all rules were removed. It checks paths, counters, flows and the kernel's rules.
func (p pbr) checkRule(ctx context.Context, f *suite.Finding, r *router, t *traffic) (err error) {
	if err := t.sendAndCheck(ctx, f, p.trafficOptions, ruleset{}); err != nil || !f.OK() {
		return err
	}
	onward := onwardPolicy(r.DPU)
	if err := r.resolveNextHop(ctx, onward.nexthop); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.configureTeardown(ctx, p.removeCommands(onward))) }()
	if p.wider {
		if err := p.addWiderRule(ctx, r, onward); err != nil {
			return err
		}
	}
	if err := p.configureRule(ctx, r, onward); err != nil {
		return err
	}
	if err := p.checkInstalled(ctx, f, r); err != nil || !f.OK() {
		return err
	}
	if err := p.sendAndCompare(ctx, f, r, t, ruleset{rule: true, wide: p.wider}); err != nil || !f.OK() {
		return err
	}
	if p.wider {
		if err := p.checkWiderAlone(ctx, f, r, t, onward); err != nil || !f.OK() {
			return err
		}
	}
	if err := r.configure(ctx, p.removeCommands(onward)...); err != nil {
		return err
	}
	if err := checkGone(ctx, f, r, "", anyRules); err != nil || !f.OK() {
		return err
	}
	return t.sendAndCheck(ctx, f, p.trafficOptions, ruleset{})
}

// configureRule creates the rule in the policy, or with p.group by configureGroup, and applies the
// policy. "pbr nexthop-resolve" comes last, because it must work for rules that exist already.
func (p pbr) configureRule(ctx context.Context, r *router, onward policy) error {
	rule := onward.ruleCommands(ruleSeq, p.rulePattern(r.DPU).matchCommands(onward.from)...)
	if p.group {
		return p.configureGroup(ctx, r, onward, rule)
	}
	return r.configure(ctx, append(slices.Concat(rule, onward.applyCommands()), "pbr nexthop-resolve")...)
}

// removeCommands returns the commands that remove the policy, and the next-hop group if any.
func (p pbr) removeCommands(onward policy) []string {
	if p.group {
		return append(onward.removeCommands(), "no nexthop-group "+hopGroup)
	}
	return onward.removeCommands()
}

const hopGroup = "slipway-check"

// configureGroup sets a next-hop group in rule (the rule's commands), runs it, applies the policy,
// and then replaces dpu.other by dpu.to in the group. The unchanged rule's flow must follow.
func (p pbr) configureGroup(ctx context.Context, r *router, onward policy, rule []string) error {
	first := r.DPU.Other.Address
	if err := r.resolveNextHop(ctx, first); err != nil {
		return err
	}
	rule[len(rule)-2] = "set nexthop-group " + hopGroup // in place of the next hop
	group := []string{"pbr nexthop-resolve", "nexthop-group " + hopGroup, "nexthop " + first, "exit"}
	if err := r.configure(ctx, slices.Concat(group, rule, onward.applyCommands())...); err != nil {
		return err
	}
	if err := r.waitForNextHop(ctx, first); err != nil {
		return err
	}
	if err := r.configure(ctx, "nexthop-group "+hopGroup, "nexthop "+onward.nexthop, "no nexthop "+first, "exit"); err != nil {
		return err
	}
	return r.waitForNextHop(ctx, onward.nexthop)
}

// waitForNextHop waits until zebra's list of flows shows this next hop, or until flowTimeout, which
// is no error: the packets then show the consequence.
func (r *router) waitForNextHop(ctx context.Context, nexthop string) error {
	return suite.WaitUntil(ctx, flowTimeout, pollInterval, func() (bool, error) {
		said, err := r.runVtysh(ctx, r.plugin.flow)
		return strings.Contains(said, " nh: "+nexthop+" "), err
	})
}

// checkWiderAlone removes the tested rule of the policy for good, and checks that the rule for
// all UDP gets its packets. Differences are in f.
func (p pbr) checkWiderAlone(ctx context.Context, f *suite.Finding, r *router, t *traffic, onward policy) error {
	if err := r.configure(ctx, onward.removeRuleCommand(ruleSeq)); err != nil {
		return err
	}
	if err := checkGone(ctx, f, r, strconv.Itoa(int(p.port)), p.namesPorts); err != nil || !f.OK() {
		return err
	}
	return p.sendAndCompare(ctx, f, r, t, ruleset{wide: true})
}

// addWiderRule adds a rule for all UDP to the policy, applies that, and waits for the rule's
// flow. The tested rule is created later, but has a lower number and must apply first.
func (p pbr) addWiderRule(ctx context.Context, r *router, onward policy) error {
	all := policy{onward.name, onward.port, onward.from, r.DPU.Other.Address}
	if err := r.resolveNextHop(ctx, all.nexthop); err != nil {
		return err
	}
	if err := r.configure(ctx, slices.Concat([]string{"pbr nexthop-resolve"}, all.ruleCommands(widerSeq, wider.matchCommands(all.from)...), all.applyCommands())...); err != nil {
		return err
	}
	flows, said, err := r.flowsUntil(ctx, flowTimeout, func(flows []pbrFlow) bool { return len(wideFlow(flows, all.port)) > 0 })
	if err == nil && len(wideFlow(flows, all.port)) == 0 {
		err = fmt.Errorf("the rule for all UDP has no flow:\n%s", plaintext.Clean(said, 2000))
	}
	return err
}

// The wider rule has the higher number, so it is evaluated later.
const ruleSeq, widerSeq = 10, 20

func wideFlow(flows []pbrFlow, port string) []pbrFlow {
	return countedFlows(flowsOfRule(flows, port, widerSeq), "")
}

// sendAndCompare sends all kinds of packets. Wrong paths and counters of flows are faults in f.
func (p pbr) sendAndCompare(ctx context.Context, f *suite.Finding, r *router, t *traffic, rules ruleset) error {
	if err := t.sendAndCheck(ctx, f, p.trafficOptions, rules); err != nil {
		return err
	}
	for _, c := range []struct {
		there bool
		name  string
		want  tally
		which func([]pbrFlow) []pbrFlow
	}{
		{rules.rule, "the flow", t.rule, func(flows []pbrFlow) []pbrFlow { return countedFlows(flows, strconv.Itoa(int(p.port))) }},
		{rules.wide, "the wider rule's flow", t.wide, func(flows []pbrFlow) []pbrFlow { return wideFlow(flows, r.DPU.Ports[0]) }},
	} {
		if !c.there {
			continue
		}
		err := expectCount(ctx, f, c.name, c.want, func() (tally, error) {
			said, err := r.runVtysh(ctx, r.plugin.flow)
			mine := c.which(r.plugin.readFlows(said))
			if err == nil && len(mine) != 1 {
				err = fmt.Errorf("%d flows, not one:\n%s", len(mine), plaintext.Clean(said, 2000))
			}
			if err != nil {
				return tally{}, err
			}
			return mine[0].tally, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// kernelRules returns the lines of "ip rule show" for packets that come in by the board's ports.
func (r *router) kernelRules(ctx context.Context) ([]string, error) {
	out, err := r.Output(ctx, "ip", "rule", "show")
	return slices.DeleteFunc(plaintext.Lines(out), func(line string) bool {
		return !slices.ContainsFunc(r.DPU.Ports, func(port string) bool { return strings.Contains(line, " iif "+port+" ") })
	}), err
}

// resolveNextHop sends UDP to the next hop, so that the kernel learns its MAC address for zebra.
func (r *router) resolveNextHop(ctx context.Context, nexthop string) error {
	_, err := r.Output(ctx, "bash", "-c", `echo hello > "/dev/udp/$1/9"`, "bash", nexthop)
	if err != nil {
		return fmt.Errorf("send a packet to the next hop: %w", err)
	}
	return nil
}

// configureTeardown configures FRR also after a cancel: the board's own zebra would keep the rules.
func (r *router) configureTeardown(ctx context.Context, commands []string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), suite.TeardownLimit)
	defer cancel()
	return r.configure(ctx, commands...)
}

// checkInstalled waits until the rule has one flow and the kernel has the same rule, up to
// flowTimeout each, else f gets a fault. The kernel routes packets that no flow matches.
func (p pbr) checkInstalled(ctx context.Context, f *suite.Finding, r *router) error {
	port := strconv.Itoa(int(p.port))
	flows, said, err := r.flowsUntil(ctx, flowTimeout, func(flows []pbrFlow) bool { return len(countedFlows(flows, port)) > 0 })
	there := len(countedFlows(flows, port)) == 1
	f.Expect(there, "one flow for port "+port, plaintext.Either(there, "the rule has a flow", "the rule has no flow of its own:\n"+cmp.Or(plaintext.Clean(said, 2000), "(nothing)")))
	if err != nil || !there {
		return err
	}
	rules, err := r.kernelRulesUntil(ctx, func(rules []string) bool { return p.namesPorts(rules) })
	named := p.namesPorts(rules)
	f.Expect(named, "a rule of the kernel's for port "+port, plaintext.Either(named, "the kernel has the rule too",
		"the kernel's own rules do not name the rule's ports, so that they take more (FRR without our patch kernel-ports):\n"+strings.Join(rules, "\n")))
	return err
}

// namesPorts reports whether one of the kernel's rules has the port numbers of the check's rule.
func (p pbr) namesPorts(rules []string) bool {
	ports := fmt.Sprintf(" dport %d ", p.port)
	if p.allFields {
		ports = fmt.Sprintf(" sport %d%s", sourcePort, ports)
	}
	return slices.ContainsFunc(rules, func(rule string) bool { return strings.Contains(rule+" ", ports) })
}

// kernelRulesUntil reads the kernel's rules until wanted is true or flowTimeout is over (no error).
func (r *router) kernelRulesUntil(ctx context.Context, wanted func([]string) bool) (rules []string, err error) {
	err = suite.WaitUntil(ctx, flowTimeout, pollInterval, func() (bool, error) {
		rules, err = r.kernelRules(ctx)
		return err == nil && wanted(rules), err
	})
	return rules, err
}

// checkGone waits until zebra has no flow for a port (any, for ""), then until left is false of the
// kernel's rules, and reports in f what is left.
func checkGone(ctx context.Context, f *suite.Finding, r *router, port string, left func(rules []string) bool) error {
	flows, said, err := r.flowsUntil(ctx, flowTimeout, func(flows []pbrFlow) bool { return len(countedFlows(flows, port)) == 0 })
	none := len(countedFlows(flows, port)) == 0
	of := plaintext.Either(port == "", "", " for port "+port)
	f.Expect(none, "no flow"+of+" once the rule is gone", plaintext.Either(none, "the flow is gone", "flows are left:\n"+plaintext.Clean(said, 2000)))
	if err != nil || !none {
		return err
	}
	rules, err := r.kernelRulesUntil(ctx, func(rules []string) bool { return !left(rules) })
	if left(rules) {
		f.Expect(false, "no rule of the kernel's"+of, "the kernel has rules still:\n"+strings.Join(rules, "\n"))
	}
	return err
}

// anyRules reports whether there are rules.
func anyRules(rules []string) bool { return len(rules) > 0 }
