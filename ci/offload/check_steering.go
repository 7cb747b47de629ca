package offload

import (
	"cmp"
	"context"
	"crypto/rand"
	endian "encoding/binary" // binary is a kind of check
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"slipway/ci/report"
	"slipway/ci/suite"
	"slipway/layers/plaintext"
)

// steering is the check that an mlx5 device itself holds a rule. mlx_steering_dump shows the rules,
// or mlx_hw_steering_dump if the hardware steers (dv_flow_en=2).
type steering struct {
	process  string // the program whose rules are read
	port     int64  // DPDK's
	file     string // a dump on the board, in place of a process
	hardware bool
	match    []fieldValue
	actions  []string
}

// fieldValue is a field of a packet and the value with which a rule compares it.
type fieldValue struct{ name, value string }

// steeringValue returns one form for values that the parsers print in several. IPv4
// addresses, MAC addresses and protocol names become numbers.
func steeringValue(text string) string {
	if n, err := strconv.ParseUint(text, 0, 64); err == nil {
		return strconv.FormatUint(n, 10)
	}
	if mac, err := net.ParseMAC(text); err == nil && len(mac) == 6 {
		return strconv.FormatUint(endian.BigEndian.Uint64(append([]byte{0, 0}, mac...)), 10)
	}
	if a, err := netip.ParseAddr(text); err == nil && a.Is4() {
		return strconv.FormatUint(uint64(endian.BigEndian.Uint32(a.AsSlice())), 10)
	} else if err == nil {
		return a.String()
	}
	text = strings.ToLower(text)
	return cmp.Or(map[string]string{"tcp": "6", "udp": "17", "gre": "47", "ipsec": "51"}[text], text)
}

func readSteering(e *suite.Entry) suite.Probe {
	e.Limit = time.Minute
	s := steering{
		process: e.Text("process", "zebra"), port: e.Number("port", 0, 0, 1023), file: e.Text("file", ""), actions: e.List("actions"),
		hardware: suite.IsTrue(e.Flag("hardware")),
	}
	for _, text := range e.List("match") {
		name, value, _ := strings.Cut(text, "=")
		if !steeringWord().MatchString(name) || !steeringText().MatchString(value) {
			e.Fail(e.Fields["match"], "match must be like outer_l4_dport=53 or src_ip=192.0.2.1, not %q", text)
		}
		s.match = append(s.match, fieldValue{name, steeringValue(value)})
	}
	if len(s.match) == 0 {
		e.Fail(e.Key, "a rule of the device's needs match: what it compares, like [outer_l4_dport=53]")
	}
	if s.file != "" && !strings.HasPrefix(s.file, "/") || strings.HasPrefix(s.process, "-") || s.process == "" {
		e.Fail(e.Key, "file must be an absolute path, and process a program's name")
	}
	return s
}

func (steering) Next() string {
	return "on the board: mlx_steering_dump -p PID -f /tmp/dump.csv -t. Rules of a port with dv_flow_en=2 are shown by mlx_hw_steering_dump --pid PID -f /tmp/dump.csv, in /tmp/dump.csv.parsed (hardware: true)"
}

func (c steering) Inspect(ctx context.Context, s *suite.Session) (f suite.Finding, err error) {
	program := map[bool]string{true: "mlx_hw_steering_dump", false: "mlx_steering_dump"}[c.hardware]
	if err := s.RequireProgram(ctx, program); err != nil {
		return f, err
	}
	pid := ""
	if c.file == "" {
		if pid, err = oneProcess(ctx, s, c.process); err != nil {
			return f, err
		}
	}
	dir := "/tmp/slipway-" + rand.Text() // the parsers write beside the dump
	if _, err := s.Output(ctx, "mkdir", "-m", "700", dir); err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, s.RemoveFolder(ctx, dir)) }()
	if c.file != "" {
		if _, err := s.Output(ctx, "cp", "--", c.file, dir+"/dump.csv"); err != nil {
			return f, err
		}
	}
	out, err := c.dumpRules(ctx, s, program, pid, dir+"/dump.csv")
	if err != nil {
		return f, err
	}
	parse := parseSteering
	if c.hardware {
		parse = parseHardwareSteering
	}
	c.findRule(&f, parse(out), out)
	return f, nil
}

// dumpRules runs the parser, which makes a dump of a process or reads the file. It
// returns the parser's text.
func (c steering) dumpRules(ctx context.Context, s *suite.Session, program, pid, file string) (string, error) {
	argv := []string{program, "-f", file}
	port := strconv.FormatInt(c.port, 10)
	switch {
	case c.hardware && pid == "":
		argv = append(argv, "--skip_dump")
	case c.hardware:
		argv = append(argv, "--pid", pid, "--port", port)
	case pid != "":
		argv = append(argv, "-p", pid, "-port", port)
	}
	out, err := s.Output(ctx, argv...)
	if err == nil && c.hardware {
		out, err = s.Output(ctx, "cat", "--", file+".parsed")
	}
	return out, err
}

