package station

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"slipway/ci/fleet"
	"slipway/ci/hub"
	"slipway/ci/hub/access"
	"slipway/ci/hub/bookstest"
	"slipway/ci/job"
	"slipway/flash/device"
	"slipway/images"
	"slipway/images/statetest"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// The test binary is also the station that is killed, the child of a job, and the Slipway that the
// child runs, which writes into the board's file.
func TestMain(m *testing.M) {
	if len(os.Args) < 2 || strings.HasPrefix(os.Args[1], "-") {
		os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE")) // else each child under -race ends a second late
		statetest.Main(m)
	}
	var err error
	switch os.Args[1] {
	case "station":
		err = stationMain()
	case "job":
		var program string
		if program, err = os.Executable(); err == nil {
			err = job.Exec(context.Background(), job.Folder(os.Args[3]), program)
		}
	case "place":
		err = placeMain()
	default:
		os.Exit(boardMain())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// stationEnv has the JSON of stationArgs.
const stationEnv = "STATION_OF_TEST"

type stationArgs struct {
	Identity      access.Identity
	State, Config string
	At            string         // a point of Options.reached
	Signal        syscall.Signal // that the process sends itself there, once
}

func stationMain() error {
	var a stationArgs
	if err := json.Unmarshal([]byte(os.Getenv(stationEnv)), &a); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	program, err := os.Executable()
	if err != nil {
		return err
	}
	o := Options{Identity: a.Identity, State: a.State, Config: a.Config, Program: program, Log: os.Stderr, tick: testTick}
	var once sync.Once
	o.reached = func(point string) {
		if point == a.At {
			once.Do(func() { _ = unix.Kill(os.Getpid(), a.Signal) })
		}
	}
	return Run(ctx, o)
}

// testTick is how often tests read a child's files.
const testTick = 20 * time.Millisecond

var simulatedDigest = "sha256:" + strings.Repeat("5", 64)

// boardMain is "slipway fleet smoke BOARD one.yml --json" of a simulated board. Its host is a folder:
// with the board's file, and with wishes for what the board does. "slipway build" is a board whose host
// is the working folder.
func boardMain() int {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, unix.SIGINT)
	var inventory struct {
		All struct {
			Hosts map[string]map[string]string `json:"hosts"`
		} `json:"all"`
	}
	if os.Args[1] == "push" {
		fmt.Printf("{\"digest\": %q}\n", simulatedDigest)
		return 0
	}
	wd, _ := os.Getwd()
	data, err := os.ReadFile("one.yml")
	if os.Args[1] == "build" {
		data, err = fmt.Appendf(nil, `{"all": {"hosts": {%q: {"ansible_host": %q}}}}`, filepath.Base(wd), wd), nil
	}
	if err == nil {
		err = json.Unmarshal(data, &inventory)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		return 2
	}
	dir := inventory.All.Hosts[filepath.Base(wd)]["ansible_host"]
	events := strings.TrimPrefix(os.Getenv("SLIPWAY_PROGRESS"), "json:")
	order, err := job.Folder(filepath.Dir(events)).Order()
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		return 2
	}
	b := simulated{dir, order, events}
	return b.run(signals)
}

type simulated struct {
	dir    string
	order  job.Order
	events string
}

func (b simulated) wished(what string) bool {
	_, err := os.Stat(filepath.Join(b.dir, what))
	return err == nil
}

func (b simulated) note(what string, kind fleet.Kind) {
	if err := bookstest.Note(filepath.Join(b.dir, "file"), b.order, what, kind); err != nil {
		panic(err)
	}
}

// noteProject notes what the child sees of the user's own boards, and whether it distrusts them.
func (b simulated) noteProject() {
	for _, arg := range os.Args {
		if boards, given := strings.CutPrefix(arg, "--boards="); given {
			board, _ := os.ReadFile(filepath.Join(boards, b.order.Job.Board, "board.yml"))
			suite, _ := os.ReadFile(filepath.Join(boards, "../suites/lab.yml"))
			text := string(board) + string(suite) + os.Getenv(images.SentVariable)
			if err := os.WriteFile(filepath.Join(b.dir, "saw"), []byte(text), 0o600); err != nil {
				panic(err)
			}
		}
	}
}

