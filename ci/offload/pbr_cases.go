package offload

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"slipway/ci/suite"
	"slipway/layers/plaintext"
)

// ruleCase is one rule of a file with test cases, and what FRR must do with the rule.
type ruleCase struct {
	line          int
	seq           int      // its position in the file and its number in the policy
	matches       []string // commands of a pbr-map
	offloaded     bool     // the ports get flows for it
	kernelReason  string   // why only the kernel has it
	kernelRefuses bool     // the kernel refuses it, so the ports must not keep it
}

// pbrd numbers the rules of a policy from 1 to 700.
const (
	maxRules     = 700
	maxCaseBytes = 500
)

// parseCases parses a file with test cases: one rule, state and outcome a line, separated by |. The
// state is empty or kernel-refuses. It skips rules of other states, which need other interfaces. A
// file without a rule for the check is an error.
func parseCases(text string) (all []ruleCase, err error) {
	for i, line := range plaintext.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		parts := strings.Split(line, "|")
		if len(line) > maxCaseBytes || len(parts) != 3 || len(all) == maxRules {
			return nil, fmt.Errorf("line %d: want a rule, its state and its result, with | between; %d bytes a line and %d rules at most", i+1, maxCaseBytes, maxRules)
		}
		c := ruleCase{line: i + 1}
		for match := range strings.SplitSeq(parts[0], ";") {
			if match = strings.TrimSpace(match); !strings.HasPrefix(match, "match ") {
				return nil, fmt.Errorf("line %d: %q is no match of a pbr-map", i+1, plaintext.Clean(match, 100))
			}
			c.matches = append(c.matches, match)
		}
		outcome := strings.TrimSpace(parts[2])
		reason, kernel := strings.CutPrefix(outcome, "kernel: ")
		if outcome == "" {
			return nil, fmt.Errorf("line %d: what comes of it is missing", i+1)
		}
		switch state := strings.TrimSpace(parts[1]); {
		case state == "kernel-refuses":
			c.kernelRefuses = true
		case state != "":
			continue
		case kernel:
			c.kernelReason = reason
		default:
			c.offloaded = true
		}
		c.seq = len(all) + 1
		all = append(all, c)
	}
	if len(all) == 0 {
		return nil, errors.New("no rules")
	}
	return all, nil
}

// describeMismatch says how the flows of a rule differ from the expected outcome, or returns "".
func (c ruleCase) describeMismatch(flows []pbrFlow) string {
	switch {
	case c.kernelRefuses && len(flows) > 0:
		return "the kernel refuses it, and the ports keep it"
	case c.kernelRefuses:
		return ""
	case len(flows) == 0:
		return "zebra has it no more"
	case c.offloaded && !flows[0].counted:
		return "it has no flow: " + cmp.Or(flows[0].refused, "no reason given")
	case !c.offloaded && flows[0].counted:
		return "it has a flow, and should be the kernel's: " + c.kernelReason
	case !c.offloaded && flows[0].refused != c.kernelReason:
		return fmt.Sprintf("it is the kernel's as %q; want %q", flows[0].refused, c.kernelReason)
	}
	return ""
}

// runCases reads a file with test cases from the board, configures its rules in FRR, and compares
// the flows of each rule with the file. Then it removes the rules and checks that no flow is left.
func (r *router) runCases(ctx context.Context, f *suite.Finding, file string) (err error) {
	text, err := r.Output(ctx, "cat", "--", file)
	if err != nil {
		return err
	}
	cases, err := parseCases(text)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	p := onwardPolicy(r.DPU)
	if err := r.resolveNextHop(ctx, p.nexthop); err != nil {
		return err
	}
	if err := r.prepareFRR(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.configureTeardown(ctx, p.removeCommands())) }()
	known, err := r.writeCases(ctx, p, cases)
	if err != nil {
		return err
	}
	if err := r.configure(ctx, p.applyCommands()...); err != nil {
		return err
	}
	if err := r.checkCases(ctx, f, p, file, known, len(cases)); err != nil || !f.OK() {
		return err
	}
	if err := r.configure(ctx, p.withdrawCommands()...); err != nil {
		return err
	}
	return checkGone(ctx, f, r, "", anyRules)
}

