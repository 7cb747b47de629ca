package boardssh

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/crypto/ssh"
)

// DialUnattended is Dial for many boards at once, where nobody answers questions. An unknown
// host key is an error, an UnknownKey. A key with a passphrase serves if UnlockKeys or the
// agent opened it.
func DialUnattended(ctx context.Context, a Address) (*Conn, error) {
	return dialBy(ctx, a, false, func(ctx context.Context, try func() (*link, error)) (*link, error) {
		for {
			link, err := try()
			var q *question
			if !errors.As(err, &q) || q.ask != nil {
				return link, err
			}
		}
	})
}

// UnknownKey is a host key that nobody has confirmed.
type UnknownKey struct {
	login *login
	key   ssh.PublicKey
}

func (u *UnknownKey) Error() string { return u.login.unknownKeyError(u.key).Error() }

func (u *UnknownKey) Unwrap() error { return ErrHostKey }

// Machine is the machine that showed the key.
func (u *UnknownKey) Machine() string { return u.login.addr.String() }

// ByJumpHost says that a jump host showed the key, and not the board.
func (u *UnknownKey) ByJumpHost() bool { return u.login.isHop }

// Name is what files of known hosts call the machine.
func (u *UnknownKey) Name() string { return u.login.addr.Name() }

// Fingerprint is the key's kind and its digest, as ssh-keygen -l prints it.
func (u *UnknownKey) Fingerprint() string { return describeKey(u.key) }

// Line is the key as slipway_host_key and authorized_keys have it.
func (u *UnknownKey) Line() string {
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(u.key)))
}

// Pin trusts the key from now on, by a line in File.
func (u *UnknownKey) Pin() error {
	if u.File() == "" {
		return fmt.Errorf("no file to pin the key of %s in: UserKnownHostsFile in ~/.ssh/config names none", u.Machine())
	}
	return u.login.addPin(u.key)
}

// File is the user's own file of known hosts; "" if the configuration names none.
func (u *UnknownKey) File() string { return u.login.addr.PinFile }

// HostProved reports whether a connection failed after the board had proved itself: it is the
// right board, and the login is refused. A jump host that refuses the login says nothing of
// the board.
func HostProved(err error) bool {
	var r refusal
	return errors.As(err, &r) && !r.byJumpHost
}

// HasRecorded reports whether flashes recorded a key under a name.
func HasRecorded(file, name string) (bool, error) {
	pins, err := readRecorded(file, name)
	return len(pins) > 0, err
}

// Attended reports whether somebody can be asked.
func Attended() bool { return atTerminal() != nil }

// UnlockKeys asks for the passphrases of keys without which there is nothing to show to one of
// these boards, or to a jump host. It asks once for each key, and never without a terminal.
func UnlockKeys(ctx context.Context, boards []Address) error {
	asked := map[string]bool{} // boards of one fleet have mostly the same keys
	for _, board := range boards {
		for a := &board; a != nil; a = a.Via {
			keys := strings.Join(slices.Concat(a.Identities, []string{a.Agent, strconv.FormatBool(a.IdentitiesOnly)}), "\n")
			if asked[keys] {
				continue
			}
			asked[keys] = true
			if err := unlockFor(ctx, *a); err != nil {
				return err
			}
		}
	}
	return askSudo(ctx, boards)
}

func unlockFor(ctx context.Context, a Address) error {
	l := &login{addr: a}
	l.readKeys()
	agentConn, inAgent := l.connectAgent(ctx)
	if agentConn != nil {
		agentConn.Close()
	}
	if len(inAgent) > 0 && !a.IdentitiesOnly {
		return nil
	}
	locked, open := l.lockedKeys(inAgent)
	if open {
		return nil
	}
	for _, key := range locked {
		q := &question{ask: key.askPassphrase}
		if _, err := q.askPerson(ctx); err != nil {
			return err
		}
	}
	return nil
}

// lockedKeys are the keys that need a passphrase; open says that one does not.
func (l *login) lockedKeys(inAgent []ssh.Signer) (keys []lockedKey, open bool) {
	for _, id := range l.identities {
		c, err := id.findSigner(inAgent)
		if err != nil {
			continue // a login that is refused for it will tell
		}
		key, isLocked := c.Signer.(lockedKey)
		if !isLocked {
			return nil, true
		}
		keys = append(keys, key)
	}
	return keys, false
}
