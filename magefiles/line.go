//go:build mage

package main

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"slipway/ci/dev/bench"
	"slipway/ci/dev/soak"
	"slipway/ci/report"
	"slipway/flash"
	"slipway/flash/target"
	"slipway/flash/target/container"
	"slipway/layers/plaintext"
)

// The whole command line is checked before anything starts. Mage would run a stray word as a
// second command, give the flags to that command, and run the first one without them. Thus
// "flash virt disk.img typo -dryrun" wrote the disk.

// optional names the flag that may follow a command as a word, without -name=.
var optional = map[string]string{
	"up": "board", "doctor": "board", "bench": "area", "soak": "area",
	"cache:serve": "dir", "rshim:show": "device", "virt:start": "board", "virt:stop": "board", "virt:ssh": "board", "virt:console": "board",
	"rig:up": "board", "rig:build": "board", "rig:down": "board", "rig:ssh": "board",
}

// short maps a command name that is also a namespace to the target in that namespace,
// because Go does not allow a function with the name of a type.
var short = map[string]string{"deploy": "deploy:board"}

// several names the commands whose last word may be given more than once.
var several = map[string]bool{"report": true}

// boardless names the flag with which a command needs no BOARD, its first word.
var boardless = map[string]string{"smoke": "suite"}

// needs names, for a flag of a command, the other flag without which it has no effect.
var needs = map[string]map[string]string{
	"bfb:make":       {"strip": "for", "careless": "for"},
	"deploy:service": {"watch": "restart", "keep": "restart"},
	"doctor":         {"conf": "branch", "branch": "conf"},
	"fleet:deploy":   {"file": "to", "to": "file", "mode": "file", "owner": "file"},
}

// apart names, for a flag of a command, the flags that have no effect beside it.
var apart = map[string]map[string][]string{"doctor": {"conf": {"board", "offline"}}}

// either names the flags of which a command needs at least one.
var either = map[string][]string{"report": {"as", "out"}}

// areas lists the values of a command's flag area, which the command requires.
var areas = map[string]func() []string{"bench": bench.Areas, "soak": soak.Areas}

// argv is the flag that gets the words after "--".
const argv = "argv"

// bare are the values of flags that are given without a value.
var bare = map[string]string{"update": "all"}

// hints say where to find a missing word.
var hints = map[string]string{
	"board": "boards lists them", "device": "devices lists them", "host": "the board's address", "inventory": "a file of Ansible's",
	"bundle": "a file for the board's engine", "image": "an archive, a layout or oci://", "folder": "one of this machine", "dest": "a folder on the board",
}

// zero are the numbers that may be 0. In other flags 0 would silently mean the default.
var zero = []string{"canary", "retries", "stopafter", "watch", "limit", "for", "strip", "seed", "kills"}

// largest is far above any useful number. More seconds would overflow.
const largest = 1 << 30

// forms check the text of a flag before its command starts.
var forms = map[string]func(string) error{
	"as":     func(text string) error { _, err := report.FormOf(text, false); return err },
	"engine": func(text string) error { return oneOf("engine", text, container.Engines) },
	"holes":  func(text string) error { return oneOf("holes", text, flash.Holes) },
	"rate":   func(text string) error { _, err := target.ParseRate(text); return err },
	"mode":   func(text string) error { _, err := parseMode(text); return err },
}

// usageError is a wrong command line, and the command to type next.
type usageError struct {
	what string
	next []string
}

func (w usageError) Error() string {
	next := programName()
	for _, word := range w.next {
		next += " " + plaintext.Quote(word)
	}
	return w.what + "\nnext: " + next
}

// programName returns what the user types to start a command.
func programName() string {
	if underMage() {
		return "go tool mage"
	}
	return os.Args[0] // as it was typed, so that it can be typed again
}

// parseLine turns a command line into the one for Mage, or says which word of it is
// wrong.
func parseLine(args []string, known map[string]command) ([]string, error) {
	own, args, err := mageOptions(args, known)
	if err != nil || len(args) == 0 {
		return own, err
	}
	name := strings.ToLower(args[0])
	name = cmp.Or(short[name], name)
	c, ok := known[name]
	switch {
	case !ok:
		return nil, unknownCommand(args[0], known)
	case slices.Contains(own, "-l"):
		return nil, usageError{fmt.Sprintf("-l: %q is one word too many: -l stands alone", args[0]), []string{"-l"}}
	case slices.Contains(own, "-h") && len(args) > 1:
		return nil, usageError{fmt.Sprintf("-h %s: %q is one word too many: -h explains one command", name, args[1]), []string{"-h", name}}
	case slices.Contains(own, "-h") || asksHelp(args[1:]):
		return []string{"-h", name}, nil
	}
	l := line{command: c, given: map[string]bool{}}
	if err := l.readArgs(args[1:]); err != nil {
		return nil, usageError{name + ": " + err.Error(), []string{name, "-h"}}
	}
	return slices.Concat(own, []string{name}, l.words, l.flags), nil
}

