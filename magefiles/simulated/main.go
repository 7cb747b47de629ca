// Simulated is slipway whose "fleet smoke" simulates boards that are folders. Soaks and benchmarks of
// hubs run it.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"

	"slipway/ci/dev/bench"
	"slipway/ci/dev/lab"
	"slipway/ci/dev/soak"
	"slipway/magefiles/commands"
)

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	if dir, simulated := lab.SimulatedBoard(args); simulated {
		return lab.Work(dir)
	}
	inside := map[string]func(context.Context, io.Writer, string) error{soak.HubInside: soak.RunHubInside, bench.HubInside: bench.RunHubInside}
	if len(args) < 2 || inside[args[0]] == nil {
		return commands.Main(args, os.Stderr)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := inside[args[0]](ctx, os.Stdout, args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		return 1
	}
	return 0
}
