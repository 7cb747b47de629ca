package cache

import (
	"cmp"
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/net/netutil"
	"golang.org/x/sync/errgroup"

	"slipway/layers/localfile"
	"slipway/layers/progress"
	"slipway/layers/run"
)

const (
	stateDir     = "cache-serve"
	writerSocket = "hashserv.sock"

	maxConnections = 512
	startTime      = 3 * time.Minute // servers in Python, from a fresh checkout, took more than one on a busy machine
)

// ServeOptions says what to serve, at which address.
type ServeOptions struct {
	Dir     string // holds sstate-cache and downloads
	Bitbake string // the folder whose servers run
	Listen  string // HOST:PORT of the files; the other two servers have the next two ports
	JSON    bool
	Out     io.Writer
}

// Status is what Serve prints when all servers answer.
type Status struct {
	Cache    string `json:"cache"` // the setting for other machines
	Folder   string `json:"folder"`
	Bitbake  string `json:"bitbake"`
	Hashserv string `json:"hashserv"`
	PRServ   string `json:"prserv"`
	PID      int    `json:"pid"`
}

// Serve serves a folder's shared state, downloads and hashes until ctx ends. Other machines can
// read all of it, and get new values from the PR server. Only this machine's builds write hashes,
// through a socket in the folder. Serve prints its status when all servers answer.
func Serve(ctx context.Context, opt ServeOptions) error {
	s, err := prepareServer(opt)
	if err != nil {
		return err
	}
	defer s.close()
	parent := ctx
	group, ctx := errgroup.WithContext(parent)
	group.Go(func() error { return s.runServers(ctx) })
	group.Go(func() error { return s.runFiles(ctx) })
	group.Go(func() error {
		err := s.awaitServers(ctx)
		if parent.Err() != nil {
			return nil
		}
		if err == nil {
			s.printStatus()
			progress.Release(parent)
		}
		return err
	})
	return group.Wait()
}

// server holds the state of one running Serve.
type server struct {
	opt       ServeOptions
	version   Version
	state     string // folder of databases, logs and the socket
	host      string
	port      int
	self      descriptor
	listener  net.Listener
	sstate    *servedFolder
	downloads *servedFolder
	unlock    func()
}

// prepareServer checks folder and bitbake, makes served folders and a key, locks, and listens.
func prepareServer(opt ServeOptions) (*server, error) {
	dir, err := filepath.Abs(opt.Dir)
	if err != nil {
		return nil, err
	}
	if !validAddress(dir) {
		return nil, fmt.Errorf("%s: bitbake takes no folder with such characters in its name; serve another", dir)
	}
	opt.Dir = dir
	s := &server{opt: opt, state: filepath.Join(dir, stateDir)}
	if s.version, err = VersionOf(opt.Bitbake); err != nil {
		return nil, err
	}
	if !s.version.atLeast(oldest) {
		return nil, fmt.Errorf("bitbake %s cannot serve a cache (%s and later can)\nnext: cache serve --board=BOARD  # of a newer release", s.version, oldest)
	}
	for _, sub := range []string{"sstate-cache", "downloads", stateDir} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return nil, err
		}
	}
	if s.unlock, err = lockFolder(s.state); err != nil {
		return nil, err
	}
	_ = os.Remove(filepath.Join(s.state, writerSocket)) // of a server that was killed
	if err := s.openFiles(); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// lockFolder locks dir, the state folder of a cache serve. If another one has the lock, it fails.
func lockFolder(dir string) (unlock func(), err error) {
	f, err := localfile.LockNow(filepath.Join(dir, "lock"), 0o644)
	if errors.Is(err, localfile.ErrLocked) {
		err = fmt.Errorf("%s: another cache serve serves this folder; stop it first", filepath.Dir(dir))
	}
	return func() { f.Close() }, err
}

