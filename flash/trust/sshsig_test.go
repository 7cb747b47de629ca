package trust

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"io"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"golang.org/x/crypto/ssh"

	"slipway/layers/localfile"
)

func TestMain(m *testing.M) {
	os.Unsetenv("SSH_AUTH_SOCK") // the person's own keys are no part of the tests
	os.Exit(m.Run())
}

const message = "a disk image\n"

func need(t *testing.T, program, pkg string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("%s is missing (Debian package %s)", program, pkg)
	}
}

func runTool(t *testing.T, argv ...string) {
	t.Helper()
	if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, out)
	}
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func readText(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// keygen makes a key and returns its file and its public half, "TYPE BASE64".
func keygen(t *testing.T, args ...string) (file, public string) {
	t.Helper()
	need(t, "ssh-keygen", "openssh-client")
	file = filepath.Join(t.TempDir(), "key")
	runTool(t, append([]string{"ssh-keygen", "-q", "-N", "", "-C", "", "-f", file}, args...)...)
	return file, strings.TrimSpace(string(readText(t, file+".pub")))
}

// sign has ssh-keygen sign a file.
func sign(t *testing.T, key, text string, args ...string) []byte {
	t.Helper()
	file := write(t, "disk.img", text)
	runTool(t, append(append([]string{"ssh-keygen", "-q", "-Y", "sign", "-f", key}, args...), file)...)
	return readText(t, file+".sig")
}

// armor wraps a signature as ssh-keygen does.
func armor(blob []byte) []byte {
	text := []byte(base64.StdEncoding.EncodeToString(blob))
	lines := slices.Concat([][]byte{[]byte(armorHead)}, slices.Collect(slices.Chunk(text, 70)), [][]byte{[]byte(armorFoot), nil})
	return bytes.Join(lines, []byte("\n"))
}

// judged reports whether ssh-keygen accepts a signature.
func judged(t *testing.T, allowed, principal string, sig []byte, text string) bool {
	t.Helper()
	cmd := exec.Command("ssh-keygen", "-Y", "verify", "-f", write(t, "allowed", allowed), "-I", principal, "-n", "file", "-s", write(t, "sig", string(sig)))
	cmd.Stdin = strings.NewReader(text)
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return err == nil
}

func verify(t *testing.T, allowed string, sig []byte, text string) (string, error) {
	t.Helper()
	s, err := ParseSigners("allowed_signers", []byte(allowed))
	if err != nil {
		return "", err
	}
	who, err := s.Verify(t.Context(), sig, strings.NewReader(text))
	return who.String(), err
}

// Only signatures of ssh-keygen are accepted.
func TestVerifySSHKeygen(t *testing.T) {
	kinds := map[string][]string{
		"ed25519": {"-t", "ed25519"}, "ecdsa": {"-t", "ecdsa", "-b", "384"}, "rsa": {"-t", "rsa", "-b", "2048"},
	}
	_, otherSigner := keygen(t, "-t", "ed25519")
	for name, args := range kinds {
		t.Run(name, func(t *testing.T) {
			key, public := keygen(t, args...)
			allowed := "# ours\n\nann@example.com,*@example.org " + public + " of Ann\n"
			for _, digest := range []string{"sha256", "sha512"} {
				sig := sign(t, key, message, "-n", "file", "-O", "hashalg="+digest)
				who, err := verify(t, allowed, sig, message)
				if err != nil || !strings.HasPrefix(who, "ann@example.com,*@example.org (") {
					t.Errorf("Verify = %q, %v", who, err)
				}
				for text, change := range map[string]string{"the signature is not of this file": allowed, "whom allowed_signers does not name": "bob " + otherSigner} {
					other := message
					if change == allowed {
						other += "x"
					}
					if _, err := verify(t, change, sig, other); err == nil || !strings.Contains(err.Error(), text) {
						t.Errorf("Verify = %v; want an error with %q", err, text)
					}
				}
			}
			if _, err := verify(t, allowed, sign(t, key, message, "-n", "git"), message); err == nil || !strings.Contains(err.Error(), `signed for "git"`) {
				t.Errorf("a signature for git: %v", err)
			}
		})
	}
}

// ssh-keygen accepts signatures assembled by this test, so the test parses them as
// ssh-keygen does.
func TestSSHKeygenVerifies(t *testing.T) {
	need(t, "ssh-keygen", "openssh-client")
	key, public := keygen(t, "-t", "ed25519")
	signer, err := ssh.ParsePrivateKey(readText(t, key))
	if err != nil {
		t.Fatal(err)
	}
	sig := made(t, signer, "file", "sha512", nil)
	if _, err := verify(t, "ann "+public, sig, message); err != nil {
		t.Errorf("Verify = %v", err)
	}
	if !judged(t, "ann "+public+"\n", "ann", sig, message) {
		t.Error("ssh-keygen refuses what we made")
	}
}

// made is a signature of our own, which change may spoil.
func made(t *testing.T, signer ssh.Signer, namespace, digest string, change func(*wire)) []byte {
	t.Helper()
	h := hashes[digest]()
	h.Write([]byte(message))
	signed := ssh.Marshal(struct{ Namespace, Reserved, Hash, Sum string }{namespace, "", digest, string(h.Sum(nil))})
	sig, err := signer.Sign(rand.Reader, append([]byte(magic), signed...))
	if err != nil {
		t.Fatal(err)
	}
	w := wire{1, signer.PublicKey().Marshal(), namespace, "", digest, ssh.Marshal(sig)}
	if change != nil {
		change(&w)
	}
	return armor(append([]byte(magic), ssh.Marshal(w)...))
}

// A signature with any byte changed, or cut off anywhere, is refused.
func TestSpoiledEverywhere(t *testing.T) {
	key, public := keygen(t, "-t", "ed25519")
	sig := sign(t, key, message, "-n", "file")
	blob, err := dearmor(string(sig))
	if err != nil {
		t.Fatal(err)
	}
	allowed := "ann " + public
	if _, err := verify(t, allowed, armor(blob), message); err != nil {
		t.Fatal(err)
	}
	for i := range blob {
		spoiled := bytes.Clone(blob)
		spoiled[i] ^= 1
		if who, err := verify(t, allowed, armor(spoiled), message); err == nil {
			t.Errorf("byte %d changed: taken as %s's", i, who)
		}
		if who, err := verify(t, allowed, armor(blob[:i]), message); err == nil {
			t.Errorf("cut off after %d bytes: taken as %s's", i, who)
		}
	}
	if who, err := verify(t, allowed, armor(append(blob, 0)), message); err == nil {
		t.Errorf("a byte more: taken as %s's", who)
	}
}

func TestMalformed(t *testing.T) {
	key, public := keygen(t, "-t", "ed25519")
	rsaKey, rsaPublic := keygen(t, "-t", "rsa", "-b", "2048")
	allowed := "ann " + public + "\nrose " + rsaPublic
	signer, err := ssh.ParsePrivateKey(readText(t, key))
	if err != nil {
		t.Fatal(err)
	}
	good := string(made(t, signer, "file", "sha512", nil))
	spoil := func(change func(*wire)) string { return string(made(t, signer, "file", "sha512", change)) }
	tests := []struct {
		name, sig, wantErr string
		lax                bool // ssh-keygen may take it: it skips text around, and what is reserved is not in what it proves
	}{
		{"empty", "", "does not begin with", false},
		{"a PGP signature", "-----BEGIN PGP SIGNATURE-----\n", "does not begin with", false},
		{"no end", strings.TrimSuffix(good, armorFoot+"\n"), "does not end with", false},
		{"no base64", armorHead + "\n!!\n" + armorFoot, "illegal base64", false},
		{"text before it", "signed:\n" + good, "does not begin with", true},
		{"text behind it", good + "and this\n", "does not end with", true},
		{"two", good + good, "illegal base64", true},
		{"another word", string(armor([]byte("SSHSIGN"))), "not a whole SSH signature", false},
		{"another magic", string(armor([]byte("NOSIG"))), "begins with another word", false},
		{"version 2", spoil(func(w *wire) { w.Version = 2 }), "version 2", false},
		{"no namespace", spoil(func(w *wire) { w.Namespace = "" }), `signed for ""`, false},
		{"md5", spoil(func(w *wire) { w.Hash = "md5" }), `kind "md5"`, false},
		{"another digest's name", spoil(func(w *wire) { w.Hash = "sha256" }), "not of this file", false},
		{"something reserved", spoil(func(w *wire) { w.Reserved = "x" }), "not of this file", true},
		{"no key", spoil(func(w *wire) { w.Key = nil }), "the signer's key", false},
		{"another's key", spoil(func(w *wire) { w.Key = publicKey(t, rsaPublic).Marshal() }), "by a key of kind ssh-rsa", false},
		{"no signature", spoil(func(w *wire) { w.Signature = nil }), "not a whole SSH signature", false},
		{"SHA-1", string(made(t, sha1Signer(t, rsaKey), "file", "sha512", nil)), `a signature of kind "ssh-rsa" by a key of kind ssh-rsa`, false},
		{"a long one", armorHead + strings.Repeat("\nAAAA", 20_000), "more than 64 KiB", false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if _, err := verify(t, allowed, []byte(test.sig), message); err == nil || !strings.Contains(err.Error(), test.wantErr) {
				t.Errorf("Verify = %v; want an error with %q", err, test.wantErr)
			}
			if !test.lax && judged(t, allowed+"\n", "ann", []byte(test.sig), message) {
				t.Error("ssh-keygen takes it")
			}
		})
	}
}

