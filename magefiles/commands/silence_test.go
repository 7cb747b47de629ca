package commands

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"slipway/layers/plaintext/terminaltest"
)

// This walk gives each command slow inputs: files, a server and a board that answer only once
// the command has shown that it works. So nothing depends on how fast this machine is, and a
// silent command fails by the limit of its gate.

// slowLines are lines beside the first one of each command. URL and ADDR are a slow server.
var slowLines = [][]string{
	{"flash", "virt", "out.img", "--image=URL/evil.img"},
	{"flash", "virt", "out.img", "--image=evil.img.gz"},
	{"flash", "virt", "out.img", "--image=evil.img", "--identity=evil.yml"},
	{"flash", "virt", "out.img", "--image=URL/evil.img.gz", "--digest=URL/SHA256SUMS"},
	{"flash", "virt", "out.img", "--image=oci://ADDR/lab/x:v1"},
	{"read", "evil.img", "out.zst"},
	{"report", "reports/report.json", "--as=json"},
	{"bfb", "make", "out.bfb", "--base=evil.bfb"},
	{"smoke", "virt", "HOST", "--suite=evil.yml"},
	{"ci", "plan", "--from=HEAD"},
	{"store", "clean", "./store", "--keep=1"},
	{"push", "./dl2", "ADDR/lab/x:v1"},
	{"pull", "ADDR/lab/x:v1"},
	{"store", "list", "ADDR/lab/x"},
	{"store", "clean", "ADDR/lab/x", "--keep=1"},
	{"deploy", "container", "virt", "HOST", "oci://ADDR/lab/x:v1"},
	{"deploy", "run", "virt", "HOST", "oci://ADDR/lab/x:v1"},
	{"layers", "checkout", "slow.yml"},
	{"layers", "lock", "slow.yml"},
	{"layers", "status", "slow.yml"},
	{"layers", "diff", "slow.yml"},
	{"layers", "dump", "slow.yml"},
	{"cache", "report", "slow.yml"},
	{"board", "new", "other", "--like=lab"},
	{"build", "slow.yml"},
	{"doctor", "slow.yml"},
}

// leavesTerminal are the commands that give the terminal to another program, or serve.
var leavesTerminal = []string{"cache serve", "hub", "layers shell", "rig ssh", "virt console", "virt ssh"}

// silence is how one line was shown.
type silence struct {
	line    []string
	gates   int
	longest time.Duration
	silent  []string // the gates at which nothing was shown
	out     string
	late    bool
}

// gate lets a slow input go on once the command has shown something since.
type gate struct {
	limit time.Duration
	left  atomic.Int32
	shown atomic.Int64

	mu     sync.Mutex
	passed int
	silent []string
}

func (g *gate) wait(what string) {
	if g.left.Add(-1) < 0 {
		return
	}
	before := g.shown.Load()
	for began := time.Now(); g.shown.Load() == before; time.Sleep(20 * time.Millisecond) {
		if time.Since(began) > g.limit {
			g.mu.Lock()
			g.silent = append(g.silent, what)
			g.mu.Unlock()
			return
		}
	}
	g.mu.Lock()
	g.passed++
	g.mu.Unlock()
}

// slowNode is a file whose first read waits at the gate.
type slowNode struct {
	fs.LoopbackNode
	gate *gate
	once sync.Once
}

func (n *slowNode) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	f, mode, errno := n.LoopbackNode.Open(ctx, flags)
	if file, ok := f.(*fs.LoopbackFile); ok {
		return &slowFile{file, n}, mode, errno
	}
	return f, mode, errno
}

func (n *slowNode) WrapChild(context.Context, fs.InodeEmbedder) fs.InodeEmbedder {
	return &slowNode{LoopbackNode: fs.LoopbackNode{RootData: n.RootData}, gate: n.gate}
}

type slowFile struct {
	*fs.LoopbackFile
	node *slowNode
}

// PassthroughFd keeps the kernel from reading past us.
func (*slowFile) PassthroughFd() (int, bool) { return -1, false }

