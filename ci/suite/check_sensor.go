package suite

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"slipway/ci/report"
	"slipway/layers/plaintext"
	"slipway/layers/strict"
)

// sensor is a number that the kernel measures.
type sensor struct {
	chip, label string // like ina3221 and VDD_IN; a thermal zone has only a label
	value       float64
}

func (s sensor) fullName() string {
	if s.chip == "" {
		return s.label
	}
	return s.chip + "/" + s.label
}

// matchesPattern compares a pattern with the full name and with the label.
func (s sensor) matchesPattern(pattern string) bool {
	whole, _ := path.Match(pattern, s.fullName())
	label, _ := path.Match(pattern, s.label)
	return whole || label
}

// sensors checks that sensors of the kernel are within limits.
type sensors struct {
	what     string // temperature or power
	unit     string
	patterns []string
	limits   Limits
	files    string // patterns for the board's shell
	parse    func(map[string]string) []sensor
}

func readTemperature(e *Entry) Probe {
	return readSensors(e, sensors{what: "temperature", unit: "°C", files: temperatureFiles, parse: parseTemperatures})
}

func readPower(e *Entry) Probe {
	return readSensors(e, sensors{what: "power", unit: "W", files: powerFiles, parse: parsePowers})
}

func readSensors(e *Entry, s sensors) Probe {
	s.patterns, s.limits = e.List("sensors"), e.readLimits()
	if len(s.patterns) == 0 {
		s.patterns = []string{"*"}
	}
	for _, p := range s.patterns {
		if _, err := path.Match(p, ""); err != nil {
			e.Fail(e.Fields["sensors"], "sensors: %q is not a pattern like VDD_*", p)
		}
	}
	if s.limits == (Limits{}) {
		e.Fail(e.Key, "a %s needs min, max or within", s.what)
	}
	return s
}

const (
	temperatureFiles = "/sys/class/thermal/thermal_zone*/type /sys/class/thermal/thermal_zone*/temp " +
		"/sys/class/hwmon/hwmon*/name /sys/class/hwmon/hwmon*/temp*_label /sys/class/hwmon/hwmon*/temp*_input"
	// The last two are those of an INA3221 in L4T R32.
	powerFiles = "/sys/class/hwmon/hwmon*/name /sys/class/hwmon/hwmon*/power*_label /sys/class/hwmon/hwmon*/power*_input " +
		"/sys/class/hwmon/hwmon*/in*_label /sys/class/hwmon/hwmon*/in*_input /sys/class/hwmon/hwmon*/curr*_input " +
		"/sys/bus/i2c/drivers/ina3221x/*/iio*/rail_name_* /sys/bus/i2c/drivers/ina3221x/*/iio*/in_power*_input"
)

func (s sensors) Inspect(ctx context.Context, session *Session) (Finding, error) {
	var f Finding
	// A disabled zone cannot be read. grep's status is then not 0.
	out, err := session.Output(ctx, "sh", "-c", "grep -Hs '' "+s.files+"; true")
	if err != nil {
		return f, err
	}
	s.checkLimits(&f, numberDuplicates(s.parse(parseGrepOutput(out))))
	return f, nil
}

func (s sensors) checkLimits(f *Finding, all []sensor) {
	for _, pattern := range s.patterns {
		if !slices.ContainsFunc(all, func(one sensor) bool { return one.matchesPattern(pattern) }) {
			f.Expect(false, "a sensor "+pattern, fmt.Sprintf("no sensor of %s is called %s; the board has %s", s.what, pattern, cmp.Or(sensorNames(all), "none")))
		}
	}
	for _, one := range all {
		if slices.ContainsFunc(s.patterns, one.matchesPattern) {
			s.limits.CheckMetric(f, report.Metric{Name: one.fullName(), Unit: s.unit, Value: one.value})
		}
	}
}

func sensorNames(all []sensor) string {
	var words []string
	for _, s := range all {
		words = append(words, s.fullName())
	}
	return strings.Join(words, ", ")
}

// maxSensors is how many sensors of a board Slipway reads.
const maxSensors = 200

// numberDuplicates adds numbers to the labels of sensors with equal names.
func numberDuplicates(all []sensor) []sensor {
	seen := map[string]int{}
	for i := range all {
		all[i].label = strings.ReplaceAll(plaintext.Clean(all[i].label, 60), "/", "_")
		all[i].chip = strings.ReplaceAll(plaintext.Clean(all[i].chip, 60), "/", "_")
		name := all[i].fullName()
		if seen[name]++; seen[name] > 1 {
			all[i].label += fmt.Sprintf(" #%d", seen[name])
		}
	}
	return all[:min(len(all), maxSensors)]
}

// numberIn returns the number in a file, times scale.
func numberIn(files map[string]string, file string, scale float64) (float64, bool) {
	v, err := strict.Finite(files[file])
	return v * scale, err == nil
}

// parseTemperatures reads thermal zones and hwmon, which have thousandths of a degree.
func parseTemperatures(files map[string]string) []sensor {
	var all []sensor
	for _, file := range sortedNames(files) {
		dir, base := path.Split(file)
		v, ok := numberIn(files, file, 1e-3)
		input, isInput := strings.CutSuffix(base, "_input")
		switch {
		case !ok:
		case base == "temp":
			all = append(all, sensor{"", cmp.Or(files[dir+"type"], path.Base(dir)), v})
		case isInput:
			all = append(all, sensor{files[dir+"name"], cmp.Or(files[dir+input+"_label"], input), v})
		}
	}
	return all
}

// parsePowers reads the power of chips, in millionths of a watt. For chips that have only
// voltage and current, like the INA3221 of Jetsons, it multiplies these.
func parsePowers(files map[string]string) []sensor {
	var all []sensor
	for _, file := range sortedNames(files) {
		dir, base := path.Split(file)
		input, isInput := strings.CutSuffix(base, "_input")
		if v, ok := numberIn(files, file, 1e-6); ok && isInput && strings.HasPrefix(base, "power") {
			all = append(all, sensor{files[dir+"name"], cmp.Or(files[dir+input+"_label"], input), v})
		}
		if rail, ok := strings.CutPrefix(input, "in_power"); ok && isInput {
			if v, ok := numberIn(files, file, 1e-3); ok {
				all = append(all, sensor{"ina3221x", cmp.Or(files[dir+"rail_name_"+rail], input), v})
			}
			continue
		}
		rail, isCurrent := strings.CutPrefix(input, "curr")
		volts, okVolts := numberIn(files, dir+"in"+rail+"_input", 1e-3)
		amperes, okAmperes := numberIn(files, file, 1e-3)
		if isInput && isCurrent && okVolts && okAmperes {
			all = append(all, sensor{files[dir+"name"], cmp.Or(files[dir+"in"+rail+"_label"], "in"+rail), volts * amperes})
		}
	}
	return all
}

func sortedNames(files map[string]string) []string {
	return slices.Sorted(maps.Keys(files))
}

func (s sensors) Next() string {
	if s.what == "power" {
		return "on the board: grep -H '' /sys/class/hwmon/*/name; is the power mode right (nvpmodel -q), and what is running?"
	}
	return "on the board: grep -H '' /sys/class/thermal/*/temp; does the fan turn, and is the heat sink fixed?"
}
