package ci

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// pbr is policy based routing that FRR hands to the ports through a plugin of zebra's.
type pbr struct {
	plugin       string
	daemons      string // their folder
	port, others uint16
	packets      int
	otherPackets int
	rules        int // that are added and removed afterwards
	maxGrowth    float64
}

// plugins are those of zebra's, without their arguments.
var plugins = map[string]plugin{
	"dpdk": {module: "dplane_dpdk", ports: "show dplane dpdk port detail", flow: "show dplane dpdk pbr flows"},
}

func readPBR(e *entry) probe {
	e.limit = 3 * time.Minute
	p := pbr{
		plugin: e.text("plugin", "dpdk"), daemons: e.text("daemons", "/usr/lib/frr"),
		port: uint16(e.number("port", 53, 1, 65535)), others: uint16(e.number("other-port", 5300, 1, 65535)),
		packets: int(e.number("packets", 20, 1, maxSent)), otherPackets: int(e.number("other-packets", 5, 1, maxSent)),
		rules: int(e.number("rules", 0, 0, 1_000_000)), maxGrowth: 1024,
	}
	if _, known := plugins[p.plugin]; !known {
		e.fail(e.key, "unknown plugin %q (have dpdk)", p.plugin)
	}
	if !strings.HasPrefix(p.daemons, "/") || strings.ContainsAny(p.daemons, "\x00 ") {
		e.fail(e.key, "daemons must be an absolute path on the board, not %q", p.daemons)
	}
	if p.port == p.others {
		e.fail(e.key, "port and other-port are the same; packets to one of them must not match the rule")
	}
	if most := e.decimal("max-growth"); most != nil {
		p.maxGrowth = *most
	}
	return p
}

// alone: the plugin takes the ports for itself.
func (pbr) alone() bool { return true }

func (p pbr) next() string {
	return "on the board: vtysh -c \"" + plugins[p.plugin].ports + "\" -c \"show pbr map\" -c \"" + plugins[p.plugin].flow +
		"\". zebra wants -M with the arguments of eal in board.yml, and FRR the patches of recipes/dynamic-layers/networking-layer/frr"
}

func (p pbr) run(ctx context.Context, s *session) (f finding, err error) {
	if err := s.wantDPU(ctx, "vtysh"); err != nil {
		return f, err
	}
	with := plugins[p.plugin]
	with.args = s.dpu.EAL
	r, err := s.startFRR(ctx, with, p.daemons)
	defer func() { err = errors.Join(err, r.close(ctx)) }()
	if err != nil {
		return f, err
	}
	if err := p.ports(ctx, &f, r); err != nil || !f.ok() {
		return f, err
	}
	if why := noTraffic(s.dpu); why != "" {
		f.fact(why)
		f.proves = ProvesParts
		return f, nil
	}
	t, err := s.startTraffic(ctx, s.dpu)
	if err != nil {
		return f, err
	}
	defer t.stop()
	return f, p.prove(ctx, &f, r, t)
}

// ports wants the plugin to have those of board.yml.
func (p pbr) ports(ctx context.Context, f *finding, r *router) error {
	said, err := r.show(ctx, r.plugin.ports)
	for end := time.Now().Add(flowPatience); err == nil && strings.TrimSpace(said) == "" && time.Now().Before(end); { // they come after zebra's first answers
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(frrPause):
		}
		said, err = r.show(ctx, r.plugin.ports)
	}
	if err != nil {
		return err
	}
	drivers := map[string]string{}
	for _, port := range parseFRRPorts(said) {
		drivers[port.iface] = port.driver
	}
	var names []string
	for _, name := range r.dpu.Ports {
		driver := drivers[name]
		f.expect(driver != "", "a port "+name, word(driver != "", name+" is "+driver, "the plugin has no port "+name+":\n"+clean(said, 1000)))
		names = append(names, driver)
	}
	f.proves = driverProof(names...)
	return nil
}

