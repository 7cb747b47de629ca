package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"

	"slipway/runtime-hook/internal/config"
	"slipway/runtime-hook/internal/oci"
)

const runtimeUsage = `slipway-hook runtime ARGUMENTS, or slipway-runtime ARGUMENTS

Stands in for runc or crun: where a container that asks for the board's files is
made (create, run), adds to its config.json the board's devices and this hook.
Then, and with all other commands at once, it becomes the real runtime: the first
of runc and crun that is in PATH, or of those that /etc/slipway/hook.toml names.

  docker      {"runtimes": {"slipway": {"path": "/usr/bin/slipway-runtime"}}}
              docker run --runtime slipway -e NVIDIA_VISIBLE_DEVICES=all …
  containerd  (beside an entry for runc, which is needed as soon as there is one)
              [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.slipway]
                runtime_type = "io.containerd.runc.v2"
                options.BinaryName = "/usr/bin/slipway-runtime"
`

// runtimeName is this program's name as the runtime: engines put no argument before the runtime's.
const runtimeName = "slipway-runtime"

// gpusName is the hook that docker calls for --gpus if it is in PATH.
const gpusName = "nvidia-container-runtime-hook"

// runtimeCommand edits the container's config.json if the call creates one, and then execs the real
// runtime. It returns only after help or an error, which it also writes to the runtime's log.
func runtimeCommand(args []string, stdout io.Writer) error {
	if len(args) == 0 || len(args) == 1 && (args[0] == "-h" || args[0] == "--help") {
		_, err := fmt.Fprint(stdout, runtimeUsage)
		return err
	}
	call := parseCall(args)
	err := prepareBundle(call)
	if err == nil {
		// A container can be stopped and deleted whatever is wrong with the settings.
		set, _ := config.Read("/")
		err = execRuntime(set.Runtime.Runtimes, args)
	}
	call.Report(printable(runtimeName + ": " + err.Error()))
	return err
}

// prepareBundle edits the config.json of a container that the call creates, if the container asks
// for the board's files. A missing config.json is no error, because the real runtime reports that.
func prepareBundle(call runtimeCall) error {
	if !call.Creates {
		return nil
	}
	data, err := oci.ReadFile(call.Config)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	edited, asks, err := editSpec(call.Config, data, filepath.Dir(call.Config))
	if err != nil || !asks {
		return err
	}
	return oci.Replace(call.Config, edited)
}