// openFiles listens at s.opt.Listen, checks the next two ports, opens folders and writes the key,
// a secret by which a build knows that it is on the same machine.
func (s *server) openFiles() error {
	listener, err := net.Listen("tcp", s.opt.Listen)
	if err != nil {
		return fmt.Errorf("listen at %s: %w; name a free one with --listen=HOST:PORT", s.opt.Listen, err)
	}
	s.listener = netutil.LimitListener(listener, maxConnections)
	s.host, _, err = net.SplitHostPort(s.opt.Listen)
	if err != nil || strings.Contains(s.host, ":") {
		return fmt.Errorf("listen at %s: bitbake's servers take HOST:PORT or :PORT, and no IPv6 address", s.opt.Listen)
	}
	s.port = listener.Addr().(*net.TCPAddr).Port
	if err := s.checkBitbakePorts(); err != nil {
		return err
	}
	if s.sstate, err = openServedFolder(filepath.Join(s.opt.Dir, "sstate-cache"), completeSstate); err != nil {
		return err
	}
	if s.downloads, err = openServedFolder(filepath.Join(s.opt.Dir, "downloads"), completeDownload); err != nil {
		return err
	}
	s.self = descriptor{Slipway: descriptorKind, Bitbake: s.version.String(), Hashserv: s.port + 1, PRServ: s.port + 2, Folder: s.opt.Dir}
	s.self.Key, err = writeKey(s.state)
	return err
}

// checkBitbakePorts checks that the next two ports are free for bitbake's hash equivalence server
// and PR server. Otherwise Serve would take another program that answers on them for its own.
func (s *server) checkBitbakePorts() error {
	for _, port := range []int{s.port + 1, s.port + 2} {
		l, err := net.Listen("tcp", net.JoinHostPort(s.host, strconv.Itoa(port)))
		if err != nil {
			return fmt.Errorf("bitbake's servers need the two ports above %d too: %w; name three free ones by their first with --listen=HOST:PORT", s.port, err)
		}
		l.Close()
	}
	return nil
}

func openServedFolder(dir string, whole func(*os.Root, string) bool) (*servedFolder, error) {
	root, err := os.OpenRoot(dir)
	return &servedFolder{root: root, complete: whole}, err
}

// writeKey writes a random secret to dir/key and returns it. Its readers are on this machine.
func writeKey(dir string) (string, error) {
	key := rand.Text()
	return key, renameio.WriteFile(filepath.Join(dir, "key"), []byte(key), 0o640)
}

// close closes the folders and the listener, removes the key, so that builds on this machine see
// that nobody serves, and unlocks the folder.
func (s *server) close() {
	for _, shelf := range []*servedFolder{s.sstate, s.downloads} {
		if shelf != nil && shelf.root != nil {
			shelf.root.Close()
		}
	}
	if s.listener != nil {
		s.listener.Close()
	}
	_ = os.Remove(filepath.Join(s.state, "key")) // builds here then know that nobody serves
	s.unlock()
}

//go:embed prserv.py
var prserv string

// runServers runs bitbake's servers until ctx or one of them ends. It starts the others when the
// first has made its socket. By then the database of hashes exists, and in a fresh checkout a
// module that bitbake writes, which a second server could otherwise read half written.
func (s *server) runServers(ctx context.Context) error {
	runPR := func(ctx context.Context) error {
		return s.runServer(ctx, "prserv", prserv, "python3", "-", filepath.Join(s.opt.Bitbake, "lib"), "prserv.sqlite3", cmp.Or(s.host, "0.0.0.0"), strconv.Itoa(s.self.PRServ))
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return s.runServer(ctx, "hashserv-writer", "", s.hashservArgs("unix://./"+writerSocket)...)
	})
	group.Go(func() error {
		if retryUntil(ctx, func() error {
			_, err := os.Stat(filepath.Join(s.state, writerSocket))
			return err
		}) != nil {
			return nil // whatever ended ctx says why
		}
		group.Go(func() error { return runPR(ctx) })
		address := net.JoinHostPort(s.host, strconv.Itoa(s.self.Hashserv))
		return s.runServer(ctx, "hashserv", "", append(s.hashservArgs(address), "--read-only")...)
	})
	return group.Wait()
}

