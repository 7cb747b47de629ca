package deploy

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"slipway/ci/report"
	"slipway/flash/boardssh"
	"slipway/flash/boardssh/undo"
	"slipway/layers/plaintext"
)

// nvpmodel is the section nvpmodel: a Jetson's power mode. The program keeps it over boots.
type nvpmodel struct {
	file *configFile
	node *yaml.Node
	mode string
}

var modeNamePattern = plaintext.Regexp(`^[A-Za-z0-9_][A-Za-z0-9_ .+-]{0,63}$`)

// readNvpmodel parses the section nvpmodel, a mapping such as {mode: MAXN}.
func readNvpmodel(f *configFile, n *yaml.Node) (configPart, error) {
	e, err := f.readEntry("nvpmodel", n, "mode")
	if err != nil {
		return nil, err
	}
	m := nvpmodel{f, n, e.Text("mode", "")}
	if !modeNamePattern().MatchString(m.mode) {
		e.Fail(n, "nvpmodel needs a mode, its number or its name, such as {mode: MAXN}")
	}
	return m, e.Err
}

// powerModes are the numbers and names of a board's power modes, in the order of nvpmodel.conf.
type powerModes []powerMode

type powerMode struct{ number, name string }

var powerModePattern = plaintext.Regexp(`(?m)^\s*<\s*POWER_MODEL\s+ID=(\d{1,4})\s+NAME=(\S{1,64})\s*>`)

// parsePowerModes returns the POWER_MODEL entries in the text of nvpmodel.conf, at most 100.
func parsePowerModes(text string) (all powerModes) {
	for _, m := range powerModePattern().FindAllStringSubmatch(text, 100) {
		all = append(all, powerMode{m[1], m[2]})
	}
	return all
}

// findNumber returns the number of a mode by number or name, ignoring case, and whether it exists.
func (all powerModes) findNumber(mode string) (string, bool) {
	if n, err := strconv.Atoi(mode); err == nil {
		mode = strconv.Itoa(n)
	}
	for _, m := range all {
		if m.number == mode || strings.EqualFold(m.name, mode) {
			return m.number, true
		}
	}
	return "", false
}

// String returns the modes' numbers and names, such as "0 15W, 1 MAXN".
func (all powerModes) String() string {
	names := make([]string, len(all))
	for i, m := range all {
		names[i] = m.number + " " + m.name
	}
	return strings.Join(names, ", ")
}

var activeModePattern = plaintext.Regexp(`(?m)^(\d{1,4})\s*$`)

// plan adds the power mode and its check to p, if another is set. No nvpmodel or mode is an error.
func (m nvpmodel) plan(ctx context.Context, p *configPlan) error {
	if err := p.wantProgram(ctx, "nvpmodel", "it is a Jetson's, of the package nvidia-l4t-nvpmodel or tegra-nvpmodel"); err != nil {
		return m.file.errorAt(m.node, "%v", err)
	}
	text, _, err := p.boardText(ctx, "/etc/nvpmodel.conf")
	if err != nil {
		return err
	}
	modes := parsePowerModes(text)
	number, known := modes.findNumber(m.mode)
	if !known {
		return m.file.errorAt(m.node, "the board has no power mode %q (has %s)", m.mode, plaintext.Clean(modes.String(), report.MaxSawBytes))
	}
	before := len(p.settings)
	if err := p.addSetting(ctx, undo.PowerMode, "mode", number); err != nil || len(p.settings) == before {
		return err
	}
	p.followUps = append(p.followUps, followUp{always: true, do: func(ctx context.Context, _ func(string) bool) (string, error) {
		return checkPowerMode(ctx, p.conn, number)
	}})
	return nil
}

// checkPowerMode asks nvpmodel for the active mode's number. If that is not want, it returns a note
// that the wanted mode begins with the next restart, else "".
func checkPowerMode(ctx context.Context, conn *boardssh.Conn, want string) (string, error) {
	r, err := conn.Ask(ctx, "nvpmodel", "-q")
	if err != nil {
		return "", err
	}
	is := activeModePattern().FindStringSubmatch(string(r.Stdout))
	if r.Status != 0 || is == nil {
		return "", fmt.Errorf("nvpmodel -q ended with status %d and said %s", r.Status, plaintext.Clean(string(r.Stdout), report.MaxSawBytes))
	}
	if is[1] == want {
		return "", nil
	}
	return fmt.Sprintf("power mode %s begins with the next restart of the board; %s is in force until then", want, is[1]), nil
}