func publicKey(t *testing.T, line string) ssh.PublicKey {
	t.Helper()
	key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(line))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// sha1Signer signs as OpenSSH did before 8.2.
func sha1Signer(t *testing.T, file string) ssh.Signer {
	t.Helper()
	key, err := ssh.ParsePrivateKey(readText(t, file))
	if err != nil {
		t.Fatal(err)
	}
	old, err := ssh.NewSignerWithAlgorithms(key.(ssh.AlgorithmSigner), []string{ssh.KeyAlgoRSA})
	if err != nil {
		t.Fatal(err)
	}
	return old
}

func TestCertificateIsRefusedByName(t *testing.T) {
	authority, authorityPublic := keygen(t, "-t", "ed25519")
	key, _ := keygen(t, "-t", "ed25519")
	runTool(t, "ssh-keygen", "-q", "-s", authority, "-I", "ann", "-n", "ann", key+".pub")
	sig := sign(t, key+"-cert.pub", message, "-n", "file")
	allowed := "ann cert-authority " + authorityPublic
	if !judged(t, allowed+"\n", "ann", sig, message) {
		t.Error("ssh-keygen refuses it, so this proves nothing")
	}
	if _, err := verify(t, allowed, sig, message); err == nil || !strings.Contains(err.Error(), "signed with a certificate") {
		t.Errorf("Verify = %v", err)
	}
	// The authority's own key signs certificates, no files.
	sig = sign(t, authority, message, "-n", "file")
	if _, err := verify(t, allowed, sig, message); err == nil || !strings.Contains(err.Error(), "certificate authority") {
		t.Errorf("Verify = %v", err)
	}
	if judged(t, allowed+"\n", "ann", sig, message) {
		t.Error("ssh-keygen takes a file that an authority signed")
	}
}

