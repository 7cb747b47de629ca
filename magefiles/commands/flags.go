package commands

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"slipway/ci/report"
	"slipway/flash/boardssh"
)

// flagValue is the value of a flag, set at most once. set refuses wrong values of the line.
type flagValue struct {
	kind  string // shown in help, as FILE
	text  string
	given bool
	often bool // it may be given again
	set   func(string) error
}

func (v *flagValue) String() string { return v.text }
func (v *flagValue) Type() string   { return v.kind }

// Set stores a text that set accepts. It refuses a second one, unless often is set.
func (v *flagValue) Set(text string) error {
	if v.given && !v.often {
		return errTwice
	}
	if err := v.set(text); err != nil {
		return err
	}
	v.given, v.text = true, text
	return nil
}

var errTwice = errors.New("is given twice")

// addFlag adds a flag whose values set stores. Help calls a value kind, or K for a name "flag=K".
func (c *Command) addFlag(name, usage, kind string, set func(string) error) *pflag.Flag {
	if before, after, found := strings.Cut(name, "="); found {
		name, kind = before, after
	}
	c.Flags().SortFlags = false
	return c.Flags().VarPF(&flagValue{kind: kind, set: set}, name, "", usage)
}

// Text adds a flag for a text that must not be blank. name may be "name=KIND".
func (c *Command) Text(name, otherwise, usage string) *string {
	return parsed(c, name, "TEXT", otherwise, usage, func(text string) (string, error) { return text, nil })
}

// pin adds the flag --pin with the fingerprint of a host key.
func (c *Command) pin() *string {
	return parsed(c, "pin", "FINGERPRINT", "", "add the board's unknown host key to known_hosts if it has this fingerprint", func(text string) (string, error) { return text, boardssh.CheckPin(text) })
}

// checkNotBlank returns an error for a text of blanks only, or an empty one.
func checkNotBlank(text string) error {
	if strings.TrimSpace(text) == "" {
		return errBlank
	}
	return nil
}

var errBlank = errors.New("a name is empty; is a variable of your script not set?")

// Names adds a flag for names separated by commas.
func (c *Command) Names(name, usage string) *[]string { return c.namesBy(splitList, name, usage) }

// Words adds a flag for names separated by commas or blanks.
func (c *Command) Words(name, usage string) *[]string { return c.namesBy(splitWords, name, usage) }

// namesBy adds a flag whose value split cuts into names, none of them blank.
func (c *Command) namesBy(split func(string) []string, name, usage string) *[]string {
	var value []string
	c.addFlag(name, usage, "NAMES", func(text string) error {
		if err := checkNames(name, text, true); err != nil {
			return errBlank
		}
		value = split(text)
		return nil
	})
	return &value
}

// checkNames returns an error if text, or with list a name between its commas, is blank.
func checkNames(what, text string, list bool) error {
	names := []string{text}
	if list {
		names = strings.Split(text, ",")
	}
	if slices.ContainsFunc(names, func(name string) bool { return strings.TrimSpace(name) == "" }) {
		return fmt.Errorf("%s %q: %w", what, text, errBlank)
	}
	return nil
}

// choice adds a flag for one of all, which a shell suggests. Without the flag the value is "".
func (c *Command) choice(name string, all []string, usage string) *string {
	value := ""
	c.addFlag(name, usage, strings.Join(all, "|"), func(text string) error {
		if !slices.Contains(all, text) {
			return fmt.Errorf("want %s", strings.Join(all, ", "))
		}
		value = text
		return nil
	})
	c.complete(name, func([]string) []string { return all }, cobra.ShellCompDirectiveNoFileComp)
	return &value
}

// parsed adds a flag with the default otherwise. parse makes its value of a text that is not blank.
func parsed[T any](c *Command, name, kind string, otherwise T, usage string, parse func(string) (T, error)) *T {
	value := otherwise
	c.addFlag(name, usage, kind, func(text string) (err error) {
		if err := checkNotBlank(text); err != nil {
			return err
		}
		value, err = parse(text)
		return err
	})
	return &value
}

