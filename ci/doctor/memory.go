package doctor

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"slipway/images/builder"
	"slipway/images/lint"
	"slipway/layers/host"
	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// machineMemory returns this machine's memory, up to a cgroup's limit as in a container, and swap.
func machineMemory() (ram, swap uint64, err error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0, 0, err
	}
	ram, swap = info.Totalram*uint64(info.Unit), info.Totalswap*uint64(info.Unit)
	if limit, err := strconv.ParseUint(readKernelFile("/sys/fs/cgroup/memory.max"), 10, 64); err == nil {
		ram = min(ram, limit)
	}
	return ram, swap, nil
}

// readKernelFile returns the text of a file in /proc or /sys, trimmed, or "" if it is unreadable.
func readKernelFile(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// checkMemory compares the memory with the need of the virtual machine, or else of the build. Too
// little stops. For bitbake, checkParallel then compares the memory with the needs of its tasks.
func checkMemory(_ context.Context, p boardBuild) []Finding {
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
		return []Finding{okFinding("memory", "%d GiB", ram/gib)}
	}
	return []Finding{checkParallel(p, ram, swap, runtime.NumCPU(), os.Getenv)}
}

// checkParallel warns if ram and swap are too small for the tasks or compilers that bitbake may
// run, by env or else by cpus. Tasks rarely compile C++ all at once, so the larger number counts.
func checkParallel(p boardBuild, ram, swap uint64, cpus int, env func(string) string) Finding {
	task := uint64(p.spec.Build.TaskMiB) << 20
	fit := max(1, int((ram+swap)/task))
	compilers := numberIn(env("PARALLEL_MAKE"), cpus)
	threads := numberIn(env("BB_NUMBER_THREADS"), cpus)
	if max(compilers, threads) <= fit {
		return okFinding("memory", "%d GiB, for %d tasks at a time of %d MiB each", ram/gib, threads, task>>20)
	}
	return Finding{
		"memory", Warning, fmt.Sprintf("%d GiB and %d GiB of swap, for %d tasks and %d compilers at a time", ram/gib, swap/gib, threads, compilers),
		fmt.Sprintf("a compiler takes up to %d MiB: the kernel would kill one of them, hours into the build (\"Killed signal terminated program cc1plus\")", task>>20),
		fmt.Sprintf("BB_NUMBER_THREADS=%[1]d PARALLEL_MAKE=\"-j %[1]d\" %[2]s build %[3]s", fit, host.ProgramName(), plaintext.Quote(p.spec.TypedName())),
	}
}

// numberIn returns the first number in a setting such as "-j 8". Without one it returns otherwise.
func numberIn(setting string, otherwise int) int {
	n, err := strconv.Atoi(versionNumber().FindString(setting))
	if err != nil {
		return otherwise
	}
	return n
}

// checkUserNamespaces creates a user namespace without a network, as bitbake from kirkstone on does
// before each task. AppArmor may allow the namespace but refuse to map the user.
func checkUserNamespaces(ctx context.Context, p boardBuild) []Finding {
	if r := p.layers.Release(); lint.Before(r, "kirkstone") {
		return []Finding{okFinding("namespaces", "%s uses none", r)}
	}
	err := run.Run(ctx, run.Command{Argv: []string{"unshare", "--user", "--map-current-user", "--net", "true"}})
	if err == nil {
		return []Finding{okFinding("namespaces", "a user namespace without a network can be made")}
	}
	return []Finding{{"namespaces", Stops, "no user namespace can be made: " + run.LastLine(err), "bitbake runs its tasks in one, cut off from the network, and stops where it cannot", builder.AllowNamespaces()}}
}

// What a build with many layers and an editor beside it need of inotify.
const (
	enoughWatches   = 65_536
	enoughInstances = 128
)

// checkWatches checks the limits of inotify, by which bitbake up to mickledore watches folders.
func checkWatches(_ context.Context, p boardBuild) []Finding {
	var bad []Finding
	for _, limit := range []struct {
		name   string
		enough int
	}{{"max_user_watches", enoughWatches}, {"max_user_instances", enoughInstances}} {
		have, err := strconv.Atoi(readKernelFile("/proc/sys/fs/inotify/" + limit.name))
		if err == nil && have < limit.enough && lint.Before(p.layers.Release(), "nanbield") {
			bad = append(bad, Finding{
				"inotify", Warning, fmt.Sprintf("fs.inotify.%s is %d", limit.name, have),
				"bitbake watches each folder of each layer, and ends with \"No space left on device\" if it may not",
				fmt.Sprintf("echo fs.inotify.%s=%d | sudo tee -a /etc/sysctl.d/60-bitbake.conf && sudo sysctl --system", limit.name, limit.enough),
			})
		}
	}
	if len(bad) > 0 {
		return bad
	}
	return []Finding{okFinding("inotify", "enough for bitbake %s", p.layers.Release())}
}
