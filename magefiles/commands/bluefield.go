package commands

import (
	"context"
	"errors"

	"slipway/flash/bfb"
	"slipway/flash/rshim"
)

func bfbListCommand() *Command {
	c := New("list FILE", "Print the images in a boot stream, and the size of the trailing data")
	c.Long = `The list is that of mlx-mkbfb -d.`
	c.Example = `slipway bfb list bf-bundle.bfb --json`
	asJSON := c.Switch("json", "print them as JSON")
	c.Run = func(_ context.Context, words []string) error {
		return bfb.Show(stdout, words[0], *asJSON)
	}
	return c
}

func bfbCheckCommand() *Command {
	c := New("check FILE", "Prove each image in a boot stream by its checksum, and that none is missing")
	c.Example = `slipway bfb check bf-bundle.bfb`
	c.RunSignalled(func(ctx context.Context, words []string) error {
		file := words[0]
		return bfb.CheckFile(ctx, stdout, file)
	})
	return c
}

// bfbMakeCommand returns the command bfb make, which makes a BlueField boot stream of images.
func bfbMakeCommand() *Command {
	c := New("make OUT", "Make a boot stream: of single images, of other streams, or of both")
	c.Long = `It is byte for byte what mlx-mkbfb makes. bfb list shows the names of images.`
	c.Example = `slipway bfb make out.bfb --images=bl2=bl2.bin,image=Image,boot-args==console=ttyAMA1
slipway bfb make out.bfb --base=bf-bundle.bfb --images=boot-args-v1==quiet
slipway bfb make bf3.bfb --base=bf-bundle.bfb --for=2  # for images that a BlueField-3 can use`
	base := c.Words("base", "take the images of this stream, or of two with a comma between them")
	images := c.Text("images=PARTS", "", "NAME[-vN]=FILE or NAME[-vN]==TEXT, with commas between them")
	expert := c.Switch("expert", "keep the order of --images")
	hardware := c.Number("for", -1, 0, "leave out images that hardware of this version (0 to 2) does not use")
	c.check = func([]string) error {
		if !c.given("base") && !c.given("images") {
			return errors.New("--base or --images is missing")
		}
		return nil
	}
	c.RunSignalled(func(ctx context.Context, words []string) error {
		out := words[0]
		r := bfb.Recipe{Bases: *base, Expert: *expert}
		if *hardware >= 0 {
			r.Hardware = hardware
		}
		return bfb.MakeFile(ctx, stdout, out, r, *images)
	})
	return c
}

func bfbExtractCommand() *Command {
	c := New("extract FILE", "Write each image of a boot stream to a file, and the trailing data to another")
	c.Long = `From a damaged stream it writes no file.`
	c.Example = `slipway bfb extract bf-bundle.bfb
slipway bfb extract bf-bundle.bfb --names=image-v0,trailing --prefix=parts/`
	names := c.Words("names", "only these images, with commas between them; bfb list --json prints the names")
	prefix := c.Text("prefix=PREFIX", "dump-", "the beginning of the files' names; dump- if not given")
	c.RunSignalled(func(ctx context.Context, words []string) error {
		file := words[0]
		return bfb.ExtractFile(ctx, stdout, file, *prefix, *names)
	})
	return c
}

// rshimShowCommand returns the command rshim show, which prints the state of DPUs' rshims.
func rshimShowCommand() *Command {
	c := New("show [DEVICE[,DEVICE...]]", "Print the state of this machine's rshims, and their DPUs' messages")
	c.Long = `DEVICE is an rshim of this machine, or of another one. Without it, Slipway shows all of this
machine.`
	c.Example = `slipway rshim show
slipway rshim show /dev/rshim0 --json
slipway rshim show root@bmc:/dev/rshim0`
	asJSON := c.Switch("json", "print it as JSON")
	c.RunSignalled(func(ctx context.Context, words []string) error {
		device := words[0]
		return rshim.Show(ctx, stdout, splitWords(device), *asJSON)
	})
	return c
}