func (b simulated) run(signals <-chan os.Signal) int {
	b.note("begin", "")
	b.noteProject()
	for i := range 300 {
		fmt.Fprintf(os.Stderr, "line %d of %s, with 漢字 and more text, so that a log has more than one piece: %s\n", i, b.order.Job.ID, strings.Repeat("=", 100))
	}
	if b.wished("secrets") {
		fmt.Fprintln(os.Stderr, "pull https://alice:hunter2@example.com, and swordfish, by cycle")
	}
	f, _ := os.OpenFile(b.events, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	defer f.Close()
	kind, asked := fleet.Passed, 0
	for i := int64(0); i < 5 || b.wished("hold") && asked < 2; i++ {
		b.note("write", "")
		_ = json.NewEncoder(f).Encode(progress.Event{Time: time.Now(), Step: "write", State: progress.Running, Count: i, Total: 5})
		select {
		case <-signals:
			asked++
			b.note("sigint", "")
		case <-time.After(5 * time.Millisecond):
			continue
		}
		if kind = fleet.Stopped; !b.wished("stubborn") {
			break
		}
	}
	_ = json.NewEncoder(f).Encode(progress.Event{Time: time.Now(), Step: "write", State: progress.Done})
	if b.wished("fails") {
		kind = fleet.Checks
	}
	b.note("end", kind)
	result := fleet.Result{Host: b.order.Job.Name, Kind: kind, Passed: 3, Checks: 3}
	for wish, text := range map[string]func() string{"report": func() string { return simulatedReport }, "vast report": vastReport, "long report": longReport} {
		if b.wished(wish) {
			result.Report = "page.html"
			dir := filepath.Join("build", b.order.Job.Board, "fleet", "smoke", b.order.Job.Name)
			if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "report.json"), []byte(text()), 0o600)); err != nil {
				panic(err)
			}
		}
	}
	_ = plaintext.WriteJSON(os.Stdout, fleet.Outcome{Board: b.order.Job.Board, Results: []fleet.Result{result}})
	if kind != fleet.Passed {
		fmt.Fprintln(os.Stderr, "Error: the board did not pass")
		return 1
	}
	return 0
}

const simulatedReport = `{"report": "of a test"}`

// vastReport cannot be packed into what a hub takes.
func vastReport() string {
	data := make([]byte, maxReportBytes+1)
	_, _ = rand.Read(data)
	return string(data)
}

// longReport can be packed, but is longer than any reader takes.
func longReport() string { return strings.Repeat(" ", job.MaxReportBytes+1) }

// world is a hub, and what tests do with it.
type world struct {
	t     *testing.T
	dir   string
	lease time.Duration
	page  string // address
	link  *link  // between stations and the hub
	admin *access.Client
	stop  func()
}

func newWorld(t *testing.T, lease time.Duration) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), lease: lease}
	w.link = newLink(t)
	token := w.startHub()
	id, err := join(t.Context(), w.page, token)
	if err != nil {
		t.Fatal(err)
	}
	id.Addresses = []string{w.link.address()}
	if w.admin, err = id.Dial(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.admin.Close(); w.stop() })
	return w
}

var joining sync.Mutex

// join joins one after the other, as all tests of this process have one state folder of a person.
func join(ctx context.Context, address, token string) (access.Identity, error) {
	joining.Lock()
	defer joining.Unlock()
	return access.Join(ctx, address, token)
}

