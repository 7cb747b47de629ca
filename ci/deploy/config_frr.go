package deploy

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	goyaml "go.yaml.in/yaml/v4"

	"slipway/ci/report"
	"slipway/flash/boardssh"
	"slipway/flash/boardssh/undo"
	"slipway/layers/plaintext"
	"slipway/layers/yaml"
)

const (
	frrUnit    = "frr.service"
	frrDaemons = "/etc/frr/daemons"
	frrConfig  = "/etc/frr/frr.conf"
)

// frr is the section frr: which daemons of FRR run, and their common configuration file.
type frr struct {
	file    *configFile
	node    *goyaml.Node
	daemons map[string]string // yes or no, by name
	config  []byte
	local   string // path of the configuration on this machine
}

var daemonPattern = plaintext.Regexp(`^[a-z][a-z0-9]{1,30}$`)

// readFRR parses the section frr, which needs one of its keys, and reads the file of its config.
func readFRR(f *configFile, n *goyaml.Node) (configPart, error) {
	e, err := f.readEntry("frr", n, "daemons", "config")
	if err != nil {
		return nil, err
	}
	r := frr{file: f, node: n, daemons: map[string]string{}}
	if list := e.Fields["daemons"]; list != nil {
		if err := r.readDaemons(e, list); err != nil {
			return nil, err
		}
	}
	if e.Fields["config"] != nil {
		r.config = f.readNamedFile(e, "config")
		r.local = filepath.Join(filepath.Dir(f.name), e.Text("config", ""))
	}
	if len(r.daemons) == 0 && r.config == nil {
		e.Fail(n, "frr needs daemons, a config, or both")
	}
	return r, e.Err
}

// readDaemons fills r.daemons from a list of daemons that must run, or from a mapping of daemons to
// yes or no (also true, false, on, off). No daemons at all are an error.
func (r frr) readDaemons(e *yaml.Entry, n *goyaml.Node) error {
	words := map[string]string{"yes": "yes", "true": "yes", "on": "yes", "no": "no", "false": "no", "off": "no"}
	if n.Kind == goyaml.SequenceNode {
		for _, name := range e.List("daemons") {
			r.daemons[name] = "yes"
		}
	}
	if n.Kind == goyaml.MappingNode {
		for key, value := range yaml.Pairs(n) {
			r.daemons[key.Value] = words[strings.ToLower(value.Value)]
		}
	}
	for name, word := range r.daemons {
		if !daemonPattern().MatchString(name) || word == "" {
			return r.file.errorAt(n, "daemons: %q must be a daemon's name, with yes or no in a mapping", name)
		}
	}
	if len(r.daemons) == 0 {
		return r.file.errorAt(n, "daemons must be a list such as [bgpd, bfdd], or a mapping such as {bgpd: yes, ospfd: no}")
	}
	return e.Err
}

// plan adds the file daemons, frr.conf if the section has a config, and the service of FRR to the
// plan. It first lets the board's FRR check that config. It fails if FRR is not installed.
func (r frr) plan(ctx context.Context, p *configPlan) error {
	text, there, err := p.boardText(ctx, frrDaemons)
	if err != nil {
		return err
	}
	if !there {
		return r.file.errorAt(r.node, "the board has no %s: FRR is not installed there", frrDaemons)
	}
	text, err = setDaemons(text, r.daemons)
	if err != nil {
		return r.file.errorAt(r.node, "%v", err)
	}
	usual := wantFile{mode: 0o640, owner: "frr:frr"}
	if err := p.addKeepingMode(ctx, frrDaemons, []byte(text), usual); err != nil {
		return err
	}
	if r.config != nil {
		if err := r.checkConfig(ctx, p.conn); err != nil {
			return err
		}
		if err := p.addKeepingMode(ctx, frrConfig, r.config, usual); err != nil {
			return err
		}
	}
	return r.startFRR(ctx, p)
}

// startFRR plans that FRR runs now and after each boot. A followUp checks that FRR runs. If FRR
// runs already, the followUp first makes it reload its changed files.
func (r frr) startFRR(ctx context.Context, p *configPlan) error {
	first := len(p.settings)
	if err := p.addSetting(ctx, undo.AtBoot, frrUnit, "enabled"); err != nil {
		return err
	}
	before := len(p.settings)
	if err := p.addSetting(ctx, undo.Service, frrUnit, "active"); err != nil {
		return err
	}
	a := followUp{files: []string{frrDaemons, frrConfig}, always: len(p.settings) > first, do: func(ctx context.Context, changed func(string) bool) (string, error) {
		return "", checkFRR(ctx, p.conn)
	}}
	if len(p.settings) == before { // FRR runs already, so it must reload its files
		a.unit, a.do = frrUnit, func(ctx context.Context, changed func(string) bool) (string, error) {
			return reloadFRR(ctx, p.conn, changed(frrDaemons))
		}
	}
	p.followUps = append(p.followUps, a)
	return nil
}

