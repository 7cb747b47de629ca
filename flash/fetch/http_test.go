package fetch

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// scripted answers each request by the next function; the last serves all further ones.
func scripted(t *testing.T, answers ...http.HandlerFunc) *httptest.Server {
	t.Helper()
	var mu sync.Mutex
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		answer := answers[0]
		if len(answers) > 1 {
			answers = answers[1:]
		}
		mu.Unlock()
		answer(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

// raw answers with bytes as they stand, and ends the connection.
func raw(text string, body []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		defer conn.Close()
		conn.Write([]byte(strings.ReplaceAll(text, "\n", "\r\n") + "\r\n"))
		conn.Write(body)
	}
}

func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

func TestServersThatLie(t *testing.T) {
	data := content(10_000, 40)
	half := data[:5000]
	partial := raw("HTTP/1.1 200 OK\nETag: \"1\"\nContent-Length: 10000\n", half)
	tests := []struct {
		name    string
		answers []http.HandlerFunc
		wantErr string // "": the file comes whole
	}{
		{"says more than it sends", []http.HandlerFunc{raw("HTTP/1.1 200 OK\nContent-Length: 10001\n", data)}, "unexpected EOF"},
		{"says no length", []http.HandlerFunc{raw("HTTP/1.1 200 OK\n", data)}, "neither a length"},
		{"chunked, broken off", []http.HandlerFunc{raw("HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n", append([]byte("1388\r\n"), half...))}, "EOF"},
		{"packs", []http.HandlerFunc{raw("HTTP/1.1 200 OK\nContent-Encoding: gzip\nContent-Length: 10000\n", data)}, "Content-Encoding: gzip"},
		{"other bytes of the range", []http.HandlerFunc{partial, raw("HTTP/1.1 206 Partial Content\nETag: \"1\"\nContent-Range: bytes 4000-9999/10000\nContent-Length: 6000\n", data[4000:]), raw("HTTP/1.1 200 OK\nContent-Length: 10000\n", data)}, ""},
		{"another version's range", []http.HandlerFunc{partial, raw("HTTP/1.1 206 Partial Content\nETag: \"2\"\nContent-Range: bytes 5000-9999/10000\nContent-Length: 5000\n", data[5000:]), raw("HTTP/1.1 200 OK\nContent-Length: 10000\n", data)}, ""},
		{"a range of another size", []http.HandlerFunc{partial, raw("HTTP/1.1 206 Partial Content\nETag: \"1\"\nContent-Range: bytes 5000-10999/11000\nContent-Length: 6000\n", data[4000:]), raw("HTTP/1.1 200 OK\nContent-Length: 10000\n", data)}, ""},
		{"a part of the range", []http.HandlerFunc{partial, raw("HTTP/1.1 206 Partial Content\nETag: \"1\"\nContent-Range: bytes 5000-5999/10000\nContent-Length: 1000\n", data[5000:6000])}, "not the rest"},
		{"a part of the range of a file without an end", []http.HandlerFunc{raw("HTTP/1.1 200 OK\nETag: \"1\"\nTransfer-Encoding: chunked\n", append([]byte("1388\r\n"), half...)), raw("HTTP/1.1 206 Partial Content\nETag: \"1\"\nContent-Range: bytes 5000-5999/*\nContent-Length: 1000\n", data[5000:6000]), raw("HTTP/1.1 200 OK\nETag: \"1\"\nContent-Length: 10000\n", data)}, ""},
		{"more than there is", []http.HandlerFunc{raw("HTTP/1.1 200 OK\nContent-Length: 9223372036854775807\n", data)}, "8796093022223 MiB are needed"},
		{"no range in it", []http.HandlerFunc{partial, raw("HTTP/1.1 206 Partial Content\nETag: \"1\"\nContent-Length: 5000\n", half)}, "Content-Range"},
		{"no range to be had", []http.HandlerFunc{partial, status(http.StatusRequestedRangeNotSatisfiable), raw("HTTP/1.1 200 OK\nContent-Length: 10000\n", data)}, ""},
		{"knows no ranges", []http.HandlerFunc{partial, partial, partial, raw("HTTP/1.1 200 OK\nETag: \"1\"\nContent-Length: 10000\n", data)}, ""},
		{"knows no ranges and always breaks", []http.HandlerFunc{partial}, "unexpected EOF"},
		{"nothing changed, it says", []http.HandlerFunc{status(http.StatusNotModified)}, "304"},
		{"is busy, then not", []http.HandlerFunc{status(http.StatusServiceUnavailable), status(http.StatusTooManyRequests), raw("HTTP/1.1 200 OK\nContent-Length: 10000\n", data)}, ""},
		{"is always busy", []http.HandlerFunc{status(http.StatusBadGateway)}, "502"},
		{"has it not", []http.HandlerFunc{status(http.StatusNotFound)}, "404"},
		{"wants a password", []http.HandlerFunc{status(http.StatusUnauthorized)}, "401"},
		{"answers with a page", []http.HandlerFunc{status(http.StatusTeapot)}, "418"},
		{"no HTTP", []http.HandlerFunc{raw("SSH-2.0-x", nil)}, "malformed"},
		{"a huge header", []http.HandlerFunc{raw("HTTP/1.1 200 OK\nX: "+strings.Repeat("x", 300<<10)+"\n", data)}, "server response headers exceeded"},
		{"in a circle", []http.HandlerFunc{func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.Path+"0", http.StatusFound) }}, "redirect refused: more than"},
		{"to a user", []http.HandlerFunc{func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://u:p@"+r.Host+"/disk.img", http.StatusFound)
		}}, "names a user"},
		{"to a file", []http.HandlerFunc{func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "file:///etc/passwd", http.StatusFound)
		}}, "redirect refused: to file://"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			file, err := fetchIt(t, dir, scripted(t, test.answers...).URL+"/disk.img", "")
			if test.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), test.wantErr) {
					t.Errorf("Get = %v; want an error with %q", err, test.wantErr)
				}
				nothing(t, dir)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			same(t, file, data)
		})
	}
}

