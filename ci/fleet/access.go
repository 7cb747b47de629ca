package fleet

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"slipway/layers/plaintext"
)

// Access is how to reach a host. ~/.ssh/config decides the fields that the inventory leaves out.
type Access struct {
	Host     string
	Port     int
	User     string
	Identity string   // file of a private key
	Jump     []string // jump hosts, the nearest first
	Become   string   // user who runs the programs there, by sudo

	HostKey string        // as a line of known_hosts has it: kind and base64
	Serial  string        // that the board must report
	Board   string        // the board's name in Slipway
	Limit   time.Duration // for the work on it; 0: the limit of all boards
}

// The names of the variables that Slipway reads, each followed by its older names.
var (
	hostVariables     = []string{"ansible_host", "ansible_ssh_host"}
	portVariables     = []string{"ansible_port", "ansible_ssh_port"}
	userVariables     = []string{"ansible_user", "ansible_ssh_user"}
	identityVariables = []string{"ansible_ssh_private_key_file", "ansible_private_key_file"}
	argsVariables     = []string{"ansible_ssh_common_args", "ansible_ssh_extra_args", "ansible_ssh_args"}
)

const (
	connectionVariable = "ansible_connection"
	priorityVariable   = "ansible_group_priority"
	hostKeyVariable    = "slipway_host_key"
	serialVariable     = "slipway_serial"
	boardVariable      = "slipway_board"
	limitVariable      = "slipway_limit"

	becomeVariable       = "ansible_become"
	becomeMethodVariable = "ansible_become_method"
	becomeUserVariable   = "ansible_become_user"
)

// ignoredVariables are login variables that Slipway ignores, with the warnings that it prints.
var ignoredVariables = map[string]string{
	"ansible_password":        "passwords are not used; log in with a key",
	"ansible_ssh_pass":        "passwords are not used; log in with a key",
	"ansible_ssh_password":    "passwords are not used; log in with a key",
	"ansible_become_password": "passwords are not used; at a terminal sudo's is asked for",
	"ansible_become_pass":     "passwords are not used; at a terminal sudo's is asked for",
	"ansible_become_flags":    "sudo gets no flags but Slipway's",
	"ansible_become_exe":      "the sudo of PATH is run",
	"ansible_ssh_executable":  "no ssh program is run; see ~/.ssh/config",
}

// readVariables are the variables that Slipway reads.
var readVariables = slices.Concat(hostVariables, portVariables, userVariables, identityVariables, argsVariables,
	[]string{connectionVariable, priorityVariable, hostKeyVariable, serialVariable, boardVariable, limitVariable, becomeVariable, becomeMethodVariable, becomeUserVariable})

// isKnownVariable reports whether Slipway reads a variable, or warns that it ignores it.
func isKnownVariable(name string) bool {
	return ignoredVariables[name] != "" || slices.Contains(readVariables, name)
}

// templateProblem returns why a value with a template cannot be used, or "".
func templateProblem(value string) string {
	if strings.Contains(value, "{{") || strings.Contains(value, "{%") {
		return "a template, which Slipway does not fill in; write the value itself"
	}
	return ""
}

func oneLine(v any) string { return plaintext.OneLine(fmt.Sprint(v)) }

// addHosts adds hosts to a group, and gives each of them the port and variables of their line.
func (inv *Inventory) addHosts(g *group, names []string, port string, vars map[string]variable, line int) error {
	for _, name := range names {
		h, err := inv.addHost(g, name, line)
		if err != nil {
			return err
		}
		if port != "" {
			h.own["ansible_port"] = variable{value: port, line: line}
		}
		maps.Copy(h.own, vars)
	}
	return nil
}

// ResolveAccess returns how a host is reached, from its variables or else its name. It checks only
// these variables, not a template or a secret elsewhere in the file. It may add to inv.Warnings.
func (inv *Inventory) ResolveAccess(h *Host) (a Access, err error) {
	a.Host, err = inv.lookUpVariable(h, hostVariables)
	a.Host = cmp.Or(a.Host, h.Name)
	for _, f := range []struct {
		field *string
		names []string
	}{
		{&a.User, userVariables},
		{&a.Identity, identityVariables},
		{&a.Serial, []string{serialVariable}},
		{&a.Board, []string{boardVariable}},
		{&a.HostKey, []string{hostKeyVariable}},
	} {
		if err == nil {
			*f.field, err = inv.lookUpVariable(h, f.names)
		}
	}
	for _, step := range []func(*Host, *Access) error{inv.readPort, inv.readArgs, inv.checkConnection, inv.checkHostKey, inv.readLimit, inv.readBecome} {
		if err == nil {
			err = step(h, &a)
		}
	}
	if err == nil {
		a.Identity, err = expandHome(a.Identity)
	}
	return a, err
}

