package offload

import (
	"bufio"
	"bytes"
	"context"
	endian "encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"slipway/ci/report"
	"slipway/ci/suite"
	"slipway/ci/suite/suitetest"
	"slipway/flash/boardssh"
	"slipway/images"
	"slipway/layers/plaintext"
)

// The addresses of the simulated DPU: its port p0, the machine that sends packets, and the two
// machines behind the DPU.
const (
	portMAC            = "02:00:00:00:00:0a"
	vfMAC, p0MAC       = "02:00:00:00:00:01", "02:00:00:00:00:02"
	leaf1MAC, leaf2MAC = "02:00:00:00:01:01", "02:00:00:00:01:02"
	leaf1IP, leaf2IP   = "192.0.2.1", "192.0.2.2"
	vfIP               = "198.51.100.2"
)

var simulatedSpec = images.DPU{
	EAL: []string{"--no-huge", "--vdev=net_swflow0,iface=pf0vf0"}, Ports: []string{"pf0vf0", "p0"},
	From:  &images.Peer{Run: []string{"in", "vf0"}, Interface: "eth0", Address: vfIP},
	To:    &images.Peer{Run: []string{"in", "leaf2"}, Interface: "eth0", Address: leaf2IP},
	Other: &images.Peer{Run: []string{"in", "leaf1"}, Interface: "eth0", Address: leaf1IP},
}

// simulatedDPU is a board whose ports follow a rule and a wider rule. No package provides one. It
// answers as testpmd, tcpdump and vtysh do, and has faults that the checks must find.
type simulatedDPU struct {
	driver   string
	faults   map[string]bool
	recorded suitetest.Recorded // answers to other commands

	zebra   bool                  // whether zebra runs
	rules   map[string][]*pbrRule // by policy
	applied map[string]bool       // policies

	mu         sync.Mutex
	rule, wide *simulatedRule
	jump, drop *simulatedRule
	created    int                  // rules that testpmd has created
	received   int                  // packets that testpmd has received
	sent       int                  // packets for the rule
	captures   map[string]io.Writer // by peer, or port
	kept       []byte               // a frame that is sent after the next one
}

// pbrRule is a rule of a policy. If the plugin does not offload it, why is the reason.
type pbrRule struct {
	seq  int
	port uint16 // 0: any
	why  string
}

type simulatedRule struct {
	number int
	port   uint16 // 0: any
	group  bool   // of another group than 0
	plain  bool   // without transfer
	tally
}

func (d *simulatedDPU) hasFault(what string) bool { return d.faults[what] }

// newSession returns a session with the simulated board.
func (d *simulatedDPU) newSession(spec *images.DPU) *suite.Session {
	d.captures = map[string]io.Writer{}
	return &suite.Session{Board: d, DPU: spec, Stream: d.runStream, Terminal: d.runTestpmd}
}

func (d *simulatedDPU) Run(ctx context.Context, argv ...string) (boardssh.Result, error) {
	line := strings.Join(argv, " ")
	peer := ""
	if argv[0] == "in" {
		peer, line = argv[1], strings.Join(argv[2:], " ")
	}
	answer := boardssh.Result{}
	switch {
	case strings.HasSuffix(line, " --version"):
		if d.faults["no "+strings.Fields(line)[0]] {
			answer.Status = 127
		}
	case strings.HasPrefix(line, "sh -c command -v"):
		if d.faults["no "+argv[len(argv)-1]] {
			answer.Status = 127
		}
	case line == "cat /sys/class/net/p0/address":
		answer.Stdout = []byte(p0MAC + "\n")
	case line == "cat /sys/class/net/pf0vf0/address":
		answer.Stdout = []byte(portMAC + "\n")
	case argv[0] == "vtysh":
		return d.answerVtysh(argv)
	case argv[0] == "ip":
		answer.Stdout = []byte(d.showKernelRules())
	case line == "cat /sys/class/net/eth0/address":
		answer.Stdout = []byte(map[string]string{"vf0": vfMAC, "leaf1": leaf1MAC, "leaf2": leaf2MAC}[peer] + "\n")
	case strings.HasPrefix(line, "bash -c echo hello"):
	default:
		return d.recorded.Run(ctx, argv...)
	}
	return answer, nil
}

