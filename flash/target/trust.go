package target

import (
	"bytes"
	"cmp"
	"crypto/hmac"
	"crypto/sha1"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"

	"slipway/layers/localfile"
)

// maxTrustBytes is how long a file of known hosts may be.
const maxTrustBytes = 64 << 20

// pin is a line of a known_hosts file.
type pin struct {
	names  []string // patterns, or one hashed name
	key    ssh.PublicKey
	marker string // "", authority or revoked
	file   string
	line   int
}

const (
	authority = "cert-authority"
	revoked   = "revoked"
)

func (p pin) where() string { return fmt.Sprintf("%s:%d", p.file, p.line) }

// trust is what the known_hosts files say.
type trust struct {
	mu   sync.Mutex
	pins []pin
}

// readTrust reads the files. A line that cannot be read is left out, as by ssh; but
// not one that takes something back.
func readTrust(files []string) (*trust, error) {
	t := &trust{}
	for _, file := range files {
		data, err := localfile.Read(file, maxTrustBytes)
		if err != nil {
			return nil, fmt.Errorf("read known hosts: %w", err)
		}
		pins, err := parsePins(file, data)
		if err != nil {
			return nil, err
		}
		t.pins = append(t.pins, pins...)
	}
	return t, nil
}

func parsePins(file string, data []byte) ([]pin, error) {
	var pins []pin
	number := 0
	for line := range bytes.Lines(data) {
		number++
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		marker, names, key, _, _, err := ssh.ParseKnownHosts(line)
		known := marker == "" || marker == authority || marker == revoked
		switch {
		case err == nil && known:
			pins = append(pins, pin{names, key, marker, file, number})
		case bytes.HasPrefix(line, []byte("@"+revoked)):
			return nil, fmt.Errorf("%s:%d: a revoked key that cannot be read; fix or remove the line", file, number)
		}
	}
	return pins, nil
}

// covers says whether the line is about a host, which is named as known_hosts files
// name it: "host", or "[host]:port".
func (p pin) covers(host string) bool {
	host = strings.ToLower(host)
	found := false
	for _, name := range p.names {
		negated := strings.HasPrefix(name, "!")
		name = strings.TrimPrefix(name, "!")
		if !matches(name, host) {
			continue
		}
		if negated {
			return false
		}
		found = true
	}
	return found
}

func matches(name, host string) bool {
	if strings.HasPrefix(name, "|") {
		return hashMatches(name, host)
	}
	return glob(strings.ToLower(name), host)
}

// hashMatches is for "|1|salt|hash".
func hashMatches(name, host string) bool {
	parts := strings.Split(name, "|")
	if len(parts) != 4 || parts[1] != "1" {
		return false
	}
	salt, err1 := base64.StdEncoding.DecodeString(parts[2])
	hash, err2 := base64.StdEncoding.DecodeString(parts[3])
	return err1 == nil && err2 == nil && hmac.Equal(hash, hashHost(salt, host))
}

func hashHost(salt []byte, host string) []byte {
	mac := hmac.New(sha1.New, salt)
	mac.Write([]byte(host))
	return mac.Sum(nil)
}

// glob matches with * for any characters and ? for one. After a mismatch only the
// last * is tried again, so that no pattern takes long.
func glob(pattern, s string) bool {
	star, from := -1, 0
	p, i := 0, 0
	for i < len(s) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, from = p, i
			p++
		case p < len(pattern) && (pattern[p] == '?' || pattern[p] == s[i]):
			p++
			i++
		case star >= 0:
			from++
			p, i = star+1, from
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}

// hostNames are what known_hosts files call a machine. As with ssh, an alias stands
// for host and port together, and a line without a port serves every port for which
// there is none of its own.
func (a Address) hostNames() (own, anyPort string) {
	switch {
	case a.HostKeyAlias != "":
		return a.HostKeyAlias, a.HostKeyAlias
	case a.Port == 22:
		return a.Host, a.Host
	}
	return "[" + a.Host + "]:" + strconv.Itoa(a.Port), a.Host
}

// Name is what known_hosts files call the machine.
func (a Address) Name() string {
	name, _ := a.hostNames()
	return name
}

// principal is what a host's certificate has to be made out to.
func (a Address) principal() string {
	_, name := a.hostNames()
	return name
}

func sameKey(a, b ssh.PublicKey) bool { return bytes.Equal(a.Marshal(), b.Marshal()) }

func (t *trust) find(marker string, about func(pin) bool) []pin {
	t.mu.Lock()
	defer t.mu.Unlock()
	var found []pin
	for _, p := range t.pins {
		if p.marker == marker && about(p) {
			found = append(found, p)
		}
	}
	return found
}

// pinned are the lines with keys of the machine, first those for its own port.
func (t *trust) pinned(a Address) (own, anyPort []pin) {
	name, loose := a.hostNames()
	own = t.find("", func(p pin) bool { return p.covers(name) })
	if loose != name {
		anyPort = t.find("", func(p pin) bool { return p.covers(loose) })
	}
	return own, anyPort
}

// authorities are the lines that let somebody vouch for the machine.
func (t *trust) authorities(a Address) []pin {
	name, loose := a.hostNames()
	return t.find(authority, func(p pin) bool { return p.covers(name) || p.covers(loose) })
}

