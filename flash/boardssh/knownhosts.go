package boardssh

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

func (p pin) position() string { return fmt.Sprintf("%s:%d", p.file, p.line) }

// knownHosts holds the lines of all known_hosts files.
type knownHosts struct {
	mu   sync.Mutex
	pins []pin
}

// readKnownHosts reads known_hosts files. As ssh does, it skips invalid lines. A missing file or an
// invalid @revoked line is an error.
func readKnownHosts(files []string) (*knownHosts, error) {
	t := &knownHosts{}
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

// readRecorded returns the keys that flashes recorded in file under exactly this name. It returns
// none for a missing file, a pattern, or "" as name or file. It ignores lines with patterns, hashed
// names, several names or markers.
func readRecorded(file, name string) ([]pin, error) {
	if file == "" || name == "" || strings.ContainsAny(name, "*?!,|@# \t") {
		return nil, nil
	}
	t, err := readKnownHosts(existingFiles([]string{file}))
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(t.pins, func(p pin) bool { return p.marker != "" || !slices.Equal(p.names, []string{name}) }), nil
}

// parsePins parses a known_hosts file. It skips invalid lines, but refuses an invalid @revoked one.
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

// coversHost reports whether the line applies to host, written "host" or "[host]:port". A matching
// negated pattern (!name) excludes the host.
func (p pin) coversHost(host string) bool {
	host = strings.ToLower(host)
	found := false
	for _, name := range p.names {
		negated := strings.HasPrefix(name, "!")
		name = strings.TrimPrefix(name, "!")
		if !matchesName(name, host) {
			continue
		}
		if negated {
			return false
		}
		found = true
	}
	return found
}

// matchesName reports whether a name in known_hosts, a pattern or hashed, covers host.
func matchesName(name, host string) bool {
	if strings.HasPrefix(name, "|") {
		return hashMatches(name, host)
	}
	return matchesPattern(strings.ToLower(name), host)
}

// hashMatches reports whether a hashed name, "|1|salt|hash", is that of host.
func hashMatches(name, host string) bool {
	parts := strings.Split(name, "|")
	if len(parts) != 4 || parts[1] != "1" {
		return false
	}
	salt, err1 := base64.StdEncoding.DecodeString(parts[2])
	hash, err2 := base64.StdEncoding.DecodeString(parts[3])
	mac := hmac.New(sha1.New, salt)
	mac.Write([]byte(host))
	return err1 == nil && err2 == nil && hmac.Equal(hash, mac.Sum(nil))
}

// matchesPattern reports whether s matches pattern, in which * matches any characters and ? any
// one. After a mismatch it retries only the last *, so the time stays short for any pattern.
func matchesPattern(pattern, s string) bool {
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

// hostNames returns the machine's names in known_hosts: own has a port other than 22, anyPort has
// none. As with ssh, an alias replaces both, and a line without port applies to ports without their
// own line.
func (a Address) hostNames() (own, anyPort string) {
	switch {
	case a.HostKeyAlias != "":
		return a.HostKeyAlias, a.HostKeyAlias
	case a.Port == 22:
		return a.Host, a.Host
	}
	return "[" + a.Host + "]:" + strconv.Itoa(a.Port), a.Host
}

// Name returns the name of the machine in known_hosts files: alias, host, or [host]:port.
func (a Address) Name() string {
	name, _ := a.hostNames()
	return name
}

func sameKey(a, b ssh.PublicKey) bool { return bytes.Equal(a.Marshal(), b.Marshal()) }

// findPins returns the lines with this marker ("": without one) for which matches returns true.
func (t *knownHosts) findPins(marker string, matches func(pin) bool) []pin {
	t.mu.Lock()
	defer t.mu.Unlock()
	var found []pin
	for _, p := range t.pins {
		if p.marker == marker && matches(p) {
			found = append(found, p)
		}
	}
	return found
}

// pinsOf returns the lines with keys of the machine: own for its port, and anyPort for any port. If
// it has only one name, for an alias or port 22, anyPort is empty.
func (t *knownHosts) pinsOf(a Address) (own, anyPort []pin) {
	name, loose := a.hostNames()
	own = t.findPins("", func(p pin) bool { return p.coversHost(name) })
	if loose != name {
		anyPort = t.findPins("", func(p pin) bool { return p.coversHost(loose) })
	}
	return own, anyPort
}

// authoritiesOf returns the @cert-authority lines that apply to the machine.
func (t *knownHosts) authoritiesOf(a Address) []pin {
	name, loose := a.hostNames()
	return t.findPins(authority, func(p pin) bool { return p.coversHost(name) || p.coversHost(loose) })
}

// parseHostCA parses the public keys in HostCA into @cert-authority lines for this machine only.
func (a Address) parseHostCA() ([]pin, error) {
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

// findRevoked returns the first @revoked line that has one of the keys, for any host.
func (t *knownHosts) findRevoked(keys ...ssh.PublicKey) (pin, bool) {
	found := t.findPins(revoked, func(p pin) bool {
		return slices.ContainsFunc(keys, func(k ssh.PublicKey) bool { return sameKey(p.key, k) })
	})
	if len(found) == 0 {
		return pin{}, false
	}
	return found[0], true
}

// addPin adds a line in memory, not to its file.
func (t *knownHosts) addPin(p pin) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pins = append(t.pins, p)
}

// certificateAlgorithms are the algorithms of host certificates. An authority signs keys of any
// kind, so its own kind says nothing about them.
var certificateAlgorithms = []string{
	ssh.CertAlgoED25519v01, ssh.CertAlgoECDSA256v01, ssh.CertAlgoECDSA384v01, ssh.CertAlgoECDSA521v01,
	ssh.CertAlgoRSASHA512v01, ssh.CertAlgoRSASHA256v01,
}

// plainAlgorithms are the algorithms of host keys without a certificate.
var plainAlgorithms = []string{
	ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521,
	ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256,
}

// hostKeyAlgorithms returns the host key algorithms to request from the machine: those of
// certificates if an authority is known for it, then those of its pinned keys, and then all others
// if no key is pinned for its port. So a server with several keys shows the pinned one. RSA is last
// in each group: a dropbear of 2022 without an RSA key crashes if RSA comes before its own kind.
func (t *knownHosts) hostKeyAlgorithms(a Address) []string {
	var list []string
	if len(t.authoritiesOf(a)) > 0 {
		list = append(list, certificateAlgorithms...)
	}
	own, anyPort := t.pinsOf(a)
	var pinned []string
	for _, p := range slices.Concat(own, anyPort) {
		pinned = append(pinned, algorithmsOf(p.key)...)
	}
	slices.SortFunc(pinned, func(a, b string) int { return cmp.Or(cmp.Compare(rankOf(a), rankOf(b)), strings.Compare(a, b)) })
	list = append(list, slices.Compact(pinned)...)
	for _, name := range plainAlgorithms {
		if len(own) == 0 && !slices.Contains(list, name) {
			list = append(list, name)
		}
	}
	return list
}

// algorithmsOf returns the signature algorithms of a host key: its type, or three for RSA.
func algorithmsOf(key ssh.PublicKey) []string {
	if key.Type() == ssh.KeyAlgoRSA {
		return []string{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256, ssh.KeyAlgoRSA}
	}
	return []string{key.Type()}
}

// rankOf returns the index of an algorithm in plainAlgorithms; others rank last.
func rankOf(algorithm string) int {
	if i := slices.Index(plainAlgorithms, algorithm); i >= 0 {
		return i
	}
	return len(plainAlgorithms)
}

// Why a host key is not trusted.
var (
	errUnknown = errors.New("nothing is known of it")
	errChanged = errors.New("another key is pinned")
)

// checkKey checks the key or certificate that a machine shows. It returns nil, errUnknown,
// errChanged with the lines that contradict the key, or another reason, such as a revoked key. It
// checks a certificate of an unknown authority as a plain key.
func (t *knownHosts) checkKey(a Address, key ssh.PublicKey) ([]pin, error) {
	if cert, ok := key.(*ssh.Certificate); ok {
		if p, yes := t.findRevoked(cert.Key, cert.SignatureKey); yes {
			return nil, fmt.Errorf("that key, or who signed it, is revoked by %s", p.position())
		}
		if vouched, err := t.checkCertificate(a, cert); vouched {
			return nil, err
		}
		key = cert.Key // as ssh does: an unknown authority says nothing
	}
	if p, yes := t.findRevoked(key); yes {
		return nil, fmt.Errorf("that key is revoked by %s", p.position())
	}
	own, anyPort := t.pinsOf(a)
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

// checkCertificate checks a host certificate against the machine's name, time and signature
// algorithm. It returns false if no known authority signed the certificate.
func (t *knownHosts) checkCertificate(a Address, cert *ssh.Certificate) (bool, error) {
	by := slices.IndexFunc(t.authoritiesOf(a), func(p pin) bool { return sameKey(p.key, cert.SignatureKey) })
	if by < 0 {
		return false, nil
	}
	_, name := a.hostNames() // certificates name no ports
	switch {
	case cert.CertType != ssh.HostCert:
		return true, errors.New("its certificate is not a host's")
	case cert.Signature == nil || cert.Signature.Format == ssh.KeyAlgoRSA:
		return true, errors.New("its certificate is signed with SHA-1")
	}
	// ssh takes patterns among the names, the library only names.
	if i := slices.IndexFunc(cert.ValidPrincipals, func(p string) bool { return matchesPattern(strings.ToLower(p), strings.ToLower(name)) }); i >= 0 {
		name = cert.ValidPrincipals[i]
	}
	if err := new(ssh.CertChecker).CheckCert(name, cert); err != nil {
		return true, fmt.Errorf("its certificate (%q, serial %d) does not do: %w", cert.KeyId, cert.Serial, err)
	}
	return true, nil
}
