package cache

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"slipway/images/bitbake/bitbaketest"
)

// branches are the bitbakes of Yocto's long-term releases, and what is being made.
var branches = []string{"2.0", "2.8", "2.18", "master"}

// bitbakeOf unpacks a branch of a clone that SLIPWAY_BITBAKE names.
func bitbakeOf(t *testing.T, branch string) string {
	t.Helper()
	return bitbaketest.Unpack(t, bitbaketest.Checkouts(t), branch)
}

// serving runs Serve until the test ends, and returns its first status.
func serving(t *testing.T, opt ServeOptions) (Status, func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	out := &lockedBuffer{}
	opt.Out, opt.JSON = out, true
	if opt.Listen == "" {
		opt.Listen = freeAddress(t, "127.0.0.1")
	}
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, opt) }()
	stop := func() error {
		cancel()
		return <-ended
	}
	for {
		if line, _, whole := strings.Cut(out.String(), "\n"); whole {
			var s Status
			if err := json.Unmarshal([]byte(line), &s); err != nil {
				t.Fatal(err)
			}
			return s, stop
		}
		select {
		case err := <-ended:
			t.Fatalf("Serve = %v; want it to go on", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// freeAddress has two free ports above its own.
func freeAddress(t *testing.T, host string) string {
	t.Helper()
	for range 50 {
		var ports []net.Listener
		first, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
		if err != nil {
			t.Fatal(err)
		}
		ports = append(ports, first)
		port := first.Addr().(*net.TCPAddr).Port
		for _, next := range []int{port + 1, port + 2} {
			if l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(next))); err == nil {
				ports = append(ports, l)
			}
		}
		for _, l := range ports {
			l.Close()
		}
		if len(ports) == 3 {
			return first.Addr().String()
		}
	}
	t.Fatal("no three free ports in a row")
	return ""
}

// lockedBuffer is written by Serve and read by the test meanwhile.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// Every bitbake serves, and says whose servers these are.
func TestServersOfEachBitbake(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: starts the servers of four bitbakes")
	}
	for _, branch := range branches {
		t.Run(branch, func(t *testing.T) {
			t.Parallel()
			bitbake := bitbakeOf(t, branch)
			own, err := VersionOf(bitbake)
			if err != nil {
				t.Fatal(err)
			}
			status, stop := serving(t, ServeOptions{Dir: bitbaketest.PublicDir(t), Bitbake: bitbake})
			c, err := resolveCache(t.Context(), Setting{Server: status.Cache})
			if err != nil || c.Bitbake != own || c.Hashserv != status.Hashserv || c.PRServ != status.PRServ {
				t.Errorf("the cache of %s is %+v, %v", own, c, err)
			}
			if err := c.checkParts(t.Context(), own); err != nil {
				t.Errorf("checkParts of its own bitbake = %v", err)
			}
			if err := stop(); err != nil {
				t.Errorf("Serve = %v after it was stopped; want nil", err)
			}
			if log, err := os.ReadFile(filepath.Join(status.Folder, stateDir, "prserv.log")); err != nil || strings.Contains(string(log), "connect") {
				t.Errorf("the PR server's log = %q, %v; want nothing of its clients", log, err)
			}
			if _, err := net.Dial("tcp", status.PRServ); err == nil {
				t.Error("the PR server outlived cache serve")
			}
		})
	}
}

// Clients cannot write hashes, whose sstate would be on their own disks only.
func TestHashesAreReadOnlyForClients(t *testing.T) {
	status, _ := serving(t, ServeOptions{Dir: bitbaketest.PublicDir(t), Bitbake: bitbakeOf(t, "2.8")})
	hash := strings.Repeat("ab", 32)
	report := fmt.Sprintf(`{"report": {"method": "m", "outhash": "%s", "taskhash": "%s", "unihash": "%s"}}`, hash, hash, hash)
	get := fmt.Sprintf(`{"get": {"method": "m", "taskhash": "%s", "all": false}}`, hash)
	heard, err := queryHashserv(t, status.Hashserv, report)
	t.Logf("report is answered with %q, %v", heard, err)
	heard, err = queryHashserv(t, status.Hashserv, get)
	if err != nil || heard != "null" {
		t.Errorf("a client's hash is known afterwards: %q, %v; want null", heard, err)
	}
}

// queryHashserv asks a hash equivalence server a question, and returns its answer.
func queryHashserv(t *testing.T, address, question string) (string, error) {
	t.Helper()
	conn, err := net.DialTimeout("tcp", address, probeTime)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(probeTime))
	if _, err := fmt.Fprintf(conn, "OEHASHEQUIV 1.1\n\n%s\n", question); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	return strings.TrimSuffix(line, "\n"), err
}