// forwardFrame forwards a frame as the rules say, or else as the kernel does.
func (d *simulatedDPU) forwardFrame(frame []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	rule := d.matchRule(frame)
	if rule != nil && rule == d.drop {
		return
	}
	if rule == nil {
		d.forwardByKernel(frame)
		return
	}
	if rule.packets++; d.hasFault("counts twice") {
		rule.packets++
	}
	if rule.bytes += int64(len(frame)); d.hasFault("counts no headers") {
		rule.bytes -= etherBytes
	}
	if rule.plain {
		if !d.hasFault("loses them") {
			d.received++
		}
		back := swapMACs(frame)
		if d.hasFault("damages what it receives") {
			back[len(back)-1] ^= 1
		}
		if !d.hasFault("sends nothing back") {
			d.deliverFrame("vf0", back)
		}
		if d.hasFault("tells the kernel") {
			d.forwardByKernel(frame)
		}
		return
	}
	leaf, mac := "leaf2", leaf2MAC
	if rule == d.wide {
		leaf, mac = "leaf1", leaf1MAC
	}
	d.sent++
	out := d.damageFrame(routeFrame(frame, parseMAC(p0MAC), parseMAC(mac)))
	if out != nil {
		d.deliverFrame(leaf, out)
	}
	if d.hasFault("sends it twice") {
		d.deliverFrame(leaf, out)
	}
	if d.hasFault("floods") && leaf == "leaf2" {
		d.deliverFrame("leaf1", out)
	}
	if d.hasFault("sends a copy") {
		d.forwardByKernel(frame)
	}
	if d.hasFault("tells the kernel") {
		d.deliverFrame("pf0vf0", frame)
	}
	if d.hasFault("sends it back") {
		d.deliverFrame("vf0", out)
	}
}

// matchRule returns the rule that applies to a frame.
func (d *simulatedDPU) matchRule(frame []byte) *simulatedRule {
	if endian.BigEndian.Uint16(frame[12:]) == etherTagged {
		if !d.hasFault("takes tags") {
			return nil
		}
		frame = slices.Concat(frame[:12], frame[16:])
	}
	if endian.BigEndian.Uint16(frame[12:]) != etherIPv4 && !d.hasFault("takes any type") {
		return nil
	}
	ip := frame[etherBytes:]
	body := ip[headerBytes(frame):]
	if d.hasFault("does not know options") {
		body = ip[ipv4Bytes:]
	}
	fragment := endian.BigEndian.Uint16(ip[ipFragment:])&^dontFragment != 0
	switch {
	case ip[ipTTL] == 0 && d.hasFault("takes TTL 0"):
	case ip[ipTTL] <= 1 && !d.hasFault("takes TTL 1") && (d.rule == nil || !d.rule.plain):
		return nil
	case ip[ipProtocol] != protocolUDP && !(ip[ipProtocol] == protocolTCP && d.hasFault("moves TCP too")), !bytes.Equal(ip[12:16], netip.MustParseAddr(vfIP).AsSlice()) && !d.hasFault("takes any source"):
		return nil
	}
	port := endian.BigEndian.Uint16(body[2:])
	if d.hasFault("ignores a bit of ports") {
		port |= 4
	}
	if d.drop != nil && d.jump != nil && d.hasFault("mixes groups") {
		return d.drop
	}
	if d.hasFault("does the older rule") && d.wide != nil {
		return d.wide
	}
	takes := d.rule != nil && (d.rule.port == port && (!fragment || d.hasFault("takes fragments")) || d.hasFault("takes any port"))
	switch jumps := d.jump != nil && !d.hasFault("does not jump") || d.hasFault("jumps by itself"); {
	case takes && d.rule.plain && (d.wide == nil || ip[ipTTL] <= 1 || d.hasFault("does plain rules first")):
		return d.rule
	case d.wide != nil && d.wide.group && !jumps:
		return nil
	case takes && !d.rule.plain:
		return d.rule
	case ip[ipTTL] <= 1:
		return nil
	}
	return d.wide
}

