package target

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"unicode"

	"slipway/layers/engine"
)

// Address says where a board is, who logs in, and what proves both.
type Address struct {
	Host         string
	Port         int    // 0: 22
	User         string // "": this user's name
	HostKeyAlias string // name that the host key is pinned under; "": host and port
	KnownHosts   []string
	Identities   []string // private key files; the agent's keys are tried after them
}

// String is the address as a person would type it.
func (a Address) String() string { return a.User + "@" + a.hostPort() }

func (a Address) hostPort() string { return net.JoinHostPort(a.Host, strconv.Itoa(a.Port)) }

// keyName is what known_hosts files call the board. As with ssh, an alias stands
// for host and port together.
func (a Address) keyName() string {
	if a.HostKeyAlias != "" {
		return net.JoinHostPort(a.HostKeyAlias, "22")
	}
	return a.hostPort()
}

func (a Address) complete() (Address, error) {
	if a.Host == "" {
		return a, errors.New("no host given")
	}
	if a.Port == 0 {
		a.Port = 22
	}
	if a.User == "" {
		u, err := user.Current()
		if err != nil {
			return a, fmt.Errorf("no user given for %s: %w", a.Host, err)
		}
		a.User = u.Username
	}
	return a, nil
}

// Resolve makes an address of "user@host:port" or of a name in the user's
// ~/.ssh/config, which ssh itself reads for us. Without ssh the name is taken as
// it stands, with the usual files in ~/.ssh.
func Resolve(ctx context.Context, host string) (Address, error) {
	a, err := parseHost(host)
	if err != nil {
		return Address{}, err
	}
	if _, err := exec.LookPath("ssh"); err != nil {
		return withDefaults(a)
	}
	argv := []string{"ssh", "-G"}
	if a.User != "" {
		argv = append(argv, "-l", a.User)
	}
	if a.Port != 0 {
		argv = append(argv, "-p", strconv.Itoa(a.Port))
	}
	out, err := engine.Output(ctx, engine.Command{Argv: append(argv, "--", a.Host)})
	if err != nil {
		return Address{}, err
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return Address{}, err
	}
	a, err = parseConfig(string(out), home)
	if err != nil {
		return Address{}, fmt.Errorf("~/.ssh/config for %q: %w", host, err)
	}
	return a.complete()
}

// parseHost takes [ssh://][user@]host[:port] apart.
func parseHost(s string) (Address, error) {
	var a Address
	rest := strings.TrimSuffix(strings.TrimPrefix(s, "ssh://"), "/")
	if i := strings.LastIndexByte(rest, '@'); i >= 0 {
		a.User, rest = rest[:i], rest[i+1:]
		if a.User == "" {
			return a, fmt.Errorf("%q: no user before the @", s)
		}
	}
	a.Host = rest
	// A bare IPv6 address has several colons and no port.
	if strings.HasPrefix(rest, "[") || strings.Count(rest, ":") == 1 {
		host, port, err := net.SplitHostPort(withPort(rest))
		if err != nil {
			return a, fmt.Errorf("%q: want user@host:port: %w", s, err)
		}
		a.Host = host
		if port != "" {
			if a.Port, err = parsePort(port); err != nil {
				return a, fmt.Errorf("%q: %w", s, err)
			}
		}
	}
	if a.Host == "" {
		return a, fmt.Errorf("%q: no host in it; want user@host:port or a name from ~/.ssh/config", s)
	}
	for _, word := range []string{a.User, a.Host} {
		odd := strings.IndexFunc(word, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsGraphic(r) })
		if strings.HasPrefix(word, "-") || odd >= 0 {
			return a, fmt.Errorf("%q: want user@host:port or a name from ~/.ssh/config", s)
		}
	}
	return a, nil
}

func withPort(host string) string {
	if strings.HasSuffix(host, "]") {
		return host + ":"
	}
	return host
}

func parsePort(s string) (int, error) {
	port, err := strconv.Atoi(s)
	if err != nil || port < 1 || port > 65535 {
		return 0, fmt.Errorf("port %q is not between 1 and 65535", s)
	}
	return port, nil
}

// parseConfig reads what "ssh -G" prints: one lower-case keyword and its value a
// line.
func parseConfig(text, home string) (Address, error) {
	var a Address
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch key {
		case "hostname":
			a.Host = value
		case "user":
			a.User = value
		case "hostkeyalias":
			a.HostKeyAlias = value
		case "port":
			port, err := parsePort(value)
			if err != nil {
				return a, err
			}
			a.Port = port
		case "identityfile":
			a.Identities = appendFiles(a.Identities, home, value)
		case "userknownhostsfile", "globalknownhostsfile":
			a.KnownHosts = appendFiles(a.KnownHosts, home, strings.Fields(value)...)
		case "proxyjump", "proxycommand":
			if value != "none" {
				return a, fmt.Errorf("%s %s is set, but only boards that this machine reaches directly are supported; forward a port by hand (ssh -L) and give its address", key, value)
			}
		}
	}
	if a.Host == "" {
		return a, errors.New(`"ssh -G" named no host`)
	}
	return a, nil
}

// appendFiles adds those of the files that exist: ssh lists its defaults whether
// they are there or not.
func appendFiles(list []string, home string, files ...string) []string {
	for _, f := range files {
		if rest, ok := strings.CutPrefix(f, "~/"); ok {
			f = filepath.Join(home, rest)
		}
		if _, err := os.Stat(f); err == nil {
			list = append(list, f)
		}
	}
	return list
}

func withDefaults(a Address) (Address, error) {
	home, err := os.UserHomeDir()
	if err != nil {
		return a, err
	}
	a.Identities = appendFiles(nil, home, "~/.ssh/id_rsa", "~/.ssh/id_ecdsa", "~/.ssh/id_ed25519")
	a.KnownHosts = appendFiles(nil, home, "~/.ssh/known_hosts", "~/.ssh/known_hosts2", "/etc/ssh/ssh_known_hosts")
	return a.complete()
}
