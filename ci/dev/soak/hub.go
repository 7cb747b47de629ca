package soak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"slipway/layers/run"
)

// HubOptions are those of a soak of hubs, which the tests of magefiles/hubs read.
type HubOptions struct {
	Dir      string
	Hubs     int
	Stations int
	Boards   int // of each station
	Rounds   int
	Seed     uint64
	Part     string
}

// Hub breaks hubs, stations and links while they do rollouts over simulated boards. Then boards, hubs
// and audit must agree. dir is an empty folder.
func Hub(ctx context.Context, w io.Writer, dir string, opt Options) error {
	return InHubs(ctx, w, dir, "soak-hub", HubOptions{dir, opt.Hubs, opt.Stations, opt.Boards, opt.Rounds, opt.Seed, opt.Part})
}

// InHubs builds the tests of magefiles/hubs, which are slipway with simulated boards too, and runs a word
// of theirs with options as JSON. It needs Slipway's clone, as the folder that this runs in.
func InHubs(ctx context.Context, w io.Writer, dir, word string, options any) error {
	program := filepath.Join(dir, "hubs.test")
	if err := run.Run(ctx, run.Command{Argv: []string{"go", "test", "-c", "-o", program, "./magefiles/hubs"}}); err != nil {
		return err
	}
	data, err := json.Marshal(options)
	if err != nil {
		return err
	}
	return InNamespaces(ctx, w, program, word, string(data))
}

// InNamespaces runs a program in new pid, mount and network namespaces, which end with ctx or with this
// process, also if that is killed. It needs root.
func InNamespaces(ctx context.Context, w io.Writer, argv ...string) error {
	if os.Geteuid() != 0 {
		return errors.New("it makes network namespaces: it needs root")
	}
	return run.Run(ctx, run.Command{
		Argv: append([]string{"unshare", "--net", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "sh", "-c", `ip link set lo up && exec "$@"`, "sh"}, argv...),
		Line: func(line string) { fmt.Fprintln(w, line) },
	})
}
