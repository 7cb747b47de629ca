package boardssh

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// maxHops is how many jump hosts may lie between this machine and a board.
const maxHops = 8

// Resolve makes an Address of "user@host:port" or of a name in the user's ~/.ssh/config, with all
// jump hosts. It runs "ssh -G" to read that file. Without ssh on this machine, it takes the name as
// the host, with the usual files in ~/.ssh.
func Resolve(ctx context.Context, host string) (Address, error) {
	given, err := parseHost(host)
	if err != nil {
		return Address{}, err
	}
	if _, err := exec.LookPath("ssh"); err != nil {
		return withDefaults(given)
	}
	return ResolveThrough(ctx, host, "")
}

// route holds the names on the way to a board that are resolved so far.
type route struct {
	home  string
	names []string // as written: the board, its jump host, that one's jump host
}

// resolveHost returns the Address of a machine as "ssh -G" describes it, with its jump hosts in
// Via. jumps, unless "", replaces the machine's own ProxyJump setting. As with ssh, the last of
// several jump hosts is reached through those before it, and the first may have one of its own.
func (r route) resolveHost(ctx context.Context, given Address, jumps string) (Address, error) {
	c, err := querySSH(ctx, given, jumps)
	if err != nil {
		return Address{}, err
	}
	a, err := c.toAddress(given, r.home)
	if err != nil {
		return Address{}, fmt.Errorf("~/.ssh/config for %q: %w", r.names[len(r.names)-1], err)
	}
	if a, err = a.fillDefaults(); err != nil {
		return Address{}, err
	}
	if jump := c.lastValue("proxyjump"); jump != "" {
		a.Via, err = r.resolveJumpHost(ctx, jump)
	}
	return a, err
}

// resolveJumpHost resolves the last name in jumps, which is reached through those before it. It
// refuses circles and more than maxHops jump hosts.
func (r route) resolveJumpHost(ctx context.Context, jumps string) (*Address, error) {
	before, hop := "", jumps
	if i := strings.LastIndexByte(jumps, ','); i >= 0 {
		before, hop = jumps[:i], jumps[i+1:]
	}
	chain := strings.Join(append(slices.Clone(r.names), hop), ", then ")
	switch {
	case slices.Contains(r.names, hop):
		return nil, fmt.Errorf("ProxyJump in ~/.ssh/config leads in a circle: %s", chain)
	case len(r.names) > maxHops:
		return nil, fmt.Errorf("ProxyJump in ~/.ssh/config: more than %d jump hosts: %s", maxHops, chain)
	}
	given, err := parseHost(hop)
	if err != nil {
		return nil, fmt.Errorf("ProxyJump in ~/.ssh/config: %w", err)
	}
	r.names = append(slices.Clone(r.names), hop)
	a, err := r.resolveHost(ctx, given, before)
	return &a, err
}

// querySSH runs and parses "ssh -G" for host, user and port. jumps, unless "", replace ProxyJump.
func querySSH(ctx context.Context, given Address, jumps string) (config, error) {
	argv := []string{"ssh", "-G"}
	if given.User != "" {
		argv = append(argv, "-l", given.User)
	}
	if given.Port != 0 {
		argv = append(argv, "-p", strconv.Itoa(given.Port))
	}
	if jumps != "" {
		argv = append(argv, "-oProxyJump="+jumps)
	}
	out, err := run.Output(ctx, run.Command{Argv: append(argv, "--", given.Host)})
	if err != nil {
		return nil, err
	}
	return parseConfig(string(out)), nil
}

// config is what "ssh -G" prints: each lower-case keyword with its values.
type config map[string][]string

// parseConfig parses lines of a keyword and a value. A keyword on several lines gets all values.
func parseConfig(text string) config {
	c := config{}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if key != "" {
			c[key] = append(c[key], value)
		}
	}
	return c
}

