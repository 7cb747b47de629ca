package boardssh

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// checkHostKey returns nil if the server's host key is trusted, and an ErrHostKey if the key is
// revoked, is not among given Pins, or is not the known key. It pins an unknown key in Pins. For an
// unknown key without Pins, it returns a *question, which the caller asks a person.
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

// CheckPin returns an error if pin is not a SHA256 fingerprint as ssh-keygen -l prints it.
func CheckPin(pin string) error {
	if !pinPattern().MatchString(pin) {
		return fmt.Errorf("%q is no fingerprint of a host key; want SHA256:…, as ssh-keygen -l prints it", pin)
	}
	return nil
}

func (l *login) untrustedError(key ssh.PublicKey, err error) error {
	return fmt.Errorf("%w: %s shows %s: %s", ErrHostKey, l.addr, describeKey(key), Printable(err.Error()))
}

// unknownKeyError returns the error for an unknown host key if nobody can be asked. It contains the
// fingerprint and the commands to compare and pin it.
func (l *login) unknownKeyError(key ssh.PublicKey) error {
	return fmt.Errorf("%w: nothing is known of %s, which shows %s; "+
		"compare that with its own console (ssh-keygen -lf /etc/ssh/ssh_host_%s_key.pub), then pin it%s\nnext: ssh %s true",
		ErrHostKey, l.addr, describeKey(key), keyKind(key), l.pinHint(key), l.sshArgs())
}

// pinHint returns a hint to the option --pin, or "" for a jump host, whose key --pin does not set.
func (l *login) pinHint(key ssh.PublicKey) string {
	if l.isHop {
		return ""
	}
	return "; of Slipway's commands, deploy BOARD HOST, smoke and audit take --pin=" + ssh.FingerprintSHA256(key)
}

func (l *login) changedKeyError(against []pin, key ssh.PublicKey) error {
	where := fmt.Sprintf("%s pins %s", against[0].position(), describeKey(against[0].key))
	return fmt.Errorf("%w: %s shows %s, but %s; %s", ErrHostKey, l.addr, describeKey(key), where, l.forgetHint(against))
}

// otherKindError returns the error for a server that has no host key of the pinned kind (ed25519).
func (l *login) otherKindError(err *ssh.AlgorithmNegotiationError) error {
	own, _ := l.trust.pinsOf(l.addr)
	return fmt.Errorf("%w: %s has no host key of the pinned kind (%s), only %s; %s", ErrHostKey, l.addr,
		strings.Join(l.trust.hostKeyAlgorithms(l.addr), ", "), Printable(strings.Join(err.RequestedAlgorithms, ", ")), l.forgetHint(own))
}

// forgetHint returns why pinned keys may not match, and the ssh-keygen -R commands to remove them.
func (l *login) forgetHint(pins []pin) string {
	hint := "another machine answers at this address, or the board was flashed again; if you know that it was, forget the old key"
	name, _ := l.addr.hostNames()
	var files []string
	for _, p := range pins {
		if p.file != "" {
			files = append(files, p.file)
		}
	}
	slices.Sort(files)
	var forget []string
	for _, file := range slices.Compact(files) {
		forget = append(forget, "ssh-keygen -R "+plaintext.Quote(name)+" -f "+plaintext.Quote(file))
	}
	if len(forget) == 0 {
		return hint
	}
	return hint + "\nnext: " + strings.Join(forget, " && ")
}

// sshArgs returns quoted arguments for ssh that reach the same board: its alias, keys, jump hosts,
// port and user. If there is no PinFile, it names the known_hosts files too.
func (l *login) sshArgs() string {
	var args []string
	if l.addr.HostKeyAlias != "" {
		args = append(args, "-o", plaintext.Quote("HostKeyAlias="+l.addr.HostKeyAlias))
	}
	var files []string
	for _, file := range append(slices.Clone(l.addr.KnownHosts), l.addr.Recorded) {
		switch {
		case strings.ContainsAny(file, " \t"): // ssh splits the list there
			files = append(files, `"`+file+`"`)
		case file != "":
			files = append(files, file)
		}
	}
	if len(files) > 0 && l.addr.PinFile == "" { // else ssh finds its own
		args = append(args, "-o", plaintext.Quote("UserKnownHostsFile="+strings.Join(files, " ")))
	}
	for _, file := range l.addr.Identities {
		if arg := plaintext.Quote(file); !slices.Contains(args, arg) { // ssh_config may name it too
			args = append(args, "-i", arg)
		}
	}
	args = append(args, l.addr.jumpArgs()...)
	args = append(args, "-p", strconv.Itoa(l.addr.Port), plaintext.Quote(l.addr.User+"@"+l.addr.Host))
	return strings.Join(args, " ")
}

func describeKey(key ssh.PublicKey) string {
	return key.Type() + " " + ssh.FingerprintSHA256(key)
}

// keyKind returns the kind in the name of a host key file: ed25519, rsa, or ecdsa for all others.
func keyKind(key ssh.PublicKey) string {
	switch key.Type() {
	case ssh.KeyAlgoED25519:
		return "ed25519"
	case ssh.KeyAlgoRSA:
		return "rsa"
	}
	return "ecdsa"
}

