//go:build mage

package main

import (
	"context"
	"os"

	"github.com/magefile/mage/mg"

	"slipway/images"
)

// Layers works on the repositories that a Yocto board is built of.
type Layers mg.Namespace

// Checkout fetches a board's layers and checks out the commits that it names, below
// build/<board>/layers, and writes bitbake's conf folder. Files that you changed there are
// not touched, and it stops at commits of yours. build does the same first.
// SLIPWAY_LOCAL=oe=/src/oe,meta-x=/src/meta-x builds from these folders as they are.
//
// Example: "layers:checkout jetson-orin-nano-devkit".
func (Layers) Checkout(ctx context.Context, board string) error {
	return runFor(ctx, board, func(ctx context.Context, spec images.Spec) error {
		return images.CheckoutLayers(ctx, spec, options)
	})
}

// Lock pins the branches of a board's layers in the lock file beside its project file, at
// the commits of their checkouts or, without those, at their servers'. Pins stay.
//
// Examples: "layers:lock jetson-orin-nano-devkit"; "layers:lock jetson-orin-nano-devkit -update=meta-tegra".
func (Layers) Lock(ctx context.Context, board string,
	update *string, // repositories whose pins move to where their servers are now, with commas; -update alone moves all
) error {
	return runFor(ctx, board, func(ctx context.Context, spec images.Spec) error {
		return images.LockLayers(ctx, spec, options, splitWords(given(update, "")))
	})
}

// Dump prints a board's project file with all that it includes.
//
// Example: "layers:dump jetson-orin-nano-devkit".
func (Layers) Dump(ctx context.Context, board string,
	json *bool, // print it as JSON
) error {
	return runFor(ctx, board, func(ctx context.Context, spec images.Spec) error {
		return images.DumpLayers(ctx, os.Stdout, spec, options, given(json, false))
	})
}

// Status compares a board's checkouts with what its project file names, and asks no
// server.
//
// Example: "layers:status jetson-orin-nano-devkit".
func (Layers) Status(ctx context.Context, board string,
	json *bool, // print it as JSON
) error {
	return runFor(ctx, board, func(ctx context.Context, spec images.Spec) error {
		return images.LayerStatus(ctx, os.Stdout, spec, options, given(json, false))
	})
}

// Diff tells what moved since an older state of a board's project, with the
// commits' subjects. That state is a commit, branch or tag of this clone, or a
// project or lock file.
//
// Examples: "layers:diff jetson-orin-nano-devkit"; "layers:diff jetson-orin-nano-devkit -from=v1.0".
func (Layers) Diff(ctx context.Context, board string,
	from *string, // the older state; HEAD if not given, so what is not committed yet
	json *bool, // print it as JSON
) error {
	return runFor(ctx, board, func(ctx context.Context, spec images.Spec) error {
		return images.DiffLayers(ctx, os.Stdout, spec, options, given(from, "HEAD"), given(json, false))
	})
}

// Shell opens a shell where bitbake works on a board, or runs one program there.
// Its exit status is the shell's.
//
// Examples: "layers:shell jetson-orin-nano-devkit"; "layers:shell jetson-orin-nano-devkit -command='bitbake-layers show-layers'".
func (Layers) Shell(ctx context.Context, board string,
	command *string, // a program and its arguments; no shell looks at them
) error {
	var shell images.Shell
	err := runFor(ctx, board, func(ctx context.Context, spec images.Spec) (err error) {
		shell, err = images.NewShell(ctx, spec, options, given(command, ""))
		return err
	})
	return firstError(err, func() error { return shell.Become() })
}
