package undo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"slipway/flash/boardssh"
	"slipway/flash/boardssh/files"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// Setting is a state of a running board, not a file: a kernel value, module, service or power mode.
type Setting struct {
	Kind   string `json:"kind"` // one of the kinds below
	Name   string `json:"name"`
	Before string `json:"before"`
	After  string `json:"after"`
}

// Kinds of settings.
const (
	KernelValue = "kernel"   // a file below /proc/sys or /sys, by its path
	Module      = "module"   // of the kernel: loaded, or absent
	PowerMode   = "nvpmodel" // by number; the name is "mode"
	Service     = "service"  // a unit: active, or inactive
	AtBoot      = "boot"     // a unit: enabled, or disabled
)

// settingKind has the patterns and shell scripts of one kind of setting. read gets the name and
// prints the value. write gets the name and the value.
type settingKind struct {
	name, value func() *regexp.Regexp
	read, write string
}

var settingKinds = map[string]settingKind{
	KernelValue: {
		plaintext.Regexp(`^/(proc/sys|sys)(/[A-Za-z0-9_@:-][A-Za-z0-9_.@:-]*)+$`), plaintext.Regexp(`^[ -~]{0,1000}$`),
		`cat "$1"`, `printf '%s\n' "$2" >"$1"`,
	},
	// A built-in module without parameters and version has no folder in /sys/module.
	Module: {
		plaintext.Regexp(`^[A-Za-z0-9_][A-Za-z0-9_-]{0,63}$`), plaintext.Regexp(`^(loaded|absent)$`),
		`m=$(echo "$1" | tr - _)
if [ -d "/sys/module/$m" ] || cat "/lib/modules/$(uname -r)/modules.builtin" 2>/dev/null | tr - _ | grep -q "/$m\.ko"; then echo loaded; else echo absent; fi`,
		`if [ "$2" = loaded ]; then modprobe "$1"; else modprobe -r "$1"; fi`,
	},
	// nvpmodel keeps the mode in the status file, and sets it at the next boot. If a mode
	// needs a restart, nvpmodel asks whether to restart. The script answers no, and only
	// writes the mode into the status file.
	PowerMode: {
		plaintext.Regexp(`^mode$`), plaintext.Regexp(`^\d{1,4}$`),
		`s=/var/lib/nvpmodel/status
n=$(sed -n 's/.*pmode:0*\([0-9][0-9]*\).*/\1/p' "$s" 2>/dev/null | head -n 1)
[ -n "$n" ] || n=$(nvpmodel -q | sed -n 's/^\([0-9][0-9]*\)$/\1/p' | head -n 1)
echo "$n"`,
		`s=/var/lib/nvpmodel/status
said=$(echo no | nvpmodel -m "$2" 2>&1) && good=1 || good=0
n=$(nvpmodel -q | sed -n 's/^\([0-9][0-9]*\)$/\1/p' | head -n 1)
[ "$n" != "$2" ] || [ "$good" = 0 ] || exit 0
case $said in *[Rr]eboot*|*REBOOT*) ;; *) echo "$said" >&2; exit 1 ;; esac
mkdir -p "${s%/*}" && [ -s "$s" ] || echo "pmode:0000" >"$s"
sed "s/pmode:[0-9]*/pmode:$(printf %04d "$2")/" "$s" >"$s.slipway" && cat "$s.slipway" >"$s" && rm -f "$s.slipway"`,
	},
	Service: {
		unitPattern, plaintext.Regexp(`^(active|inactive)$`),
		`case $(systemctl is-active "$1") in active|reloading) echo active ;; *) echo inactive ;; esac`,
		`if [ "$2" = active ]; then systemctl start "$1"; else systemctl stop "$1"; fi`,
	},
	AtBoot: {
		unitPattern, plaintext.Regexp(`^(enabled|disabled)$`),
		`case $(systemctl is-enabled "$1") in disabled) echo disabled ;; *) echo enabled ;; esac`,
		`if [ "$2" = enabled ]; then systemctl enable "$1"; else systemctl disable "$1"; fi`,
	},
}

const maxSettingName = 1000

// checkValues refuses a name or value that does not match the patterns of its kind. A hostile board
// could have written the manifest, and the values reach a shell script.
func (s Setting) checkValues() error {
	k, known := settingKinds[s.Kind]
	if !known || !k.name().MatchString(s.Name) || len(s.Name) > maxSettingName || !k.value().MatchString(s.Before) || !k.value().MatchString(s.After) {
		return fmt.Errorf("%s %s: a setting that makes no sense", boardssh.Printable(s.Kind), boardssh.Printable(s.Name))
	}
	return nil
}

