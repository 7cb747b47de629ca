package ci

import (
	"context"
	"fmt"
	"strings"
	"time"

	"slipway/images"
)

// flow is a rule that the ports themselves keep to, by dpdk-testpmd.
type flow struct{ aim }

func readFlow(e *entry) probe {
	e.limit = 2 * time.Minute
	return flow{readAim(e)}
}

// alone: DPDK takes the ports for itself.
func (flow) alone() bool { return true }

func (flow) next() string {
	return "on the board: dpdk-testpmd with the arguments of eal in board.yml, -- -i, and its flow create, flow query and flow list by hand"
}

// wantDPU says why a board cannot be asked for its offload by a program.
func (s *session) wantDPU(ctx context.Context, program string) error {
	if s.dpu == nil {
		return missing("the board's board.yml has no section dpu")
	}
	return s.wantProgram(ctx, program)
}

func (s *session) wantProgram(ctx context.Context, program string) error {
	why, err := s.lacking(ctx, need{kind: "command", name: program})
	if err == nil && why != "" {
		err = missing(why)
	}
	return err
}

func (c flow) run(ctx context.Context, s *session) (f finding, err error) {
	if err := s.wantDPU(ctx, "dpdk-testpmd"); err != nil {
		return f, err
	}
	var t *traffic
	if why := noTraffic(s.dpu); why == "" {
		if t, err = s.startTraffic(ctx, s.dpu); err != nil {
			return f, err
		}
		defer t.stop()
	} else {
		f.fact(why)
	}
	err = s.withTestpmd(ctx, s.dpu, func(pmd *testpmd) error { return c.prove(ctx, &f, pmd, s.dpu, t) })
	return f, err
}

// prove takes a rule through its life.
func (c flow) prove(ctx context.Context, f *finding, pmd *testpmd, d *images.DPU, t *traffic) error {
	ports, err := f.ports(pmd, d)
	if err != nil {
		return err
	}
	out := ports[1]
	if t == nil {
		f.proves = ProvesParts
		return c.withoutTraffic(f, pmd, out)
	}
	if err := t.prove(ctx, f, c.aim, ruleset{}); err != nil || !f.ok() {
		return err
	}
	l := flowLife{flow: c, f: f, pmd: pmd, t: t}
	if err := l.create(d, out); err != nil || !f.ok() {
		return err
	}
	if err := l.compare(ctx); err != nil || !f.ok() {
		return err
	}
	return l.destroy(ctx)
}

// flowLife is a rule of the ports, and a wider one that it comes before. The wider one is
// older: only its priority puts it behind.
type flowLife struct {
	flow
	f   *finding
	pmd *testpmd
	t   *traffic

	there      ruleset
	rule, wide int // their numbers
}

func (l *flowLife) create(d *images.DPU, out dpdkPort) (err error) {
	if d.Other != nil {
		if l.wide, err = l.pmd.create(routeRule("priority 1 ", wider.testpmd(d.From.Address), l.t.otherMAC.String(), out)); err == nil {
			l.there.wide = true
		}
	}
	if err == nil {
		l.rule, err = l.pmd.create(routeRule("", l.pattern(d).testpmd(d.From.Address), l.t.toMAC.String(), out))
	}
	if err != nil {
		l.f.expect(false, "a rule that the driver takes", err.Error())
	}
	l.there.rule = true
	return nil
}

// compare sends packets of all kinds, and compares the counters with what was sent.
func (l *flowLife) compare(ctx context.Context) error {
	if err := l.t.prove(ctx, l.f, l.aim, l.there); err != nil {
		return err
	}
	for _, c := range []struct {
		there  bool
		name   string
		number int
		want   tally
	}{{l.there.rule, "the rule", l.rule, l.t.rule}, {l.there.wide, "the wider rule", l.wide, l.t.wide}} {
		if !c.there {
			continue
		}
		if err := l.f.count(ctx, c.name, c.want, func() (tally, error) { return l.pmd.count(0, c.number) }); err != nil {
			return err
		}
	}
	return nil
}