// damageFrame returns an outgoing frame with the damage of the board's faults.
func (d *simulatedDPU) damageFrame(out []byte) []byte {
	ip := etherBytes
	switch {
	case d.hasFault("keeps the source"):
		copy(out[6:], parseMAC(vfMAC))
	case d.hasFault("keeps the destination"):
		copy(out, parseMAC(portMAC))
	case d.hasFault("sets a wrong MAC"):
		out[5] ^= 0x40
	case d.hasFault("keeps the TTL"):
		out[ip+ipTTL]++
		setHeaderChecksum(out[ip : ip+headerBytes(out)])
	case d.hasFault("makes checksums") && bytes.Equal(out[ip+headerBytes(out)+udpChecksum:][:2], []byte{0, 0}):
		out[ip+headerBytes(out)+udpChecksum] = 1
	case d.hasFault("loses long ones") && len(out) > 1500:
		return nil
	case d.hasFault("keeps the checksum"):
		out[ip+ipChecksum] ^= 1
	case d.hasFault("breaks the sum of UDP"):
		out[ip+headerBytes(out)+udpChecksum] ^= 1
	case d.hasFault("breaks the payload"):
		out[len(out)-1] ^= 1
	case d.hasFault("cuts a byte"):
		out = out[:len(out)-1]
	case d.hasFault("adds a byte"):
		out = append(out, 0)
	case d.hasFault("loses every 20th") && d.sent%20 == 0:
		return nil
	case d.hasFault("swaps two"):
		out, d.kept = d.kept, out
		if d.sent%2 == 0 {
			d.deliverFrame("leaf2", d.kept)
			d.kept = nil
		}
	}
	return out
}

// forwardByKernel forwards a frame as the kernel does.
func (d *simulatedDPU) forwardByKernel(frame []byte) {
	if frame[etherBytes+ipTTL] == 1 && d.hasFault("damages what is over") {
		frame = slices.Concat(parseMAC(leaf2MAC), frame[6:])
	}
	d.deliverFrame("pf0vf0", frame)
	if endian.BigEndian.Uint16(frame[12:]) != etherIPv4 || frame[etherBytes+ipTTL] <= 1 {
		return
	}
	frame = trimPadding(frame)
	leaf, mac := "leaf1", leaf1MAC
	if netip.AddrFrom4([4]byte(frame[etherBytes+16:])) == netip.MustParseAddr(leaf2IP) {
		leaf, mac = "leaf2", leaf2MAC
	}
	out := routeFrame(frame, parseMAC(p0MAC), parseMAC(mac))
	d.deliverFrame("p0", out)
	d.deliverFrame(leaf, out)
}

// deliverFrame passes a frame to a capture.
func (d *simulatedDPU) deliverFrame(place string, b []byte) {
	if w := d.captures[place]; w != nil {
		w.Write(pcapPacket(b))
	}
}

func parseMAC(text string) net.HardwareAddr {
	m, _ := net.ParseMAC(text)
	return m
}

// runPython runs a peer's Python program, the sender.
func (d *simulatedDPU) runPython(place string, stdin io.Reader) (int, error) {
	text, _ := io.ReadAll(stdin)
	if d.hasFault("does not send") {
		return 1, nil
	}
	for _, line := range strings.Fields(strings.Split(string(text), `"""`)[1]) {
		frame, err := hex.DecodeString(line)
		if err != nil {
			return 1, err
		}
		if place == "leaf2" && !d.hasFault("takes any port's") {
			d.deliverFrame("p0", frame)
			continue
		}
		d.forwardFrame(frame)
	}
	return 0, nil
}

