package cache

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	goyaml "go.yaml.in/yaml/v4"

	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/yaml"
)

// Environment is the variable that overrules every other setting of the cache.
const Environment = "SLIPWAY_CACHE"

const (
	none            = "none"
	maxSettingBytes = 64 << 10
	maxConfBytes    = 1 << 20 // of bitbake's files, and of ~/.netrc
)

// Setting names a cache: "off", the address of a cache serve, or the addresses of
// the parts one by one.
//
//	cache: http://builder:8600
//
//	cache:
//	  sstate: https://sstate.example.com/all
//	  hashserv: wss://hashserv.example.com/ws
//	  prserv: none
//	  downloads: https://downloads.example.com/sources
type Setting struct {
	Off       bool   `json:"off,omitempty"`
	Server    string `json:"server,omitempty"`
	Sstate    string `json:"sstate,omitempty"`
	Hashserv  string `json:"hashserv,omitempty"`
	PRServ    string `json:"prserv,omitempty"`
	Downloads string `json:"downloads,omitempty"`
	From      string `json:"-"` // the place of the setting, as file:line:column
}

func (s Setting) isNone() bool { return s.Off || s == Setting{From: s.From} }

// Choose returns the setting that applies: that of SLIPWAY_CACHE, else that of the user's
// config.yml, else the board's.
func Choose(board Setting) (Setting, error) {
	if text := os.Getenv(Environment); text != "" {
		return parseSetting(Environment, []byte(text))
	}
	user, err := userSetting()
	if err != nil || user != (Setting{}) {
		return user, err
	}
	return board, nil
}

// userSetting returns the cache setting in ~/.config/slipway/config.yml, empty if there is no file.
func userSetting() (Setting, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return Setting{}, nil // nobody's home: no settings there
	}
	path := filepath.Join(dir, "slipway", "config.yml")
	data, err := localfile.Read(path, maxSettingBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return Setting{}, nil
	}
	if err != nil {
		return Setting{}, err
	}
	return parseConfig(path, data)
}

// parseConfig returns the setting under the only key of a config.yml, cache.
func parseConfig(path string, data []byte) (Setting, error) {
	root, err := yaml.Parse(path, data)
	if err != nil || root == nil {
		return Setting{}, err
	}
	if root.Kind != goyaml.MappingNode {
		return Setting{}, yaml.At(path, root, "want keys and values, as in \"cache: http://builder:8600\"")
	}
	var s Setting
	for key, value := range yaml.Pairs(root) {
		if key.Value != "cache" {
			return Setting{}, yaml.At(path, key, "unknown key %q (have cache)", key.Value)
		}
		if s != (Setting{}) {
			return Setting{}, yaml.At(path, key, "cache is set twice; keep one")
		}
		if s, err = decodeSetting(path, value); err != nil {
			return Setting{}, err
		}
	}
	return s, nil
}

func parseSetting(from string, data []byte) (Setting, error) {
	if len(data) > maxSettingBytes {
		return Setting{}, fmt.Errorf("%s: longer than %d bytes", from, maxSettingBytes)
	}
	root, err := yaml.Parse(from, data)
	if err != nil || root == nil {
		return Setting{}, err
	}
	return decodeSetting(from, root)
}

func nodePlace(from string, n *goyaml.Node) string {
	if from == Environment {
		return from // it has one line
	}
	return fmt.Sprintf("%s:%d:%d", from, n.Line, n.Column)
}

// UnmarshalYAML reads the cache setting in a board.yml. It replaces the whole setting of a board
// that this one extends.
func (s *Setting) UnmarshalYAML(n *goyaml.Node) error {
	var err error
	*s, err = decodeSetting("board.yml", n)
	return err
}

// decodeSetting reads a setting from YAML: "off", an address, or a mapping of the parts.
func decodeSetting(from string, n *goyaml.Node) (Setting, error) {
	at := nodePlace(from, n)
	s := Setting{From: at}
	switch {
	case n.Kind == goyaml.ScalarNode && strings.EqualFold(n.Value, "off"):
		s.Off = true
		return s, nil
	case n.Kind == goyaml.ScalarNode && (n.Value == "" || n.Tag == "!!null"):
		return Setting{}, nil
	case n.Kind == goyaml.ScalarNode:
		var err error
		s.Server, err = serverURL(n.Value)
		return s, wrapPlace(at, err)
	case n.Kind != goyaml.MappingNode:
		return Setting{}, fmt.Errorf("%s: cache is neither an address nor a list of its parts; write cache: http://HOST:8600 or cache: off", at)
	}
	for key, value := range yaml.Pairs(n) {
		if err := s.setPart(key, value); err != nil {
			return Setting{}, wrapPlace(nodePlace(from, key), err)
		}
	}
	return s, wrapPlace(at, s.checkWhole())
}

// wrapPlace adds the file, line and column of the setting to an error.
func wrapPlace(at string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: cache: %w", at, err)
}

