package suite

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"slipway/ci/report"
	"slipway/ci/suite/suitetest"
	"slipway/images"
)

// Files of sensors, as the kernel of a Jetson Orin Nano (L4T R36), a PC and a
// Jetson of L4T R32 name them.
const (
	thermalFiles = "/sys/class/thermal/thermal_zone0/type:cpu-thermal\n/sys/class/thermal/thermal_zone0/temp:48250\n" +
		"/sys/class/thermal/thermal_zone1/type:gpu-thermal\n" + // switched off: its temp cannot be read
		"/sys/class/thermal/thermal_zone2/type:cpu-thermal\n/sys/class/thermal/thermal_zone2/temp:51000\n" +
		"/sys/class/hwmon/hwmon1/name:coretemp\n/sys/class/hwmon/hwmon1/temp2_label:Core 0\n/sys/class/hwmon/hwmon1/temp2_input:61500\n" +
		"/sys/class/hwmon/hwmon2/name:nvme\n/sys/class/hwmon/hwmon2/temp1_input:warm\n"
	railFiles = "/sys/class/hwmon/hwmon3/name:ina3221\n/sys/class/hwmon/hwmon3/in1_label:VDD_IN\n/sys/class/hwmon/hwmon3/in1_input:5000\n" +
		"/sys/class/hwmon/hwmon3/curr1_input:1200\n/sys/class/hwmon/hwmon3/in2_label:VDD_CPU_GPU_CV\n/sys/class/hwmon/hwmon3/in2_input:4960\n" +
		"/sys/class/hwmon/hwmon3/curr2_input:300\n/sys/class/hwmon/hwmon3/in7_label:sum of shunt voltages\n/sys/class/hwmon/hwmon3/in7_input:90\n" +
		"/sys/class/hwmon/hwmon4/name:power_meter\n/sys/class/hwmon/hwmon4/power1_input:24500000\n"
	railFilesR32 = "/sys/bus/i2c/drivers/ina3221x/6-0040/iio:device0/rail_name_0:POM_5V_IN\n/sys/bus/i2c/drivers/ina3221x/6-0040/iio:device0/in_power0_input:2310\n"
)

