package boardssh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"slipway/layers/localfile"
)

// maxOffered is how many keys Slipway offers. Most servers disconnect at the sixth (MaxAuthTries).
const maxOffered = 5

const maxKeyBytes = 1 << 20

// identity is a private or public key in a file that the user named.
type identity struct {
	file   string
	public ssh.PublicKey
	open   ssh.Signer // nil: the private key has a passphrase, or is not in the file
	locked bool       // it has a passphrase
}

// readIdentity reads a private key file. If the private key is missing, has a passphrase or is in a
// hardware token, it reads the public key, from file or file.pub. Without either, it is an error.
func readIdentity(file string) (identity, error) {
	id := identity{file: file}
	data, err := localfile.Read(file, maxKeyBytes)
	if errors.Is(err, os.ErrNotExist) {
		id.public, err = readPublic(file + ".pub")
		return id, err
	}
	if err != nil {
		return id, err
	}
	var locked *ssh.PassphraseMissingError
	switch id.open, err = ssh.ParsePrivateKey(data); {
	case err == nil:
		id.public = id.open.PublicKey()
	case errors.As(err, &locked):
		id.open, id.locked, id.public = nil, true, locked.PublicKey
		if id.public == nil { // an old form, which hides that too
			id.public, err = readPublic(file + ".pub")
			if err != nil {
				return id, fmt.Errorf("%s has a passphrase, and %[1]s.pub is missing; add it to the agent: ssh-add %[1]s", file)
			}
		}
	default:
		id.open = nil
		public, _ := readPublic(file)
		if id.public = public; public == nil {
			id.public, _ = readPublic(file + ".pub")
		}
		if id.public == nil || public == nil && !isHardware(id.public) {
			return id, fmt.Errorf("%s: %w", file, err)
		}
	}
	return id, nil
}