// Switch adds a boolean flag.
func (c *Command) Switch(name, usage string) *bool {
	value := new(bool)
	c.addFlag(name, usage, "bool", func(text string) (err error) {
		*value, err = parseBool(text)
		return err
	}).NoOptDefVal = "true"
	return value
}

func parseBool(text string) (bool, error) {
	yes, err := strconv.ParseBool(text)
	if err != nil {
		return false, errors.New("want true or false")
	}
	return yes, nil
}

// largest is the limit of numbers in flags. More seconds would overflow a time.Duration.
const largest = 1 << 30

// Number adds a flag for a whole number from least to largest, without an upper limit for seed.
func (c *Command) Number(name string, otherwise, least int, usage string) *int {
	return c.numberUpTo(name, otherwise, least, largest, usage)
}

// numberUpTo adds a flag for a number from least to most, with the default otherwise. The number of
// --seed has no upper limit.
func (c *Command) numberUpTo(name string, otherwise, least, most int, usage string) *int {
	return parsed(c, name, "N", otherwise, usage, func(text string) (int, error) {
		n, err := strconv.Atoi(text)
		if n > most && name != "seed" {
			return 0, fmt.Errorf("want a number of at most %d", most)
		}
		if err != nil || n < least {
			return 0, fmt.Errorf("want a number, %d or more", least)
		}
		return n, nil
	})
}

// Span adds a flag for a duration above 0 and up to largest seconds.
func (c *Command) Span(name string, otherwise time.Duration, usage string) *time.Duration {
	return parsed(c, name, "TIME", otherwise, usage, func(text string) (time.Duration, error) {
		d, err := time.ParseDuration(text)
		if err != nil || d <= 0 || d > largest*time.Second {
			return 0, errors.New("want a time above 0 with its unit, such as 90s, 30m or 2h")
		}
		return d, nil
	})
}

// given reports whether the user typed the flag.
func (c *Command) given(name string) bool { return c.Flags().Changed(name) }

// needs returns an error if flag was typed without other, which it needs.
func (c *Command) needs(flag, other string) error {
	if c.given(flag) && !c.given(other) {
		return fmt.Errorf("--%s does nothing without --%s", flag, other)
	}
	return nil
}

// refuseTogether returns an error if flag and other were both typed.
func (c *Command) refuseTogether(flag, other string) error {
	if c.given(flag) && c.given(other) {
		return fmt.Errorf("--%s does nothing beside --%s", flag, other)
	}
	return nil
}

// become adds the flag --become, which overrides SLIPWAY_BECOME.
func (c *Command) become() {
	c.addFlag("become", "run programs on the board as root, by sudo (or SLIPWAY_BECOME=sudo)", "bool", func(text string) error {
		yes, err := parseBool(text)
		c.inContext = append(c.inContext, func(ctx context.Context) context.Context { return boardssh.WithBecome(ctx, yes) })
		return err
	}).NoOptDefVal = "true"
}

// rate adds the flag --rate, which limits the bytes a second that go to a board.
func (c *Command) rate() {
	rate := parsed(c, "rate", "RATE", 0, "the most bytes a second to each board, such as 512k or 10M", boardssh.ParseRate)
	c.inContext = append(c.inContext, func(ctx context.Context) context.Context { return boardssh.WithRate(ctx, *rate) })
}

// reportForm adds the flags --as and --json for a report's form, nil without them. --as wins.
func (c *Command) reportForm() **report.Form {
	value := new(*report.Form)
	read := func(text string) (err error) {
		if text == "" { // for which FormOf returns none
			return errBlank
		}
		*value, err = report.FormOf(text, false)
		return err
	}
	c.addFlag("as", "print the report as tap, junit, html or json", "FORM", read)
	c.complete("as", func([]string) []string { return report.FormNames() }, cobra.ShellCompDirectiveNoFileComp)
	c.addFlag("json", "the same as --as=json", "bool", func(text string) error {
		yes, err := parseBool(text)
		if yes && *value == nil {
			return read("json")
		}
		return err
	}).NoOptDefVal = "true"
	return value
}

// otherBoard adds the flag --other-board, which allows files for another board.
func (c *Command) otherBoard() *bool {
	return c.Switch("other-board", "allow files that say they are for another board or architecture; the receipt says so")
}
