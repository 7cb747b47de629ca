package job

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The test binary is also the program of a job: "job exec FOLDER" as the real one, and all other
// commands simulated. It finds what to do in the folder that this variable names.
const simulationVariable = "SLIPWAY_JOB_SIMULATION"

func TestMain(m *testing.M) {
	dir := os.Getenv(simulationVariable)
	if dir == "" {
		os.Exit(m.Run())
	}
	if len(os.Args) == 4 && os.Args[1] == "job" && os.Args[2] == "exec" {
		os.Exit(execChild(dir, Folder(os.Args[3])))
	}
	os.Exit(simulateCommand(dir))
}

// execChild is "slipway job exec". It waits at the point that the file "stop" names.
func execChild(dir string, f Folder) int {
	graces = [2]time.Duration{time.Hour, time.Hour}
	if data, err := os.ReadFile(filepath.Join(dir, "graces.json")); err == nil {
		if err := json.Unmarshal(data, &graces); err != nil {
			panic(err)
		}
	}
	at, _ := os.ReadFile(filepath.Join(dir, "stop"))
	stopAt = func(point string) {
		if point == string(at) {
			meet(dir)
			for {
				_ = unix.Pause() // until the test kills it
			}
		}
	}
	self, err := os.Executable()
	if err == nil {
		err = Exec(context.Background(), f, self)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		return 1
	}
	return 0
}

// behaviour is what a simulated command does, in the file <command>.json.
type behaviour struct {
	Print  string `json:"print"`
	Say    string `json:"say"`    // on stderr
	Status int    `json:"status"` // exit status
	Wait   bool   `json:"wait"`   // until the test has met it, or until enough SIGINTs
	Stops  int    `json:"stops"`  // SIGINTs that end it: none with 0, so that it is killed
}

// call is a line of the file "calls", which simulated commands append to.
type call struct {
	Argv     []string
	Dir      string
	Progress string
	PID      int
}

func simulateCommand(dir string) int {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM)
	wd, _ := os.Getwd()
	line, _ := json.Marshal(call{os.Args[1:], wd, os.Getenv("SLIPWAY_PROGRESS"), os.Getpid()})
	record(dir, "calls", string(line))
	var b behaviour
	name := os.Args[1]
	if name == "fleet" || name == "virt" {
		name = os.Args[2]
	}
	if data, err := os.ReadFile(filepath.Join(dir, name+".json")); err == nil {
		if err := json.Unmarshal(data, &b); err != nil {
			panic(err)
		}
	}
	if b.Wait {
		meet(dir)
		// SIGTERM says that the parent is gone. The kernel sends it for each of its threads.
		for n := 0; n < b.Stops || b.Stops == 0; {
			sig := <-signals
			if sig == unix.SIGINT {
				n++
			}
			record(dir, "signals", sig.String())
			meet(dir)
		}
	}
	fmt.Print(b.Print)
	if b.Say != "" {
		fmt.Fprintln(os.Stderr, b.Say)
	}
	return b.Status
}

func record(dir, name, line string) {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = fmt.Fprintln(f, line)
	}
	if err != nil {
		panic(err)
	}
	f.Close()
}

// meet tells the test's meeting that a process of the simulation has come to its point.
func meet(dir string) { record(dir, "at", strconv.Itoa(os.Getpid())) }

// simulation is a station's state folder with one job.
type simulation struct {
	*testing.T
	dir, self string
	at        *os.File // the processes that met the test
	folder    Folder
	order     Order
}

func simulate(t *testing.T, steps ...Step) *simulation {
	t.Helper()
	s := &simulation{T: t, dir: t.TempDir()}
	t.Setenv(simulationVariable, s.dir)
	s.self, _ = os.Executable()
	err := unix.Mkfifo(filepath.Join(s.dir, "at"), 0o600)
	if err == nil {
		s.at, err = os.OpenFile(filepath.Join(s.dir, "at"), os.O_RDWR|unix.O_NONBLOCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.end)
	id := NewID()
	s.folder = Folder(filepath.Join(s.dir, "state/jobs", id))
	s.order = Order{Revision: 7, How: How{Inventory: "all: {hosts: {lab3-07: {}}}\n"}, Job: Job{
		V: 1, ID: id, Station: "bench-3", Name: "lab3-07", Board: "orin-lab", Steps: steps, LimitMS: 3_600_000, StartWithinMS: 1,
		State: Running, Claim: &Claim{Attempt: 2},
	}}
	return s
}

// end kills what a failed test leaves: the job's process, and steps that wait.
func (s *simulation) end() {
	s.at.Close()
	if state, pid, _ := s.folder.State(); state == Held {
		if program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil && program == s.self {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
	for _, c := range s.calls() {
		if dir, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", c.PID)); err == nil && dir == c.Dir {
			_ = unix.Kill(c.PID, unix.SIGKILL)
		}
	}
}

// writeFile writes a file of the simulation.
func (s *simulation) writeFile(name string, content any) {
	s.Helper()
	data, isText := content.(string)
	if !isText {
		b, err := json.Marshal(content)
		if err != nil {
			s.Fatal(err)
		}
		data = string(b)
	}
	path := filepath.Join(s.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		s.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
		s.Fatal(err)
	}
}

func (s *simulation) begin() {
	s.Helper()
	if err := s.folder.Begin(s.order); err != nil {
		s.Fatal(err)
	}
}

func (s *simulation) start() {
	s.Helper()
	if err := Start(s.Context(), s.folder, s.self); err != nil {
		s.Fatal(err)
	}
}

// patience limits a wait in a test that fails.
const patience = time.Minute

// meeting waits until a process of the simulation has come to its point, and returns its ID.
func (s *simulation) meeting() (pid int) {
	s.Helper()
	if err := s.at.SetReadDeadline(time.Now().Add(patience)); err != nil {
		s.Fatal(err)
	}
	for b := []byte{0}; ; pid = 10*pid + int(b[0]-'0') {
		if _, err := s.at.Read(b); err != nil {
			s.Fatalf("nobody came: %v\n%s", err, s.log())
		}
		if b[0] == '\n' {
			return pid
		}
	}
}

// await waits until the folder has a state.
func (s *simulation) await(want FolderState) (pid int) {
	s.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		state, pid, err := s.folder.State()
		if err != nil {
			s.Fatal(err)
		}
		if state == want {
			return pid
		}
		if time.Now().After(end) {
			s.Fatalf("the folder stays %s; want %s\n%s", state, want, s.log())
		}
	}
}

func (s *simulation) result() Result {
	s.Helper()
	s.await(Done)
	r, err := s.folder.Result()
	if err != nil {
		s.Fatal(err)
	}
	return r
}

// calls returns the calls of simulated commands, each as one text.
func (s *simulation) calls() (all []call) {
	s.Helper()
	data, _ := os.ReadFile(filepath.Join(s.dir, "calls"))
	for line := range strings.Lines(string(data)) {
		var c call
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			s.Fatal(err)
		}
		all = append(all, c)
	}
	return all
}

func (s *simulation) log() string {
	data, _ := os.ReadFile(s.folder.Log())
	return string(data)
}
