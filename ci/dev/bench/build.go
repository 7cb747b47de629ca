package bench

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"slipway/ci/dev/tinyclone"
	"slipway/images/bitbake"
	"slipway/images/cache"
	"slipway/layers/lazy"
	"slipway/layers/run"
)

// The recipes whose tasks bitbake finds done: about as many tasks as a small image has.
const (
	benchRecipes  = 800
	benchImage    = "bench-image"
	buildRounds   = 5
	recipeOfBench = "SUMMARY = \"recipe %d\"\ndo_fetch[noexec] = \"1\"\ndo_compile[noexec] = \"1\"\ndo_share[noexec] = \"1\"\ndo_deploy[noexec] = \"1\"\n"
)

// Build measures a build that finds all tasks done beside the same call of bitbake alone,
// over a layer of many small recipes. SLIPWAY_BITBAKE names bitbake's clone.
func Build(ctx context.Context, w io.Writer) error {
	source, err := tinyclone.Source()
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return keepOnFailure(ctx, "bench-build-", func(dir string) error {
		clone, err := tinyclone.Make(ctx, dir, source, benchImage)
		if err != nil {
			return err
		}
		if err := addRecipes(clone.Layer); err != nil {
			return err
		}
		tree := bitbake.Tree{
			Dir: clone.Built, Build: filepath.Join(clone.Built, "bitbake"), Programs: filepath.Join(clone.Built, "layers/bitbake/bin"),
		}
		rows, err := measureBuild(ctx, clone, tree, benchImage, self)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%d recipes, %d tasks, all done before\n", benchRecipes, 4*benchRecipes)
		fmt.Fprintf(w, "slipway adds %s to a round, of which the event log %s\n", addedTime(rows[0], rows[1]).Round(time.Millisecond), addedTime(rows[2], rows[1]).Round(time.Millisecond))
		return PrintTable(w, rows, buildRatios(rows)...)
	})
}

func buildRatios(rows []Row) []Ratio {
	outside := 100 * float64(rows[3].Median()) / float64(rows[1].Median())
	return []Ratio{
		TimeRatio("ours_over_bitbake", rows[0], rows[1]), TimeRatio("ours_over_bitbake_with_events", rows[0], rows[2]),
		{"outside_of_bitbake_percent", outside},
	}
}

// measureBuild runs bitbake with the environment that slipway uses, so that its cache of
// recipes serves all variants. Every run starts a server of its own, which ends with it.
// bitbake writes the event log, so the cost of that is measured separately. bitbake's own
// times differ by more than slipway adds, so the last row is the time that slipway spends
// outside bitbake.
func measureBuild(ctx context.Context, clone tinyclone.Clone, tree bitbake.Tree, target, self string) ([]Row, error) {
	dir, at := clone.Dir, clone.Built
	slipway := run.Command{Argv: []string{self, "build", clone.Board}, Dir: dir, Env: []string{cache.Environment + "=off"}}
	alone := tree.Command("bitbake", "-c", "build", "--", target)
	alone.Log = filepath.Join(dir, "bitbake.log")
	logged, events := alone, filepath.Join(dir, "events.json")
	logged.Env = append(slices.Clip(alone.Env), "BBEVENTLOG="+events)
	outside := Row{Name: "slipway build, outside of bitbake"}
	build := runCached(slipway, tree.Log())
	rows, err := Measure(
		ctx, buildRounds,
		Variant{"slipway build", nil, func(ctx context.Context) error {
			began := time.Now()
			if err := build(ctx); err != nil {
				return err
			}
			took := time.Since(began)
			rec, err := bitbake.Open(at)
			outside.Times = append(outside.Times, took-rec.Took())
			return err
		}},
		Variant{"bitbake", nil, runCached(alone, alone.Log)},
		Variant{"bitbake with an event log", func(context.Context) error { return os.RemoveAll(events) }, runCached(logged, logged.Log)},
	)
	if err != nil {
		return nil, err
	}
	outside.Times = outside.Times[1:] // the first round is not counted
	return append(rows, outside), nil
}

var readAgain = lazy.Regexp(`cached, [1-9][0-9]* parsed\)`)

// runCached returns a command in which bitbake parses no recipe after the first run. If it
// does, the runs' environments differ, and the figures are worthless.
func runCached(c run.Command, log string) func(context.Context) error {
	first := true
	return func(ctx context.Context) error {
		if err := run.Run(ctx, c); err != nil || first {
			first = false
			return err
		}
		text, err := os.ReadFile(log)
		if err == nil && readAgain().Match(text) {
			return fmt.Errorf("%s: bitbake read recipes that it had read before; another bitbake or setting changed its cache", log)
		}
		return err
	}
}

// addedTime returns the median of how much longer each round of a took than that of b.
func addedTime(a, b Row) time.Duration { return medianAdded(a.Times, b.Times) }

func medianAdded(a, b []time.Duration) time.Duration {
	d := make([]time.Duration, len(a))
	for i := range a {
		d[i] = a[i] - b[i]
	}
	return median(d)
}

// addRecipes adds many recipes to a layer, and an image that depends on all of them.
func addRecipes(layer string) error {
	var all strings.Builder
	for i := range benchRecipes {
		name := filepath.Join(layer, "recipes", fmt.Sprintf("bench%d.bb", i))
		if err := os.WriteFile(name, fmt.Appendf(nil, recipeOfBench, i), 0o644); err != nil {
			return err
		}
		fmt.Fprintf(&all, "bench%d:do_deploy ", i)
	}
	image, err := os.ReadFile(filepath.Join(layer, "recipes/tiny-image.bb"))
	if err != nil {
		return err
	}
	image = fmt.Appendf(image, "do_compile[depends] += %q\n", all.String())
	return os.WriteFile(filepath.Join(layer, "recipes", benchImage+".bb"), image, 0o644)
}