// startHub starts the hub on its state, and returns the invitation of the first admin. What is
// connected by the link finds it under the same address.
func (w *world) startHub() (token string) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan string, 1), make(chan error, 1)
	go func() {
		ended <- hub.Run(ctx, hub.Options{
			Dir: filepath.Join(w.dir, "hub"), Names: []string{"127.0.0.1"}, Listen: "127.0.0.1:0", Page: "127.0.0.1:0", Lease: w.lease, Log: io.Discard, Admin: "alice",
			Handler: func(_ context.Context, h *hub.Hub, _ []string, _ []byte) (http.Handler, error) {
				w.link.to(h.Place.Address)
				return http.NotFoundHandler(), nil
			},
			Ready: func(address, t string) { w.page = address; ready <- t },
		})
	}()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil && ctx.Err() == nil {
			w.t.Error(err)
		}
	})
	select {
	case token = <-ready:
	case err := <-ended:
		w.t.Fatal(err)
	}
	return token
}

// link is a connection between stations and the hub, which can be cut.
type link struct {
	listener net.Listener
	mu       sync.Mutex
	target   string // "": cut
	conns    map[net.Conn]bool
}

func newLink(t *testing.T) *link {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	k := &link{listener: l, conns: map[net.Conn]bool{}}
	var group sync.WaitGroup
	group.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			group.Go(func() { k.pass(c) })
		}
	})
	t.Cleanup(func() { l.Close(); k.to(""); group.Wait() })
	return k
}

func (k *link) address() string { return k.listener.Addr().String() }

// to connects the link to another hub, or to none. What is connected is cut.
func (k *link) to(target string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.target = target
	for c := range k.conns {
		c.Close()
	}
}

func (k *link) get() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.target
}

func (k *link) isClosed() bool {
	return errors.Is(k.listener.(*net.TCPListener).SetDeadline(time.Time{}), net.ErrClosed)
}

func (k *link) pass(c net.Conn) {
	defer c.Close()
	target := k.get()
	for end := time.Now().Add(4 * time.Second); target == "" && time.Now().Before(end) && !k.isClosed(); target = k.get() {
		time.Sleep(10 * time.Millisecond) // a cut link says nothing
	}
	hub, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer hub.Close()
	k.mu.Lock()
	k.conns[c], k.conns[hub] = true, true
	if k.target != target {
		c.Close()
	}
	k.mu.Unlock()
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{c, hub}, {hub, c}} {
		both.Go(func() { _, _ = io.Copy(way[0], way[1]); way[0].Close() })
	}
	both.Wait()
	k.mu.Lock()
	delete(k.conns, c)
	delete(k.conns, hub)
	k.mu.Unlock()
}

// bench is a station of a world with boards, which is started and killed.
type bench struct {
	w      *world
	id     access.Identity
	link   *link
	state  string
	config string
	boards string // folder of the boards' folders
	names  []string

	devices  []device.Device
	program  string // of the children, if not this one
	overtime time.Duration
	limitMS  int64 // of jobs
}

// newBench invites a station, with boards b1 to bN.
func (w *world) newBench(name string, boards, parallel int) *bench {
	w.t.Helper()
	i, err := access.Ask[job.Invitation](w.t.Context(), w.admin, job.VerbInvite, job.Person{Name: name, Role: job.AStation})
	if err != nil {
		w.t.Fatal(err)
	}
	id, err := join(w.t.Context(), w.page, access.Token(i.Secret, []byte(w.admin.Authority)))
	if err != nil {
		w.t.Fatal(err)
	}
	b := &bench{w: w, id: id, limitMS: 60_000, link: newLink(w.t), boards: filepath.Join(w.dir, name+".boards"), state: filepath.Join(w.dir, name), config: filepath.Join(w.dir, name+".yml")}
	b.link.to(w.link.address())
	b.id.Addresses = []string{b.link.address()}
	text := fmt.Sprintf("parallel: %d\nboards:\n", parallel)
	for i := range boards {
		board := fmt.Sprintf("b%d", i+1)
		b.names = append(b.names, board)
		dir := filepath.Join(b.boards, board)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			w.t.Fatal(err)
		}
		text += fmt.Sprintf("  %s: {board: orin, host: %q}\n", board, dir)
	}
	if err := os.WriteFile(b.config, []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(b.endChildren)
	return b
}

