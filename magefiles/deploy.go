//go:build mage

package main

import (
	"context"
	"os"
	"time"

	"github.com/magefile/mage/mg"

	"slipway/ci"
	"slipway/ci/deploy"
	"slipway/ci/reach"
	"slipway/ci/report"
	"slipway/flash/target"
	"slipway/flash/target/container"
	targetfiles "slipway/flash/target/files"
	"slipway/images"
)

// Deploy gives a running board what it lacks. "deploy" alone is deploy:board.
type Deploy mg.Namespace

// Board gives a running board its container and its artifact's description. It is
// what "deploy" means.
//
// The host is the virtual board's own name while it is on, user@host:port, or an
// alias of your ~/.ssh/config. A container comes with virtual boards' artifacts alone;
// other boards get the description. Deploying needs root on the board: by its login, or
// by sudo with -become. Slipway shows the fingerprint of an unknown host key: compare it
// on the board's own console, then answer, or give -pin=SHA256:… where there is no terminal.
//
// It exits with 3 where the board was not reached, lets nobody in or was lost in the
// middle, with 5 where its board.yml is wrong, and with 1 after any other failure. All
// deploy:* do, but deploy:run.
//
// Examples: "deploy virt virt"; "deploy jetson-orin-nano-devkit root@10.0.0.7".
func (Deploy) Board(ctx context.Context, board, host string,
	pin *string, // fingerprint of the board's host key, to be pinned if nothing is known of it
	rate *string, // at most so many bytes a second to the board, such as 512k or 10M
	become *bool, // run programs on the board as root, by sudo (or SLIPWAY_BECOME=sudo)
) error {
	return runWithRate(asRoot(ctx, become), board, rate, func(ctx context.Context, spec images.Spec) error {
		return reach.WithArtifact(ctx, options, spec, host, func(ctx context.Context, c *target.Conn, spec images.Spec, a images.Artifact) error {
			return ci.Deploy(ctx, os.Stdout, c, spec, a)
		}, given(pin, ""))
	})
}

// Container brings a container's image to a board's containerd, docker or podman.
//
// The image is an OCI layout or archive, or an archive of docker save, with #NAME where
// it has several; or a registry's, as oci://REGISTRY/REPOSITORY:TAG, which is fetched
// here, as the board may reach no registry. Of an image for several platforms the
// board's is taken. containerd gets only layers that it lacks, and what broke off goes
// on; docker and podman take an image whole.
//
// Examples: "deploy:container virt virt app.tar"; "deploy:container BOARD HOST
// oci://registry.example.com/lab/app:v2 -prune"; "deploy:container BOARD HOST app.tar
// -namespace=k8s.io" where Kubernetes shall find it.
func (Deploy) Container(ctx context.Context, board, host, image string,
	name *string, // its name on the board, instead of its own
	namespace *string, // of containerd; slipway if not given
	engine *string, // containerd, docker or podman; the first of them that answers if not given
	prune *bool, // remove images that came this way and that no container uses
	json *bool, // print what was done as JSON
	rate *string, // at most so many bytes a second to the board, such as 512k or 10M
	become *bool, // run programs on the board as root, by sudo (or SLIPWAY_BECOME=sudo)
) error {
	return runWithRate(asRoot(ctx, become), board, rate, func(ctx context.Context, spec images.Spec) error {
		return deploy.Container(ctx, os.Stdout, options, spec, host, image, deploy.ContainerOptions{
			Name: given(name, ""), Engine: given(engine, ""), Namespace: given(namespace, "slipway"), Prune: given(prune, false), JSON: given(json, false),
		})
	})
}

