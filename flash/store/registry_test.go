package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/crypto/bcrypt"

	"slipway/images"
)

// startRegistry starts Debian's docker-registry, and returns its address. settings are lines
// of its config.yml.
func startRegistry(t *testing.T, settings ...string) string {
	t.Helper()
	program, err := exec.LookPath("docker-registry")
	if err != nil {
		t.Skip("no docker-registry; install it: apt-get install docker-registry")
	}
	t.Setenv("REGISTRY_AUTH_FILE", filepath.Join(t.TempDir(), "none.json"))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := listener.Addr().String()
	listener.Close()
	dir := t.TempDir()
	config := filepath.Join(dir, "config.yml")
	text := fmt.Sprintf("version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\nhttp: {addr: %q}\n", addr)
	if len(settings) == 0 {
		settings = []string{deletes(dir, true)}
	}
	write(t, config, text+strings.ReplaceAll(strings.Join(settings, "\n"), "DIR", dir)+"\n")
	cmd := exec.CommandContext(context.Background(), program, "serve", config)
	var said bytes.Buffer
	cmd.Stderr = &said
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "REGISTRY_") }) // which it takes for settings
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Logf("docker-registry: %.2000s", said.String())
		}
	})
	for began := time.Now(); time.Since(began) < 5*time.Second; time.Sleep(20 * time.Millisecond) {
		if c, err := net.Dial("tcp", addr); err == nil {
			c.Close()
			return addr
		}
	}
	t.Fatal("docker-registry does not listen")
	return ""
}

func deletes(dir string, on bool) string {
	return fmt.Sprintf("storage: {filesystem: {rootdirectory: DIR/registry}, delete: {enabled: %v}}", on)
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// proxy passes connections on to a server, counts bytes, and can cut the line.
type proxy struct {
	net.Listener
	to       string
	up, down atomic.Int64
	mu       sync.Mutex
	cutUp    int64 // after so many more bytes to the server, once; 0: never
	cutDown  int64
	cuts     int
	onCut    func()
}

func startProxy(t *testing.T, to string) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{Listener: listener, to: to, onCut: func() {}}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go p.pass(c)
		}
	}()
	return p
}

func (p *proxy) addr() string { return p.Addr().String() }

func (p *proxy) pass(client net.Conn) {
	server, err := net.Dial("tcp", p.to)
	if err != nil {
		client.Close()
		return
	}
	end := sync.OnceFunc(func() { client.Close(); server.Close() })
	go p.copy(server, client, &p.up, &p.cutUp, end)
	p.copy(client, server, &p.down, &p.cutDown, end)
}

func (p *proxy) copy(to, from net.Conn, count *atomic.Int64, cut *int64, end func()) {
	defer end()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		count.Add(int64(n))
		p.mu.Lock()
		isCut := *cut > 0 && int64(n) >= *cut
		*cut -= min(*cut, int64(n))
		if isCut {
			p.cuts++
		}
		p.mu.Unlock()
		if isCut {
			p.onCut()
			return
		}
		if _, werr := to.Write(buf[:n]); err != nil || werr != nil {
			return
		}
	}
}

func (p *proxy) cutAfter(up, down int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutUp, p.cutDown, p.cuts = up, down, 0
	p.up.Store(0)
	p.down.Store(0)
}

func (p *proxy) wasCut() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cuts > 0
}

// version is one version of an artifact for tests.
type version struct {
	key   string
	built time.Time
	bytes int
	extra map[string]string // files that artifact.json does not list
	board string
}

// newArtifact makes an artifact whose container is the same in all versions.
func newArtifact(t testing.TB, v version) string {
	t.Helper()
	dir := t.TempDir()
	a := images.Artifact{Board: "orin-lab", Arch: "arm64", Key: v.key + strings.Repeat("0", 60), Built: v.built}
	if v.board != "" {
		a.Board = v.board
	}
	if v.built.IsZero() {
		a.Built = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	}
	if v.bytes == 0 {
		v.bytes = 300_000
	}
	for _, f := range []struct {
		kind, name string
		data       []byte
	}{{images.DiskImage, "disk.img", random(v.bytes, v.key)}, {images.Container, "app.oci.tar", random(v.bytes, "same")}, {images.Provenance, "provenance.json", []byte("{}\n")}} {
		write(t, filepath.Join(dir, f.name), string(f.data))
		a.Files = append(a.Files, images.File{Kind: f.kind, Name: f.name, SizeBytes: int64(len(f.data)), SHA256: digest.FromBytes(f.data).Encoded()})
	}
	for name, text := range v.extra {
		if name == reportName {
			name = filepath.Join(reportsOf(dir), a.Board, name)
			if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
				t.Fatal(err)
			}
			write(t, name, text)
			continue
		}
		write(t, filepath.Join(dir, name), text)
	}
	if err := a.Save(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// reportsOf is the folder of reports for an artifact of newArtifact's.
func reportsOf(dir string) string { return dir + "-reports" }

func random(n int, seed string) []byte {
	data := make([]byte, n)
	r := rand.NewChaCha8(sha256.Sum256([]byte(seed)))
	r.Read(data)
	return data
}

// sameFiles compares what an artifact's folder has with another one.
func sameFiles(t *testing.T, got, want string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "diff", "-r", got, want).CombinedOutput(); err != nil {
		t.Errorf("%s and %s differ: %s", got, want, out)
	}
}