func unknownCommand(name string, known map[string]command) error {
	question := plaintext.DidYouMean(strings.ToLower(name), slices.Sorted(maps.Keys(known)))
	return usageError{fmt.Sprintf("unknown command %q%s", name, question), []string{"-l"}}
}

// mageOptions splits off Mage's own options, which come before a command. It refuses -t,
// which ends a command half-way without waiting for it.
func mageOptions(args []string, known map[string]command) (own, rest []string, err error) {
	for i, arg := range args {
		if !strings.HasPrefix(arg, "-") {
			return own, args[i:], nil
		}
		switch strings.TrimPrefix(arg, "-") {
		case "h", "-h", "help", "-help":
			own = append(own, "-h")
		case "l", "-l", "v", "-v":
			own = append(own, "-"+strings.TrimLeft(arg, "-"))
		case "version", "-version":
			return own, slices.Concat([]string{"version"}, args[i+1:]), nil
		case "t", "-t":
			return nil, nil, usageError{"-t (of mage) is refused: it ends a command half-way and does not wait for it", []string{"-l"}}
		default:
			return nil, nil, misplacedFlag(args, i, known)
		}
	}
	return own, nil, nil
}

// misplacedFlag returns the error for a flag before the command.
func misplacedFlag(args []string, at int, known map[string]command) error {
	what, name := fmt.Sprintf("%q is not understood before a command", args[at]), flagName(args[at])
	for i, arg := range args[at:] {
		c := known[strings.ToLower(arg)]
		if c.flag(name) == nil {
			continue
		}
		right := slices.Concat(args[at+i:], args[at:at+i])
		if _, err := parseLine(right, known); err != nil {
			right = []string{c.name, "-h"}
		}
		return usageError{what + ": flags come after it", right}
	}
	return usageError{what, []string{"-h"}}
}

// flagName returns the name in -name=value or --name=value.
func flagName(arg string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(arg, "-"), "-"), "=")
	return strings.ToLower(name)
}

func asksHelp(args []string) bool {
	if i := slices.Index(args, "--"); i >= 0 {
		args = args[:i]
	}
	return slices.ContainsFunc(args, func(arg string) bool { return arg == "-h" || arg == "--h" || arg == "-help" || arg == "--help" })
}

// line is a command with its words and flags.
type line struct {
	command
	words []string
	flags []string
	given map[string]bool // by flag, to find those that are given twice or missing
}

func (l *line) readArgs(args []string) error {
	if i := slices.Index(args, "--"); i >= 0 {
		if err := l.afterDashes(args[i+1:]); err != nil {
			return err
		}
		args = args[:i]
	}
	for i, arg := range args {
		var err error
		switch next := slices.Concat(args[i+1:], []string{""})[0]; {
		case arg == "":
			err = fmt.Errorf("word %d is empty: is a variable of your script not set?", i+1)
		case strings.HasPrefix(arg, "-"):
			err = l.readFlag(arg, next)
		default:
			err = l.readWord(arg)
		}
		if err != nil {
			return err
		}
	}
	return l.checkComplete()
}

// afterDashes puts the words after "--" into one flag, because Mage would read them as
// commands.
func (l *line) afterDashes(words []string) error {
	switch {
	case l.flag(argv) == nil:
		return fmt.Errorf("\"--\" is not understood: the command takes no words after it")
	case len(words) == 0:
		return fmt.Errorf("no word after \"--\"")
	}
	l.given[argv] = true
	l.flags = append(l.flags, "-"+argv+"="+encodeArgs(words))
	return nil
}

func (l *line) readWord(word string) error {
	switch most := len(l.command.words); {
	case len(l.words) < most:
		l.words = append(l.words, word)
		return l.command.words[len(l.words)-1].checkWord(word)
	case optional[l.name] != "" && !l.given[optional[l.name]]:
		return l.readFlag("-"+optional[l.name]+"="+word, "")
	case several[l.name]:
		l.words[most-1] += "," + word
		return l.command.words[most-1].checkWord(word)
	}
	return fmt.Errorf("%q is one word too many: %s", word, l.describeUsage())
}

// describeUsage says which words and flags a command takes.
func (l *line) describeUsage() string {
	var all []string
	for _, word := range l.command.words {
		all = append(all, strings.ToUpper(word.name))
	}
	if name := optional[l.name]; name != "" {
		all = append(all, "one "+strings.ToUpper(name))
	}
	return "it takes " + cmp.Or(strings.Join(all, " "), "no words") + ", and flags as -name=value"
}

