//go:build mage

package main

import (
	"context"
	"math/rand/v2"
	"os"
	"time"

	"slipway/ci/dev/bench"
	"slipway/ci/dev/soak"
	"slipway/ci/dev/source"
)

// Test installs what the tests lack and runs all of them, with one summary at the end.
//
// Examples: "test"; "test -only=TestSmoke"; "test -changed=main"; "test -short" without
// the virtual board; "test -race".
func Test(ctx context.Context,
	only *string, // only tests whose name matches this pattern
	short *bool, // leave out what takes minutes
	changed *string, // only packages that a change since this commit can reach, such as main
	race *bool, // all of them under the race detector; otherwise those that it does not slow down much
) error {
	options := source.TestOptions{Run: given(only, ""), Short: given(short, false), Changed: given(changed, ""), Race: given(race, false)}
	return withSignals(ctx, func(ctx context.Context) error { return source.Tests(ctx, os.Stdout, options) })
}

// Check looks at the code and rewrites nothing: format, vet, staticcheck, tidy
// modules, dead code, licences of dependencies, direction of imports.
func Check(ctx context.Context) error {
	return withSignals(ctx, func(ctx context.Context) error { return source.Check(ctx, os.Stdout) })
}

// Fmt formats the code and tidies the modules.
func Fmt(ctx context.Context) error { return withSignals(ctx, source.Format) }

// Fuzz runs every fuzz test for a while, and fails with the first input that breaks one.
//
// Example: "fuzz -each=5m".
func Fuzz(ctx context.Context,
	each *time.Duration, // how long each of them runs; 60s if not given
) error {
	return withSignals(ctx, func(ctx context.Context) error { return source.Fuzz(ctx, os.Stdout, given(each, time.Minute)) })
}

// Bench measures Slipway beside the tools it replaces, in one run: build, hook, flash,
// flashslow, deploy, fleet, layers, up or update. The last line holds the ratios as name=value.
//
// deploy, flash, flashslow, hook and layers need root; build needs another user, and SLIPWAY_BITBAKE, which
// names a git clone of bitbake. flash takes half an hour and an idle machine; -rounds,
// -only and -mib make a part of it, of flashslow or of deploy, to try.
//
// fleet has no peer: it sends 10 MB to 500 simulated boards, of which 5 % fail, and runs 20
// checks on each. update, which needs root, counts bytes on the wire while a virtual board
// is updated, beside rsync's; it takes ten minutes.
//
// Examples: "bench flash"; "bench flash -rounds=1 -mib=256 -only=raw"; "bench fleet -boards=100".
func Bench(ctx context.Context,
	area *string, // build, hook, flash, flashslow, deploy, fleet, layers, up or update
	rounds *int, // how often each is measured; 5 if not given
	only *string, // only what matches this pattern
	mib *int, // the size of the image
	boards *int, // how many fleet simulates; 500 if not given
) error {
	options := bench.Options{Rounds: given(rounds, 0), Only: given(only, ""), MiB: given(mib, 0), Boards: given(boards, 0)}
	return withSignals(ctx, func(ctx context.Context) error { return bench.Run(ctx, os.Stdout, given(area, ""), options) })
}

// Soak kills a command at random moments and runs it again: what it leaves in
// the end must always be the same. build needs SLIPWAY_BITBAKE, which names a git clone of
// bitbake, and a user who is not root. hook, which needs root, starts containers that get a
// board's files: none may fail, and nothing may be left of them. update updates a virtual
// board: with updates that must be refused or taken back, then with connections and power
// that are cut. An update takes minutes there. rules, which needs root, has FRR add and remove
// a thousand rules of policy based routing at a time, on each rig (rig:up): ports and
// kernel may keep none, and zebra may not grow. All of that is software. mutations, which
// needs root, builds faults into the rigs' drivers and FRR, one at a time: a suite must find
// each. One that was found is tried again when its patch, the rig or the checks' source
// changes. tests runs the tests that write a program or wait for a time, beside one busy loop per
// processor. A stopped run of mutations or tests goes on where it was.
//
// Examples: "soak layers"; "soak layers -kills=200 -seed=7"; "soak hook"; "soak update -kills=30"; "soak rules -rounds=20"; "soak mutations -only=swflow"; "soak tests -only=slipway/flash".
func Soak(ctx context.Context,
	area *string, // build, flash, hook, layers, mutations, rules, tests or update
	kills *int, // how many; 50 if not given
	seed *int, // where the moments come from; one that is printed if not given
	containers *int, // how many hook starts one after another; 2000 if not given
	rounds *int, // how often update goes through its updates that nobody disturbs, and rules adds and removes (2 at least), and tests runs each; 1, 5 and 200 if not given
	each *time.Duration, // how long tests goes on with each of them; until it had its rounds if not given
	only *string, // only mutations whose names match this pattern, or tests "package name"
) error {
	options := soak.Options{Kills: given(kills, 50), Seed: uint64(given(seed, rand.Int())), Containers: given(containers, 2000), Rounds: given(rounds, 0), Each: given(each, 0), Only: given(only, "")}
	return withSignals(ctx, func(ctx context.Context) error { return soak.Run(ctx, os.Stdout, given(area, ""), options) })
}