// destroy takes the rules away, one after the other, and sends packets after each.
func (l *flowLife) destroy(ctx context.Context) error {
	if err := destroy(l.f, l.pmd, l.rule); err != nil {
		return err
	}
	l.there.rule = false
	if err := l.compare(ctx); err != nil || !l.there.wide {
		return err
	}
	if err := destroy(l.f, l.pmd, l.wide); err != nil {
		return err
	}
	l.there.wide = false
	return l.compare(ctx)
}

// ports notes whose drivers work for a board's ports.
func (f *finding) ports(pmd *testpmd, d *images.DPU) ([]dpdkPort, error) {
	ports, err := pmd.ports(d)
	if err != nil {
		return nil, err
	}
	in, out := ports[0], ports[1]
	f.proves = driverProof(in.driver, out.driver)
	f.fact(fmt.Sprintf("port 0 %s is %s, port 1 %s is %s", d.Ports[0], in.driver, d.Ports[1], out.driver))
	return ports, nil
}

// routeRule is that of the posts on offloaded policy based routing: what matches goes to
// another next hop, as a router would send it.
func routeRule(attributes, pattern, next string, out dpdkPort) string {
	return fmt.Sprintf("flow create 0 ingress %stransfer pattern %s / end actions dec_ttl / set_mac_src mac_addr %s / set_mac_dst mac_addr %s / port_id id %d / count / end",
		attributes, pattern, out.mac, next, out.number)
}

// testpmd is the pattern in testpmd's words, for packets from an address.
func (p pattern) testpmd(source string) string {
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

// withoutTraffic shows that a rule can be made, asked for and taken away.
func (c flow) withoutTraffic(f *finding, pmd *testpmd, out dpdkPort) error {
	rule, err := pmd.create(fmt.Sprintf("flow create 0 ingress transfer pattern eth / ipv4 / udp dst is %d / end actions port_id id %d / count / end", c.port, out.number))
	if err != nil {
		f.expect(false, "a rule that the driver takes", err.Error())
		return nil
	}
	if _, err := pmd.count(0, rule); err != nil {
		f.expect(false, "a count", err.Error())
	}
	return destroy(f, pmd, rule)
}

// counterLag is how long hardware may take to bring a counter up to date.
const counterLag = 5 * time.Second

// count wants a rule's counter to be what was sent. That of hardware may be a moment late, and
// hold the checksums of the frames too.
func (f *finding) count(ctx context.Context, name string, want tally, read func() (tally, error)) error {
	patience := counterLag
	if f.proves == ProvesSoftware {
		patience = 0
	}
	var got tally
	var unread error
	err := until(ctx, patience, counterLag/50, func() (bool, error) {
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
		f.expect(false, name+"'s count", unread.Error())
		return err
	}
	right := got == want || f.proves != ProvesSoftware && got == tally{want.packets, want.bytes + frameCheck*want.packets}
	f.expect(right, fmt.Sprintf("%s counts %d packets, %d bytes", name, want.packets, want.bytes), fmt.Sprintf("%s counts %d packets, %d bytes", name, got.packets, got.bytes))
	return err
}

// frameCheck is the bytes of a frame's own checksum.
const frameCheck = 4

// destroy takes the rule away, and wants it to be gone.
func destroy(f *finding, pmd *testpmd, rule int) error {
	out, err := pmd.do(fmt.Sprintf("flow destroy 0 rule %d", rule))
	if err != nil {
		return err
	}
	if !strings.Contains(out, fmt.Sprintf("Flow rule #%d destroyed", rule)) {
		f.expect(false, "the rule is destroyed", or(firstLine(out), "flow destroy said nothing"))
	}
	out, err = pmd.do(fmt.Sprintf("flow query 0 %d count", rule))
	if err != nil {
		return err
	}
	gone := strings.Contains(out, fmt.Sprintf("Flow rule #%d not found", rule))
	f.expect(gone, "no rule is left to ask", word(gone, fmt.Sprintf("rule %d is gone", rule), "the rule still answers: "+firstLine(out)))
	return nil
}
