package device

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
)

// token is what confirms a device without a person at a terminal, and what that is.
// A path says nothing about a card that can be another one by now, so it will do only
// where there is nothing better.
func (d Device) token() (token, what string) {
	switch {
	case d.Kind != Block || d.Bus == "loop":
		return d.Path, "its path"
	case d.Twin != "":
		return d.Port, fmt.Sprintf("its port (%s has the same serial)", d.Twin)
	case d.Serial != "" || d.fixed():
		return d.Serial, "its serial"
	}
	return d.Path, "its path"
}

// guard says why a device is written only where somebody gave its token; a name that
// is typed under a question does not do. "" where it does.
func (d Device) guard() string {
	if d.fixed() {
		return "not removable"
	}
	return d.Guarded
}

// Confirm makes sure that the user means these very devices: by what names them in
// yes, or else by the answer to ask, which may be nil.
func Confirm(ctx context.Context, devices []Device, yes []string, ask func([]Device) error) error {
	if len(yes) > 0 {
		return checkConfirmed(devices, yes)
	}
	var open []Device
	for _, d := range devices {
		token, what := d.token()
		switch {
		case !d.Exists:
		case d.guard() != "":
			return fmt.Errorf("%s: %s, so it is written only when confirmed by %s, %q; nothing was written", d.Path, d.guard(), what, token)
		case ask == nil:
			return fmt.Errorf("%s: not confirmed: confirm it by %s, %q; nothing was written", d.Path, what, token)
		default:
			open = append(open, d)
		}
	}
	if len(open) == 0 {
		return nil
	}
	return askUser(ctx, ask, open)
}

// checkConfirmed compares the devices with what confirms them. A name of none of them
// was meant for another device, so that something is wrong.
func checkConfirmed(devices []Device, yes []string) error {
	for _, d := range devices {
		if token, what := d.token(); !slices.ContainsFunc(yes, d.named) {
			return fmt.Errorf("confirmed as %q, but %s of %s is %q; nothing was written", strings.Join(yes, ", "), what, d.Path, token)
		}
	}
	for _, name := range yes {
		if !slices.ContainsFunc(devices, func(d Device) bool { return d.named(name) }) {
			return fmt.Errorf("confirmed as %q, which is none of the devices; nothing was written", name)
		}
	}
	return nil
}

func (d Device) named(yes string) bool {
	token, _ := d.token()
	return yes != "" && (yes == token || d.Kind == File && samePath(yes, d.Path))
}

func samePath(a, b string) bool {
	if real, err := filepath.EvalSymlinks(a); err == nil {
		a = real
	}
	a, err := filepath.Abs(a)
	return err == nil && a == b
}

// askUser does not wait for an answer any longer once the context has ended.
func askUser(ctx context.Context, ask func([]Device) error, devices []Device) error {
	answer := make(chan error, 1)
	go func() { answer <- ask(devices) }()
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Ask returns a Confirm for a terminal: whoever sits there types the devices' names.
func Ask(in io.Reader, out io.Writer) func([]Device) error {
	lines := bufio.NewReader(io.LimitReader(in, 4096))
	return func(devices []Device) error {
		var paths, names []string
		for _, d := range devices {
			paths, names = append(paths, d.Path), append(names, filepath.Base(d.Path))
		}
		want := strings.Join(names, " ")
		fmt.Fprintf(out, "All that is on %s will be lost. Type %s to go on: ", strings.Join(paths, ", "), want)
		line, err := lines.ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if typed := strings.TrimSpace(line); !slices.Equal(words(typed), words(want)) {
			return fmt.Errorf("not confirmed: %q was typed, not %s; nothing was written", typed, want)
		}
		return nil
	}
}

func words(names string) []string {
	return strings.FieldsFunc(names, func(r rune) bool { return r == ' ' || r == ',' || r == '\t' })
}
