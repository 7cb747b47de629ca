package cache

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"slipway/layers/localfile"
	"slipway/layers/run"
)

const (
	greetHashserv = "OEHASHEQUIV 1.1"
	greetPRServ   = "PRSERVICE 1.0"
	ping          = `{"ping": {}}`
)

// checkHashserv checks that a hash equivalence server understands what this bitbake
// will send. The protocol has had one version number since 1.46, so only a question
// shows what a server knows.
func checkHashserv(ctx context.Context, address string, v Version) error {
	if strings.Contains(address, "://") {
		if err := checkWebsockets(ctx, v); err != nil {
			return err
		}
	}
	heard, err := queryInOrder(ctx, address, greetHashserv, ping, `{"exists-stream": null}`)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if len(heard) == 0 {
		return errors.New("hangs up on a ping: it is no hash equivalence server, or one of bitbake before 1.52")
	}
	if a, err := parseAnswer(heard[0]); err != nil {
		return err
	} else if !a.Alive {
		return errors.New("does not say that it is alive: it is no hash equivalence server")
	}
	if !v.atLeast(existsStream) {
		return nil
	}
	if len(heard) < 2 || heard[1] != `"ok"` && heard[1] != "ok" {
		return fmt.Errorf("is of a bitbake before %s, and cannot answer what bitbake %s asks; serve the cache with bitbake %s or later", existsStream, v, existsStream)
	}
	return nil
}

// checkWebsockets checks that bitbake can reach a ws:// address from here.
func checkWebsockets(ctx context.Context, v Version) error {
	if !v.atLeast(existsStream) {
		return fmt.Errorf("bitbake %s speaks no websockets; name a HOST:PORT", v)
	}
	if err := run.Run(ctx, run.Command{Argv: []string{"python3", "-c", "import websockets"}}); err != nil {
		return fmt.Errorf("bitbake needs Python's websockets for it: apt-get install python3-websockets: %w", err)
	}
	return nil
}

// prKind is the protocol of a PR server.
type prKind int

const (
	xmlPR         prKind = iota + 1 // XML-RPC: bitbake before 1.52
	linePR                          // JSON lines: before 2.9
	historyLinePR                   // JSON lines that say history: 2.9 and later
)

func (k prKind) String() string {
	return [...]string{"unknown", "before 1.52", "1.52 to 2.8", "2.9 and later"}[k]
}

func prKindOf(v Version) prKind {
	switch {
	case v.atLeast(historyPR):
		return historyLinePR
	case v.atLeast(lineProtocolPR):
		return linePR
	}
	return xmlPR
}

// checkPRServ checks that a PR server is of this bitbake's kind: one of another kind
// answers a ping, then fails in the middle of the build.
func checkPRServ(ctx context.Context, address string, v Version) error {
	kind, err := probePRServ(ctx, address)
	if err != nil {
		return err
	}
	if want := prKindOf(v); kind != want {
		return fmt.Errorf("is of a bitbake %s, which bitbake %s cannot use; serve the cache with a bitbake %s, or leave the PR server out where the builds that fill the cache do (prserv: none)", kind, v, want)
	}
	return nil
}

// probePRServ finds out the protocol of a PR server. It queries a package that nobody
// has, which stores nothing.
func probePRServ(ctx context.Context, address string) (prKind, error) {
	const asked = `"version": "0", "pkgarch": "slipway-probe", "checksum": "0"`
	heard, err := queryInOrder(ctx, address, greetPRServ, ping, `{"test-pr": {`+asked+`}}`)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	switch {
	case len(heard) == 0 || strings.HasPrefix(heard[0], "<"):
		return xmlPR, pingXML(ctx, address)
	case len(heard) == 2:
		_, err := parseAnswer(heard[1])
		return linePR, err
	}
	if a, err := parseAnswer(heard[0]); err != nil {
		return 0, err
	} else if !a.Alive {
		return 0, errors.New("does not say that it is alive: it is no PR server")
	}
	heard, err = queryInOrder(ctx, address, greetPRServ, `{"test-pr": {`+asked+`, "history": false}}`)
	switch {
	case errors.Is(err, io.EOF): // it knows no test-pr at all
		return linePR, nil
	case err != nil:
		return 0, err
	}
	_, err = parseAnswer(heard[0])
	return historyLinePR, err
}

func pingXML(ctx context.Context, address string) error {
	const call = `<?xml version="1.0"?><methodCall><methodName>ping</methodName><params/></methodCall>`
	answer, err := fetchURL(ctx, http.MethodPost, "http://"+address+"/RPC2", strings.NewReader(call))
	if err != nil {
		return fmt.Errorf("is no PR server: %w", err)
	}
	if !strings.Contains(string(answer), "<boolean>1</boolean>") {
		return errors.New("is no PR server: it does not answer a ping")
	}
	return nil
}

// probeFiles checks that a mirror answers. Many mirrors do not list their folders, so
// any answer is enough.
func probeFiles(ctx context.Context, address string) error {
	if dir, ok := strings.CutPrefix(address, "file://"); ok {
		_, err := os.ReadDir(dir)
		return err
	}
	_, err := fetchURL(ctx, http.MethodHead, address+"/", nil)
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

// checkLogin checks that bitbake has a login for a mirror that wants one.
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

// fetchURL sends an HTTP request. It limits the time and the length of the answer.
func fetchURL(ctx context.Context, method, address string, body io.Reader) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, address, body)
	if err != nil {
		return nil, err
	}
	if body != nil {
		request.Header.Set("Content-Type", "text/xml")
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

// descriptor is what a cache serve tells of itself, as /cache.json. It names no hosts:
// its parts are on the same host.
type descriptor struct {
	Slipway  string `json:"slipway"` // "cache 1"
	Bitbake  string `json:"bitbake"` // the version of the servers
	Hashserv int    `json:"hashserv,omitempty"`
	PRServ   int    `json:"prserv,omitempty"`
	// Folder and Key are told only to this machine itself: whoever finds the key in the
	// folder fills the cache.
	Folder string `json:"folder,omitempty"`
	Key    string `json:"key,omitempty"`
}

const descriptorKind = "cache 1"

func fetchDescriptor(ctx context.Context, server string) (descriptor, error) {
	data, err := fetchURL(ctx, http.MethodGet, server+descriptorPath, nil)
	if err != nil {
		return descriptor{}, err
	}
	return parseDescriptor(data)
}

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
	return d, nil
}
