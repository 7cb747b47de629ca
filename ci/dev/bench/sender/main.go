// Sender sends and receives data for bench; nothing else uses it. "sender PORT KNOWN KEY FROM TO"
// sends a file to an SSH server, as Slipway does. "sender device DEVICE MAP" writes data to all
// mapped blocks of a device, two parts at a time: the limit for programs that write an image with
// this block map. "sender twice DEVICE MAP" also reads each part. "sender place COUNT MAP IMAGE
// DEVICE..." writes a zst image to devices, all at once. "sender serve PORT FOLDER" takes and gives
// files by HTTP, without digests.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"slipway/flash"
	"slipway/flash/boardssh"
	"slipway/flash/boardssh/files"
	"slipway/flash/device"
	"slipway/flash/source"
	"slipway/flash/write"
	"slipway/images"
	"slipway/images/bmap"
)

// main calls send, and exits with 1 after an error.
func main() {
	if err := send(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "sender:", err)
		os.Exit(1)
	}
}

// send sends a file by SSH, or by args[0] writes a device or serves a folder: see package's doc.
func send(ctx context.Context, args []string) error {
	switch {
	case len(args) == 3 && (args[0] == "device" || args[0] == "twice"):
		return writeMapped(args[1], args[2], args[0] == "twice")
	case len(args) > 3 && args[0] == "place":
		return writePrepared(ctx, args[1], args[2], args[3], args[4:])
	case len(args) == 3 && args[0] == "serve":
		return http.ListenAndServe("127.0.0.1:"+args[1], folder(args[2]))
	case len(args) != 5:
		return errors.New("unknown arguments")
	}
	port, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	c, err := boardssh.Dial(ctx, boardssh.Address{Host: "127.0.0.1", Port: port, KnownHosts: []string{args[1]}, Identities: []string{args[2]}})
	if err != nil {
		return err
	}
	_, err = files.Put(ctx, c, args[3], args[4], 0o644)
	return errors.Join(err, c.Close())
}

// folder is an HTTP server that stores files in a folder (PUT) and serves them (GET).
type folder string

// ServeHTTP serves (GET) or stores (other methods) the folder's file named by the path's last part.
func (f folder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := filepath.Join(string(f), filepath.Base(r.URL.Path))
	if r.Method == http.MethodGet {
		http.ServeFile(w, r, name)
		return
	}
	file, err := os.Create(name)
	if err == nil {
		_, err = io.Copy(file, r.Body)
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

const partBytes = 1 << 20

// writeMapped writes the same random MiB to all mapped parts of a device, two at a time, and syncs.
// With back it reads each part once it is written, over the same MiB.
func writeMapped(name, mapFile string, back bool) error {
	text, err := os.Open(mapFile)
	if err != nil {
		return err
	}
	blocks, err := bmap.Read(text)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(name, os.O_RDWR|unix.O_DIRECT, 0)
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
				part := data[:min(first+length-off, partBytes)]
				_, err := d.WriteAt(part, off)
				if err == nil && back {
					_, err = d.ReadAt(part, off)
				}
				return err
			})
		}
	}
	defer d.Close()
	return errors.Join(g.Wait(), d.Sync())
}

// writePrepared prepares an image and writes it to all devices at once. When so many as count are
// whole, it stops writing to the others, and keeps in a file beside the image how many ms that took.
func writePrepared(ctx context.Context, count, blocks, path string, devices []string) error {
	n, err := strconv.Atoi(count)
	spec := images.Spec{Board: "bench", Flash: images.Flash{Kinds: []string{device.File, device.Block}}}
	err = errors.Join(err, os.Setenv("XDG_STATE_HOME", filepath.Dir(path))) // of receipts
	p, prepareErr := flash.Prepare(ctx, spec, images.Artifact{Board: spec.Board}, filepath.Dir(path), flash.Options{Image: path, BlockMap: blocks, OtherBoard: true, Raw: true})
	if err = errors.Join(err, prepareErr); err != nil {
		return err
	}
	began, done := time.Now(), make(chan error, len(devices))
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	for _, name := range devices {
		go func() {
			_, err := p.Write(ctx, name, flash.PreparedOptions{Meant: func(device.Device) error { return nil }})
			done <- err
		}()
	}
	for range n {
		err = errors.Join(err, <-done)
	}
	took := fmt.Appendln(nil, time.Since(began).Milliseconds())
	stop()
	for range len(devices) - n {
		<-done
	}
	return errors.Join(err, p.Close(), os.WriteFile(fmt.Sprintf("%s.%d.%d", path, len(devices), began.UnixNano()), took, 0o600))
}
