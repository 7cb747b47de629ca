//go:build mage

package main

import (
	"context"
	"os"

	"github.com/magefile/mage/mg"

	"slipway/flash/bfb"
	"slipway/flash/rshim"
)

// BFB works on BlueField boot streams.
type BFB mg.Namespace

// List prints the images in a boot stream, as mlx-mkbfb -d does, and the size of the
// trailing data.
//
// Example: "bfb:list bf-bundle.bfb -json".
func (BFB) List(file string,
	verbose *bool, // every field of the headers
	json *bool, // print them as JSON
) error {
	return bfb.Show(os.Stdout, file, given(verbose, false), given(json, false))
}

// Check proves each image in a boot stream by its checksum, and that none is missing.
//
// Example: "bfb:check bf-bundle.bfb".
func (BFB) Check(ctx context.Context, file string) error {
	return withSignals(ctx, func(ctx context.Context) error { return bfb.CheckFile(ctx, os.Stdout, file) })
}

// Make makes a boot stream: of single images, of other streams, or of both. It is byte for
// byte what mlx-mkbfb makes. bfb:list shows the names of images.
//
// Examples: "bfb:make out.bfb -images=bl2=bl2.bin,image=Image,boot-args==console=ttyAMA1";
// "bfb:make out.bfb -base=bf-bundle.bfb -images=boot-args-v1==quiet"; "bfb:make bf3.bfb
// -base=bf-bundle.bfb -for=2" for images that a BlueField-3 can use.
func (BFB) Make(ctx context.Context, out string,
	base *string, // one or two streams whose images are taken, with a comma between them
	images *string, // NAME[-vN]=FILE or NAME[-vN]==TEXT, with commas between them
	expert *bool, // in the order of -images, not in the usual one
	For *int, // leave out what hardware of this version (0 to 2) has no use for
	strip *int, // with -for: leave out only images of this version
	careless *bool, // with -for: also where no other image of the kind is left
) error {
	return withSignals(ctx, func(ctx context.Context) error {
		return bfb.MakeFile(ctx, os.Stdout, out, bfb.Wish{
			Bases: splitWords(given(base, "")), Parts: given(images, ""), Expert: given(expert, false),
			For: given(For, -1), Strip: given(strip, -1), Careless: given(careless, false),
		})
	})
}

// Extract writes each image of a boot stream to a file, and the trailing data to another.
// A damaged stream gives none.
//
// Examples: "bfb:extract bf-bundle.bfb"; "bfb:extract bf-bundle.bfb -names=image-v0,trailing -prefix=parts/".
func (BFB) Extract(ctx context.Context, file string,
	names *string, // only these, with commas between them, as bfb:list -json names them
	prefix *string, // what the files' names begin with; dump- if not given
) error {
	return withSignals(ctx, func(ctx context.Context) error {
		return bfb.ExtractFile(ctx, os.Stdout, file, given(prefix, "dump-"), splitWords(given(names, "")))
	})
}

// Config makes a bf.cfg that sets a password on the DPU, for flash -config. It asks for the
// password, or reads a line where its input is no terminal, and writes only its hash.
//
// Example: "bfb:config bf.cfg".
func (BFB) Config(ctx context.Context, file string,
	user *string, // whose password; ubuntu if not given
) error {
	return withSignals(ctx, func(ctx context.Context) error {
		return bfb.MakeConfig(ctx, os.Stdin, os.Stderr, file, given(user, "ubuntu"))
	})
}

// RShim looks at BlueField DPUs through their rshims. flash pushes boot streams.
type RShim mg.Namespace

// Show prints what the rshims of this machine say, and their DPUs' messages.
//
// Examples: "rshim:show"; "rshim:show /dev/rshim0 -json"; "rshim:show root@bmc:/dev/rshim0".
func (RShim) Show(ctx context.Context,
	device *string, // only this one, or one of another machine; all of this machine if not given
	json *bool, // print it as JSON
) error {
	return withSignals(ctx, func(ctx context.Context) error {
		return rshim.Show(ctx, os.Stdout, splitWords(given(device, "")), given(json, false))
	})
}

// Reset restarts a DPU, after it was confirmed. What runs on it ends without warning.
//
// Example: "rshim:reset /dev/rshim0 -yes=/dev/rshim0" for a script.
func (RShim) Reset(ctx context.Context, device string,
	yes *string, // the device's name, instead of being asked
) error {
	return withSignals(ctx, func(ctx context.Context) error {
		return rshim.Restart(ctx, os.Stdin, os.Stderr, device, given(yes, ""))
	})
}
