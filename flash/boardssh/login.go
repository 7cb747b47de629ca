package boardssh

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"slipway/layers/localfile"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
)

// Errors that no second try can fix.
var (
	ErrHostKey = errors.New("host key not trusted")
	ErrLogin   = errors.New("login refused")
)

// isPermanent reports whether every further try would fail with the same error.
func isPermanent(err error) bool { return errors.Is(err, ErrHostKey) || errors.Is(err, ErrLogin) }

// agentLimit is how long the agent may take to list its keys. The socket of a lost
// "ssh -A" takes connections and answers none. Tests have their own.
var agentLimit = 3 * time.Second

// maxBanners is how many banners a server may send before the login.
const maxBanners = 16

var errBanners = errors.New("the server greets without end")

// login holds the keys that prove the user, and the board. Several connections may use it at once.
type login struct {
	addr         Address
	via          *jumpHost // nil: the board is reached directly
	isHop        bool      // the login is at a jump host of a board
	patience     time.Duration
	silence      time.Duration // as SilenceVariable says
	sudo         *sudo         // nil: programs run as the login user
	pace         *pace         // nil: no rate limit
	trust        *knownHosts
	identities   []identity
	certificates []*ssh.Certificate

	mu      sync.Mutex
	skipped []string // what could not be used to log in, and why
	left    []string // the same, only of the last try
	noAgent bool     // the agent did not list its keys and is not queried again
}

// newLogin checks an address and reads known hosts and keys, also of jump hosts. It dials none.
func newLogin(a Address) (*login, error) {
	a, err := a.fillDefaults()
	if err != nil {
		return nil, err
	}
	a.Pins = slices.DeleteFunc(slices.Clone(a.Pins), func(p string) bool { return p == "" })
	for _, pin := range a.Pins {
		if err := CheckPin(pin); err != nil {
			return nil, err
		}
	}
	silence, err := silenceLimit()
	if err != nil {
		return nil, err
	}
	patience := cmp.Or(a.ConnectTimeout, min(dialLimit, silence))
	l := &login{addr: a, patience: patience * time.Duration(1+a.countHops()), silence: silence}
	if a.Via != nil {
		if l.via, err = newJumpHost(*a.Via); err != nil {
			return nil, err
		}
	}
	if l.trust, err = readKnownHosts(existingFiles(a.KnownHosts)); err != nil {
		return nil, err
	}
	recorded, err := readRecorded(a.Recorded, a.HostKeyAlias)
	if err != nil {
		return nil, err
	}
	vouching, err := a.parseHostCA()
	if err != nil {
		return nil, err
	}
	l.trust.pins = slices.Concat(l.trust.pins, recorded, vouching)
	l.readKeys()
	return l, nil
}

func existingFiles(files []string) []string {
	return slices.DeleteFunc(slices.Clone(files), func(f string) bool { return !localfile.Exists(f) })
}

// close closes the connections to the jump hosts. No new ones can be made.
func (l *login) close() {
	if l.via != nil {
		l.via.close()
	}
}

// agentSocket returns the socket of the agent that the address names: the path itself, or the value
// of SSH_AUTH_SOCK or of another $VARIABLE. It is "" if no agent is to be used.
func (a Address) agentSocket() string {
	switch {
	case a.Agent == "none":
		return ""
	case a.Agent == "" || a.Agent == "SSH_AUTH_SOCK":
		return os.Getenv("SSH_AUTH_SOCK")
	case strings.HasPrefix(a.Agent, "$"):
		return os.Getenv(a.Agent[1:])
	}
	return a.Agent
}

