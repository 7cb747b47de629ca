package offload

import (
	"strings"
	"testing"

	"slipway/ci/report"
	"slipway/ci/suite/suitetest"
	"slipway/images"
)

// mldevSays returns output in the form that the source of dpdk-test-mldev 25.11 prints.
func mldevSays(result string) string {
	return "\tdriver               : ml_sw\n\ttest                 : inference_ordered\n" +
		"\x1b[33mError: nothing\x1b[0m\n Average End-to-End Latency (ns)                                  = 1530\n" +
		" Average Throughput (inferences / second)                         = 653594\n" +
		"--------------------------------------------------------------------------------\nResult: \x1b[32m" + result + "\x1b[0m\n"
}

func TestMldev(t *testing.T) {
	inference := images.DPU{Inference: &images.Inference{EAL: []string{"--vdev=ml_sw0"}, Model: "/m", Input: "/i", Reference: "/r", Wrong: "/w"}}
	shared := images.DPU{Inference: &images.Inference{EAL: []string{"--lcores=0@0,1@0,2@1"}, Model: "/m", Input: "/i", Reference: "/r"}}
	const (
		program = "dpdk-test-mldev --vdev=ml_sw0 -- --debug --test="
		right   = program + "inference_ordered --filelist=/m,/i,/tmp/slipway-"
	)
	for _, tt := range []struct {
		name, suite, asked, says string
		spec                     *images.DPU
		want                     string
		proves                   report.Proof
	}{
		{"a device", "mldev: {device_ops: {}}", program + "device_ops", mldevSays("Success"), &inference, "passed: device 0 is ml_sw; Result: Success", report.ProvesSoftware},
		{"a model", "mldev: {x: {test: model_ops}}", program + "model_ops --models=/m", strings.ReplaceAll(mldevSays("Success"), "ml_sw", "ml_cn10k"), &inference, "passed: device 0 is ml_cn10k; Result: Success", report.ProvesHardware},
		{"inference", "mldev: {x: {test: inference_ordered, repetitions: 7, tolerance: 1}}", right, mldevSays("Success"), &inference, "passed: device 0 is ml_sw; Result: Success; latency 1.53 µs; throughput 653594 inferences/s", report.ProvesSoftware},
		{"too slow", "mldev: {inference_ordered: {max-latency: 1, min-throughput: 1000000}}", right, mldevSays("Success"), &inference, "failed: latency 1.53 µs\nthroughput 653594 inferences/s / latency: at most 1 µs\nthroughput: at least 1000000 inferences/s", ""},
		{"lcores that share a CPU", "mldev: {inference_ordered: {within: 30%}}", "dpdk-test-mldev --lcores=0@0,1@0,2@1 -- --debug --test=inference_ordered", mldevSays("Success"), &shared, "passed: device 0 is ml_sw; Result: Success; latency and throughput: not measured: lcores may share a CPU: 0@0,1@0,2@1 (dpu.inference.eal)", report.ProvesSoftware},
		{"a limit, and lcores that share a CPU", "mldev: {inference_ordered: {max-latency: 50}}", "dpdk-test-mldev --lcores=0@0,1@0,2@1 -- --debug --test=inference_ordered", mldevSays("Success"), &shared, "failed: not measured: lcores may share a CPU: 0@0,1@0,2@1 (dpu.inference.eal) / latency and throughput", ""},
		{"lcores that share a CPU, and a test without figures", "mldev: {device_ops: {}}", "dpdk-test-mldev --lcores=0@0,1@0,2@1 -- --debug --test=device_ops", mldevSays("Success"), &shared, "passed: device 0 is ml_sw; Result: Success", report.ProvesSoftware},
		{"failed", "mldev: {inference_ordered: {}}", right, "exit 1\n" + mldevSays("Failed"), &inference, "failed: exit status 1", ""},
		{"its status is 0, and it passed nothing", "mldev: {device_ops: {}}", program, mldevSays("Unsupported"), &inference, "failed: exit status 0", ""},
		{"it says both", "mldev: {device_ops: {}}", program, mldevSays("Success") + mldevSays("Failed"), &inference, "failed: exit status 0", ""},
		{"it says nothing", "mldev: {device_ops: {}}", program, "exit 1\n", &inference, "failed: exit status 1, no output", ""},
		{"no figures", "mldev: {inference_ordered: {}}", right, "Result: Success\n", &inference, "failed: the output has none", ""},
		{"a wrong reference", "mldev: {inference_ordered: {wrong: true}}", right, "exit 1\n" + mldevSays("Failed"), &inference, "passed: device 0 is ml_sw; a wrong reference is found out: Result: Failed", report.ProvesSoftware},
		{"a wrong reference that passes", "mldev: {inference_ordered: {wrong: true}}", right, mldevSays("Success"), &inference, "failed: exit status 0", ""},
		{"a wrong reference, and nothing was compared", "mldev: {inference_ordered: {wrong: true}}", right, mldevSays("Unsupported"), &inference, "failed: exit status 0", ""},
		{"a wrong reference, and the program fell over", "mldev: {inference_ordered: {wrong: true}}", right, "exit 1\nsegfault\n", &inference, "failed: exit status 1", ""},
		{"no model", "mldev: {device_ops: {}}", "", "", &images.DPU{}, "skipped: the board's board.yml has no dpu.inference", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			answers := suitetest.Recorded{"true": "", "mkdir -m 700 /tmp/slipway-": "", "rm -rf /tmp/slipway-": "", tt.asked: tt.says}
			d := &simulatedDPU{recorded: answers}
			r := d.runCheck(t, tt.spec, tt.suite)
			if strings.Contains(tt.want, "not measured") && len(r.Metrics) > 0 {
				t.Errorf("metrics %v; want none", r.Metrics)
			}
			if got := suitetest.FormatResult(r); !strings.HasPrefix(got, tt.want) || r.Proves != tt.proves {
				t.Errorf("proves %q: %s\nwant %q: %s", r.Proves, got, tt.proves, tt.want)
			}
		})
	}
}