func push(t *testing.T, dir, to string, tags ...string) Pushed {
	t.Helper()
	p, err := Push(t.Context(), dir, reportsOf(dir), to, tags)
	if err != nil {
		t.Fatalf("Push(%s) = %v", to, err)
	}
	return p
}

func pullInto(t *testing.T, from, into string) Pulled {
	t.Helper()
	p, err := Pull(t.Context(), from, PullOptions{Into: into})
	if err != nil {
		t.Fatalf("Pull(%s) = %v", from, err)
	}
	return p
}

// A cut line costs what was in the middle, and no more.
func TestCutLine(t *testing.T) {
	p := startProxy(t, startRegistry(t))
	const each = 24 << 20
	dir := newArtifact(t, version{key: "1", bytes: each})
	ref := p.addr() + "/lab/images:v1"
	p.cutAfter(each/2, 0)
	push(t, dir, ref)
	if up := p.up.Load(); !p.wasCut() || up > 3*each+each/2 {
		t.Errorf("cut %v: a push of %d bytes carried %d", p.wasCut(), 2*each, up)
	}
	into := filepath.Join(t.TempDir(), "new")
	p.cutAfter(0, each+each/2)
	pullInto(t, ref, into)
	if down := p.down.Load(); !p.wasCut() || down > 2*each+each/4 {
		t.Errorf("cut %v: a pull of %d bytes carried %d", p.wasCut(), 2*each, down)
	}
	sameFiles(t, into, dir)
}

// A pull that was stopped goes on with what is there, and until its end no artifact is there.
func TestStoppedPull(t *testing.T) {
	p := startProxy(t, startRegistry(t))
	const each = 40 << 20
	dir := newArtifact(t, version{key: "1", bytes: each})
	ref, into := p.addr()+"/lab/images:v1", t.TempDir()
	push(t, dir, ref)
	ctx, cancel := context.WithCancel(t.Context())
	p.onCut = cancel
	p.cutAfter(0, each+each/2)
	if _, err := Pull(ctx, ref, PullOptions{Into: into}); err == nil {
		t.Fatal("a stopped pull succeeded")
	}
	if _, err := os.Stat(images.ArtifactPath(into)); err == nil {
		t.Error("artifact.json is there after half of a pull")
	}
	p.onCut = func() {}
	p.cutAfter(0, 0)
	pullInto(t, ref, into)
	if down := p.down.Load(); down > each {
		t.Errorf("the second pull of %d bytes carried %d", 2*each, down)
	}
	sameFiles(t, into, dir)
}

// A stopped push tags nothing, and what it sent whole does not travel again.
func TestStoppedPush(t *testing.T) {
	p := startProxy(t, startRegistry(t))
	dir := newArtifact(t, version{key: "1", bytes: 16 << 20})
	ref := p.addr() + "/lab/images:v1"
	ctx, cancel := context.WithCancel(t.Context())
	p.onCut = cancel
	p.cutAfter(24<<20, 0)
	if _, err := Push(ctx, dir, reportsOf(dir), ref, nil); err == nil {
		t.Fatal("a stopped push succeeded")
	}
	p.onCut = func() {}
	p.cutAfter(0, 0)
	if _, err := Pull(t.Context(), ref, PullOptions{Into: t.TempDir()}); err == nil {
		t.Error("a stopped push left a tag")
	}
	push(t, dir, ref)
}

