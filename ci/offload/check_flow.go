package offload

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"slipway/ci/report"
	"slipway/ci/suite"
	"slipway/images"
	"slipway/layers/plaintext"
)

// flow is the check that the ports obey a flow rule, which dpdk-testpmd creates.
type flow struct {
	trafficOptions
	group int64 // of the rules; packets get there by a jump from group 0
	plain bool  // the rule lacks the attribute transfer; packets that match go to testpmd
}

// readFlow parses a check of section flow: a rule for dpdk-testpmd, and the traffic that meets it.
// It refuses options that exclude each other. It sets the check's time limit.
func readFlow(e *suite.Entry) suite.Probe {
	e.Limit = 2 * time.Minute
	c := flow{trafficOptions: readTrafficOptions(e), group: e.Number("group", 0, 0, math.MaxUint32-1), plain: !e.Bool("transfer", true)}
	if c.anyProtocol {
		e.Fail(e.Key, "any-protocol is for pbr: a rule of testpmd's has one protocol")
	}
	if c.group > 0 && c.plain || c.allFields && (c.group > 0 || c.plain) {
		e.Fail(e.Key, "a check takes only one of group, transfer: false and all-fields")
	}
	return c
}

// Alone returns true because DPDK uses the ports exclusively.
func (flow) Alone() bool { return true }

func (flow) Next() string {
	return "on the board: dpdk-testpmd with the arguments of eal in board.yml, -- -i, and its flow create, flow query and flow list by hand"
}

// wantDPUProgram returns a suite.Missing error if board.yml has no dpu or the board lacks program.
func wantDPUProgram(ctx context.Context, s *suite.Session, program string) error {
	if s.DPU == nil {
		return suite.Missing("the board's board.yml has no section dpu")
	}
	return s.RequireProgram(ctx, program)
}

// Inspect starts dpdk-testpmd, and the captures if board.yml names peers, and checks the rule.
func (c flow) Inspect(ctx context.Context, s *suite.Session) (f suite.Finding, err error) {
	if err := wantDPUProgram(ctx, s, "dpdk-testpmd"); err != nil {
		return f, err
	}
	var t *traffic
	if why := noTraffic(s.DPU); why == "" {
		if t, err = startTraffic(ctx, s, s.DPU); err != nil {
			return f, err
		}
		defer t.stop()
	} else {
		f.AddFact(why)
	}
	err = withTestpmd(ctx, s, s.DPU, func(pmd *testpmd) error { return c.checkRule(ctx, &f, pmd, s.DPU, t) })
	return f, err
}

// checkRule creates the rule, sends packets and destroys the rule, by the steps for the check's
// options. If t is nil (no peers), it only creates, queries and destroys a rule.
func (c flow) checkRule(ctx context.Context, f *suite.Finding, pmd *testpmd, d *images.DPU, t *traffic) error {
	ports, err := reportDrivers(f, pmd, d)
	if err != nil {
		return err
	}
	out := ports[1]
	if t == nil {
		f.Proves = report.ProvesParts
		return c.withoutTraffic(f, pmd, out)
	}
	if c.group > 0 && d.Other == nil {
		return suite.Missing("dpu in the board's board.yml has no other; devices differ in what they do with packets that no rule of a group takes")
	}
	l := flowRun{flow: c, f: f, pmd: pmd, t: t, rules: c.ruleCommands(d, t, out), made: map[string]int{}}
	return l.runSteps(ctx)
}

const theRule, theWider, theJump, theDrop = "the rule", "the wider rule", "the jump", "the rule of another group"

