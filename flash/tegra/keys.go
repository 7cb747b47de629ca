package tegra

import (
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// keyBytes is the size limit for a key file.
const keyBytes = 64 << 10

// Keys are the paths of the keys that sign and encrypt boot files for a fused board.
type Keys struct {
	PKC string // a private key, PEM
	SBK string // a key of AES, in words of hex
}

// OpenKeys checks the key files that a user names, and returns their absolute paths, or "" for "".
// It refuses an SBK without a PKC. NVIDIA's tools would report a bad key only during a flash.
func OpenKeys(pkc, sbk string) (k Keys, err error) {
	if sbk != "" && pkc == "" {
		return Keys{}, errors.New("--sbk encrypts boot files that are also signed: give the signing key by --pkc")
	}
	for _, one := range []struct {
		name, file string
		to         *string
		check      func([]byte) error
	}{{"--pkc", pkc, &k.PKC, checkPKC}, {"--sbk", sbk, &k.SBK, checkSBK}} {
		if one.file == "" {
			continue
		}
		if *one.to, err = openKey(one.file, one.check); err != nil {
			return Keys{}, fmt.Errorf("%s: %w", one.name, err)
		}
	}
	return k, nil
}

// openKey returns the absolute path of a key file that check accepts. It refuses a path with blanks
// or characters that a shell expands, because NVIDIA's scripts do not quote it.
func openKey(file string, check func([]byte) error) (string, error) {
	path, err := filepath.Abs(file)
	if err != nil {
		return "", err
	}
	if strings.ContainsAny(path, " \t\n'\"$`\\*?[];&|<>(){}~#!") {
		return "", fmt.Errorf("%q: NVIDIA's scripts do not work with such a name; copy the key to another", path)
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", localfile.ExplainUnreadable(path, err)
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is no file", path)
	}
	data, err := localfile.Read(path, keyBytes)
	if err != nil {
		return "", err
	}
	if err := check(data); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return path, nil
}

// checkPKC returns an error unless data is a private key as PEM, without a passphrase.
func checkPKC(data []byte) error {
	block, rest := pem.Decode(data)
	if block != nil && block.Type == "EC PARAMETERS" { // openssl ecparam writes them before the key
		block, _ = pem.Decode(rest)
	}
	if block == nil {
		return errors.New("it is no key in PEM's form (-----BEGIN ...)")
	}
	var err error
	switch _, encrypted := block.Headers["DEK-Info"]; {
	case encrypted || block.Type == "ENCRYPTED PRIVATE KEY":
		return errors.New("the key has a passphrase, for which the scripts do not ask; openssl pkey writes it without one")
	case block.Type == "RSA PRIVATE KEY":
		_, err = x509.ParsePKCS1PrivateKey(block.Bytes)
	case block.Type == "EC PRIVATE KEY":
		_, err = x509.ParseECPrivateKey(block.Bytes)
	case block.Type == "PRIVATE KEY":
		_, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	default:
		return fmt.Errorf("it holds a %s; a private key signs", plaintext.OneLine(strings.ToLower(block.Type)))
	}
	return err
}

// checkSBK accepts words of hex with 128 bits, for the older chips, or 256 bits, from Orin on.
func checkSBK(data []byte) error {
	digits := strings.Join(strings.Fields(strings.ReplaceAll(strings.ToLower(string(data)), "0x", "")), "")
	if _, err := hex.DecodeString(digits); err != nil || len(digits) != 32 && len(digits) != 64 {
		return errors.New("it is no key of 128 or 256 bits in words of hex, as 0x01234567 0x89abcdef and so on")
	}
	return nil
}

// flags returns the scripts' arguments for the keys.
func (k Keys) flags() (args []string) {
	if k.PKC != "" {
		args = append(args, "-u", k.PKC)
	}
	if k.SBK != "" {
		args = append(args, "-v", k.SBK)
	}
	return args
}

// CheckKeys refuses keys for a package signed at build time, whose scripts would ignore them.
func (p *Package) CheckKeys(k Keys) error {
	if k != (Keys{}) && p.isPresigned() {
		return errors.New("the package was signed when it was built (TEGRA_SIGNING_ARGS), and its scripts take no other keys: leave --pkc and --sbk out, or build it unsigned")
	}
	return nil
}
