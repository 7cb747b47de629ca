package ci

import (
	"bufio"
	"context"
	endian "encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"slipway/flash/target"
	"slipway/images"
)

// The addresses of the played DPU: its port p0, where packets come from, and the two
// machines behind it.
const (
	vfMAC, p0MAC       = "02:00:00:00:00:01", "02:00:00:00:00:02"
	leaf1MAC, leaf2MAC = "02:00:00:00:01:01", "02:00:00:00:01:02"
	leaf1IP, leaf2IP   = "192.0.2.1", "192.0.2.2"
	vfIP               = "198.51.100.2"
)

var playedSpec = images.DPU{
	EAL: []string{"--no-huge", "--vdev=net_swflow0,iface=pf0vf0"}, Ports: []string{"pf0vf0", "p0"},
	From:  &images.Peer{Run: []string{"in", "vf0"}, Interface: "eth0", Address: vfIP},
	To:    &images.Peer{Run: []string{"in", "leaf2"}, Interface: "eth0", Address: leaf2IP},
	Other: &images.Peer{Run: []string{"in", "leaf1"}, Interface: "eth0", Address: leaf1IP},
}

// playedDPU is a board that no package provides: ports that keep to one rule. It says what
// testpmd, tcpdump and vtysh say, and has faults to be found.
type playedDPU struct {
	driver string
	faults map[string]bool
	plays  recorded // what else it is asked

	zebra   bool                  // runs
	rules   map[string][]*pbrRule // of policies
	applied map[string]bool       // policies
	stuck   int                   // flows that nobody took away
	left    int                   // of what the kernel should not have any more
	grow    int                   // KiB, each time that its memory is looked at
	size    int
	objects int
	knocks  uint16

	mu       sync.Mutex
	rule     *playedRule
	captures map[string]io.Writer // by peer
}

// pbrRule is one of a policy's. A plugin that does not offload it says why.
type pbrRule struct {
	seq  int
	port uint16 // 0: any
	why  string
	hits int // of one for any port
}

type playedRule struct {
	port uint16
	hits int
}

// session is one with the played board.
func (d *playedDPU) session(spec *images.DPU) *session {
	d.captures = map[string]io.Writer{}
	return &session{board: d, dpu: spec, stream: d.stream, terminal: d.terminal}
}

func (d *playedDPU) Run(ctx context.Context, argv ...string) (target.Result, error) {
	line := strings.Join(argv, " ")
	peer := ""
	if argv[0] == "in" {
		peer, line = argv[1], strings.Join(argv[2:], " ")
	}
	answer := target.Result{}
	switch {
	case strings.HasPrefix(line, "sh -c command -v"):
		if d.faults["no "+argv[len(argv)-1]] {
			answer.Status = 127
		}
	case line == "cat /proc/sys/net/ipv4/ip_default_ttl":
		answer.Stdout = []byte("64\n")
	case line == "cat /proc/77/status":
		d.size += d.grow
		answer.Stdout = fmt.Appendf(nil, "Name:\tzebra\nVmRSS:\t   %d kB\n", 20480+d.size)
	case line == "cat /sys/class/net/p0/address":
		answer.Stdout = []byte(p0MAC + "\n")
	case argv[0] == "vtysh":
		return d.vtysh(argv)
	case argv[0] == "ip":
		answer.Stdout = []byte(d.kernel(argv[1]))
	case line == "cat /sys/class/net/eth0/address":
		answer.Stdout = []byte(map[string]string{"leaf1": leaf1MAC, "leaf2": leaf2MAC}[peer] + "\n")
	case strings.HasPrefix(line, "bash -c"):
		words := argv[slices.Index(argv, "-c")+1:] // script, bash, address, port, number, payload
		port, _ := strconv.Atoi(words[3])
		n, _ := strconv.Atoi(words[4])
		for range n {
			if words[0] == knocker {
				d.open(uint16(port))
			} else {
				d.forward(uint16(port), words[5])
			}
		}
	default:
		return d.plays.Run(ctx, argv...)
	}
	return answer, nil
}