// ErrNoSetting means that the board does not have the setting.
var ErrNoSetting = errors.New("the board has no such setting")

// ReadSetting reads the current value of a setting from the board, with single blanks between
// words. If the board cannot read it, that is ErrNoSetting.
func ReadSetting(ctx context.Context, c *boardssh.Conn, kind, name string) (string, error) {
	k, known := settingKinds[kind]
	if !known || len(name) > maxSettingName || !k.name().MatchString(name) {
		return "", fmt.Errorf("%s %s: no name of a setting", kind, boardssh.Printable(name))
	}
	r, err := c.Ask(ctx, "sh", "-c", k.read, "sh", name)
	if err == nil && r.Status != 0 {
		err = fmt.Errorf("%w: %s", ErrNoSetting, bytes.TrimSpace(r.Stderr))
	}
	if err != nil {
		return "", boardssh.BoardError("read "+name, err)
	}
	value := strings.Join(strings.Fields(string(r.Stdout)), " ") // the kernel puts tabs between numbers
	if !k.value().MatchString(value) {
		return "", fmt.Errorf("the board says that %s is %s, which makes no sense", name, boardssh.Printable(value))
	}
	return value, nil
}

// ErrSetting means that a setting has another value after it was written.
var ErrSetting = errors.New("the board did not take a setting")

// writeSetting changes a setting on the board and reads it back: another value is ErrSetting.
func writeSetting(ctx context.Context, c *boardssh.Conn, s Setting, value string) error {
	r, err := c.Run(ctx, "sh", "-c", settingKinds[s.Kind].write, "sh", s.Name, value)
	if err != nil {
		return err
	}
	is, err := ReadSetting(ctx, c, s.Kind, s.Name)
	if err == nil && is != value {
		err = fmt.Errorf("%w: %s is %s after it was set to %s", ErrSetting, s.Name, is, value)
		if words := bytes.TrimSpace(r.Stderr); len(words) > 0 {
			err = fmt.Errorf("%w: %s", err, boardssh.Printable(string(words)))
		}
	}
	return err
}

// Configuration is a set of files and settings for a board.
type Configuration struct {
	Folder   string            // of this machine, with the layout of the board's root
	Name     string            // shown for it
	Owners   map[string]string // of single files in Folder
	Settings []Setting
	Units    []string // restarted after an undo
}

// Configure writes to a board the files, owned by root or want.Owners, then the settings in order.
// Restore with id undoes both: the caller has read each setting's Before. After the first error it
// stops and undoes nothing. With dryRun it only returns the changes of files.
func Configure(ctx context.Context, c *boardssh.Conn, want Configuration, dryRun bool) (changes []files.Change, id string, err error) {
	u := Deployment{Units: want.Units, Settings: want.Settings, Among: true}
	if err := u.checkContent(); err != nil {
		return nil, "", err
	}
	options := files.DirOptions{Among: true, Owner: "0:0", Owners: want.Owners, DryRun: dryRun, Name: want.Name}
	changes, id, err = deployDir(ctx, c, want.Folder, "/", options, u)
	if err != nil || dryRun || len(want.Settings) == 0 {
		return changes, id, err
	}
	err = progress.Run(ctx, "settings", func(step *progress.Step) (string, error) {
		for _, s := range want.Settings {
			step.Detail(s.Name)
			if err := writeSetting(ctx, c, s, s.After); err != nil {
				return "", err
			}
		}
		return fmt.Sprintf("%d as they should be", len(want.Settings)), nil
	})
	return changes, id, err
}

// compareSettings reads the deploy's settings on the board; it skips missing ones. It returns those
// that differ from before the deploy, in reverse order, for an undo to write. changed are the names
// of those that also differ from the deploy's value.
func compareSettings(ctx context.Context, c *boardssh.Conn, u Deployment) (todo []Setting, changed []string, err error) {
	for _, s := range slices.Backward(u.Settings) {
		is, err := ReadSetting(ctx, c, s.Kind, s.Name)
		if errors.Is(err, ErrNoSetting) {
			continue // it is gone with its module
		}
		if err != nil {
			return nil, nil, err
		}
		if is == s.Before {
			continue
		}
		todo = append(todo, s)
		if is != s.After {
			changed = append(changed, s.Name)
		}
	}
	return todo, changed, nil
}
