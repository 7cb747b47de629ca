// Package offload proves with packets what the ports of a DPU do by themselves. Each
// check is a section of a suite: DPDK flow rules, FRR policy routing.
package offload

import (
	"slipway/ci/suite"
)

// init registers the sections flow and pbr of suites.
func init() {
	suite.Register(
		suite.Kind{Name: "flow", About: "a rule that DPDK's ports keep to, with packets that show it", Keys: []string{"port", "packets", "other-port", "other-packets", "all-fields", "any-protocol", "group", "transfer"}, Read: readFlow},
		suite.Kind{Name: "pbr", About: "policy based routing that FRR hands to the ports, with packets that show it", Keys: []string{
			"plugin", "daemons", "port", "packets", "other-port", "other-packets", "all-fields", "any-protocol", "wider", "group", "cases",
		}, Read: readPBR},
	)
}