// Each line is judged by ssh-keygen too.
func TestAllowedSigners(t *testing.T) {
	key, public := keygen(t, "-t", "ed25519")
	_, other := keygen(t, "-t", "ed25519")
	sig := sign(t, key, message, "-n", "file")
	tests := []struct{ name, allowed, wantErr string }{
		{"plain", "ann " + public, ""},
		{"in quotes", `"ann" ` + public, ""},
		{"tabs and a comment", "ann\t" + public + "\tof Ann", ""},
		{"behind another", "bob " + other + "\nann " + public, ""},
		{"namespace", `ann namespaces="git,file" ` + public, ""},
		{"namespace pattern", `ann namespaces="fi*" ` + public, ""},
		{"a class of characters", `ann namespaces="[f]ile" ` + public, "may sign only for"},
		{"any namespace but", `ann namespaces="!file,*" ` + public, "may sign only for"},
		{"another namespace", `ann namespaces="git" ` + public, "may sign only for git"},
		{"options in capitals", `ann NAMESPACES="file" ` + public, ""},
		{"in time", `ann valid-after="20200101",valid-before="29990101" ` + public, ""},
		{"in time, to the second", `ann valid-after="20200101000000Z" ` + public, ""},
		{"too late", `ann valid-before="20200101" ` + public, "could sign until"},
		{"too early", `ann valid-after="299901010000" ` + public, "may sign from"},
		{"refused once, allowed once", `ann namespaces="git" ` + public + "\nann " + public, ""},
		{"times crossed", `ann valid-after="20210101",valid-before="20200101" ` + public, "not after"},
		{"no time", `ann valid-after="soon" ` + public, "want YYYYMMDD"},
		{"no day", `ann valid-after="20201341" ` + public, "out of range"},
		{"unknown option", `ann no-touch ` + public, "unknown"},
		{"no value", `ann namespaces ` + public, "unknown, or without a value"},
		{"no quotes", `ann namespaces=file ` + public, "in quotes"},
		{"quote not closed", `ann namespaces="file ` + public, "in quotes"},
		{"a quote in the comment", `"ann" ` + public + ` "of Ann`, ""},
		{"quoted name not closed", `"ann ` + public, "is no kind of key"},
		{"no name", public, ""},
		{"no key", "ann", "is no kind of key"},
		{"key cut off", "ann " + public[:40], ""},
		{"another kind", "ann " + strings.Replace(public, "ssh-ed25519", "ssh-rsa", 1), "is called"},
		{"nobody", "# nobody\n", "names no signer"},
		{"empty", "", "names no signer"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := verify(t, test.allowed, sig, message)
			wrong := test.name == "no name" || test.name == "key cut off" // each finds something else to blame
			if test.wantErr == "" && !wrong && err != nil || (test.wantErr != "" || wrong) && (err == nil || !strings.Contains(err.Error(), test.wantErr)) {
				t.Errorf("Verify = %v; want an error with %q", err, test.wantErr)
			}
			if ok := judged(t, test.allowed+"\n", "ann", sig, message); ok != (err == nil) {
				t.Errorf("Verify = %v, ssh-keygen takes it: %v", err, ok)
			}
		})
	}
}