// wish makes a board do something from now on, or no more.
func (b *bench) wish(board, what string, on bool) {
	b.w.t.Helper()
	name := filepath.Join(b.boards, board, what)
	var err error
	if on {
		err = os.WriteFile(name, nil, 0o600)
	} else {
		err = os.Remove(name)
	}
	if err != nil {
		b.w.t.Fatal(err)
	}
}

// endChildren ends what lives when the test does: it waits for no board.
func (b *bench) endChildren() {
	for _, name := range b.names {
		_ = os.Remove(filepath.Join(b.boards, name, "hold"))
		_ = os.Remove(filepath.Join(b.boards, name, "stubborn"))
	}
	folders, _ := job.Folders(filepath.Join(b.state, "jobs"))
	for _, f := range folders {
		b.w.until("no child lives", func() bool { state, _, _ := f.State(); return state != job.Held })
	}
}

// process is a station that runs.
type process struct {
	stop  func() error // gently, and waits
	ended chan error   // gets what Run returns
	cmd   *exec.Cmd    // of a process of its own
	log   *safeText
}

type safeText struct {
	mu   sync.Mutex
	text strings.Builder
}

func (s *safeText) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

func (s *safeText) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// start starts the station in this process.
func (b *bench) start() process {
	b.w.t.Helper()
	program, err := os.Executable()
	if err != nil {
		b.w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended, log := make(chan error, 1), &safeText{}
	go func() {
		ended <- Run(ctx, Options{Identity: b.id, State: b.state, Config: b.config, Program: cmp.Or(b.program, program), Log: log, tick: testTick, overtime: b.overtime, devices: b.devices})
	}()
	done := make(chan error, 1)
	go func() { err := <-ended; done <- err; close(done) }()
	stop := sync.OnceValue(func() error { cancel(); return <-done })
	b.w.t.Cleanup(func() {
		_ = stop()
		if b.w.t.Failed() {
			b.w.t.Logf("log of %s:\n%s", b.id.Name, log)
		}
	})
	return process{stop: stop, ended: done, log: log}
}

// startProcess starts the station as a process, which sends itself a signal at a point.
func (b *bench) startProcess(at string, signal syscall.Signal) process {
	b.w.t.Helper()
	program, err := os.Executable()
	if err != nil {
		b.w.t.Fatal(err)
	}
	args, err := json.Marshal(stationArgs{b.id, b.state, b.config, at, signal})
	if err != nil {
		b.w.t.Fatal(err)
	}
	log := &safeText{}
	cmd := exec.Command(program, "station")
	cmd.Env = append(os.Environ(), stationEnv+"="+string(args))
	cmd.Stderr = log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		b.w.t.Fatal(err)
	}
	stop := sync.OnceValue(func() error { _ = cmd.Process.Signal(os.Interrupt); return cmd.Wait() })
	b.w.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = stop()
		if b.w.t.Failed() {
			b.w.t.Logf("log of %s:\n%s", b.id.Name, log)
		}
	})
	return process{stop: stop, cmd: cmd, log: log}
}

// end stops a station.
func (r process) end(t *testing.T) {
	t.Helper()
	if err := r.stop(); err != nil {
		t.Errorf("Run = %v", err)
	}
}

// wait waits for the end of a process that kills itself.
func (r process) wait() { _ = r.cmd.Wait() }

// patience is how long a condition may take on a busy machine.
const patience = 30 * time.Second

// until waits for a condition.
func (w *world) until(what string, is func() bool) {
	w.t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("after %v not: %s", patience, what)
		}
	}
}

// add adds a job for a board, once the hub knows that.
func (b *bench) add(board string) job.Job { return b.addWith(board, "") }

func (b *bench) addWith(board, project string) job.Job {
	b.w.t.Helper()
	var c job.Change
	b.w.until("the job is added", func() (ok bool) {
		var err error
		c, err = access.Ask[job.Change](b.w.t.Context(), b.w.admin, job.VerbJobAdd, job.Job{
			V: job.Version, Station: b.id.Name, Name: board, Board: "orin", Project: project, Steps: []job.Step{{Do: job.Smoke}}, LimitMS: b.limitMS, StartWithinMS: 60_000,
		})
		return err == nil
	})
	return c.Job
}

