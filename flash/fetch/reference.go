package fetch

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"

	"slipway/flash/boardssh"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// The kinds of places that a reference may name.
const (
	kindPath   = "path"
	kindHTTP   = "http"
	kindSFTP   = "sftp"
	kindOCI    = "oci"
	kindLayout = "oci-dir"
	kindStdin  = "stdin"
)

// Stdin is the reference of standard input.
const Stdin = "-"

const referenceForms = "a path, file://, http://, https://, ssh://, sftp://, host:path or oci://"

const maxReferenceBytes = 4096

// reference is a parsed image reference.
type reference struct {
	kind string
	text string // for messages: without a password or a query, which may hold a token

	path  string   // of path, sftp and oci-dir
	url   *url.URL // of http, without its user
	login *url.Userinfo
	host  string     // of sftp, as boardssh.Resolve takes it; of http and oci, with its port
	repo  string     // of oci
	tag   string     // of oci and oci-dir; "" without a tag
	sum   string     // of oci and oci-dir: the manifest's digest
	title string     // of oci and oci-dir: which file of an artifact with several
	hub   *HubAccess // of oci in a hub
}

// parseReference parses one of referenceForms, or oci-dir:FOLDER. It contacts no server.
func parseReference(text string) (reference, error) {
	switch {
	case text == Stdin:
		return reference{kind: kindStdin, text: "standard input"}, nil
	case text == "":
		return reference{}, fmt.Errorf("no image named; give %s", referenceForms)
	case len(text) > maxReferenceBytes:
		return reference{}, fmt.Errorf("a reference of %d bytes; no place has so long a name", len(text))
	case !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl):
		return reference{}, fmt.Errorf("%q: control characters in a reference", text)
	}
	if rest, ok := strings.CutPrefix(text, "oci-dir:"); ok {
		return parseLayout(text, rest)
	}
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok || !schemePattern().MatchString(scheme) {
		return parsePlain(text)
	}
	read := schemes[strings.ToLower(scheme)]
	if read == nil {
		err := fmt.Errorf("%s://…: Slipway has no images from such addresses; give %s", scheme, referenceForms)
		if near := plaintext.Nearest(strings.ToLower(scheme), []string{"http", "https", "file", "ssh"}); near != "" && !strings.Contains(near, " ") && !strings.ContainsAny(rest, "@?") {
			err = fmt.Errorf("%w\nnext: repeat the line with %s for %s", err, plaintext.Quote(near+"://"+rest), plaintext.Quote(text))
		}
		return reference{}, err
	}
	return read(text, rest)
}

var schemePattern = plaintext.Regexp(`^[A-Za-z][A-Za-z0-9+.-]*$`)

var schemes = map[string]func(text, rest string) (reference, error){
	"file": parseFile, "http": parseHTTP, "https": parseHTTP,
	"ssh": parseSSH, "sftp": parseSSH, "oci": parseOCI,
}

var portPattern = plaintext.Regexp(`^[1-9][0-9]{1,4}$`)

// parsePlain parses a path or host:path. As for scp, a colon before any slash makes it host:path.
// It refuses a host:PORT/path, which probably misses its http://.
func parsePlain(text string) (reference, error) {
	colon, slash := strings.IndexByte(text, ':'), strings.IndexByte(text, '/')
	if strings.HasPrefix(text, "[") { // an IPv6 address contains colons
		colon = strings.Index(text, "]:") + 1
	}
	if colon <= 0 || slash >= 0 && slash < colon {
		return reference{kind: kindPath, text: text, path: text}, nil
	}
	host, name := text[:colon], text[colon+1:]
	if host == "oci" {
		return reference{}, fmt.Errorf("%q: write oci://REGISTRY/REPOSITORY:TAG", text)
	}
	if port, _, _ := strings.Cut(name, "/"); portPattern().MatchString(port) && port != name && !strings.Contains(host, "@") {
		return reference{}, fmt.Errorf("%q: %s looks like a port\nnext: repeat the line with %s for %s  # for a folder of that name by SSH, write %s:./%s",
			text, port, plaintext.Quote("http://"+text), plaintext.Quote(text), host, name)
	}
	return sftpReference(text, host, strings.TrimPrefix(name, "~/"))
}

