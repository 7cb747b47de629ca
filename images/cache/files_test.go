package cache

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const object = "universal/ab/cd/sstate:tool-native:x86_64-linux:1.0:r0:x86_64:12:abcd_populate_sysroot.tar.zst"

// filesServer serves a folder with one of everything that may and may not be given.
func filesServer(t *testing.T) *httptest.Server {
	t.Helper()
	dir := t.TempDir()
	content := map[string]string{
		"sstate-cache/" + object:                  "0123456789",
		"sstate-cache/" + object + ".siginfo":     "{}",
		"sstate-cache/" + object + ".k3jH2s1A":    "half",
		"sstate-cache/universal/.hidden.tgz":      "hidden",
		"sstate-cache/universal/notes.txt":        "notes",
		"downloads/source-1.0.tar.gz":             "source",
		"downloads/source-1.0.tar.gz.done":        "",
		"downloads/half-1.0.tar.gz":               "ha",
		"downloads/git2/example.com.repo/HEAD":    "ref",
		"downloads/.git2.done":                    "",
		"secret.tar.zst":                          "secret",
		"secret.tar.zst.done":                     "",
		"sstate-cache/universal/folder.tar.zst/x": "",
	}
	for name, text := range content {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{
		"sstate-cache/out.tar.zst": filepath.Join(dir, "secret.tar.zst"), "sstate-cache/up.tar.zst": "../secret.tar.zst",
		"sstate-cache/in.tar.zst": object, "downloads/up": "..",
	} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(dir, "sstate-cache/fifo.tar.zst"), 0o644); err != nil {
		t.Fatal(err)
	}
	sstate, err := openServedFolder(filepath.Join(dir, "sstate-cache"), completeSstate)
	if err != nil {
		t.Fatal(err)
	}
	downloads, err := openServedFolder(filepath.Join(dir, "downloads"), completeDownload)
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(newFilesHandler(sstate, downloads, descriptor{Slipway: descriptorKind, Hashserv: 8601, PRServ: 8602, Folder: dir, Key: "secret"}))
	t.Cleanup(web.Close)
	return web
}

// raw sends a request line as it is, which http.Client would clean up.
func raw(t *testing.T, web *httptest.Server, request string) (status int, header http.Header, body string) {
	t.Helper()
	conn, err := net.DialTimeout("tcp", web.Listener.Addr().String(), 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: cache\r\nConnection: close\r\n\r\n", request)
	method, _, _ := strings.Cut(request, " ")
	response, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		t.Fatalf("%s: %v", request, err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, response.Header, string(data)
}

func TestFiles(t *testing.T) {
	web := filesServer(t)
	colons := strings.ReplaceAll(object, ":", "%3A")
	tests := []struct {
		request string
		status  int
		body    string // "" is not looked at
	}{
		{"GET /sstate/" + object, 200, "0123456789"},
		{"GET /sstate/" + colons, 200, "0123456789"},
		{"HEAD /sstate/" + object, 200, ""},
		{"GET /sstate/" + object + ".siginfo", 200, "{}"},
		{"GET /sstate/in.tar.zst", 200, "0123456789"},
		{"GET /downloads/source-1.0.tar.gz", 200, "source"},
		{"HEAD /sstate/", 200, ""}, // how the other side checks whether a mirror is there
		{"HEAD /downloads/", 200, ""},
		{"GET /sstate/" + object + ".k3jH2s1A", 404, ""}, // being written
		{"GET /downloads/half-1.0.tar.gz", 404, ""},      // being fetched
		{"GET /downloads/git2/example.com.repo/HEAD", 404, ""},
		{"GET /downloads/.git2", 404, ""},
		{"GET /sstate/universal/.hidden.tgz", 404, ""},
		{"GET /sstate/universal/notes.txt", 404, ""},
		{"GET /sstate/universal/", 404, ""},
		{"GET /sstate/universal/folder.tar.zst", 404, ""},
		{"GET /sstate/fifo.tar.zst", 404, ""},
		{"GET /sstate/none.tar.zst", 404, ""},
		{"GET /sstate/out.tar.zst", 404, ""},
		{"GET /sstate/up.tar.zst", 404, ""},
		{"GET /sstate/%2e%2e/secret.tar.zst", 404, ""},
		{"GET /sstate/..%2fsecret.tar.zst", 404, ""},
		{"GET /sstate//etc/passwd", 0, ""},
		{"GET /downloads/up/secret.tar.zst", 404, ""},
		{"GET /downloads/..%2fsecret.tar.zst", 404, ""},
		{"GET /", 404, ""},
		{"GET /lock", 404, ""},
		{"PUT /sstate/" + object, 405, ""},
		{"DELETE /downloads/source-1.0.tar.gz", 405, ""},
		{"POST /cache.json", 405, ""},
	}
	for _, tt := range tests {
		status, _, body := raw(t, web, tt.request)
		if tt.status != 0 && status != tt.status || tt.body != "" && body != tt.body {
			t.Errorf("%s = %d %q; want %d %q", tt.request, status, body, tt.status, tt.body)
		}
		if strings.Contains(body, "secret") || strings.Contains(body, "root:") {
			t.Errorf("%s gave away %q", tt.request, body)
		}
	}
}

// wget goes on where it was broken off.
func TestFilesInParts(t *testing.T) {
	web := filesServer(t)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, web.URL+"/sstate/"+object, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Range", "bytes=4-6")
	response, err := web.Client().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusPartialContent || string(body) != "456" {
		t.Errorf("bytes 4 to 6 = %d %q, %v; want 206 456", response.StatusCode, body, err)
	}
}

// Only this machine learns where the folder is, since that lets it write there.
func TestDescriptorKeepsItsFolder(t *testing.T) {
	self := descriptor{Slipway: descriptorKind, Bitbake: "2.8", Hashserv: 8601, PRServ: 8602, Folder: "/srv/build", Key: "k"}
	for from, want := range map[string]descriptor{
		"192.0.2.7:3000": {Slipway: descriptorKind, Bitbake: "2.8", Hashserv: 8601, PRServ: 8602},
		"192.0.2.1:3000": self,
	} {
		request := httptest.NewRequest(http.MethodGet, descriptorPath, nil)
		request.RemoteAddr = from
		request = request.WithContext(contextWithLocal(request, "192.0.2.1:8600"))
		answer := httptest.NewRecorder()
		self.sendDescriptor(answer, request)
		want.version = Version{2, 8}
		if got, err := parseDescriptor(answer.Body.Bytes()); err != nil || got != want {
			t.Errorf("to %s: %+v, %v; want %+v", from, got, err, want)
		}
	}
}

func FuzzDescriptor(f *testing.F) {
	f.Add([]byte(`{"slipway":"cache 1","bitbake":"2.8","hashserv":8601,"prserv":8602,"folder":"/srv","key":"k"}`))
	f.Add([]byte(`{"slipway":"cache 1","bitbake":"2.8","hashserv":0,"prserv":8602}`))
	f.Add([]byte(`{"slipway":"cache 2"}`))
	f.Add([]byte(`{"slipway":"cache 1","hashserv":8601,"prserv":70000}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := parseDescriptor(data)
		if err == nil && (d.Hashserv < 1 || d.Hashserv > 65535 || d.PRServ < 1 || d.PRServ > 65535) {
			t.Errorf("took ports %d and %d", d.Hashserv, d.PRServ)
		}
		if got := d.writableFolder(); err == nil && got != "" {
			t.Errorf("would fill %q without its key", got)
		}
	})
}
