//go:build mage

package main

import (
	"context"
	"os"

	"github.com/magefile/mage/mg"

	"slipway/images"
	"slipway/images/cache"
)

// Cache shares what bitbake made between machines.
type Cache mg.Namespace

// Serve lets other machines build from what was built and fetched on this one.
//
// It runs bitbake's own hash equivalence server and PR server, and a read-only server
// of sstate and downloads beside them, and prints the cache: line for the others. They
// can read all of it and get versions from the PR server; only builds on this machine
// add to it. There are no passwords and no encryption: listen where you trust the
// network. Ctrl-C ends all of it.
//
// Examples: "cache:serve" for this machine alone; "cache:serve -listen=:8600" for all
// that reach it; "cache:serve /srv/yocto -board=jetson-orin-nano-devkit".
func (Cache) Serve(ctx context.Context,
	dir *string, // folder with sstate-cache and downloads; build if not given
	board *string, // whose bitbake's servers run; the newest that is checked out if not given
	listen *string, // HOST:PORT of the files; the two ports above it are the other servers'
	json *bool, // print the state as JSON lines
) error {
	return withSignals(ctx, func(ctx context.Context) error {
		if name := given(board, ""); name != "" {
			if _, err := loadSpec(ctx, name); err != nil {
				return err
			}
		}
		return images.ServeCache(ctx, options, given(board, ""), cache.ServeOptions{
			Dir: given(dir, ""), Listen: given(listen, "127.0.0.1:8600"), JSON: given(json, false), Out: os.Stdout,
		})
	})
}

// Report says what a board's last build took from shared state, what it did not find
// there, and why, as far as that is known.
//
// Example: "cache:report jetson-orin-nano-devkit".
func (Cache) Report(ctx context.Context, board string,
	json *bool, // print it as JSON, with what was found too
) error {
	return runFor(ctx, board, func(ctx context.Context, spec images.Spec) error {
		return images.CacheReport(ctx, os.Stdout, spec, options, given(json, false))
	})
}