// lastValue returns the last value of the key. It is empty if the key is not set or is "none".
func (c config) lastValue(key string) string {
	values := c[key]
	if len(values) == 0 || values[len(values)-1] == "none" {
		return ""
	}
	return values[len(values)-1]
}

// toAddress makes an Address of the settings, without jump host. given has the host as the user
// wrote it. Unsupported settings are errors.
func (c config) toAddress(given Address, home string) (Address, error) {
	a := Address{Host: c.lastValue("hostname"), User: c.lastValue("user"), HostKeyAlias: c.lastValue("hostkeyalias")}
	if a.Host == "" {
		return a, errors.New(`"ssh -G" named no host`)
	}
	var err error
	if port := c.lastValue("port"); port != "" {
		if a.Port, err = parsePort(port); err != nil {
			return a, err
		}
	}
	if err := errors.Join(c.checkSupported(), c.setConnection(&a)); err != nil {
		return a, err
	}
	t := newTokens(a, given.Host, home)
	if err := c.setKeys(&a, t); err != nil {
		return a, err
	}
	if err := c.setKnownHosts(&a, t); err != nil {
		return a, err
	}
	if command := c.lastValue("proxycommand"); command != "" {
		if c.lastValue("proxyusefdpass") == "yes" {
			return a, errors.New("ProxyUseFdpass is set, which only ssh can use; write a ProxyCommand that carries the data itself")
		}
		a.ProxyCommand, err = t.expandCommand(command)
	}
	return a, err
}

// setKeys fills in the existing key files and certificates, the agent, and IdentitiesOnly.
func (c config) setKeys(a *Address, t tokens) (err error) {
	if a.Identities, err = t.existingPaths(c["identityfile"]); err != nil {
		return fmt.Errorf("IdentityFile: %w", err)
	}
	if a.Certificates, err = t.existingPaths(c["certificatefile"]); err != nil {
		return fmt.Errorf("CertificateFile: %w", err)
	}
	a.IdentitiesOnly = c.lastValue("identitiesonly") == "yes"
	if socket := c["identityagent"]; len(socket) > 0 {
		if a.Agent, err = t.expandPath(socket[0]); err != nil {
			return fmt.Errorf("IdentityAgent: %w", err)
		}
	}
	return nil
}

// setKnownHosts fills in the existing known_hosts files, HashNames, the file of revoked keys, and
// PinFile: as with ssh, new keys go to the first of the user's own files, unless it is /dev/null.
func (c config) setKnownHosts(a *Address, t tokens) (err error) {
	for _, key := range []string{"userknownhostsfile", "globalknownhostsfile"} {
		files, err := t.existingPaths(strings.Fields(c.lastValue(key)))
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		a.KnownHosts = append(a.KnownHosts, files...)
	}
	if own := strings.Fields(c.lastValue("userknownhostsfile")); len(own) > 0 && own[0] != os.DevNull {
		if a.PinFile, err = t.expandPath(own[0]); err != nil {
			return fmt.Errorf("userknownhostsfile: %w", err)
		}
	}
	a.HashNames = c.lastValue("hashknownhosts") == "yes"
	if file := c.lastValue("revokedhostkeys"); file != "" {
		a.Revoked, err = t.expandPath(file)
	}
	return err
}

// tokens are the values of "%h" and the like in the user's configuration.
type tokens map[byte]string

// newTokens returns the values of ssh's % tokens. name is the host as the user wrote it.
func newTokens(a Address, name, home string) tokens {
	t := tokens{'%': "%", 'h': a.Host, 'n': name, 'p': strconv.Itoa(a.Port), 'r': a.User, 'd': home, 'k': name}
	if a.HostKeyAlias != "" {
		t['k'] = a.HostKeyAlias
	}
	if u, err := user.Current(); err == nil {
		t['u'], t['i'] = u.Username, u.Uid
	}
	return t
}