// A download requests ranges only where the server names versions reliably.
func TestWhatIsAsked(t *testing.T) {
	data := content(10_000, 41)
	now := time.Now().UTC()
	date := func(at time.Time) string { return at.Format(http.TimeFormat) }
	tests := []struct {
		name, header, wantRange, wantIf string
	}{
		{"a tag", "ETag: \"a\"\n", "bytes=5000-", `"a"`},
		{"a weak tag", "ETag: W/\"a\"\n", "", ""},
		{"an old date", "Date: " + date(now) + "\nLast-Modified: " + date(now.Add(-time.Hour)) + "\n", "bytes=5000-", date(now.Add(-time.Hour))},
		{"a date of this second", "Date: " + date(now) + "\nLast-Modified: " + date(now) + "\n", "", ""},
		{"nothing", "", "", ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var asked http.Header
			s := scripted(t, raw("HTTP/1.1 200 OK\nContent-Length: 10000\n"+test.header, data[:5000]), func(w http.ResponseWriter, r *http.Request) {
				asked = r.Header
				w.Write(data)
			})
			file, err := fetchIt(t, t.TempDir(), s.URL+"/disk.img", "")
			if err != nil {
				t.Fatal(err)
			}
			same(t, file, data)
			if asked.Get("Range") != test.wantRange || asked.Get("If-Range") != test.wantIf {
				t.Errorf("Range %q, If-Range %q; want %q, %q", asked.Get("Range"), asked.Get("If-Range"), test.wantRange, test.wantIf)
			}
		})
	}
}

// Where a server's tag is wrong and two versions were joined, the digest shows it. The
// file is fetched again.
func TestJoinedVersions(t *testing.T) {
	old, data := content(10_000, 42), content(10_000, 43)
	s := scripted(t,
		raw("HTTP/1.1 200 OK\nETag: \"1\"\nContent-Length: 10000\n", old[:5000]),
		raw("HTTP/1.1 206 Partial Content\nETag: \"1\"\nContent-Range: bytes 5000-9999/10000\nContent-Length: 5000\n", data[5000:]),
		raw("HTTP/1.1 200 OK\nETag: \"1\"\nContent-Length: 10000\n", data))
	file, err := fetchIt(t, t.TempDir(), s.URL+"/disk.img", sumOf(data))
	if err != nil {
		t.Fatal(err)
	}
	same(t, file, data)
}

