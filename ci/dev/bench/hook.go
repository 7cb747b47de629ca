package bench

// hookMethods are ways to add the board's files to a container: plain runc (which adds none),
// wrappers of runc, and runc with a hook. floor is the fastest possible hook or wrapper, unchecked.
var hookMethods = []struct{ name, runtime, hook string }{
	{"plain runc", "runc", "plain"},
	{"nvidia-container-runtime, csv", "{peers}/nvidia-container-runtime", "none"},
	{"slipway-hook, createRuntime", "runc", "hook"},
	{"slipway-hook runtime", "{program} runtime", "none"},
	{"floor, createRuntime", "runc", "floor"},
	{"floor runtime", "{dir}/floor runtime", "floor"},
}

var hookMedia = []string{"tmpfs", "disk"}

// hook measures the cost of adding the board's files to a container: the life of a runc
// container (create, start, exit, delete) on a new overlay, in memory and on a disk.
var hook = area{
	rounds:   30,
	packages: []string{"runc", "mount", "binutils", "e2fsprogs", "busybox-static", "python3"},
	root:     true, mounts: true,
	variants: hookVariants(),
	ratios:   hookRatios(),
}

// hookVariants returns a variant of each method on each medium.
func hookVariants() (all []variant) {
	for _, medium := range hookMedia {
		for _, m := range hookMethods {
			all = append(all, variant{
				name: medium + ": " + m.name, command: "python3 -I -S {clone}/ci/dev/bench/life.py {board} " + m.runtime, ours: m.hook == "hook",
				prepare: "prepare " + medium + " " + m.hook, check: "check " + medium + " " + m.hook,
			})
		}
	}
	return all
}

// hookRatios returns ratios of what Slipway's hook and wrapper add to plain runc, to what NVIDIA's
// and the floor add, in elapsed time and in CPU time.
func hookRatios() (all []ratio) {
	for _, medium := range hookMedia {
		for _, r := range []ratio{
			{name: "hook_over_peer_", over: "slipway-hook, createRuntime", under: "nvidia-container-runtime, csv"},
			{name: "hook_over_floor_", over: "slipway-hook, createRuntime", under: "floor, createRuntime"},
			{name: "wrapper_over_peer_", over: "slipway-hook runtime", under: "nvidia-container-runtime, csv"},
			{name: "wrapper_over_wrapper_floor_", over: "slipway-hook runtime", under: "floor runtime"},
		} {
			for _, of := range []struct {
				name   string
				values func(row) []float64
			}{{"added_", elapsedSeconds}, {"cpu_", processorSeconds}} {
				all = append(all, ratio{
					name: of.name + r.name + medium, of: of.values,
					over: medium + ": " + r.over, under: medium + ": " + r.under, base: medium + ": plain runc",
				})
			}
		}
	}
	return all
}
