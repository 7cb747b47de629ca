package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"slipway/ci/dev/soak"
	"slipway/layers/localfile"
	"slipway/layers/run"
)

// hub measures hubs and stations as processes on loopback, with simulated boards that take no time.
// Beside them stand NATS alone, the same processes without a hub, and labgrid's coordinator.
var hub = area{rounds: 200, root: true, measure: measureHub, packages: []string{"mmdebstrap"}, variants: []variant{
	{name: "program"}, {name: "idle"}, {name: "latency"}, {name: "stations"}, {name: "engine"}, {name: "hand"}, {name: "labgrid"},
}}

// HubOptions are those of a bench of hubs, which the tests of magefiles/hubstest read.
type HubOptions struct {
	Dir, Slipway, Labgrid, Only string
	Jobs                        int // how many jobs the latency is measured with
}

// measureHub builds the program of users, and measures in namespaces, which end with all that it started.
func measureHub(ctx context.Context, s *session) error {
	o := HubOptions{Dir: s.dir, Slipway: filepath.Join(s.dir, "slipway"), Only: s.Only, Jobs: s.Rounds}
	build := run.Command{Argv: []string{"go", "build", "-trimpath", "-ldflags=-s -w", "-o", o.Slipway, "./magefiles/slipway"}, Env: []string{"CGO_ENABLED=0"}}
	err := run.Run(ctx, build)
	if err == nil && s.only.MatchString("labgrid") {
		o.Labgrid, err = makeLabgrid(ctx)
	}
	if err != nil {
		return err
	}
	return soak.InHubs(ctx, s.w, s.dir, "bench-hub", o)
}

// makeLabgrid returns a root file system of Debian testing with labgrid, which it makes once. It
// checks the signatures of the archive, but not its date: a mirror may have an old Release file.
func makeLabgrid(ctx context.Context) (string, error) {
	root, err := filepath.Abs("build/bench/labgrid")
	if err != nil || localfile.Exists(root) {
		return root, err
	}
	part := root + ".part"
	err = errors.Join(os.RemoveAll(part), run.Run(ctx, run.Command{Argv: []string{
		"mmdebstrap", "--quiet", "--variant=minbase", `--aptopt=Acquire::Check-Valid-Until "false"`, "--include=labgrid-coordinator,python3-labgrid", "testing", part,
	}}))
	if err != nil {
		return root, fmt.Errorf("make a Debian testing with labgrid: %w\nnext: go tool mage bench hub --only='program|idle|latency|stations|engine|hand'", err)
	}
	return root, os.Rename(part, root)
}
