package fetch

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpproxy"

	"slipway/layers/plaintext"
)

// maxRedirects is how many redirects in a row Slipway follows.
const maxRedirects = 8

// web reads files of one web server, and of the servers that it redirects to.
type web struct {
	client *http.Client
	login  *url.Userinfo // for the first server only
	// send is the client's Do; a registry's requests add authorization.
	send func(*http.Request) (*http.Response, error)
}

// newWeb returns a web whose openFile logs in with login, or without one if that is nil.
func newWeb(login *url.Userinfo) *web {
	w := &web{login: login, client: newClient()}
	w.send = w.client.Do
	return w
}

// newClient returns an HTTP client with the environment's proxy, time limits and checkRedirect.
func newClient() *http.Client {
	proxy := httpproxy.FromEnvironment().ProxyFunc()
	return &http.Client{
		CheckRedirect: checkRedirect,
		Transport: &http.Transport{
			Proxy:                  func(r *http.Request) (*url.URL, error) { return proxy(r.URL) },
			DialContext:            (&net.Dialer{Timeout: 20 * time.Second}).DialContext,
			TLSHandshakeTimeout:    20 * time.Second,
			MaxResponseHeaderBytes: 256 << 10,
			DisableCompression:     true, // ranges and digests are of the stored bytes
			ForceAttemptHTTP2:      true,
		},
	}
}

func (w *web) closeConnections() { w.client.CloseIdleConnections() }

var errRedirect = errors.New("redirect refused")

// errElsewhere is the error of a server to which the reference's server redirects.
var errElsewhere = errors.New("after a redirect")

// checkRedirect refuses more than maxRedirects, and one from https to http, to another scheme, or
// with a user. It removes the Referer, and the Authorization if scheme or host change.
func checkRedirect(to *http.Request, via []*http.Request) error {
	first, last := via[0].URL, via[len(via)-1].URL
	switch {
	case len(via) > maxRedirects:
		return fmt.Errorf("%w: more than %d in a row", errRedirect, maxRedirects)
	case last.Scheme == "https" && to.URL.Scheme != "https":
		return fmt.Errorf("%w: from https to %s://%s", errRedirect, to.URL.Scheme, plaintext.OneLine(to.URL.Host))
	case to.URL.Scheme != "https" && to.URL.Scheme != "http":
		return fmt.Errorf("%w: to %s://", errRedirect, plaintext.OneLine(to.URL.Scheme))
	case to.URL.User != nil:
		return fmt.Errorf("%w: it names a user", errRedirect)
	}
	if to.URL.Scheme != first.Scheme || to.URL.Host != first.Host {
		to.Header.Del("Authorization")
	}
	to.Header.Del("Referer") // its query may hold a token
	return nil
}

// openFile requests a file, or the rest of it. The response is empty if the cached file is current.
func (w *web) openFile(ctx context.Context, f fileRequest, h cachedPart) (fileResponse, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.ref.url.String(), nil)
	if err != nil {
		return fileResponse{}, permanentError{err}
	}
	req.Header.Set("Accept-Encoding", "identity")
	if w.login != nil {
		password, _ := w.login.Password()
		req.SetBasicAuth(w.login.Username(), password)
	}
	h.setConditions(req)
	res, err := w.send(req)
	var failed *url.Error
	if errors.As(err, &failed) && !strings.HasPrefix(failed.URL, f.ref.url.Scheme+"://"+f.ref.url.Host+"/") {
		return fileResponse{}, fmt.Errorf("%w: %w", errElsewhere, connectionError(err))
	}
	if err != nil {
		return fileResponse{}, connectionError(err)
	}
	a, err := readResponse(res, h)
	if err != nil || a.body == nil {
		res.Body.Close()
	}
	return a, err
}

// setConditions sets the request's Range and If headers for a cached file. It asks for a range only
// if the server has a strong validator, so that bytes of two versions are never joined.
func (h cachedPart) setConditions(req *http.Request) {
	kind, value, _ := strings.Cut(h.validator, " ")
	switch {
	case h.validator == "":
	case h.whole && (kind == "etag" || kind == "weak"):
		req.Header.Set("If-None-Match", value)
	case h.whole && (kind == "date" || kind == "weakdate"):
		req.Header.Set("If-Modified-Since", value)
	case h.whole || h.sizeBytes == 0 || kind != "etag" && kind != "date" && kind != "digest":
	default:
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", h.sizeBytes))
		if kind != "digest" {
			req.Header.Set("If-Range", value)
		}
	}
}

