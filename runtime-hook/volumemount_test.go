package main

import (
	"os"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// deviceMount names a device as a mount of the container.
func deviceMount(name string) func(*specs.Spec) {
	return func(s *specs.Spec) {
		s.Mounts = append(s.Mounts, specs.Mount{Destination: "/var/run/nvidia-container-devices/" + name, Type: "bind", Source: "/dev/null", Options: []string{"bind"}})
	}
}

func privileged(s *specs.Spec) {
	caps := []string{"CAP_SYS_ADMIN"}
	s.Process.Capabilities = &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps}
}

// Who may request devices, and how, is the board's choice: by the environment, by
// mounts, or by both.
func TestWhoMayRequestDevices(t *testing.T) {
	const (
		mounts     = "accept-nvidia-visible-devices-as-volume-mounts = true\n"
		noVariable = "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n"
		everything = "nvidia0 nvidia1 nvidiactl "
		ignored    = "gave nothing: it is not privileged, and /etc/slipway/hook.toml takes NVIDIA_VISIBLE_DEVICES from privileged containers only"
	)
	tests := []struct {
		name, settings string
		env            []string
		spec           func(*specs.Spec)
		want, said     string
	}{
		{"a mount", mounts, nil, deviceMount("all"), everything, ""},
		{"a mount by CDI's name", mounts, nil, deviceMount("cdi/nvidia.com/gpu/1"), "nvidia1 nvidiactl ", ""},
		{"a mount where mounts count for nothing", "", nil, deviceMount("all"), "", ""},
		{"a mount over the variable", mounts, all, deviceMount("0"), "nvidia0 nvidiactl ", ""},
		{"the variable where mounts count", mounts, all, nil, everything, ""},
		{"a mount of nonsense", mounts, nil, deviceMount("nonsense"), "", `names "nonsense", which is no name of a GPU`},
		{"the variable of one that is not privileged", noVariable, all, nil, "", ignored},
		{"nonsense of one that is not privileged", noVariable, []string{"NVIDIA_VISIBLE_DEVICES=nonsense"}, nil, "", ignored},
		{"the variable of a privileged one", noVariable, all, privileged, everything, ""},
		{"a mount of one that is not privileged", mounts + noVariable, all, deviceMount("0"), "nvidia0 nvidiactl ", ""},
		{"no variable", noVariable, nil, nil, "", ""},
	}
	run := func(t *testing.T, l *lab, stage string) {
		l.lists("dev, /dev/nvidia[0-9]", "dev, /dev/nvidiactl")
		twoGPUs(t, l)
		for _, tt := range tests {
			os.RemoveAll("/run/slipway")
			write(t, "/etc/slipway/hook.toml", tt.settings)
			must(t, os.Chmod("/etc/slipway/hook.toml", 0o644))
			out, err := l.runContainer(container{stage: stage, env: tt.env, spec: tt.spec, script: `for f in /dev/nvidia*; do test -c $f && printf "%s " ${f##*/}; done; :`})
			log, _ := os.ReadFile("/run/slipway/hook.log")
			said := string(log)
			if err != nil {
				said += err.Error()
			}
			if out != tt.want || !strings.Contains(said, tt.said) || strings.Contains(said, "gave nothing") != (tt.said == ignored) {
				t.Errorf("%s: the container has %q, and it says %q; want %q, %q", tt.name, out, said, tt.want, tt.said)
			}
		}
	}
	t.Run("hook", func(t *testing.T) {
		l := newLab(t, "runc")
		l.shell()
		run(t, l, "createRuntime")
	})
	t.Run("runtime", func(t *testing.T) { run(t, wrappedLab(t, "crun"), "") })
}

// What an engine gave by CDI a container gets without being privileged.
func TestCDINeedsNoPrivilege(t *testing.T) {
	l := newLab(t, "runc")
	l.shell()
	write(t, "/opt/board/a.so", "board a")
	l.lists("lib, /opt/board/a.so")
	write(t, "/etc/slipway/hook.toml", "accept-nvidia-visible-devices-envvar-when-unprivileged = false\naccept-nvidia-visible-devices-as-volume-mounts = true\n")
	must(t, os.Chmod("/etc/slipway/hook.toml", 0o644))
	out, err := l.runContainer(container{stage: "createRuntime", env: []string{"NVIDIA_VISIBLE_DEVICES=void"}, script: "cat /opt/board/a.so", spec: func(s *specs.Spec) {
		deviceMount("7")(s)
		s.Hooks.CreateRuntime[0].Args = append(s.Hooks.CreateRuntime[0].Args, "--devices=all")
	}})
	if err != nil || out != "board a" {
		t.Errorf("the container saw %q, %v; want what CDI gave it", out, err)
	}
}