func pcapPacket(b []byte) []byte {
	head := endian.LittleEndian.AppendUint32(make([]byte, 8), uint32(len(b)))
	return append(endian.LittleEndian.AppendUint32(head, uint32(len(b))), b...)
}

var captureHeader = endian.LittleEndian.AppendUint32([]byte("\xd4\xc3\xb2\xa1\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00"), 1)

// runStream runs what runs until it is stopped: tcpdump, daemons, and a peer's Python.
func (d *simulatedDPU) runStream(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer, argv ...string) (int, error) {
	if strings.HasSuffix(argv[0], "/zebra") || strings.HasSuffix(argv[0], "/pbrd") {
		return d.runDaemon(ctx, stdout, argv)
	}
	if slices.Contains(argv, "python3") {
		return d.runPython(argv[1], stdin)
	}
	place := argv[1]
	if argv[0] == "tcpdump" {
		place = argv[2]
	}
	if d.faults["tcpdump fails"] {
		io.WriteString(stderr, "tcpdump: eth0: No such device exists\n")
		return 1, nil
	}
	stdout.Write(captureHeader)
	d.mu.Lock()
	d.captures[place] = stdout
	d.mu.Unlock()
	io.WriteString(stderr, "tcpdump: listening on eth0, link-type EN10MB (Ethernet), snapshot length 2048 bytes\n")
	<-ctx.Done()
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.captures, place)
	return 0, context.Cause(ctx)
}

// runTestpmd simulates dpdk-testpmd of DPDK 22.11.
func (d *simulatedDPU) runTestpmd(_ context.Context, talk func(io.Writer, io.Reader) error, argv ...string) error {
	in, keys := io.Pipe()
	screen, out := io.Pipe()
	defer screen.Close()
	defer keys.Close()
	go func() {
		defer out.Close()
		io.WriteString(out, "EAL: Detected CPU lcores: 2\r\nInteractive-mode selected\r\n")
		if d.faults["does not start"] {
			io.WriteString(out, "EAL: Error - exiting with code: 1\r\n  Cause: Cannot init EAL: Permission denied\r\n")
			return
		}
		io.WriteString(out, "\x1b[0mDone\r\ntestpmd> ")
		for lines := bufio.NewScanner(in); lines.Scan(); {
			if lines.Text() == "quit" {
				return
			}
			fmt.Fprintf(out, "%s\r\n%stestpmd> ", lines.Text(), strings.ReplaceAll(d.answerTestpmd(lines.Text()), "\n", "\r\n"))
		}
	}()
	return talk(keys, screen)
}

var (
	udpPort    = plaintext.Regexp(`udp dst is (\d+) `)
	ruleNumber = plaintext.Regexp(` 0 (?:rule )?(\d+)\b`)
)

