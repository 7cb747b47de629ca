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

// DialUnattended is Dial that asks no questions, for many boards at once. An unknown host key is an
// UnknownKey error. Keys with a passphrase work only if UnlockKeys or the agent has unlocked them.
func DialUnattended(ctx context.Context, a Address) (*Conn, error) {
	return dialBy(ctx, a, false, 0)
}

// UnknownKey is the error for a host key that nobody has confirmed.
type UnknownKey struct {
	login *login
	key   ssh.PublicKey
}

func (u *UnknownKey) Error() string { return u.login.unknownKeyError(u.key).Error() }

func (u *UnknownKey) Unwrap() error { return ErrHostKey }

// Machine returns the address of the machine that showed the key.
func (u *UnknownKey) Machine() string { return u.login.addr.String() }

// ByJumpHost reports whether a jump host showed the key, and not the board.
func (u *UnknownKey) ByJumpHost() bool { return u.login.isHop }

// Name returns the machine's name in known_hosts files.
func (u *UnknownKey) Name() string { return u.login.addr.Name() }

// Fingerprint returns the key's type and SHA256 fingerprint.
func (u *UnknownKey) Fingerprint() string { return describeKey(u.key) }

// Line returns the key in the format of authorized_keys and slipway_host_key.
func (u *UnknownKey) Line() string {
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(u.key)))
}

// Pin trusts the key from now on and appends it to File. Without a File, it is an error.
func (u *UnknownKey) Pin() error {
	if u.File() == "" {
		return fmt.Errorf("no file to pin the key of %s in: UserKnownHostsFile in ~/.ssh/config names none", u.Machine())
	}
	return u.login.addPin(u.key)
}

// File returns the user's known_hosts file for new keys; "" if the configuration names none.
func (u *UnknownKey) File() string { return u.login.addr.PinFile }

// HostProved reports whether err is a login that the board refused after it had proved its host
// key. A refusal by a jump host does not count.
func HostProved(err error) bool {
	var r refusal
	return errors.As(err, &r) && !r.byJumpHost
}

// HasRecorded reports whether file has a key that a flash recorded under exactly this name.
func HasRecorded(file, name string) (bool, error) {
	pins, err := readRecorded(file, name)
	return len(pins) > 0, err
}

// Attended reports whether a person can be asked at a terminal.
func Attended() bool { return atTerminal() != nil }

// UnlockKeys asks for passphrases for boards and jump hosts that have no other key to offer, and
// then for the sudo password. It asks once for each set of keys, and never without a terminal.
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
	return askSudoPassword(ctx, boards)
}

// unlockFor asks for the passphrases of the address's keys, unless the login has a usable key that
// needs none, in a file or in the agent.
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

// lockedKeys returns the usable keys that need a passphrase, or no keys and true if one needs none.
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