// addKeepingMode plans a file with new content and the mode and owner that it has on the board. For
// a link, these are those of its target. A missing file gets the mode and owner of otherwise.
func (p *configPlan) addKeepingMode(ctx context.Context, name string, data []byte, otherwise wantFile) error {
	r, err := p.conn.Ask(ctx, "stat", "-L", "-c", "%a %u:%g", name)
	if err != nil {
		return err
	}
	mode, owner, _ := strings.Cut(strings.TrimSpace(string(r.Stdout)), " ")
	if bits, bad := strconv.ParseUint(mode, 8, 12); r.Status == 0 && bad == nil {
		otherwise.mode, otherwise.owner = os.FileMode(bits), owner
	}
	otherwise.data = data
	p.files[name] = otherwise
	return nil
}

// setDaemons returns the text of FRR's file daemons with yes or no set for the wanted daemons, and
// no other line changed. A daemon without a line is an error.
func setDaemons(text string, want map[string]string) (string, error) {
	left := maps.Clone(want)
	var all []string
	var b strings.Builder
	for line := range strings.Lines(text) {
		body := strings.TrimRight(line, "\r\n")
		name, value, found := strings.Cut(strings.TrimRight(body, " \t"), "=")
		isDaemon := found && daemonPattern().MatchString(name) && (value == "yes" || value == "no")
		if word, wanted := want[name]; isDaemon && wanted {
			delete(left, name)
			if word != value {
				line = name + "=" + word + line[len(body):]
			}
		}
		if isDaemon {
			all = append(all, name)
		}
		b.WriteString(line)
	}
	if len(left) > 0 {
		slices.Sort(all)
		return "", fmt.Errorf("the board's FRR has no daemon %q (%s has %s)", slices.Sorted(maps.Keys(left))[0], frrDaemons, plaintext.Clean(strings.Join(slices.Compact(all), ", "), report.MaxSawBytes))
	}
	return b.String(), nil
}

// checkScript lets FRR parse a configuration without applying it.
const checkScript = `t=$(mktemp) && trap 'rm -f "$t"' EXIT && cat >"$t" && vtysh -C -f "$t"`

var frrLine = plaintext.Regexp(`(?m)^line (\d{1,6}): (.*)$`)

// checkConfig sends the configuration to the board's vtysh -C, which parses it without applying it.
// FRR may print errors and exit with 0, so the output is searched for them too.
func (r frr) checkConfig(ctx context.Context, conn *boardssh.Conn) error {
	out, err := conn.AskUpTo(ctx, bytes.NewReader(r.config), boardssh.MaxOutputBytes, "sh", "-c", checkScript)
	if err != nil {
		return err
	}
	said := string(out.Stdout) + string(out.Stderr)
	switch m := frrLine().FindStringSubmatch(said); {
	case m != nil:
		return fmt.Errorf("%s:%s: the board's FRR refuses it: %s", r.local, m[1], plaintext.Clean(m[2], report.MaxSawBytes))
	case out.Status != 0:
		return fmt.Errorf("%s: vtysh -C on the board ended with status %d: %s", r.local, out.Status, plaintext.Clean(said, report.MaxSawBytes))
	}
	return nil
}

// reloadFRR reloads FRR's configuration, which keeps its sessions, and checks that FRR runs. It
// restarts FRR if the set of daemons changed or the reload fails, and returns which it did.
func reloadFRR(ctx context.Context, conn *boardssh.Conn, otherDaemons bool) (string, error) {
	note := "FRR was restarted, as its set of daemons changed"
	if !otherDaemons {
		r, err := conn.Run(ctx, "systemctl", "reload", frrUnit)
		if err != nil {
			return "", err
		}
		if r.Status == 0 {
			return "FRR was reloaded", checkFRR(ctx, conn)
		}
		note = "FRR was restarted, as it could not be reloaded (frr-pythontools has what that takes)"
	}
	if err := undo.RestartUnits(ctx, conn, []string{frrUnit}, configWatch); err != nil {
		return "", err
	}
	return note, checkFRR(ctx, conn)
}

// checkFRR returns an error unless FRR runs and shows its configuration.
func checkFRR(ctx context.Context, conn *boardssh.Conn) error {
	if is, err := undo.ReadSetting(ctx, conn, undo.Service, frrUnit); err != nil || is != "active" {
		return cmp.Or(err, fmt.Errorf("FRR does not run; on the board: journalctl -u %s", frrUnit))
	}
	r, err := conn.Ask(ctx, "vtysh", "-c", "show running-config")
	if err == nil && r.Status != 0 {
		err = fmt.Errorf("FRR runs, and does not show its configuration: status %d: %s", r.Status, plaintext.Clean(string(r.Stderr), report.MaxSawBytes))
	}
	return err
}
