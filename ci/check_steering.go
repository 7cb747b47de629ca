package ci

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// steering is a rule that an mlx5 device itself says it holds, by mlx_steering_dump.
type steering struct {
	process string // whose rules
	port    int64  // DPDK's
	file    string // a dump of the board, in place of a process
	match   []fieldValue
	actions []string
}

// fieldValue is a field of a packet and what it must be, as a rule compares it.
type fieldValue struct {
	name  string
	value uint64
}

func readSteering(e *entry) probe {
	e.limit = time.Minute
	s := steering{
		process: e.text("process", "zebra"), port: e.number("port", 0, 0, 1023), file: e.text("file", ""), actions: e.list("actions"),
	}
	for _, text := range e.list("match") {
		name, number, _ := strings.Cut(text, "=")
		value, err := strconv.ParseUint(number, 0, 64)
		if err != nil || name == "" {
			e.fail(e.fields["match"], "match must be like outer_l4_dport=53, not %q", text)
		}
		s.match = append(s.match, fieldValue{name, value})
	}
	if len(s.match) == 0 {
		e.fail(e.key, "a rule of the device's needs match: what it compares, like [outer_l4_dport=53]")
	}
	if s.file != "" && !strings.HasPrefix(s.file, "/") || strings.HasPrefix(s.process, "-") || s.process == "" {
		e.fail(e.key, "file must be an absolute path, and process a program's name")
	}
	return s
}

func (steering) next() string {
	return "on the board: mlx_steering_dump -p PID -f /tmp/dump.csv -t. Rules of a port with dv_flow_en=2 are shown by mlx_hw_steering_dump"
}

func (c steering) run(ctx context.Context, s *session) (f finding, err error) {
	if err := s.wantProgram(ctx, "mlx_steering_dump"); err != nil {
		return f, err
	}
	argv := []string{"mlx_steering_dump", "-f", c.file}
	if c.file == "" {
		pid, err := s.oneProcess(ctx, c.process)
		if err != nil {
			return f, err
		}
		dir := "/tmp/slipway-" + rand.Text()
		if _, err := s.ask(ctx, "mkdir", "-m", "700", dir); err != nil {
			return f, err
		}
		defer func() { err = errors.Join(err, s.removeFolder(ctx, dir)) }()
		argv = []string{"mlx_steering_dump", "-p", pid, "-port", strconv.FormatInt(c.port, 10), "-f", dir + "/dump.csv"}
	}
	out, err := s.ask(ctx, argv...)
	if err != nil {
		return f, err
	}
	c.judge(&f, parseSteering(out), out)
	return f, nil
}

func (c steering) judge(f *finding, rules []steeringRule, out string) {
	at := slices.IndexFunc(rules, func(r steeringRule) bool { return r.matches(c.match) && r.does(c.actions) })
	f.fact(fmt.Sprintf("the device holds %d rules", len(rules)))
	if at < 0 {
		f.expect(false, "a rule of the device's with "+c.String(), fmt.Sprintf("none of %d rules:\n%s", len(rules), cleanTail(out, 2000)))
		return
	}
	f.fact(rules[at].id + " does " + strings.Join(rules[at].actions, " & "))
	if c.file == "" { // a dump that lies there proves nothing of the device
		f.proves = ProvesHardware
	}
}

// String is what is wanted of a rule.
func (c steering) String() string {
	var words []string
	for _, m := range c.match {
		words = append(words, fmt.Sprintf("%s=%#x", m.name, m.value))
	}
	return strings.Join(append(words, c.actions...), ", ")
}

// oneProcess is the number of the process of a program.
func (s *session) oneProcess(ctx context.Context, name string) (string, error) {
	out, err := s.ask(ctx, "pidof", name)
	pids := strings.Fields(out)
	if err != nil || len(pids) != 1 {
		return "", missing(fmt.Sprintf("%d programs called %s run on the board; want one, that has made the rule", len(pids), name))
	}
	if _, err := strconv.ParseUint(pids[0], 10, 31); err != nil {
		return "", fmt.Errorf("pidof answered %q", clean(out, 100))
	}
	return pids[0], nil
}

// steeringRule is a rule as the parser of Mellanox's shows it.
type steeringRule struct {
	id      string
	fields  []fieldValue // what it compares, on both sides of the switch
	actions []string
}

const maxSteeringRules = 100_000

var (
	steeringHead  = regexp.MustCompile(`^\s*domain .*, (rule 0x[0-9a-f]{1,16})\s*$`)
	steeringField = regexp.MustCompile(`([a-z][a-z0-9_]{0,63}): (0x[0-9a-f]{1,16})\b`)
)

// parseSteering reads the view by rules: a line that begins with its domain, then what is
// compared, then what is done.
func parseSteering(text string) (all []steeringRule) {
	for _, line := range lines(escapes.ReplaceAllString(text, "")) {
		if m := steeringHead.FindStringSubmatch(line); m != nil {
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

func parseFields(text string) (all []fieldValue) {
	for _, m := range steeringField.FindAllStringSubmatch(text, 256) {
		if value, err := strconv.ParseUint(m[2], 0, 64); err == nil {
			all = append(all, fieldValue{m[1], value})
		}
	}
	return all
}

// matches says whether a rule compares all these fields with these values.
func (r steeringRule) matches(wanted []fieldValue) bool {
	return !slices.ContainsFunc(wanted, func(w fieldValue) bool { return !slices.Contains(r.fields, w) })
}

// does says whether each text is in one of a rule's actions.
func (r steeringRule) does(wanted []string) bool {
	return !slices.ContainsFunc(wanted, func(w string) bool {
		return !slices.ContainsFunc(r.actions, func(a string) bool { return strings.Contains(a, w) })
	})
}