// firstContact returns a question that asks a person to confirm an unknown host key. "yes" or the
// same fingerprint pins it. "no", another fingerprint, or maxAsked other answers are an ErrHostKey.
func (l *login) firstContact(key ssh.PublicKey) error {
	return &question{refusal: &UnknownKey{l, key}, ask: func(ctx context.Context, t *terminal) error {
		fmt.Fprintf(t.out, "%s has an unknown host key. It shows this key:\n  %s\n", Printable(l.addr.String()), describeKey(key))
		for range maxAsked {
			answer, err := t.readAnswer(ctx, "Type yes if its own console shows the same, or the fingerprint that it shows: ", false)
			if err != nil {
				return err
			}
			switch answer {
			case "yes", ssh.FingerprintSHA256(key):
				return l.addPin(key)
			case "no":
				return fmt.Errorf("%w: %s was not confirmed for %s", ErrHostKey, describeKey(key), l.addr)
			}
			if strings.HasPrefix(answer, "SHA256:") {
				return fmt.Errorf("%w: %s shows %s, not %s: another machine answers there", ErrHostKey, l.addr, describeKey(key), Printable(answer))
			}
		}
		return fmt.Errorf("%w: %s was not confirmed for %s", ErrHostKey, describeKey(key), l.addr)
	}}
}

// addPin trusts key for the login's host from now on, and appends it to the address's PinFile if
// set, so that later runs trust it. It refuses a host name that is a pattern in known_hosts.
func (l *login) addPin(key ssh.PublicKey) error {
	name, _ := l.addr.hostNames()
	if !isOneMachine(name) {
		return fmt.Errorf("pin the host key of %s: in known_hosts %q would be a pattern, and the key be trusted for other machines; give the board a name of its own", l.addr, name)
	}
	if file := l.addr.PinFile; file != "" {
		if err := appendPin(file, name, l.addr.HashNames, key); err != nil {
			return fmt.Errorf("pin the host key of %s: %w", l.addr, err)
		}
	}
	l.trust.addPin(pin{names: []string{name}, key: key, file: l.addr.PinFile})
	return nil
}

// isOneMachine reports whether known_hosts would read name as one host, not as a pattern, a list, a
// hash or a comment. Names in inventories may contain anything.
func isOneMachine(name string) bool {
	return name != "" && !strings.ContainsAny(name, "*?!, \t\r\n") && !strings.ContainsAny(name[:1], "|@#")
}

// appendPin appends a known_hosts line to file by one write, as ssh does, so that lines that others
// add at the same time stay, and the file's owner and links too. It creates a missing file and
// folder, completes a last line without a line end, and removes what a failed write left.
func appendPin(file, name string, hashed bool, key ssh.PublicKey) (err error) {
	if hashed {
		name = knownhosts.HashHostname(strings.ToLower(name)) // as names are looked up
	}
	line := name + " " + strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key))) + "\n"
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, whole, err := readTail(f)
	if err != nil {
		return err
	}
	if !whole {
		line = "\n" + line
	}
	if n, err := f.WriteString(line); err != nil {
		if n > 0 {
			return errors.Join(err, f.Truncate(size))
		}
		return err
	}
	return f.Sync()
}

// readTail returns the file's size, and whether the file is empty or ends with a newline.
func readTail(f *os.File) (size int64, whole bool, err error) {
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return 0, true, err
	}
	last := make([]byte, 1)
	_, err = f.ReadAt(last, info.Size()-1)
	return info.Size(), last[0] == '\n', err
}

// checkRevoked returns an error if the user's RevokedHostKeys file has the key or cannot be read,
// as ssh does. That file ("": none) must be a key revocation list, which ssh-keygen -k makes.
func checkRevoked(ctx context.Context, file string, key ssh.PublicKey) error {
	if file == "" {
		return nil
	}
	data, err := localfile.Read(file, maxTrustBytes)
	switch {
	case err != nil:
		return fmt.Errorf("RevokedHostKeys: %w", err)
	case !bytes.HasPrefix(data, []byte("SSHKRL\n\x00")):
		return fmt.Errorf("RevokedHostKeys %s is no key revocation list; make one of the keys in it: ssh-keygen -k -f NEW %[1]s", file)
	}
	return checkRevocationList(ctx, file, key)
}

// checkRevocationList returns an error if ssh-keygen is missing, cannot read the key revocation
// list (KRL), or says that it revokes key. It passes the key to ssh-keygen in a temporary file.
func checkRevocationList(ctx context.Context, list string, key ssh.PublicKey) error {
	if _, err := exec.LookPath("ssh-keygen"); err != nil {
		return fmt.Errorf("RevokedHostKeys %s is a key revocation list, and ssh-keygen, which reads it, is missing: install openssh-client", list)
	}
	f, err := os.CreateTemp("", "slipway-key-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(ssh.MarshalAuthorizedKey(key))
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	// ssh-keygen reports by its status whether the key is revoked, and fails if it cannot tell.
	if _, err := run.Output(ctx, run.Command{Argv: []string{"ssh-keygen", "-Q", "-f", list, f.Name()}}); err != nil {
		return fmt.Errorf("that key is revoked by %s, or the list cannot be read (ssh-keygen -Q -f %[1]s KEY.pub)", list)
	}
	return nil
}