// Whatever has a port of bitbake's servers would be taken for them.
func TestServeNeedsAllItsPorts(t *testing.T) {
	bitbake := bitbaketest.PublicDir(t)
	write(t, filepath.Join(bitbake, "lib/bb/__init__.py"), "__version__ = \"2.8.1\"\n")
	for _, above := range []int{1, 2} {
		address := freeAddress(t, "127.0.0.1")
		port := portOf(t, address)
		taken, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port+above)))
		if err != nil {
			t.Skip(err) // somebody was quicker
		}
		defer taken.Close()
		var out bytes.Buffer
		err = Serve(t.Context(), ServeOptions{Dir: bitbaketest.PublicDir(t), Bitbake: bitbake, Listen: address, Out: &out})
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("the two ports above %d", port)) || !strings.Contains(err.Error(), strconv.Itoa(port+above)) || out.Len() > 0 {
			t.Errorf("Serve with port %d taken = %v, and says %q; want it refused", port+above, err, &out)
		}
	}
	err := Serve(t.Context(), ServeOptions{Dir: bitbaketest.PublicDir(t), Bitbake: bitbake, Listen: "127.0.0.1:65534", Out: &bytes.Buffer{}})
	if err == nil || !strings.Contains(err.Error(), "65536") && !strings.Contains(err.Error(), "in use") {
		t.Errorf("Serve at the last port but one = %v; want it refused", err)
	}
}

func portOf(t *testing.T, address string) int {
	t.Helper()
	_, text, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// A person is told who reaches the cache.
func TestInvitation(t *testing.T) {
	for host, alone := range map[string]bool{"127.0.0.1": true, "localhost": true, "": false, "0.0.0.0": false, "192.0.2.7": false, "builder": false} {
		var out bytes.Buffer
		s := server{host: host, port: 8600, opt: ServeOptions{Out: &out, Dir: "/srv"}, sstate: &servedFolder{}, downloads: &servedFolder{}}
		s.printStatus()
		if said := out.String(); strings.Contains(said, "Only this machine") != alone || strings.Contains(said, "on other machines") == alone {
			t.Errorf("listening at %q, it says %q; want it for this machine alone: %t", host, said, alone)
		}
	}
}

// A folder is served once, and left without its key.
func TestServeLocksItsFolder(t *testing.T) {
	dir, bitbake := bitbaketest.PublicDir(t), bitbakeOf(t, "2.8")
	_, stop := serving(t, ServeOptions{Dir: dir, Bitbake: bitbake})
	err := Serve(t.Context(), ServeOptions{Dir: dir, Bitbake: bitbake, Listen: "127.0.0.1:0", Out: &bytes.Buffer{}})
	if err == nil || !strings.Contains(err.Error(), "another cache serve serves this folder") {
		t.Errorf("Serve of a folder that is served = %v; want it refused", err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, stateDir, "key")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the key after the end: %v; want it gone", err)
	}
	again, stop := serving(t, ServeOptions{Dir: dir, Bitbake: bitbake})
	if again.Folder != dir || stop() != nil {
		t.Errorf("served again: %+v", again)
	}
}

// When one of bitbake's servers dies, builds must not go on as if nothing were.
func TestServeEndsWithItsServers(t *testing.T) {
	bitbake := bitbakeOf(t, "2.8")
	for i := range 3 { // the writer of hashes, the reader, the PR server
		dir := bitbaketest.PublicDir(t)
		status, stop := serving(t, ServeOptions{Dir: dir, Bitbake: bitbake})
		servers := childrenIn(t, filepath.Join(dir, stateDir))
		if len(servers) != 3 {
			t.Fatalf("%d servers run; want 3", len(servers))
		}
		if err := unix.Kill(servers[i], unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if err := retryUntil(ctx, func() error {
			if conn, err := net.Dial("tcp", strings.TrimPrefix(status.Cache, "http://")); err == nil {
				conn.Close()
				return errors.New("still there")
			}
			return nil
		}); err != nil {
			t.Error("files are served on without one of the servers")
		}
		if err := stop(); err == nil || !strings.Contains(err.Error(), "bitbake's server") {
			t.Errorf("Serve = %v; want it to name the server that died", err)
		}
		if left := childrenIn(t, filepath.Join(dir, stateDir)); len(left) > 0 {
			t.Errorf("servers %v outlived cache serve", left)
		}
	}
}

// childrenIn are the processes that work in a folder.
func childrenIn(t *testing.T, dir string) []int {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		t.Fatal(err)
	}
	var found []int
	for _, link := range links {
		if at, err := os.Readlink(link); err == nil && at == dir {
			pid, _ := strconv.Atoi(strings.Split(link, "/")[2])
			found = append(found, pid)
		}
	}
	return found
}
