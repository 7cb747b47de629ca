package commands

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"slipway/ci"
	"slipway/ci/deploy"
	"slipway/ci/job"
	"slipway/ci/reach"
	"slipway/ci/report"
	"slipway/flash/boardssh"
	"slipway/flash/boardssh/container"
	targetfiles "slipway/flash/boardssh/files"
	boardupdate "slipway/flash/boardssh/update"
	"slipway/images"
)

// deployCommand returns the command deploy, which copies a container and artifact.json to a board.
func deployCommand() *Command {
	c := New("deploy BOARD HOST", "Copy the build's container and its artifact.json to a running board")
	c.Long = `The host is one of these:
- the virtual board's own name, while it is on
- user@host:port
- an alias of your ~/.ssh/config

Only artifacts of virtual boards have a container. Other boards get the description. Slipway
needs root on the board: by its login, or by sudo with --become.

Slipway shows the fingerprint of an unknown host key. Compare it on the board's own console,
then answer. Without a terminal, give --pin=SHA256:…`
	c.exits = append(slices.Clone(exitsOfBoard), exitRefused)
	c.Example = `slipway deploy virt virt
slipway deploy jetson-orin-nano-devkit root@10.0.0.7`
	pin := c.pin()
	c.rate()
	c.become()
	c.runOn(images.LoadBuilt, func(ctx context.Context, spec images.Spec, words []string) error {
		host := words[1]
		return reach.WithArtifact(ctx, options, spec, host, func(ctx context.Context, c *boardssh.Conn, spec images.Spec, a images.Artifact) error {
			return ci.Deploy(ctx, stdout, c, spec, a)
		}, *pin)
	})
	c.viaHub(nil, stepsOnly(job.Step{Do: job.Deploy}))
	return c
}

func deployContainerCommand() *Command {
	c := New("container BOARD HOST IMAGE", "Copy a container image to a board's containerd, docker or podman")
	c.Long = `The image is one of these:
- an OCI layout or archive, or an archive of docker save; add #NAME if it has several images
- oci://REGISTRY/REPOSITORY:TAG, which this machine fetches, so the board needs no registry

Slipway chooses the board's platform. containerd gets only layers that it lacks, and
continues an interrupted transfer. docker and podman get the whole image.`
	c.exits = exitsOfBoard
	c.Example = `slipway deploy container virt virt app.tar
slipway deploy container BOARD HOST oci://registry.example.com/lab/app:v2 --prune
slipway deploy container BOARD HOST app.tar --namespace=k8s.io  # for Kubernetes`
	name := c.Text("name=NAME", "", "its name on the board, instead of its own")
	namespace := c.Text("namespace=NAME", "slipway", "of containerd; slipway if not given")
	engine := c.choice("engine", container.Engines, "the container engine; the first of them that answers if not given")
	prune := c.Switch("prune", "remove images that this command copied and no container uses")
	asJSON := c.Switch("json", "print the result as JSON")
	c.rate()
	c.become()
	c.runOn(images.LoadBuilt, func(ctx context.Context, spec images.Spec, words []string) error {
		host, image := words[1], words[2]
		return deploy.Container(ctx, stdout, options, spec, host, image, deploy.ContainerOptions{
			Name: *name, Engine: *engine, Namespace: *namespace, Prune: *prune, JSON: *asJSON,
		})
	})
	return c
}

func deployRunCommand() *Command {
	c := New("run BOARD HOST IMAGE [-- COMMAND...]", "Run a container on a board, as if it ran on this machine")
	c.Long = `Slipway prints the container's output as it comes. The exit status is the command's,
or 255 in these cases:
- Slipway did not reach the board
- board.yml is wrong
- the container did not start, was stopped, or did not end in time

Slipway removes the container at the end, also after Ctrl-C. The image is one of the board's,
or any that deploy container takes. The container runs the image's own command, or the words
after "--".`
	c.Example = `slipway deploy run virt virt slipway/probe:latest
slipway deploy run BOARD HOST app.tar --gpus=all --mounts=/data:/data:ro -- python3 /app/main.py --fast`
	env := c.Names("env", "NAME=value, with commas between them")
	mounts := c.Names("mounts", "SOURCE:PLACE or SOURCE:PLACE:ro, with commas between them")
	gpus := c.Text("gpus=GPUS", "", "which of the board's GPUs, as NVIDIA_VISIBLE_DEVICES names them: all, 0, nvidia.com/gpu=0")
	hostNet := c.Switch("host-net", "use the board's network; without it, containerd gives none")
	detach := c.Switch("detach", "leave it running and print its name")
	limit := c.Number("limit", 0, 0, "end it after this many seconds")
	namespace := c.Text("namespace=NAME", "slipway", "of containerd; slipway if not given")
	engine := c.choice("engine", container.Engines, "the container engine; the first of them that answers if not given")
	c.become()
	c.RunSignalled(func(ctx context.Context, words []string) error {
		board, host, image := words[0], words[1], words[2]
		spec, err := images.LoadBuilt(board)
		return report.OfContainer(runUnlessFailed(err, func() error {
			return deploy.RunContainer(ctx, os.Stdout, os.Stderr, options, spec, host, container.Spec{
				Image: image, Argv: c.after, Env: *env, Mounts: *mounts, GPUs: *gpus,
				HostNet: *hostNet, Detach: *detach, Timeout: time.Duration(*limit) * time.Second,
			}, deploy.ContainerOptions{Engine: *engine, Namespace: *namespace})
		}))
	})
	return c
}

