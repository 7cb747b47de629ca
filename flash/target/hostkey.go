package target

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/crypto/ssh"

	"slipway/layers/plaintext"
)

func (l *login) checkHostKey(ctx context.Context, key ssh.PublicKey) error {
	if err := checkRevoked(ctx, l.addr.Revoked, key); err != nil {
		return l.untrustedError(key, err)
	}
	against, err := l.trust.checkKey(l.addr, key)
	if cert, ok := key.(*ssh.Certificate); ok {
		key = cert.Key
	}
	unknown := errors.Is(err, errUnknown)
	switch {
	case errors.Is(err, errChanged):
		return l.changedKeyError(against, key)
	case err != nil && !unknown:
		return l.untrustedError(key, err)
	case len(l.addr.Pins) > 0 && !slices.Contains(l.addr.Pins, ssh.FingerprintSHA256(key)):
		return l.untrustedError(key, fmt.Errorf("what was named is %s", strings.Join(l.addr.Pins, ", ")))
	case unknown && len(l.addr.Pins) > 0:
		return l.addPin(key)
	case unknown:
		return l.firstContact(key)
	}
	return nil
}

var pinPattern = plaintext.Regexp(`^SHA256:[A-Za-z0-9+/]{43}$`)

func checkPins(pins []string) error {
	for _, p := range pins {
		if err := CheckPin(p); err != nil {
			return err
		}
	}
	return nil
}

// CheckPin refuses what is no fingerprint of a host key.
func CheckPin(pin string) error {
	if !pinPattern().MatchString(pin) {
		return fmt.Errorf("%q is no fingerprint of a host key; want SHA256:…, as ssh-keygen -l prints it", pin)
	}
	return nil
}

func (l *login) untrustedError(key ssh.PublicKey, err error) error {
	return fmt.Errorf("%w: %s shows %s: %s", ErrHostKey, l.addr, describeKey(key), Printable(err.Error()))
}

// unknownKeyError is the error of an unknown host key where nobody can be asked.
func (l *login) unknownKeyError(key ssh.PublicKey) error {
	return fmt.Errorf("%w: nothing is known of %s, which shows %s; "+
		"compare that with its own console (ssh-keygen -lf /etc/ssh/ssh_host_%s_key.pub), then pin it%s\nnext: ssh %s true",
		ErrHostKey, l.addr, describeKey(key), keyKind(key), l.pinHint(key), l.sshArgs())
}

// pinHint names an option of commands. It is for the board's key, not for a jump host's.
func (l *login) pinHint(key ssh.PublicKey) string {
	if l.isHop {
		return ""
	}
	return "; deploy and smoke also take --pin=" + ssh.FingerprintSHA256(key)
}

func (l *login) changedKeyError(against []pin, key ssh.PublicKey) error {
	where := fmt.Sprintf("%s pins %s", against[0].position(), describeKey(against[0].key))
	return fmt.Errorf("%w: %s shows %s, but %s; %s", ErrHostKey, l.addr, describeKey(key), where, l.forgetHint(against))
}

// otherKindError is for a server that has no key of the pinned kind.
func (l *login) otherKindError(err *ssh.AlgorithmNegotiationError) error {
	own, _ := l.trust.pinsOf(l.addr)
	return fmt.Errorf("%w: %s has no host key of the pinned kind (%s), only %s; %s", ErrHostKey, l.addr,
		strings.Join(l.trust.hostKeyAlgorithms(l.addr), ", "), Printable(strings.Join(err.RequestedAlgorithms, ", ")), l.forgetHint(own))
}

// forgetHint says how to remove pinned keys from their files.
func (l *login) forgetHint(pins []pin) string {
	hint := "another machine answers at this address, or the board was flashed anew; if you know that it was, forget the old key"
	name, _ := l.addr.hostNames()
	var files []string
	for _, p := range pins {
		files = append(files, p.file)
	}
	slices.Sort(files)
	var forget []string
	for _, file := range slices.Compact(files) {
		forget = append(forget, "ssh-keygen -R "+plaintext.Quote(name)+" -f "+plaintext.Quote(file))
	}
	return hint + "\nnext: " + strings.Join(forget, " && ")
}

// sshArgs are the arguments that make ssh meet the same board with the same
// files.
func (l *login) sshArgs() string {
	var args []string
	if l.addr.HostKeyAlias != "" {
		args = append(args, "-o", plaintext.Quote("HostKeyAlias="+l.addr.HostKeyAlias))
	}
	if files := append(slices.Clone(l.addr.KnownHosts), l.addr.Recorded); files[0] != "" && l.addr.PinFile == "" { // else ssh finds its own
		args = append(args, "-o", plaintext.Quote("UserKnownHostsFile="+files[0]))
	}
	for _, file := range l.addr.Identities {
		args = append(args, "-i", plaintext.Quote(file))
	}
	args = append(args, l.addr.jumpArgs()...)
	args = append(args, "-p", strconv.Itoa(l.addr.Port), plaintext.Quote(l.addr.User+"@"+l.addr.Host))
	return strings.Join(args, " ")
}

func describeKey(key ssh.PublicKey) string {
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