// ruleCommands maps rules' names (theWider is for all UDP) to testpmd commands that create them.
func (c flow) ruleCommands(d *images.DPU, t *traffic, out dpdkPort) map[string]string {
	from, group := d.From.Address, fmt.Sprintf("group %d ", c.group)
	all := map[string]string{
		theRule:  routeRule(group, c.rulePattern(d).testpmdItems(from), t.toMAC.String(), out),
		theWider: routeRule(group+"priority 1 ", wider.testpmdItems(from), t.otherMAC.String(), out),
		theDrop:  fmt.Sprintf("flow create 0 group %d ingress transfer pattern %s / end actions drop / end", c.group+1, wider.testpmdItems(from)),
		theJump:  fmt.Sprintf("flow create 0 ingress transfer pattern %s / end actions jump group %d / end", wider.testpmdItems(from), c.group),
	}
	if c.plain {
		all[theRule] = fmt.Sprintf("flow create 0 ingress pattern %s / end actions queue index 0 / count / end", c.rulePattern(d).testpmdItems(from))
	}
	return all
}

// step creates, destroys or flushes rules. If then is set, packets are sent afterwards, and must
// take the paths that these rules give them.
type step struct {
	does, rule string
	then       *ruleset
}

const toMake, toDestroy, toFlush = "make", "destroy", "flush"

var none, first, second, both = &ruleset{}, &ruleset{rule: true}, &ruleset{wide: true}, &ruleset{rule: true, wide: true}

// The wider rule is created first, so only its lower priority makes the other rule match first.
var routeSteps = []step{
	{toMake, theWider, nil}, {toMake, theRule, both}, {toDestroy, theRule, second}, {toDestroy, theWider, none},
}

// Packets reach the rules of a group only while a rule of group 0 jumps there. The rule
// of another group must match no packets.
var groupSteps = []step{
	{toMake, theDrop, nil},
	{toMake, theWider, nil},
	{toMake, theRule, none},
	{toMake, theJump, both},
	{toDestroy, theRule, second},
	{toDestroy, theJump, none},
	{toMake, theJump, nil},
	{toFlush, "", none},
}

// A rule without transfer gets only what the wider rule does not match, although the
// wider rule is newer and has a lower priority.
var plainSteps = []step{
	{toMake, theRule, first}, {toMake, theWider, both}, {toDestroy, theWider, first}, {toDestroy, theRule, none},
}

// selectSteps returns groupSteps, plainSteps or routeSteps, by the check's options.
func (c flow) selectSteps() []step {
	switch {
	case c.group > 0:
		return groupSteps
	case c.plain:
		return plainSteps
	}
	return routeSteps
}

// flowRun is the state of a flow check while its steps run.
type flowRun struct {
	flow
	f   *suite.Finding
	pmd *testpmd
	t   *traffic

	rules map[string]string
	made  map[string]int // numbers of the existing rules
}

// runSteps sends packets without a rule, and then runs the steps until one fails. With software
// drivers it also checks that DPDK has as much memory as before. With plain, testpmd swaps MACs.
func (l *flowRun) runSteps(ctx context.Context) error {
	if l.plain {
		if _, err := l.pmd.runCommand("set fwd macswap"); err != nil {
			return err
		}
	}
	if err := l.sendAndCompare(ctx, *none); err != nil || !l.f.OK() {
		return err
	}
	before, err := l.pmd.describeMemory()
	if err != nil {
		return err
	}
	for _, s := range l.selectSteps() {
		if err := l.runStep(ctx, s); err != nil || !l.f.OK() {
			return err
		}
	}
	after, err := l.pmd.describeMemory()
	if l.f.Proves == report.ProvesSoftware { // hardware drivers keep memory for the next rule
		l.f.Expect(after == before, "memory as before: "+before, "once the rules were destroyed: "+after)
	}
	return err
}

// runStep changes a rule, then sends packets. Without a second peer it skips theWider (all UDP).
func (l *flowRun) runStep(ctx context.Context, s step) error {
	if s.rule == theWider && l.t.dpu.Other == nil {
		return nil
	}
	do := map[string]func(string) error{toMake: l.createRule, toDestroy: l.destroyRule, toFlush: l.flushRules}[s.does]
	if err := do(s.rule); err != nil || !l.f.OK() || s.then == nil {
		return err
	}
	return l.sendAndCompare(ctx, *s.then)
}