// The other input is used in the same run. A device that always gives the first answer
// would pass in a run of its own.
func TestMldevOtherInput(t *testing.T) {
	i := images.Inference{Model: "/m", Input: "/i", Reference: "/r", OtherInput: "/i2", OtherReference: "/r2", Wrong: "/w"}
	for wrong, want := range map[bool]string{
		false: "--filelist=/m,/i,/d/output,/r --filelist=/m,/i2,/d/other-output,/r2 --repetitions=1 ",
		true:  "--filelist=/m,/i,/d/output,/w --repetitions=1 ",
	} {
		if got := strings.Join(mldev{test: "inference_ordered", wrong: wrong, repetitions: 1}.argv(i, "/d"), " "); !strings.Contains(got, want) {
			t.Errorf("wrong %v: argv = %s; want %s", wrong, got, want)
		}
	}
	i.OtherModel = "/m2"
	if got := strings.Join(mldev{test: "inference_interleave"}.argv(i, "/d"), " "); !strings.Contains(got, "=/m,/i,/d/output,/r --filelist=/m2,/i2,/d/other-output,/r2 ") {
		t.Errorf("argv = %s; want the other model for the other input", got)
	}
}

func FuzzMldev(f *testing.F) {
	f.Add(mldevSays("Success"))
	f.Add("Result: \x1b[33mUnsupported\x1b[0m\n")
	f.Fuzz(func(t *testing.T, text string) {
		o := parseMldev(text)
		if o.result != "" && !strings.Contains(text, o.result) || strings.ContainsAny(o.driver, " \n\x1b") {
			t.Errorf("%+v", o)
		}
		if v := o.latencyNS; v != nil && *v < 0 {
			t.Errorf("latency %v", *v)
		}
	})
}

func TestSharedCPU(t *testing.T) {
	const may = "lcores may share a CPU: "
	for _, tt := range []struct{ name, eal, want string }{
		{"nothing is said", "--vdev=ml_sw0 --no-huge", ""},
		{"a CPU each", "--lcores=0@0,1@1,2@2", ""},
		{"the rig's", "--lcores=0@0,1@0,2@1 --no-huge", may + "0@0,1@0,2@1"},
		{"the last two", "--no-huge --lcores 0@0,1@1,2@1", may + "0@0,1@1,2@1"},
		{"all on one", "--lcores=(0-2)@0", may + "(0-2)@0"},
		{"all on one, with no CPU named", "--lcores=(0,6)", may + "(0,6)"},
		{"a range of lcores", "--lcores=0-3", ""},
		{"a range on one CPU", "--lcores=0-2@3", may + "0-2@3"},
		{"a CPU and the number of an lcore", "--lcores=0@1,1", may + "0@1,1"},
		{"the short option", "-l 0-2", ""},
		{"the short option, in one word", "-l0@0,1@0", may + "0@0,1@0"},
		{"no value", "--no-huge --lcores", ""},
		{"no map", "--lcores=two@one\x1b", may + "two@one"},
	} {
		if got := sharedCPU(strings.Fields(tt.eal)); got != tt.want {
			t.Errorf("%s: sharedCPU(%s) = %q; want %q", tt.name, tt.eal, got, tt.want)
		}
	}
}