// prepareFRR makes zebra resolve the next hops of rules. If the check started its own pbrd,
// prepareFRR also gives it more routing tables than there are rules. Once its 1,000 default tables
// are used, pbrd 8.4.4 creates no more rules, and it crashes when such a rule is removed.
func (r *router) prepareFRR(ctx context.Context) error {
	commands := []string{"pbr nexthop-resolve"}
	if r.dir != "" {
		commands = append(commands, "pbr table range 10000 20000")
	}
	return r.configure(ctx, commands...)
}

// writeCases configures the rules in FRR and returns those that this FRR supports. It removes a
// rule again if FRR rejects a command of the rule, or reads the rule as empty.
func (r *router) writeCases(ctx context.Context, p policy, cases []ruleCase) (known []ruleCase, err error) {
	for _, c := range cases {
		err := r.configure(ctx, p.ruleCommands(c.seq, c.matches...)...)
		var refused vtyshRefusal
		switch {
		case errors.As(err, &refused):
			err = r.configure(ctx, p.removeRuleCommand(c.seq))
		case err == nil:
			known = append(known, c)
		}
		if err != nil {
			return nil, err
		}
	}
	return r.dropEmpty(ctx, p, known)
}

var emptyRule = plaintext.Regexp(`(?m)^ +Seq: (\d{1,5}) rule: \d+\n +Installed: \S+ Reason: .*Invalid Src or Dst`)

// dropEmpty removes rules of the loaded policy p that pbrd reads as empty, from FRR and from known,
// and returns the rest of known. FRR up to 8.4 reads a rule with only a protocol and ports as
// empty, and then creates no rule of the whole policy.
func (r *router) dropEmpty(ctx context.Context, p policy, known []ruleCase) ([]ruleCase, error) {
	out, err := r.runVtysh(ctx, "show pbr map "+p.name)
	if err != nil {
		return nil, err
	}
	for _, m := range emptyRule().FindAllStringSubmatch(out, -1) {
		seq, _ := strconv.Atoi(m[1]) // five digits at most
		if err := r.configure(ctx, p.removeRuleCommand(seq)); err != nil {
			return nil, err
		}
		known = slices.DeleteFunc(known, func(c ruleCase) bool { return c.seq == seq })
	}
	return known, nil
}

// maxWrong is how many wrong rules a message shows.
const maxWrong = 10

// checkCases waits until the flows of all known rules match the file. After flowTimeout it adds a
// fault with the others to f. Else it adds facts: how many match, and how many of all are unknown.
func (r *router) checkCases(ctx context.Context, f *suite.Finding, p policy, file string, known []ruleCase, all int) error {
	var wrong []string
	_, said, err := r.flowsUntil(ctx, flowTimeout, func(flows []pbrFlow) bool {
		wrong = nil
		for _, c := range known {
			if why := c.describeMismatch(flowsOfRule(flows, p.port, c.seq)); why != "" {
				wrong = append(wrong, fmt.Sprintf("%s:%d: %s: %s", file, c.line, strings.Join(c.matches, "; "), why))
			}
		}
		return len(wrong) == 0
	})
	if err != nil {
		return err
	}
	if len(wrong) > 0 {
		saw := strings.Join(wrong[:min(len(wrong), maxWrong)], "\n")
		f.Expect(false, "what "+file+" says", fmt.Sprintf("%d of %d rules are not as they should be:\n%s\n%s", len(wrong), len(known), saw, plaintext.Clean(said, 2000)))
		return nil
	}
	f.AddFact(fmt.Sprintf("%d rules are as %s says", len(known), file))
	if n := all - len(known); n > 0 {
		f.AddFact(fmt.Sprintf("%d rules match what this FRR cannot, and were left out", n))
	}
	return nil
}

// flowsOfRule returns the flows of one rule.
func flowsOfRule(flows []pbrFlow, port string, seq int) []pbrFlow {
	return slices.DeleteFunc(slices.Clone(flows), func(f pbrFlow) bool { return f.iface != port || f.seq != seq })
}