// readPublic reads a public key or an *ssh.Certificate from a file in the form of authorized_keys.
func readPublic(file string) (ssh.PublicKey, error) {
	data, err := localfile.Read(file, maxKeyBytes)
	if err != nil {
		return nil, err
	}
	key, _, _, _, err := ssh.ParseAuthorizedKey(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return key, nil
}

// isHardware reports whether a hardware token holds the key. Then only the agent can sign.
func isHardware(key ssh.PublicKey) bool { return strings.HasPrefix(key.Type(), "sk-") }

// missingHint says why a key is unusable whose private half is neither in a file nor in the agent.
func (id identity) missingHint() string {
	if isHardware(id.public) {
		return fmt.Sprintf("%s, a key of a hardware token; only the agent can use it: ssh-add %[1]s", id.file)
	}
	return fmt.Sprintf("%s, whose private half is neither here nor in the agent", id.file)
}

// readCertificate reads a user certificate that is valid now. Any other one is an error.
func readCertificate(file string) (*ssh.Certificate, error) {
	key, err := readPublic(file)
	if err != nil {
		return nil, err
	}
	cert, ok := key.(*ssh.Certificate)
	switch now := uint64(time.Now().Unix()); {
	case !ok || cert.CertType != ssh.UserCert:
		return nil, fmt.Errorf("%s is not a user's certificate", file)
	case now >= cert.ValidBefore:
		return nil, fmt.Errorf("%s expired at %s; have the key signed again", file, time.Unix(int64(cert.ValidBefore), 0).Format(time.RFC3339))
	case now < cert.ValidAfter:
		return nil, fmt.Errorf("%s is valid from %s; this machine's clock may be slow", file, time.Unix(int64(cert.ValidAfter), 0).Format(time.RFC3339))
	}
	return cert, nil
}

// readKeys reads the address's keys and certificates, and for each key the certificate
// FILE-cert.pub, if it exists. The errors of unusable files go into l.skipped.
func (l *login) readKeys() {
	certificates := slices.Clone(l.addr.Certificates)
	for _, file := range l.addr.Identities {
		id, err := readIdentity(file)
		if err != nil {
			l.skipped = append(l.skipped, err.Error())
			continue
		}
		l.identities = append(l.identities, id)
		if localfile.Exists(file + "-cert.pub") {
			certificates = append(certificates, file+"-cert.pub")
		}
	}
	for _, file := range certificates {
		cert, err := readCertificate(file)
		if err != nil {
			l.skipped = append(l.skipped, err.Error())
			continue
		}
		l.certificates = append(l.certificates, cert)
	}
}

// candidate is a key that could be offered.
type candidate struct {
	ssh.Signer
	name   string
	locked bool
}

// offerKeys returns the signers to log in with, at most maxOffered. Keys that the user named come
// before other keys of the agent (none with IdentitiesOnly), and a certificate before its key. Keys
// with a passphrase come last, so that nobody types one that is not needed. It sets l.left to the
// reasons for the others.
func (l *login) offerKeys(inAgent []ssh.Signer) []ssh.Signer {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.left = nil
	var open, locked, rest []candidate
	for _, id := range l.identities {
		c, err := id.findSigner(inAgent)
		switch {
		case err != nil:
			l.left = append(l.left, err.Error())
		case c.locked:
			locked = append(locked, l.addCertificates(c)...)
		default:
			open = append(open, l.addCertificates(c)...)
		}
	}
	for _, k := range inAgent {
		if !l.addr.IdentitiesOnly {
			rest = append(rest, l.addCertificates(candidate{Signer: k, name: agentName(k)})...)
		}
	}
	return l.chooseKeys(slices.Concat(open, locked, rest))
}

// findSigner returns a signer for the key: the private key in the file, the agent's, one unlocked
// earlier in this run, or a lockedKey that asks for the passphrase. Its error says why it has none.
func (id identity) findSigner(inAgent []ssh.Signer) (candidate, error) {
	c := candidate{Signer: id.open, name: id.file}
	i := slices.IndexFunc(inAgent, func(k ssh.Signer) bool { return sameKey(k.PublicKey(), id.public) })
	switch key, givenUp := unlocked.findKey(id.public); {
	case id.open != nil:
	case i >= 0:
		c.Signer = inAgent[i]
	case key != nil:
		c.Signer = key
	case givenUp:
		return c, fmt.Errorf("%s, whose passphrase was not given; add it to the agent: ssh-add %[1]s", id.file)
	case id.locked:
		c.Signer, c.locked = lockedKey{id.file, id.public}, true
	default:
		return c, errors.New(id.missingHint())
	}
	return c, nil
}

// addCertificates returns c, with the candidates for its certificates before it.
func (l *login) addCertificates(c candidate) []candidate {
	var list []candidate
	for _, cert := range l.certificates {
		if !sameKey(cert.Key, c.PublicKey()) {
			continue
		}
		if signer, err := ssh.NewCertSigner(cert, c.Signer); err == nil {
			list = append(list, candidate{signer, "the certificate of " + c.name, c.locked})
		}
	}
	return append(list, c)
}

// chooseKeys takes the first maxOffered keys of all, without repeats, and sorts those with a
// passphrase last. It adds a line to l.left for each other key.
func (l *login) chooseKeys(all []candidate) []ssh.Signer {
	var chosen []candidate
	for _, c := range all {
		same := func(o candidate) bool { return sameKey(o.PublicKey(), c.PublicKey()) }
		switch {
		case slices.ContainsFunc(chosen, same):
		case len(chosen) == maxOffered:
			l.left = append(l.left, fmt.Sprintf("%s: servers hang up after a few keys, and %d were offered before it; name the right one by IdentityFile, with IdentitiesOnly yes", c.name, maxOffered))
		default:
			chosen = append(chosen, c)
		}
	}
	var signers []ssh.Signer
	for _, locked := range []bool{false, true} {
		for _, c := range chosen {
			if c.locked == locked {
				signers = append(signers, offeredKey{c.Signer, c.name})
			}
		}
	}
	return signers
}

// agentName names a key of the agent for messages, by its comment, else by type and fingerprint.
func agentName(k ssh.Signer) string {
	if key, ok := k.PublicKey().(*agent.Key); ok && key.Comment != "" {
		return "the agent's " + Printable(key.Comment)
	}
	return "the agent's " + describeKey(k.PublicKey())
}

// errUnsigned ends a login, as with a hardware token that nobody touched.
var errUnsigned = errors.New("did not sign")

// offeredKey is a key that a login offers to the server. Its errors name it.
type offeredKey struct {
	ssh.Signer
	name string
}

// SignWithAlgorithm signs data with the key. Its error is an errUnsigned with the key's name. A key
// that is no ssh.AlgorithmSigner ignores algorithm.
func (o offeredKey) SignWithAlgorithm(rand io.Reader, data []byte, algorithm string) (sig *ssh.Signature, err error) {
	if s, ok := o.Signer.(ssh.AlgorithmSigner); ok {
		sig, err = s.SignWithAlgorithm(rand, data, algorithm)
	} else {
		sig, err = o.Sign(rand, data)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %w: %w", o.name, errUnsigned, err)
	}
	return sig, nil
}

// lockedKey is a key with a passphrase. Its Sign fails with a question for the passphrase, so a
// person is asked only if a server accepts the key.
type lockedKey struct {
	file   string
	public ssh.PublicKey
}

func (k lockedKey) PublicKey() ssh.PublicKey { return k.public }

func (k lockedKey) Sign(io.Reader, []byte) (*ssh.Signature, error) {
	return nil, &question{ask: k.askPassphrase, next: "ssh-add " + k.file, refusal: fmt.Errorf("%s would be taken, but has a passphrase; add it to the agent: ssh-add %[1]s", k.file)}
}

func (k lockedKey) SignWithAlgorithm(rand io.Reader, data []byte, _ string) (*ssh.Signature, error) {
	return k.Sign(rand, data)
}

// askPassphrase asks for the passphrase and stores the unlocked key for all boards of this run.
// After an empty answer or maxAsked wrong ones, it returns nil, and the run does not use the key.
// It does not ask again for a key that was unlocked or given up.
func (k lockedKey) askPassphrase(ctx context.Context, t *terminal) error {
	if key, givenUp := unlocked.findKey(k.public); key != nil || givenUp {
		return nil
	}
	data, err := localfile.Read(k.file, maxKeyBytes)
	if err != nil {
		return err
	}
	prompt := fmt.Sprintf("Passphrase for %s (empty: continue without it): ", k.file)
	for range maxAsked {
		phrase, err := t.readAnswer(ctx, prompt, true)
		if err != nil {
			return err
		}
		if phrase == "" {
			break
		}
		if key, err := ssh.ParsePrivateKeyWithPassphrase(data, []byte(phrase)); err == nil {
			unlocked.storeKey(k.public, key)
			return nil
		}
		fmt.Fprintln(t.out, "That is not it.")
	}
	unlocked.storeKey(k.public, nil)
	return nil
}

// keyCache has the keys unlocked in this run, in memory only; nil if nobody gave the passphrase.
type keyCache struct{ byPublic sync.Map }

var unlocked keyCache

// findKey returns the unlocked key, or nil. givenUp: a person was asked and gave no passphrase.
func (v *keyCache) findKey(public ssh.PublicKey) (key ssh.Signer, givenUp bool) {
	stored, asked := v.byPublic.Load(string(public.Marshal()))
	key, _ = stored.(ssh.Signer)
	return key, asked && key == nil
}

// storeKey stores an unlocked key. A nil key means that nobody gave its passphrase.
func (v *keyCache) storeKey(public ssh.PublicKey, key ssh.Signer) {
	v.byPublic.Store(string(public.Marshal()), key)
}
