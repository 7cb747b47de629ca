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

	"slipway/layers/plaintext"
)

// confirmationToken returns the name that confirms a device when no person is asked, and the kind
// of that name. Another card can have the same path by now, so a path confirms only devices without
// a better name.
func (d Device) confirmationToken() (token, what string) {
	switch {
	case d.Kind != Block || d.Bus == "loop":
		return d.Path, "its path"
	case d.Twin != "":
		return d.Port, fmt.Sprintf("its port (%s has the same serial)", d.Twin)
	case d.Serial != "":
		return d.Serial, "its serial"
	case d.isFixed():
		return "", "its serial, and it has none"
	}
	return d.Path, "its path"
}

// guardReason says why an answer to a question does not confirm a device, but only its
// token; "" where an answer does.
func (d Device) guardReason() string {
	if d.isFixed() {
		return "not removable"
	}
	return d.Guarded
}

// Confirm makes sure that the user means these very devices: by what names them in
// yes, or else by the answer to ask, which may be nil. No error has a token that the user
// did not give: a script that named a wrong disk must not read there how to erase it.
func Confirm(ctx context.Context, devices []Device, yes []string, ask func([]Device) error) error {
	if len(yes) > 0 {
		return checkConfirmed(devices, yes)
	}
	var open []Device
	for _, d := range devices {
		_, what := d.confirmationToken()
		switch {
		case !d.exists:
		case d.guardReason() != "":
			return fmt.Errorf("%s: %s, so it is written only when confirmed by %s; nothing was written\n%s", d.Path, d.guardReason(), what, confirmHint(devices, nil))
		case ask == nil:
			return fmt.Errorf("%s: not confirmed: confirm it by %s; nothing was written\n%s", d.Path, what, confirmHint(devices, nil))
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
		if _, what := d.confirmationToken(); !slices.ContainsFunc(yes, d.isConfirmedBy) {
			return fmt.Errorf("--yes names %q, but %s is confirmed by %s; nothing was written\n%s", strings.Join(yes, ", "), d.Path, what, confirmHint(devices, yes))
		}
	}
	for _, name := range yes {
		if !slices.ContainsFunc(devices, func(d Device) bool { return d.isConfirmedBy(name) }) {
			return fmt.Errorf("--yes names %q, which is none of the devices; nothing was written\nnext: devices", name)
		}
	}
	return nil
}

// confirmHint says how to name all devices in one --yes: by the user's values, and by a
// placeholder for the others, which a shell takes for no name.
func confirmHint(devices []Device, yes []string) string {
	var names []string
	for _, d := range devices {
		_, what := d.confirmationToken()
		name := fmt.Sprintf("<%s of %s>", strings.Trim(strings.Fields(what)[1], ","), d.Path)
		if i := slices.IndexFunc(yes, d.isConfirmedBy); i >= 0 {
			name = yes[i]
		}
		names = append(names, name)
	}
	step := "devices --json"
	if only := devices[0]; only.Kind == File && len(devices) == 1 {
		step = "ls -l " + plaintext.Quote(only.Path)
	}
	return fmt.Sprintf("  to confirm the whole line: --yes=%s\nnext: %s", strings.Join(names, ","), step)
}

func (d Device) isConfirmedBy(yes string) bool {
	token, _ := d.confirmationToken()
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

// Ask returns a question for Confirm: a person at a terminal types the devices' names.
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
		if line == "" {
			fmt.Fprintln(out)
			return fmt.Errorf("not confirmed: the input ended before an answer; nothing was written\n%s", confirmHint(devices, nil))
		}
		if typed := strings.TrimSpace(line); !slices.Equal(splitNames(typed), splitNames(want)) {
			return fmt.Errorf("not confirmed: %q was typed, not %s; nothing was written\nnext: repeat the line  # then type %[2]s", typed, want)
		}
		return nil
	}
}

func splitNames(names string) []string {
	return strings.FieldsFunc(names, func(r rune) bool { return r == ' ' || r == ',' || r == '\t' })
}