// connectAgent connects to the user's agent and lists its keys. The connection is nil if no agent
// answers. An agent that does not list its keys goes into l.skipped, and is not queried again.
func (l *login) connectAgent(ctx context.Context) (net.Conn, []ssh.Signer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	socket := l.addr.agentSocket()
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

// handshake authenticates the server and the user over w and returns the SSH connection, with
// watchSilence running. It closes w on an error. The end of ctx interrupts board and agent.
func (l *login) handshake(ctx context.Context, w *wire) (*link, error) {
	agentConn, inAgent := l.connectAgent(ctx)
	if agentConn != nil {
		defer agentConn.Close()
	}
	stop := context.AfterFunc(ctx, func() {
		w.Close()
		if agentConn != nil {
			agentConn.Close()
		}
	})
	link, err := l.authenticate(ctx, w, l.offerKeys(inAgent))
	if !stop() {
		return nil, fmt.Errorf("log in to %s: %w", l.addr, context.Cause(ctx))
	}
	if err != nil {
		w.Close()
		return nil, w.explainGreeting(err)
	}
	go link.watchSilence()
	return link, nil
}

// unable is in the SSH library's error for a refused login, which comes after the server's proof.
const unable = "unable to authenticate"

// authenticate runs the SSH handshake over w with the given keys and checks the host key. Its
// errors come from explainFailure. More than maxBanners banners end it.
func (l *login) authenticate(ctx context.Context, w *wire, keys []ssh.Signer) (*link, error) {
	var untrusted error
	banners := 0
	config := &ssh.ClientConfig{
		Config:            ssh.Config{Ciphers: l.addr.Ciphers, MACs: l.addr.MACs, KeyExchanges: l.addr.KeyExchanges},
		User:              l.addr.User,
		Auth:              []ssh.AuthMethod{ssh.PublicKeys(keys...)},
		HostKeyAlgorithms: l.trust.hostKeyAlgorithms(l.addr),
		HostKeyCallback: func(_ string, _ net.Addr, key ssh.PublicKey) error {
			untrusted = l.checkHostKey(ctx, key)
			return untrusted
		},
		BannerCallback: func(string) error { // its words are not shown
			if banners++; banners > maxBanners {
				return errBanners
			}
			return nil
		},
	}
	conn, chans, reqs, err := ssh.NewClientConn(w, l.addr.hostPort(), config)
	if err != nil && len(keys) == 0 && untrusted == nil && strings.Contains(err.Error(), unable) {
		return nil, l.refusedError(errors.New("there is no key to log in with"))
	}
	if err != nil {
		return nil, l.explainFailure(err, untrusted)
	}
	return newLink(ssh.NewClient(conn, chans, reqs), w, l.silence), nil
}

// explainFailure turns the error of a failed handshake into the error for the user: a question, an
// ErrHostKey, an ErrLogin, or the library's error. If checkHostKey failed, it returns untrusted,
// which is that error.
func (l *login) explainFailure(err, untrusted error) error {
	var algorithms *ssh.AlgorithmNegotiationError
	var q *question
	own, _ := l.trust.pinsOf(l.addr)
	switch {
	case untrusted != nil:
		return untrusted
	case errors.As(err, &q):
		return &question{refusal: NextStep{l.refusedError(q.refusal), q.next}, ask: q.ask}
	case errors.As(err, &algorithms) && len(own) > 0 && strings.Contains(err.Error(), "host key"):
		return l.otherKindError(algorithms)
	case errors.Is(err, errUnsigned), strings.Contains(err.Error(), unable):
		return l.refusedError(err)
	}
	return BoardError("log in to "+l.addr.String(), err)
}

// refusal is the error of a login that a machine refused after it had proved its host key.
type refusal struct {
	error
	byJumpHost bool // a jump host refused, not the board
}

func (r refusal) Unwrap() error { return r.error }

// refusedError returns a refusal with the unused keys, and the ssh command to find out more.
func (l *login) refusedError(err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	hint := "\n  keys are looked for in the agent and in IdentityFile; to see what ssh would do: ssh -v " + l.sshArgs()
	if unused := slices.Concat(l.skipped, l.left); len(unused) > 0 {
		hint = "\n  not used: " + strings.Join(unused, "\n  not used: ") + hint
	}
	return refusal{fmt.Errorf("%w by %s: %s%s", ErrLogin, l.addr, Printable(err.Error()), hint), l.isHop}
}
