package offload

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"slipway/ci/report"
	"slipway/ci/suite"
	"slipway/flash/target"
	"slipway/layers/lazy"
)

// flowRate is the check of how fast the ports insert and delete rules, by
// dpdk-test-flow-perf.
type flowRate struct {
	rules             int64
	inserted, removed suite.Limits
}

func readFlowRate(e *suite.Entry) suite.Probe {
	e.Limit = 5 * time.Minute
	r := flowRate{rules: e.Number("rules", 1000, 1, maxRateRules)}
	r.inserted, r.removed = suite.Limits{Min: e.Decimal("min-inserted")}, suite.Limits{Min: e.Decimal("min-removed")}
	r.inserted.Within = e.Percent("within")
	r.removed.Within = r.inserted.Within
	return r
}

const maxRateRules = 1_000_000

// Alone returns true because DPDK uses the ports exclusively, and other checks would slow
// it down.
func (flowRate) Alone() bool { return true }

func (flowRate) Next() string {
	return "on the board: dpdk-test-flow-perf with the arguments of eal in board.yml, -- and those that the check ran it with"
}

func (c flowRate) Inspect(ctx context.Context, s *suite.Session) (f suite.Finding, err error) {
	for _, program := range []string{"dpdk-testpmd", rateProgram} {
		if err := wantDPU(ctx, s, program); err != nil {
			return f, err
		}
	}
	err = withTestpmd(ctx, s, s.DPU, func(pmd *testpmd) error { // dpdk-test-flow-perf does not name the driver
		_, err := reportDrivers(&f, pmd, s.DPU)
		return err
	})
	if err != nil {
		return f, err
	}
	r, err := s.Board.Run(ctx, c.argv(s.DPU.EAL)...)
	if err != nil {
		return f, err
	}
	c.checkRates(&f, r)
	return f, nil
}

// Metrics returns the names of the check's metrics.
func (flowRate) Metrics() []string { return []string{"rules inserted", "rules removed"} }

const rateProgram = "dpdk-test-flow-perf"

// argv returns a command line for rules like those of the check flow on port 0, each with
// another source.
func (c flowRate) argv(eal []string) []string {
	rules := strconv.FormatInt(c.rules, 10)
	return slices.Concat([]string{rateProgram}, eal, []string{
		"--", "--portmask=1", "--rxq=1", "--txq=1", "--total-mbuf-count=2048",
		"--ingress", "--transfer", "--ether", "--ipv4", "--udp",
		"--dec-ttl", "--set-src-mac", "--set-dst-mac", "--port-id=1", "--count",
		"--rules-count=" + rules, "--rules-batch=" + rules, "--deletion-rate",
	})
}

func (c flowRate) checkRates(f *suite.Finding, r target.Result) {
	out := string(r.Stdout)
	inserted, removed := oneNumber(rulesInserted(), out), oneNumber(rulesRemoved(), out)
	if r.Status != 0 || inserted == nil || removed == nil {
		f.Expect(false, fmt.Sprintf("the rates of %d rules", c.rules), suite.DescribeResult(r))
		return
	}
	f.AddFact(fmt.Sprintf("%d rules made and removed", c.rules))
	c.inserted.CheckMetric(f, report.Metric{Name: "rules inserted", Unit: "rules/s", Value: *inserted * 1000})
	c.removed.CheckMetric(f, report.Metric{Name: "rules removed", Unit: "rules/s", Value: *removed * 1000})
}

var (
	rulesInserted = lazy.Regexp(`(?m)^:: Port 0 :: Core \d{1,3} :: Rules insertion rate -> (\d{1,12}\.\d{1,9}) K Rule/Sec\s*$`)
	rulesRemoved  = lazy.Regexp(`(?m)^:: Port 0 :: Core \d{1,3} :: Rules deletion rate -> (\d{1,12}\.\d{1,9}) K Rule/Sec\s*$`)
)
