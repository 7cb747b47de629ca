package boardssh

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os/user"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Address says where a board is, which user logs in, and which keys prove the board and the user.
type Address struct {
	Host         string
	Port         int    // 0: 22
	User         string // "": this user's name
	HostKeyAlias string // the name of the host key in known_hosts; "": host and port
	KnownHosts   []string
	Recorded     string   // file of keys that flashes recorded: its lines under exactly HostKeyAlias
	HostCA       string   // public keys, one a line, of the CAs that may sign the board's host key
	Revoked      string   // file of host keys that are not trusted any more; "": none
	Identities   []string // private key files; the agent's other keys are tried after them
	Certificates []string // certificates of the Identities, besides the files IDENTITY-cert.pub

	Agent          string // the SSH agent's socket; "": SSH_AUTH_SOCK, "none": no agent
	IdentitiesOnly bool   // use no agent key that is not among Identities

	// Pins are fingerprints of the board's host key that a person vouches for. If there are pins,
	// no other key is trusted. A new key is added to PinFile, with its host name hashed if
	// HashNames is set. If PinFile is "", the key is trusted only for this connection.
	Pins      []string
	PinFile   string
	HashNames bool

	// Via is the jump host of this board, and ProxyCommand a command line of the user's that
	// carries the connection. At most one of them is set.
	Via          *Address
	ProxyCommand string

	Become string // user that programs on the board run as, by sudo; "": the login user

	// Settings of the connection, as in ssh_config; "", 0 and nil: the default.
	Family         string // inet or inet6
	ConnectTimeout time.Duration
	Ciphers        []string
	MACs           []string
	KeyExchanges   []string
}

// String returns the address as user@host:port.
func (a Address) String() string { return a.User + "@" + a.hostPort() }

func (a Address) hostPort() string { return net.JoinHostPort(a.Host, strconv.Itoa(a.Port)) }

// countHops returns the number of jump hosts on the way to the board.
func (a Address) countHops() int {
	if a.Via == nil {
		return 0
	}
	return 1 + a.Via.countHops()
}

// fillDefaults sets port 22 and the current user's name if they are missing. No host is an error.
func (a Address) fillDefaults() (Address, error) {
	if a.Host == "" {
		return a, errors.New("no host given")
	}
	a.Port = cmp.Or(a.Port, 22)
	if a.User == "" {
		u, err := user.Current()
		if err != nil {
			return a, fmt.Errorf("no user given for %s: %w", a.Host, err)
		}
		a.User = u.Username
	}
	return a, nil
}

// PasswordError is the error for a host with a password: that host without it.
type PasswordError string

func (e PasswordError) Error() string {
	return "a password in an address of ssh: Slipway logs in with keys only; write " + string(e)
}

// CheckHost returns the error for a host that Resolve does not understand.
func CheckHost(host string) error {
	_, err := parseHost(host)
	return err
}

// parseHost parses [ssh://][user@]host[:port]. An IPv6 host before a port has brackets. It refuses
// a password (as a PasswordError), an empty user or host, names that ssh takes for options, and
// names with blanks or unprintable characters. An empty port is 0, like none.
func parseHost(s string) (Address, error) {
	var a Address
	rest := strings.TrimSuffix(strings.TrimPrefix(s, "ssh://"), "/")
	if i := strings.LastIndexByte(rest, '@'); i >= 0 {
		user, _, password := strings.Cut(rest[:i], ":")
		if password { // before a message repeats it
			return a, PasswordError(strings.TrimPrefix(user+rest[i:], "@"))
		}
		if a.User, rest = user, rest[i+1:]; user == "" {
			return a, fmt.Errorf("%q: no user before the @", s)
		}
	}
	a.Host = rest
	// A bare IPv6 address has several colons and no port.
	if strings.HasPrefix(rest, "[") || strings.Count(rest, ":") == 1 {
		if strings.HasSuffix(rest, "]") {
			rest += ":" // which net.SplitHostPort needs
		}
		host, port, err := net.SplitHostPort(rest)
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

// parsePort parses a port number from 1 to 65535.
func parsePort(s string) (int, error) {
	port, err := strconv.Atoi(s)
	if err != nil || port < 1 || port > 65535 {
		return 0, fmt.Errorf("port %q is not between 1 and 65535", s)
	}
	return port, nil
}
