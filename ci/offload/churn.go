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

// churn is a check that adds many rules at once and removes them again, in rounds.
type churn struct {
	rules     int
	rounds    int
	maxGrowth float64 // of zebra, in KiB
}

// pbrd numbers the rules of a policy from 1 to 700. Each direction has a policy with half of
// the rules, so there may be twice as many.
const (
	maxRules  = 1400
	firstPort = 20_000
)

// warmUp is how many rounds come before the first one that counts, because they fill caches.
// At least two rounds count, so that they can be compared.
const (
	warmUp    = 1
	minRounds = 2
)

// runRounds checks in each round that every rule has a flow and that nothing is left
// after the rules are removed. Nothing means no flow, no rule, route or next hop in the
// kernel, and no growth of zebra's memory.
func (c churn) runRounds(ctx context.Context, f *suite.Finding, r *router) (err error) {
	policies := []policy{onwardPolicy(r.DPU), returnPolicy(r.DPU)}
	for _, p := range policies {
		if err := r.resolveNextHop(ctx, p); err != nil {
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
	defer func() { err = errors.Join(err, r.removePolicies(ctx, policies...)) }()
	var all []roundResult
	for i := range c.rounds + warmUp {
		var now roundResult
		err := progress.Run(ctx, fmt.Sprintf("rules, round %d of %d", i, c.rounds), func(*progress.Step) (string, error) {
			now, err = c.runRound(ctx, f, r, policies, before)
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

// roundResult holds what was measured in one round.
type roundResult struct {
	insert, poll time.Duration
	most         int // the number of flows while the rules were there
	memoryKiB    int64
	objects      int64 // that zebra has allocated
}

func (t roundResult) String() string {
	return fmt.Sprintf("%d flows in %.1f s, counted in %.2f s, then none; zebra has %d KiB, %d objects", t.most, t.insert.Seconds(), t.poll.Seconds(), t.memoryKiB, t.objects)
}

// runRound adds all rules, removes them, and checks that nothing is left of them.
func (c churn) runRound(ctx context.Context, f *suite.Finding, r *router, policies []policy, before kernelState) (now roundResult, err error) {
	var apply, remove []string
	for i, p := range policies {
		if err := c.writeRules(ctx, r, p, i, len(policies)); err != nil {
			return now, err
		}
		apply, remove = append(apply, p.applyCommands()...), append(remove, p.removeCommands()...)
	}
	if err := c.insertRules(ctx, f, r, apply, &now); err != nil || !f.OK() {
		return now, err
	}
	if err := r.configure(ctx, remove...); err != nil {
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

// flowTimeout grows with the number of rules, because pbrd sends zebra much on a busy
// machine.
func (c churn) flowTimeout() time.Duration { return flowTimeout * time.Duration(1+c.rules/100) }

// writeRules configures every n-th rule, beginning with the rule first. The rules have no
// effect until their policy is applied. It writes them in parts, because the board's
// shell accepts no line of more than 128 KiB.
func (c churn) writeRules(ctx context.Context, r *router, p policy, first, n int) error {
	const atOnce = 100
	var commands []string
	for i := first; i < c.rules; i += n {
		commands = append(commands, p.portRuleCommands(1+i/n, uint16(firstPort+i))...)
		if last := i+n >= c.rules; last || i/n%atOnce == atOnce-1 {
			if err := r.configure(ctx, commands...); err != nil {
				return err
			}
			commands = nil
		}
	}
	return nil
}

// insertRules applies the policies. It measures the time until all rules have flows, and
// the time that reading all counters once takes.
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

// checkGrowth compares zebra's smallest size in the second half of the rounds with that
// in the first half. What malloc keeps goes up and down by some MiB with a thousand
// rules. zebra's allocated objects grow only in the first rounds, as caches fill. A leak
// would be at least an object per rule in every round.
func (c churn) checkGrowth(f *suite.Finding, all []roundResult) {
	var insert, poll time.Duration
	var sizes, objects []int64
	for _, t := range all[warmUp:] {
		insert, poll = insert+t.insert, poll+t.poll
		sizes, objects = append(sizes, t.memoryKiB), append(objects, t.objects)
	}
	half, most := c.rounds/2, .5
	growth := func(n []int64) float64 { return float64(slices.Min(n[half:]) - slices.Min(n[:half])) }
	f.AddFact(fmt.Sprintf("%d rounds of %d rules: each had a flow, and none is left; zebra has %d KiB after each", c.rounds, c.rules, sizes))
	suite.Limits{Max: &c.maxGrowth}.CheckMetric(f, report.Metric{Name: "zebra's growth", Unit: "KiB", Value: growth(sizes)})
	suite.Limits{Max: &most}.CheckMetric(f, report.Metric{Name: "zebra's new objects per rule", Value: growth(objects) / float64(half*c.rules)})
	suite.Limits{}.CheckMetric(f, report.Metric{Name: "flow insertion rate", Unit: "rules/s", Value: float64(c.rounds*c.rules) / insert.Seconds()})
	suite.Limits{}.CheckMetric(f, report.Metric{Name: "counter poll", Unit: "ms", Value: poll.Seconds() * 1000 / float64(c.rounds)})
}

// prepareFRR lets zebra resolve the next hops of rules. The check's own zebra also
// removes unused next hops at once, and not after three minutes. Its pbrd gets more
// tables than rules: with all of the default 1,000 in use, pbrd 8.4.4 creates no rule any
// more, however many tables are freed. It also crashes when a rule is removed that it
// could not create.
func (r *router) prepareFRR(ctx context.Context) error {
	commands := []string{"pbr nexthop-resolve"}
	if r.dir != "" {
		commands = append(commands, "zebra nexthop-group keep 1", "pbr table range 10000 20000")
	}
	return r.configure(ctx, commands...)
}

// kernelState counts what zebra has created in the kernel.
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

// restoreTimeout is longer than zebra keeps an unused next hop.
var restoreTimeout = 4 * time.Minute

// checkKernelRestored waits until the kernel has no more rules, routes and next hops than
// before.
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

// zebraObjects returns how many objects of all kinds zebra has allocated.
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

// zebraMemoryKiB returns the resident size of zebra.
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