// forward moves a packet as the rule says, or else as the kernel does.
func (d *playedDPU) forward(port uint16, payload string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.rule == nil || d.rule.port != port || d.wide() != nil && d.faults["does the older rule"] {
		if d.rule != nil && d.faults["a kernel without ports"] {
			d.deliver("leaf2", frame(p0MAC, leaf2MAC, 63, port, payload))
			return
		}
		if wide := d.wide(); wide != nil {
			wide.hits++
		}
		d.deliver("leaf1", frame(p0MAC, leaf1MAC, 63, port, payload))
		return
	}
	if d.rule.hits++; d.faults["counts twice"] {
		d.rule.hits++
	}
	from, to, ttl, leaf := p0MAC, leaf2MAC, 63, "leaf2"
	if d.faults["keeps the source"] {
		from = vfMAC
	}
	if d.faults["keeps the destination"] {
		to = vfMAC
	}
	if d.faults["keeps the TTL"] {
		ttl = 64
	}
	if d.faults["moves to leaf1"] {
		leaf = "leaf1"
	}
	out := frame(from, to, ttl, port, payload)
	if d.faults["keeps the checksum"] {
		out[14+10] ^= 1
	}
	d.deliver(leaf, out)
	if d.faults["sends a copy"] {
		d.deliver("leaf1", frame(p0MAC, leaf1MAC, 63, port, payload))
	}
}

// wide is the rule for any port, if there is one.
func (d *playedDPU) wide() *pbrRule {
	for policy := range d.applied {
		if i := slices.IndexFunc(d.rules[policy], func(r *pbrRule) bool { return r.port == 0 && r.why == "" }); i >= 0 {
			return d.rules[policy][i]
		}
	}
	return nil
}

// open opens a connection, the first one with a packet that is sent again.
func (d *playedDPU) open(port uint16) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.knocks++
	out := opening(p0MAC, leaf1MAC, 40000+d.knocks, port)
	d.deliver("leaf1", out)
	if d.knocks == 1 {
		d.deliver("leaf1", out)
	}
	if d.rule != nil && d.faults["moves TCP too"] {
		d.deliver("leaf2", opening(p0MAC, leaf2MAC, 40000+d.knocks, port))
	}
}

func (d *playedDPU) deliver(leaf string, b []byte) {
	if w := d.captures[leaf]; w != nil {
		w.Write(record(b))
	}
}

// frame is an Ethernet frame with UDP in IPv4.
func frame(from, to string, ttl int, port uint16, payload string) []byte {
	udp := endian.BigEndian.AppendUint16([]byte{0xc0, 0}, port)
	udp = endian.BigEndian.AppendUint16(udp, uint16(8+len(payload)))
	return ipv4(from, to, ttl, protocolUDP, append(append(udp, 0, 0), payload...))
}

// opening is the first packet of a connection by TCP.
func opening(from, to string, fromPort, port uint16) []byte {
	tcp := endian.BigEndian.AppendUint16(nil, fromPort)
	tcp = append(endian.BigEndian.AppendUint16(tcp, port), make([]byte, tcpBytes-4)...)
	tcp[12], tcp[13] = 5<<4, tcpSYN
	return ipv4(from, to, 63, protocolTCP, tcp)
}

func ipv4(from, to string, ttl int, protocol byte, rest []byte) []byte {
	source, _ := net.ParseMAC(from)
	dest, _ := net.ParseMAC(to)
	b := append(append([]byte(dest), source...), 8, 0)
	ip := []byte{0x45, 0, 0, byte(20 + len(rest)), 0, 0, 0, 0, byte(ttl), protocol, 0, 0}
	a, z := netip.MustParseAddr(vfIP).As4(), netip.MustParseAddr(leaf1IP).As4()
	ip = append(append(ip, a[:]...), z[:]...)
	endian.BigEndian.PutUint16(ip[10:], checksum(ip))
	return append(append(b, ip...), rest...)
}

