package offload

import (
	"encoding/json"
	"strconv"

	"slipway/layers/plaintext"
)

// docaDriver is used as the name of the DPDK driver. DOCA Flow always uses the hardware.
const docaDriver = "doca_flow"

// parseDOCAFlows parses the output of "show dplane doca pbr flow json", up to maxFlows rules. The
// list includes rules that only the kernel applies, with a reason. Invalid JSON has none.
func parseDOCAFlows(text string) (all []pbrFlow) {
	var said struct {
		Flows []struct {
			In      string
			Seq     int
			DstPort uint16
			Packets int64
			Bytes   int64
			Refused string
		}
	}
	if json.Unmarshal([]byte(text), &said) != nil {
		return nil
	}
	for _, f := range said.Flows[:min(len(said.Flows), maxFlows)] {
		flow := pbrFlow{iface: plaintext.Clean(f.In, 64), seq: f.Seq, refused: plaintext.Clean(f.Refused, maxReason), counted: f.Refused == "" && f.Packets >= 0, tally: tally{f.Packets, f.Bytes}}
		if f.DstPort > 0 {
			flow.port = strconv.Itoa(int(f.DstPort))
		}
		all = append(all, flow)
	}
	return all
}