// Run runs a container on a board, as if it ran here.
//
// What it prints comes here as it comes there, and its exit status is the command's,
// or, as ssh's, 255 where it got none: the board was not reached, board.yml is wrong, the
// container did not start, was stopped or did not end in time. The container is removed
// at the end, also after a Ctrl-C. The image is one of the board's, or anything that
// deploy:container takes, which is brought there first. The image's own command runs, or
// what follows "--".
//
// Examples: "deploy:run virt virt slipway/probe:latest"; "deploy:run BOARD HOST app.tar
// -gpus=all -mounts=/data:/data:ro -- python3 /app/main.py --fast".
func (Deploy) Run(ctx context.Context, board, host, image string,
	argv *string, // the command as a JSON list; what follows "--" becomes it
	env *string, // NAME=value, with commas between them
	mounts *string, // SOURCE:PLACE or SOURCE:PLACE:ro, with commas between them
	gpus *string, // which of the board's GPUs, as NVIDIA_VISIBLE_DEVICES names them: all, 0, nvidia.com/gpu=0
	hostNet *bool, // the board's network; with containerd there is none otherwise
	detach *bool, // leave it running and print its name
	limit *int, // seconds after which it is ended
	namespace *string, // of containerd; slipway if not given
	engine *string, // containerd, docker or podman; the first of them that answers if not given
	become *bool, // run programs on the board as root, by sudo (or SLIPWAY_BECOME=sudo)
) error {
	return withSignals(asRoot(ctx, become), func(ctx context.Context) error {
		spec, err := loadSpec(ctx, board)
		return report.OfContainer(firstError(err, func() error {
			return deploy.RunContainer(ctx, os.Stdout, os.Stderr, options, spec, host, container.Spec{
				Image: image, Argv: decodeArgs(given(argv, "")), Env: splitList(given(env, "")), Mounts: splitList(given(mounts, "")), GPUs: given(gpus, ""),
				HostNet: given(hostNet, false), Detach: given(detach, false), Timeout: time.Duration(given(limit, 0)) * time.Second,
			}, deploy.ContainerOptions{Engine: given(engine, ""), Namespace: given(namespace, "slipway")})
		}))
	})
}

// Clean removes containers of deploy:run that are on a board still: those that were
// left running by -detach, and those of a connection that was lost.
//
// Examples: "deploy:clean virt virt"; "deploy:clean BOARD HOST -names=slipway-abc".
func (Deploy) Clean(ctx context.Context, board, host string,
	names *string, // only these, with commas between them
	namespace *string, // of containerd; slipway if not given
	engine *string, // containerd, docker or podman; the first of them that answers if not given
	become *bool, // run programs on the board as root, by sudo (or SLIPWAY_BECOME=sudo)
) error {
	return runFor(asRoot(ctx, become), board, func(ctx context.Context, spec images.Spec) error {
		return deploy.CleanContainers(ctx, os.Stdout, options, spec, host, splitWords(given(names, "")),
			deploy.ContainerOptions{Engine: given(engine, ""), Namespace: given(namespace, "slipway")})
	})
}

// Files makes a folder on a board hold what a local one does: changed files alone,
// with their modes, and symlinks. What they replace is kept there, for deploy:undo.
//
// Examples: "deploy:files virt virt ./etc /etc -dryrun"; "deploy:files BOARD HOST ./app
// /opt/app -delete -owner=app:app -restart=app.service".
func (Deploy) Files(ctx context.Context, board, host, folder, dest string,
	Delete *bool, // take away what only the board has
	owner *string, // user or user:group of all that is there afterwards
	restart *string, // systemd's units, with commas between them
	dryRun *bool, // say what would change
	json *bool, // print what was done as JSON
	rate *string, // at most so many bytes a second to the board, such as 512k or 10M
	become *bool, // run programs on the board as root, by sudo (or SLIPWAY_BECOME=sudo)
) error {
	return withRate(asRoot(ctx, become), rate, func(ctx context.Context) error {
		return runPatientlyFor(ctx, board, func(ctx context.Context, spec images.Spec, now <-chan struct{}) error {
			return deploy.Files(ctx, os.Stdout, options, spec, host, folder, dest, deploy.FilesOptions{
				DirOptions: targetfiles.DirOptions{Owner: given(owner, ""), Delete: given(Delete, false), DryRun: given(dryRun, false)},
				Restart:    splitWords(given(restart, "")), Watch: unitWatch, JSON: given(json, false), Now: now,
			})
		})
	})
}

