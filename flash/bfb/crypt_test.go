package bfb

import (
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"
)

// TestHashPassword compares with openssl, whose hashes are those of crypt(3).
func TestHashPassword(t *testing.T) {
	openssl, err := exec.LookPath("openssl")
	if err != nil {
		t.Skip("openssl is missing (Debian package openssl)")
	}
	random := rand.New(rand.NewPCG(1, 2))
	for n := range 24 {
		password := make([]byte, 1+n*6)
		for i := range password {
			password[i] = byte(1 + random.IntN(255))
			if password[i] == '\n' {
				password[i] = 'x'
			}
		}
		salt := make([]byte, 1+random.IntN(saltBytes))
		for i := range salt {
			salt[i] = alphabet[random.IntN(64)]
		}
		cmd := exec.Command(openssl, "passwd", "-6", "-salt", string(salt), "-stdin")
		cmd.Stdin = strings.NewReader(string(password) + "\n")
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		if got, want := sha512crypt(password, salt), strings.TrimSpace(string(out)); got != want {
			t.Errorf("hash of %q with %s is %s; want %s", password, salt, got, want)
		}
	}
}

func TestHashPasswordSalts(t *testing.T) {
	a, b := HashPassword([]byte("the same")), HashPassword([]byte("the same"))
	if a == b || !hashed().MatchString(a) {
		t.Errorf("hashes are %s and %s; want two that differ, of crypt's form", a, b)
	}
}
