package bench

import "fmt"

// placeWays are ways to write an image to all devices in a file. The limits neither unpack nor prove.
var placeWays = []struct{ name, command, check string }{
	{"ours", "xargs -a {ram}/%d {dir}/sender place %[1]d {map} {zst}", "check"},
	{"bmaptool", "xargs -a {ram}/%d -P 99 -I@ bmaptool -q copy --bmap {map} {zst} @", "check"},
	{"tee", "sh -eu ci/dev/bench/tee.sh {zst} {ram}/%d", "check"},
	{"limit", "xargs -a {ram}/%d -P 99 -I@ {dir}/sender device @ {map}", "check none"},
	{"limit read back", "xargs -a {ram}/%d -P 99 -I@ {dir}/sender twice @ {map}", "check none"},
}

// newPlace returns the area of the time that it takes to write a zst image, a third of it mapped, to
// many used loop devices at once. Image and devices are in memory. Only ours and one limit read back.
// Ratios to the limit leave out that the image is prepared once.
func newPlace() area {
	a := area{rounds: 3, mib: 512, packages: []string{"bmap-tools", "mount", "zstd"}, root: true, mounts: true, variants: []variant{
		{name: "ours prepared", command: "{dir}/sender place 0 {map} {zst}", prepare: "prepare 0"},
		{name: "ours 8 and slow", command: `sh -c "echo 0 >{group}/cgroup.procs; exec xargs -a {ram}/9 {dir}/sender place 8 {map} {zst}"`, prepare: "prepare 9", check: "check 8", copies: 8},
	}}
	for _, n := range []int{1, 2, 4, 8, 16} {
		for _, w := range placeWays {
			a.variants = append(a.variants, variant{name: fmt.Sprint(w.name, " ", n), command: fmt.Sprintf(w.command, n), prepare: fmt.Sprint("prepare ", n), check: fmt.Sprint(w.check, " ", n), copies: n})
		}
		for i, of := range []func(row) []float64{elapsedSeconds, processorSeconds} {
			prefix, ours := []string{"", "cpu_"}[i], fmt.Sprint("ours ", n)
			a.ratios = append(a.ratios,
				ratio{name: fmt.Sprint(prefix, "bmaptool_over_ours_", n), over: fmt.Sprint("bmaptool ", n), under: ours, of: of},
				ratio{name: fmt.Sprint(prefix, "tee_over_ours_", n), over: fmt.Sprint("tee ", n), under: ours, of: of},
				ratio{name: fmt.Sprint(prefix, "ours_over_limit_", n), over: ours, under: fmt.Sprint("limit read back ", n), base: "ours prepared", baseOver: true, of: of})
		}
	}
	return a
}