func (d *simulatedDPU) answerTestpmd(line string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	words := strings.Fields(line)
	switch {
	case words[0] == "dump_socket_mem":
		objects := 93
		if d.hasFault("leaks rules") {
			objects += d.created
		}
		return fmt.Sprintf("Socket 0: size(M) total: 256.000000 alloc: 19.300000(7.539%%) free: 236.700000 \tcount alloc: %-4d free: 3\n"+
			"Total   : size(M) total: 256.000000 alloc: 19.300000(7.539%%) free: 236.700000 \tcount alloc: %-4d free: 3\n", objects, objects)
	case words[0] == "dump_mempool":
		if d.hasFault("leaks buffers") {
			return fmt.Sprintf("  common_pool_count=%d\n", 1788-d.received)
		}
		return "mempool <mb_pool_0>@0x1003bdc40\n  size=2048\n  internal cache infos:\n    cache_size=250\n    cache_count[0]=260\n    total_cache_count=260\n  common_pool_count=1788\n  no statistics available\n"
	case words[0] == "stop":
		return fmt.Sprintf("Telling cores to stop...\n  ---------------------- Forward statistics for port 0  ----------------------\n  RX-packets: %-14d RX-dropped: 0             RX-total: %-14d\n", d.received, d.received)
	case words[0] == "set", words[0] == "start":
		return ""
	case words[0] == "show":
		return "Number of available ports: 2\nPort MAC Address       Name         Driver         Status   Link\n" +
			fmt.Sprintf("0    %s net_swflow0  %s     up       25 Gbps\n1    %s net_swflow1  %s     up       25 Gbps\n", strings.ToUpper(portMAC), d.driver, p0MAC, d.driver)
	case d.faults["refuses"] && words[1] == "create":
		return "port_flow_complain(): Caught PMD error type 16 (specific action): cause: 0x7ffd, no such action: Operation not supported\n"
	case words[1] == "flush":
		if !d.hasFault("does not flush") {
			d.rule, d.wide, d.jump, d.drop = nil, nil, nil, nil
		}
		return ""
	case words[1] == "create":
		return d.createRule(line)
	}
	number, _ := strconv.Atoi(ruleNumber().FindStringSubmatch(line)[1])
	rule := new(*simulatedRule)
	for _, made := range []**simulatedRule{&d.rule, &d.wide, &d.jump} {
		if *made != nil && (*made).number == number {
			rule = made
		}
	}
	switch {
	case words[1] == "query" && (*rule != nil || d.hasFault("answers for ever")):
		return d.queryRule(*rule)
	case words[1] == "query":
		return fmt.Sprintf("Flow rule #%d not found\n", number)
	case d.hasFault("destroys the other rule") && rule == &d.rule && d.wide != nil:
		d.wide = nil
	case !d.hasFault("keeps the rule"):
		*rule = nil
	}
	return fmt.Sprintf("Flow rule #%d destroyed\n", number)
}

func (d *simulatedDPU) createRule(line string) string {
	rule := &simulatedRule{number: d.created, group: strings.Contains(line, "group 1 "), plain: !strings.Contains(line, " transfer ")}
	d.created++
	if m := udpPort().FindStringSubmatch(line); m != nil {
		port, _ := strconv.Atoi(m[1])
		rule.port, d.rule = uint16(port), rule
	} else if strings.Contains(line, " drop ") {
		d.drop = rule
	} else if strings.Contains(line, "jump group 1 ") {
		d.jump = rule
	} else {
		d.wide = rule
	}
	return fmt.Sprintf("Flow rule #%d created\n", rule.number)
}

func (d *simulatedDPU) queryRule(rule *simulatedRule) string {
	var t tally
	if rule != nil {
		t = rule.tally
	}
	if d.hasFault("knows nothing yet") {
		t = tally{}
	}
	if d.hasFault("forgets its count") && rule != nil {
		rule.tally = tally{}
	}
	return fmt.Sprintf("COUNT:\n hits_set: 1\n bytes_set: 1\n hits: %d\n bytes: %d\n", t.packets, t.bytes)
}

// runCheck runs the only check of a suite on the simulated board.
func (d *simulatedDPU) runCheck(t *testing.T, spec *images.DPU, suite string) report.CheckResult {
	t.Helper()
	return runCheckOn(t, d.newSession(spec), suite)
}

// runCheckOn runs the only check of a suite in a session.
func runCheckOn(t *testing.T, s *suite.Session, text string) report.CheckResult {
	t.Helper()
	loaded, err := suite.Load(suitetest.WriteSuite(t, map[string]string{"main.yml": text}))
	if err != nil {
		t.Fatal(err)
	}
	return s.RunCheck(t.Context(), loaded.Checks[0])[0]
}

// shortenTimeouts keeps tests from waiting for packets that do not arrive. The simulated
// board is never late.
func shortenTimeouts(t *testing.T) {
	quiet, arrival, flows := lull, arrivalTime, flowTimeout
	lull, arrivalTime, flowTimeout = 20*time.Millisecond, 200*time.Millisecond, 0
	t.Cleanup(func() { lull, arrivalTime, flowTimeout = quiet, arrival, flows })
}
