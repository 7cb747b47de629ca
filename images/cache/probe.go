package cache

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"slipway/layers/localfile"
	"slipway/layers/run"
)

// bitbake's own servers answer within milliseconds; a probe that takes longer than
// this would make every build wait.
const (
	probeTime    = 10 * time.Second
	maxLineBytes = 32 << 10 // bitbake's own limit
)

// checkServers returns an error if bitbake v cannot use the cache's servers, by the version that a
// cache serve reports. It checks nothing for servers that a setting names one by one.
func (c Cache) checkServers(v Version) error {
	switch {
	case c.Bitbake == Version{}:
		return nil
	case v.atLeast(existsStream) && !c.Bitbake.atLeast(existsStream):
		return c.explainPart("hashserv", c.Hashserv, fmt.Errorf("is of bitbake %s, and cannot answer what bitbake %s asks; serve the cache with bitbake %s or later", c.Bitbake, v, existsStream))
	case c.PRServ != "" && c.Bitbake.atLeast(historyPR) != v.atLeast(historyPR):
		return c.explainPart("prserv", c.PRServ, fmt.Errorf("is of bitbake %s, which bitbake %s cannot use; serve the cache with a bitbake %s, or leave the PR server out where the builds that fill the cache do (prserv: none)", c.Bitbake, v, prGeneration(v)))
	}
	return nil
}

// prGeneration returns the bitbake versions, in words, that share the protocol of v's PR server.
func prGeneration(v Version) string {
	if v.atLeast(historyPR) {
		return historyPR.String() + " or later"
	}
	return "before " + historyPR.String()
}

// probeHashserv checks that something answers at the address of a hash equivalence server. For a
// ws:// address it also checks that bitbake and Python here can use websockets.
func probeHashserv(ctx context.Context, address string, v Version) error {
	scheme, host, named := strings.Cut(address, "://")
	if !named {
		return probePort(ctx, address)
	}
	if !v.atLeast(existsStream) {
		return fmt.Errorf("bitbake %s speaks no websockets; name a HOST:PORT", v)
	}
	if err := run.Run(ctx, run.Command{Argv: []string{"python3", "-c", "import websockets"}}); err != nil {
		return fmt.Errorf("bitbake needs Python's websockets for it: apt-get install python3-websockets: %w", err)
	}
	_, err := fetchURL(ctx, http.MethodHead, strings.Replace(scheme, "ws", "http", 1)+"://"+host)
	if status := statusError(0); errors.As(err, &status) { // a websocket server refuses other requests
		return nil
	}
	return err
}

// probePort checks that something listens at a TCP address.
func probePort(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return explainLoss(ctx, plainDialError(err))
	}
	return conn.Close()
}

// explainLoss returns "does not answer within" for an error after probeTime, the cause if the
// caller's context ended, and any other error as it is.
func explainLoss(ctx context.Context, err error) error {
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("does not answer within %v", probeTime)
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return err
}

// plainDialError rewords an error of Go's network packages: nothing answers, or not as expected.
func plainDialError(err error) error {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return fmt.Errorf("nothing answers: %w", op.Err)
	}
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	return fmt.Errorf("does not answer as it should: %w", err)
}

// queryHashserv sends all questions to a hash equivalence server, then reads one answer for each,
// so that a distant server costs one round trip. The questions must fit into the buffers of the
// connection.
func queryHashserv(ctx context.Context, address string, questions []string) (answers []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if _, err := io.WriteString(conn, "OEHASHEQUIV 1.1\n\n"+strings.Join(questions, "\n")+"\n"); err != nil {
		return nil, err
	}
	lines := bufio.NewReaderSize(conn, maxLineBytes)
	for range questions {
		line, err := lines.ReadSlice('\n')
		if err != nil {
			return nil, err
		}
		answers = append(answers, strings.TrimSuffix(string(line), "\n"))
	}
	return answers, nil
}

// probeFiles checks that a mirror answers. A 404, 403 or 405 is enough, because many mirrors do not
// list their folders. For a 401 it checks that ~/.netrc has a login.
func probeFiles(ctx context.Context, address string) error {
	if dir, ok := strings.CutPrefix(address, "file://"); ok {
		_, err := os.ReadDir(dir)
		return err
	}
	_, err := fetchURL(ctx, http.MethodHead, address+"/")
	var status statusError
	if !errors.As(err, &status) {
		return err
	}
	switch status {
	case http.StatusNotFound, http.StatusForbidden, http.StatusMethodNotAllowed:
		return nil
	case http.StatusUnauthorized:
		return checkLogin(address)
	}
	return err
}

// checkLogin checks that ~/.netrc, where bitbake looks, has a login for a mirror's host.
func checkLogin(address string) error {
	u, err := url.Parse(address)
	if err != nil {
		return err
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return err
	}
	text, err := localfile.Read(filepath.Join(home, ".netrc"), maxConfBytes)
	words := strings.Fields(string(text))
	for i, word := range words {
		if word == "default" || i > 0 && words[i-1] == "machine" && word == u.Hostname() {
			return nil
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return fmt.Errorf("wants a login; write one into ~/.netrc: machine %s login NAME password WORD", u.Hostname())
}

type statusError int

func (s statusError) Error() string {
	return fmt.Sprintf("answers %d %s", int(s), http.StatusText(int(s)))
}

// fetchURL sends an HTTP request and returns the body. It limits the time and the body's length,
// and returns a statusError for any status but 200.
func fetchURL(ctx context.Context, method, address string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, address, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, explainLoss(ctx, plainDialError(err))
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, statusError(response.StatusCode)
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, maxLineBytes+1))
	if err == nil && len(data) > maxLineBytes {
		err = fmt.Errorf("answers more than %d bytes", maxLineBytes)
	}
	return data, err
}

// descriptor is the content of /cache.json, by which a cache serve describes itself. It names ports
// and no hosts, because all servers are on the same host.
type descriptor struct {
	Slipway  string `json:"slipway"` // "cache 1"
	Bitbake  string `json:"bitbake"` // the version of the servers
	Hashserv int    `json:"hashserv,omitempty"`
	PRServ   int    `json:"prserv,omitempty"`
	// Folder and Key are told only to this machine itself: whoever finds the key in the
	// folder fills the cache.
	Folder string `json:"folder,omitempty"`
	Key    string `json:"key,omitempty"`

	version Version // Bitbake's
}

const descriptorKind = "cache 1"

func fetchDescriptor(ctx context.Context, server string) (descriptor, error) {
	data, err := fetchURL(ctx, http.MethodGet, server+descriptorPath)
	if err != nil {
		return descriptor{}, err
	}
	return parseDescriptor(data)
}

// parseDescriptor parses a cache.json, and refuses another version and invalid ports.
func parseDescriptor(data []byte) (descriptor, error) {
	var d descriptor
	if err := json.Unmarshal(data, &d); err != nil || !strings.HasPrefix(d.Slipway, "cache ") {
		return d, errors.New("is no cache serve")
	}
	if d.Slipway != descriptorKind {
		return d, fmt.Errorf("is a cache serve of another slipway (%.20q; want %q): use the same on both machines", d.Slipway, descriptorKind)
	}
	for _, port := range []int{d.Hashserv, d.PRServ} {
		if port < 0 || port > 65535 {
			return d, fmt.Errorf("names a port that there is not, %d", port)
		}
	}
	var err error
	if d.version, err = parseVersion(d.Bitbake); err != nil {
		return d, fmt.Errorf("names no version of bitbake: %.20q", d.Bitbake)
	}
	return d, nil
}
