package commands

import (
	"context"

	"slipway/flash/source"
	"slipway/images/bmap"
)

func bmapCommand() *Command {
	c := New("bmap IMAGE", "Write the block map of an image beside it, as IMAGE.bmap")
	c.Long = `The image is plain, or packed in any form that flash takes. The digests are those of the
unpacked image. bmaptool takes these maps too.`
	c.Example = `slipway bmap disk.wic
slipway bmap disk.wic.xz --version=1.3  # for an old bmaptool`
	version := c.Text("version=VERSION", bmap.Latest, "version of the format: 1.2, 1.3, 1.4 or 2.0; 2.0 if not given")
	asJSON := c.Switch("json", "print what was made as JSON")
	c.Run = func(ctx context.Context, words []string) error {
		image := words[0]
		return WithSignals(ctx, func(ctx context.Context) error {
			made, err := source.MapFile(ctx, image, *version)
			return showMade(made, err, *asJSON)
		})
	}
	return c
}

func packCommand() *Command {
	c := New("pack IMAGE", "Make a .zst of an image that is flashed fastest, and its block map")
	c.Long = `The image is plain, or packed in any form that flash takes. flash can unpack the result in
parts, one for each part of the map. "zstd -d" unpacks it as any other.`
	c.Example = `slipway pack disk.wic  # which writes disk.wic.zst and disk.wic.zst.bmap
slipway pack disk.wic.xz --to=/srv/images/disk.zst --level=19`
	to := c.Text("to=PATH", "", "the file to write; the image's name with .zst if not given")
	level := c.Number("level", 7, 1, "zstd's level, 1 to 22; 7 if not given, which also unpacks faster than 3")
	asJSON := c.Switch("json", "print what was made as JSON")
	c.Run = func(ctx context.Context, words []string) error {
		image := words[0]
		return WithSignals(ctx, func(ctx context.Context) error {
			made, err := source.PackFile(ctx, image, *to, *level)
			return showMade(made, err, *asJSON)
		})
	}
	return c
}

func showMade(made source.Made, err error, asJSON bool) error {
	switch {
	case err != nil:
		return err
	case asJSON:
		return printJSON(made)
	}
	made.Show(stdout)
	return nil
}