// unitWatch is how long units must keep running before a deploy of files counts as good.
const unitWatch = 3 * time.Second

// Service brings units and drop-ins of systemd to a board and restarts units.
//
// It is given a file, or a folder laid out as /etc/systemd/system is. The units have to
// come up and to stay up for a while; where one does not, its journal is shown, all files
// are put back as they were, and the units are restarted with them.
//
// Examples: "deploy:service virt virt app.service -restart=app"; "deploy:service BOARD
// HOST ./units -restart=app.service,web.service -watch=30".
func (Deploy) Service(ctx context.Context, board, host, files string,
	restart *string, // the units, with commas between them
	watch *int, // seconds for which they have to run on; 3 if not given
	to *string, // another folder there than /etc/systemd/system
	keep *bool, // leave all as it is, also where a unit does not come up
	dryRun *bool, // say what would change
	json *bool, // print what was done as JSON
	become *bool, // run programs on the board as root, by sudo (or SLIPWAY_BECOME=sudo)
) error {
	return runPatientlyFor(asRoot(ctx, become), board, func(ctx context.Context, spec images.Spec, now <-chan struct{}) error {
		return deploy.Files(ctx, os.Stdout, options, spec, host, files, given(to, "/etc/systemd/system"), deploy.FilesOptions{
			DirOptions: targetfiles.DirOptions{Owner: "0:0", DryRun: given(dryRun, false)}, Restart: splitWords(given(restart, "")),
			Watch: time.Duration(given(watch, 3)) * time.Second, Keep: given(keep, false), JSON: given(json, false), Now: now,
		})
	})
}

// Config configures a running board: hugepages, sysctls, kernel modules, a Jetson's power
// mode, FRR, and files of your own.
//
// The file is YAML; flash/target/README.md has one with all sections. It takes effect at once and at
// each boot, by drop-ins of systemd and never by the kernel's command line. FRR's
// configuration is proved by the board's own FRR before anything changes. What the board
// has afterwards is read back; where it did not take something, or a program does not run
// with it, all is put back. A second time it changes nothing. It needs root on the
// board, as deploy does.
//
// Examples: "deploy:config BOARD HOST lab.yml -dryrun"; "deploy:config virt virt lab.yml";
// "deploy:undo virt virt" puts back what was there.
func (Deploy) Config(ctx context.Context, board, host, file string,
	keep *bool, // leave all as it is, also where something does not work with it
	dryRun *bool, // show what would change, and in which lines
	json *bool, // print what was done as JSON
	become *bool, // run programs on the board as root, by sudo (or SLIPWAY_BECOME=sudo)
) error {
	return runPatientlyFor(asRoot(ctx, become), board, func(ctx context.Context, spec images.Spec, now <-chan struct{}) error {
		return deploy.Config(ctx, os.Stdout, options, spec, host, file, deploy.ConfigOptions{
			Keep: given(keep, false), DryRun: given(dryRun, false), JSON: given(json, false), Now: now,
		})
	})
}

// Undo puts back what deploy:files, deploy:service or deploy:config replaced, takes away what it added,
// sets what runs as it was, and restarts the same units. The board keeps the last five.
//
// Where somebody changed a file since, nothing is done unless -force is given.
//
// Examples: "deploy:undo virt virt"; "deploy:undo BOARD HOST -list".
func (Deploy) Undo(ctx context.Context, board, host string,
	id *string, // which deploy; the last one if not given
	list *bool, // show which can be undone
	force *bool, // also what somebody changed since
	json *bool, // print it as JSON
	become *bool, // run programs on the board as root, by sudo (or SLIPWAY_BECOME=sudo)
) error {
	return runFor(asRoot(ctx, become), board, func(ctx context.Context, spec images.Spec) error {
		return deploy.Undo(ctx, os.Stdout, options, spec, host, deploy.UndoOptions{
			ID: given(id, ""), List: given(list, false), Force: given(force, false), JSON: given(json, false),
		})
	})
}