func TestMetricsOfRecordedBoards(t *testing.T) {
	heat, rails := suitetest.Recorded{"sh -c grep": thermalFiles}, suitetest.Recorded{"sh -c grep": railFiles}
	for _, tt := range []struct {
		name  string
		board suitetest.Recorded
		suite string
		want  string
	}{
		{"a number", suitetest.Recorded{"freq": "918000\n"}, "metric: {gpu: {argv: [freq], scale: 0.001, unit: MHz, min: 900, max: 1000}}", "passed: gpu 918 MHz"},
		{"too little", suitetest.Recorded{"freq": "11\n"}, "metric: {gpu: {argv: [freq], unit: MHz, min: 900}}", "failed: gpu 11 MHz / gpu: at least 900 MHz"},
		{"too much", suitetest.Recorded{"lat": "0.00071 s\n"}, "metric: {x: {argv: [lat], match: '([0-9.]+) s', scale: 1000, unit: ms, max: 0.5}}", "failed: x 0.71 ms / x: at most 0.5 ms"},
		{"in JSON", suitetest.Recorded{"iperf3": `{"end": {"sum": [{"bps": 94.1e9}]}}`}, "metric: {x: {argv: [iperf3, -J], json: end.sum.0.bps, scale: 1.0e-9, unit: Gbit/s, min: 90}}", "passed: x 94.1 Gbit/s"},
		{"nothing in the JSON", suitetest.Recorded{"a": "{}"}, "metric: {x: {argv: [a], json: b}}", "failed: the JSON has nothing at b / a number"},
		{"no number", suitetest.Recorded{"a": "NaN\n"}, "metric: {x: {argv: [a]}}", "failed: no number: NaN / a number"},
		{"an endless number", suitetest.Recorded{"a": "1e308\n"}, "metric: {x: {argv: [a], scale: 1.0e+10}}", "failed: no number: 1e308 / a number"},
		{"nothing matches", suitetest.Recorded{"a": "b\n"}, "metric: {x: {argv: [a], match: 'c(.)'}}", "failed: nothing in the output matches /c(.)/:\nb / a number"},
		{"the command failed", suitetest.Recorded{"a": "exit 1\n", "true": ""}, "metric: {x: {argv: [a]}}", "failed: a: exit status 1, no output / an answer"},
		{"nothing to compare with", suitetest.Recorded{"a": "5\n"}, "metric: {x: {argv: [a], within: 10%}}", "passed: x 5; x: nothing to compare with yet"},
		{"a whole line", suitetest.Recorded{"a": "1124\n"}, "metric: {x: {argv: [a], match: '^([0-9]+)$'}}", "passed: x 1124"},
		{"a whole line of a command", suitetest.Recorded{"a": "1124\n"}, "command: {x: {argv: [a], metrics: {in: {match: '^([0-9]+)$'}}}}", "passed: exit status 0; in 1124"},
		{"a line's end in the pattern", suitetest.Recorded{"a": "1\n"}, "command: {x: {argv: [a], metrics: {in: {match: '(1)\\n'}}}}", "passed: exit status 0; in 1"},
		{"one of two lines", suitetest.Recorded{"a": "b\n1124\n"}, "metric: {x: {argv: [a], match: '^([0-9]+)$'}}", "failed: nothing in the output matches /^([0-9]+)$/; ^ and $ are the ends of the output: (?m) at the beginning of match makes them those of a line:\n\n  b\n  1124 / a number"},
		{"one of two lines, with (?m)", suitetest.Recorded{"a": "b\n1124\n"}, "metric: {x: {argv: [a], match: '(?m)^([0-9]+)$'}}", "passed: x 1124"},
		{"numbers of a command", suitetest.Recorded{"a": "in=5 ms\nout=7 ms\n"}, "command: {x: {argv: [a], metrics: {in: {match: 'in=(\\S+)', unit: ms}, out: {match: 'out=(\\S+)', scale: 1000, unit: us, max: 8000}}}}", "passed: exit status 0; in 5 ms; out 7000 us"},
		{"a number of a command is too large", suitetest.Recorded{"a": "in=5\n"}, "command: {x: {argv: [a], metrics: {in: {match: 'in=(.)', max: 4}}}}", "failed: in 5 / in: at most 4"},
		{"a command prints other numbers", suitetest.Recorded{"a": "out=5\n"}, "command: {x: {argv: [a], metrics: {in: {match: 'in=(.)'}}}}", "failed: nothing in the output matches /in=(.)/:\nout=5 / a number"},
		{"a command that failed", suitetest.Recorded{"a": "exit 1\n"}, "command: {x: {argv: [a], metrics: {in: {match: 'in=(.)'}}}}", "failed: exit status 1, no output / exit status: 0"},
		{"cool", heat, "temperature: {x: {max: 85}}", "passed: coretemp/Core 0 61.5 °C; cpu-thermal 48.25 °C; cpu-thermal #2 51 °C"},
		{"hot", heat, "temperature: {x: {sensors: [cpu-*], max: 50}}", "failed: cpu-thermal #2 51 °C / cpu-thermal #2: at most 50 °C"},
		{"by the label", heat, "temperature: {x: {sensors: [Core 0], min: 20}}", "passed: coretemp/Core 0 61.5 °C"},
		{"a zone that is off", heat, "temperature: {x: {sensors: [gpu-thermal], max: 90}}", "failed: no sensor of temperature is called gpu-thermal; the board has coretemp/Core 0, cpu-thermal, cpu-thermal #2 / a sensor gpu-thermal"},
		{"no sensors", suitetest.Recorded{"sh -c grep": ""}, "temperature: {x: {max: 90}}", "failed: no sensor of temperature is called *; the board has none / a sensor *"},
		{"rails", rails, "power: {x: {sensors: [VDD_*], max: 15}}", "passed: ina3221/VDD_IN 6 W; ina3221/VDD_CPU_GPU_CV 1.488 W"},
		{"a rail of a chip", rails, "power: {x: {sensors: [power_meter/*], max: 20}}", "failed: power_meter/power1 24.5 W / power_meter/power1: at most 20 W"},
		{"a chip with power, voltage and current", suitetest.Recorded{"sh -c grep": "/c/name:ina226\n/c/power1_input:5900000\n/c/in1_input:12000\n/c/curr1_input:500\n/c/in2_input:5000\n/c/curr2_input:1000\n"}, "power: {x: {max: 10}}", "passed: ina226/in2 5 W; ina226/power1 5.9 W"},
		{"rails of L4T R32", suitetest.Recorded{"sh -c grep": railFilesR32}, "power: {x: {max: 10}}", "passed: ina3221x/POM_5V_IN 2.31 W"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, suitetest.FormatResult(runOneCheck(t, tt.board, tt.suite))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Metrics are compared with those of the last run that passed. A failed run does not
// replace them.
func TestMetricsAreCompared(t *testing.T) {
	dir := t.TempDir()
	if err := (images.Artifact{}).Save(dir); err != nil {
		t.Fatal(err)
	}
	a, err := images.OpenArtifact(dir)
	if err != nil {
		t.Fatal(err)
	}
	value := filepath.Join(dir, "value")
	spec := specOf(t, "metric: {speed: {exec: cat "+value+", unit: MB/s, within: 10%, max: 200}}\ncommand: {other: {exec: test ! -e "+value+".broken}}")
	for _, step := range []struct {
		value, broken string
		want          string
		last          float64 // 0: there is none
	}{
		{"100", "", "passed: speed 100 MB/s; speed: nothing to compare with yet", 0},
		{"109", "", "passed: speed 109 MB/s", 100},
		{"119", "yes", "passed: speed 119 MB/s", 109},
		{"98", "", "failed: speed 98 MB/s / speed: within 10 % of 109 MB/s, as in the last run that passed", 109},
		{"98.5", "", "passed: speed 98.5 MB/s", 109},
		{"201", "", "failed: speed 201 MB/s\nspeed 201 MB/s / speed: at most 200 MB/s\nspeed: within 10 % of 98.5 MB/s, as in the last run that passed", 98.5},
	} {
		os.Remove(value + ".broken")
		if step.broken != "" {
			os.WriteFile(value+".broken", nil, 0o644)
		}
		if err := os.WriteFile(value, []byte(step.value), 0o644); err != nil {
			t.Fatal(err)
		}
		r, err := runSuites(t.Context(), &Session{Board: localBoard{}, metrics: dir}, spec, a)
		c := r.Suites[0].Checks[0]
		if diff := cmp.Diff(step.want, suitetest.FormatResult(c)); diff != "" || (err == nil) == r.Failed() {
			t.Errorf("%s: %v, %s", step.value, err, diff)
		}
		if last := c.Metrics[0].Last; (last == nil) != (step.last == 0) || last != nil && *last != step.last {
			t.Errorf("%s: the last value is %v; want %v", step.value, last, step.last)
		}
	}
	files, _ := filepath.Glob(filepath.Join(dir, report.MetricsFolder, "*.json"))
	if len(files) != 1 {
		t.Fatalf("the numbers are in %q; want one file", files)
	}
	if err := os.WriteFile(files[0], []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := runSuites(t.Context(), &Session{Board: localBoard{}, metrics: dir}, spec, a); err == nil || !strings.Contains(err.Error(), files[0]) {
		t.Errorf("smoke with a damaged %s = %v", files[0], err)
	}
}

// Each number of a command's output is compared with its own of the last run that passed.
func TestMetricsOfOneCommand(t *testing.T) {
	dir := t.TempDir()
	if err := (images.Artifact{}).Save(dir); err != nil {
		t.Fatal(err)
	}
	a, err := images.OpenArtifact(dir)
	if err != nil {
		t.Fatal(err)
	}
	spec := specOf(t, "command: {x: {argv: [run], metrics: {qps: {match: 'qps=(\\S+)', within: 10%}, latency: {json: nothing, unit: ms}}}}")
	if _, err := runSuites(t.Context(), &Session{Board: suitetest.Recorded{"run": "qps=1", "true": ""}, metrics: dir}, spec, a); !errors.Is(err, report.ErrFailed) {
		t.Errorf("an output without JSON: %v", err)
	}
	spec = specOf(t, "command: {x: {argv: [run], metrics: {qps: {match: 'qps=(\\S+)', within: 10%}, latency: {match: 'ms=(\\S+)', unit: ms, within: 50%}}}}")
	for _, step := range []struct{ output, want string }{
		{"qps=100 ms=8", "passed: exit status 0; qps 100; latency 8 ms; qps: nothing to compare with yet; latency: nothing to compare with yet"},
		{"qps=95 ms=11", "passed: exit status 0; qps 95; latency 11 ms"},
		{"qps=94 ms=17", "failed: latency 17 ms / latency: within 50 % of 11 ms, as in the last run that passed"},
		{"qps=80 ms=11", "failed: qps 80 / qps: within 10 % of 95, as in the last run that passed"},
	} {
		r, _ := runSuites(t.Context(), &Session{Board: suitetest.Recorded{"run": step.output, "true": ""}, metrics: dir}, spec, a)
		if diff := cmp.Diff(step.want, suitetest.FormatResult(r.Suites[0].Checks[0])); diff != "" {
			t.Errorf("%s: %s", step.output, diff)
		}
	}
}

// measuringBoard returns a board with a serial number and a number to measure.
func measuringBoard(serial, number string) suitetest.Recorded {
	return suitetest.Recorded{"sh -c grep": "/proc/device-tree/serial-number:" + serial + "\n", "sh -c cat /number": number, "true": ""}
}

// Boards of one kind share an artifact, but each is compared with its own metrics.
func TestMetricsAreOfOneBoard(t *testing.T) {
	dir := t.TempDir()
	if err := (images.Artifact{}).Save(dir); err != nil {
		t.Fatal(err)
	}
	a, err := images.OpenArtifact(dir)
	if err != nil {
		t.Fatal(err)
	}
	spec := specOf(t, "metric: {speed: {exec: cat /number, within: 10%}}")
	for _, step := range []struct {
		serial, name, number string
		want                 error
	}{
		{"A1", "lab", "100", nil},
		{"A2", "lab", "10", nil}, // the same address, another board
		{"A1", "rack", "105", nil},
		{"A1", "rack", "10", report.ErrFailed},
		{"A2", "rack", "10.5", nil},
		{"", "rack", "500", nil}, // a board without a serial number
		{"", "rack", "100", report.ErrFailed},
		{"", "lab", "100", nil},
		{"../../x/y", "lab", "7", nil},
		{"../../x_y", "lab", "70", nil}, // the same letters, as a file's name may have them
		{"../../x/y", "lab", "70", report.ErrFailed},
	} {
		_, err := runSuites(t.Context(), &Session{Board: measuringBoard(step.serial, step.number), name: step.name, metrics: dir}, spec, a)
		if !errors.Is(err, step.want) || step.want == nil && err != nil {
			t.Errorf("%+v: %v", step, err)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("the folder has %v, %v; want the artifact and the numbers", entries, err)
	}
}

// FuzzMetrics checks that every metric can be written as JSON.
func FuzzMetrics(f *testing.F) {
	f.Add(thermalFiles)
	f.Add(railFiles)
	f.Add(railFilesR32)
	f.Add("1e309\n")
	f.Fuzz(func(t *testing.T, text string) {
		var found Finding
		files := parseGrepOutput(text)
		for _, parse := range []func(map[string]string) []sensor{parseTemperatures, parsePowers} {
			sensors{patterns: []string{"*", "VDD_*"}}.checkLimits(&found, tidySensors(parse(files)))
		}
		if v, err := (figure{scale: 1e-3}).find(text); err == nil {
			found.metrics = append(found.metrics, reading{Metric: report.Metric{Name: "x", Value: v}})
		}
		r := report.Report{Suites: []report.SuiteResult{{Checks: []report.CheckResult{{}}}}}
		fillResult(&r.Suites[0].Checks[0], Check{}, found, nil, nil)
		if _, err := json.Marshal(r.Tidy()); err != nil {
			t.Fatal(err)
		}
	})
}
