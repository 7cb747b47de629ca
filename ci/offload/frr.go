package offload

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"slipway/ci/report"
	"slipway/ci/suite"
	"slipway/images"
	"slipway/layers/plaintext"
)

// plugin is a dataplane plugin of zebra that offloads policy based routing.
type plugin struct {
	module      string // its name for zebra's option -M
	ports, flow string // commands of vtysh, whose output parsePluginPorts and readFlows read
	driver      string // of all ports, if the output names none
	readFlows   func(string) []pbrFlow
	args        func(*images.DPU) []string // arguments of the module
}

// router runs commands in FRR (zebra and pbrd with a plugin). It uses the daemons that already run
// on the board, or daemons that the check started with sockets in a folder of their own.
type router struct {
	*suite.Session
	plugin plugin
	dir    string // the folder of the sockets; "" for the board's own daemons
	zebra  *daemon
	stop   []func()
}

const (
	daemonTimeout = 20 * time.Second // for a daemon to start
	pollInterval  = 200 * time.Millisecond
)

// flowTimeout is how long a rule or a counter may take to appear.
var flowTimeout = 20 * time.Second

// startFRR connects to the board's zebra, if it answers the plugin's command. Else it starts zebra
// and pbrd of folder, with sockets in a new one. Call the router's close, also after an error.
func startFRR(ctx context.Context, s *suite.Session, p plugin, folder string) (*router, error) {
	r := &router{Session: s, plugin: p}
	if _, err := r.runVtysh(ctx, p.ports); err == nil {
		return r, nil
	}
	dir := "/tmp/slipway-" + rand.Text()
	if _, err := s.Output(ctx, "install", "-d", "-m", "700", "-o", "frr", "-g", "frr", dir); err != nil {
		return r, err
	}
	r.dir = dir
	if _, err := s.Output(ctx, "touch", dir+"/zebra.conf", dir+"/pbrd.conf"); err != nil {
		return r, err
	}
	r.zebra = r.startDaemon(ctx, folder+"/zebra", "-M", p.module+":"+strings.Join(p.args(s.DPU), " "))
	if err := r.waitForDaemon(ctx, r.zebra, p.ports); err != nil {
		return r, err
	}
	return r, r.waitForDaemon(ctx, r.startDaemon(ctx, folder+"/pbrd"), "show pbr map")
}

// startDaemon starts a daemon of FRR in the foreground on the board, until the router's close, and
// returns at once. The daemon switches to the user frr, unless root is in the group frrvty.
func (r *router) startDaemon(ctx context.Context, program string, args ...string) *daemon {
	name := program[strings.LastIndex(program, "/")+1:]
	file := r.dir + "/" + name
	argv := append([]string{
		program, "-f", file + ".conf", "-i", file + ".pid", "-z", r.dir + "/zserv.api", "--vty_socket", r.dir,
		"-P", "0", "--log", "stdout",
	}, args...)
	ctx, cancel := context.WithCancel(ctx)
	d := &daemon{name: name, done: make(chan struct{}), out: &outputWatcher{seen: make(chan struct{})}}
	go func() {
		defer close(d.done)
		_, d.err = r.Stream(ctx, nil, d.out, d.out, argv...)
	}()
	r.stop = append(r.stop, func() {
		cancel()
		<-d.done
	})
	return d
}

type daemon struct {
	name string
	out  *outputWatcher
	done chan struct{}
	err  error // valid once done is closed
}

// zebraOutput returns what the zebra that the check started printed, or a remark if the check
// started none. EAL reports there which ports a driver cannot use, and continues without them.
func (r *router) zebraOutput() string {
	if r.zebra == nil {
		return "(nothing; zebra's log has what DPDK said when it started)"
	}
	return cmp.Or(plaintext.Clean(r.zebra.out.String(), report.MaxSawBytes/2), "(nothing)")
}

// close stops the daemons that the check started, the last one first, and removes their folder.
func (r *router) close(ctx context.Context) error {
	for _, stop := range slices.Backward(r.stop) {
		stop()
	}
	if r.dir == "" {
		return nil
	}
	return r.RemoveFolder(ctx, r.dir)
}

// waitForDaemon repeats a vtysh command until it succeeds, up to daemonTimeout or the daemon's end.
func (r *router) waitForDaemon(ctx context.Context, d *daemon, command string) error {
	var refused error
	err := suite.WaitUntil(ctx, daemonTimeout, pollInterval, func() (bool, error) {
		if _, refused = r.runVtysh(ctx, command); refused == nil {
			return true, nil
		}
		select {
		case <-d.done:
			return false, errors.Join(fmt.Errorf("%s ended: %s", d.name, cmp.Or(plaintext.Clean(d.out.String(), report.MaxSawBytes/2), "no output")), d.err)
		default:
			return false, nil
		}
	})
	if err == nil && refused != nil {
		err = fmt.Errorf("%s does not answer: %w", d.name, refused)
	}
	return err
}

