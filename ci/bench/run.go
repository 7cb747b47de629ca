package bench

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

var areas = map[string]func(context.Context, io.Writer) error{
	"build": Build, "hook": Hook, "flash": Flash, "deploy": Deploy, "layers": Layers, "up": Up,
}

// Run measures one area.
func Run(ctx context.Context, w io.Writer, area string) error {
	measure, ok := areas[area]
	if !ok {
		return fmt.Errorf("unknown area %q: say which (%s), as in: bench flash", area, strings.Join(slices.Sorted(maps.Keys(areas)), ", "))
	}
	if err := measure(ctx, w); err != nil {
		return fmt.Errorf("bench %s could not measure: %w", area, err)
	}
	return nil
}