// deployCleanCommand returns the command deploy clean, which removes containers of deploy run.
func deployCleanCommand() *Command {
	c := New("clean BOARD HOST", "Remove containers that deploy run left on a board")
	c.Long = `These are containers of --detach, and those of a lost connection.`
	c.exits = exitsOfBoard
	c.Example = `slipway deploy clean virt virt
slipway deploy clean BOARD HOST --names=slipway-abc`
	names := c.Words("names", "only these, with commas between them")
	namespace := c.Text("namespace=NAME", "slipway", "of containerd; slipway if not given")
	engine := c.choice("engine", container.Engines, "the container engine; the first of them that answers if not given")
	c.become()
	c.runOn(images.LoadBuilt, func(ctx context.Context, spec images.Spec, words []string) error {
		host := words[1]
		return deploy.CleanContainers(ctx, stdout, options, spec, host, *names,
			deploy.ContainerOptions{Engine: *engine, Namespace: *namespace})
	})
	return c
}

func deployFilesCommand() *Command {
	c := New("files BOARD HOST FOLDER DEST", "Make a folder on a board equal to a local one")
	c.Long = `Slipway sends only changed files, with their modes, and symlinks. The board keeps the files
that they replace, for deploy undo.`
	c.exits = exitsOfBoard
	c.Example = `slipway deploy files virt virt ./etc /etc --dry-run
slipway deploy files BOARD HOST ./app /opt/app --delete --owner=app:app --restart=app.service`
	remove := c.Switch("delete", "remove files that only the board has")
	owner := c.Text("owner=USER", "", "user, or user:group, of all files in DEST")
	restart := c.Words("restart", "restart these systemd units, with commas between them")
	dryRun := c.Switch("dry-run", "show what would change")
	asJSON := c.Switch("json", "print the result as JSON")
	c.rate()
	c.become()
	c.check = func(words []string) error {
		if strings.Contains(words[2], "@") && !isFile(words[2]) && isFile(words[1]) {
			return usageError{fmt.Sprintf("deploy files: %s is of this machine, and a HOST stands there", words[1]), append([]string{"deploy", "files", words[0], words[2], words[1], words[3]}, c.typedFlags(words...)...)}
		}
		return nil
	}
	c.runPatientlyOn(images.LoadBuilt, func(ctx context.Context, spec images.Spec, words []string, now <-chan struct{}) error {
		host, folder, dest := words[1], words[2], words[3]
		return deploy.Files(ctx, stdout, options, spec, host, folder, dest, deploy.FilesOptions{
			DirOptions: targetfiles.DirOptions{Owner: *owner, Delete: *remove, DryRun: *dryRun},
			Restart:    *restart, Watch: unitWatch, JSON: *asJSON, Now: now,
		})
	})
	return c
}

// unitWatch is how long units must keep running before a deploy of files counts as good.
const unitWatch = 3 * time.Second

func deployServiceCommand() *Command {
	c := New("service BOARD HOST FILES", "Copy systemd units and drop-ins to a board, and restart units")
	c.Long = `FILES is a file, or a folder with the layout of /etc/systemd/system. The units must start, and
must run for a while. If one does not, Slipway shows its journal. It also puts back all files,
and restarts the units with them.`
	c.exits = exitsOfBoard
	c.Example = `slipway deploy service virt virt app.service --restart=app
slipway deploy service BOARD HOST ./units --restart=app.service,web.service --watch=30`
	restart := c.Words("restart", "restart these units, with commas between them")
	watch := c.Number("watch", 3, 0, "seconds for which they must run; 3 if not given")
	to := c.Text("to=PATH", "/etc/systemd/system", "folder on the board; /etc/systemd/system if not given")
	keep := c.Switch("keep", "put nothing back if a unit does not start")
	c.check = func([]string) error { return errors.Join(c.needs("watch", "restart"), c.needs("keep", "restart")) }
	dryRun := c.Switch("dry-run", "show what would change")
	asJSON := c.Switch("json", "print the result as JSON")
	c.become()
	c.runPatientlyOn(images.LoadBuilt, func(ctx context.Context, spec images.Spec, words []string, now <-chan struct{}) error {
		host, files := words[1], words[2]
		return deploy.Files(ctx, stdout, options, spec, host, files, *to, deploy.FilesOptions{
			DirOptions: targetfiles.DirOptions{Owner: "0:0", DryRun: *dryRun}, Restart: *restart,
			Watch: time.Duration(*watch) * time.Second, Keep: *keep, JSON: *asJSON, Now: now,
		})
	})
	return c
}

