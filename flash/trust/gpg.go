package trust

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"slipway/layers/run"
)

const (
	maxRingBytes   = 64 << 20
	maxStatusBytes = 1 << 20
	statusHead     = "[GNUPG:] "
	clearHead      = "-----BEGIN PGP SIGNED MESSAGE-----"
)

// classFile is gpgv's class of a file's signature. A text's ignores line endings and is refused.
const classFile = "00"

// Clearsigned reports whether data begins as a GPG clearsigned text.
func Clearsigned(data []byte) bool { return bytes.HasPrefix(data, []byte(clearHead)) }

// isRing reports whether data is a GPG keybox or the output of "gpg --export", by its first bytes.
func isRing(data []byte) bool {
	if len(data) < 12 {
		return false
	}
	return string(data[8:12]) == "KBXf" || data[0] == 0xc6 || data[0]&^3 == 0x98
}

// isSecret reports whether data is a secret key, exported or as text: GPG's, OpenSSH's or PEM.
func isSecret(data []byte) bool {
	first, _, _ := bytes.Cut(data, []byte("\n"))
	text := bytes.HasPrefix(first, []byte("-----BEGIN ")) && bytes.Contains(first, []byte("PRIVATE KEY"))
	return text || len(data) > 0 && (data[0] == 0xc5 || data[0]&^3 == 0x94)
}

// verifyRing runs gpgv on a detached signature and all of data, and returns the signers as text. In
// the temporary folder, gpgv finds no other keyring.
func (s Signers) verifyRing(ctx context.Context, signature []byte, data *errorReader) (string, error) {
	if bytes.HasPrefix(signature, []byte(armorHead)) {
		return "", fmt.Errorf("an SSH signature, and %s holds keys of GPG", s.file)
	}
	dir, err := os.MkdirTemp("", "slipway-gpgv-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "signature")
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "ring"), s.ring, 0o600), os.WriteFile(file, signature, 0o600)); err != nil {
		return "", err
	}
	who, err := s.runGPGV(ctx, dir, file, data)
	if data.err != nil { // gpgv has read only a part of the file
		return "", data.err
	}
	return who, err
}

// runGPGV runs gpgv with dir's ring on a signature's file and the data, and returns the signers. It
// reads gpgv's status, because gpgv exits with 0 even if a key has expired. It refuses SHA-1.
func (s Signers) runGPGV(ctx context.Context, dir, signature string, data io.Reader) (string, error) {
	status, err := run.Output(ctx, run.Command{Argv: []string{
		"gpgv", "--homedir", dir, "--keyring", filepath.Join(dir, "ring"), "--weak-digest", "SHA1", "--status-fd", "1", "--", signature, "-",
	}, Env: []string{"LC_ALL=C"}, Stdin: data})
	var failed *run.Failure
	if err != nil && !errors.As(err, &failed) {
		if ctx.Err() == nil {
			err = fmt.Errorf("%w\nnext: apt-get install gpgv", err)
		}
		return "", err
	}
	who, why := parseStatus(status, s.file)
	if failed == nil || why != nil && !errors.Is(why, errNoVerdict) {
		return who, why
	}
	said := ""
	for line := range strings.Lines(failed.Tail) { // a hint for people follows some of them
		if text, ok := strings.CutPrefix(line, "gpgv: "); ok {
			said = strings.TrimSpace(text)
		}
	}
	return "", fmt.Errorf("no signature of GPG that can be verified: %s", shorten(said))
}

// errNoVerdict is the error of status lines without a result; gpgv's own message explains it.
var errNoVerdict = errors.New("gpgv has not said who signed it")

// parseStatus returns the signers in gpgv's status. Signatures must be valid, of files, not texts.
func parseStatus(status []byte, ringFile string) (string, error) {
	if len(status) > maxStatusBytes {
		return "", fmt.Errorf("gpgv says more than %d MiB of the signature", maxStatusBytes>>20)
	}
	var signers []string
	good, valid := 0, 0
	for line := range strings.Lines(string(status)) {
		text, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), statusHead)
		if !ok {
			continue
		}
		word, rest, _ := strings.Cut(text, " ")
		key, user, _ := strings.Cut(rest, " ")
		key, user = shorten(key), shorten(user)
		fields := strings.Fields(rest)
		switch {
		case word == "BADSIG":
			return "", errors.New("the signature is not of this file")
		case word == "EXPSIG":
			return "", fmt.Errorf("the signature by %s (GPG key %s) has expired", user, key)
		case word == "EXPKEYSIG":
			return "", fmt.Errorf("signed by %s, whose GPG key %s has expired", user, key)
		case word == "REVKEYSIG":
			return "", fmt.Errorf("signed by %s, whose GPG key %s is revoked", user, key)
		case word == "ERRSIG" && len(fields) > 5 && fields[5] == "9":
			return "", fmt.Errorf("signed by GPG key %s, which %s does not hold", key, ringFile)
		case word == "ERRSIG":
			return "", errNoVerdict
		case word == "GOODSIG":
			good++
			signers = append(signers, user)
		case word == "VALIDSIG":
			valid++
			if valid != good || len(fields) < 9 {
				return "", errNoVerdict
			}
			if fields[8] != classFile {
				return "", fmt.Errorf("a signature of GPG of class %s; want %s: gpg --detach-sign, without --textmode", shorten(fields[8]), classFile)
			}
			signers[good-1] += " (GPG " + key + ")"
		}
	}
	if good == 0 || good != valid {
		return "", errNoVerdict
	}
	return strings.Join(slices.Compact(signers), ", "), nil
}
