package target

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/crypto/ssh"
)

// firstContact asks a person about an unknown host key. Slipway trusts it only after the person has
// compared its fingerprint.
func (l *login) firstContact(key ssh.PublicKey) error {
	return &question{refusal: &UnknownKey{l, key}, ask: func(ctx context.Context, t *terminal) error {
		fmt.Fprintf(t.out, "Nothing is known of %s. It shows this key:\n  %s\n", Printable(l.addr.String()), describeKey(key))
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

// addPin trusts a key from now on. If the user has a file for that, the key stays trusted after
// this run.
func (l *login) addPin(key ssh.PublicKey) error {
	name, _ := l.addr.hostNames()
	if !oneMachine(name) {
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

// oneMachine says whether a name means itself in known_hosts. Inventories have names from
// anywhere.
func oneMachine(name string) bool {
	return name != "" && !strings.ContainsAny(name, "*?!, \t\r\n") && !strings.ContainsAny(name[:1], "|@#")
}

// appendPin adds a line as ssh does, by one write at the end: what others add at the
// same time is kept, and so are the file's owner and its links. What was cut off
// before gets its line's end.
func appendPin(file, name string, hashed bool, key ssh.PublicKey) (err error) {
	if hashed {
		name = hashName(strings.ToLower(name)) // as names are looked up
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
	size, whole, err := tailOf(f)
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

// tailOf says whether the last line of a file has its end.
func tailOf(f *os.File) (size int64, whole bool, err error) {
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return 0, true, err
	}
	last := make([]byte, 1)
	_, err = f.ReadAt(last, info.Size()-1)
	return info.Size(), last[0] == '\n', err
}

func hashName(name string) string {
	salt := make([]byte, 20)
	rand.Read(salt)
	return "|1|" + base64.StdEncoding.EncodeToString(salt) + "|" + base64.StdEncoding.EncodeToString(hashHost(salt, name))
}
