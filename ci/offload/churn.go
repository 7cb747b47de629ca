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
	"slipway/layers/lazy"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// churn is rules that come and go, all at once in each round.
type churn struct {
	rules     int
	rounds    int
	maxGrowth float64 // of zebra, in KiB
}

// pbrd numbers the rules of a policy from 1 to 700. Half of them go one way and half the
// other, so that there may be twice as many.
const (
	maxRules  = 1400
	firstPort = 20_000
)

// warmUp is how many rounds come before the first that counts: they fill caches. Of those
// that count there are two at least, to be compared.
const (
	warmUp    = 1
	minRounds = 2
)

// runRounds wants as many flows as rules, and of both nothing to be left: no flow, no rule,
// route or next hop of the kernel's, no memory of zebra's.
func (c churn) runRounds(ctx context.Context, f *suite.Finding, r *router) (err error) {
	ways := []policy{onwardPolicy(r.DPU), returnPolicy(r.DPU)}
	for _, way := range ways {
		if err := r.resolveNextHop(ctx, way); err != nil {
			return err
		}
	}
	if err := r.prepareFRR(ctx); err != nil {
		return err
	}
	before, err := r.readKernelState(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.removePolicies(ctx, ways...)) }()
	var all []roundResult
	for i := range c.rounds + warmUp {
		var now roundResult
		err := progress.Run(ctx, fmt.Sprintf("rules, round %d of %d", i, c.rounds), func(*progress.Step) (string, error) {
			now, err = c.runRound(ctx, f, r, ways, before)
			return now.String(), err
		})
		if err != nil || !f.OK() {
			return err
		}
		all = append(all, now)
	}
	c.checkGrowth(f, all)
	return nil
}

// roundResult is what one round came to.
type roundResult struct {
	insert, poll time.Duration
	most         int // flows
	memoryKiB    int64
	objects      int64 // that zebra has allocated
}

func (t roundResult) String() string {
	return fmt.Sprintf("%d flows in %.1f s, counted in %.2f s, then none; zebra has %d KiB, %d objects", t.most, t.insert.Seconds(), t.poll.Seconds(), t.memoryKiB, t.objects)
}

func (c churn) runRound(ctx context.Context, f *suite.Finding, r *router, ways []policy, before kernelState) (now roundResult, err error) {
	var apply, forget []string
	for i, way := range ways {
		if err := c.writeRules(ctx, r, way, i, len(ways)); err != nil {
			return now, err
		}
		apply, forget = append(apply, way.applyCommands()...), append(forget, way.removeCommands()...)
	}
	if err := c.insertRules(ctx, f, r, apply, &now); err != nil || !f.OK() {
		return now, err
	}
	if err := r.configure(ctx, forget...); err != nil {
		return now, err
	}
	flows, said, err := r.flowsUntil(ctx, c.flowTimeout(), func(flows []pbrFlow) bool { return len(countedFlows(flows, "")) == 0 })
	if n := len(countedFlows(flows, "")); err == nil && n > 0 {
		f.Expect(false, "no flow is left", fmt.Sprintf("%d flows are left:\n%s", n, plaintext.Clean(said, 2000)))
	}
	if err != nil || !f.OK() {
		return now, err
	}
	if err := r.checkKernelRestored(ctx, f, before); err != nil {
		return now, err
	}
	if now.memoryKiB, err = r.zebraMemoryKiB(ctx); err == nil {
		now.objects, err = r.zebraObjects(ctx)
	}
	return now, err
}

// flowTimeout is longer for many rules, of which pbrd tells zebra much on a busy machine.
func (c churn) flowTimeout() time.Duration { return flowTimeout * time.Duration(1+c.rules/100) }

// writeRules writes every n-th rule, which does nothing until its policy is applied. The board's
// shell takes no line of more than 128 KiB.
func (c churn) writeRules(ctx context.Context, r *router, way policy, first, n int) error {
	const atOnce = 100
	var commands []string
	for i := first; i < c.rules; i += n {
		commands = append(commands, way.portRuleCommands(1+i/n, uint16(firstPort+i))...)
		if last := i+n >= c.rules; last || i/n%atOnce == atOnce-1 {
			if err := r.configure(ctx, commands...); err != nil {
				return err
			}
			commands = nil
		}
	}
	return nil
}

// insertRules applies what was written, and takes the time until all have flows, and that which
// one look at all counters takes.
func (c churn) insertRules(ctx context.Context, f *suite.Finding, r *router, apply []string, now *roundResult) error {
	began := time.Now()
	if err := r.configure(ctx, apply...); err != nil {
		return err
	}
	flows, said, err := r.flowsUntil(ctx, c.flowTimeout(), func(flows []pbrFlow) bool { return len(countedFlows(flows, "")) >= c.rules })
	if err != nil {
		return err
	}
	now.insert, now.most = time.Since(began), len(countedFlows(flows, ""))
	if now.most != c.rules {
		f.Expect(false, fmt.Sprintf("%d flows", c.rules), fmt.Sprintf("%d rules have %d flows:\n%s", c.rules, now.most, plaintext.Clean(said, 2000)))
		return nil
	}
	began = time.Now()
	_, err = r.runVtysh(ctx, r.plugin.flow)
	now.poll = time.Since(began)
	return err
}