func (f *slowFile) Read(ctx context.Context, buf []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	f.node.once.Do(func() { f.node.gate.wait("the file " + f.node.Path(nil)) })
	return f.LoopbackFile.Read(ctx, buf, off)
}

// mountSlow shows a folder in another one, where its files are slow.
func mountSlow(t *testing.T, from, at string, g *gate) (end func()) {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat(from, &st); err != nil {
		t.Fatal(err)
	}
	root := &fs.LoopbackRoot{Path: from, Dev: uint64(st.Dev)}
	node := &slowNode{LoopbackNode: fs.LoopbackNode{RootData: root}, gate: g}
	root.RootNode = node
	server, err := fs.Mount(at, node, &fs.Options{MountOptions: fuse.MountOptions{DirectMount: true}})
	if err != nil {
		t.Skipf("no file system of our own can be mounted here: %v", err)
	}
	return func() {
		for range 50 { // a program may still end
			if server.Unmount() == nil {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
		if syscall.Unmount(at, syscall.MNT_DETACH) != nil { // takes root
			_ = exec.Command("fusermount", "-u", "-z", at).Run()
		}
	}
}

// slowServer answers each request late, and stops in the middle of a file.
func slowServer(dir string, g *gate) *httptest.Server {
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.wait("the request " + r.Method + " " + r.URL.Path)
		data, err := os.ReadFile(filepath.Join(dir, filepath.Base(r.URL.Path)))
		if err != nil {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(data)))
		_, _ = w.Write(data[:len(data)/2])
		_ = http.NewResponseController(w).Flush()
		g.wait("the middle of " + r.URL.Path)
		_, _ = w.Write(data[len(data)/2:])
	}))
}

// slowBoard is a way to a board that answers late, at first and in between.
func slowBoard(t *testing.T, to string, g *gate) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer near.Close()
				g.wait("the board, at first")
				far, err := net.Dial("tcp", to)
				if err != nil {
					return
				}
				defer far.Close()
				go func() { _, _ = io.Copy(far, near) }()
				_, _ = io.CopyN(near, far, 4<<10) // more than the keys
				g.wait("the board, in between")
				_, _ = io.Copy(near, far)
			}()
		}
	}()
	return l
}

