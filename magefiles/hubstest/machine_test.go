package hubstest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"slipway/ci/hub/access"
	"slipway/layers/localfile"
	"slipway/layers/run"
)

// Machine is a hub or a station: a state folder, an address, and at most one process that is killed
// and started again.
type Machine struct {
	Name    string
	Address string
	Dir     string   // XDG_STATE_HOME
	Env     []string // of its process
	Boards  []string // of a station: their names

	lab     *Lab
	program string    // of its process, if not the lab's
	argv    []string  // after the program
	holder  *exec.Cmd // lives in its network namespace
	outside string    // the end of its link

	mu     sync.Mutex
	cmd    *exec.Cmd
	ended  chan struct{} // closed at the process's end
	wanted bool          // nobody killed it
}

// command returns a command in the machine's namespace.
func (m *Machine) command(argv ...string) run.Command {
	if m.holder != nil {
		argv = append([]string{"nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", m.holder.Process.Pid), "--"}, argv...)
	}
	return run.Command{Argv: argv, Dir: m.Dir, Env: slices.Concat([]string{"XDG_STATE_HOME=" + m.Dir}, m.lab.env, m.Env)}
}

// Run runs a line of the program on the machine, and returns what it prints.
func (m *Machine) Run(ctx context.Context, args ...string) (string, error) {
	out, err := run.Output(ctx, m.command(append([]string{m.lab.Program}, args...)...))
	return string(out), err
}

// LogPath returns the file with what the process prints.
func (m *Machine) LogPath() string { return filepath.Join(m.lab.Dir, m.Name+".log") }

// Start starts the machine's process.
func (m *Machine) Start() error {
	log, err := os.OpenFile(m.LogPath(), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	m.mu.Lock()
	defer m.mu.Unlock()
	cmd := run.Prepare(context.Background(), m.command(append([]string{cmp.Or(m.program, m.lab.Program)}, m.argv...)...))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a thread that started it may end before it
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	m.cmd, m.ended, m.wanted = cmd, make(chan struct{}), true
	go func(ended chan<- struct{}) { _ = cmd.Wait(); close(ended) }(m.ended)
	return nil
}

// PID returns the number of the machine's process.
func (m *Machine) PID() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cmd.Process.Pid
}

// Identity returns as whom a station joined.
func (m *Machine) Identity() (id access.Identity, err error) {
	files, err := filepath.Glob(filepath.Join(localfile.QuoteGlob(m.Dir), "slipway", "hubs", "*.station.json"))
	if err != nil || len(files) != 1 {
		return id, fmt.Errorf("%s joined %d hubs", m.Name, len(files))
	}
	data, err := localfile.Read(files[0], 1<<20)
	if err == nil {
		err = json.Unmarshal(data, &id)
	}
	return id, err
}

// CPU returns how long the machine's process has run on CPUs.
func (m *Machine) CPU() time.Duration {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", m.PID()))
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 13 {
		return 0 // it has ended
	}
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * time.Second / 100 // USER_HZ
}

// MemoryBytes returns the resident memory of the machine's process, and PeakBytes the most that it was.
func (m *Machine) MemoryBytes() int64 { return m.status("VmRSS:") }
func (m *Machine) PeakBytes() int64   { return m.status("VmHWM:") }

func (m *Machine) status(field string) (kib int64) {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", m.PID()))
	_, after, _ := strings.Cut(string(data), field)
	_, _ = fmt.Sscan(after, &kib) // 0 if it has ended
	return kib << 10
}

// Kill kills the machine's process, and waits for its end.
func (m *Machine) Kill() {
	m.mu.Lock()
	cmd, ended := m.cmd, m.ended
	m.wanted = false
	m.mu.Unlock()
	if cmd != nil {
		_ = cmd.Process.Kill()
		<-ended
	}
}

// Freeze stops or continues the machine's process.
func (m *Machine) Freeze(frozen bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	sig := unix.SIGCONT
	if frozen {
		sig = unix.SIGSTOP
	}
	_ = m.cmd.Process.Signal(sig) // which may have been killed
}

// Alive returns an error if the process ended although nobody killed it.
func (m *Machine) Alive() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cmd == nil || !m.wanted {
		return nil
	}
	select {
	case <-m.ended:
		return fmt.Errorf("%s ended by itself (%v): %s", m.Name, m.cmd.ProcessState, bytes.TrimSpace(localfile.Tail(m.LogPath(), 600)))
	default:
		return nil
	}
}

// Cut drops what reaches the machine, what it sends, or nothing any more.
func (m *Machine) Cut(ctx context.Context, in, out bool) error {
	rules := "flush ruleset\n"
	for _, way := range []struct {
		cut        bool
		hook, name string
	}{{in, "input", "iifname"}, {out, "output", "oifname"}} {
		if way.cut {
			rules += fmt.Sprintf("add table inet cut\nadd chain inet cut %s { type filter hook %[1]s priority 0; }\nadd rule inet cut %[1]s %s eth0 drop\n", way.hook, way.name)
		}
	}
	c := m.command("nft", "-f", "-")
	c.Stdin = strings.NewReader(rules)
	return run.Run(ctx, c)
}

// Slow limits what the machine sends to so many kilobits a second.
func (m *Machine) Slow(ctx context.Context, kbit int) error {
	return run.Run(ctx, m.command("tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", fmt.Sprintf("%dkbit", kbit), "burst", "1600", "latency", "400ms"))
}

// plugIn gives the machine a network namespace, which lives as long as a process in it.
func (m *Machine) plugIn(ctx context.Context, n int) error {
	m.holder = exec.Command("sleep", "infinity")
	m.holder.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	if err := m.holder.Start(); err != nil {
		return err
	}
	m.outside = fmt.Sprintf("ve%d", n)
	return errors.Join(
		batch(ctx, run.Command{Argv: []string{"ip", "-batch", "-"}},
			fmt.Sprintf("link add %s type veth peer name eth0 netns %d", m.outside, m.holder.Process.Pid),
			"link set "+m.outside+" master br0 up"),
		batch(ctx, m.command("ip", "-batch", "-"), "address add "+m.Address+"/16 dev eth0", "link set eth0 up", "link set lo up"))
}

func batch(ctx context.Context, c run.Command, lines ...string) error {
	c.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	return run.Run(ctx, c)
}

// until calls is again and again until it is true.
func until(ctx context.Context, is func() bool) error {
	for !is() {
		if err := run.Sleep(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}