// createRule creates a rule and keeps its number in l.made. A failure, such as a refusal by the
// driver, is only a fault of the finding. For a rule that delivers packets to testpmd, it also
// starts forwarding, so that testpmd returns them.
func (l *flowRun) createRule(rule string) error {
	number, err := l.pmd.createRule(l.rules[rule])
	if err != nil {
		l.f.Expect(false, "a rule that the driver takes", err.Error())
		return nil
	}
	l.made[rule] = number
	if l.plain && rule == theRule {
		_, err = l.pmd.runCommand("start")
	}
	return err
}

// flushRules deletes all rules of port 0, and forgets their numbers. It does not use its argument.
func (l *flowRun) flushRules(string) error {
	clear(l.made)
	_, err := l.pmd.runCommand("flow flush 0")
	return err
}

// destroyRule destroys a rule. If the rule delivers packets to testpmd, it first stops testpmd and
// checks how many packets testpmd received.
func (l *flowRun) destroyRule(rule string) error {
	number := l.made[rule]
	delete(l.made, rule)
	if l.plain && rule == theRule {
		out, err := l.pmd.runCommand("stop")
		if err != nil {
			return err
		}
		want, got := strconv.FormatInt(l.t.rule.packets, 10), firstGroup(packetsReceived(), out)
		l.f.Expect(got == want, "testpmd receives "+want+" packets", "testpmd received "+cmp.Or(got, "no")+" packets")
	}
	return destroyAndQuery(l.f, l.pmd, number)
}

// sendAndCompare sends packets of all kinds, and checks that each takes the path that rules give
// it, and that existing rules have counted the packets that matched. Differences are in l.f.
func (l *flowRun) sendAndCompare(ctx context.Context, rules ruleset) error {
	rules.plain, rules.wide = l.plain, rules.wide && l.t.dpu.Other != nil
	if err := l.t.sendAndCheck(ctx, l.f, l.trafficOptions, rules); err != nil {
		return err
	}
	for _, c := range []struct {
		name string
		want tally
	}{{theRule, l.t.rule}, {theWider, l.t.wide}} {
		number, there := l.made[c.name]
		if !there {
			continue
		}
		if err := expectCount(ctx, l.f, c.name, c.want, func() (tally, error) { return l.pmd.queryCount(number) }); err != nil {
			return err
		}
	}
	return nil
}

// reportDrivers returns testpmd's ports. It records in f their drivers, and if these are software.
func reportDrivers(f *suite.Finding, pmd *testpmd, d *images.DPU) ([]dpdkPort, error) {
	ports, err := pmd.listPorts(d)
	if err != nil {
		return nil, err
	}
	in, out := ports[0], ports[1]
	f.Proves = driverProof(in.driver, out.driver)
	f.AddFact(fmt.Sprintf("port 0 %s is %s, port 1 %s is %s", d.Ports[0], in.driver, d.Ports[1], out.driver))
	return ports, nil
}

// routeRule returns the testpmd command that creates a routing rule: the port decreases the TTL,
// sets the MAC addresses for another next hop, and sends the packet out.
func routeRule(attributes, pattern, next string, out dpdkPort) string {
	return fmt.Sprintf("flow create 0 ingress %stransfer pattern %s / end actions dec_ttl / set_mac_src mac_addr %s / set_mac_dst mac_addr %s / port_id id %d / count / end",
		attributes, pattern, out.mac, next, out.number)
}

// testpmdItems returns the pattern, with a source address, in testpmd's syntax, without "/ end".
func (p pattern) testpmdItems(source string) string {
	text := "eth / ipv4 src is " + source
	if p.target.IsValid() {
		text += " dst is " + p.target.String()
	}
	if p.toPort == 0 {
		return fmt.Sprintf("%s proto is %d", text, p.protocol)
	}
	text += map[byte]string{protocolUDP: " / udp", protocolTCP: " / tcp"}[p.protocol]
	if p.fromPort > 0 {
		text += fmt.Sprintf(" src is %d", p.fromPort)
	}
	return fmt.Sprintf("%s dst is %d", text, p.toPort)
}

