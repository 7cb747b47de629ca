package plaintext

import "strings"

// Quote quotes a word for a shell command that a person sees. Plain words get no quotes.
func Quote(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("@%+:,./_-=", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return SingleQuote(s)
}

// SingleQuote returns s in single quotes, as one word for a shell.
func SingleQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
