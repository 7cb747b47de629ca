package ci

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A trtexec of ours plays TensorRT on a board: a plan runs there, and one with another
// board's label is not even read.
func TestTensorRTPlan(t *testing.T) {
	script, err := filepath.Abs("suite/workloads/tensorrt/tensorrt-plan.sh")
	if err != nil {
		t.Fatal(err)
	}
	const trtexec = `#!/bin/sh
echo "$*" >>"$CALLS"
echo "&&&& RUNNING TensorRT.trtexec [TensorRT v$VERSION] [b10] # trtexec $*"
for a; do case $a in
--saveEngine=*) save=${a#*=} ;;
--loadEngine=*) load=${a#*=} ;;
--bad) exit 9 ;;
esac; done
[ -z "${GPU-}" ] || echo "[11/27/2026-03:00:00] [I] Compute Capability: $GPU"
if [ -n "${save-}" ]; then [ -n "${LOST-}" ] || echo a plan >"$save"
elif [ ! -s "$load" ]; then echo "&&&& FAILED TensorRT.trtexec"; exit 1
elif [ -n "${BROKEN-}" ]; then echo "[E] it is not a plan"; exit 1
else echo "MemAvailable: 900000 kB" >"$MEMINFO"; sleep 0.4
  echo "[11/27/2026-03:00:00] [I] Throughput: 60 qps"
  echo "[11/27/2026-03:00:00] [I] Latency: min = 1 ms, max = 3 ms, mean = 2 ms, median = 2 ms, percentile(99%) = 3 ms"
fi
echo "&&&& PASSED TensorRT.trtexec [TensorRT v$VERSION] [b10] # trtexec $*"
`
	for _, tt := range []struct {
		name, option string
		env          []string
		ok           bool
		want         []string
	}{
		{"a board with a GPU", "--fp16", []string{"GPU=8.7"}, true, []string{
			"OK built a plan for compute 8.7 TensorRT 100300\nplan=0 KiB\n", "REFUSED a plan for compute 0.0 TensorRT 100300: the board has compute 8.7 TensorRT 100300\n",
			"Throughput: 60 qps", "percentile(99%) = 3 ms", "memory=97 MiB\n", "Result = PASS\n",
		}},
		{"a plan that is the same everywhere", "", []string{"GPU=0.0"}, false, []string{"FAIL refusal", "Result = FAIL\n"}},
		{"an option that trtexec lacks", "--bad", []string{"GPU=8.7"}, false, []string{"FAIL build: trtexec ended with 9\n", "Result = FAIL\n"}},
		{"no plan", "", []string{"GPU=8.7", "LOST=1"}, false, []string{"FAIL build: no plan\n"}},
		{"no GPU", "", nil, false, []string{"FAIL label: trtexec names no GPU or no version\n"}},
		{"a plan that does not run", "", []string{"GPU=8.7", "BROKEN=1"}, false, []string{"it is not a plan", "FAIL run\n"}},
	} {
		dir := t.TempDir()
		calls, meminfo, program := filepath.Join(dir, "calls"), filepath.Join(dir, "meminfo"), filepath.Join(dir, "trtexec")
		if err := errors.Join(os.WriteFile(program, []byte(trtexec), 0o700), os.WriteFile(meminfo, []byte("MemTotal: 2000000 kB\nMemAvailable: 1000000 kB\n"), 0o600), os.Mkdir(filepath.Join(dir, "tmp"), 0o700)); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("sh", script)
		if tt.option != "" {
			cmd.Args = append(cmd.Args, tt.option)
		}
		cmd.Env = append(os.Environ(), append(tt.env, "VERSION=100300", "TRTEXEC="+program, "CALLS="+calls, "MEMINFO="+meminfo, "TMPDIR="+filepath.Join(dir, "tmp"))...)
		out, err := cmd.CombinedOutput()
		if (err == nil) != tt.ok {
			t.Errorf("%s: %v\n%s", tt.name, err, out)
		}
		for _, want := range tt.want {
			if !strings.Contains(string(out), want) {
				t.Errorf("%s: printed\n%s\nwant %q", tt.name, out, want)
			}
		}
		called, err := os.ReadFile(calls)
		if strings.Contains(string(called), "other") != (tt.name == "a plan that is the same everywhere") || err != nil {
			t.Errorf("%s: trtexec read a plan of another board: %v\n%s", tt.name, err, called)
		}
		if left, err := os.ReadDir(filepath.Join(dir, "tmp")); err != nil || len(left) > 0 {
			t.Errorf("%s: left behind %v, %v", tt.name, left, err)
		}
	}
}