// parseFile parses text, file:///path. It refuses a host but localhost, a query and a fragment.
func parseFile(text, _ string) (reference, error) {
	u, err := url.Parse(text)
	if err != nil || u.Host != "" && u.Host != "localhost" || !path.IsAbs(u.Path) || u.RawQuery != "" || u.Fragment != "" {
		return reference{}, fmt.Errorf("%q: want file:///path, with %%23 for # and %%3F for ?", text)
	}
	if strings.IndexByte(u.Path, 0) >= 0 {
		return reference{}, fmt.Errorf("%q: a NUL in a path", text)
	}
	return reference{kind: kindPath, text: u.Path, path: u.Path}, nil
}

// parseHTTP parses a web address. It stores the login apart, and refuses an address of no file.
func parseHTTP(text, _ string) (reference, error) {
	u, err := url.Parse(text)
	if err != nil { // url.Parse's error repeats a password
		return reference{}, errors.New("not a web address: want https://host/path, with odd characters as %XX")
	}
	r := reference{kind: kindHTTP, login: u.User, host: u.Host, text: u.Scheme + "://" + u.Host + u.EscapedPath()}
	if u.Hostname() == "" {
		return r, fmt.Errorf("%q: no host in it", r.text)
	}
	u.User, u.Fragment, u.RawFragment = nil, "", ""
	r.url = u
	if SafeFileName(u.Path) == "" {
		return r, fmt.Errorf("%s: it names no file; give the address of the image itself\nnext: curl %s", r.text, plaintext.Quote(r.text))
	}
	return r, nil
}

// parseSSH parses rest, the host/path of ssh://host/path; /~/ is the home. It refuses a password.
func parseSSH(text, rest string) (reference, error) {
	host, name, ok := strings.Cut(rest, "/")
	if err, ok := errors.AsType[boardssh.PasswordError](boardssh.CheckHost(host)); ok { // before a message repeats the password
		return reference{}, err
	}
	if !ok || name == "" {
		return reference{}, fmt.Errorf("%q: want ssh://host/path (/~/path below the home there)", text)
	}
	name, err := url.PathUnescape(name)
	if err != nil {
		return reference{}, fmt.Errorf("%q: %w", text, err)
	}
	if below, ok := strings.CutPrefix(name, "~/"); ok { // where SFTP servers begin
		return sftpReference(text, host, below)
	}
	return sftpReference(text, host, "/"+name)
}

// sftpReference returns a reference of a file by SFTP. It refuses a path without a safe file name.
func sftpReference(text, host, name string) (reference, error) {
	if host == "" || SafeFileName(name) == "" {
		return reference{}, fmt.Errorf("%q: want host:path or ssh://host/path of a file", text)
	}
	if strings.IndexByte(name, 0) >= 0 {
		return reference{}, fmt.Errorf("%q: a NUL in a path", text)
	}
	return reference{kind: kindSFTP, text: text, host: host, path: name}, nil
}

var (
	repoPattern     = plaintext.Regexp(`^[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*$`)
	registryPattern = plaintext.Regexp(`^(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:.]+\])(?::[0-9]{1,5})?$`)
	tagPattern      = plaintext.Regexp(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)
	sumPattern      = plaintext.Regexp(`^sha256:[0-9a-f]{64}$`)
)

const wantOCI = "want oci://REGISTRY/REPOSITORY:TAG or …@sha256:DIGEST, with #FILE if the artifact has several"

// parseOCI does the same as parseRepository, with the tag latest if there is no tag and no digest.
func parseOCI(text, rest string) (reference, error) {
	r, err := parseRepository(text, rest)
	if r.tag == "" && r.sum == "" {
		r.tag = "latest"
	}
	return r, err
}

// parseRepository parses rest: registry/repository[:tag][@digest][#title]. text is for errors.
func parseRepository(text, rest string) (reference, error) {
	r := reference{kind: kindOCI, text: text}
	if strings.Contains(strings.SplitN(rest, "/", 2)[0], "@") {
		return r, errors.New("a user in an oci:// address: log in with \"docker login\", whose config.json is read")
	}
	rest, r.title, _ = strings.Cut(rest, "#")
	var ok bool
	if r.host, rest, ok = strings.Cut(rest, "/"); !ok || !registryPattern().MatchString(r.host) {
		return r, fmt.Errorf("%q: no registry in it; %s", text, wantOCI)
	}
	rest, sum, pinned := strings.Cut(rest, "@")
	rest, tag, tagged := strings.Cut(rest, ":")
	r.repo, r.tag, r.sum = rest, tag, sum
	switch {
	case len(r.repo) > 255 || !repoPattern().MatchString(r.repo):
		return r, fmt.Errorf("%q: %q is no name of a repository; %s", text, r.repo, wantOCI)
	case pinned && !sumPattern().MatchString(sum), tagged && !tagPattern().MatchString(tag):
		return r, fmt.Errorf("%q: neither a tag nor a sha256 digest; %s", text, wantOCI)
	}
	return r, checkTitle(r)
}