func (c steering) findRule(f *suite.Finding, rules []steeringRule, out string) {
	at := slices.IndexFunc(rules, func(r steeringRule) bool { return r.hasFields(c.match) && r.hasActions(c.actions) })
	f.AddFact(fmt.Sprintf("the device holds %d rules", len(rules)))
	if at < 0 {
		f.Expect(false, "a rule of the device's with "+c.String(), fmt.Sprintf("none of %d rules:\n%s", len(rules), plaintext.CleanTail(out, 2000)))
		return
	}
	f.AddFact(rules[at].id + " does " + strings.Join(rules[at].actions, " & "))
	if c.file == "" { // a dump from a file proves nothing about the device
		f.Proves = report.ProvesHardware
	}
}

// String describes the wanted rule.
func (c steering) String() string {
	var words []string
	for _, m := range c.match {
		words = append(words, m.name+"="+m.value)
	}
	return strings.Join(append(words, c.actions...), ", ")
}

// oneProcess returns the ID of the only process with this program name.
func oneProcess(ctx context.Context, s *suite.Session, name string) (string, error) {
	out, err := s.Output(ctx, "pidof", name)
	pids := strings.Fields(out)
	if err != nil || len(pids) != 1 {
		return "", suite.Missing(fmt.Sprintf("%d programs called %s run on the board; want one, that has made the rule", len(pids), name))
	}
	if _, err := strconv.ParseUint(pids[0], 10, 31); err != nil {
		return "", fmt.Errorf("pidof answered %q", plaintext.Clean(out, 100))
	}
	return pids[0], nil
}

// steeringRule is a rule as the parser prints it.
type steeringRule struct {
	id      string
	fields  []fieldValue // that it compares, in RX and TX
	actions []string
}

const maxSteeringRules = 100_000

var (
	steeringHead  = plaintext.Regexp(`^\s*domain .*, (rule 0x[0-9a-f]{1,16})\s*$`)
	steeringField = plaintext.Regexp(`\b([a-z][a-z0-9_]{0,63}): ([0-9A-Za-z.:_-]{1,64})(?:[, ]|$)`)
	steeringWord  = plaintext.Regexp(`^[a-z][a-z0-9_]{0,63}$`)
	steeringText  = plaintext.Regexp(`^[0-9A-Za-z.:_-]{1,64}$`)
	hardwareSTE   = plaintext.Regexp(`STE (0x[0-9a-f]{1,16}):$`)
)

// parseSteering reads the parser's list of rules. A rule is a line that begins with its domain,
// followed by lines with its matches and its actions.
func parseSteering(text string) (all []steeringRule) {
	for _, line := range plaintext.Lines(plaintext.WithoutEscapes(text)) {
		if m := steeringHead().FindStringSubmatch(line); m != nil {
			if len(all) == maxSteeringRules {
				return all
			}
			all = append(all, steeringRule{id: m[1]})
			continue
		}
		if len(all) == 0 {
			continue
		}
		r := &all[len(all)-1]
		if fields, ok := strings.CutPrefix(strings.TrimSpace(line), "match:"); ok {
			r.fields = append(r.fields, parseFields(fields)...)
		}
		if actions, ok := strings.CutPrefix(strings.TrimSpace(line), "action:"); ok {
			for action := range strings.SplitSeq(actions, " & ") {
				r.actions = append(r.actions, strings.TrimSpace(action))
			}
		}
	}
	return all
}

// parseHardwareSteering reads the tree that the other parser prints. A rule is a line of
// its own. Below it are entries with the fields (Tag) and the actions (Actions).
func parseHardwareSteering(text string) (all []steeringRule) {
	under := ""
	for _, line := range plaintext.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "Rule:" {
			if len(all) == maxSteeringRules {
				return all
			}
			all, under = append(all, steeringRule{}), ""
			continue
		}
		if len(all) == 0 {
			continue
		}
		r := &all[len(all)-1]
		switch m := hardwareSTE().FindStringSubmatch(line); {
		case m != nil:
			r.id, under = cmp.Or(r.id, "rule at "+m[1]), "entry"
		case under != "" && (line == "Tag:" || line == "Actions:"):
			under = line
		case strings.HasPrefix(line, "Table ") || strings.HasPrefix(line, "Matcher "):
			under = ""
		case under == "Tag:":
			r.fields = append(r.fields, parseFields(line)...)
		case under == "Actions:":
			r.actions = append(r.actions, plaintext.Clean(line, maxReason))
		}
	}
	return slices.DeleteFunc(all, func(r steeringRule) bool { return r.id == "" })
}

func parseFields(text string) (all []fieldValue) {
	for _, m := range steeringField().FindAllStringSubmatch(text, 256) {
		all = append(all, fieldValue{m[1], steeringValue(m[2])})
	}
	return all
}

// hasFields reports whether the rule compares all these fields with these values.
func (r steeringRule) hasFields(wanted []fieldValue) bool {
	return !slices.ContainsFunc(wanted, func(w fieldValue) bool { return !slices.Contains(r.fields, w) })
}

// hasActions reports whether each text is part of one of the rule's actions.
func (r steeringRule) hasActions(wanted []string) bool {
	return !slices.ContainsFunc(wanted, func(w string) bool {
		return !slices.ContainsFunc(r.actions, func(a string) bool { return strings.Contains(a, w) })
	})
}
