package commands

import (
	"context"

	"slipway/flash"
)

// readCommand returns the command read, which makes an image of a disk or card.
func readCommand() *Command {
	c := New("read DEVICE IMAGE", "Make an image of a disk or card, with its block map, IMAGE.bmap")
	c.Long = `IMAGE ends in .zst (packed) or .img (plain, with holes). The device is a whole disk or a virtual
disk that nothing uses. Slipway only reads it.

Slipway copies the blocks that ext4, FAT16 and FAT32 use. Of anything else, and of a file system that
was not unmounted cleanly, it copies all blocks that are not zero. Everything else is zeros in the image.

With --shrink the image ends after the last partition. If that has ext4, Slipway shrinks it in the
image to its smallest size and a tenth more, 16 MiB at least. The folder of IMAGE needs space for the
used blocks of that partition, too. flash --grow makes it as large as the next device.

IMAGE appears when it is complete. After an interruption the same line begins again.`
	c.exits = []exit{{6, "the device was refused"}, {8, "the device cannot be read"}}
	c.Example = `slipway read /dev/sdX card.zst
slipway read /dev/sdX card.zst --shrink  # to flash it to a smaller card, too`
	shrink := c.Switch("shrink", "end the image after the last partition, and shrink an ext4 there")
	asJSON := c.Switch("json", "print the result as JSON")
	c.RunSignalled(func(ctx context.Context, words []string) error {
		taken, err := flash.Read(ctx, words[0], words[1], *shrink)
		return printResult(taken, err, *asJSON, taken.Show)
	})
	return c
}
