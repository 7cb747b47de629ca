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
	if err := t.before(ctx, f, c.port); err != nil {
		return err
	}
	rule, err := pmd.create(c.rule(d, t.toMAC.String(), out))
	if err != nil {
		f.expect(false, "a rule that the driver takes", err.Error())
		return nil
	}
	sent, err := t.shoot(ctx, c.aim)
	if err != nil {
		return err
	}
	t.judge(ctx, f, sent, out.mac)
	if err := c.count(ctx, f, pmd, rule); err != nil {
		return err
	}
	if err := destroy(f, pmd, rule); err != nil || !f.ok() {
		return err
	}
	return t.after(ctx, f, c.port, c.packets)
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

// rule is that of the posts on offloaded policy based routing: what is for a port goes to
// another next hop, as a router would send it.
func (c flow) rule(d *images.DPU, next string, out dpdkPort) string {
	return fmt.Sprintf("flow create 0 ingress transfer pattern eth / ipv4 src is %s / udp dst is %d / end actions dec_ttl / "+
		"set_mac_src mac_addr %s / set_mac_dst mac_addr %s / port_id id %d / count / end", d.From.Address, c.port, out.mac, next, out.number)
}

// withoutTraffic shows that a rule can be made, asked for and taken away.
func (c flow) withoutTraffic(f *finding, pmd *testpmd, out dpdkPort) error {
	rule, err := pmd.create(fmt.Sprintf("flow create 0 ingress transfer pattern eth / ipv4 / udp dst is %d / end actions port_id id %d / count / end", c.port, out.number))
	if err != nil {
		f.expect(false, "a rule that the driver takes", err.Error())
		return nil
	}
	if _, err := pmd.hits(0, rule); err != nil {
		f.expect(false, "a count", err.Error())
	}
	return destroy(f, pmd, rule)
}

// counterLag is how long hardware may take to bring a counter up to date.
const counterLag = 5 * time.Second

// count wants the rule's counter to be what was sent, which it may reach a moment later.
func (c flow) count(ctx context.Context, f *finding, pmd *testpmd, rule int) error {
	var hits int64
	var unread error
	err := until(ctx, counterLag, counterLag/50, func() (bool, error) {
		hits, unread = pmd.hits(0, rule)
		return unread != nil || hits >= int64(c.packets), nil
	})
	if unread != nil {
		f.expect(false, "a count", unread.Error())
		return nil
	}
	f.expect(hits == int64(c.packets), fmt.Sprintf("the rule counts %d packets", c.packets), fmt.Sprintf("the rule counts %d of %d packets", hits, c.packets))
	return err
}

// destroy takes the rule away, and wants it to be gone.
func destroy(f *finding, pmd *testpmd, rule int) error {
	out, err := pmd.do(fmt.Sprintf("flow destroy 0 rule %d", rule))
	if err != nil {
		return err
	}
	f.expect(strings.Contains(out, fmt.Sprintf("Flow rule #%d destroyed", rule)), "the rule is destroyed", or(firstLine(out), "flow destroy said nothing"))
	out, err = pmd.do(fmt.Sprintf("flow query 0 %d count", rule))
	if err != nil {
		return err
	}
	gone := strings.Contains(out, fmt.Sprintf("Flow rule #%d not found", rule))
	f.expect(gone, "no rule is left to ask", word(gone, "the rule is gone", "the rule still answers: "+firstLine(out)))
	return nil
}
