//go:build mage

package main

import (
	"context"
	"os"

	"slipway/flash/source"
	"slipway/images/bmap"
)

// Bmap writes the block map of an image beside it, as IMAGE.bmap.
//
// The image is plain or packed in any form that flash takes: its digests are those of
// what it unpacks to. bmaptool takes these maps too.
//
// Examples: "bmap disk.wic"; "bmap disk.wic.xz -version=1.3" for an old bmaptool.
func Bmap(ctx context.Context, image string,
	version *string, // of the format: 1.2, 1.3, 1.4 or 2.0, which is the default
	json *bool, // print what was made as JSON
) error {
	return withSignals(ctx, func(ctx context.Context) error {
		made, err := source.MapFile(ctx, image, given(version, bmap.Latest))
		return showMade(made, err, given(json, false))
	})
}

// Pack makes a .zst of an image that is flashed fastest, and its block map.
//
// The image is plain or packed in any form that flash takes. The result can be unpacked
// in parts, one for each part of the map; "zstd -d" unpacks it as any other.
//
// Examples: "pack disk.wic", which writes disk.wic.zst and disk.wic.zst.bmap;
// "pack disk.wic.xz -to=/srv/images/disk.zst -level=19".
func Pack(ctx context.Context, image string,
	to *string, // the file to write; the image's name with .zst if not given
	level *int, // as zstd's, 1 to 22; 7 if not given, which is also unpacked faster than 3
	json *bool, // print what was made as JSON
) error {
	return withSignals(ctx, func(ctx context.Context) error {
		made, err := source.PackFile(ctx, image, given(to, ""), given(level, 7))
		return showMade(made, err, given(json, false))
	})
}

func showMade(made source.Made, err error, asJSON bool) error {
	switch {
	case err != nil:
		return err
	case asJSON:
		return printJSON(made)
	}
	made.Show(os.Stdout)
	return nil
}