// existingPaths expands paths, and returns those that exist or have a .pub file beside them. ssh
// lists its default keys whether they exist or not.
func (t tokens) existingPaths(paths []string) ([]string, error) {
	var found []string
	for _, path := range paths {
		path, err := t.expandPath(path)
		if err != nil {
			return nil, err
		}
		if localfile.Exists(path) || localfile.Exists(path+".pub") {
			found = append(found, path)
		}
	}
	return found, nil
}

var variable = plaintext.Regexp(`\$\{[A-Za-z_][A-Za-z0-9_]*\}`)

// expandPath expands ~/, ${VARIABLES} and % tokens in a file name. Unset variables are errors.
func (t tokens) expandPath(text string) (string, error) {
	if rest, ok := strings.CutPrefix(text, "~/"); ok {
		text = filepath.Join(t['d'], rest)
	}
	var missing error
	text = variable().ReplaceAllStringFunc(text, func(name string) string {
		value, ok := os.LookupEnv(name[2 : len(name)-1])
		if !ok {
			missing = fmt.Errorf("%s is not set", name)
		}
		return value
	})
	if missing != nil {
		return "", missing
	}
	return t.expand(text, func(string) error { return nil })
}

var shellSafe = plaintext.Regexp(`^[A-Za-z0-9_.:@%+][A-Za-z0-9_.:@%+-]*$`)

// expandCommand expands the % tokens of a command line that the user's shell will read. Values may
// come from anywhere, so it refuses one that has a meaning to a shell or looks like an option.
func (t tokens) expandCommand(command string) (string, error) {
	return t.expand(command, func(value string) error {
		if !shellSafe().MatchString(value) {
			return fmt.Errorf("ProxyCommand: %q holds characters that a shell could take for its own; use a HostName and a User without them", value)
		}
		return nil
	})
}

// expand replaces the % tokens in text. Unknown tokens, and values that check refuses, are errors.
func (t tokens) expand(text string, check func(value string) error) (string, error) {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] != '%' {
			b.WriteByte(text[i])
			continue
		}
		i++
		if i == len(text) {
			return "", fmt.Errorf("%q ends in a single %%", text)
		}
		value, ok := t[text[i]]
		if !ok {
			return "", fmt.Errorf("%%%c in %q is not supported; write what it stands for", text[i], text)
		}
		if text[i] != '%' {
			if err := check(value); err != nil {
				return "", err
			}
		}
		b.WriteString(value)
	}
	return b.String(), nil
}

// withDefaults fills in an Address without ssh's help: the usual keys and known_hosts files that
// exist, ~/.ssh/known_hosts for new keys, and a missing port or user as fillDefaults does.
func withDefaults(a Address) (Address, error) {
	home, err := os.UserHomeDir()
	if err != nil {
		return a, err
	}
	t := newTokens(a, a.Host, home)
	if a.Identities, err = t.existingPaths([]string{"~/.ssh/id_rsa", "~/.ssh/id_ecdsa", "~/.ssh/id_ed25519"}); err != nil {
		return a, err
	}
	a.KnownHosts, err = t.existingPaths([]string{"~/.ssh/known_hosts", "~/.ssh/known_hosts2", "/etc/ssh/ssh_known_hosts"})
	a.PinFile = filepath.Join(home, ".ssh", "known_hosts")
	if err != nil {
		return a, err
	}
	return a.fillDefaults()
}

// ResolveThrough is Resolve with the jump hosts in jumps (separated by commas) instead of those in
// ~/.ssh/config. "" keeps those in the file, and "none" uses none. It needs ssh on this machine.
func ResolveThrough(ctx context.Context, host, jumps string) (Address, error) {
	given, err := parseHost(host)
	if err != nil {
		return Address{}, err
	}
	u, err := user.Current() // ssh takes this home too, whatever HOME says
	if err != nil {
		return Address{}, err
	}
	return route{home: u.HomeDir, names: []string{host}}.resolveHost(ctx, given, jumps)
}
