package fetch

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpproxy"

	"slipway/layers/lazy"
	"slipway/layers/plaintext"
)

// maxRedirects is what mirrors and stores need, with some to spare.
const maxRedirects = 8

// web reads files of one web server, and of those that it sends us on to.
type web struct {
	client *http.Client
	login  *url.Userinfo // for the first server alone
	// send replaces the client's Do where requests need more, as those to a registry.
	send func(*http.Request) (*http.Response, error)
}

func newWeb(login *url.Userinfo) *web {
	w := &web{login: login, client: newClient()}
	w.send = w.client.Do
	return w
}

func newClient() *http.Client {
	proxy := httpproxy.FromEnvironment().ProxyFunc()
	return &http.Client{
		CheckRedirect: redirect,
		Transport: &http.Transport{
			Proxy:                  func(r *http.Request) (*url.URL, error) { return proxy(r.URL) },
			DialContext:            (&net.Dialer{Timeout: 20 * time.Second}).DialContext,
			TLSHandshakeTimeout:    20 * time.Second,
			MaxResponseHeaderBytes: 256 << 10,
			DisableCompression:     true, // ranges and digests are of the bytes as they lie there
			ForceAttemptHTTP2:      true,
		},
	}
}

func (w *web) close() { w.client.CloseIdleConnections() }

var errRedirect = errors.New("redirect refused")

// redirect follows a server's word elsewhere, without what proves us to it.
func redirect(to *http.Request, via []*http.Request) error {
	first, last := via[0].URL, via[len(via)-1].URL
	switch {
	case len(via) > maxRedirects:
		return fmt.Errorf("%w: more than %d in a row", errRedirect, maxRedirects)
	case last.Scheme == "https" && to.URL.Scheme != "https":
		return fmt.Errorf("%w: from https to %s://%s", errRedirect, to.URL.Scheme, plaintext.OneLine(to.URL.Host))
	case to.URL.User != nil:
		return fmt.Errorf("%w: it names a user", errRedirect)
	}
	if to.URL.Scheme != first.Scheme || to.URL.Host != first.Host {
		to.Header.Del("Authorization")
	}
	to.Header.Del("Referer") // its query may hold a token
	return nil
}

func (w *web) open(ctx context.Context, f wanted, h held) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.ref.url.String(), nil)
	if err != nil {
		return answer{}, final{err}
	}
	req.Header.Set("Accept-Encoding", "identity")
	if w.login != nil {
		password, _ := w.login.Password()
		req.SetBasicAuth(w.login.Username(), password)
	}
	h.setConditions(req)
	res, err := w.send(req)
	if err != nil {
		return answer{}, unreachable(err)
	}
	a, err := read(res, h)
	if err != nil || a.body == nil {
		res.Body.Close()
	}
	return a, err
}

// setConditions says in a request what is here. A range is asked for only where the server
// gave that version a name: it would join two versions otherwise.
func (h held) setConditions(req *http.Request) {
	kind, value, _ := strings.Cut(h.validator, " ")
	switch {
	case h.validator == "":
	case h.whole && (kind == "etag" || kind == "weak"):
		req.Header.Set("If-None-Match", value)
	case h.whole && (kind == "date" || kind == "weakdate"):
		req.Header.Set("If-Modified-Since", value)
	case h.whole || h.bytes == 0 || kind != "etag" && kind != "date" && kind != "digest":
	default:
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", h.bytes))
		if kind != "digest" {
			req.Header.Set("If-Range", value)
		}
	}
}

func read(res *http.Response, h held) (answer, error) {
	a := answer{body: res.Body, size: res.ContentLength, validator: validatorOf(res.Header)}
	switch coding := res.Header.Get("Content-Encoding"); {
	case res.StatusCode == http.StatusNotModified && h.whole:
		return answer{}, nil
	case res.StatusCode != http.StatusOK && res.StatusCode != http.StatusPartialContent:
		return answer{}, refusal(res)
	case coding != "" && coding != "identity":
		return answer{}, final{fmt.Errorf("the server packs what it sends (Content-Encoding: %s), though it was told not to", plaintext.OneLine(coding))}
	case res.StatusCode == http.StatusOK:
		return a, endless(res)
	}
	var err error
	if a.from, a.size, err = contentRange(res.Header.Get("Content-Range")); err != nil {
		return answer{}, final{err}
	}
	if old, ok := strings.CutPrefix(h.validator, "digest "); ok {
		a.validator = "digest " + old
	}
	// It broke If-Range, or this may be a part of what was asked for. Anew, then.
	if a.validator != h.validator || a.size < 0 {
		a.from = -1
	}
	return a, nil
}

