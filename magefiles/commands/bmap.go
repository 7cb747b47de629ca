package commands

import (
	"context"

	"slipway/flash"
)

// bmapCommand returns the command bmap, which writes the block map of an image.
func bmapCommand() *Command {
	c := New("bmap IMAGE", "Write the block map of an image beside it, as IMAGE.bmap")
	c.Long = `The image is plain, or packed in any form that flash takes. It has a partition table or a file
system. The digests are those of the
unpacked image. bmaptool takes these maps too.`
	c.Example = `slipway bmap disk.wic`
	asJSON := c.Switch("json", "print the result as JSON")
	c.RunSignalled(func(ctx context.Context, words []string) error {
		image := words[0]
		made, err := flash.MapImage(ctx, image)
		return printResult(made, err, *asJSON, made.Show)
	})
	return c
}
