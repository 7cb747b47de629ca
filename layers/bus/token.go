package bus

import (
	"crypto/sha256"
	"fmt"
	"net/url"
	"strings"
)

// maxToken is how long a token may be. The server closes a connection that sends a longer line than
// 4 KiB, also if the hub sends it for somebody who asked for such a name.
const maxToken = 800

// Token returns a name as one token of a subject: bytes other than letters, digits, - and _ become
// =HH. A name that is too long becomes a token of its digest. No board, person or table has such a name.
func Token(name string) string {
	var b strings.Builder
	for _, c := range []byte(name) {
		if isPlain(c) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "=%02X", c)
		}
	}
	if b.Len() > maxToken {
		return fmt.Sprintf("=long-%x", sha256.Sum256([]byte(name)))
	}
	return b.String()
}

func isPlain(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_'
}

// Key joins names to a key or a subject, each as one token.
func Key(names ...string) string {
	tokens := make([]string, len(names))
	for i, name := range names {
		tokens[i] = Token(name)
	}
	return strings.Join(tokens, ".")
}

// Name is the inverse of Token. It returns what is no token as it is.
func Name(token string) string {
	name, err := url.PathUnescape(strings.ReplaceAll(token, "=", "%"))
	if err != nil || Token(name) != token {
		return token
	}
	return name
}
