package fetch

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"slipway/flash/boardssh"
	"slipway/flash/boardssh/sshd"
	"slipway/layers/progress"

	"slipway/flash/sealed"
)

func TestMain(m *testing.M) {
	os.Unsetenv("SSH_AUTH_SOCK") // the person's own keys are no part of the tests
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY", "all_proxy"} {
		os.Unsetenv(name)
	}
	firstWait = time.Millisecond
	checkpointBytes = 4 << 10
	os.Exit(m.Run())
}

// server is a place that the suite fetches from.
type server interface {
	// put makes data the content of the file with a name.
	put(t *testing.T, name string, data []byte)
	// reference is the file's, through a relay that listens at addr.
	reference(addr, name string) string
	addr() string
}

var servers = map[string]func(t *testing.T) server{
	"http": newWebServer,
	"sftp": newSFTPServer,
	"oci":  newOCIServer,
}

func eachServer(t *testing.T, test func(t *testing.T, s server)) {
	for name, start := range servers {
		t.Run(name, func(t *testing.T) { test(t, start(t)) })
	}
}

func content(size int, seed uint64) []byte {
	data := make([]byte, size)
	r := rand.NewChaCha8([32]byte{byte(seed)})
	r.Read(data)
	return data
}

func sumOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func fetchIt(t *testing.T, dir, reference, digest string) (File, error) {
	t.Helper()
	return fetchWith(t.Context(), dir, reference, digest)
}

func fetchWith(ctx context.Context, dir, reference, digest string) (File, error) {
	o, err := Open(ctx, reference, Options{Dir: dir, Arch: "arm64"})
	if err != nil {
		return File{}, err
	}
	defer o.Close()
	return o.Get(ctx, digest)
}

func same(t *testing.T, file File, want []byte) {
	t.Helper()
	got, err := os.ReadFile(file.Path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) || file.SizeBytes != int64(len(want)) || file.SHA256 != sumOf(want) {
		t.Errorf("fetched %d bytes of sha256 %s, said to be %+v; want %d of %s", len(got), sumOf(got), file, len(want), sumOf(want))
	}
	if got, err := file.ReadAll(t.Context(), 1<<30); err != nil || !bytes.Equal(got, want) {
		t.Errorf("its content is %d bytes, %v", len(got), err)
	}
}

// What was proved is what is read, whoever writes to the cache's folder.
func TestCacheIsWrittenTo(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		data, dir := content(700_001, 1), t.TempDir()
		s.put(t, "disk.img", data)
		for _, when := range []string{"fetched", "in the cache"} {
			file, err := fetchIt(t, dir, s.reference(s.addr(), "disk.img"), "")
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(os.Rename(file.Path, file.Path+".old"), os.WriteFile(file.Path, content(700_001, 2), 0o600)); err != nil {
				t.Fatal(err)
			}
			p := make([]byte, len(data))
			if _, err := file.Content.ReadAt(p, 0); err != nil || !bytes.Equal(p, data) {
				t.Errorf("%s, renamed: %v", when, err)
			}
			if err := os.WriteFile(file.Path+".old", content(700_001, 2), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := file.Content.ReadAt(p, 0); !errors.Is(err, sealed.ErrChanged) {
				t.Errorf("%s, edited: %v", when, err)
			}
			file.Content.Close()
			if err := os.WriteFile(file.Path, data, 0o600); err != nil { // the cache is whole again
				t.Fatal(err)
			}
		}
	})
}

// nothing fails the test where the cache has a file that looks complete.
func nothing(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && (strings.HasSuffix(path, ".img") || strings.HasSuffix(path, ".img.json")) {
			t.Errorf("%s is left", path)
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
}

func TestFetch(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		for _, size := range []int{0, 1, 4096, 700_001} {
			data, dir := content(size, 1), t.TempDir()
			s.put(t, "disk.img", data)
			for range 2 { // the second from the cache
				file, err := fetchIt(t, dir, s.reference(s.addr(), "disk.img"), "")
				if err != nil {
					t.Fatal(err)
				}
				same(t, file, data)
			}
		}
	})
}

// The connection breaks at every place of the response, headers included.
func TestBrokenConnection(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		data := content(64<<10, 2)
		s.put(t, "disk.img", data)
		step := int64(4093)
		if _, slow := s.(*sftpServer); slow { // each connection is a process
			step *= 5
		}
		for cut := int64(1); cut < 72<<10; cut += step {
			r := newRelay(t, s.addr(), cut, cut+8<<10, cut+16<<10)
			file, err := fetchIt(t, t.TempDir(), s.reference(r.addr(), "disk.img"), "")
			if err != nil {
				t.Fatalf("cut after %d bytes: %v", cut, err)
			}
			same(t, file, data)
		}
	})
}

