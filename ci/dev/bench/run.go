package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Options limits a bench to what takes minutes. Its zero value measures all of it.
type Options struct {
	Rounds int    // how often each variant is measured
	Only   string // only what matches this pattern
	MiB    int    // the image's size
	Boards int    // how many boards are simulated
}

func (o Options) withDefaults(rounds, mib int) Options {
	return Options{Rounds: cmp.Or(o.Rounds, rounds), Only: o.Only, MiB: cmp.Or(o.MiB, mib)}
}

var areas = map[string]func(context.Context, io.Writer, Options) error{
	"build": withoutOptions(Build), "hook": withoutOptions(Hook), "flash": Flash, "flashslow": FlashSlow, "deploy": Deploy,
	"fleet": Fleet, "isar": withoutOptions(Isar), "layers": withoutOptions(Layers), "rest": withoutOptions(Rest), "store": Store, "up": withoutOptions(Up), "update": withoutOptions(Update),
}

// withoutOptions refuses options for an area that has none.
func withoutOptions(measure func(context.Context, io.Writer) error) func(context.Context, io.Writer, Options) error {
	return func(ctx context.Context, w io.Writer, o Options) error {
		if o != (Options{}) {
			return errors.New("--rounds, --only and --mib are for deploy, flash, flashslow and store, --boards for fleet")
		}
		return measure(ctx, w)
	}
}

// compileOnly compiles the pattern of --only, which must match one of the names.
func compileOnly(pattern string, names []string) (*regexp.Regexp, error) {
	only, err := regexp.Compile(pattern)
	if err != nil {
		return nil, fmt.Errorf("--only: %w", err)
	}
	if !slices.ContainsFunc(names, only.MatchString) {
		return nil, fmt.Errorf("--only=%s matches none of: %s", pattern, strings.Join(names, "; "))
	}
	return only, nil
}

// Areas lists the names that Run accepts.
func Areas() []string { return slices.Sorted(maps.Keys(areas)) }

// Run measures one area.
func Run(ctx context.Context, w io.Writer, area string, o Options) error {
	measure, ok := areas[area]
	if !ok {
		return fmt.Errorf("unknown area %q: say which (%s), as in: bench flash", area, strings.Join(Areas(), ", "))
	}
	if o.Rounds < 0 || o.MiB < 0 || o.Boards < 0 {
		return errors.New("--rounds, --mib and --boards are numbers above 0")
	}
	if err := measure(ctx, w, o); err != nil {
		return fmt.Errorf("bench %s could not measure: %w", area, err)
	}
	return nil
}
