package offload

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"slipway/ci/report"
	"slipway/ci/suite"
	"slipway/flash/boardssh"
	"slipway/images"
	"slipway/layers/plaintext"
	"slipway/layers/yaml"
)

// mldev is the check that runs one test of dpdk-test-mldev with the model in board.yml.
type mldev struct {
	test                string
	wrong               bool // use the wrong reference, so that the test must fail
	repetitions         int64
	tolerance           *float64 // in percent
	latency, throughput suite.Limits
}

// mldevTests maps the tests of dpdk-test-mldev to whether they load a model and whether they run
// it.
var mldevTests = map[string]struct{ model, inference bool }{
	"device_ops": {}, "model_ops": {model: true},
	"inference_ordered": {inference: true}, "inference_interleave": {inference: true},
}

// readMldev parses a check of the section mldev: the test of dpdk-test-mldev, its options, and
// limits for latency and throughput.
func readMldev(e *suite.Entry) suite.Probe {
	e.Limit = 2 * time.Minute
	m := mldev{test: e.Text("test", e.Name), repetitions: e.Number("repetitions", 1000, 1, 10_000_000), tolerance: e.Decimal("tolerance")}
	kind, known := mldevTests[m.test]
	if !known {
		e.Fail(e.Key, "unknown test %q of dpdk-test-mldev (have device_ops, model_ops, inference_ordered, inference_interleave)", m.test)
	}
	if m.wrong = e.Bool("wrong", false); m.wrong && !kind.inference {
		e.Fail(e.Key, "wrong is for tests of inference: others compare nothing")
	}
	if t := m.tolerance; t != nil && (*t < 0 || *t > 100) {
		e.Fail(e.Fields["tolerance"], "tolerance must be a percentage from 0 to 100")
	}
	m.latency, m.throughput = suite.Limits{Max: e.Decimal("max-latency")}, suite.Limits{Min: e.Decimal("min-throughput")}
	m.latency.Within = e.Percent("within")
	m.throughput.Within = m.latency.Within
	return m
}

// Alone returns true because other checks would slow down what is measured.
func (mldev) Alone() bool { return true }

func (mldev) Next() string {
	return "on the board: dpdk-test-mldev with the arguments of dpu.inference.eal in board.yml, -- --debug and the same --test. It wants three EAL cores: --lcores 0@0,1@0,2@1"
}

// Inspect runs the test on the board with a temporary folder for output, and checks the result.
func (m mldev) Inspect(ctx context.Context, s *suite.Session) (f suite.Finding, err error) {
	if err := wantDPU(ctx, s, "dpdk-test-mldev"); err != nil {
		return f, err
	}
	i := s.DPU.Inference
	switch {
	case i == nil:
		return f, suite.Missing("the board's board.yml has no dpu.inference")
	case m.wrong && i.Wrong == "":
		return f, suite.Missing("dpu.inference in the board's board.yml names no wrong reference")
	}
	dir := "/tmp/slipway-" + rand.Text() // for the output that the test writes
	if _, err := s.Output(ctx, "mkdir", "-m", "700", dir); err != nil {
		return f, err
	}
	defer func() {
		if left := s.RemoveFolder(ctx, dir); err == nil {
			err = left
		}
	}()
	r, err := s.Board.Run(ctx, m.argv(*i, dir)...)
	if err != nil {
		return f, err
	}
	m.checkResult(&f, r, sharedCPU(i.EAL))
	return f, nil
}

// argv returns the command line of dpdk-test-mldev. The test writes its output to the folder dir.
func (m mldev) argv(i images.Inference, dir string) []string {
	argv := slices.Concat([]string{"dpdk-test-mldev"}, i.EAL, []string{"--", "--debug", "--test=" + m.test})
	switch kind := mldevTests[m.test]; {
	case kind.model:
		return append(argv, "--models="+i.Model)
	case !kind.inference:
		return argv
	}
	reference := i.Reference
	if m.wrong {
		reference = i.Wrong
	}
	argv = append(argv, "--filelist="+strings.Join([]string{i.Model, i.Input, dir + "/output", reference}, ","))
	if i.OtherInput != "" && !m.wrong {
		argv = append(argv, "--filelist="+strings.Join([]string{cmp.Or(i.OtherModel, i.Model), i.OtherInput, dir + "/other-output", i.OtherReference}, ","))
	}
	argv = append(argv, fmt.Sprintf("--repetitions=%d", m.repetitions), "--stats")
	if m.tolerance != nil {
		argv = append(argv, fmt.Sprintf("--tolerance=%g", *m.tolerance))
	}
	return argv
}

