package oci

import (
	"path"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// deviceMounts is the folder in which a container names devices by mounts: Kubernetes
// lets a user choose a container's environment, but not always its mounts.
const deviceMounts = "/var/run/nvidia-container-devices/"

// deviceMount returns the device that m names: the rest of its path, if it mounts the
// board's /dev/null. After cdi/ comes a device's CDI name.
func deviceMount(m specs.Mount) (name string, ok bool) {
	name, ok = strings.CutPrefix(path.Clean(m.Destination), deviceMounts)
	if !ok || path.Clean(m.Source) != "/dev/null" || strings.HasPrefix(name, "imex/") {
		return "", false
	}
	name, isCDI := strings.CutPrefix(name, "cdi/")
	if isCDI && !strings.Contains(name, "=") {
		// vendor/class/device
		if at := strings.LastIndexByte(name, '/'); at > 0 {
			name = name[:at] + "=" + name[at+1:]
		}
	}
	return name, true
}