// deployConfigCommand returns the command deploy config, which configures a board from a file.
func deployConfigCommand() *Command {
	c := New("config BOARD HOST FILE", "Configure a running board from a file")
	c.Long = `FILE sets hugepages, sysctls, kernel modules, a Jetson's power mode, FRR, and your own files.
It is YAML: flash/boardssh/README.md has an example with all sections.

The settings apply at once and at each boot. Slipway uses drop-ins of systemd, and never the
kernel's command line. The board's own FRR checks the configuration of FRR before anything
changes.

Slipway reads each setting back. If the board refused a setting, or a program does not run with it,
Slipway undoes everything. A second run changes nothing. Slipway needs
root on the board, as deploy does.`
	c.exits = exitsOfBoard
	c.Example = `slipway deploy config BOARD HOST lab.yml --dry-run
slipway deploy config virt virt lab.yml
slipway deploy undo virt virt  # undo it`
	keep := c.Switch("keep", "put nothing back if something does not work")
	dryRun := c.Switch("dry-run", "show which lines would change")
	asJSON := c.Switch("json", "print the result as JSON")
	c.become()
	c.runPatientlyOn(images.LoadBuilt, func(ctx context.Context, spec images.Spec, words []string, now <-chan struct{}) error {
		host, file := words[1], words[2]
		return deploy.Config(ctx, stdout, options, spec, host, file, deploy.ConfigOptions{
			Keep: *keep, DryRun: *dryRun, JSON: *asJSON, Now: now,
		})
	})
	return c
}

// deployUndoCommand returns the command deploy undo, which restores what one deploy replaced.
func deployUndoCommand() *Command {
	c := New("undo BOARD HOST", "Restore the files and settings that deploy files, service or config replaced")
	c.Long = `Slipway also removes files that the deploy added, restores running values, and restarts the same
units. The board keeps the last five deploys.

If somebody changed a file since, Slipway does nothing without --force.`
	c.exits = exitsOfBoard
	c.Example = `slipway deploy undo virt virt
slipway deploy undo BOARD HOST --list`
	id := c.Text("id=ID", "", "undo this deploy; the last one if not given")
	list := c.Switch("list", "list the deploys that can be undone")
	force := c.Switch("force", "also put back files that somebody changed since")
	asJSON := c.Switch("json", "print it as JSON")
	c.become()
	c.runOn(images.LoadBuilt, func(ctx context.Context, spec images.Spec, words []string) error {
		host := words[1]
		return deploy.Undo(ctx, stdout, options, spec, host, deploy.UndoOptions{
			ID: *id, List: *list, Force: *force, JSON: *asJSON,
		})
	})
	return c
}

// notUpdated is the error of an update that the user did not confirm.
const notUpdated = "not confirmed, and nothing was written; --yes confirms without a question\nnext: repeat the line with --dry-run"

// notSent is the same for a hub, which has no dry run.
const notSent = "not confirmed, and nothing was sent; --yes confirms without a question"

func updateCommand() *Command {
	c := New("update BOARD HOST BUNDLE", "Install a bundle by a running board's own update engine, and prove the result")
	c.Long = `The host is as for deploy. Slipway needs root on it. It works in these steps:
1. find the engine on the board: ` + boardupdate.EngineNames() + `
2. check the bundle, its signature, its version and the board's slots
3. install the bundle by the engine, through the SSH connection or from a copy on the board
4. restart the board, and run its smoke suites on the new system
5. mark the new system good, or start the old one again

Slipway always says which system runs. It reconnects after a broken connection, and removes its
copy of the bundle.

Ctrl-C while the engine installs leaves the board on the old system. Once the board restarts,
the first Ctrl-C waits until Slipway knows which system stays. A second one leaves the board as
it is.`
	c.exits = append(slices.Clone(exitsOfSmoke), exitRefused)
	c.Example = `slipway update virt virt new.raucb --dry-run
slipway update bluefield2 root@10.0.0.7 new.raucb --yes --json`
	dryRun := c.Switch("dry-run", "look at the board and the bundle, write nothing")
	downgrade := c.Switch("downgrade", "allow an older version than the one that runs")
	otherBoard := c.otherBoard()
	noReboot := c.Switch("no-reboot", "only install: somebody else restarts the board, checks it and marks it good")
	c.rate()
	yes := c.Switch("yes", "do not ask")
	asJSON := c.Switch("json", "print the outcome as JSON")
	c.become()
	c.runPatientlyOn(images.LoadBuilt, func(ctx context.Context, spec images.Spec, words []string, now <-chan struct{}) error {
		host, bundle := words[1], words[2]
		how := ci.UpdateOptions{DryRun: *dryRun, Downgrade: *downgrade, OtherBoard: *otherBoard, NoReboot: *noReboot, Now: now, Out: stderr}
		var err error
		if how.Confirm, err = c.askYes(*yes || *dryRun, notUpdated); err != nil {
			return err
		}
		outcome, err := ci.Update(ctx, options, spec, host, bundle, how)
		return errors.Join(err, ci.ShowUpdate(stdout, outcome, *asJSON))
	})
	c.viaHub(asJSON, c.updateSteps(yes, downgrade), "yes", "json", "downgrade")
	return c
}