func (l *line) readFlag(arg, next string) error {
	name, value, valued := strings.Cut(arg, "=")
	f := l.flag(flagName(arg))
	switch {
	case f == nil:
		return fmt.Errorf("unknown flag %q%s", name, l.suggestFlag(flagName(arg)))
	case l.given[f.name]:
		return fmt.Errorf("-%s is given twice", f.name)
	case !valued && f.kind == "bool":
		if _, err := strconv.ParseBool(next); err == nil {
			return fmt.Errorf("-%s %s: write it as -%[1]s=%s", f.name, next)
		}
		value = "true"
	case !valued && bare[f.name] != "":
		value = bare[f.name]
	case !valued:
		return fmt.Errorf("-%s has no value: write it as -%[1]s=%s", f.name, cmp.Or(next, "VALUE"))
	}
	if err := f.checkValue(value); err != nil {
		return err
	}
	if all := areas[l.name]; all != nil && f.name == "area" {
		if err := oneOf(f.name, value, all()); err != nil {
			return err
		}
	}
	l.given[f.name] = true
	l.flags = append(l.flags, "-"+f.name+"="+value)
	return nil
}

// checkComplete refuses a line without a required word.
func (l *line) checkComplete() error {
	lacks := len(l.command.words) - len(l.words)
	if lacks == 1 && l.given[boardless[l.name]] {
		l.words = slices.Insert(l.words, 0, "")
		lacks = 0
	}
	if lacks == 0 {
		return l.checkRelated()
	}
	missing := l.command.words[len(l.words)].name
	if hint := hints[missing]; hint != "" {
		return fmt.Errorf("%s is missing (%s): %s", strings.ToUpper(missing), hint, l.describeUsage())
	}
	return fmt.Errorf("%s is missing: %s", strings.ToUpper(missing), l.describeUsage())
}

// checkRelated refuses flags that have no effect, and lines without a required flag.
func (l *line) checkRelated() error {
	for _, f := range l.command.flags {
		if !l.given[f.name] {
			continue
		}
		if other := needs[l.name][f.name]; other != "" && !l.given[other] {
			return fmt.Errorf("-%s does nothing without -%s", f.name, other)
		}
		for _, other := range apart[l.name][f.name] {
			if l.given[other] {
				return fmt.Errorf("-%s does nothing beside -%s", other, f.name)
			}
		}
	}
	if all := either[l.name]; all != nil && !slices.ContainsFunc(all, func(name string) bool { return l.given[name] }) {
		return fmt.Errorf("-%s is missing", strings.Join(all, " or -"))
	}
	if all := areas[l.name]; all != nil && !l.given["area"] {
		return fmt.Errorf("AREA is missing: want %s", strings.Join(all(), ", "))
	}
	return nil
}

// checkWord refuses an empty name.
func (a argument) checkWord(word string) error {
	if a.list && slices.ContainsFunc(strings.Split(word, ","), isBlank) || isBlank(word) {
		return fmt.Errorf("%s %q: a name is empty; is a variable of your script not set?", a.name, word)
	}
	return nil
}

// checkValue refuses a wrong value of a flag before anything starts.
func (a argument) checkValue(value string) error {
	if err := a.checkWord(value); err != nil {
		return fmt.Errorf("-%w", err)
	}
	switch a.kind {
	case "bool":
		if _, err := strconv.ParseBool(value); err != nil {
			return fmt.Errorf("-%s=%s: want true or false", a.name, value)
		}
	case "int":
		n, err := strconv.Atoi(value)
		return a.inRange(value, err, int64(n), largest)
	case "Duration":
		d, err := time.ParseDuration(value)
		return a.inRange(value, err, int64(d), int64(largest*time.Second))
	}
	if understood := forms[a.name]; understood != nil {
		return understood(value)
	}
	return nil
}

func (a argument) inRange(value string, err error, n, most int64) error {
	least := int64(1)
	if slices.Contains(zero, a.name) {
		least = 0
	}
	if err == nil && n >= least && (n <= most || a.name == "seed") {
		return nil
	}
	if a.kind == "Duration" {
		return fmt.Errorf("-%s=%s: want a time above 0 with its unit, such as 90s, 30m or 2h", a.name, value)
	}
	return fmt.Errorf("-%s=%s: want a number from %d to %d", a.name, value, least, most)
}

func oneOf(name, text string, all []string) error {
	if slices.Contains(all, text) {
		return nil
	}
	return fmt.Errorf("-%s=%s: want %s", name, text, strings.Join(all, ", "))
}

func isBlank(text string) bool { return strings.TrimSpace(text) == "" }

// suggestFlag suggests the flags that the user may have meant.
func (l *line) suggestFlag(name string) string {
	question := plaintext.DidYouMean("-"+name, l.flagNames())
	switch {
	case question != "":
		return question
	case len(l.command.flags) == 0:
		return ": the command has no flags"
	}
	return ": the command has " + strings.Join(l.flagNames(), ", ")
}