// checkResult compares the printed result with the expected one. The exit status is not enough: it
// is 0 also for a test that the device does not support.
func (m mldev) checkResult(f *suite.Finding, r boardssh.Result, shared string) {
	seen := parseMldev(string(r.Stdout))
	if seen.driver != "" {
		f.AddFact(fmt.Sprintf("device 0 is %s", seen.driver))
		f.Proves = driverProof(seen.driver)
	}
	passed, failed := seen.result == "Success" && r.Status == 0, seen.result == "Failed" && r.Status != 0
	switch {
	case m.wrong && failed:
		f.AddFact("a wrong reference is found out: Result: Failed")
	case m.wrong:
		f.Expect(false, "Result: Failed, as the reference is wrong", suite.DescribeResult(r))
	case passed:
		f.AddFact("Result: Success")
		m.checkFigures(f, seen, shared)
	default:
		f.Expect(false, "Result: Success", suite.DescribeResult(r))
	}
	if seen.result == "Unsupported" {
		f.Next = "the device lacks what this test needs; leave the test out, or take a driver that has it"
	}
}

// checkFigures checks latency and throughput, which only tests with inference print. If lcores
// share a CPU, it fails the limits: the kernel's scheduler then decides the figures (84 µs to 20 ms
// of latency were seen), not the device.
func (m mldev) checkFigures(f *suite.Finding, seen mldevOutput, shared string) {
	if !mldevTests[m.test].inference {
		return
	}
	if shared != "" {
		reason := "not measured: " + shared + " (dpu.inference.eal)"
		if m.latency.Max == nil && m.throughput.Min == nil {
			f.AddFact("latency and throughput: " + reason)
			return
		}
		f.Expect(false, "latency and throughput", reason)
		f.Next = "give each lcore a CPU of its own in dpu.inference.eal of board.yml, as --lcores=0@0,1@1,2@2, or take max-latency and min-throughput out of the suite"
		return
	}
	if seen.latencyNS == nil || seen.perSecond == nil {
		f.Expect(false, "latency and throughput", "the output has none")
		return
	}
	m.latency.CheckMetric(f, report.Metric{Name: "latency", Unit: "µs", Value: *seen.latencyNS / 1000})
	m.throughput.CheckMetric(f, report.Metric{Name: "throughput", Unit: "inferences/s", Value: *seen.perSecond})
}

// mldevOutput is the part of dpdk-test-mldev's output that the check uses.
type mldevOutput struct {
	result, driver       string
	latencyNS, perSecond *float64
}

var (
	mldevResult = plaintext.Regexp(`(?m)^Result: (Success|Failed|Unsupported)\s*$`)
	mldevDriver = plaintext.Regexp(`(?m)^\s*driver\s+: (\S{1,64})\s*$`)
	mldevTime   = plaintext.Regexp(`(?m)^\s*Average End-to-End Latency \(ns\)\s*= (\d{1,18})\s*$`)
	mldevRate   = plaintext.Regexp(`(?m)^\s*Average Throughput \(inferences / second\)\s*= (\d{1,18})\s*$`)
)

// parseMldev parses the output of dpdk-test-mldev. More than one result counts as none.
func parseMldev(text string) (o mldevOutput) {
	text = plaintext.WithoutEscapes(text)
	if all := mldevResult().FindAllStringSubmatch(text, 2); len(all) == 1 {
		o.result = all[0][1]
	}
	if m := mldevDriver().FindStringSubmatch(text); m != nil {
		o.driver = m[1]
	}
	o.latencyNS, o.perSecond = oneNumber(mldevTime(), text), oneNumber(mldevRate(), text)
	return o
}

// oneNumber returns the number that the pattern's first group matches, or nil without a finite one.
func oneNumber(pattern *regexp.Regexp, text string) *float64 {
	v, err := yaml.Finite(firstGroup(pattern, text))
	if err != nil {
		return nil
	}
	return &v
}

// firstGroup returns the text that the pattern's first group matches, or "".
func firstGroup(pattern *regexp.Regexp, text string) string {
	if m := pattern.FindStringSubmatch(text); m != nil {
		return m[1]
	}
	return ""
}

// sharedCPU returns which lcores in EAL's arguments may share a CPU, or "". Without a map, EAL
// gives each lcore a CPU of its own. A map with sets of CPUs counts as shared.
func sharedCPU(eal []string) string {
	lcores := lcoreMap(eal)
	if !strings.ContainsAny(lcores, "@(") {
		return ""
	}
	used := map[string]bool{}
	for pair := range strings.SplitSeq(lcores, ",") {
		lcore, cpu, mapped := strings.Cut(pair, "@")
		if !mapped {
			cpu = lcore
		}
		_, noLcore := strconv.ParseUint(lcore, 10, 16)
		_, noCPU := strconv.ParseUint(cpu, 10, 16)
		if noLcore != nil || noCPU != nil || used[cpu] {
			return "lcores may share a CPU: " + plaintext.Clean(lcores, 100)
		}
		used[cpu] = true
	}
	return ""
}

// lcoreMap returns the value of --lcores or -l in EAL's arguments, or "".
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
