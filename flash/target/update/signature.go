package update

import (
	"bufio"
	"bytes"
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"fmt"
	"math/big"
	"strings"

	"golang.org/x/crypto/cryptobyte"
	der "golang.org/x/crypto/cryptobyte/asn1"

	"slipway/layers/plaintext"
)

// signature is the content of a CMS message (RFC 5652), not verified: who claims to have
// signed, and the signed content if the message holds it.
type signature struct {
	signer  string
	content []byte
}

var (
	signedData    = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 7, 2}
	envelopedData = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 7, 3}
)

var (
	errNotSigned = errors.New("it is no CMS message of signed data")
	tag0         = der.Tag(0).ContextSpecific().Constructed()
	tag1         = der.Tag(1).ContextSpecific().Constructed()
)

func parseSignature(message []byte) (signature, error) {
	outer := cryptobyte.String(message)
	var info, body, data cryptobyte.String
	var kind asn1.ObjectIdentifier
	if !outer.ReadASN1(&info, der.SEQUENCE) || !info.ReadASN1ObjectIdentifier(&kind) || !info.ReadASN1(&body, tag0) {
		return signature{}, errNotSigned
	}
	if kind.Equal(envelopedData) {
		return signature{}, errors.New("the bundle is encrypted; such bundles are not supported, as nothing of them can be told before they are installed: install it on the board with rauc itself")
	}
	var version int
	var algorithms, encapsulated, certificates, signers cryptobyte.String
	var hasCertificates bool
	if !kind.Equal(signedData) || !body.ReadASN1(&data, der.SEQUENCE) || !data.ReadASN1Integer(&version) ||
		!data.ReadASN1(&algorithms, der.SET) || !data.ReadASN1(&encapsulated, der.SEQUENCE) ||
		!data.ReadOptionalASN1(&certificates, &hasCertificates, tag0) || !data.SkipOptionalASN1(tag1) ||
		!data.ReadASN1(&signers, der.SET) {
		return signature{}, errNotSigned
	}
	content, ok := encapsulatedContent(encapsulated)
	if !ok {
		return signature{}, errNotSigned
	}
	name, err := signerOf(signers, certificates)
	return signature{signer: name, content: content}, err
}

// encapsulatedContent returns the signed content, or nil if the message does not hold it.
func encapsulatedContent(s cryptobyte.String) ([]byte, bool) {
	var kind asn1.ObjectIdentifier
	var explicit, content cryptobyte.String
	var has bool
	if !s.ReadASN1ObjectIdentifier(&kind) || !s.ReadOptionalASN1(&explicit, &has, tag0) {
		return nil, false
	}
	if has && !explicit.ReadASN1(&content, der.OCTET_STRING) {
		return nil, false
	}
	return content, true
}

// signerOf returns the subject of the first signer's certificate. If the message
// does not hold it, signerOf describes it by its serial number.
func signerOf(signers, certificates cryptobyte.String) (string, error) {
	var signer, id, issuer cryptobyte.String
	var version int
	if !signers.ReadASN1(&signer, der.SEQUENCE) || !signer.ReadASN1Integer(&version) {
		return "", errors.New("nobody signed it")
	}
	serial := new(big.Int)
	if !signer.ReadASN1(&id, der.SEQUENCE) || !id.ReadASN1Element(&issuer, der.SEQUENCE) || !id.ReadASN1Integer(serial) {
		return "a certificate that is named by its key alone", nil
	}
	for !certificates.Empty() {
		var one cryptobyte.String
		if !certificates.ReadASN1Element(&one, der.SEQUENCE) {
			break
		}
		c, err := x509.ParseCertificate(one)
		if err == nil && c.SerialNumber.Cmp(serial) == 0 && bytes.Equal(c.RawIssuer, issuer) {
			return plaintext.OneLine(c.Subject.String()), nil
		}
	}
	return fmt.Sprintf("a certificate that is not in it, with the serial number %d", serial), nil
}

// manifest is the part of a RAUC manifest that Slipway uses.
type manifest struct{ compatible, version, format string }

// parseManifest reads a manifest, which is a key file.
func parseManifest(text []byte) (manifest, error) {
	m := manifest{format: "plain"}
	fields := map[string]*string{"update/compatible": &m.compatible, "update/version": &m.version, "bundle/format": &m.format}
	section := ""
	lines := bufio.NewScanner(bytes.NewReader(text))
	for number := 1; lines.Scan(); number++ {
		line := strings.TrimSpace(lines.Text())
		key, value, pair := strings.Cut(line, "=")
		switch {
		case line == "", strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "[") && strings.HasSuffix(line, "]"):
			section = line[1 : len(line)-1]
		case !pair || section == "":
			return m, fmt.Errorf("line %d is neither [section] nor key=value: %q", number, plaintext.OneLine(line))
		default:
			if field := fields[section+"/"+strings.TrimSpace(key)]; field != nil {
				*field = plaintext.OneLine(strings.TrimSpace(value))
			}
		}
	}
	if err := lines.Err(); err != nil {
		return m, err
	}
	if m.compatible == "" {
		return m, errors.New("it does not say which boards it is for ([update] compatible=)")
	}
	return m, nil
}
