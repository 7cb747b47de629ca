package target

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/skeema/knownhosts"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
)

// Errors that no second try can mend.
var (
	ErrHostKey = errors.New("host key not trusted")
	ErrLogin   = errors.New("login refused")
)

// login holds what proves the board to us and us to the board.
type login struct {
	addr    Address
	pinned  *knownhosts.HostKeyDB // nil: no known_hosts file exists
	keys    []ssh.Signer          // of identity files
	skipped []string              // identity files that could not be used, and why
}

func newLogin(a Address) (*login, error) {
	a, err := a.complete()
	if err != nil {
		return nil, err
	}
	l := &login{addr: a}
	if files := appendFiles(nil, "", a.KnownHosts...); len(files) > 0 {
		if l.pinned, err = knownhosts.NewDB(files...); err != nil {
			return nil, fmt.Errorf("read known hosts: %w", err)
		}
	}
	for _, file := range a.Identities {
		key, err := readKey(file)
		if err != nil {
			l.skipped = append(l.skipped, err.Error())
			continue
		}
		l.keys = append(l.keys, key)
	}
	return l, nil
}

func readKey(file string) (ssh.Signer, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	key, err := ssh.ParsePrivateKey(data)
	var locked *ssh.PassphraseMissingError
	if errors.As(err, &locked) {
		return nil, fmt.Errorf("%s has a passphrase; add it to the agent: ssh-add %s", file, file)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return key, nil
}

// withAgent appends the agent's keys that are not among ours already: servers
// count every key that is offered.
func (l *login) withAgent(conn net.Conn) []ssh.Signer {
	keys := slices.Clone(l.keys)
	if conn == nil {
		return keys
	}
	more, err := agent.NewClient(conn).Signers()
	if err != nil {
		return keys
	}
	for _, k := range more {
		known := slices.ContainsFunc(keys, func(o ssh.Signer) bool {
			return string(o.PublicKey().Marshal()) == string(k.PublicKey().Marshal())
		})
		if !known {
			keys = append(keys, k)
		}
	}
	return keys
}

// handshake turns a greeted wire into a login. It owns w.
func (l *login) handshake(ctx context.Context, w *wire) (*link, error) {
	var agentConn net.Conn
	if socket := os.Getenv("SSH_AUTH_SOCK"); socket != "" {
		if conn, err := net.DialTimeout("unix", socket, time.Second); err == nil {
			agentConn = conn
			defer conn.Close()
		}
	}
	keys := l.withAgent(agentConn)
	if len(keys) == 0 {
		w.Close()
		return nil, l.refused(errors.New("there is no key to log in with"))
	}

	var untrusted error
	config := &ssh.ClientConfig{
		User:              l.addr.User,
		Auth:              []ssh.AuthMethod{ssh.PublicKeys(keys...)},
		HostKeyAlgorithms: l.algorithms(),
		HostKeyCallback: func(_ string, remote net.Addr, key ssh.PublicKey) error {
			untrusted = l.checkHostKey(remote, key)
			return untrusted
		},
	}
	stop := context.AfterFunc(ctx, func() { w.Close() })
	conn, chans, reqs, err := ssh.NewClientConn(w, l.addr.hostPort(), config)
	switch {
	case !stop():
		return nil, fmt.Errorf("log in to %s: %w", l.addr, context.Cause(ctx))
	case err == nil:
		link := &link{ssh.NewClient(conn, chans, reqs), w}
		go link.keep()
		return link, nil
	}
	w.Close()
	return nil, l.explain(err, untrusted)
}

func (l *login) explain(err, untrusted error) error {
	var algorithms *ssh.AlgorithmNegotiationError
	switch {
	case untrusted != nil:
		return untrusted
	case errors.As(err, &algorithms) && len(l.algorithms()) > 0 && strings.Contains(err.Error(), "host key"):
		return l.otherKind(algorithms)
	case strings.Contains(err.Error(), "unable to authenticate"):
		return l.refused(err)
	}
	return said("log in to "+l.addr.String(), err)
}

func (l *login) refused(err error) error {
	hint := "\n  keys are looked for in the agent and in IdentityFile; to see what ssh would do: ssh -v " + l.sshArgs()
	if len(l.skipped) > 0 {
		hint = "\n  not used: " + strings.Join(l.skipped, "\n  not used: ") + hint
	}
	return fmt.Errorf("%w by %s: %s%s", ErrLogin, l.addr, printable(err.Error()), hint)
}
