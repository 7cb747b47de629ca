package cache

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"

	goyaml "go.yaml.in/yaml/v4"

	"slipway/layers/plaintext"
)

// Environment is the variable that overrules the board's setting of the cache.
const Environment = "SLIPWAY_CACHE"

// Setting names a cache: "off", or the address of a cache serve.
//
//	cache: http://builder:8600
type Setting struct {
	Off    bool   `json:"off,omitempty"`
	Server string `json:"server,omitempty"`
	From   string `json:"-"` // the place of the setting, as file:line:column
}

func (s Setting) isNone() bool { return s.Server == "" }

// Choose returns the setting that applies: that of SLIPWAY_CACHE, else the board's.
func Choose(board Setting) (Setting, error) {
	if text := os.Getenv(Environment); text != "" {
		return parseSetting(Environment, text)
	}
	return board, nil
}

// UnmarshalYAML reads a board.yml's cache setting, which replaces that of an extended board.
func (s *Setting) UnmarshalYAML(n *goyaml.Node) error {
	at := fmt.Sprintf("board.yml:%d:%d", n.Line, n.Column)
	if n.Kind != goyaml.ScalarNode {
		return fmt.Errorf("%s: cache is no address; write cache: http://HOST:8600 or cache: off", at)
	}
	if n.Tag == "!!null" {
		*s = Setting{}
		return nil
	}
	var err error
	*s, err = parseSetting(at, n.Value)
	return err
}

// parseSetting reads "off" or a cache serve's address, with from as its place. "" is no setting.
func parseSetting(from, text string) (Setting, error) {
	if text == "" {
		return Setting{}, nil
	}
	if strings.EqualFold(text, "off") {
		return Setting{Off: true, From: from}, nil
	}
	server, err := serverURL(text)
	if err != nil {
		return Setting{}, fmt.Errorf("%s: cache: %w", from, err)
	}
	return Setting{Server: server, From: from}, nil
}

// The characters that an address may consist of. They have no special meaning in bitbake's
// configuration, in its patterns of mirrors, or in a URL's parameters.
var addressText = plaintext.Regexp(`^[A-Za-z0-9._~:/\[\]+-]{1,512}$`)

func validAddress(text string) bool { return addressText().MatchString(text) }

// serverURL checks the address of a cache serve: http(s)://HOST[:PORT] without a path or IPv6. The
// host is in lower case, because bitbake replaces words such as HOST in the address of a mirror.
func serverURL(text string) (string, error) {
	if !validAddress(text) { // it may hold a password, and is not repeated
		return "", errors.New("holds characters that no address here may have, or is too long")
	}
	u, err := url.Parse(strings.TrimRight(text, "/"))
	switch {
	case err != nil:
		return "", err
	case u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return "", fmt.Errorf("%q is no address that begins with http:// or https://", text)
	case strings.Contains(u.Hostname(), ":"):
		return "", fmt.Errorf("%q is an IPv6 address, which bitbake's servers cannot be named by; write the host's name", text)
	case u.Path != "":
		return "", fmt.Errorf("%q goes on after the host; the address of a cache serve is http://HOST:PORT", text)
	}
	u.Host = strings.ToLower(u.Host)
	return u.String(), nil
}

// serverPort returns the address of a port on the server's host.
func (s Setting) serverPort(port int) string {
	u, err := url.Parse(s.Server)
	if err != nil {
		return "" // serverURL refuses it
	}
	return net.JoinHostPort(u.Hostname(), strconv.Itoa(port))
}