// readResponse turns a status and its headers into a fileResponse: an empty one if the cached file
// is current, one with from -1 if a 206 does not continue the partial file. Others are errors.
func readResponse(res *http.Response, h cachedPart) (fileResponse, error) {
	a := fileResponse{body: res.Body, size: res.ContentLength, validator: validatorOf(res.Header)}
	switch coding := res.Header.Get("Content-Encoding"); {
	case res.StatusCode == http.StatusNotModified && h.whole:
		return fileResponse{}, nil
	case res.StatusCode != http.StatusOK && res.StatusCode != http.StatusPartialContent:
		return fileResponse{}, statusError(res)
	case coding != "" && coding != "identity":
		return fileResponse{}, permanentError{fmt.Errorf("the server packs what it sends (Content-Encoding: %s), though it was told not to", plaintext.OneLine(coding))}
	case res.StatusCode == http.StatusOK:
		return a, checkBodyEnd(res)
	}
	var err error
	if a.from, a.size, err = parseContentRange(res.Header.Get("Content-Range")); err != nil {
		return fileResponse{}, permanentError{err}
	}
	if old, ok := strings.CutPrefix(h.validator, "digest "); ok {
		a.validator = "digest " + old
	}
	// The server broke If-Range, or sent only a part. The download starts over.
	if a.validator != h.validator || a.size < 0 {
		a.from = -1
	}
	return a, nil
}

// checkBodyEnd refuses a response without length or chunks: its end looks like a lost connection.
func checkBodyEnd(res *http.Response) error {
	if res.ContentLength >= 0 || len(res.TransferEncoding) > 0 || res.ProtoMajor >= 2 {
		return nil
	}
	return permanentError{errors.New("the server sends neither a length nor the file's end, so a part looks like a whole file of it")}
}

// validatorOf returns a name for this version of the file, from ETag or Last-Modified, after a word
// for its kind: etag, date, weak, or weakdate. It returns "" if the server sends neither.
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
	// RFC 9110, 8.8.2.2: a file changed in the answer's second may change in it once more.
	if now, err := http.ParseTime(h.Get("Date")); err == nil && now.Sub(changed) >= time.Second {
		return "date " + modified
	}
	return "weakdate " + modified
}

var rangePattern = plaintext.Regexp(`^bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)$`)

// parseContentRange returns first offset and size, -1 if unknown. The range must end the file.
func parseContentRange(text string) (from, size int64, err error) {
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

// statusError returns an error for an HTTP status, of the type that says whether to try again. It
// wraps fs.ErrNotExist for 404 and 410, and fs.ErrPermission for 401 and 403.
func statusError(res *http.Response) error {
	err := fmt.Errorf("%s answers %s", res.Request.URL.Host, plaintext.OneLine(res.Status))
	switch code := res.StatusCode; {
	case code == http.StatusNotFound, code == http.StatusGone:
		return permanentError{fmt.Errorf("%w: %w", err, fs.ErrNotExist)}
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		return permanentError{fmt.Errorf("%w: %w", err, fs.ErrPermission)}
	case code == http.StatusRequestedRangeNotSatisfiable:
		return resumeError{err}
	case code == http.StatusRequestTimeout, code == http.StatusTooManyRequests, code >= 500:
		return retryLaterError{err, parseRetryAfter(res.Header.Get("Retry-After"))}
	}
	return permanentError{err}
}

// parseRetryAfter reads a Retry-After header: seconds, up to an hour, or a date; else 0.
func parseRetryAfter(text string) time.Duration {
	if seconds, err := strconv.Atoi(text); err == nil && seconds >= 0 {
		return time.Duration(min(seconds, 3600)) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(time.Until(at), 0)
	}
	return 0
}

// printableError repeats a server's text, as a certificate's names, without control characters.
type printableError struct{ error }

func (s printableError) Error() string { return plaintext.OneLine(s.error.Error()) }

func (s printableError) Unwrap() error { return s.error }

// errPlainHTTP is the error of a server that answers a TLS handshake in another protocol.
var errPlainHTTP = errors.New("the server speaks http, not https")

// connectionError removes the address, which may hold a token, from the error of a request. It
// makes failures such as a bad certificate, which a second try cannot fix, a permanentError.
func connectionError(err error) error {
	if failed, is := errors.AsType[*url.Error](err); is {
		err = failed.Err // its address may hold a token
	}
	if err == io.EOF {
		err = fmt.Errorf("the server closed the connection without an answer (%w)", err)
	}
	if head := (tls.RecordHeaderError{}); errors.As(err, &head) && head.Conn != nil || strings.Contains(err.Error(), "HTTP response to HTTPS client") { // net/http has no name for the second
		err = fmt.Errorf("%w (%w)", errPlainHTTP, err)
	}
	err = printableError{err}
	var dns *net.DNSError
	if errors.Is(err, errRedirect) || errors.Is(err, errPlainHTTP) || errors.As(err, &dns) && dns.IsNotFound || errors.As(err, new(x509.UnknownAuthorityError)) || errors.As(err, new(x509.HostnameError)) || errors.As(err, new(x509.CertificateInvalidError)) {
		return permanentError{err}
	}
	return err
}