// The next run resumes an unfinished one.
func TestNextRunGoesOn(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		data, dir := content(4_000_000, 3), t.TempDir()
		s.put(t, "disk.img", data)
		// Over SSH, what one line has brought can be lost with it: x/crypto gives up what it
		// has not handed on. Three lines are not lost in a row.
		r := newRelay(t, s.addr(), append(slices.Repeat([]int64{700_000}, 3), slices.Repeat([]int64{1}, 40)...)...)
		ref := s.reference(r.addr(), "disk.img")
		if _, err := fetchIt(t, dir, ref, ""); err == nil || !strings.Contains(err.Error(), "goes on from there") {
			t.Fatalf("Get over a broken line = %v; want what is kept", err)
		}
		nothing(t, dir)
		r.fix()
		file, err := fetchIt(t, dir, ref, "")
		if err != nil {
			t.Fatal(err)
		}
		same(t, file, data)
		if passed := r.passed(); passed > 3_800_000 {
			t.Errorf("the second run was sent %d bytes; want at most those that were missing", passed)
		}
	})
}

func TestNewVersion(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		dir := t.TempDir()
		ref := s.reference(s.addr(), "disk.img")
		var before File
		for i := range 3 {
			data := content(100_000+i, uint64(4+i))
			s.put(t, "disk.img", data)
			file, err := fetchIt(t, dir, ref, "")
			if err != nil {
				t.Fatal(err)
			}
			same(t, file, data)
			if _, err := os.Stat(before.Path); i > 0 && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the former version is kept: %v", err)
			}
			before = file
		}
	})
}

// Parts of two versions are never joined.
func TestChangedOnTheWay(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		dir := t.TempDir()
		s.put(t, "disk.img", content(1_500_000, 5))
		r := newRelay(t, s.addr(), append([]int64{700_000}, slices.Repeat([]int64{1}, 40)...)...)
		ref := s.reference(r.addr(), "disk.img")
		if _, err := fetchIt(t, dir, ref, ""); err == nil {
			t.Fatal("Get over a broken line succeeded")
		}
		data := content(1_499_999, 6)
		s.put(t, "disk.img", data)
		r.fix()
		file, err := fetchIt(t, dir, ref, "")
		if err != nil {
			t.Fatal(err)
		}
		same(t, file, data)
	})
}

// Another version of the same size and the same second, which SFTP cannot tell.
func TestChangedUnseenOverSSH(t *testing.T) {
	s, dir := newSFTPServer(t).(*sftpServer), t.TempDir()
	r := newRelay(t, s.addr(), append([]int64{700_000}, slices.Repeat([]int64{1}, 40)...)...)
	ref := s.reference(r.addr(), "disk.img")
	s.put(t, "disk.img", content(1_500_000, 11))
	if _, err := fetchIt(t, dir, ref, ""); err == nil {
		t.Fatal("Get over a broken line succeeded")
	}
	data := content(1_500_000, 12)
	s.at = s.at.Add(-time.Minute)
	s.put(t, "disk.img", data)
	r.fix()
	file, err := fetchIt(t, dir, ref, "")
	if err != nil {
		t.Fatal(err)
	}
	same(t, file, data)
}

func TestDigest(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		data, dir := content(50_000, 7), t.TempDir()
		s.put(t, "disk.img", data)
		ref := s.reference(s.addr(), "disk.img")
		_, err := fetchIt(t, dir, ref, sumOf([]byte("another")))
		if err == nil || !strings.Contains(err.Error(), sumOf(data)) || !strings.Contains(err.Error(), sumOf([]byte("another"))) {
			t.Errorf("Get with a wrong digest = %v; want both digests in it", err)
		}
		nothing(t, dir)
		file, err := fetchIt(t, dir, ref, sumOf(data))
		if err != nil {
			t.Fatal(err)
		}
		same(t, file, data)
		if _, err := fetchIt(t, dir, ref, sumOf([]byte("another"))); err == nil {
			t.Error("the cache served a file with another digest")
		}
	})
}

