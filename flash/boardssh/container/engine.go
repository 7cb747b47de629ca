// Package container turns an OCI image into a running container on a board, by the board's
// own containerd, docker or podman. Package oci reads the images.
package container

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"slipway/flash/boardssh"
	"slipway/flash/oci"
)

// Engine is a container engine on a board.
type Engine interface {
	String() string        // name and version, for people
	Platform() v1.Platform // what images have to be for
	// Push sends an image to the board, under a name. It can be repeated.
	Push(ctx context.Context, image *oci.Image, name string) (Pushed, error)
	// Prune removes images that Push sent and that no container uses, except the one to keep.
	Prune(ctx context.Context, keep string) ([]string, error)
	// Run runs a container to its end and removes all that it made on the board.
	Run(ctx context.Context, c Spec) (Exit, error)
	// List lists containers that Run left: on purpose, by another person, or on a lost connection.
	List(ctx context.Context) ([]Leftover, error)
	// Remove stops and removes a container that List returned.
	Remove(ctx context.Context, name string) error
	Close() error
}

// Leftover is a container that Run made and that is still on the board.
type Leftover struct {
	Name    string    `json:"name"`
	Image   string    `json:"image"`
	State   string    `json:"state"`
	Started time.Time `json:"started"`
}

// Engines are the names for OpenEngine, in the order in which it tries them.
var Engines = []string{"containerd", "docker", "podman"}

// OpenEngine connects to the board's engine with that name. Without a name, it takes the first that
// answers. Only containerd uses the namespace.
func OpenEngine(ctx context.Context, c *boardssh.Conn, name, namespace string) (Engine, error) {
	if name != "" {
		return openEngine(ctx, c, name, namespace)
	}
	var failed []error
	for _, name := range Engines {
		e, err := openEngine(ctx, c, name, namespace)
		if err == nil || ctx.Err() != nil || errors.Is(err, boardssh.ErrSilent) {
			return e, err
		}
		failed = append(failed, err)
	}
	return nil, fmt.Errorf("no engine for containers answers: %w", errors.Join(failed...))
}

// openEngine connects to the engine with this name, one of Engines. Another name is an error.
func openEngine(ctx context.Context, c *boardssh.Conn, name, namespace string) (Engine, error) {
	switch name {
	case "containerd":
		return openContainerd(ctx, c, containerdSocket, namespace)
	case "docker", "podman":
		return openDocker(ctx, c, name)
	}
	return nil, fmt.Errorf("unknown engine %q; there are %q", name, Engines)
}
