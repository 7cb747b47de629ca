package suite

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"slipway/ci/suite/match"
	"slipway/layers/plaintext"
)

// Slipway tries what the board reaches through the SSH connection. The board's sshd
// connects and looks names up, so the board needs no other program.

func isAddress(text string) bool {
	_, err := netip.ParseAddr(text)
	return err == nil
}

// addr is an address that the board reaches, or must not reach.
type addr struct {
	address   string // host:port
	reachable bool
	timeout   time.Duration
}

func readAddr(e *Entry) Probe {
	a := addr{reachable: true, timeout: e.readTimeout()}
	name := e.Text("address", e.Name)
	protocol, address, ok := strings.Cut(name, "://")
	if !ok {
		protocol, address = "tcp", name
	}
	host, port, err := net.SplitHostPort(address)
	if protocol != "tcp" || err != nil || host == "" || port == "" {
		e.Fail(e.Key, "%q is not an address like tcp://192.0.2.1:443 (SSH forwards no UDP)", name)
	}
	a.address = address
	if r := e.Flag("reachable"); r != nil {
		a.reachable = *r
	}
	return a
}

func (a addr) Inspect(ctx context.Context, s *Session) (Finding, error) {
	var f Finding
	conn, err := s.dial(ctx, "tcp", a.address)
	if err == nil {
		conn.Close()
	}
	if err := s.forwardingError(ctx, err); err != nil {
		return f, err
	}
	saw := a.address + " is reachable"
	if err != nil {
		saw = a.address + " is not reachable: " + err.Error()
	}
	f.Expect(a.reachable == (err == nil), a.address+plaintext.Either(a.reachable, " is reachable", " is not reachable"), saw)
	return f, nil
}

// forwardingError returns err if the connection was not even tried: sshd forbids it, or the
// board is lost. It returns nil if the address does not answer.
func (s *Session) forwardingError(ctx context.Context, err error) error {
	var refused *ssh.OpenChannelError
	var broken *net.OpError
	switch {
	case err == nil, errors.As(err, &refused) && refused.Reason == ssh.ConnectionFailed, errors.As(err, &broken) && broken.Op == "dial":
		return nil
	case refused != nil && refused.Reason == ssh.Prohibited:
		return fmt.Errorf("the board's sshd lets nobody connect through it (AllowTcpForwarding, or PermitOpen): %w", err)
	case errors.Is(context.Cause(ctx), errSlow) && s.isAnswering(context.WithoutCancel(ctx)):
		return nil
	}
	return err
}

func (a addr) Next() string {
	return "on the board: ip route; is there a firewall on the way, and does the other side listen?"
}

// maxRedirects is how many redirects Slipway follows, as many as goss.
const maxRedirects = 10

// httpRequest is an HTTP request through the board.
type httpRequest struct {
	url, method, body   string
	username, password  string
	headers             [][2]string
	insecure, noFollow  bool
	status              match.Matcher
	wantHeaders, answer match.Matcher
}

func readHTTP(e *Entry) Probe {
	h := httpRequest{
		url: e.Text("url", e.Name), method: e.Text("method", http.MethodGet), body: e.Text("request-body", ""),
		username: e.Text("username", ""), password: e.Text("password", ""),
		insecure: IsTrue(e.Flag("allow-insecure")), noFollow: IsTrue(e.Flag("no-follow-redirects")),
		status: e.Matcher("status", match.Number), wantHeaders: e.Matcher("headers", match.Text), answer: e.Matcher("body", match.Text),
	}
	u, err := url.Parse(h.url)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		e.Fail(e.Key, "%q is not an address like http://127.0.0.1:8080/health", h.url)
	}
	for i, line := range e.List("request-headers") {
		name, value, ok := strings.Cut(line, ":")
		if !ok {
			e.Fail(e.Fields["request-headers"].Content[i], "request-headers must be like \"Name: value\", not %q", line)
		}
		h.headers = append(h.headers, [2]string{name, strings.TrimSpace(value)})
	}
	if h.status.Empty() && h.wantHeaders.Empty() && h.answer.Empty() {
		e.Fail(e.Key, "an http needs status, headers or body")
	}
	if _, err := h.newRequest(context.Background()); err != nil {
		e.Fail(e.Key, "%v", err)
	}
	return h
}

func (h httpRequest) newRequest(ctx context.Context) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, h.method, h.url, strings.NewReader(h.body))
	if err != nil {
		return nil, err
	}
	for _, header := range h.headers {
		r.Header.Set(header[0], header[1])
	}
	if host := r.Header.Get("Host"); host != "" {
		r.Host = host
	}
	if h.username != "" {
		r.SetBasicAuth(h.username, h.password)
	}
	return r, nil
}

func (h httpRequest) Inspect(ctx context.Context, s *Session) (Finding, error) {
	var f Finding
	request, err := h.newRequest(ctx)
	if err != nil {
		return f, err
	}
	client := h.newClient(s)
	defer client.CloseIdleConnections()
	response, err := client.Do(request)
	if err := s.forwardingError(ctx, err); err != nil {
		return f, err
	}
	if err != nil {
		f.Expect(false, "an answer", err.Error())
		return f, nil
	}
	defer response.Body.Close()
	return f, h.checkResponse(&f, response)
}

func (h httpRequest) newClient(s *Session) *http.Client {
	return &http.Client{
		Transport: &http.Transport{DialContext: s.dial, TLSClientConfig: &tls.Config{InsecureSkipVerify: h.insecure}, DisableKeepAlives: true},
		CheckRedirect: func(_ *http.Request, via []*http.Request) error {
			switch {
			case h.noFollow:
				return http.ErrUseLastResponse
			case len(via) >= maxRedirects:
				return fmt.Errorf("redirected more than %d times", maxRedirects)
			}
			return nil
		},
	}
}

func (h httpRequest) checkResponse(f *Finding, r *http.Response) error {
	f.ExpectMatch("status", h.status, r.StatusCode, "status "+r.Status)
	headers := headerLines(r.Header)
	f.ExpectMatch("headers", h.wantHeaders, headers, "headers: "+quoteOutput([]byte(headers)))
	if h.answer.Empty() {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxFileBytes+1))
	if err != nil {
		return fmt.Errorf("read the answer of %s: %w", h.url, err)
	}
	f.expectWhole("body", h.answer, len(body) > maxFileBytes)
	f.ExpectMatch("body", h.answer, string(body), "body: "+quoteOutput(body))
	return nil
}

// headerLines returns the headers sorted, so that a report reads the same twice.
func headerLines(h http.Header) string {
	var all []string
	for name, values := range h {
		for _, v := range values {
			all = append(all, name+": "+v)
		}
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

func (h httpRequest) Next() string {
	return "on the board: wget -O- " + ShellLine([]string{h.url}) + "; then the journal of the service that should answer"
}
