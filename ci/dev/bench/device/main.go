// Device writes data to all mapped blocks of a device, two parts at a time. No program that
// writes an image with this block map can be faster. It serves only the bench. Its arguments
// are the device and the map.
package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"slipway/flash/source"
	"slipway/flash/write"
	"slipway/images/bmap"
)

const partBytes = 1 << 20

func main() {
	if err := writeMapped(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "device:", err)
		os.Exit(1)
	}
}

func writeMapped(device, mapFile string) error {
	text, err := os.Open(mapFile)
	if err != nil {
		return err
	}
	blocks, err := bmap.Read(text)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(device, os.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	d, err := write.OpenDisk(f)
	if err != nil {
		return err
	}
	data := source.Buffer(partBytes)
	_, _ = rand.NewChaCha8([32]byte{}).Read(data) // never fails
	var g errgroup.Group
	g.SetLimit(2)
	for _, r := range blocks.Ranges {
		first, length := blocks.Span(r)
		for off := first; off < first+length; off += partBytes {
			g.Go(func() error {
				_, err := d.WriteAt(data[:min(first+length-off, partBytes)], off)
				return err
			})
		}
	}
	defer d.Close()
	return errors.Join(g.Wait(), d.Sync())
}
