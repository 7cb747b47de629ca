// Package offload proves what a DPU's ports do: rules of DPDK and FRR with packets that
// show them, virtual functions, steering, inference. Its checks are sections of a suite.
package ci

func init() {
	register(
		kind{name: "flow", about: "a rule that DPDK's ports keep to, with packets that show it", keys: []string{"port", "packets", "other-port", "other-packets", "all-fields", "any-protocol", "group", "transfer"}, read: readFlow},
		kind{name: "flow-rate", about: "how fast DPDK's ports take rules, by dpdk-test-flow-perf", keys: []string{"rules", "min-inserted", "min-removed", "within"}, read: readFlowRate},
		kind{name: "pbr", about: "policy based routing that FRR hands to the ports, with packets that show it", keys: []string{
			"plugin", "daemons", "port", "packets", "other-port", "other-packets", "all-fields", "any-protocol", "rules", "rounds", "max-growth", "wider", "group", "cases",
		}, read: readPBR},
		kind{name: "steering", about: "a rule that an mlx5 device says it holds", keys: []string{"process", "port", "file", "match", "actions", "hardware"}, read: readSteering},
		kind{name: "sriov", about: "virtual functions, their representors and the switch's mode", keys: []string{"pf", "vfs", "mode"}, read: readSRIOV},
		kind{name: "mldev", about: "DPDK's inference, by dpdk-test-mldev", keys: []string{"test", "repetitions", "tolerance", "wrong", "max-latency", "min-throughput", "within"}, read: readMldev},
	)
}