// A damaged file of the cache is fetched again.
func TestDamagedCache(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		data, dir := content(50_000, 8), t.TempDir()
		s.put(t, "disk.img", data)
		for _, digest := range []string{"", sumOf(data)} {
			file, err := fetchIt(t, dir, s.reference(s.addr(), "disk.img"), digest)
			if err != nil {
				t.Fatal(err)
			}
			same(t, file, data)
			if err := os.WriteFile(file.Path, append([]byte("x"), data[1:]...), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestMissing(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		s.put(t, "disk.img", []byte("image"))
		o, err := Open(t.Context(), s.reference(s.addr(), "disk.img"), Options{Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		defer o.Close()
		if _, err := o.Beside(t.Context(), "disk.img.bmap"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Beside = %v; want %v", err, fs.ErrNotExist)
		}
		if o.Name() != "disk.img" {
			t.Errorf("Name = %q", o.Name())
		}
	})
}

func TestBeside(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		s.put(t, "disk.img", []byte("image"))
		s.put(t, "disk.img.bmap", []byte("map"))
		o, err := Open(t.Context(), s.reference(s.addr(), "disk.img"), Options{Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		defer o.Close()
		file, err := o.Beside(t.Context(), "disk.img.bmap")
		if err != nil {
			t.Fatal(err)
		}
		same(t, file, []byte("map"))
	})
}

// Of two downloads at once, one waits and then reuses the file.
func TestTwoAtOnce(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		data, dir := content(200_000, 9), t.TempDir()
		s.put(t, "disk.img", data)
		var group sync.WaitGroup
		for range 4 {
			group.Go(func() {
				file, err := fetchIt(t, dir, s.reference(s.addr(), "disk.img"), "")
				if err != nil {
					t.Error(err)
					return
				}
				same(t, file, data)
			})
		}
		group.Wait()
	})
}

func TestCanceled(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		data, dir := content(300_000, 10), t.TempDir()
		s.put(t, "disk.img", data)
		r := newRelay(t, s.addr(), -100_000) // holds the line from there on
		ctx, cancel := context.WithCancelCause(t.Context())
		stopped := errors.New("stopped by a person")
		go func() {
			<-r.held
			cancel(stopped)
		}()
		_, err := fetchWith(ctx, dir, s.reference(r.addr(), "disk.img"), "")
		if !errors.Is(err, stopped) || strings.Contains(err.Error(), "\nnext: ") {
			t.Errorf("Get = %v; want %v, without a next step: the same line continues", err, stopped)
		}
		nothing(t, dir)
	})
}

// Permanent errors are not retried.
func TestOverSSHTriedOnce(t *testing.T) {
	s := newSFTPServer(t).(*sftpServer)
	b := &sftpHost{}
	defer b.closeConnections()
	for _, path := range []string{s.dir, filepath.Join(s.dir, "none"), "/dev/null"} {
		var f permanentError
		if _, err := b.openFile(t.Context(), fileRequest{ref: reference{host: s.addr(), path: path}}, cachedPart{}); !errors.As(err, &f) {
			t.Errorf("%s: %v; want it to be final", path, err)
		}
	}
	var f permanentError
	if err := markPermanent(fmt.Errorf("reach: %w", &net.DNSError{IsNotFound: true})); !errors.As(err, &f) {
		t.Error("a name that nobody has is tried again")
	}
}

// The user sees that a download waits for a server.
func TestWaitIsShown(t *testing.T) {
	hangUp := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) } // net/http itself tries an open connection again
	s := scripted(t, status(http.StatusServiceUnavailable), hangUp, hangUp, func(w http.ResponseWriter, _ *http.Request) {
		w.Write([]byte("image"))
	})
	var events []progress.Event
	ctx := progress.With(t.Context(), progress.New(sink{&events}))
	if _, err := fetchWith(ctx, t.TempDir(), s.URL+"/disk.img", ""); err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(events, func(e progress.Event) bool { return strings.Contains(e.Detail, "503") }) {
		t.Errorf("shown: %+v; want why it waited", events)
	}
	if !slices.ContainsFunc(events, func(e progress.Event) bool {
		return strings.HasSuffix(e.Step, " for disk.img") && strings.Contains(e.Detail, "the server closed the connection")
	}) {
		t.Errorf("shown: %+v; want the file, and that the server closed the connection", events)
	}
	if slices.ContainsFunc(events, func(e progress.Event) bool { return e.State == progress.Done && strings.Contains(e.Detail, "503") }) {
		t.Errorf("shown: %+v; want no try that failed called done", events)
	}
}

type sink struct{ events *[]progress.Event }

func (s sink) Event(e progress.Event) { *s.events = append(*s.events, e) }

func (sink) Close() {}

// relay forwards TCP. Its first connections break, each after so many bytes towards the
// client. A negative number holds the connection there instead.
type relay struct {
	listen net.Listener
	to     string
	held   chan struct{} // closed when a line is held

	mu    sync.Mutex
	cuts  []int64
	sent  int64
	conns []net.Conn
}

