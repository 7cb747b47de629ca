// Sender sends a file to a server as Slipway does. It serves only the bench. Its arguments are
// the server's port, the files with the server's key and the client's, and both paths.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"slipway/flash/target"
	"slipway/flash/target/files"
)

func main() {
	if err := send(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "sender:", err)
		os.Exit(1)
	}
}

func send(ctx context.Context, args []string) error {
	if len(args) != 5 {
		return errors.New("five arguments are needed")
	}
	port, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	c, err := target.Dial(ctx, target.Address{Host: "127.0.0.1", Port: port, KnownHosts: []string{args[1]}, Identities: []string{args[2]}})
	if err != nil {
		return err
	}
	_, err = files.Put(ctx, c, args[3], args[4], 0o644)
	return errors.Join(err, c.Close())
}
