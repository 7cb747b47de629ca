package target

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/skeema/knownhosts"
	"golang.org/x/crypto/ssh"
	xknownhosts "golang.org/x/crypto/ssh/knownhosts"
)

// algorithms are those of the pinned keys. A server with several keys would
// otherwise show another one than that which is pinned, and some dropbear
// servers crash when they are offered kinds that they do not have.
func (l *login) algorithms() []string {
	if l.pinned == nil {
		return nil
	}
	return l.pinned.HostKeyAlgorithms(l.addr.keyName())
}

func (l *login) checkHostKey(key ssh.PublicKey) error {
	var err error = &xknownhosts.KeyError{}
	if l.pinned != nil {
		err = l.pinned.HostKeyCallback()(l.addr.keyName(), &net.TCPAddr{}, key)
	}
	switch {
	case err == nil:
		return nil
	case knownhosts.IsHostKeyChanged(err):
		return l.changed(err, key)
	case knownhosts.IsHostUnknown(err):
		return l.unknown(key)
	}
	return fmt.Errorf("%w: %s shows %s: %s", ErrHostKey, l.addr, fingerprint(key), printable(err.Error()))
}

func (l *login) unknown(key ssh.PublicKey) error {
	return fmt.Errorf("%w: nothing is known of %s, which shows %s\n"+
		"  compare that with the board's own console (ssh-keygen -lf /etc/ssh/ssh_host_%s_key.pub), then pin it:\n  ssh %s true",
		ErrHostKey, l.addr, fingerprint(key), keyKind(key), l.sshArgs())
}

func (l *login) changed(err error, key ssh.PublicKey) error {
	var pinned *xknownhosts.KeyError
	where := "known_hosts"
	if errors.As(err, &pinned) && len(pinned.Want) > 0 {
		where = fmt.Sprintf("%s:%d pins %s", pinned.Want[0].Filename, pinned.Want[0].Line, fingerprint(pinned.Want[0].Key))
	}
	return fmt.Errorf("%w: %s shows %s, but %s\n%s", ErrHostKey, l.addr, fingerprint(key), where, l.forget(err))
}

// otherKind is the case of a server that has no key of the pinned kind.
func (l *login) otherKind(err *ssh.AlgorithmNegotiationError) error {
	return fmt.Errorf("%w: %s has no host key of the pinned kind (%s), only %s\n%s", ErrHostKey, l.addr,
		strings.Join(l.algorithms(), ", "), printable(strings.Join(err.RequestedAlgorithms, ", ")), l.forget(l.mismatch()))
}

// mismatch is the error that any key but the pinned ones gets.
func (l *login) mismatch() error {
	return l.pinned.HostKeyCallback()(l.addr.keyName(), &net.TCPAddr{}, noKey{})
}

// noKey is a key that nobody has.
type noKey struct{}

func (noKey) Type() string                        { return "none" }
func (noKey) Marshal() []byte                     { return []byte("none") }
func (noKey) Verify([]byte, *ssh.Signature) error { return errors.New("not a key") }

// forget says how to drop the pinned keys that err names, each in its own file.
func (l *login) forget(err error) string {
	hint := "  another machine answers at this address, or the board was flashed anew; if you know that it was, forget the old key:"
	remove := "\n  ssh-keygen -R " + Quote(xknownhosts.Normalize(l.addr.keyName()))
	var files []string
	var pinned *xknownhosts.KeyError
	if errors.As(err, &pinned) {
		for _, key := range pinned.Want {
			files = append(files, key.Filename)
		}
	}
	slices.Sort(files)
	for _, file := range slices.Compact(files) {
		hint += remove + " -f " + Quote(file)
	}
	if len(files) == 0 {
		hint += remove
	}
	return hint
}

// sshArgs are the arguments that make ssh meet the same board with the same
// files.
func (l *login) sshArgs() string {
	var args []string
	if l.addr.HostKeyAlias != "" {
		args = append(args, "-o", Quote("HostKeyAlias="+l.addr.HostKeyAlias))
	}
	if len(l.addr.KnownHosts) > 0 {
		args = append(args, "-o", Quote("UserKnownHostsFile="+l.addr.KnownHosts[0]))
	}
	for _, file := range l.addr.Identities {
		args = append(args, "-i", Quote(file))
	}
	args = append(args, l.addr.jumps()...)
	args = append(args, "-p", strconv.Itoa(l.addr.Port), Quote(l.addr.User+"@"+l.addr.Host))
	return strings.Join(args, " ")
}

func fingerprint(key ssh.PublicKey) string {
	return key.Type() + " " + ssh.FingerprintSHA256(key)
}

// keyKind is the part of a host key file's name that says its kind.
func keyKind(key ssh.PublicKey) string {
	switch key.Type() {
	case ssh.KeyAlgoED25519:
		return "ed25519"
	case ssh.KeyAlgoRSA:
		return "rsa"
	}
	return "ecdsa"
}
