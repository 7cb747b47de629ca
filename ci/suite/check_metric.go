package suite

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	goyaml "go.yaml.in/yaml/v4"

	"slipway/ci/report"
	"slipway/ci/suite/match"
	"slipway/layers/plaintext"
	"slipway/layers/yaml"
)

// reading is a metric with the largest allowed change since the last run that passed.
type reading struct {
	report.Metric
	within float64 // 0.1 allows 10 % of the last value; 0: no limit
}

// Limits are the allowed values of a metric.
type Limits struct {
	Min, Max *float64
	Within   float64
}

// readLimits parses min, max and within. It refuses a min above max.
func (e *Entry) readLimits() Limits {
	l := Limits{Min: e.Decimal("min"), Max: e.Decimal("max"), Within: e.Percent("within")}
	if l.Min != nil && l.Max != nil && *l.Min > *l.Max {
		e.Fail(e.Fields["min"], "no number passes: min %v is more than max %v", *l.Min, *l.Max)
	}
	return l
}

// CheckMetric adds m with the limits to f, and a failure if m is outside Min and Max, else a fact.
// compareMetrics checks Within.
func (l Limits) CheckMetric(f *Finding, m report.Metric) {
	m.Min, m.Max = l.Min, l.Max
	f.metrics = append(f.metrics, reading{m, l.Within})
	saw := m.String()
	switch {
	case l.Min != nil && m.Value < *l.Min:
		f.Expect(false, fmt.Sprintf("%s: at least %s", m.Name, report.FormatNumber(*l.Min, m.Unit)), saw)
	case l.Max != nil && m.Value > *l.Max:
		f.Expect(false, fmt.Sprintf("%s: at most %s", m.Name, report.FormatNumber(*l.Max, m.Unit)), saw)
	default:
		f.AddFact(saw)
	}
}

// figure says where a number is in a program's output, and what its limits are.
type figure struct {
	name    string
	unit    string
	path    string         // in JSON; "": the output is the number
	pattern *regexp.Regexp // finds the number in the output, or nil
	scale   float64
	limits  Limits
}

var figureKeys = []string{"json", "match", "scale", "unit", "min", "max", "within"}

// readFigure parses where a number is in an output, its scale, unit and limits.
func (e *Entry) readFigure(name string) figure {
	m := figure{name: name, unit: e.Text("unit", ""), path: e.Text("json", ""), scale: 1, limits: e.readLimits()}
	if scale := e.Decimal("scale"); scale != nil {
		m.scale = *scale
	}
	if len(m.path) > match.MaxJSONPathBytes {
		e.Fail(e.Fields["json"], "json: a path of more than %d bytes", match.MaxJSONPathBytes)
	}
	m.readPattern(e)
	return m
}

// readPattern sets m.pattern from match, a regular expression with one group, refused beside json.
func (m *figure) readPattern(e *Entry) {
	n := e.Scalar("match", "a regular expression")
	if n == nil {
		return
	}
	re, err := regexp.Compile(n.Value)
	switch {
	case err != nil:
		e.Fail(n, "match: %v", err)
	case re.NumSubexp() != 1:
		e.Fail(n, "match must have one group, around the number")
	case m.path != "":
		e.Fail(n, "match and json are two ways to say where the number is; keep one")
	}
	m.pattern = re
}

// check finds the number in an output and compares it with its limits. No number is a failure.
func (m figure) check(f *Finding, out string) {
	v, err := m.find(out)
	if err != nil {
		f.Expect(false, "a number", err.Error())
		return
	}
	m.limits.CheckMetric(f, report.Metric{Name: m.name, Unit: m.unit, Value: v})
}

// find returns the number at the path or pattern in an output, or all of it, times the scale.
func (m figure) find(out string) (float64, error) {
	text := out
	switch {
	case m.path != "":
		value, err := match.JSONAt(out, m.path)
		if err != nil {
			return 0, err
		}
		text = match.TextOf(value)
	case m.pattern != nil:
		found := m.pattern.FindStringSubmatch(out)
		if found == nil { // $ is the end of the last line, as in a shell's $( )
			found = m.pattern.FindStringSubmatch(strings.TrimRight(out, "\r\n"))
		}
		if found == nil {
			hint := ""
			if lines, err := regexp.Compile("(?m)" + m.pattern.String()); err == nil && lines.MatchString(out) {
				hint = "; ^ and $ are the ends of the output: (?m) at the beginning of match makes them those of a line"
			}
			return 0, fmt.Errorf("nothing in the output matches /%s/%s:\n%s", m.pattern, hint, quoteOutput([]byte(out)))
		}
		text = found[1]
	}
	v, err := yaml.Finite(text)
	if err == nil && math.IsInf(v*m.scale, 0) {
		err = strconv.ErrRange
	}
	if err != nil {
		return 0, fmt.Errorf("no number: %s", quoteOutput([]byte(text)))
	}
	return v * m.scale, nil
}

// metric is a number that a command prints.
type metric struct {
	command command
	figure  figure
}

// readMetric parses a check of the section metric, which needs exec or argv.
func readMetric(e *Entry) Probe {
	name, _ := e.readMeta()
	m := metric{figure: e.readFigure(name)}
	if c, ok := readCommand(e).(command); ok {
		m.command = c
	}
	if e.Fields["exec"] == nil && e.Fields["argv"] == nil {
		e.Fail(e.Key, "a metric needs exec or argv: a command that prints a number")
	}
	return m
}