// The names that the check's own configuration has in FRR.
const pbrMap = "slipway-check"

// rule is the policy of the post: what is for a port goes to another next hop.
func (p pbr) rule(t *traffic) []string {
	d := t.dpu
	return []string{
		"pbr nexthop-resolve", "pbr-map " + pbrMap + " seq 10", "match src-ip " + d.From.Address + "/32", "match ip-protocol udp",
		"match dst-port " + strconv.Itoa(int(p.port)), "set nexthop " + d.To.Address, "exit",
	}
}

func apply(r *router) []string {
	return []string{"interface " + r.dpu.Ports[0], "pbr-policy " + pbrMap, "exit"}
}

func withdraw(r *router) []string {
	return []string{"interface " + r.dpu.Ports[0], "no pbr-policy " + pbrMap, "exit"}
}

// prove takes a rule through its life.
func (p pbr) prove(ctx context.Context, f *finding, r *router, t *traffic) (err error) {
	if err := t.before(ctx, f, p.port); err != nil {
		return err
	}
	if err := r.meet(ctx, t); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.forget(ctx)) }()
	if err := r.configure(ctx, append(p.rule(t), apply(r)...)...); err != nil {
		return err
	}
	if there, err := p.installed(ctx, f, r); err != nil || !there {
		return err
	}
	sent, err := t.sendBoth(ctx, p.port, p.others, p.packets, p.otherPackets)
	if err != nil {
		return err
	}
	t.judge(ctx, f, sent, t.outMAC)
	if err := p.count(ctx, f, r); err != nil {
		return err
	}
	if err := r.configure(ctx, withdraw(r)...); err != nil {
		return err
	}
	if err := gone(ctx, f, r); err != nil || !f.ok() {
		return err
	}
	if err := t.after(ctx, f, p.port, p.packets); err != nil || p.rules == 0 {
		return err
	}
	return p.churn(ctx, f, r, t)
}

// meet makes the kernel ask for the MAC address of the next hop: zebra takes it from there.
func (r *router) meet(ctx context.Context, t *traffic) error {
	_, err := r.ask(ctx, "bash", "-c", sender, "bash", r.dpu.To.Address, "9", "1", "who are you")
	if err != nil {
		return fmt.Errorf("send a packet to the next hop: %w", err)
	}
	return nil
}

// forget takes the check's rules away, also from a zebra that goes on.
func (r *router) forget(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardownLimit)
	defer cancel()
	return r.configure(ctx, append(withdraw(r), "no pbr-map "+pbrMap)...)
}

func (p pbr) installed(ctx context.Context, f *finding, r *router) (bool, error) {
	port := strconv.Itoa(int(p.port))
	flows, said, err := r.flowsUntil(ctx, func(flows []pbrFlow) bool { return len(counted(flows, port)) > 0 })
	there := len(counted(flows, port)) == 1
	f.expect(there, "one flow for port "+port, word(there, "the rule has a flow", "the rule has no flow of its own:\n"+or(clean(said, 2000), "(nothing)")))
	return there, err
}

// count wants the flow's counter to be what was sent: the kernel has the same rule, so
// that packets which arrive would not prove that the ports sent them on.
func (p pbr) count(ctx context.Context, f *finding, r *router) error {
	port, have := strconv.Itoa(int(p.port)), int64(0)
	_, _, err := r.flowsUntil(ctx, func(flows []pbrFlow) bool {
		if mine := counted(flows, port); len(mine) > 0 {
			have = mine[0].packets
		}
		return have >= int64(p.packets)
	})
	f.expect(have == int64(p.packets), fmt.Sprintf("the flow counts %d packets", p.packets), fmt.Sprintf("the flow counts %d of %d packets", have, p.packets))
	return err
}