// parseLayout parses rest: path[:tag][@digest][#title]. The path keeps a : or @ that is before a
// slash or an invalid tag or digest.
func parseLayout(text, rest string) (reference, error) {
	r := reference{kind: kindLayout, text: text}
	r.path, r.title, _ = strings.Cut(rest, "#")
	if i := strings.LastIndexByte(r.path, '@'); i >= 0 && sumPattern().MatchString(r.path[i+1:]) {
		r.path, r.sum = r.path[:i], r.path[i+1:]
	}
	if i := strings.LastIndexByte(r.path, ':'); i >= 0 && tagPattern().MatchString(r.path[i+1:]) {
		r.path, r.tag = r.path[:i], r.path[i+1:]
	}
	if r.path == "" {
		return r, fmt.Errorf("%q: want oci-dir:FOLDER, with :TAG where the layout has several", text)
	}
	return r, checkTitle(r)
}

// checkTitle refuses a title that is no safe file name. The empty title is valid.
func checkTitle(r reference) error {
	if r.title != "" && SafeFileName(r.title) != r.title {
		return fmt.Errorf("%q: %q is no name of a file", r.text, r.title)
	}
	return nil
}

// fileName returns a URL's or path's last part if SafeFileName accepts it; "" if not, or for OCI.
func (r reference) fileName() string {
	if r.kind == kindHTTP {
		return SafeFileName(r.url.Path)
	}
	return SafeFileName(r.path)
}

const maxNameBytes = 200 // leaves space for the cache's endings

// SafeFileName returns the last part of a path; "" for a folder, and for a name that begins with a
// dot, has unprintable characters, or is longer than 200 bytes.
func SafeFileName(p string) string {
	name := path.Base(p)
	bad := strings.ContainsFunc(name, func(c rune) bool { return c == '/' || c == utf8.RuneError || !unicode.IsPrint(c) })
	if bad || strings.HasSuffix(p, "/") || strings.HasPrefix(name, ".") || len(name) > maxNameBytes {
		return ""
	}
	return name
}

// besideFile returns the reference of another file in this one's folder or artifact. A query stays.
func (r reference) besideFile(name string) reference {
	switch r.kind {
	case kindHTTP:
		u := *r.url
		u.RawPath, u.Path = "", path.Join(path.Dir(u.Path), name)
		r.text, r.url = u.Scheme+"://"+u.Host+u.EscapedPath(), &u
	case kindPath:
		r.path = filepath.Join(filepath.Dir(r.path), name)
		r.text = r.path
	case kindSFTP:
		r.path = path.Join(path.Dir(r.path), name)
		r.text = r.host + ":" + r.path
	default:
		r.text, _, _ = strings.Cut(r.text, "#")
		r.text, r.title = r.text+"#"+name, name
	}
	return r
}

// isLoopback reports whether a host, with or without a port, is localhost or a loopback address.
func isLoopback(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

const maxMapNames = 4

// MapNames returns the names that the image's block map may have, at most maxMapNames. As bmaptool
// does, it removes one more suffix of the image's name for each.
func MapNames(image string) []string {
	names := []string{image + ".bmap"}
	for bare := image; len(names) < maxMapNames; {
		ending := filepath.Ext(bare)
		if bare = strings.TrimSuffix(bare, ending); ending == "" || bare == "" {
			break
		}
		names = append(names, bare+".bmap")
	}
	return names
}

// absolutePath returns the local path. It explains a ~ that the shell did not expand.
func (r reference) absolutePath() (string, error) {
	p, err := filepath.Abs(r.path)
	if err != nil {
		return "", err
	}
	if strings.HasPrefix(r.path, "~/") && !localfile.Exists(p) {
		home, _ := os.UserHomeDir()
		meant := filepath.Join(home, r.path[2:])
		if _, err = os.Stat(meant); err == nil {
			err = fmt.Errorf("it is %s\nnext: repeat the line with %[1]s for %s", plaintext.Quote(meant), plaintext.Quote(r.path))
		}
		return "", fmt.Errorf("%s: ~ is expanded by the shell alone; write $HOME: %w", r.path, localfile.ExplainUnreadable(meant, err))
	}
	return p, nil
}