// endless refuses an answer whose end cannot be told from a broken connection.
func endless(res *http.Response) error {
	if res.ContentLength >= 0 || len(res.TransferEncoding) > 0 || res.ProtoMajor >= 2 {
		return nil
	}
	return final{errors.New("the server says neither a length nor where the file ends; what it sends cannot be told from a part of it")}
}

// validatorOf is the server's name for this version of the file.
func validatorOf(h http.Header) string {
	tag, modified := h.Get("ETag"), h.Get("Last-Modified")
	switch {
	case strings.HasPrefix(tag, `W/"`):
		return "weak " + tag
	case strings.HasPrefix(tag, `"`) && len(tag) < 1024:
		return "etag " + tag
	}
	changed, err := http.ParseTime(modified)
	if err != nil {
		return ""
	}
	// RFC 9110, 8.8.2.2: a file that changed in the second of the answer may have
	// changed in it once more.
	if now, err := http.ParseTime(h.Get("Date")); err == nil && now.Sub(changed) >= time.Second {
		return "date " + modified
	}
	return "weakdate " + modified
}

var rangePattern = lazy.Regexp(`^bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)$`)

func contentRange(text string) (from, size int64, err error) {
	m := rangePattern().FindStringSubmatch(text)
	if m == nil {
		return 0, 0, fmt.Errorf("Content-Range %q: want bytes FIRST-LAST/SIZE", plaintext.OneLine(text))
	}
	from, _ = strconv.ParseInt(m[1], 10, 64)
	last, _ := strconv.ParseInt(m[2], 10, 64)
	size = -1
	if m[3] != "*" {
		size, _ = strconv.ParseInt(m[3], 10, 64)
	}
	if last < from || size >= 0 && last != size-1 {
		return 0, 0, fmt.Errorf("Content-Range %q: not the rest of the file, which was asked for", text)
	}
	return from, size, nil
}

// refusal is what a status means for a person, and for the next try.
func refusal(res *http.Response) error {
	err := fmt.Errorf("%s answers %s", res.Request.URL.Host, plaintext.OneLine(res.Status))
	switch code := res.StatusCode; {
	case code == http.StatusNotFound, code == http.StatusGone:
		return final{fmt.Errorf("%w: %w", err, fs.ErrNotExist)}
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		return final{fmt.Errorf("%w: %w", err, fs.ErrPermission)}
	case code == http.StatusRequestedRangeNotSatisfiable:
		return useless{err}
	case code == http.StatusRequestTimeout, code == http.StatusTooManyRequests, code >= 500:
		return later{err, retryAfter(res.Header.Get("Retry-After"))}
	}
	return final{err}
}

func retryAfter(text string) time.Duration {
	if seconds, err := strconv.Atoi(text); err == nil && seconds >= 0 {
		return time.Duration(min(seconds, 3600)) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(time.Until(at), 0)
	}
	return 0
}

// spoken is an error that repeats what a server said: names of a certificate, of a
// host that it sends us to. A terminal must not obey that.
type spoken struct{ error }

func (s spoken) Error() string { return plaintext.OneLine(s.error.Error()) }

func (s spoken) Unwrap() error { return s.error }

// unreachable says which failures to reach a server no second try fixes.
func unreachable(err error) error {
	var failed *url.Error
	if errors.As(err, &failed) {
		err = failed.Err // its address may hold a token
	}
	err = spoken{err}
	var dns *net.DNSError
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	if errors.Is(err, errRedirect) || errors.As(err, &dns) && dns.IsNotFound || errors.As(err, &unknown) || errors.As(err, &name) || errors.As(err, &invalid) {
		return final{err}
	}
	return err
}
