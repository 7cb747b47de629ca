package rig

import (
	"context"
	_ "embed"
	"fmt"
	"strings"

	"slipway/images"
	"slipway/layers/run"
)

// portsScript creates the ports, the places behind them and the links between. The package
// dpu-ports of layers/meta-slipway-isar has it too.
//
//go:embed ports.sh
var portsScript string

// createNetwork runs the script in the namespaces.
func (m *namespaces) createNetwork(ctx context.Context, r images.Rig) error {
	return m.runProgram(ctx, run.Command{
		Argv: []string{"sh", "-c", portsScript, "ports.sh", "/dev/stdin"}, Stdin: strings.NewReader(listPorts(r)),
	})
}

// listPorts returns the script's input.
func listPorts(r images.Rig) string {
	var list strings.Builder
	for _, p := range r.Ports {
		fmt.Fprintln(&list, "port", p.Name, p.Address)
	}
	for _, p := range r.Places {
		fmt.Fprintln(&list, "place", p.Name, p.Port, p.Address)
	}
	return list.String()
}