func TestErrorsNameTheLine(t *testing.T) {
	_, err := ParseSigners("keys/allowed_signers", []byte("# one\n\nann rsa AAAA\n"))
	if err == nil || !strings.HasPrefix(err.Error(), "keys/allowed_signers:3: ") {
		t.Errorf("ParseSigners = %v; want the line", err)
	}
}

func TestVerifyEnds(t *testing.T) {
	key, public := keygen(t, "-t", "ed25519")
	sig := sign(t, key, message, "-n", "file")
	s, err := ParseSigners("allowed_signers", []byte("ann "+public))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	stopped := errors.New("stopped")
	cancel(stopped)
	if _, err := s.Verify(ctx, sig, strings.NewReader(message)); !errors.Is(err, stopped) {
		t.Errorf("Verify = %v; want %v", err, stopped)
	}
}

// The first error of a file that is read stays, whatever later reads return.
func TestFirstErrorStays(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	first := errors.New("first")
	r := &errorReader{Reader: localfile.WithContext(ctx, iotest.ErrReader(first), nil)}
	_, _ = io.ReadAll(r)
	cancel()
	_, _ = io.ReadAll(r)
	if !errors.Is(r.err, first) {
		t.Errorf("err = %v; want %v", r.err, first)
	}
}

// A key of minisign is refused with what its owner can do, not as a bad line of allowed signers.
func TestMinisignKeyRefused(t *testing.T) {
	_, err := ParseSigners("key.pub", []byte("untrusted comment: minisign public key 3CFA\nRWQ\n"))
	if err == nil || !strings.HasPrefix(err.Error(), "key.pub: ") || !strings.Contains(err.Error(), "\nnext: minisign -V -p key.pub -m IMAGE") {
		t.Errorf("ParseSigners = %v; want minisign's own command", err)
	}
}

const fuzzKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"

