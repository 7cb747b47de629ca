// Package hubs has only tests. Its test program is slipway whose "fleet smoke" simulates boards that are
// folders. It runs hubs and stations as processes, breaks them, and measures them: "soak hub" and
// "bench hub" start it.
package hubstest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"testing"

	"slipway/images/statetest"
	"slipway/magefiles/commands"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") {
		os.Exit(program(os.Args[1:]))
	}
	os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE")) // else each process under -race ends a second late
	statetest.Main(m)
}

// program is slipway, with words of its own.
func program(args []string) int {
	if dir, simulated := simulatedBoard(args); simulated {
		return workOn(dir)
	}
	work := map[string]func(context.Context, io.Writer, []byte) error{"soak-hub": soakHubs, "bench-hub": benchHubs}[args[0]]
	if work == nil {
		return commands.Main(args, os.Stderr)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := work(ctx, os.Stdout, []byte(args[1])); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		return 1
	}
	return 0
}

func decode[T any](data []byte) (v T, err error) {
	err = json.Unmarshal(data, &v)
	return v, err
}
