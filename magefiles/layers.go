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

// Checkout fetches a board's layers and checks out the commits that it names.
//
// Example: "layers:checkout jetson-orin-nano-devkit".
func (Layers) Checkout(ctx context.Context, board string) error {
	return runFor(ctx, board, func(ctx context.Context, spec images.Spec) error {
		return images.CheckoutLayers(ctx, spec, options)
	})
}

// Lock pins the branches of a board's layers to where they are now.
//
// Example: "layers:lock jetson-orin-nano-devkit".
func (Layers) Lock(ctx context.Context, board string) error {
	return runFor(ctx, board, func(ctx context.Context, spec images.Spec) error {
		return images.LockLayers(ctx, spec, options)
	})
}

// Dump prints a board's project file with all that it includes.
//
// Example: "layers:dump jetson-orin-nano-devkit".
func (Layers) Dump(ctx context.Context, board string) error {
	return runFor(ctx, board, func(ctx context.Context, spec images.Spec) error {
		return images.DumpLayers(ctx, os.Stdout, spec, options)
	})
}

// Status compares a board's checkouts with what its project file names.
//
// Example: "layers:status jetson-orin-nano-devkit".
func (Layers) Status(ctx context.Context, board string,
	json *bool, // print it as JSON
) error {
	return runFor(ctx, board, func(ctx context.Context, spec images.Spec) error {
		return images.LayerStatus(ctx, os.Stdout, spec, options, given(json, false))
	})
}