// vtyshError matches vtysh's refusal of a command. vtysh 10.3 exits with 0 nevertheless.
var vtyshError = plaintext.Regexp(`(?m)^% \S`)

// vtyshRefusal is the error of a command that this FRR does not know or accept.
type vtyshRefusal struct{ said string }

func (r vtyshRefusal) Error() string { return r.said }

// runVtysh returns the output of commands in one vtysh. If FRR rejects one, that is a vtyshRefusal.
func (r *router) runVtysh(ctx context.Context, commands ...string) (string, error) {
	argv := []string{"vtysh"}
	if r.dir != "" {
		argv = append(argv, "--vty_socket", r.dir)
	}
	for _, c := range commands {
		argv = append(argv, "-c", c)
	}
	out, err := r.Output(ctx, argv...)
	if vtyshError().MatchString(out) {
		err = vtyshRefusal{fmt.Sprintf("%s: %s", suite.ShellLine(argv), plaintext.Clean(out, report.MaxSawBytes/2))}
	}
	return out, err
}

// configure runs commands in FRR's configuration mode.
func (r *router) configure(ctx context.Context, commands ...string) error {
	_, err := r.runVtysh(ctx, append([]string{"configure terminal"}, commands...)...)
	return err
}

// flowsUntil reads zebra's list of flows again and again, until wanted is true of them or the time
// limit is over, which is no error. It returns the last flows and their text.
func (r *router) flowsUntil(ctx context.Context, limit time.Duration, wanted func([]pbrFlow) bool) (flows []pbrFlow, said string, err error) {
	err = suite.WaitUntil(ctx, limit, pollInterval, func() (bool, error) {
		said, err = r.runVtysh(ctx, r.plugin.flow)
		flows = r.plugin.readFlows(said)
		return err == nil && wanted(flows), err
	})
	return flows, said, err
}

const maxPorts = 64

// parsePluginPorts parses the JSON that vtysh prints about a plugin's ports, at most maxPorts. It
// returns the driver of each interface in use. If driver is not "", all listed ports are in use and
// have that driver. Invalid JSON has no ports.
func parsePluginPorts(text, driver string) map[string]string {
	var said struct {
		Ports []struct {
			Used              bool
			Driver, Interface string
		}
	}
	if json.Unmarshal([]byte(text), &said) != nil {
		return nil
	}
	drivers := map[string]string{}
	for _, p := range said.Ports[:min(len(said.Ports), maxPorts)] {
		if p.Used || driver != "" {
			drivers[p.Interface] = cmp.Or(driver, p.Driver)
		}
	}
	return drivers
}

// pbrFlow is a rule in zebra's list of flows, with the counter of its flow.
type pbrFlow struct {
	iface   string
	seq     int
	port    string // destination port, "" for any
	counted bool   // it has a flow with a counter
	refused string // the plugin's reason why it has no flow
	tally
}

const (
	maxFlows  = 10_000
	maxReason = 200
)

var (
	flowStats = plaintext.Regexp(`^\s*DPDK stats: packets (\d{1,19}) bytes (\d{1,19})\s*$`)
	flowPort  = plaintext.Regexp(`^\s*DST Port Match: (\d{1,5})\s*$`)
	flowSeq   = plaintext.Regexp(`^\s*Seq (\d{1,9}) pri \d+\s*$`)
	flowNone  = plaintext.Regexp(`^\s*DPDK: not offloaded: (.*)$`)
)

// parseFlows parses the output of "show dplane dpdk pbr flows", up to maxFlows rules.
func parseFlows(text string) (all []pbrFlow) {
	for _, line := range plaintext.Lines(strings.ReplaceAll(text, "\r", "")) {
		if name, ok := strings.CutPrefix(line, "Rules if "); ok {
			if len(all) == maxFlows {
				return all
			}
			all = append(all, pbrFlow{iface: plaintext.Clean(strings.TrimSpace(name), 64)})
			continue
		}
		if len(all) == 0 {
			continue
		}
		f := &all[len(all)-1]
		if m := flowPort().FindStringSubmatch(line); m != nil {
			f.port = m[1]
		}
		if m := flowSeq().FindStringSubmatch(line); m != nil {
			f.seq, _ = strconv.Atoi(m[1])
		}
		if m := flowNone().FindStringSubmatch(line); m != nil {
			f.refused = plaintext.Clean(strings.TrimSpace(m[1]), maxReason)
		}
		if m := flowStats().FindStringSubmatch(line); m != nil {
			f.packets, _ = strconv.ParseInt(m[1], 10, 64)
			f.bytes, _ = strconv.ParseInt(m[2], 10, 64)
			f.counted = true
		}
	}
	return all
}

// countedFlows returns the flows with a counter, of one port or (if port is "") of all.
func countedFlows(flows []pbrFlow, port string) []pbrFlow {
	return slices.DeleteFunc(slices.Clone(flows), func(f pbrFlow) bool { return !f.counted || port != "" && f.port != port })
}