func newRelay(t *testing.T, to string, cuts ...int64) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{listen: l, to: to, cuts: cuts, held: make(chan struct{})}
	go r.serve()
	t.Cleanup(func() {
		l.Close()
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, c := range r.conns {
			c.Close()
		}
	})
	return r
}

func (r *relay) addr() string { return r.listen.Addr().String() }

// fix keeps all further connections, and restarts the count.
func (r *relay) fix() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cuts, r.sent = nil, 0
}

func (r *relay) passed() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sent
}

func (r *relay) serve() {
	for {
		in, err := r.listen.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", r.to)
		if err != nil {
			in.Close()
			continue
		}
		r.mu.Lock()
		cut := int64(1 << 60)
		if len(r.cuts) > 0 {
			cut, r.cuts = r.cuts[0], r.cuts[1:]
		}
		r.conns = append(r.conns, in, out)
		r.mu.Unlock()
		go func() {
			defer in.Close()
			io.Copy(out, in)
			io.Copy(io.Discard, in) // until the client has read all that it was sent
		}()
		go r.pass(in, out, cut)
	}
}

func (r *relay) pass(in, out net.Conn, cut int64) {
	limit := max(cut, -cut)
	n, _ := io.CopyN(counted{in, r}, out, limit)
	if cut < 0 && n == limit {
		close(r.held)
		return
	}
	// Closing a connection while the client still sends would discard sent data.
	in.(*net.TCPConn).CloseWrite()
	out.Close()
}

type counted struct {
	io.Writer
	r *relay
}

func (c counted) Write(p []byte) (int, error) {
	c.r.mu.Lock()
	c.r.sent += int64(len(p))
	c.r.mu.Unlock()
	return c.Writer.Write(p)
}

// webServer is Go's own, with files of different times.
type webServer struct {
	*httptest.Server
	mu    sync.Mutex
	files map[string][]byte
	at    time.Time
}

func newWebServer(t *testing.T) server {
	s := &webServer{files: map[string][]byte{}, at: time.Now().Add(-time.Hour)}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *webServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	data, ok := s.files[r.URL.Path]
	at := s.at
	s.mu.Unlock()
	if !ok {
		http.NotFound(w, r)
		return
	}
	http.ServeContent(w, r, "", at, bytes.NewReader(data))
}

func (s *webServer) put(_ *testing.T, name string, data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files["/"+name], s.at = data, s.at.Add(time.Minute)
}

func (s *webServer) addr() string { return s.Listener.Addr().String() }

func (s *webServer) reference(addr, name string) string { return "http://" + addr + "/" + name }

// sftpServer is a real sshd with a folder.
type sftpServer struct {
	*sshd.Server
	dir string
	at  time.Time
}

func newSFTPServer(t *testing.T) server {
	if _, err := os.Stat(sshd.Program); err != nil {
		t.Skipf("%s is missing: install the Debian package openssh-server", sshd.Program)
	}
	s, err := sshd.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	dialWith(t, s)
	return &sftpServer{s, t.TempDir(), time.Now().Add(-time.Hour)}
}

// dialWith makes the keys of a server those of the user. A relay has another port.
func dialWith(t *testing.T, s *sshd.Server) {
	t.Helper()
	pinned, err := os.ReadFile(s.KnownHosts)
	if err != nil {
		t.Fatal(err)
	}
	_, key, _ := strings.Cut(string(pinned), " ")
	file := filepath.Join(t.TempDir(), "known_hosts")
	if err := os.WriteFile(file, []byte("here "+key), 0o600); err != nil {
		t.Fatal(err)
	}
	before := dialHost
	t.Cleanup(func() { dialHost = before })
	dialHost = func(ctx context.Context, host string) (*boardssh.Conn, error) {
		name, port, err := net.SplitHostPort(host)
		if err != nil {
			return nil, err
		}
		number, err := strconv.Atoi(port)
		if err != nil {
			return nil, err
		}
		return boardssh.Dial(ctx, boardssh.Address{Host: name, Port: number, HostKeyAlias: "here", KnownHosts: []string{file}, Identities: []string{s.Identity}})
	}
}

func (s *sftpServer) put(t *testing.T, name string, data []byte) {
	t.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	s.at = s.at.Add(time.Minute)
	if err := os.Chtimes(path, s.at, s.at); err != nil {
		t.Fatal(err)
	}
}

func (s *sftpServer) addr() string { return fmt.Sprintf("127.0.0.1:%d", s.Port) }

func (s *sftpServer) reference(addr, name string) string {
	return "ssh://" + addr + filepath.Join(s.dir, name)
}
