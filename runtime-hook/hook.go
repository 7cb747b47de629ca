package main

import (
	"flag"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"slipway/runtime-hook/internal/choose"
	"slipway/runtime-hook/internal/config"
	"slipway/runtime-hook/internal/inject"
	"slipway/runtime-hook/internal/ldcache"
	"slipway/runtime-hook/internal/oci"
	"slipway/runtime-hook/internal/plan"
)

const hookUsage = `slipway-hook hook [--devices NAMES]

Runs as an OCI hook at createRuntime or prestart: reads the container's state from
standard input and, where the container's environment has NVIDIA_VISIBLE_DEVICES
(other than empty or void), mounts what the board's CSV files list into it. Each
container leaves one line on standard error and in /run/slipway/hook.log.
/etc/slipway/hook.toml changes that.

In a hooks folder (podman, cri-o) or a spec's "hooks":

  {"path": "/usr/bin/slipway-hook", "args": ["slipway-hook", "hook"],
   "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]}

  --devices NAMES  in the place of the container's NVIDIA_VISIBLE_DEVICES: CDI specs
                   say so what a container was given
  --looked NS      the board's uptime when slipway-runtime looked at its files for the
                   container: for two seconds the hook does not look again
`

// hookCommand runs "slipway-hook hook": it reads the container's state from stdin, mounts the
// board's files into the container if it requests them, and writes a line to the log and to stderr.
func hookCommand(args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("hook", flag.ContinueOnError)
	devices := flags.String("devices", "", "")
	looked := flags.Int64("looked", 0, "")
	if done, err := parseFlags(flags, hookUsage, args, stdout, stderr); done {
		return err
	}
	state, err := oci.ReadState(stdin)
	if err != nil {
		return err
	}
	config, wanted, err := readContainer(state, *devices)
	if err == nil && !wanted.Wants() {
		return nil
	}
	wanted.looked = lookedJustNow(*looked)
	log := openLog(wanted.Log.File)
	defer log.Close()
	line := ""
	if err == nil {
		line, err = injectFiles(state, config, wanted)
	}
	if err != nil {
		line = "failed: " + err.Error()
	}
	line = fmt.Sprintf("container %s: %s\n", printable(state.ID), printable(line))
	log.WriteString(line)
	if err != nil {
		return fmt.Errorf("container %s: %w", printable(state.ID), err)
	}
	// An error of this write is ignored, as with the log: no container fails for it.
	fmt.Fprint(stderr, "slipway-hook: ", line)
	return nil
}

// injectFiles mounts the board's files, tries to allow devices, and returns the log line.
func injectFiles(state oci.State, config oci.Config, wanted request) (string, error) {
	if !config.MountNamespace {
		return "", fmt.Errorf("%s: linux.namespaces has no mount; nothing can be given to this container alone", filepath.Join(state.Bundle, "config.json"))
	}
	p, notes, err := wanted.planShare()
	if err != nil {
		return "", err
	}
	process, err := inject.Find(state.Pid)
	if err != nil {
		return "", err
	}
	nodes, rules := missingDevices(config, p.Devices)
	if err := process.Allow(rules); err != nil {
		notes = append(notes, err.Error())
	}
	if gids := missingGroups(config, nodes); len(gids) > 0 && !config.RunsAsRoot() {
		notes = append(notes, fmt.Sprintf("the container's user is in none of the groups %v, which may open devices of the board: use slipway-runtime or CDI, or name the groups to the engine (--group-add)", gids))
	}
	there := len(p.Devices) - len(nodes)
	p.Devices = nodes
	res, err := wanted.applyPlan(process, config, p)
	res.Devices += there
	return summaryLine(res, append(res.Skipped, notes...)), err
}

// applyPlan enters the container's mount namespace, makes the files, links and devices in p that
// the container lacks, and updates its linker cache. The thread keeps the namespace, and umask 0.
func (r request) applyPlan(process inject.Process, config oci.Config, p plan.Plan) (inject.Result, error) {
	if err := process.Enter(); err != nil {
		return inject.Result{}, err
	}
	root, err := process.Open(config.Rootfs)
	if err != nil {
		return inject.Result{}, err
	}
	defer root.Close()
	root.SkipMounts(config.ReadOnly)
	if config.Shared {
		if err := root.ReadSharedMounts(); err != nil {
			return inject.Result{}, err
		}
	}
	unix.Umask(0)
	res, err := root.Apply(root.Lacks(p))
	if res.Changed {
		p.Libraries = slices.DeleteFunc(slices.Clone(p.Libraries), func(l plan.Library) bool { return root.IsBlank(l.Path) })
	}
	if err == nil {
		var newer []plan.Library
		res.Compat, newer = r.findCompat(root)
		res.Skipped = append(res.Skipped, ldcache.Update(root, append(newer, p.Libraries...))...)
	}
	return res, err
}

// findCompat returns the image's CUDA driver libraries and their folder, if the settings allow them
// and they are newer than the board's.
func (r request) findCompat(root *inject.Root) (dir string, libs []plan.Library) {
	if r.CompatDir == "" || r.CompatDir == config.Auto && !root.Has("/usr/local/cuda") {
		return "", nil
	}
	board := choose.ReadBoard("/")
	if dir = r.CompatDir; dir == config.Auto {
		dir = board.CompatDir()
	}
	if dir == "" || board.CUDA == "" {
		return "", nil
	}
	names := root.Names(dir)
	driver, ok := findImageDriver(names)
	if !ok || !choose.Newer(driverCUDA(root, path.Join(dir, driver)), board.CUDA) {
		return "", nil
	}
	return dir, listLibraries(root, dir, names)
}
