//go:build mage

package main

import (
	"context"
	"os"

	"github.com/magefile/mage/mg"

	"slipway/ci"
	"slipway/flash/target"
	"slipway/images"
)

// Deploy gives a running board what it lacks. "deploy" alone is deploy:board.
type Deploy mg.Namespace

// Board gives a running board its container and its artifact's description. It is
// what "deploy" means.
//
// The host is the virtual board's own name while it is on, user@host:port, or an
// alias of your ~/.ssh/config. A container comes with virtual boards' artifacts alone;
// other boards get the description. Deploying needs root on the board. A board of which
// nothing is known shows its host key's fingerprint: compare it on the board's own
// console, then answer, or give -pin=SHA256:… where there is no terminal.
//
// It exits with 3 where the board was not reached or lets nobody in, with 5 where its
// board.yml is wrong, and with 1 after any other failure.
//
// Examples: "deploy virt virt"; "deploy jetson-orin-nano-devkit root@10.0.0.7".
func (Deploy) Board(ctx context.Context, board, host string,
	pin *string, // fingerprint of the board's host key, to be pinned if nothing is known of it
) error {
	return runFor(ctx, board, func(ctx context.Context, spec images.Spec) error {
		return ci.OnBoard(ctx, options, spec, host, func(ctx context.Context, c *target.Conn, spec images.Spec, a images.Artifact) error {
			return ci.Deploy(ctx, os.Stdout, c, spec, a)
		}, given(pin, ""))
	})
}

// Container brings a container's image to a board's containerd, ready to run.
//
// The image is an OCI layout or archive, or an archive of docker save, with #NAME where
// it has several; or a registry's, as oci://REGISTRY/REPOSITORY:TAG, which is fetched
// here, as the board may reach no registry. Of an image for several platforms the
// board's is taken. Only layers that the board lacks are sent; what broke off goes on.
//
// Examples: "deploy:container virt virt app.tar"; "deploy:container BOARD HOST
// oci://registry.example.com/lab/app:v2 -prune"; "deploy:container BOARD HOST app.tar
// -namespace=k8s.io" where Kubernetes shall find it.
func (Deploy) Container(ctx context.Context, board, host, image string,
	name *string, // its name on the board, instead of its own
	namespace *string, // of containerd; slipway if not given
	prune *bool, // remove images that came this way and that no container uses
	json *bool, // print what was done as JSON
) error {
	return runFor(ctx, board, func(ctx context.Context, spec images.Spec) error {
		return ci.DeployContainer(ctx, os.Stdout, options, spec, host, image, ci.ContainerOptions{
			Name: given(name, ""), Namespace: given(namespace, "slipway"), Prune: given(prune, false), JSON: given(json, false),
		})
	})
}
