//go:build mage

package main

import (
	"context"
	"os"

	"github.com/magefile/mage/mg"

	"slipway/ci"
	"slipway/images"
)

// Virt is for people who want to look around on a virtual board.
type Virt mg.Namespace

// Start switches the virtual board on, with its disk build/<board>/machine/disk.img.
//
// Examples: "virt:start"; "virt:start virt-arm64".
func (Virt) Start(ctx context.Context,
	board *string, // which virtual board; the default one if not given
) error {
	return runFor(ctx, given(board, ""), func(ctx context.Context, spec images.Spec) error {
		return ci.StartVirtual(ctx, os.Stdout, options, spec)
	})
}

// Stop shuts the virtual board down.
//
// Examples: "virt:stop"; "virt:stop -now" when it hangs.
func (Virt) Stop(ctx context.Context,
	board *string, // which virtual board; the default one if not given
	now *bool, // pull the plug instead
) error {
	return runFor(ctx, given(board, ""), func(ctx context.Context, spec images.Spec) error {
		return ci.StopVirtual(ctx, os.Stdout, options, spec, given(now, false))
	})
}

// SSH logs in on the virtual board. Leave with "exit".
//
// Example: "virt:ssh virt-arm64".
func (Virt) SSH(ctx context.Context,
	board *string, // which virtual board; the default one if not given
) error {
	spec, err := loadSpec(ctx, given(board, ""))
	return withStatus(firstError(err, func() error { return ci.SSHVirtual(options, spec) }))
}

// Console joins the terminal to the virtual board's serial line. Leave with Ctrl-].
//
// Example: "virt:console virt-arm64".
func (Virt) Console(ctx context.Context,
	board *string, // which virtual board; the default one if not given
) error {
	return runFor(ctx, given(board, ""), func(ctx context.Context, spec images.Spec) error {
		return ci.ConsoleVirtual(ctx, os.Stdin, os.Stdout, options, spec)
	})
}