// No fuzzer's input is signed by a key whose private half is lost.
func FuzzVerify(f *testing.F) {
	var w wire
	w.Version, w.Namespace, w.Hash = 1, "file", "sha512"
	key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(fuzzKey))
	if err != nil {
		f.Fatal(err)
	}
	w.Key = key.Marshal()
	w.Signature = ssh.Marshal(ssh.Signature{Format: "ssh-ed25519", Blob: make([]byte, 64)})
	f.Add(armor(append([]byte(magic), ssh.Marshal(w)...)))
	s, err := ParseSigners("allowed", []byte("ann "+fuzzKey))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, sig []byte) {
		if who, err := s.Verify(t.Context(), sig, strings.NewReader(message)); err == nil {
			t.Errorf("Verify(%q) = %q", sig, who)
		}
	})
}

func FuzzAllowedSigners(f *testing.F) {
	for _, s := range []string{"ann " + fuzzKey, `"a b" namespaces="file",valid-after="20200101Z" ` + fuzzKey, "* cert-authority " + fuzzKey + " x", "untrusted comment: x\nRWQ=\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseSigners("allowed", []byte(text))
		if err != nil {
			if !strings.HasPrefix(err.Error(), "allowed:") {
				t.Errorf("ParseSigners(%q) = %v; want the file first", text, err)
			}
			return
		}
		for _, e := range s.entries {
			if e.key == nil || e.principals == "" || e.line == 0 {
				t.Errorf("ParseSigners(%q): %+v", text, e)
			}
			_, _ = s.findSigner(e.key, time.Unix(1<<31, 0))
		}
	})
}

// Signatures come from outside, and errors about them end on a terminal.
func TestErrorsPaintNothing(t *testing.T) {
	key, public := keygen(t, "-t", "ed25519")
	signer, err := ssh.ParsePrivateKey(readText(t, key))
	if err != nil {
		t.Fatal(err)
	}
	const escape = "x\x1b[2J"
	long := escape + strings.Repeat("y", 10_000)
	for name, change := range map[string]func(*wire){
		"key":       func(w *wire) { w.Key = ssh.Marshal(struct{ Kind, Rest string }{long, ""}) },
		"signature": func(w *wire) { w.Signature = ssh.Marshal(ssh.Signature{Format: long, Blob: make([]byte, 64)}) },
		"namespace": func(w *wire) { w.Namespace = long },
		"digest":    func(w *wire) { w.Hash = long },
	} {
		_, err := verify(t, "ann "+public, made(t, signer, "file", "sha512", change), message)
		if err == nil || strings.Contains(err.Error(), "\x1b") || len(err.Error()) > 300 {
			t.Errorf("%s: Verify = %.400q; want a short error without what a terminal obeys", name, err)
		}
	}
	for _, line := range []string{escape + "=1 " + public, "ssh-" + escape + " AAAA", "ann ssh-" + escape + " " + strings.Fields(public)[1]} {
		if _, err := ParseSigners("allowed", []byte("ann "+line)); err == nil || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("ParseSigners(%q) = %q", line, err)
		}
	}
}

// DSA signs SHA-1, which can be forged as with RSA; newer ssh-keygens do not know it.
func TestDSAIsRefused(t *testing.T) {
	key, public := keygen(t, "-t", "ed25519")
	signer, err := ssh.ParsePrivateKey(readText(t, key))
	if err != nil {
		t.Fatal(err)
	}
	p, q := new(big.Int).Lsh(big.NewInt(1), 1023), new(big.Int).Lsh(big.NewInt(1), 159)
	old := ssh.Marshal(struct {
		Kind       string
		P, Q, G, Y *big.Int
	}{"ssh-dss", p, q, big.NewInt(5), big.NewInt(3)})
	allowed := "ann " + public + "\nold ssh-dss " + base64.StdEncoding.EncodeToString(old)
	sig := made(t, signer, "file", "sha512", func(w *wire) { w.Key = old })
	if _, err := verify(t, allowed, sig, message); err == nil || !strings.Contains(err.Error(), "a DSA key") {
		t.Errorf("Verify = %v; want it refused", err)
	}
	if _, err := verify(t, allowed, made(t, signer, "file", "sha512", nil), message); err != nil {
		t.Errorf("beside an old key in the list, Verify = %v", err)
	}
}