// logIn writes the login file of a user, and names it.
func logIn(t *testing.T, host, user, password string) {
	t.Helper()
	auth := map[string]any{"auths": map[string]any{host: map[string]string{"auth": base64.StdEncoding.EncodeToString([]byte(user + ":" + password))}}}
	text, err := json.Marshal(auth)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "auth.json")
	write(t, file, string(text))
	t.Setenv("REGISTRY_AUTH_FILE", file)
}

func TestLogin(t *testing.T) {
	hash, err := bcrypt.GenerateFromPassword([]byte("secret"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	passwords := filepath.Join(t.TempDir(), "htpasswd")
	write(t, passwords, "ann:"+string(hash)+"\n")
	addr := startRegistry(t, deletes("", true), fmt.Sprintf("auth: {htpasswd: {realm: lab, path: %q}}", passwords))
	dir, ref := newArtifact(t, version{key: "1"}), addr+"/lab/images:v1"
	if _, err := Push(t.Context(), dir, reportsOf(dir), ref, nil); err == nil || !strings.Contains(err.Error(), "podman login "+addr) {
		t.Errorf("without a login: %v; want the command to log in", err)
	}
	logIn(t, addr, "ann", "wrong")
	if _, err := Push(t.Context(), dir, reportsOf(dir), ref, nil); err == nil || !strings.Contains(err.Error(), "podman login "+addr) || strings.Contains(err.Error(), "wrong") {
		t.Errorf("with a wrong password: %v; want the command to log in, and no password", err)
	}
	logIn(t, addr, "ann", "secret")
	push(t, dir, ref)
	into := t.TempDir()
	pullInto(t, ref, into)
	sameFiles(t, into, dir)
	if _, err := Clean(t.Context(), addr+"/lab/images", CleanOptions{Keep: 1, Yes: true}); err != nil {
		t.Error(err)
	}
}

func TestRefusedDeletes(t *testing.T) {
	addr := startRegistry(t, deletes("", false))
	repo := addr + "/lab/images"
	push(t, newArtifact(t, version{key: "1"}), repo)
	push(t, newArtifact(t, version{key: "2"}), repo)
	_, err := Clean(t.Context(), repo, CleanOptions{Keep: 1, Yes: true})
	if err == nil || !strings.Contains(err.Error(), "405") || !strings.Contains(err.Error(), "REGISTRY_STORAGE_DELETE_ENABLED=true") {
		t.Errorf("Clean = %v; want 405 and the setting", err)
	}
}

func TestUnknownRepository(t *testing.T) {
	addr := startRegistry(t)
	if _, err := List(t.Context(), addr+"/lab/nosuch"); err == nil || !strings.Contains(err.Error(), "404") || !strings.Contains(err.Error(), "NAME_UNKNOWN") {
		t.Errorf("List = %v; want 404 and the registry's words", err)
	}
	if _, err := Pull(t.Context(), addr+"/lab/nosuch:v1", PullOptions{Into: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "\nnext: store list "+addr+"/lab/nosuch") {
		t.Errorf("Pull = %v; want the next step", err)
	}
}

// A proxy that refuses large bodies is named.
func TestTooLargeForProxy(t *testing.T) {
	program, err := exec.LookPath("nginx")
	if err != nil {
		t.Skip("no nginx; install it: apt-get install nginx-light")
	}
	addr := startRegistry(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	front := listener.Addr().String()
	listener.Close()
	dir := t.TempDir()
	config := filepath.Join(dir, "nginx.conf")
	write(t, config, strings.NewReplacer("DIR", dir, "FRONT", front, "BACK", addr).Replace(`daemon off; error_log DIR/error.log; pid DIR/pid; events {}
http { access_log off; client_body_temp_path DIR/body; proxy_temp_path DIR/proxy; fastcgi_temp_path DIR/f; uwsgi_temp_path DIR/u; scgi_temp_path DIR/s;
server { listen FRONT; client_max_body_size 1m; location / { proxy_pass http://BACK; proxy_set_header Host $http_host; } } }`))
	cmd := exec.CommandContext(context.Background(), program, "-e", filepath.Join(dir, "error.log"), "-c", config)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Signal(os.Interrupt); cmd.Wait() })
	for range 100 {
		if c, err := net.Dial("tcp", front); err == nil {
			c.Close()
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	_, err = Push(t.Context(), newArtifact(t, version{key: "1", bytes: 3 << 20}), "", front+"/lab/images", nil)
	if err == nil || !strings.Contains(err.Error(), "413") || !strings.Contains(err.Error(), "client_max_body_size") {
		t.Errorf("Push = %v; want 413 and the setting", err)
	}
}