// setPart checks the value of one key, such as sstate, and stores it in its field.
func (s *Setting) setPart(key, value *goyaml.Node) error {
	parts := map[string]struct {
		to   *string
		read func(string) (string, error)
	}{
		"server":    {&s.Server, serverURL},
		"sstate":    {&s.Sstate, filesURL},
		"hashserv":  {&s.Hashserv, hashservAddress},
		"prserv":    {&s.PRServ, prservAddress},
		"downloads": {&s.Downloads, filesURL},
	}
	part, ok := parts[key.Value]
	switch {
	case !ok:
		return fmt.Errorf("unknown part %q (have server, or sstate, hashserv, prserv and downloads)", key.Value)
	case value.Kind != goyaml.ScalarNode || value.Value == "":
		return fmt.Errorf("%s is not an address", key.Value)
	case *part.to != "":
		return fmt.Errorf("%s is named twice", key.Value)
	}
	var err error
	if *part.to, err = part.read(value.Value); err != nil {
		return fmt.Errorf("%s: %w", key.Value, err)
	}
	return nil
}

// checkWhole refuses a setting that lacks a part: bitbake would accept it, then find nothing in the
// cache. It also refuses a server together with its parts.
func (s *Setting) checkWhole() error {
	if s.Server != "" {
		if s.Sstate+s.Hashserv+s.Downloads != "" || s.PRServ != "" && s.PRServ != none {
			return errors.New("server says where its parts are; of them only prserv: none may be given with it")
		}
		return nil
	}
	for _, part := range []struct{ name, value, fix string }{
		{"sstate", s.Sstate, "the other parts are of use only with it"},
		{"hashserv", s.Hashserv, "without the hash equivalence server beside it, next to nothing in an sstate mirror matches"},
		{"prserv", s.PRServ, "name the PR server, or prserv: none if the builds that filled the mirror had none: packages are found only where both have one or neither"},
	} {
		if part.value == "" {
			return fmt.Errorf("has no %s: %s", part.name, part.fix)
		}
	}
	return nil
}

// The characters that an address may consist of. They have no special meaning in bitbake's
// configuration, in its patterns of mirrors, or in a URL's parameters.
var addressText = plaintext.Regexp(`^[A-Za-z0-9._~:/\[\]+-]{1,512}$`)

// mirrorWord is what bitbake replaces anywhere in a mirror's address, also
// within a longer word. In a host's name, lower case keeps it from that.
var mirrorWord = plaintext.Regexp(`TYPE|HOST|PATH|BASENAME|MIRRORNAME`)

func validAddress(text string) bool { return addressText().MatchString(text) }

// parseURL parses an address with one of the schemes. It refuses a login, and characters and words
// that bitbake would replace or interpret.
func parseURL(text string, schemes ...string) (*url.URL, error) {
	if !validAddress(strings.Replace(text, "@", "", 1)) { // it may hold a password, and is not repeated
		return nil, errors.New("holds characters that no address here may have, or is too long")
	}
	if strings.Contains(text, "@") {
		return nil, errors.New("names a user; put the login into ~/.netrc, where bitbake looks too")
	}
	u, err := url.Parse(text)
	if err != nil {
		return nil, err
	}
	u.Host = strings.ToLower(u.Host)
	if word := mirrorWord().FindString(u.Path); word != "" {
		return nil, fmt.Errorf("%q: bitbake replaces %s in the address of a mirror; rename the folder", text, word)
	}
	for _, scheme := range schemes {
		if u.Scheme == scheme && (u.Hostname() != "" || scheme == "file" && strings.HasPrefix(u.Path, "/")) {
			return u, nil
		}
	}
	return nil, fmt.Errorf("%q is no address that begins with %s://", text, strings.Join(schemes, ":// or "))
}

// serverURL checks the address of a cache serve: http(s)://HOST:PORT without a path or IPv6.
func serverURL(text string) (string, error) {
	u, err := parseURL(strings.TrimRight(text, "/"), "http", "https")
	if err != nil {
		return "", err
	}
	if strings.Contains(u.Hostname(), ":") {
		return "", fmt.Errorf("%q is an IPv6 address, which bitbake's servers cannot be named by; write the host's name", text)
	}
	if u.Path != "" {
		return "", fmt.Errorf("%q goes on after the host; the address of a cache serve is http://HOST:PORT", text)
	}
	return u.String(), nil
}

func filesURL(text string) (string, error) {
	u, err := parseURL(strings.TrimRight(text, "/"), "http", "https", "file")
	if err != nil {
		return "", err
	}
	return u.String(), nil
}

func hashservAddress(text string) (string, error) {
	if strings.Contains(text, "://") {
		u, err := parseURL(text, "ws", "wss")
		if err != nil {
			return "", err
		}
		return u.String(), nil
	}
	return parseHostPort(text)
}

func prservAddress(text string) (string, error) {
	if text == none {
		return none, nil
	}
	return parseHostPort(text)
}

// parseHostPort checks that text is HOST:PORT and returns it. It refuses IPv6 addresses, because
// bitbake splits at the first colon.
func parseHostPort(text string) (string, error) {
	host, port, err := net.SplitHostPort(text)
	if err != nil || !validAddress(host) || strings.ContainsAny(host, "/:[]") {
		return "", fmt.Errorf("%q is not HOST:PORT", text)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return "", fmt.Errorf("%q has no port between 1 and 65535", text)
	}
	return text, nil
}

// serverPort returns the address of a port on the server's host, "" without a port.
func (s Setting) serverPort(port int) string {
	u, err := url.Parse(s.Server)
	if err != nil || port == 0 {
		return ""
	}
	return net.JoinHostPort(u.Hostname(), strconv.Itoa(port))
}
