package commands

import (
	"context"

	"slipway/flash"
	"slipway/images/bmap"
)

func bmapCommand() *Command {
	c := New("bmap IMAGE", "Write the block map of an image beside it, as IMAGE.bmap")
	c.Long = `The image is plain, or packed in any form that flash takes. It has a partition table or a file
system. The digests are those of the
unpacked image. bmaptool takes these maps too.`
	c.Example = `slipway bmap disk.wic
slipway bmap disk.wic.xz --version=1.3  # for an old bmaptool`
	version := c.Text("version=VERSION", bmap.Latest, "version of the format: 1.2, 1.3, 1.4 or 2.0; 2.0 if not given")
	asJSON := c.Switch("json", "print what was made as JSON")
	c.Run = func(ctx context.Context, words []string) error {
		image := words[0]
		return WithSignals(ctx, func(ctx context.Context) error {
			made, err := flash.MapImage(ctx, image, *version)
			switch {
			case err != nil:
				return err
			case *asJSON:
				return printJSON(made)
			}
			made.Show(stdout)
			return nil
		})
	}
	return c
}