// A password goes only to the server that it was given for.
func TestPassword(t *testing.T) {
	data := content(100, 44)
	other := scripted(t, func(w http.ResponseWriter, r *http.Request) {
		for _, name := range []string{"Authorization", "Referer", "Cookie"} {
			if r.Header.Get(name) != "" {
				t.Errorf("another server was sent %s: %q", name, r.Header.Get(name))
			}
		}
		w.Write(data)
	})
	var user, password string
	s := scripted(t, func(w http.ResponseWriter, r *http.Request) {
		user, password, _ = r.BasicAuth()
		http.Redirect(w, r, other.URL+"/disk.img", http.StatusFound)
	})
	dir := t.TempDir()
	file, err := fetchIt(t, dir, strings.Replace(s.URL, "http://", "http://ann:secret@", 1)+"/disk.img?token=hidden", "")
	if err != nil {
		t.Fatal(err)
	}
	same(t, file, data)
	if user != "ann" || password != "secret" {
		t.Errorf("the server was sent %q, %q", user, password)
	}
	if strings.Contains(file.Reference, "secret") || strings.Contains(file.Reference, "hidden") {
		t.Errorf("Reference = %q; want it without what is secret", file.Reference)
	}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		kept, err := os.ReadFile(path)
		if strings.Contains(path+string(kept), "secret") || strings.Contains(path+string(kept), "hidden") {
			t.Errorf("%s holds what is secret", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	_, err = fetchIt(t, t.TempDir(), strings.Replace(s.URL, "http://", "http://ann:secret@", 1)+"/disk.img?token=hidden", "")
	if err == nil || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "hidden") {
		t.Errorf("Get = %v; want an error without what is secret", err)
	}
}

func TestTLS(t *testing.T) {
	data := content(100, 45)
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write(data) }))
	t.Cleanup(s.Close)
	_, err := fetchIt(t, t.TempDir(), s.URL+"/disk.img", "")
	var unknown x509.UnknownAuthorityError
	if !errors.As(err, &unknown) {
		t.Errorf("a server that nobody vouches for: %v", err)
	}
}

// A server without TLS is asked once. The next step shows no password and no query.
func TestPlainServer(t *testing.T) {
	s := scripted(t, func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("data")) })
	garbage, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer garbage.Close()
	go func() {
		for c, err := garbage.Accept(); err == nil; c, err = garbage.Accept() {
			fmt.Fprint(c, "<html>what was that?</html>")
			c.Close()
		}
	}()
	host := strings.TrimPrefix(s.URL, "http://")
	for _, tt := range []struct{ address, digest, want string }{
		{host + "/disk.img", sumOf(nil), "next: repeat the line with http://" + host + "/disk.img for https://" + host + "/disk.img"},
		{host + "/disk.img", "", "next: curl -I http://" + host + "/disk.img"}, // nothing would verify the file
		{"me:secret@" + host + "/disk.img", sumOf(nil), "next: curl -I http://" + host + "/disk.img"},
		{host + "/disk.img?token=secret", sumOf(nil), "next: curl -I http://" + host + "/disk.img"},
		{garbage.Addr().String() + "/x/disk.img", sumOf(nil), "next: repeat the line with http://"},
	} {
		var steps failedSteps
		reporter := progress.New(&steps)
		_, err := fetchWith(progress.With(t.Context(), reporter), t.TempDir(), "https://"+tt.address, tt.digest)
		reporter.Close()
		if err == nil || !strings.Contains(err.Error(), "speaks http, not https") || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "secret") || steps > 0 {
			t.Errorf("Get of %s = %v after %d waits; want %q", tt.address, err, steps, tt.want)
		}
	}
}

// A server with TLS must not send us on to one without.
func TestNoWayDown(t *testing.T) {
	to := scripted(t, func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("data")) })
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, to.URL+"/disk.img", http.StatusFound)
	}))
	t.Cleanup(s.Close)
	ref, err := parseReference(s.URL + "/disk.img")
	if err != nil {
		t.Fatal(err)
	}
	w := newWeb(nil)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
	w.client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: pool}
	if _, err := w.openFile(t.Context(), fileRequest{ref: ref}, cachedPart{}); err == nil || !strings.Contains(err.Error(), "from https to http://") {
		t.Errorf("open = %v; want it refused", err)
	}
}

func TestProxy(t *testing.T) {
	data := content(100, 46)
	proxy := scripted(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.String() != "http://images.invalid/disk.img" {
			t.Errorf("the proxy was asked for %s", r.URL)
		}
		w.Write(data)
	})
	t.Setenv("HTTP_PROXY", proxy.URL)
	file, err := fetchIt(t, t.TempDir(), "http://images.invalid/disk.img", "")
	if err != nil {
		t.Fatal(err)
	}
	same(t, file, data)
}