// lookUpVariable returns the value of a variable under any of its names, or "". It refuses unusable
// values (see variable.problem), values over 4096 bytes, and two names with different values: which
// of them applies depends on Ansible's version.
func (inv *Inventory) lookUpVariable(h *Host, names []string) (string, error) {
	text := ""
	for _, name := range names {
		v, ok := h.vars[name]
		switch {
		case !ok || v.null:
		case v.problem != "":
			return "", inv.errorAt(v.line, "%s: %s: %s", h.Name, name, v.problem)
		case text != "" && v.value != text:
			return "", inv.errorAt(v.line, "%s: %s and %s differ; keep one", h.Name, strings.Join(names[:1], ""), name)
		case len(v.value) > 4096:
			return "", inv.errorAt(v.line, "%s: %s is longer than 4096 bytes", h.Name, name)
		default:
			text = v.value
		}
	}
	return text, nil
}

// readPort sets a.Port from the host's variables, if any. It refuses all but 1 to 65535.
func (inv *Inventory) readPort(h *Host, a *Access) error {
	text, err := inv.lookUpVariable(h, portVariables)
	if err != nil || text == "" {
		return err
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || port == 0 || text[0] == '0' || text[0] == '+' {
		return inv.errorAt(h.lineOf(portVariables), "%s: port %q is not a number from 1 to 65535", h.Name, oneLine(text))
	}
	a.Port = int(port)
	return nil
}

// readLimit sets a.Limit from the host's variable slipway_limit, if any: over 0, such as 90s.
func (inv *Inventory) readLimit(h *Host, a *Access) error {
	text, err := inv.lookUpVariable(h, []string{limitVariable})
	if err != nil || text == "" {
		return err
	}
	if a.Limit, err = time.ParseDuration(text); err != nil || a.Limit <= 0 {
		return inv.errorAt(h.lineOf([]string{limitVariable}), "%s: %s %q is no time such as 90s or 10m", h.Name, limitVariable, oneLine(text))
	}
	return nil
}

var userPattern = plaintext.Regexp(`^[A-Za-z_][A-Za-z0-9_.-]{0,63}$`)

// readBecome sets a.Become, the user for sudo, from the host's variables. The default is root with
// --become, else "". It accepts Ansible's words for yes and no, and only the method sudo.
func (inv *Inventory) readBecome(h *Host, a *Access) error {
	words := map[string]string{becomeVariable: "", becomeMethodVariable: "", becomeUserVariable: ""}
	for name := range words {
		text, err := inv.lookUpVariable(h, []string{name})
		if err != nil {
			return err
		}
		words[name] = text
	}
	sudo := inv.become != ""
	switch strings.ToLower(words[becomeVariable]) {
	case "":
	case "false", "no", "off", "n", "f", "0":
		sudo = false
	case "true", "yes", "on", "y", "t", "1":
		sudo = true
	default:
		return inv.errorAt(h.lineOf([]string{becomeVariable}), "%s: %s %q is neither true nor false", h.Name, becomeVariable, oneLine(words[becomeVariable]))
	}
	if !sudo {
		return nil
	}
	if method := cmp.Or(words[becomeMethodVariable], "sudo"); method != "sudo" && method != "ansible.builtin.sudo" {
		return inv.errorAt(h.lineOf([]string{becomeMethodVariable}), "%s: %s %s is not followed, only sudo is", h.Name, becomeMethodVariable, oneLine(method))
	}
	a.Become = cmp.Or(words[becomeUserVariable], "root")
	if !userPattern().MatchString(a.Become) {
		return inv.errorAt(h.lineOf([]string{becomeUserVariable}), "%s: %q is no name of a user", h.Name, oneLine(a.Become))
	}
	return nil
}

// lineOf returns the line of the first of these variables that the host has, or 0.
func (h *Host) lineOf(names []string) int {
	for _, name := range names {
		if v, ok := h.vars[name]; ok {
			return v.line
		}
	}
	return 0
}

// checkConnection refuses a host whose ansible_connection is none of Ansible's SSH connections.
func (inv *Inventory) checkConnection(h *Host, _ *Access) error {
	kind, err := inv.lookUpVariable(h, []string{connectionVariable})
	if err != nil {
		return err
	}
	if !slices.Contains([]string{"", "ssh", "smart", "paramiko", "paramiko_ssh", "libssh", "ansible.netcommon.libssh", "ansible.builtin.ssh"}, kind) {
		return inv.errorAt(h.lineOf([]string{connectionVariable}), "%s: connection %s is not SSH; leave this host out: --limit='all:!%[1]s'", h.Name, oneLine(kind))
	}
	return nil
}

// checkHostKey refuses a host key that is not one public key. An empty one is no error.
func (inv *Inventory) checkHostKey(h *Host, a *Access) error {
	if a.HostKey == "" {
		return nil
	}
	if _, _, _, _, err := ssh.ParseAuthorizedKey([]byte(a.HostKey)); err != nil || strings.ContainsAny(a.HostKey, "\n\r") {
		return inv.errorAt(h.lineOf([]string{hostKeyVariable}), "%s: %s is no public key; want what ssh_host_ed25519_key.pub on the board holds", h.Name, hostKeyVariable)
	}
	return nil
}

// harmlessOptions of ssh change neither the target nor how the target proves its identity.
var harmlessOptions = map[string]bool{
	"connecttimeout": true, "connectionattempts": true, "serveraliveinterval": true, "serveralivecountmax": true, "tcpkeepalive": true,
	"controlmaster": true, "controlpersist": true, "controlpath": true, "loglevel": true, "batchmode": true, "compression": true,
	"passwordauthentication": true, "kbdinteractiveauthentication": true, "preferredauthentications": true, "pubkeyauthentication": true,
}

// hostKeyOptions are options of ssh that can turn off the check of the host key.
var hostKeyOptions = map[string]bool{"stricthostkeychecking": true, "userknownhostsfile": true, "globalknownhostsfile": true, "checkhostip": true}

// readArgs sets a.Jump from the host's variables of ssh arguments, and refuses most other options.
func (inv *Inventory) readArgs(h *Host, a *Access) error {
	for _, name := range argsVariables {
		text, err := inv.lookUpVariable(h, []string{name})
		if err != nil {
			return err
		}
		words, err := shellWords(text)
		if err == nil {
			err = inv.readOptions(a, h.vars[name].line, words)
		}
		if err != nil {
			return inv.errorAt(h.vars[name].line, "%s: %s: %w", h.Name, name, err)
		}
	}
	return nil
}

// readOptions reads ssh's -J and -o. It ignores -C, -q, -4, -6 and -T, and refuses other options.
func (inv *Inventory) readOptions(a *Access, line int, words []string) error {
	for len(words) > 0 {
		word := words[0]
		words = words[1:]
		if word == "-C" || word == "-q" || word == "-4" || word == "-6" || word == "-T" {
			continue
		}
		if len(word) == 2 && len(words) > 0 {
			word, words = word+words[0], words[1:]
		}
		switch {
		case strings.HasPrefix(word, "-J"):
			a.Jump = parseJumpHosts(word[2:])
		case strings.HasPrefix(word, "-o"):
			if err := inv.readOption(a, line, word[2:]); err != nil {
				return err
			}
		default:
			return fmt.Errorf("%s is not followed, only -J and ProxyJump are; put it into ~/.ssh/config", oneLine(word))
		}
	}
	return nil
}

// readOption reads the text after ssh's -o. It follows ProxyJump. It ignores harmlessOptions, warns
// about those of host keys, and returns an error for any other.
func (inv *Inventory) readOption(a *Access, line int, option string) error {
	i := strings.IndexAny(option, "= \t")
	if i < 0 {
		return fmt.Errorf("-o %s has no value", oneLine(option))
	}
	key, value := strings.ToLower(option[:i]), strings.Trim(option[i:], "= \t")
	switch {
	case key == "proxyjump":
		a.Jump = parseJumpHosts(value)
	case hostKeyOptions[key]:
		inv.warnOnce(line, "%s is not followed: host keys are always checked; give %s, or connect once by ssh", oneLine(option[:i]), hostKeyVariable)
	case key == "proxycommand":
		return fmt.Errorf("ProxyCommand is not run; write -J and the jump host instead")
	case !harmlessOptions[key]:
		return fmt.Errorf("-o %s is not followed; put it into ~/.ssh/config", oneLine(option[:i]))
	}
	return nil
}

// parseJumpHosts splits a list of hosts at commas, and trims nothing. "none" gives no hosts.
func parseJumpHosts(list string) []string {
	if list == "none" {
		return nil
	}
	return strings.Split(list, ",")
}

// warnOnce adds a warning unless the inventory has the same one already.
func (inv *Inventory) warnOnce(line int, format string, args ...any) {
	if text := inv.errorAt(line, format, args...).Error(); !slices.Contains(inv.Warnings, text) {
		inv.Warnings = append(inv.Warnings, text)
	}
}

// WarningsFor adds warnings of the hosts' ignored variables to inv.Warnings, and returns that.
func (inv *Inventory) WarningsFor(hosts []*Host) []string {
	for _, h := range hosts {
		for _, name := range slices.Sorted(maps.Keys(ignoredVariables)) {
			if v, ok := h.vars[name]; ok && !v.null {
				inv.warnOnce(v.line, "%s: %s", name, ignoredVariables[name])
			}
		}
	}
	return inv.Warnings
}

// expandHome replaces the ~ of a key's path ~/FILE by this user's home, and refuses any other ~. As
// in Ansible, a relative path starts in the current folder, so it stays as it is.
func expandHome(name string) (string, error) {
	rest, ok := strings.CutPrefix(name, "~")
	if !ok {
		return name, nil
	}
	if !strings.HasPrefix(rest, "/") {
		return "", fmt.Errorf("%s is in another user's folder; write its whole path", name)
	}
	home, err := os.UserHomeDir()
	return home + rest, err
}