func record(b []byte) []byte {
	head := endian.LittleEndian.AppendUint32(make([]byte, 8), uint32(len(b)))
	return append(endian.LittleEndian.AppendUint32(head, uint32(len(b))), b...)
}

var captureHeader = endian.LittleEndian.AppendUint32([]byte("\xd4\xc3\xb2\xa1\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00"), 1)

// stream is tcpdump.
func (d *playedDPU) stream(ctx context.Context, _ io.Reader, stdout, stderr io.Writer, argv ...string) (int, error) {
	if strings.HasSuffix(argv[0], "/zebra") || strings.HasSuffix(argv[0], "/pbrd") {
		return d.daemon(ctx, stdout, argv)
	}
	if d.faults["tcpdump fails"] {
		io.WriteString(stderr, "tcpdump: eth0: No such device exists\n")
		return 1, nil
	}
	stdout.Write(captureHeader)
	d.mu.Lock()
	d.captures[argv[1]] = stdout
	d.mu.Unlock()
	io.WriteString(stderr, "tcpdump: listening on eth0, link-type EN10MB (Ethernet), snapshot length 256 bytes\n")
	<-ctx.Done()
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.captures, argv[1])
	return 0, context.Cause(ctx)
}

// terminal is dpdk-testpmd of DPDK 22.11.
func (d *playedDPU) terminal(_ context.Context, talk func(io.Writer, io.Reader) error, argv ...string) error {
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
			fmt.Fprintf(out, "%s\r\n%stestpmd> ", lines.Text(), strings.ReplaceAll(d.answer(lines.Text()), "\n", "\r\n"))
		}
	}()
	return talk(keys, screen)
}

var udpPort = regexp.MustCompile(`udp dst is (\d+) `)

func (d *playedDPU) answer(line string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch words := strings.Fields(line); {
	case words[0] == "show":
		return "Number of available ports: 2\nPort MAC Address       Name         Driver         Status   Link\n" +
			fmt.Sprintf("0    02:00:00:00:00:0A net_swflow0  %s     up       25 Gbps\n1    %s net_swflow1  %s     up       25 Gbps\n", d.driver, p0MAC, d.driver)
	case d.faults["refuses"] && words[1] == "create":
		return "port_flow_complain(): Caught PMD error type 16 (specific action): cause: 0x7ffd, no such action: Operation not supported\n"
	case words[1] == "create":
		port, _ := strconv.Atoi(udpPort.FindStringSubmatch(line)[1])
		d.rule = &playedRule{port: uint16(port)}
		return "Flow rule #0 created\n"
	case words[1] == "query" && (d.rule != nil || d.faults["answers for ever"]):
		hits := 0
		if d.rule != nil {
			hits = d.rule.hits
		}
		return fmt.Sprintf("COUNT:\n hits_set: 1\n bytes_set: 1\n hits: %d\n bytes: %d\n", hits, 60*hits)
	case words[1] == "query":
		return "Flow rule #0 not found\n"
	case !d.faults["keeps the rule"]:
		d.rule = nil
	}
	return "Flow rule #0 destroyed\n"
}

// prove runs the one check of a suite on the played board.
func (d *playedDPU) prove(t *testing.T, spec *images.DPU, suite string) CheckResult {
	t.Helper()
	s, err := LoadSuite(writeSuite(t, map[string]string{"main.yml": suite}))
	if err != nil {
		t.Fatal(err)
	}
	return d.session(spec).runCheck(t.Context(), s.Checks[0])[0]
}

// shorten keeps tests from waiting for what does not arrive: the played board is never
// late.
func shorten(t *testing.T) {
	was, flows, settle := lull, flowPatience, settlePatience
	lull, flowPatience, settlePatience = 0, 0, 0
	t.Cleanup(func() { lull, flowPatience, settlePatience = was, flows, settle })
}
