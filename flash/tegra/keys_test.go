package tegra

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestOpenKeys(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err8 := x509.MarshalPKCS8PrivateKey(private)
	ec, errEC := x509.MarshalECPrivateKey(curve)
	public, errPublic := x509.MarshalPKIXPublicKey(&private.PublicKey)
	if err8 != nil || errEC != nil || errPublic != nil {
		t.Fatal(err8, errEC, errPublic)
	}
	asPEM := func(kind string, data []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data}) }
	rsaKey := write("rsa.pem", asPEM("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(private)))
	curveKey := write("ecparam.pem", slices.Concat(asPEM("EC PARAMETERS", []byte("\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07")), asPEM("EC PRIVATE KEY", ec)))
	eight := write("sbk.hex", []byte("0x01234567 0x89abcdef 0x01234567 0x89abcdef\n0x01234567 0x89abcdef 0x01234567 0x89ABCDEF\n"))
	four := write("sbk4.hex", []byte("0123456789abcdef0123456789abcdef"))
	for _, pair := range [][2]string{{"", ""}, {rsaKey, ""}, {rsaKey, eight}, {write("p8.pem", asPEM("PRIVATE KEY", pkcs8)), four}, {write("ec.pem", asPEM("EC PRIVATE KEY", ec)), ""}, {curveKey, ""}} {
		k, err := OpenKeys(pair[0], pair[1])
		if err != nil || k != (Keys{pair[0], pair[1]}) {
			t.Errorf("OpenKeys(%q) = %v, %v", pair, k, err)
		}
	}
	for _, test := range []struct{ pkc, sbk, want string }{
		{"", eight, "give the signing key by --pkc"},
		{write("public.pem", asPEM("PUBLIC KEY", public)), "", "it holds a public key"},
		{write("locked.pem", asPEM("ENCRYPTED PRIVATE KEY", pkcs8)), "", "passphrase"},
		{write("cut.pem", asPEM("PRIVATE KEY", pkcs8[:100])), "", "cut.pem: "},
		{eight, "", "PEM"},
		{dir, "", "is no file"},
		{filepath.Join(dir, "missing"), "", "missing"},
		{write("my key.pem", asPEM("PRIVATE KEY", pkcs8)), "", "such a name"},
		{write("long.pem", make([]byte, keyBytes+1)), "", "64 KiB"},
		{rsaKey, write("sbk5.hex", []byte("0x01234567 0x89abcdef 0x01234567 0x89abcdef 0x0")), "128 or 256 bits"},
		{rsaKey, rsaKey, "--sbk: "},
	} {
		if k, err := OpenKeys(test.pkc, test.sbk); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("OpenKeys(%q, %q) = %v, %v; want an error with %q", test.pkc, test.sbk, k, err, test.want)
		}
	}
}

// A package that is signed already would be flashed without the keys, unnoticed.
func TestSignedPackageAcceptsNoKeys(t *testing.T) {
	p := open(t, orin())
	if err := p.CheckKeys(Keys{PKC: "/keys/pkc.pem"}); err != nil {
		t.Errorf("a package that is not signed: %v", err)
	}
	if err := os.WriteFile(filepath.Join(p.Dir, ".presigning-vars"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := p.CheckKeys(Keys{PKC: "/keys/pkc.pem"}); err == nil || !strings.Contains(err.Error(), "take no other keys") {
		t.Errorf("a signed package: %v", err)
	}
	if err := p.CheckKeys(Keys{}); err != nil {
		t.Errorf("a signed package without keys: %v", err)
	}
}

func TestArgv(t *testing.T) {
	p := open(t, nano())
	want := []string{"sh", "./doflash.sh", "--usb-instance", "1-2", "-u", "/k/pkc.pem"}
	if got := p.Argv("1-2", Keys{PKC: "/k/pkc.pem"}); !slices.Equal(got, want) {
		t.Errorf("Argv = %q; want %q", got, want)
	}
}
