package bus

import (
	"fmt"
	"net/url"
	"strings"
)

// Token returns a name as one token of a subject: bytes other than letters, digits, - and _ become
// =HH.
func Token(name string) string {
	var b strings.Builder
	for _, c := range []byte(name) {
		if isPlain(c) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "=%02X", c)
		}
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