// Inspect runs the command and compares the number in its output with the limits.
func (m metric) Inspect(ctx context.Context, s *Session) (Finding, error) {
	var f Finding
	out, err := s.Output(ctx, m.command.argv...)
	if err != nil {
		return f, err
	}
	m.figure.check(&f, out)
	return f, nil
}

// figures are the numbers in the output of a check's program.
type figures []figure

const maxFigures = 50

// readFigures parses the attribute metrics: a mapping of names to numbers in the output.
func (e *Entry) readFigures() (all figures) {
	n := e.Fields["metrics"]
	if n == nil {
		return nil
	}
	if n.Kind != goyaml.MappingNode || len(n.Content)/2 > maxFigures {
		e.Fail(n, "metrics must be a mapping of at most %d names, not %s", maxFigures, yaml.KindOf(n))
		return nil
	}
	for key, value := range yaml.Pairs(n) {
		one, err := yaml.NewEntry(e.File, "metric", figureKeys, key, value)
		if err != nil {
			e.Err = cmp.Or(e.Err, err)
			return nil
		}
		number := &Entry{Entry: one}
		m := number.readFigure(key.Value)
		if m.path == "" && m.pattern == nil {
			number.Fail(key, "metric %q needs match or json: where the number is in the output", key.Value)
		}
		e.Err = cmp.Or(e.Err, one.Err)
		all = append(all, m)
	}
	return all
}

// check compares the numbers in an output with their limits. A cut output is a failure. If the
// check has failed already, it does nothing, because the program need not have printed them.
func (all figures) check(f *Finding, out string, cut bool) {
	if len(all) == 0 || !f.OK() {
		return
	}
	if cut {
		f.Expect(false, "all of the output", "output: "+moreThan(len(out)))
		return
	}
	for _, m := range all {
		m.check(f, out)
	}
}

func (m metric) Next() string { return m.command.Next() }

// compareMetrics sets Last of the finding's metrics from the last run that passed, and adds a
// failure for each that changed by more than allowed.
func (s *Session) compareMetrics(c Check, f *Finding) {
	for i := range f.metrics {
		m := &f.metrics[i]
		last, ok := s.last[report.HistoryKey(c.suite, plaintext.Clean(c.Name, 200), m.Name)]
		if ok {
			m.Last = &last
		}
		switch {
		case m.within == 0:
		case !ok:
			f.AddFact(m.Name + ": nothing to compare with yet")
		case math.Abs(m.Value-last) > m.within*math.Abs(last):
			f.Expect(false, fmt.Sprintf("%s: within %s %% of %s, as in the last run that passed", m.Name, report.FormatNumber(m.within*100, ""), report.FormatNumber(last, m.Unit)), m.String())
		}
	}
}

// sensor is a sensor that the kernel reads, with its value.
type sensor struct {
	chip, label string // like ina3221 and VDD_IN; a thermal zone has only a label
	value       float64
}

// fullName returns CHIP/LABEL, or only the label of a thermal zone.
func (s sensor) fullName() string {
	if s.chip == "" {
		return s.label
	}
	return s.chip + "/" + s.label
}

// matchesPattern reports whether a wildcard pattern matches the sensor's full name or its label.
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

// readSensors returns s with a check's sensors, by default all, and its limits, which it must have.
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

// Inspect reads the board's sensors and checks their limits.
func (s sensors) Inspect(ctx context.Context, session *Session) (Finding, error) {
	var f Finding
	// A disabled zone cannot be read. grep's status is then not 0.
	out, err := session.Output(ctx, "sh", "-c", "grep -Hs '' "+s.files+"; true")
	if err != nil {
		return f, err
	}
	s.checkLimits(&f, tidySensors(s.parse(parseGrepOutput(out))))
	return f, nil
}

// checkLimits compares the matching sensors with the limits. A pattern without a match fails.
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

// tidySensors cleans sensors' names in place, numbers equal ones, and returns the first maxSensors.
func tidySensors(all []sensor) []sensor {
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

// numberIn returns the number in a file's text, times scale, and whether there is one.
func numberIn(files map[string]string, file string, scale float64) (float64, bool) {
	v, err := yaml.Finite(files[file])
	return v * scale, err == nil
}

// parseTemperatures returns the sensors of thermal zones and hwmon chips in °C. files maps paths to
// texts, which have thousandths.
func parseTemperatures(files map[string]string) []sensor {
	var all []sensor
	for _, file := range slices.Sorted(maps.Keys(files)) {
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

// parsePowers returns the power in watts of hwmon chips, and of the INA3221 in L4T R32. Without
// power (INA3221 in later L4T) it multiplies a chip's voltage and current of the same number.
func parsePowers(files map[string]string) []sensor {
	var all []sensor
	for _, file := range slices.Sorted(maps.Keys(files)) {
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
		_, hasPower := numberIn(files, dir+"power"+rail+"_input", 1)
		if isInput && isCurrent && okVolts && okAmperes && !hasPower {
			all = append(all, sensor{files[dir+"name"], cmp.Or(files[dir+"in"+rail+"_label"], "in"+rail), volts * amperes})
		}
	}
	return all
}

// Next returns what the user does after a failure, for power or temperature.
func (s sensors) Next() string {
	if s.what == "power" {
		return "on the board: grep -H '' /sys/class/hwmon/*/name; is the power mode right (nvpmodel -q), and what is running?"
	}
	return "on the board: grep -H '' /sys/class/thermal/*/temp; does the fan turn, and is the heat sink fixed?"
}