func (s *server) hashservArgs(bind string) []string {
	return []string{"python3", filepath.Join(s.opt.Bitbake, "bin/bitbake-hashserv"), "--bind", bind, "--database", "hashserv.db"}
}

// runServer runs argv, one of bitbake's servers, with a log. Its end before ctx's is an error.
func (s *server) runServer(ctx context.Context, name, stdin string, argv ...string) error {
	err := run.Run(ctx, run.Command{Argv: argv, Dir: s.state, Stdin: strings.NewReader(stdin), Log: filepath.Join(s.state, name+".log")})
	if ctx.Err() != nil {
		return nil
	}
	if err == nil {
		err = errors.New("it ended by itself")
	}
	return fmt.Errorf("bitbake's server %s: %w", name, err)
}

// runFiles serves the files until ctx ends. Running transfers then have 3 seconds to finish.
func (s *server) runFiles(ctx context.Context) error {
	web := &http.Server{
		Handler: newFilesHandler(s.sstate, s.downloads, s.self), MaxHeaderBytes: 16 << 10,
		ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second, WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute,
	}
	ended := make(chan error, 1)
	go func() { ended <- web.Serve(s.listener) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()
	if web.Shutdown(last) != nil {
		web.Close()
	}
	return nil
}

// awaitServers waits until both of bitbake's servers answer, at most startTime.
func (s *server) awaitServers(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTime, fmt.Errorf("bitbake's servers do not answer after %v; their logs are in %s", startTime, s.state))
	defer cancel()
	for _, port := range []int{s.self.Hashserv, s.self.PRServ} {
		address := net.JoinHostPort(s.localAddress(), strconv.Itoa(port))
		if err := retryUntil(ctx, func() error { return probePort(ctx, address) }); err != nil {
			return err
		}
	}
	return nil
}

// localAddress returns the host by which this machine reaches its own servers.
func (s *server) localAddress() string {
	if s.host == "" || net.ParseIP(s.host).IsUnspecified() {
		return "127.0.0.1"
	}
	return s.host
}

// retryUntil calls try every 50 ms until it succeeds, or returns the error of a ctx that ends.
func retryUntil(ctx context.Context, try func() error) error {
	for try() != nil {
		if err := run.Sleep(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// publicHost returns the host for other machines: the listener's, this machine's name or 127.0.0.1.
func (s *server) publicHost() string {
	if s.host != "" && !net.ParseIP(s.host).IsUnspecified() {
		return s.host
	}
	if name, err := os.Hostname(); err == nil && validAddress(name) {
		return strings.ToLower(name)
	}
	return "127.0.0.1"
}

// printStatus prints the cache's address and how to use it, or all addresses as JSON.
func (s *server) printStatus() {
	st := Status{
		Folder: s.opt.Dir, Bitbake: s.version.String(), PID: os.Getpid(),
		Cache:    "http://" + net.JoinHostPort(s.publicHost(), strconv.Itoa(s.port)),
		Hashserv: net.JoinHostPort(s.publicHost(), strconv.Itoa(s.self.Hashserv)),
		PRServ:   net.JoinHostPort(s.publicHost(), strconv.Itoa(s.self.PRServ)),
	}
	if s.opt.JSON {
		_ = json.NewEncoder(s.opt.Out).Encode(st) // nobody is left to tell
		return
	}
	fmt.Fprintf(s.opt.Out, "Serving %s with the servers of bitbake %s. Ctrl-C ends them.\n%s\n\ncache: %s\n\nor set the variable: export %s=%[4]s\n\n", st.Folder, st.Bitbake, s.usageHint(), st.Cache, Environment)
}

// usageHint returns the text that says on which machines the user puts the setting into board.yml.
func (s *server) usageHint() string {
	if s.localAddress() == "localhost" || net.ParseIP(s.localAddress()).IsLoopback() && s.localAddress() == s.host {
		return `Only this machine reaches it (--listen=:8600 lets others). Put this line into board.yml,
and builds here fill the folder:`
	}
	return `Put this line into board.yml, here (builds on this machine then fill the folder)
and on other machines (they build from it):`
}
