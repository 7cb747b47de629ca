//go:build mage

package main

import (
	"context"
	"os"
	"time"

	"slipway/ci"
	"slipway/ci/bench"
)

// Test installs what the tests lack and runs all of them, with one summary at the end.
//
//	test
//	test -run=TestSmoke
func Test(ctx context.Context,
	run *string, // only tests whose name matches this pattern
) error {
	return runTests(ctx, ci.TestOptions{Run: given(run, "")})
}

func runTests(ctx context.Context, opt ci.TestOptions) error {
	return run(ctx, func(ctx context.Context) error { return ci.Tests(ctx, os.Stdout, opt) })
}

// Check looks at the code and rewrites nothing: format, vet, staticcheck, tidy
// modules, dead code, licences of dependencies, direction of imports.
func Check(ctx context.Context) error {
	return run(ctx, func(ctx context.Context) error { return ci.Check(ctx, os.Stdout) })
}

// Fmt formats the code and tidies the modules.
func Fmt(ctx context.Context) error { return run(ctx, ci.Format) }

// Fuzz runs every fuzz test for a while, and fails with the first input that breaks one.
//
//	fuzz
//	fuzz -each=5m
func Fuzz(ctx context.Context,
	each *time.Duration, // how long; 60s if not given
) error {
	return run(ctx, func(ctx context.Context) error { return ci.Fuzz(ctx, os.Stdout, given(each, time.Minute)) })
}

// Bench measures Slipway beside the tools it replaces, in one run: hook, flash,
// deploy, layers or up. The last line holds the ratios as name=value.
//
//	bench flash
func Bench(ctx context.Context,
	area *string, // hook, flash, deploy, layers or up
) error {
	return run(ctx, func(ctx context.Context) error { return bench.Run(ctx, os.Stdout, given(area, "")) })
}
