package target

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
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

// lasting says whether an error would come again with every further try.
func lasting(err error) bool { return errors.Is(err, ErrHostKey) || errors.Is(err, ErrLogin) }

// agentLimit is how long the agent may take to list its keys. The socket of a lost
// "ssh -A" takes connections and answers none.
const agentLimit = 3 * time.Second

// login holds what proves the board to us and us to the board. Several
// connections may be made with it at once.
type login struct {
	addr   Address
	via    *gate                 // nil: it is reached directly
	pinned *knownhosts.HostKeyDB // nil: no known_hosts file exists
	keys   []ssh.Signer          // of identity files

	mu      sync.Mutex
	skipped []string // what could not be used to log in, and why
	noAgent bool     // it does not list its keys and is not asked again
}

func newLogin(a Address) (*login, error) {
	a, err := a.complete()
	if err != nil {
		return nil, err
	}
	l := &login{addr: a}
	if a.Via != nil {
		if l.via, err = newGate(*a.Via); err != nil {
			return nil, err
		}
	}
	if files := existing(a.KnownHosts); len(files) > 0 {
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

func existing(files []string) []string {
	return slices.DeleteFunc(slices.Clone(files), func(f string) bool { return !exists(f) })
}

// close ends the connections to jump hosts. No further one can be made.
func (l *login) close() {
	if l.via != nil {
		l.via.close()
	}
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

// askAgent connects to the user's agent and lists its keys. The connection is nil
// where there is no agent that answers.
func (l *login) askAgent(ctx context.Context) (net.Conn, []ssh.Signer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	socket := os.Getenv("SSH_AUTH_SOCK")
	if socket == "" || l.noAgent {
		return nil, nil
	}
	dialer := net.Dialer{Timeout: agentLimit}
	conn, err := dialer.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, nil
	}
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	_ = conn.SetReadDeadline(time.Now().Add(agentLimit))
	keys, err := agent.NewClient(conn).Signers()
	if err == nil {
		err = conn.SetReadDeadline(time.Time{}) // a signature may wait for a person
	}
	if err == nil {
		return conn, keys
	}
	conn.Close()
	if l.noAgent = ctx.Err() == nil; l.noAgent {
		l.skipped = append(l.skipped, fmt.Sprintf("the agent at %s, which does not list its keys: %v", socket, err))
	}
	return nil, nil
}

// with appends keys that are not among ours already: servers count every key that
// is offered.
func (l *login) with(more []ssh.Signer) []ssh.Signer {
	keys := slices.Clone(l.keys)
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

// handshake turns a greeted wire into a login. It owns w. Both the board and the
// agent may keep it waiting; ctx ends either.
func (l *login) handshake(ctx context.Context, w *wire) (*link, error) {
	agentConn, more := l.askAgent(ctx)
	if agentConn != nil {
		defer agentConn.Close()
	}
	stop := context.AfterFunc(ctx, func() {
		w.Close()
		if agentConn != nil {
			agentConn.Close()
		}
	})
	link, err := l.authenticate(w, l.with(more))
	if !stop() {
		return nil, fmt.Errorf("log in to %s: %w", l.addr, context.Cause(ctx))
	}
	if err != nil {
		w.Close()
		return nil, w.notSSH(err)
	}
	go link.keep()
	return link, nil
}

func (l *login) authenticate(w *wire, keys []ssh.Signer) (*link, error) {
	if len(keys) == 0 {
		return nil, l.refused(errors.New("there is no key to log in with"))
	}
	var untrusted error
	config := &ssh.ClientConfig{
		User:              l.addr.User,
		Auth:              []ssh.AuthMethod{ssh.PublicKeys(keys...)},
		HostKeyAlgorithms: l.algorithms(),
		HostKeyCallback: func(_ string, _ net.Addr, key ssh.PublicKey) error {
			untrusted = l.checkHostKey(key)
			return untrusted
		},
	}
	conn, chans, reqs, err := ssh.NewClientConn(w, l.addr.hostPort(), config)
	if err != nil {
		return nil, l.explain(err, untrusted)
	}
	return newLink(ssh.NewClient(conn, chans, reqs), w), nil
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
	l.mu.Lock()
	defer l.mu.Unlock()
	hint := "\n  keys are looked for in the agent and in IdentityFile; to see what ssh would do: ssh -v " + l.sshArgs()
	if len(l.skipped) > 0 {
		hint = "\n  not used: " + strings.Join(l.skipped, "\n  not used: ") + hint
	}
	return fmt.Errorf("%w by %s: %s%s", ErrLogin, l.addr, printable(err.Error()), hint)
}