func gone(ctx context.Context, f *finding, r *router) error {
	flows, said, err := r.flowsUntil(ctx, func(flows []pbrFlow) bool { return len(counted(flows, "")) == 0 })
	none := len(counted(flows, "")) == 0
	f.expect(none, "no flow once the rule is gone", word(none, "the flow is gone", "flows are left:\n"+clean(said, 2000)))
	return err
}

// churnRules are in the policy at a time, and added and removed together.
const churnRules = 50

// churn adds and removes rules, and wants neither flows nor memory to be left. The first
// rounds are not counted: they fill caches.
func (p pbr) churn(ctx context.Context, f *finding, r *router, t *traffic) error {
	if err := r.configure(ctx, p.manyRules(t)...); err != nil {
		return err
	}
	const warmUp = 2
	rounds, before, began := (p.rules+churnRules-1)/churnRules, int64(0), time.Now()
	for i := range rounds + warmUp {
		if i == warmUp {
			var err error
			if before, err = r.memoryKiB(ctx); err != nil {
				return err
			}
			began = time.Now()
		}
		if err := r.round(ctx, f); err != nil || !f.ok() {
			return err
		}
	}
	took := time.Since(began)
	after, err := r.memoryKiB(ctx)
	if err != nil {
		return err
	}
	f.fact(fmt.Sprintf("%d rules added and removed", rounds*churnRules))
	limits{max: &p.maxGrowth}.read(f, Metric{Name: "zebra's growth", Unit: "KiB", Value: float64(after - before)})
	limits{}.read(f, Metric{Name: "rules added and removed", Unit: "rules/s", Value: float64(rounds*churnRules) / took.Seconds()})
	return nil
}

// manyRules are rules for ports of their own, one for each.
func (p pbr) manyRules(t *traffic) []string {
	all := []string{"no pbr-map " + pbrMap + " seq 10"}
	for i := range churnRules {
		all = append(all, fmt.Sprintf("pbr-map %s seq %d", pbrMap, 100+i), "match src-ip "+t.dpu.From.Address+"/32",
			"match ip-protocol udp", fmt.Sprintf("match dst-port %d", 20000+i), "set nexthop "+t.dpu.To.Address, "exit")
	}
	return all
}

func (r *router) round(ctx context.Context, f *finding) error {
	if err := r.configure(ctx, apply(r)...); err != nil {
		return err
	}
	flows, _, err := r.flowsUntil(ctx, func(flows []pbrFlow) bool { return len(counted(flows, "")) >= churnRules })
	if err != nil {
		return err
	}
	if n := len(counted(flows, "")); n != churnRules {
		f.expect(false, fmt.Sprintf("%d flows", churnRules), fmt.Sprintf("%d rules have %d flows", churnRules, n))
		return nil
	}
	if err := r.configure(ctx, withdraw(r)...); err != nil {
		return err
	}
	flows, said, err := r.flowsUntil(ctx, func(flows []pbrFlow) bool { return len(counted(flows, "")) == 0 })
	if n := len(counted(flows, "")); n > 0 {
		f.expect(false, "no flow is left", fmt.Sprintf("%d flows are left:\n%s", n, clean(said, 2000)))
	}
	return err
}

var residentSize = regexp.MustCompile(`(?m)^VmRSS:\s+(\d{1,12}) kB$`)

// memoryKiB is what zebra has of the board's memory.
func (r *router) memoryKiB(ctx context.Context) (int64, error) {
	pid, err := r.ask(ctx, "cat", or(r.dir, "/run/frr")+"/zebra.pid")
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(pid))
	if err != nil || n < 2 {
		return 0, fmt.Errorf("zebra.pid holds %q", clean(pid, 100))
	}
	status, err := r.ask(ctx, "cat", fmt.Sprintf("/proc/%d/status", n))
	if err != nil {
		return 0, err
	}
	m := residentSize.FindStringSubmatch(status)
	if m == nil {
		return 0, fmt.Errorf("/proc/%d/status has no VmRSS", n)
	}
	return strconv.ParseInt(m[1], 10, 64)
}
