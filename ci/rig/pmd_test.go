package rig

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const drivers = "../../recipes/dynamic-layers/dpdk"

// The parts of our drivers that need no DPDK are compiled and tested on this
// machine, by the tests that are their ptest on a board.
func TestDriversWithoutDPDK(t *testing.T) {
	tests := []struct {
		name    string
		recipe  string
		sources []string
		want    int // results
	}{
		{"swflow", "dpdk-swflow", []string{"test_swflow.c", "swflow.c", "packet.c"}, 12},
		{"ml-sw", "dpdk-ml-sw", []string{"test_dense.c", "dense.c"}, 4},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			program := compile(t, filepath.Join(drivers, test.recipe, "files"), test.sources)
			out, err := exec.CommandContext(t.Context(), program).CombinedOutput()
			if err != nil {
				t.Errorf("%s: %v", test.name, err)
			}
			if got := bytes.Count(out, []byte("PASS: ")); got != test.want || bytes.Contains(out, []byte("FAIL: ")) {
				t.Errorf("%s: %d results passed; want %d, and none failed:\n%s", test.name, got, test.want, out)
			}
		})
	}
}

// The sanitizers see what is read beyond a frame's end; where their libraries
// are missing, the tests say less, but run.
func compile(t *testing.T, folder string, sources []string, flags ...string) string {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("gcc is not in PATH; apt install gcc libc6-dev")
	}
	program := filepath.Join(t.TempDir(), "test")
	args := []string{"-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-o", program}
	for _, source := range sources {
		args = append(args, filepath.Join(folder, source))
	}
	args = append(append(args, flags...), "-lm")
	sanitized := append([]string{"-fsanitize=address,undefined", "-fno-sanitize-recover=all"}, args...)
	out, err := exec.CommandContext(t.Context(), gcc, sanitized...).CombinedOutput()
	if err == nil {
		return program
	}
	t.Logf("not with sanitizers: %s", strings.TrimSpace(string(out)))
	if out, err := exec.CommandContext(t.Context(), gcc, args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return program
}
