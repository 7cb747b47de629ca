// Sender sends and receives data for bench; nothing else uses it. "sender PORT KNOWN KEY FROM TO"
// sends a file to an SSH server, as Slipway does. "sender device DEVICE MAP" writes data to all
// mapped blocks of a device, two parts at a time: the limit for programs that write an image with
// this block map. "sender serve PORT FOLDER" takes and gives files by HTTP, without digests.
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

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"slipway/flash/boardssh"
	"slipway/flash/boardssh/files"
	"slipway/flash/source"
	"slipway/flash/write"
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
	case len(args) == 3 && args[0] == "device":
		return writeMapped(args[1], args[2])
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