// boards are all boards that the hub knows, none if it does not answer.
func (w *world) boards() []job.HubBoard {
	list, _ := access.Ask[job.BoardList](w.t.Context(), w.admin, job.VerbBoardList, struct{}{})
	return list.Boards
}

func (w *world) stations() []job.HubStation {
	w.t.Helper()
	list, err := access.Ask[job.StationList](w.t.Context(), w.admin, job.VerbStationList, struct{}{})
	if err != nil {
		w.t.Fatal(err)
	}
	return list.Stations
}

// get returns a job as the hub has it.
func (w *world) get(id string) job.Job {
	w.t.Helper()
	all, err := access.Ask[job.Changes](w.t.Context(), w.admin, job.VerbJobList, struct{}{})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, c := range all.Jobs {
		if c.Job.ID == id {
			return c.Job
		}
	}
	return job.Job{}
}

// ended waits until a job has ended, and returns it.
func (w *world) ended(id string) (j job.Job) {
	w.t.Helper()
	w.until("job "+id+" has ended", func() bool { j = w.get(id); return j.State == job.Ended })
	return j
}

// events returns a board's file.
func count(all []bookstest.Event, id, what string) (n int) {
	for _, e := range all {
		if e.Job == id && e.What == what {
			n++
		}
	}
	return n
}

// begun waits until a board is at work on a job.
func (b *bench) begun(board, id string, attempts int) {
	b.w.t.Helper()
	b.w.until("the board is at work", func() bool {
		all := b.events(board)
		return count(all, id, "begin") == attempts && len(all) > 0 && all[len(all)-1].What == "write"
	})
}

// kept returns the log of a job that the hub has.
func (w *world) kept(id string) (text string) {
	w.t.Helper()
	for n := uint64(0); ; {
		l, err := access.Ask[job.Log](w.t.Context(), w.admin, job.VerbJobLog, job.LogWish{ID: id, N: n, Now: true})
		if err != nil {
			w.t.Fatal(err)
		}
		if l.Text == "" {
			return text
		}
		text, n = text+l.Text, l.N
	}
}

// checkLog waits until the hub has the whole log of a job, each piece once.
func (b *bench) checkLog(id string) {
	b.w.t.Helper()
	f := job.Folder(filepath.Join(b.state, "jobs", id))
	want, err := os.ReadFile(f.Log())
	if err != nil {
		b.w.t.Fatal(err)
	}
	var got string
	b.w.until("the hub has the log of "+id, func() bool { got = b.w.kept(id); return len(got) >= len(want) })
	if got != string(want) {
		b.w.t.Errorf("the hub has %d bytes of the log of %s; want these %d bytes once", len(got), id, len(want))
	}
	b.w.until("the log is noted as kept", func() bool {
		_, err := os.Stat(filepath.Join(string(f), keptName))
		return err == nil
	})
}

// copyState is cp -a of the state folder, to a station that has the same identity and boards.
func (b *bench) copyState(name string) *bench {
	b.w.t.Helper()
	c := *b
	c.state, c.link = filepath.Join(b.w.dir, name), newLink(b.w.t)
	c.link.to(b.w.link.address())
	c.id.Addresses = []string{c.link.address()}
	if out, err := exec.Command("cp", "-a", b.state, c.state).CombinedOutput(); err != nil {
		b.w.t.Fatalf("%v: %s", err, out)
	}
	b.w.t.Cleanup(c.endChildren)
	return &c
}

// killChild kills the child of a job, and waits until its step has ended too.
func (b *bench) killChild(id string) {
	b.w.t.Helper()
	f := job.Folder(filepath.Join(b.state, "jobs", id))
	_, pid, err := f.State()
	if err != nil || pid == 0 {
		b.w.t.Fatalf("State = %v, %v; want a child", pid, err)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		b.w.t.Fatal(err)
	}
	b.w.until("the child is gone", func() bool { state, _, _ := f.State(); return state == job.Broken })
}