// A download resumes after a silent server.
func TestSilence(t *testing.T) {
	before := silenceLimit
	t.Cleanup(func() { silenceLimit = before })
	silenceLimit = 100 * time.Millisecond
	data := content(10_000, 47)
	hold := make(chan struct{})
	s := scripted(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("ETag", `"1"`)
		w.Header().Set("Content-Length", "10000")
		w.Write(data[:5000])
		http.NewResponseController(w).Flush()
		<-hold
	})
	t.Cleanup(func() { close(hold) })
	if _, err := fetchIt(t, t.TempDir(), s.URL+"/disk.img", ""); !errors.Is(err, errSilent) {
		t.Errorf("Get = %v; want %v", err, errSilent)
	}
}

func TestNoRoom(t *testing.T) {
	s := scripted(t, raw("HTTP/1.1 200 OK\nContent-Length: 4000000000000000000\n", nil))
	dir := t.TempDir()
	if _, err := fetchIt(t, dir, s.URL+"/disk.img", ""); err == nil || !strings.Contains(err.Error(), "MiB are needed in") {
		t.Errorf("Get = %v; want to be told of the room", err)
	}
	nothing(t, dir)
}

func TestBesideIsSmall(t *testing.T) {
	s := scripted(t, raw("HTTP/1.1 200 OK\nContent-Length: 400000000\n", nil))
	o, err := Open(t.Context(), s.URL+"/disk.img", Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	if _, err := o.Beside(t.Context(), "disk.img.sig"); err == nil || !strings.Contains(err.Error(), "at most") {
		t.Errorf("Beside = %v; want it refused", err)
	}
}

// The next fetch resumes a killed one.
func TestKilled(t *testing.T) {
	if ref := os.Getenv("KILLED_FETCH"); ref != "" {
		_, err := fetchWith(context.Background(), os.Getenv("KILLED_CACHE"), ref, "")
		t.Fatalf("the fetch went on to its end: %v", err)
	}
	data, dir := content(200_000, 48), t.TempDir()
	hold := make(chan struct{})
	asked := make(chan string, 8)
	s := scripted(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"1"`)
		w.Header().Set("Content-Length", fmt.Sprint(len(data)))
		w.Write(data[:100_000])
		http.NewResponseController(w).Flush()
		select {
		case <-hold:
		case <-r.Context().Done():
		}
	}, func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Header.Get("Range")
		w.Header().Set("ETag", `"1"`)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
	})
	t.Cleanup(func() { close(hold) })
	ref := s.URL + "/disk.img"
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilled$")
	cmd.Env = append(os.Environ(), "KILLED_FETCH="+ref, "KILLED_CACHE="+dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	origin, err := parseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	p := &cacheEntry{dir: filepath.Join(dir, origin.cacheKey()), name: "disk.img"}
	await(t, func() bool {
		r := p.readRecord(".part.json")
		return r != nil && r.SizeBytes > 50_000
	})
	if err := cmd.Process.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	nothing(t, dir)
	file, err := fetchIt(t, dir, ref, "")
	if err != nil {
		t.Fatal(err)
	}
	same(t, file, data)
	if from := <-asked; !strings.HasPrefix(from, "bytes=") || from == "bytes=0-" {
		t.Errorf("the second run asked for %q; want the rest", from)
	}
}

// A damaged partial file is not resumed.
func TestDamagedPart(t *testing.T) {
	data := content(10_000, 49)
	for _, damage := range []string{"", "short", "x" + string(data[1:5000])} {
		dir := t.TempDir()
		var asked string
		breaks := raw("HTTP/1.1 200 OK\nETag: \"1\"\nContent-Length: 10000\n", data[:5000])
		// Held back to nothing by a server that then always breaks.
		s := scripted(t, breaks, status(404), func(w http.ResponseWriter, r *http.Request) {
			asked = r.Header.Get("Range")
			w.Write(data)
		})
		if _, err := fetchIt(t, dir, s.URL+"/disk.img", ""); err == nil {
			t.Fatal("Get over a broken line succeeded")
		}
		origin, err := parseReference(s.URL + "/disk.img")
		if err != nil {
			t.Fatal(err)
		}
		p := &cacheEntry{dir: filepath.Join(dir, origin.cacheKey()), name: "disk.img"}
		if r := p.readRecord(".part.json"); r == nil || r.SizeBytes != 5000 {
			t.Fatalf("kept: %+v; want 5000 bytes", r)
		}
		if err := os.WriteFile(p.filePath(".part"), []byte(damage), 0o600); err != nil {
			t.Fatal(err)
		}
		file, err := fetchIt(t, dir, s.URL+"/disk.img", "")
		if err != nil {
			t.Fatal(err)
		}
		same(t, file, data)
		if asked != "" {
			t.Errorf("asked for %q after a part was damaged; want all", asked)
		}
	}
}

func await(t *testing.T, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it did not come to pass within a minute")
		}
	}
}

// A server's text must not control the terminal.
func TestServersThatPaint(t *testing.T) {
	const escape = "\x1b[2J"
	painted := httptest.NewUnstartedServer(http.NotFoundHandler())
	painted.TLS = &tls.Config{Certificates: []tls.Certificate{certificate(t, "a"+escape+".example")}}
	painted.Config.ErrorLog = log.New(io.Discard, "", 0)
	painted.StartTLS()
	t.Cleanup(painted.Close)
	to := func(host string) string {
		return scripted(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "http://"+host+"/disk.img")
			w.WriteHeader(http.StatusFound)
		}).URL
	}
	for name, url := range map[string]string{
		"a certificate's name": painted.URL,
		"a redirect":           to("%C2%9B31m.invalid"),
		"turned around":        to("%E2%80%AE.invalid"),
	} {
		_, err := fetchIt(t, t.TempDir(), url+"/disk.img", "")
		if err == nil {
			t.Fatalf("%s: Get succeeded", name)
		}
		if text := err.Error(); text != plaintext.Printable(text) {
			t.Errorf("%s: Get = %q; want no character in it that a terminal obeys", name, text)
		}
	}
}

// certificate returns a self-signed certificate.
func certificate(t *testing.T, name string) tls.Certificate {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{name}}
	data, err := x509.CreateCertificate(nil, c, c, public, private)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{data}, PrivateKey: private}
}

// Nobody waits long for a server that does not run.
func TestClosedPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	for _, reference := range []string{"http://" + l.Addr().String() + "/disk.img", "oci://" + l.Addr().String() + "/disk:v1"} {
		var steps failedSteps
		reporter := progress.New(&steps)
		_, err = fetchWith(progress.With(t.Context(), reporter), t.TempDir(), reference, "")
		reporter.Close()
		if !errors.Is(err, syscall.ECONNREFUSED) || int(steps) != refusalsInARow-1 {
			t.Errorf("Get of %s = %v after %d waits; want %d", reference, err, steps, refusalsInARow-1)
		}
		if reference[0] == 'h' && !Unreachable(err) {
			t.Errorf("Unreachable(%v) = false; want true", err)
		}
	}
	moved := scripted(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://"+l.Addr().String()+r.URL.Path, http.StatusFound)
	})
	if _, err := fetchIt(t, t.TempDir(), moved.URL+"/disk.img", ""); !errors.Is(err, syscall.ECONNREFUSED) || Unreachable(err) {
		t.Errorf("after a redirect to a closed port: %v, and Unreachable is %t; want false: the server itself answers", err, Unreachable(err))
	}
}

// failedSteps counts steps that failed.
type failedSteps int

func (f *failedSteps) Event(e progress.Event) {
	if e.State == progress.Failed {
		*f++
	}
}

func (f *failedSteps) Close() {}

// The cache of an earlier release stays of use: the folder of an address has the same name.
func TestCacheKeyStays(t *testing.T) {
	ref, err := parseReference("https://me@example.com/lab/disk.wic.zst?v=2")
	if err != nil || ref.cacheKey() != "2584ce56e112c603" {
		t.Errorf("cacheKey = %s, %v; caches of earlier releases would be lost", ref.cacheKey(), err)
	}
}

// A run that ends in the wait between two tries removes a part that no run can resume.
func TestCanceledInTheWait(t *testing.T) {
	before := firstWait
	t.Cleanup(func() { firstWait = before })
	firstWait = time.Minute
	s := scripted(t, raw("HTTP/1.1 200 OK\nContent-Length: 10000\n", content(5000, 50)))
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	dir := t.TempDir()
	if _, err := fetchWith(ctx, dir, s.URL+"/disk.img", ""); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Get = %v; want %v", err, context.DeadlineExceeded)
	}
	if parts, err := filepath.Glob(dir + "/*/*.part"); err != nil || len(parts) > 0 {
		t.Errorf("left: %q, %v", parts, err)
	}
}