// authorities are those of HostCA, for this machine alone.
func (a Address) authorities() ([]pin, error) {
	name, loose := a.hostNames()
	var pins []pin
	number := 0
	for line := range strings.Lines(a.HostCA) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(line))
		if err != nil {
			return nil, fmt.Errorf("line %d of the keys that may sign the host key of %s is no public key", number, a)
		}
		pins = append(pins, pin{[]string{name, loose}, key, authority, "hostCA", number})
	}
	return pins, nil
}

// revocation is the line that takes one of the keys back, for whatever host.
func (t *trust) revocation(keys ...ssh.PublicKey) (pin, bool) {
	found := t.find(revoked, func(p pin) bool {
		return slices.ContainsFunc(keys, func(k ssh.PublicKey) bool { return sameKey(p.key, k) })
	})
	if len(found) == 0 {
		return pin{}, false
	}
	return found[0], true
}

func (t *trust) add(p pin) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pins = append(t.pins, p)
}

// certified are the algorithms of host keys with a certificate. An authority signs
// keys of any kind, so its own says nothing about them.
var certified = []string{
	ssh.CertAlgoED25519v01, ssh.CertAlgoECDSA256v01, ssh.CertAlgoECDSA384v01, ssh.CertAlgoECDSA521v01,
	ssh.CertAlgoRSASHA512v01, ssh.CertAlgoRSASHA256v01,
}

// plain are those of host keys without one.
var plain = []string{
	ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521,
	ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256,
}

// algorithms are those that the machine is asked to prove itself with. A server with
// several keys would otherwise show another one than that which is pinned. A dropbear
// of 2022 that has no RSA key crashes where RSA comes before the kind that it has.
func (t *trust) algorithms(a Address) []string {
	var list []string
	if len(t.authorities(a)) > 0 {
		list = append(list, certified...)
	}
	own, anyPort := t.pinned(a)
	var pinned []string
	for _, p := range slices.Concat(own, anyPort) {
		pinned = append(pinned, ofKind(p.key)...)
	}
	slices.SortStableFunc(pinned, func(a, b string) int { return cmp.Compare(rank(a), rank(b)) })
	list = append(list, pinned...)
	if len(own) == 0 {
		list = append(list, plain...)
	}
	return unique(list)
}

func ofKind(key ssh.PublicKey) []string {
	if key.Type() == ssh.KeyAlgoRSA {
		return []string{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256, ssh.KeyAlgoRSA}
	}
	return []string{key.Type()}
}

// rank is the place of an algorithm among the plain ones; others come last.
func rank(algorithm string) int {
	if i := slices.Index(plain, algorithm); i >= 0 {
		return i
	}
	return len(plain)
}

func unique(list []string) []string {
	var out []string
	for _, s := range list {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// Why a host key is not trusted.
var (
	errUnknown = errors.New("nothing is known of it")
	errChanged = errors.New("another key is pinned")
)

// check judges the key that a machine shows. The lines that speak against it come with
// errChanged.
func (t *trust) check(a Address, key ssh.PublicKey) ([]pin, error) {
	if cert, ok := key.(*ssh.Certificate); ok {
		if p, yes := t.revocation(cert.Key, cert.SignatureKey); yes {
			return nil, fmt.Errorf("that key, or who signed it, is revoked by %s", p.where())
		}
		if vouched, err := t.vouched(a, cert); vouched {
			return nil, err
		}
		key = cert.Key // as ssh does: an unknown authority says nothing
	}
	if p, yes := t.revocation(key); yes {
		return nil, fmt.Errorf("that key is revoked by %s", p.where())
	}
	own, anyPort := t.pinned(a)
	is := func(p pin) bool { return sameKey(p.key, key) }
	switch {
	case slices.ContainsFunc(own, is):
		return nil, nil
	case len(own) > 0:
		return own, errChanged
	case slices.ContainsFunc(anyPort, is):
		return nil, nil
	}
	return nil, errUnknown
}

// vouched is false where no known authority signed the certificate.
func (t *trust) vouched(a Address, cert *ssh.Certificate) (bool, error) {
	by := slices.IndexFunc(t.authorities(a), func(p pin) bool { return sameKey(p.key, cert.SignatureKey) })
	if by < 0 {
		return false, nil
	}
	name := a.principal()
	switch {
	case cert.CertType != ssh.HostCert:
		return true, errors.New("its certificate is not a host's")
	case cert.Signature == nil || cert.Signature.Format == ssh.KeyAlgoRSA:
		return true, errors.New("its certificate is signed with SHA-1")
	}
	// ssh takes patterns among the names, the library only names.
	if i := slices.IndexFunc(cert.ValidPrincipals, func(p string) bool { return glob(strings.ToLower(p), strings.ToLower(name)) }); i >= 0 {
		name = cert.ValidPrincipals[i]
	}
	if err := new(ssh.CertChecker).CheckCert(name, cert); err != nil {
		return true, fmt.Errorf("its certificate (%q, serial %d) does not do: %w", cert.KeyId, cert.Serial, err)
	}
	return true, nil
}
