package trust

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"slipway/flash/flashtest"
)

func ringOf(t *testing.T, path string) Signers {
	t.Helper()
	s, err := ParseSigners("keyring.gpg", readText(t, path))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// What gpg signs is taken where the key is good, and nothing else is. gpgv exits with 0
// for an expired key.
func TestVerifyGPG(t *testing.T) {
	ann, bob := flashtest.NewGPG(t, "Ann <ann@example.com>", "never", "--faked-system-time", "20200101T000000"), flashtest.NewGPG(t, "bob@example.com", "never")
	old := flashtest.NewGPG(t, "old@example.com", "1y", "--faked-system-time", "20200101T000000")
	lost := flashtest.NewGPG(t, "lost@example.com", "never")
	for name, test := range map[string]struct {
		ring string
		make func(t *testing.T, file string)
		want string // in the error; "": it is taken
	}{
		"exported keyring": {ring: ann.Ring, make: func(t *testing.T, f string) { ann.Sign(t, f, ".asc") }},
		"keybox":           {ring: filepath.Join(filepath.Dir(ann.Ring), "pubring.kbx"), make: func(t *testing.T, f string) { ann.Sign(t, f, ".asc") }},
		"not armored":      {ring: ann.Ring, make: func(t *testing.T, f string) { ann.Sign(t, f, ".asc", "--no-armor") }},
		"changed file": {ring: ann.Ring, make: func(t *testing.T, f string) {
			ann.Sign(t, f, ".asc")
			put(t, f, message+"x")
		}, want: "the signature is not of this file"},
		"wrong key": {ring: ann.Ring, make: func(t *testing.T, f string) { bob.Sign(t, f, ".asc") }, want: "which keyring.gpg does not hold"},
		"expired key": {ring: old.Ring, make: func(t *testing.T, f string) {
			old.Sign(t, f, ".asc", "--faked-system-time", "20200601T000000")
		}, want: "signed by old@example.com, whose GPG key"},
		"expired signature": {ring: ann.Ring, make: func(t *testing.T, f string) {
			ann.Sign(t, f, ".asc", "--faked-system-time", "20200601T000000", "--default-sig-expire", "1d")
		}, want: "has expired"},
		"revoked key": {ring: lost.Ring, make: func(t *testing.T, f string) {
			lost.Sign(t, f, ".asc")
			revoke(t, lost)
		}, want: "is revoked"},
		"digest that can be forged": {ring: ann.Ring, make: func(t *testing.T, f string) { ann.Sign(t, f, ".asc", "--digest-algo", "SHA1") }, want: "Invalid digest algorithm"},
		"text":                      {ring: ann.Ring, make: func(t *testing.T, f string) { ann.Sign(t, f, ".asc", "--textmode") }, want: "of class 01; want 00"},
		"another signed file":       {ring: ann.Ring, make: func(t *testing.T, f string) { ann.Run(t, "--output", f+".asc", "--sign", f) }, want: "not a detached signature"},
		"a web page":                {ring: ann.Ring, make: func(t *testing.T, f string) { put(t, f+".asc", "<html>404</html>\n") }, want: "no signature of GPG that can be verified: the signature could not be verified"},
		"no signature":              {ring: ann.Ring, make: func(t *testing.T, f string) { put(t, f+".asc", "-----BEGIN PGP SIGNATURE-----\n") }, want: "no signature of GPG that can be verified: "},
	} {
		t.Run(name, func(t *testing.T) {
			file := write(t, "disk.img", message)
			test.make(t, file)
			who, err := ringOf(t, test.ring).Verify(t.Context(), readText(t, file+".asc"), bytes.NewReader(readText(t, file)))
			if test.want == "" && (err != nil || !strings.HasPrefix(who.String(), "Ann <ann@example.com> (GPG ")) {
				t.Errorf("Verify = %q, %v", who, err)
			}
			if test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("Verify = %q, %v; want an error with %q", who, err, test.want)
			}
		})
	}
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// revoke takes the certificate that gpg made with the key. Its first line has a colon
// before it, against accidents.
func revoke(t *testing.T, p flashtest.Person) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(filepath.Dir(p.Ring), "openpgp-revocs.d", "*.rev"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	file := write(t, "revoked", strings.ReplaceAll(string(readText(t, files[0])), ":-----BEGIN", "-----BEGIN"))
	p.Run(t, "--import", file)
	p.Export(t)
}

// A read error is returned, not a result for a part of the file.
func TestVerifyGPGEnds(t *testing.T) {
	ann := flashtest.NewGPG(t, "ann@example.com", "never")
	file := write(t, "disk.img", message)
	ann.Sign(t, file, ".asc")
	broken := errors.New("the disk is broken")
	if _, err := ringOf(t, ann.Ring).Verify(t.Context(), readText(t, file+".asc"), iotest.ErrReader(broken)); !errors.Is(err, broken) {
		t.Errorf("Verify = %v; want %v", err, broken)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(broken)
	if _, err := ringOf(t, ann.Ring).Verify(ctx, readText(t, file+".asc"), strings.NewReader(message)); !errors.Is(err, broken) {
		t.Errorf("Verify = %v; want %v", err, broken)
	}
}

// gpgv would find no key in a text, and say that the signer is another one.
func TestArmoredKeyring(t *testing.T) {
	if _, err := ParseSigners("key.asc", []byte("-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmDME\n")); err == nil || !strings.Contains(err.Error(), "gpg --dearmor -o keyring.gpg key.asc") {
		t.Errorf("ParseSigners = %v; want how to convert it", err)
	}
}

const goodStatus = "[GNUPG:] NEWSIG\n[GNUPG:] GOODSIG AE3F0304B679FC9D Ann <ann@example.com>\n" +
	"[GNUPG:] VALIDSIG 9A6FB5551A88E8947EEF04E8AE3F0304B679FC9D 2026-11-23 1795474104 0 4 0 22 8 00 9A6FB5551A88E8947EEF04E8AE3F0304B679FC9D\n"

func TestJudgeStatus(t *testing.T) {
	for name, test := range map[string]struct{ status, want, wantErr string }{
		"good":              {goodStatus, "Ann <ann@example.com> (GPG 9A6FB5551A88E8947EEF04E8AE3F0304B679FC9D)", ""},
		"nothing":           {"", "", errNoVerdict.Error()},
		"not its status":    {strings.ReplaceAll(goodStatus, statusHead, ""), "", errNoVerdict.Error()},
		"no proof":          {"[GNUPG:] GOODSIG AE3F0304B679FC9D Ann\n", "", errNoVerdict.Error()},
		"no good one":       {goodStatus[strings.Index(goodStatus, "[GNUPG:] VALID"):], "", errNoVerdict.Error()},
		"one of two":        {goodStatus + "[GNUPG:] NEWSIG\n[GNUPG:] ERRSIG 8301A97259FC5B47 22 8 00 1 9 -\n", "", "key 8301A97259FC5B47, which ring does not hold"},
		"one of two unread": {goodStatus + "[GNUPG:] ERRSIG 8301A97259FC5B47 99 8 00 1 4 -\n", "", errNoVerdict.Error()},
		"one of two bad":    {goodStatus + "[GNUPG:] BADSIG 8301A97259FC5B47 x\n", "", "not of this file"},
		"short":             {strings.Replace(goodStatus, " 2026-11-23", "", 1), "", "of class 9A6F"},
		"more than one MB":  {strings.Repeat(goodStatus, 6000), "", "more than 1 MiB"},
	} {
		who, err := parseStatus([]byte(test.status), "ring")
		if who != test.want || (err == nil) != (test.wantErr == "") || err != nil && !strings.Contains(err.Error(), test.wantErr) {
			t.Errorf("%s: parseStatus = %q, %v; want %q, %q", name, who, err, test.want, test.wantErr)
		}
	}
}

// parseStatus names a signer only if gpgv says that the signature is good. What it returns
// has no escape character and no end of a line.
func FuzzJudgeStatus(f *testing.F) {
	f.Add(goodStatus)
	f.Add("[GNUPG:] EXPKEYSIG 8301A97259FC5B47 old\x1b[31m\n")
	f.Add("[GNUPG:] ERRSIG 8301A97259FC5B47 22 8 00 1 9 -\n")
	f.Fuzz(func(t *testing.T, status string) {
		who, err := parseStatus([]byte(status), "ring")
		if err == nil && (!strings.Contains(status, "GOODSIG ") || !strings.Contains(status, "VALIDSIG ")) {
			t.Errorf("parseStatus(%q) = %q", status, who)
		}
		if err != nil {
			who = err.Error()
		}
		if strings.ContainsAny(who, "\x1b\r\n") {
			t.Errorf("parseStatus(%q) says %q", status, who)
		}
	})
}

func TestSecretKeysAreNoSigners(t *testing.T) {
	for _, text := range []string{
		"\x94\x58\x04", "\x95\x01\x04", "\xc5\x58\x04", "-----BEGIN PGP PRIVATE KEY BLOCK-----\n",
		"-----BEGIN OPENSSH PRIVATE KEY-----\n",
	} {
		if _, err := ParseSigners("secret", []byte(text)); err == nil || !strings.Contains(err.Error(), "secret: a secret key") {
			t.Errorf("ParseSigners(%q) = %v; want it to say that the key is secret", text, err)
		}
	}
}