// withoutTraffic checks that a rule on port 0, which forwards to out, can be created, queried and
// destroyed. It sends no packets. A rule that the driver refuses is a fault in f, not an error.
func (c flow) withoutTraffic(f *suite.Finding, pmd *testpmd, out dpdkPort) error {
	attributes, fate := fmt.Sprintf("group %d ingress transfer", c.group), fmt.Sprintf("port_id id %d", out.number)
	if c.plain {
		attributes, fate = "ingress", "queue index 0"
	}
	rule, err := pmd.createRule(fmt.Sprintf("flow create 0 %s pattern eth / ipv4 / udp dst is %d / end actions %s / count / end", attributes, c.port, fate))
	if err != nil {
		f.Expect(false, "a rule that the driver takes", err.Error())
		return nil
	}
	if _, err := pmd.queryCount(rule); err != nil {
		f.Expect(false, "a count", err.Error())
	}
	return destroyAndQuery(f, pmd, rule)
}

// counterLag is how long hardware may take to update a counter.
const counterLag = 5 * time.Second

// expectCount expects in f that a rule's counter is want, and the same when read again. f also gets
// an error of read; only that of ctx is returned. A hardware counter may be late by up to
// counterLag, and may count checksums of frames (FCS) too.
func expectCount(ctx context.Context, f *suite.Finding, name string, want tally, read func() (tally, error)) error {
	limit := counterLag
	if f.Proves == report.ProvesSoftware {
		limit = 0
	}
	var got tally
	var unread error
	err := suite.WaitUntil(ctx, limit, counterLag/50, func() (bool, error) {
		got, unread = read()
		return unread != nil || got.packets >= want.packets && got.bytes >= want.bytes, nil
	})
	if err == nil && unread == nil {
		var again tally
		if again, unread = read(); again != got {
			unread = fmt.Errorf("%s counts %d packets and %d bytes, and when asked again %d and %d", name, got.packets, got.bytes, again.packets, again.bytes)
		}
	}
	if unread != nil {
		f.Expect(false, name+"'s count", unread.Error())
		return err
	}
	right := got == want || f.Proves != report.ProvesSoftware && got == tally{want.packets, want.bytes + frameCheck*want.packets}
	f.Expect(right, fmt.Sprintf("%s counts %d packets, %d bytes", name, want.packets, want.bytes), fmt.Sprintf("%s counts %d packets, %d bytes", name, got.packets, got.bytes))
	return err
}

// frameCheck is the size of a frame's own checksum (FCS) in bytes.
const frameCheck = 4

// destroyAndQuery destroys a rule of port 0. If testpmd refuses or still finds it, f gets a fault.
func destroyAndQuery(f *suite.Finding, pmd *testpmd, rule int) error {
	out, err := pmd.runCommand(fmt.Sprintf("flow destroy 0 rule %d", rule))
	if err != nil {
		return err
	}
	if !strings.Contains(out, fmt.Sprintf("Flow rule #%d destroyed", rule)) {
		f.Expect(false, "the rule is destroyed", cmp.Or(plaintext.FirstLine(out), "flow destroy said nothing"))
	}
	out, err = pmd.runCommand(fmt.Sprintf("flow query 0 %d count", rule))
	if err != nil {
		return err
	}
	gone := strings.Contains(out, fmt.Sprintf("Flow rule #%d not found", rule))
	f.Expect(gone, "no rule is left to ask", plaintext.Either(gone, fmt.Sprintf("rule %d is gone", rule), "the rule still answers: "+plaintext.FirstLine(out)))
	return nil
}
