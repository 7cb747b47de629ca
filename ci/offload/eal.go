package offload

import (
	"fmt"
	"strconv"
	"strings"

	"slipway/layers/plaintext"
)

// maxLcore is above the numbers of lcores and CPUs that DPDK is built for.
const maxLcore = 4095

// lcoreGroup is one part of the EAL option --lcores: lcores, and the CPUs that each may run on.
var lcoreGroup = plaintext.Regexp(`(\([\d,-]+\)|\d+(?:-\d+)?)(?:@(\([\d,-]+\)|\d+(?:-\d+)?))?(?:,|$)`)

// sharedCPU returns a description of two lcores in the EAL arguments that may run on one CPU, or
// "". EAL gives each lcore its own CPU unless --lcores says otherwise. If lcores share a CPU,
// packets and inferences wait for the kernel's scheduler.
func sharedCPU(eal []string) string {
	owner := map[int]int{}
	for _, m := range lcoreGroup().FindAllStringSubmatch(lcoreMap(eal), -1) {
		lcores, cpus := parseNumberSet(m[1]), parseNumberSet(m[2])
		if m[2] == "" && strings.HasPrefix(m[1], "(") {
			cpus = lcores // a group without CPUs runs on the CPUs with the same numbers
		}
		for _, lcore := range lcores {
			own := cpus
			if len(own) == 0 {
				own = []int{lcore}
			}
			for _, cpu := range own {
				if other, taken := owner[cpu]; taken && other != lcore {
					return fmt.Sprintf("lcores %d and %d share CPU %d", other, lcore, cpu)
				}
				owner[cpu] = lcore
			}
		}
	}
	return ""
}

// lcoreMap returns the value of --lcores, or of -l, which newer releases read in the same
// way.
func lcoreMap(eal []string) string {
	for i, word := range eal {
		if value, found := strings.CutPrefix(word, "--lcores="); found {
			return value
		}
		if (word == "--lcores" || word == "-l") && i+1 < len(eal) {
			return eal[i+1]
		}
		if value, found := strings.CutPrefix(word, "-l"); found {
			return value
		}
	}
	return ""
}

// parseNumberSet reads EAL's sets of numbers, such as 3, 0-2 or (0,4-6). It skips what is
// not a set: EAL itself refuses that.
func parseNumberSet(set string) (all []int) {
	for part := range strings.SplitSeq(strings.Trim(set, "()"), ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err := strconv.Atoi(first)
		to, err2 := strconv.Atoi(last)
		if err != nil || err2 != nil || max(from, to) > maxLcore {
			continue
		}
		for n := min(from, to); n <= max(from, to); n++ {
			all = append(all, n)
		}
	}
	return all
}
