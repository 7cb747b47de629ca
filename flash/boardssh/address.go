package boardssh

import (
	"errors"
	"fmt"
	"net"
	"os/user"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Address says where a board is, who logs in, and what proves both.
type Address struct {
	Host         string
	Port         int    // 0: 22
	User         string // "": this user's name
	HostKeyAlias string // name that the host key is pinned under; "": host and port
	KnownHosts   []string
	Recorded     string   // file of keys that flashes recorded: its lines under exactly HostKeyAlias
	HostCA       string   // public keys, one a line, of who may vouch for it by a certificate
	Revoked      string   // file of host keys that are not trusted any more; "": none
	Identities   []string // private key files; the agent's other keys are tried after them
	Certificates []string // of these keys, besides the files whose names end in -cert.pub

	Agent          string // its socket; "": the environment's, "none": none
	IdentitiesOnly bool   // no other keys of the agent's

	// Pins are fingerprints of the board's host key that a person vouches for. If there are pins,
	// no other key is trusted. A new key is added to PinFile, with its host name hashed if
	// HashNames is set. If PinFile is "", the key is trusted only for this connection.
	Pins      []string
	PinFile   string
	HashNames bool

	// Via is the machine that it is reached through, and ProxyCommand the user's own
	// command line that leads there. At most one of them is set.
	Via          *Address
	ProxyCommand string

	Become string // who programs there run as, by sudo; "": who logs in

	// How the connection is made, as ssh_config has it; "", 0 and nil: as usual.
	Family         string // inet or inet6
	BindAddress    string // here
	BindInterface  string
	ConnectTimeout time.Duration
	RekeyBytes     uint64
	Ciphers        []string
	MACs           []string
	KeyExchanges   []string
}

// String is the address as a person would type it.
func (a Address) String() string { return a.User + "@" + a.hostPort() }

func (a Address) hostPort() string { return net.JoinHostPort(a.Host, strconv.Itoa(a.Port)) }

// countHops is the number of jump hosts.
func (a Address) countHops() int {
	if a.Via == nil {
		return 0
	}
	return 1 + a.Via.countHops()
}

func (a Address) fillDefaults() (Address, error) {
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
