package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"slipway/images/lint"
	"slipway/layers/run"
)

// machineMemory is what this machine, or the container that this runs in, has.
func machineMemory() (ram, swap uint64, err error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0, 0, err
	}
	ram, swap = info.Totalram*uint64(info.Unit), info.Totalswap*uint64(info.Unit)
	if limit, err := strconv.ParseUint(contentOf("/sys/fs/cgroup/memory.max"), 10, 64); err == nil {
		ram = min(ram, limit)
	}
	return ram, swap, nil
}

// contentOf is a small file of the kernel's, or "".
func contentOf(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

func memory(_ context.Context, p patient) []Finding {
	ram, swap, err := machineMemory()
	if err != nil {
		return []Finding{{"memory", Warning, err.Error(), "it cannot be told whether the build fits", "look at free -h"}}
	}
	need := uint64(p.spec.Build.MemoryGiB) * gib
	if p.spec.Machine != nil {
		need = uint64(p.spec.Machine.RAMMiB)<<20 + gib
	}
	// A machine of 8 GiB has a little less, for the kernel's own.
	if ram+ram/16 < need {
		return []Finding{{"memory", Stops, fmt.Sprintf("%d GiB", ram/gib), fmt.Sprintf("%s wants %d GiB", p.spec.Board, need/gib), "close other programs, or use a larger machine"}}
	}
	if p.spec.Debian != nil {
		return []Finding{ok("memory", "%d GiB", ram/gib)}
	}
	return []Finding{crowd(p, ram, swap, runtime.NumCPU(), os.Getenv)}
}

// crowd reckons how many compilers at a time fit. bitbake runs as many tasks as there
// are processors, and each of them as many compilers; that all of them compile C++ at
// once is rare, so as many as there are processors must fit.
func crowd(p patient, ram, swap uint64, cpus int, env func(string) string) Finding {
	task := uint64(p.spec.Build.TaskMiB) << 20
	fit := max(1, int((ram+swap)/task))
	compilers := numberIn(env("PARALLEL_MAKE"), cpus)
	threads := numberIn(env("BB_NUMBER_THREADS"), cpus)
	if max(compilers, threads) <= fit {
		return ok("memory", "%d GiB, for %d tasks at a time of %d MiB each", ram/gib, threads, task>>20)
	}
	return Finding{
		"memory", Warning, fmt.Sprintf("%d GiB and %d GiB of swap, for %d tasks and %d compilers at a time", ram/gib, swap/gib, threads, compilers),
		fmt.Sprintf("a compiler takes up to %d MiB: the kernel would kill one of them, hours into the build (\"Killed signal terminated program cc1plus\")", task>>20),
		fmt.Sprintf("BB_NUMBER_THREADS=%[1]d PARALLEL_MAKE=\"-j %[1]d\" go tool mage build %[2]s", fit, p.spec.Board),
	}
}

// numberIn is the number in a setting such as "-j 8".
func numberIn(setting string, otherwise int) int {
	n, err := strconv.Atoi(versionNumber.FindString(setting))
	if err != nil {
		return otherwise
	}
	return n
}

// userNamespaces tries what bitbake does before each task: a namespace without a
// network. AppArmor lets that begin and then refuses to map the user.
func userNamespaces(ctx context.Context, p patient) []Finding {
	if r := p.layers.Release(); lint.Before(r, "kirkstone") {
		return []Finding{ok("namespaces", "%s uses none", r)}
	}
	err := run.Run(ctx, run.Command{Argv: []string{"unshare", "--user", "--map-current-user", "--net", "true"}})
	if err == nil {
		return []Finding{ok("namespaces", "a user namespace without a network can be made")}
	}
	f := Finding{"namespaces", Stops, "no user namespace can be made: " + brief(err), "bitbake runs its tasks in one, cut off from the network, and stops where it cannot", "allow user namespaces on this machine; in a container, start it with --security-opt seccomp=unconfined or as a privileged one"}
	for _, limit := range []struct{ path, refuses, fix string }{
		{"/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "kernel.apparmor_restrict_unprivileged_userns=0"},
		{"/proc/sys/kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"},
		{"/proc/sys/user/max_user_namespaces", "0", "user.max_user_namespaces=10000"},
	} {
		if contentOf(limit.path) == limit.refuses {
			f.Fix = "echo " + limit.fix + " | sudo tee /etc/sysctl.d/60-bitbake.conf && sudo sysctl --system"
			break
		}
	}
	return []Finding{f}
}

// brief is what went wrong, in a line: of a program, the last that it said. git says
// after ssh's own words that it could not read, and what that may mean.
func brief(err error) string {
	var failed *run.Failure
	if errors.As(err, &failed) && failed.Tail != "" {
		said, _, _ := strings.Cut(failed.Tail, "\nfatal: Could not read from remote repository")
		return said[strings.LastIndexByte(said, '\n')+1:]
	}
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// What a build of many layers watches, with room for an editor.
const (
	enoughWatches   = 65_536
	enoughInstances = 128
)

// watches looks at inotify, by which bitbake sees changes up to mickledore.
func watches(_ context.Context, p patient) []Finding {
	var bad []Finding
	for _, limit := range []struct {
		name   string
		enough int
	}{{"max_user_watches", enoughWatches}, {"max_user_instances", enoughInstances}} {
		have, err := strconv.Atoi(contentOf("/proc/sys/fs/inotify/" + limit.name))
		if err == nil && have < limit.enough && lint.Before(p.layers.Release(), "nanbield") {
			bad = append(bad, Finding{
				"inotify", Warning, fmt.Sprintf("fs.inotify.%s is %d", limit.name, have),
				"bitbake watches each folder of each layer, and ends with \"No space left on device\" where it may not",
				fmt.Sprintf("echo fs.inotify.%s=%d | sudo tee -a /etc/sysctl.d/60-bitbake.conf && sudo sysctl --system", limit.name, limit.enough),
			})
		}
	}
	if len(bad) > 0 {
		return bad
	}
	return []Finding{ok("inotify", "enough for bitbake %s", p.layers.Release())}
}
