package offload

import (
	"strings"
	"testing"

	"slipway/ci/report"
	"slipway/ci/suite/suitetest"
	"slipway/images"
)

// ratesSaid is the part of dpdk-test-flow-perf 22.11's output that the check reads.
const ratesSaid = ":: Flow -> ingress / transfer / end_flow\n:: Port 0 :: Core 0 :: Rules insertion rate -> 812.250000 K Rule/Sec\n" +
	":: Port 0 :: Core 0 :: The time for creating 1000 in rules 0.001231 seconds\n:: Port 0 :: Core 0 :: Rules deletion rate -> 1024.500000 K Rule/Sec\n"

func TestFlowRate(t *testing.T) {
	const asked = "dpdk-test-flow-perf --no-huge --vdev=net_swflow0,iface=pf0vf0 -- --portmask=1 "
	for _, tt := range []struct {
		name, suite, driver, fault, says string
		spec                             *images.DPU
		want                             string
		proves                           report.Proof
	}{
		{"in software", "flow-rate: {rates: {}}", "net_swflow", "", ratesSaid, &simulatedSpec, "passed: port 0 pf0vf0 is net_swflow, port 1 p0 is net_swflow; 1000 rules made and removed; rules inserted 812250 rules/s; rules removed 1024500 rules/s", report.ProvesSoftware},
		{"in hardware", "flow-rate: {rates: {rules: 10, min-inserted: 1000}}", "mlx5_pci", "", ratesSaid, &simulatedSpec, "passed: port 0 pf0vf0 is mlx5_pci, port 1 p0 is mlx5_pci; 10 rules made and removed", report.ProvesHardware},
		{"too slow", "flow-rate: {rates: {min-inserted: 900000}}", "mlx5_pci", "", ratesSaid, &simulatedSpec, "failed: rules inserted 812250 rules/s", ""},
		{"it fails", "flow-rate: {rates: {}}", "mlx5_pci", "", "exit 1\n" + ratesSaid, &simulatedSpec, "failed: exit status 1", ""},
		{"no rates", "flow-rate: {rates: {}}", "mlx5_pci", "", ":: Port 0 :: Core 0 :: Rules insertion rate -> inf K Rule/Sec\n", &simulatedSpec, "failed: exit status 0", ""},
		{"no program", "flow-rate: {rates: {}}", "mlx5_pci", "no dpdk-test-flow-perf", "", &simulatedSpec, "skipped: the board lacks what it needs: it has no program dpdk-test-flow-perf", ""},
		{"no section", "flow-rate: {rates: {}}", "", "", "", nil, "skipped: the board's board.yml has no section dpu", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := &simulatedDPU{driver: tt.driver, faults: map[string]bool{tt.fault: true}, recorded: suitetest.Recorded{"true": "", asked: tt.says}}
			r := d.runCheck(t, tt.spec, tt.suite)
			if got := suitetest.FormatResult(r); !strings.HasPrefix(got, tt.want) || r.Proves != tt.proves {
				t.Errorf("proves %q: %s\nwant %q: %s", r.Proves, got, tt.proves, tt.want)
			}
		})
	}
}
