package target

import (
	"context"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"slipway/flash/oci"
)

// Engine is what runs containers on a board.
type Engine interface {
	String() string        // its name and version, for people
	Platform() v1.Platform // what images have to be for
	// Push brings an image to the board, under a name. It can be repeated.
	Push(ctx context.Context, image *oci.Image, name string) (Pushed, error)
	// Prune removes images that came by Push and that no container uses, but for one.
	Prune(ctx context.Context, keep string) ([]string, error)
	Close() error
}

// OpenEngine connects to the board's engine.
func OpenEngine(ctx context.Context, c *Conn, namespace string) (Engine, error) {
	return openContainers(ctx, c, containerdSocket, namespace)
}