// runSlowly runs a line with slow inputs, on a terminal or with plain lines.
func (w *world) runSlowly(t *testing.T, line []string, onTerminal bool) (s silence) {
	t.Helper()
	dir, err := os.MkdirTemp(filepath.Dir(w.template), "slow-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if out, err := exec.Command("cp", "-a", w.template+"/.", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	g := &gate{limit: 20 * time.Second}
	g.left.Store(3)
	if !onTerminal {
		g.limit = 50 * time.Second // more than twice what a line may take
		g.left.Store(1)
	}
	home, work, slow := filepath.Join(dir, "home"), filepath.Join(dir, "work"), filepath.Join(dir, "slow")
	server := slowServer(work, g)
	defer server.CloseClientConnections()
	board := w.hosts.Replace("HOST2")
	user, address, _ := strings.Cut(board, "@")
	way := slowBoard(t, address, g)
	defer way.Close()
	known, err := os.ReadFile(filepath.Join(home, ".ssh/known_hosts"))
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := strings.Cut(way.Addr().String(), ":")
	_, farPort, _ := strings.Cut(address, ":")
	addr := strings.TrimPrefix(server.URL, "http://")
	place(t, dir, map[string]string{
		"home/.ssh/known_hosts": string(known) + strings.ReplaceAll(string(known), "]:"+farPort+" ", "]:"+port+" "),
		"work/slow.yml":         "header: {version: 14}\nmachine: qemux86-64\nrepos:\n  one: {url: \"" + server.URL + "/x.git\", branch: main, commit: " + strings.Repeat("1", 40) + "}\n",
		"work/hosts.yml":        "all: {hosts: {a: {ansible_host: 127.0.0.1, ansible_port: " + port + ", ansible_user: " + user + "}}}\n",
	})
	if err := os.Mkdir(slow, 0o755); err != nil {
		t.Fatal(err)
	}
	defer mountSlow(t, work, slow, g)()
	words := strings.NewReplacer("HOST", user+"@"+way.Addr().String(), "URL", server.URL, "ADDR", addr)
	s.line = line
	var argv []string
	for _, word := range line {
		argv = append(argv, words.Replace(word))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	// A folder that this process serves would never let a child of Go's enter it.
	cmd := exec.CommandContext(ctx, "env", append([]string{"-C", slow, w.program}, argv...)...)
	cmd.WaitDelay = 2 * time.Second
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Env = []string{
		"HOME=" + home, "PATH=" + w.tools, "TMPDIR=" + filepath.Join(dir, "tmp"), "XDG_STATE_HOME=" + home + "/state", "XDG_CACHE_HOME=" + home + "/cache",
		"XDG_CONFIG_HOME=" + home + "/config", "RECORD=" + dir + ".record", "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0", "TERM=xterm",
	}
	defer os.Remove(dir + ".record")
	near, far, err := os.Pipe()
	if onTerminal {
		near, far = terminaltest.Open(t)
		terminaltest.Resize(t, far, 100)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = far, far
	began := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	far.Close()
	var out strings.Builder
	read := make(chan struct{})
	go func() {
		defer close(read)
		for last, p := began, make([]byte, 64<<10); ; {
			n, err := near.Read(p)
			s.longest = max(s.longest, time.Since(last))
			if err != nil { // the kernel says EIO where a terminal ends
				return
			}
			out.Write(p[:n])
			last = time.Now()
			g.shown.Add(int64(n))
		}
	}()
	_ = cmd.Wait()
	s.late = ctx.Err() != nil
	select {
	case <-read:
	case <-time.After(5 * time.Second): // a program that stays behind has the terminal
		near.Close()
		<-read
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	s.out, s.gates, s.silent = out.String(), g.passed, g.silent
	return s
}

// TestNoCommandIsSilent runs each command with slow inputs: on a terminal, and as CI sees it.
func TestNoCommandIsSilent(t *testing.T) {
	w := newWorld(t)
	mountSlow(t, t.TempDir(), t.TempDir(), &gate{})() // or this is skipped
	var lines [][]string
	for _, cmd := range allCommands() {
		path := strings.Join(pathOf(cmd), " ")
		if own := w.lines(t, cmd); len(own) > 0 && !slices.Contains(leavesTerminal, path) {
			lines = append(lines, own[0])
		}
	}
	lines = append(lines, slowLines...)
	results := make([]struct{ terminal, plain silence }, len(lines))
	var all sync.WaitGroup
	slots := make(chan struct{}, 8)
	for i, line := range lines {
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			results[i].terminal = w.runSlowly(t, line, true)
		})
		all.Go(func() { results[i].plain = w.runSlowly(t, line, false) }) // which mostly waits
	}
	all.Wait()
	slices.SortFunc(results, func(a, b struct{ terminal, plain silence }) int {
		return cmp.Compare(b.terminal.longest, a.terminal.longest)
	})
	slow, reading := 0, 0
	for _, r := range results {
		slow += min(1, r.terminal.gates)
		if !strings.Contains(r.terminal.out, "no hub was joined") { // else it asks a hub, and reads nothing here
			reading++
		}
		t.Logf("%5.1f s on a terminal (%d waits), %5.1f s of plain lines (%d): %s", r.terminal.longest.Seconds(), r.terminal.gates, r.plain.longest.Seconds(), r.plain.gates, strings.Join(r.terminal.line, " "))
		if s := r.terminal; s.gates == 0 {
			t.Logf("  %.160q", s.out)
		}
		for _, s := range []silence{r.terminal, r.plain} {
			if len(s.silent) > 0 || s.late {
				t.Errorf("%q: nothing was shown while it waited for %q, late: %v\n%s", s.line, s.silent, s.late, s.out)
			}
		}
	}
	if slow < reading/2 {
		t.Errorf("%d of %d lines waited for a slow input; want more than half of them", slow, reading)
	}
}
