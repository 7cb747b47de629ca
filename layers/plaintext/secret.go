package plaintext

import (
	"net/url"
	"slices"
	"strings"
)

const hidden = "[hidden]"

var (
	scheme    = Regexp(`(?i)[a-z][a-z0-9+.-]*://`)
	encoded   = Regexp(`(?i)(%3A%2F%2F)[^\s/&?"']*%40`)
	parameter = Regexp(`([?&;]|\\u0026)([^=&;?\s"'<>]{1,64})=([^&\s"'<>\\]*)`)
	secret    = Regexp(`(?i)^(.*[_.-])?(token|secret|password|passwd|pass|pwd|sig|signature|api[_-]?key|accesskey(id)?|key|credentials?)$`)
	header    = Regexp(`(?i)\b((?:proxy-)?authorization|(?:private|job|deploy)-token|x-(?:auth-token|api-key|vault-token|registry-auth)|(?:set-)?cookie)(["']?\s*[:=]\s*["']?)[^\r\n"'<\\]+`)
	bearer    = Regexp(`(?i)\b(bearer\s+)([\w+/=.~-]*[0-9][\w+/=.~-]*|[\w+/=.~-]{16,})`)
	token     = Regexp(`\b(gh[opsur]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{20,})`)
	login     = Regexp("(^|[\\s\"'`(=,])([A-Za-z_][\\w.-]*):([^\\s/\"'`,]+)@([\\w.-]+|\\[)")
	privKey   = Regexp(`-----BEGIN [A-Z0-9 ]*PRIVATE KEY( BLOCK)?-----([^"]*?-----END [A-Z0-9 ]*PRIVATE KEY( BLOCK)?-----|[^"]*)`)
	keysEnd   = Regexp(`[^"]*-----END [A-Z0-9 ]*PRIVATE KEY( BLOCK)?-----`)
)

// HideSecrets returns a text without secrets: logins and tokens in URLs, headers of requests, known
// tokens and private keys. Printed text ends in a pipeline's log. User names of SSH stay.
func HideSecrets(s string) string {
	low := strings.ToLower(s)
	has := func(any ...string) bool {
		return slices.ContainsFunc(any, func(part string) bool { return strings.Contains(low, part) })
	}
	if has("private key") {
		s = keysEnd().ReplaceAllString(privKey().ReplaceAllString(s, hidden), hidden)
	}
	if has("://") {
		s = hideLogins(s)
	}
	if has("%40") {
		s = encoded().ReplaceAllString(s, "$1")
	}
	if has("=") {
		s = parameter().ReplaceAllStringFunc(s, hideParameter)
	}
	if has("authorization", "token", "x-", "cookie") {
		s = header().ReplaceAllString(s, "$1$2"+hidden)
	}
	if has("@") {
		s = login().ReplaceAllStringFunc(s, hidePassword)
	}
	if has("gh", "glpat") {
		s = token().ReplaceAllString(s, hidden)
	}
	if has("bearer") {
		s = bearer().ReplaceAllString(s, "$1"+hidden)
	}
	return s
}

// hideLogins removes users and passwords from all URLs in a text, except user names of SSH.
func hideLogins(s string) string {
	var b strings.Builder
	for {
		at := scheme().FindStringIndex(s)
		if at == nil {
			b.WriteString(s)
			return b.String()
		}
		b.WriteString(s[:at[1]])
		kind := strings.ToLower(s[at[0]:at[1]])
		s = s[at[1]:]
		end := loginEnd(s)
		if user, _, _ := strings.Cut(s[:end], ":"); end > 0 && strings.Contains(kind, "ssh") {
			b.WriteString(strings.TrimSuffix(user, "@") + "@")
		}
		s = s[end:]
	}
}

// loginEnd returns the length of the user and password at the start of s, the text after "://", 0
// for none. A password may hold an unencoded @, slash or space.
func loginEnd(s string) int {
	if i := strings.IndexAny(s, "\n\"<>`"); i >= 0 { // what is JSON, or a page, stays it
		s = s[:i]
	}
	line, _, _ := strings.Cut(s, `\n`)
	word, _, _ := strings.Cut(line, " ")
	server, _, _ := strings.Cut(word, "/")
	if i := strings.LastIndexByte(server, '@'); i >= 0 {
		return i + 1
	}
	_, password, found := strings.Cut(server, ":")
	port := strings.TrimLeft(strings.TrimRight(password, "',;.)"), "0123456789") == ""
	if !found || port && password != "" && len(word) > len(server) || strings.HasPrefix(server, "[") {
		return 0
	}
	if i := strings.LastIndexByte(word, '@'); i >= 0 && !port {
		return i + 1
	}
	next, _, _ := strings.Cut(strings.TrimLeft(line[len(word):], " "), " ")
	if i := strings.IndexByte(line, '@'); i >= 0 && (!port || strings.Contains(next, "@")) {
		rest, _, _ := strings.Cut(line[i:], "/")
		rest, _, _ = strings.Cut(rest, " ")
		return i + strings.LastIndexByte(rest, '@') + 1
	}
	return 0
}

// hideParameter hides the value in s, one ?NAME=VALUE of a URL, if the name is a secret's: token.
func hideParameter(s string) string {
	p := parameter().FindStringSubmatch(s)
	name, err := url.QueryUnescape(p[2])
	if err != nil || !secret().MatchString(name) {
		return s
	}
	return p[1] + p[2] + "=" + hidden
}

// hidePassword hides the password in user:password@host. It leaves mailto: addresses, an image's
// tag with a digest, and a device tree's bus:node@address as they are.
func hidePassword(s string) string {
	p := login().FindStringSubmatch(s)
	hex := strings.Trim(p[4], "0123456789abcdefABCDEF") == ""
	if hex && p[2] != "root" || p[4] == "sha256" || p[4] == "sha512" || p[2] == "mailto" || strings.Contains(p[3], `\n`) || strings.Contains(p[3], `\t`) {
		return s
	}
	return p[1] + p[2] + ":" + hidden + "@" + p[4]
}
