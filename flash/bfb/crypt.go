package bfb

import (
	"bytes"
	"crypto/rand"
	"crypto/sha512"
)

// The DPU's system takes hashes of crypt(3) from a bf.cfg: SHA-512 with 5000 rounds, as
// "openssl passwd -6" makes them.
const (
	rounds    = 5000
	saltBytes = 16
	alphabet  = "./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)

// HashPassword hashes a password with a new random salt.
func HashPassword(password []byte) string {
	salt := make([]byte, saltBytes)
	rand.Read(salt)
	for i, b := range salt {
		salt[i] = alphabet[b%64]
	}
	return sha512crypt(password, salt)
}

func sha512crypt(password, salt []byte) string {
	digest := firstDigest(password, salt)
	p := repeatTo(sha512Sum(bytes.Repeat(password, len(password))), len(password))
	s := repeatTo(sha512Sum(bytes.Repeat(salt, 16+int(digest[0]))), len(salt))
	for i := range rounds {
		h := sha512.New()
		if i%2 == 1 {
			h.Write(p)
		} else {
			h.Write(digest)
		}
		if i%3 != 0 {
			h.Write(s)
		}
		if i%7 != 0 {
			h.Write(p)
		}
		if i%2 == 1 {
			h.Write(digest)
		} else {
			h.Write(p)
		}
		digest = h.Sum(nil)
	}
	return "$6$" + string(salt) + "$" + encodeDigest(digest)
}

// firstDigest mixes password and salt by the bits of the password's length.
func firstDigest(password, salt []byte) []byte {
	between := sha512Sum(password, salt, password)
	h := sha512.New()
	h.Write(password)
	h.Write(salt)
	h.Write(repeatTo(between, len(password)))
	for n := len(password); n > 0; n >>= 1 {
		if n&1 == 1 {
			h.Write(between)
		} else {
			h.Write(password)
		}
	}
	return h.Sum(nil)
}

func sha512Sum(parts ...[]byte) []byte {
	sum := sha512.Sum512(bytes.Join(parts, nil))
	return sum[:]
}

// repeatTo repeats b up to n bytes.
func repeatTo(b []byte, n int) []byte {
	return bytes.Repeat(b, n/len(b)+1)[:n]
}

// encodeDigest writes three bytes at a time as four letters, in crypt's own order.
func encodeDigest(digest []byte) string {
	var out []byte
	letters := func(v uint32, n int) {
		for range n {
			out = append(out, alphabet[v&0x3f])
			v >>= 6
		}
	}
	a, b, c := 0, 21, 42
	for range sha512.Size / 3 {
		letters(uint32(digest[a])<<16|uint32(digest[b])<<8|uint32(digest[c]), 4)
		a, b, c = b+1, c+1, a+1
	}
	letters(uint32(digest[63]), 2)
	return string(out)
}
