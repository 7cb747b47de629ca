package device

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/term"

	"slipway/layers/plaintext"
)

// confirmationToken returns the name with which --yes confirms a device, and what that name is: its
// serial, port or path. A path confirms only a device without a better name, because another card
// may have the same path later. token is "" for a fixed disk without a serial.
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

// Token returns the name that --yes takes for the device, or else its path.
func (d Device) Token() string {
	token, _ := d.confirmationToken()
	return cmp.Or(token, d.Path)
}

// guardReason returns why --yes must name the device; "" if a typed answer is enough.
func (d Device) guardReason() string {
	if d.isFixed() {
		return "not removable"
	}
	return d.Guarded
}

// Confirm returns an error unless the user confirmed exactly these devices: by yes, or if that is
// empty by ask, which may be nil. Without yes, a new virtual disk needs no answer, and a fixed or
// guarded one is refused. No error tells a token that the user did not give: a script could learn
// to erase.
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

// checkConfirmed returns an error unless each device is named in yes, and each of yes is a device.
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

// confirmHint returns a --yes option for all devices, and a next step. The option has the user's
// own values and placeholders such as <serial of /dev/sdb> for the others.
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
		step = plaintext.Either(only.exists, "ls -l "+plaintext.Quote(only.Path), "repeat the line without --yes  # a new file needs none")
	}
	return fmt.Sprintf("  to confirm the whole line: --yes=%s\nnext: %s", strings.Join(names, ","), step)
}

func (d Device) isConfirmedBy(yes string) bool {
	token, _ := d.confirmationToken()
	return yes != "" && (yes == token || d.Kind == File && samePath(yes, d.Path))
}

// samePath reports whether a is b, or a link to it. b is absolute and free of links.
func samePath(a, b string) bool {
	if real, err := filepath.EvalSymlinks(a); err == nil {
		a = real
	}
	a, err := filepath.Abs(a)
	return err == nil && a == b
}

// askUser runs ask and returns its result. If ctx ends first, it returns and leaves ask waiting.
func askUser(ctx context.Context, ask func([]Device) error, devices []Device) error {
	answer := make(chan error, 1)
	go func() { answer <- ask(devices) }()
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return fmt.Errorf("not confirmed: %w; nothing was written", context.Cause(ctx))
	}
}

// Ask returns a question for Confirm: it prints the devices' paths and returns nil if the person
// types the last elements of all of them, in order.
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
		if f, ok := in.(*os.File); line == "" || !ok || !term.IsTerminal(int(f.Fd())) { // no newline was echoed
			fmt.Fprintln(out)
		}
		if line == "" {
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
