package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"slipway/ci/dev/tinyboard"
	"slipway/layers/host"
	"slipway/layers/run"
)

// hookSize is the number of files of the bench's board: about as many as an R35 board has.
var hookSize = tinyboard.Size{Libraries: 200, Links: 60, Devices: 20, Folders: 5}

const hookRounds = 30

// Hook measures the cost of adding the board's files to a container: the life of a runc
// container (create, start, exit, delete) on a fresh overlay, in memory and on a disk. It
// compares a container without the files, each method of Slipway's and NVIDIA's, and a hook
// that does only what every hook must do. Then it measures our hook's process alone. It
// needs root, runc, and once the network, for NVIDIA's programs.
func Hook(ctx context.Context, w io.Writer) error {
	if err := host.Ensure(ctx, w, "build/bench/apt.log", tinyboard.Packages...); err != nil {
		return err
	}
	if err := tinyboard.Needs(); err != nil {
		return err
	}
	b, err := newHookBench(ctx)
	if err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	return tinyboard.In(filepath.Join(b.dir, "memory"), b.ours, hookSize, func(board *tinyboard.Board) error {
		b.board = board
		return b.measureMedia(ctx, w)
	})
}

// hookBench is a board, with the programs that add its files to containers.
type hookBench struct {
	dir   string
	board *tinyboard.Board

	ours, floor, stopwatch string
	peers                  string // the folder of NVIDIA's programs
	cache                  string // an ld cache with the board's libraries
}

func newHookBench(ctx context.Context) (*hookBench, error) {
	root, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	programs := filepath.Join(root, "build/bench")
	b := &hookBench{
		ours: filepath.Join(programs, "slipway-hook"), floor: filepath.Join(programs, "floor"),
		stopwatch: filepath.Join(programs, "stopwatch"), peers: filepath.Join(root, "build/peers"),
	}
	err = errors.Join(
		tinyboard.BuildHook(ctx, b.ours),
		run.Run(ctx, run.Command{
			Argv: []string{"go", "build", "-trimpath", "-ldflags=-s -w", "-o", programs + "/", "./ci/dev/bench/floor", "./ci/dev/bench/stopwatch"},
			Env:  []string{"CGO_ENABLED=0"},
		}),
		buildPeers(ctx, b.peers),
	)
	if err != nil {
		return nil, err
	}
	b.dir, err = os.MkdirTemp(filepath.Join(root, "build"), "bench-hook-")
	return b, err
}

func (b *hookBench) measureMedia(ctx context.Context, w io.Writer) error {
	media, err := b.openMedia(ctx)
	if err != nil {
		return err
	}
	defer media.close()
	methods, err := b.listMethods(ctx)
	if err != nil {
		return err
	}
	var variants []Variant
	for _, m := range media {
		for _, method := range methods {
			if err := b.checkContainer(ctx, m, method); err != nil {
				return fmt.Errorf("%s, %s: %w", m.name, method.name, err)
			}
			variants = append(variants, b.newVariant(m, method))
		}
	}
	rows, err := MeasureShuffled(ctx, hookRounds, variants...)
	if err != nil {
		return err
	}
	hook, err := b.measureAlone(ctx, media[0])
	if err != nil {
		return err
	}
	figures, err := hook.listRatios(b.ours)
	if err != nil {
		return err
	}
	return PrintTable(w, append(rows, hook.row), append(addedByMethods(media, methods, rows), figures...)...)
}

// addedByMethods returns what each of our methods adds to plain runc, relative to what the
// peer and the floor add, in elapsed time and in processor time.
func addedByMethods(media media, methods []hookMethod, rows []Row) []Ratio {
	var all []Ratio
	for i, m := range media {
		of := map[string]Row{}
		for j, method := range methods {
			of[method.key] = rows[i*len(methods)+j]
		}
		over := func(key, other string) {
			plain, a, b := of["plain"], of[key], of[other]
			name := "_" + key + "_over_" + other + "_" + m.name
			wall := float64(addedTime(a, plain)) / float64(addedTime(b, plain))
			cpu := float64(medianAdded(a.CPU, plain.CPU)) / float64(medianAdded(b.CPU, plain.CPU))
			all = append(all, Ratio{"added" + name, wall}, Ratio{"cpu" + name, cpu})
		}
		for _, method := range methods {
			if method.ours {
				over(method.key, "peer")
				over(method.key, "floor")
			}
		}
		over("wrapper", "wrapper_floor")
		over("peer_cdi", "peer")
	}
	return all
}