// checkGrowth holds the least that zebra had after a round of the second half against that of the
// first. What malloc keeps goes up and down, by some MiB with a thousand rules. What zebra
// has allocated grows in the first rounds only, by what it keeps to be quick; a leak would
// be an object of each rule's, in every round.
func (c churn) checkGrowth(f *suite.Finding, all []roundResult) {
	var insert, poll time.Duration
	var sizes, objects []int64
	for _, t := range all[warmUp:] {
		insert, poll = insert+t.insert, poll+t.poll
		sizes, objects = append(sizes, t.memoryKiB), append(objects, t.objects)
	}
	half, most := c.rounds/2, .5
	growth := func(n []int64) float64 { return float64(slices.Min(n[half:]) - slices.Min(n[:half])) }
	f.Fact(fmt.Sprintf("%d rounds of %d rules: each had a flow, and none is left; zebra has %d KiB after each", c.rounds, c.rules, sizes))
	suite.Limits{Max: &c.maxGrowth}.Read(f, report.Metric{Name: "zebra's growth", Unit: "KiB", Value: growth(sizes)})
	suite.Limits{Max: &most}.Read(f, report.Metric{Name: "zebra's new objects per rule", Value: growth(objects) / float64(half*c.rules)})
	suite.Limits{}.Read(f, report.Metric{Name: "flow insertion rate", Unit: "rules/s", Value: float64(c.rounds*c.rules) / insert.Seconds()})
	suite.Limits{}.Read(f, report.Metric{Name: "counter poll", Unit: "ms", Value: poll.Seconds() * 1000 / float64(c.rounds)})
}

// prepareFRR has zebra look for the next hops of rules. One of the check's own lets go at once
// of those that nobody uses, which it keeps for three minutes otherwise. And its pbrd has
// more tables than rules: when all of the default 1,000 were in use it makes no rule any
// more, however many are free by then, and crashes when one of those goes that it could not
// make (seen with 8.4.4).
func (r *router) prepareFRR(ctx context.Context) error {
	commands := []string{"pbr nexthop-resolve"}
	if r.dir != "" {
		commands = append(commands, "zebra nexthop-group keep 1", "pbr table range 10000 20000")
	}
	return r.configure(ctx, commands...)
}

// kernelState is how much of what zebra makes the kernel has.
type kernelState struct{ rules, routes, nexthops int }

func (r *router) readKernelState(ctx context.Context) (k kernelState, err error) {
	rules, err := r.kernelRules(ctx)
	if err != nil {
		return k, err
	}
	routes, err := r.Output(ctx, "ip", "route", "show", "table", "all")
	if err != nil {
		return k, err
	}
	nexthops, err := r.Output(ctx, "ip", "nexthop", "show")
	return kernelState{len(rules), strings.Count(routes, "\n"), strings.Count(nexthops, "\n")}, err
}

// settlePatience is longer than zebra keeps a next hop that nobody uses.
var restoreTimeout = 4 * time.Minute

// checkKernelRestored wants the kernel to have no more than before.
func (r *router) checkKernelRestored(ctx context.Context, f *suite.Finding, before kernelState) error {
	var now kernelState
	err := suite.WaitUntil(ctx, restoreTimeout, pollInterval, func() (so bool, err error) {
		now, err = r.readKernelState(ctx)
		return now.rules <= before.rules && now.routes <= before.routes && now.nexthops <= before.nexthops, err
	})
	for _, left := range []struct {
		what     string
		had, has int
	}{{"rules", before.rules, now.rules}, {"routes", before.routes, now.routes}, {"next hops", before.nexthops, now.nexthops}} {
		if err == nil && left.has > left.had {
			f.Expect(false, fmt.Sprintf("%d %s in the kernel, as before", left.had, left.what), fmt.Sprintf("the kernel has %d %s, and had %d", left.has, left.what, left.had))
		}
	}
	return err
}

var objectsLine = lazy.Regexp(`(?m)^[^:\n]{30,60}: +(\d{1,12}) `)

// zebraObjects is how many zebra has allocated, of all kinds.
func (r *router) zebraObjects(ctx context.Context) (n int64, err error) {
	out, err := r.runVtysh(ctx, "show memory zebra")
	if err != nil {
		return 0, err
	}
	all := objectsLine().FindAllStringSubmatch(out, -1)
	if len(all) == 0 {
		return 0, fmt.Errorf("show memory zebra names no objects: %q", plaintext.Clean(out, 500))
	}
	for _, m := range all {
		one, _ := strconv.ParseInt(m[1], 10, 64) // 12 digits at most
		n += one
	}
	return n, nil
}

var residentSize = lazy.Regexp(`(?m)^VmRSS:\s+(\d{1,12}) kB$`)

// zebraMemoryKiB is what zebra has of the board's memory.
func (r *router) zebraMemoryKiB(ctx context.Context) (int64, error) {
	pid, err := r.Output(ctx, "cat", cmp.Or(r.dir, "/run/frr")+"/zebra.pid")
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(pid))
	if err != nil || n < 2 {
		return 0, fmt.Errorf("zebra.pid holds %q", plaintext.Clean(pid, 100))
	}
	status, err := r.Output(ctx, "cat", fmt.Sprintf("/proc/%d/status", n))
	if err != nil {
		return 0, err
	}
	m := residentSize().FindStringSubmatch(status)
	if m == nil {
		return 0, fmt.Errorf("/proc/%d/status has no VmRSS", n)
	}
	return strconv.ParseInt(m[1], 10, 64)
}
