package offload

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"slipway/ci/suite"
	"slipway/images"
	"slipway/layers/plaintext"
)

// traffic sends packets from a peer through the board. It captures them at the receiving peers, at
// the kernel's interfaces of the board's ports, and at the sending peer.
type traffic struct {
	*suite.Session
	dpu  *images.DPU
	from images.Peer
	mark []byte

	source, another, target, direct netip.Addr    // another is an address in the network of from
	foreign                         [3]netip.Addr // addresses of other networks; each differs from source in one byte
	fromMAC, gateway, outMAC        net.HardwareAddr
	toMAC, otherMAC                 net.HardwareAddr
	to, other, home, in, out        *capture // other is nil if board.yml names none
	more                            chan struct{}

	samples    []*sample
	rule, wide tally
}

// tally is the expected or read value of a rule's counter.
type tally struct{ packets, bytes int64 }

// noTraffic returns why the check cannot send packets (d lacks from or to), or "". d is not nil.
func noTraffic(d *images.DPU) string {
	if d.From == nil || d.To == nil {
		return "no packets were sent: dpu in the board's board.yml has no from and to"
	}
	return ""
}

// startTraffic looks for python3, reads addresses, starts captures until stop. It sends nothing.
func startTraffic(ctx context.Context, s *suite.Session, d *images.DPU) (t *traffic, err error) {
	t = &traffic{Session: s, dpu: d, from: *d.From, mark: make([]byte, markBytes), more: make(chan struct{}, 1)}
	rand.Read(t.mark)
	defer func() {
		if err != nil {
			t.stop()
		}
	}()
	for _, p := range []images.Peer{*d.From, *d.To} {
		if err := wantPeerProgram(ctx, s, p, "python3"); err != nil {
			return t, err
		}
	}
	if err := t.findAddresses(ctx); err != nil {
		return t, err
	}
	return t, t.startCaptures(ctx)
}

// findAddresses chooses the packets' IP addresses, and reads the peers' and ports' MAC addresses.
func (t *traffic) findAddresses(ctx context.Context) (err error) {
	t.source, t.direct = netip.MustParseAddr(t.from.Address), netip.MustParseAddr(t.dpu.To.Address) // Load has parsed them
	near := t.source.As4()
	near[3] = 20 + byte((int(near[3])+100)%200)
	t.another, t.target = netip.AddrFrom4(near), t.direct
	for i := range t.foreign {
		far := t.source.As4()
		far[i] ^= 1
		t.foreign[i] = netip.AddrFrom4(far)
	}
	if t.dpu.Other != nil {
		t.target = netip.MustParseAddr(t.dpu.Other.Address)
	}
	for _, m := range []struct {
		mac  *net.HardwareAddr
		peer *images.Peer
	}{
		{&t.fromMAC, &t.from},
		{&t.gateway, &images.Peer{Interface: t.dpu.Ports[0]}},
		{&t.outMAC, &images.Peer{Interface: t.dpu.Ports[1]}},
		{&t.toMAC, t.dpu.To},
		{&t.otherMAC, t.dpu.Other},
	} {
		if m.peer == nil {
			continue
		}
		if *m.mac, err = readMAC(ctx, t.Session, *m.peer); err != nil {
			return err
		}
	}
	return nil
}

// startCaptures starts tcpdump at the peers and at the kernel's interfaces of the board's ports.
func (t *traffic) startCaptures(ctx context.Context) error {
	sources := []string{t.source.String(), t.another.String()}
	for _, a := range t.foreign {
		sources = append(sources, a.String())
	}
	for _, w := range []struct {
		capture   **capture
		what      string
		peer      *images.Peer
		direction string
	}{
		{&t.to, "to", t.dpu.To, "in"},
		{&t.other, "other", t.dpu.Other, "in"},
		{&t.home, "from", &t.from, "in"},
		{&t.in, "the kernel's " + t.dpu.Ports[0], &images.Peer{Interface: t.dpu.Ports[0]}, "inout"},
		{&t.out, "the kernel's " + t.dpu.Ports[1], &images.Peer{Interface: t.dpu.Ports[1]}, "inout"},
	} {
		if w.peer == nil {
			continue
		}
		*w.capture = &capture{what: w.what, mark: t.mark, more: t.more}
		if err := (*w.capture).startTcpdump(ctx, t.Session, *w.peer, w.direction, sources); err != nil {
			return err
		}
	}
	return nil
}

// allCaptures returns the captures that were started, those at the receiving peers first.
func (t *traffic) allCaptures() []*capture {
	return slices.DeleteFunc([]*capture{t.to, t.other, t.home, t.in, t.out}, func(c *capture) bool { return c == nil })
}

// stop stops the captures that were started.
func (t *traffic) stop() {
	for _, c := range t.allCaptures() {
		c.stop()
	}
}

// peerCommand returns the command line that runs argv on a peer.
func peerCommand(p images.Peer, argv ...string) []string { return slices.Concat(p.Run, argv) }

// wantPeerProgram returns a suite.Missing error unless PROGRAM --version succeeds on a peer.
func wantPeerProgram(ctx context.Context, s *suite.Session, p images.Peer, program string) error {
	if _, err := s.Output(ctx, peerCommand(p, program, "--version")...); err != nil {
		return suite.Missing(fmt.Sprintf("there is no %s where packets are sent, pass or arrive: %s", program, suite.ShellLine(peerCommand(p, program))))
	}
	return nil
}

// readMAC reads the MAC address of a peer's interface.
func readMAC(ctx context.Context, s *suite.Session, p images.Peer) (net.HardwareAddr, error) {
	out, err := s.Output(ctx, peerCommand(p, "cat", "/sys/class/net/"+p.Interface+"/address")...)
	if err != nil {
		return nil, err
	}
	mac, err := net.ParseMAC(strings.TrimSpace(out))
	if err != nil || len(mac) != 6 {
		return nil, fmt.Errorf("interface %s has the address %q", p.Interface, plaintext.Clean(out, 100))
	}
	return mac, nil
}

// ruleMatch says which rules match a packet.
type ruleMatch int

const (
	forRule ruleMatch = iota // only the rule that is proved
	forWide                  // only the wider rule for all UDP
	forBoth                  // both, and the first of them applies
	forNone
	expired   // the rule, if it does not route; else none, because the TTL runs out
	forNobody // none, and the kernel must not forward them
	foreign   // none, and the kernel may drop them
)

// pattern is what a rule matches in packets from the peer from. Zero values match
// anything, but only the protocols UDP and TCP.
type pattern struct {
	protocol         byte
	target           netip.Addr
	fromPort, toPort uint16
}

// wider is the pattern of the older rule, which must apply second.
var wider = pattern{protocol: protocolUDP}

func (p pattern) matches(d datagram, fragment bool) bool {
	return (p.protocol == d.protocol || p.protocol == 0 && (d.protocol == protocolUDP || d.protocol == protocolTCP)) && (!p.target.IsValid() || p.target == d.target) && (!fragment || p.toPort == 0) &&
		(p.fromPort == 0 || p.fromPort == d.fromPort) && (p.toPort == 0 || p.toPort == d.toPort)
}

// matchOf returns which rules match d (fragments fit no port), expired (TTL 1) or foreign (source).
func (t *traffic) matchOf(a trafficOptions, d datagram, fragment bool) ruleMatch {
	switch {
	case d.ttl == 1:
		return expired
	case d.source == t.another:
		return forNone
	case d.source != t.source:
		return foreign
	case a.rulePattern(t.dpu).matches(d, fragment) && wider.matches(d, fragment):
		return forBoth
	case a.rulePattern(t.dpu).matches(d, fragment):
		return forRule
	case wider.matches(d, fragment):
		return forWide
	}
	return forNone
}

// ruleset says which flow rules exist in the ports while packets are sent.
type ruleset struct {
	rule, wide bool // wide is the rule for all UDP
	plain      bool // the rule lacks the attribute transfer; it gets only what the wider rule does not match
}

// messagePrefix returns the beginning of a message about these rules.
func (r ruleset) messagePrefix() string {
	switch {
	case r.rule && r.wide:
		return "with both rules: "
	case r.rule:
		return "with the rule: "
	case r.wide:
		return "with the wider rule: "
	}
	return "without a rule: "
}

// packetPath is the path that packets of a sample must take through the board.
type packetPath int

const (
	offloaded     packetPath = iota // the rule rewrites and sends them to the peer to
	offloadedWide                   // the wider rule rewrites and sends them to the peer other
	byKernel                        // the kernel forwards them to other, on the slow path
	kernelOnly                      // the kernel gets them and does not forward them
	unrouted                        // the kernel may forward or drop them
	toProgram                       // the port delivers them to testpmd
)

// expectedPath returns the path that packets with the match m must take while these rules exist.
func (r ruleset) expectedPath(m ruleMatch) packetPath {
	switch {
	case r.rule && r.plain && (m == forRule || m == expired || m == forBoth && !r.wide):
		return toProgram
	case m == forNobody || m == expired:
		return kernelOnly
	case m == foreign:
		return unrouted
	case r.rule && !r.plain && (m == forRule || m == forBoth):
		return offloaded
	case r.wide && (m == forWide || m == forBoth):
		return offloadedWide
	}
	return byKernel
}

// sample is a group of packets of one kind, which must all take the same path.
type sample struct {
	what   string // its name in messages
	number int
	match  ruleMatch
	target netip.Addr
	frames [][]byte
}

// sourcePort is the source port of UDP and TCP packets.
const sourcePort = 49_153

// Values that differ enough to find errors. Some header checksums overflow when the TTL decreases.
var (
	payloadSizes = []int{26, 27, 200, 1001, etherMTU} // the last is reduced to what fits into the MTU
	ttls         = []byte{64, 2, 255, 128}
	checksums    = []uint16{0xfeff, 0xff00, 0xfffe, 0, 0x00ff}
	tcpFlags     = []byte{0x02, 0x10, 0x18, 0x11, 0x04} // SYN, ACK, PSH and FIN with ACK, RST
)

// makeSample builds a sample of n packets with the headers of like, and adds it to t.samples. Size,
// checksum, flags and an unset TTL vary. Each packet has a mark and payload of its own.
func (t *traffic) makeSample(a trafficOptions, what string, n int, like datagram) *sample {
	like = t.fillAddresses(like)
	s := t.newSample(what, t.matchOf(a, like, false), like)
	for i := range n {
		d := like
		size := min(payloadSizes[i%len(payloadSizes)], etherMTU-ipv4Bytes-len(d.options)-d.layer4Bytes())
		d.payload = append(packetMark(t.mark, s.number, i), make([]byte, size-markedBytes)...)
		rand.Read(d.payload[markedBytes:])
		if d.sum == onesSum {
			clear(d.payload[markedBytes : markedBytes+2])
		}
		d.flags = tcpFlags[i%len(tcpFlags)]
		if d.ttl == 0 {
			d.ttl = ttls[i%len(ttls)]
		}
		d.tos, d.whole = byte(i%3*0x48), i%2 == 1
		if d.checksum = uint16(i*257) % 0xffff; i < len(checksums) {
			d.checksum = checksums[i]
		}
		s.frames = append(s.frames, d.buildFrame(t.fromMAC, t.gateway))
	}
	return s
}

// makeFragmentSample adds a sample of n packets to t.samples, each in two fragments with own marks.
func (t *traffic) makeFragmentSample(a trafficOptions, what string, n int, like datagram) *sample {
	const first = 48 // bytes after the IPv4 header in the first fragment
	like = t.fillAddresses(like)
	s := t.newSample(what, t.matchOf(a, like, true), like)
	for i := range n {
		d := like
		d.ttl, d.checksum = 64, uint16(0x1000+i)
		one, two := packetMark(t.mark, s.number, 2*i), packetMark(t.mark, s.number, 2*i+1)
		// The second fragment begins like a header with the rule's ports.
		header := datagram{protocol: d.protocol, fromPort: d.fromPort, toPort: d.toPort, flags: tcpFlags[0], source: d.source, target: d.target}.buildBody()
		d.payload = slices.Concat(one, make([]byte, first-d.layer4Bytes()-len(one)), header, two, make([]byte, 101))
		s.frames = append(s.frames, fragmentFrame(d.buildFrame(t.fromMAC, t.gateway), first)...)
	}
	return s
}

// fillAddresses sets a packet's source and target address, where unset, to the usual ones.
func (t *traffic) fillAddresses(d datagram) datagram {
	if !d.source.IsValid() {
		d.source = t.source
	}
	if !d.target.IsValid() {
		d.target = t.target
	}
	return d
}

// newSample adds a sample without frames, but with like's target, to t.samples, and returns it.
func (t *traffic) newSample(what string, m ruleMatch, like datagram) *sample {
	s := &sample{what: what, number: len(t.samples), match: m, target: like.target}
	t.samples = append(t.samples, s)
	return s
}

// trafficOptions are a check's keys: what its rule matches, and how many packets are sent.
type trafficOptions struct {
	port         uint16 // the port that the rule matches
	others       uint16 // a port that the rule does not match
	packets      int
	otherPackets int
	allFields    bool // the rule matches addresses, both ports and TCP, and not only UDP and the port
	anyProtocol  bool // the rule matches the port of both UDP and TCP
}

// rulePattern returns what the rule matches: UDP to the port, only the port, or all fields.
func (a trafficOptions) rulePattern(d *images.DPU) pattern {
	if a.anyProtocol {
		return pattern{toPort: a.port}
	}
	if !a.allFields {
		return pattern{protocol: protocolUDP, toPort: a.port}
	}
	target := cmp.Or(d.Other, d.To)
	return pattern{protocol: protocolTCP, target: netip.MustParseAddr(target.Address), fromPort: sourcePort, toPort: a.port}
}

const maxSent = 10_000 // packets of one sample

// readTrafficOptions reads the keys, and refuses equal ports and options that exclude each other.
func readTrafficOptions(e *suite.Entry) trafficOptions {
	a := trafficOptions{
		port: uint16(e.Number("port", 53, 1, 65535)), others: uint16(e.Number("other-port", 5300, 1, 65535)),
		packets: int(e.Number("packets", 20, 1, maxSent)), otherPackets: int(e.Number("other-packets", 5, 1, maxSent)),
		allFields: e.Bool("all-fields", false), anyProtocol: e.Bool("any-protocol", false),
	}
	if a.port == a.others {
		e.Fail(e.Key, "port and other-port are the same; packets to one of them must not match the rule")
	}
	if a.allFields && a.anyProtocol {
		e.Fail(e.Key, "a check takes only one of all-fields and any-protocol")
	}
	return a
}

// makeSamples adds samples to t, and returns them: some match the rule, others differ in one field.
func (t *traffic) makeSamples(a trafficOptions) (all []*sample) {
	name, other := "UDP", "TCP"
	rule := datagram{protocol: protocolUDP, fromPort: sourcePort, toPort: a.port}
	odd := datagram{protocol: protocolTCP, fromPort: sourcePort, toPort: a.port}
	if a.allFields {
		name, other, rule, odd = other, name, odd, rule
	}
	trap := []byte{0x9e, 4, byte(a.port >> 8), byte(a.port)} // an experimental option, at the offset of the ports without options
	some := func(n int, what string, change func(*datagram)) {
		d := rule
		change(&d)
		all = append(all, t.makeSample(a, fmt.Sprintf("%s to port %d%s", name, d.toPort, what), n, d))
	}
	like := func(what string, change func(*datagram)) { some(a.otherPackets, what, change) }
	few := func(what string, change func(*datagram)) { some(2, what, change) }
	all = append(all, t.makeSample(a, fmt.Sprintf("%s to port %d", name, a.port), a.packets, rule))
	like(" with IP options", func(d *datagram) { d.options = []byte{1, 1, 1, 1, 1, 1, 1, 1} })
	like("", func(d *datagram) { d.toPort = a.others })
	for bit := range 16 {
		few("", func(d *datagram) { d.toPort ^= 1 << bit })
		if a.allFields || bit == 0 { // else the rule matches any source port
			few(" from another port", func(d *datagram) { d.fromPort ^= 1 << bit })
		}
	}
	like(fmt.Sprintf(" from port %d", a.port), func(d *datagram) { d.fromPort, d.toPort = a.port, a.others })
	like(fmt.Sprintf(" with %d in an IP option", a.port), func(d *datagram) { d.toPort, d.options = a.others, trap })
	like(" from another address", func(d *datagram) { d.source = t.another })
	for i := range t.foreign {
		few(" from another network", func(d *datagram) { d.source = t.foreign[i] })
	}
	like(" to another address", func(d *datagram) { d.target = t.direct })
	like(" with TTL 1", func(d *datagram) { d.ttl = 1 })
	few(" without a checksum", func(d *datagram) { d.sum = noSum })
	few(" with a checksum of all ones", func(d *datagram) { d.sum = onesSum })
	few(" with a wrong checksum", func(d *datagram) { d.sum = wrongSum })
	all = append(all, t.makeSample(a, fmt.Sprintf("%s to port %d", other, a.port), a.otherPackets, odd))
	all = append(all, t.makeFragmentSample(a, fmt.Sprintf("fragments of %s to port %d", name, a.port), a.otherPackets, rule))
	for _, protocol := range otherProtocols {
		if a.anyProtocol && protocol == protocolUDPLite {
			continue // the kernel's rule for a port matches them too
		}
		few(fmt.Sprintf(" of protocol %d", protocol), func(d *datagram) { d.protocol = protocol })
	}
	return append(all, t.makeChangedSample(a, rule, forNobody, "packets to port %d with a VLAN tag", func(frame []byte) []byte { return addVLANTag(frame, unusedVLAN) }),
		t.makeChangedSample(a, rule, forNobody, "packets to port %d of another EtherType", func(frame []byte) []byte {
			frame[12], frame[13] = etherOther>>8, etherOther&255
			return frame
		}),
		t.makeChangedSample(a, rule, expired, "packets to port %d with TTL 0", func(frame []byte) []byte {
			ip := frame[etherBytes : etherBytes+headerBytes(frame)]
			ip[ipTTL] = 0
			setHeaderChecksum(ip)
			return frame
		}),
		t.makeChangedSample(a, rule, t.matchOf(a, t.fillAddresses(rule), false), "packets to port %d with padding", func(frame []byte) []byte {
			if len(frame) > 1000 {
				return frame
			}
			return append(frame, "padding"...)
		}))
}

// otherProtocols differ from UDP or TCP in one bit. The last is UDP-Lite, which resembles UDP.
var otherProtocols = []byte{16, 19, 21, 25, 49, 81, 145, 7, 14, 22, 38, 70, 134, protocolUDPLite}

// makeChangedSample adds a sample with match m to t.samples: a.otherPackets of the rule's packets,
// each frame changed by change. what is a format that gets the rule's port.
func (t *traffic) makeChangedSample(a trafficOptions, rule datagram, m ruleMatch, what string, change func([]byte) []byte) *sample {
	s := t.makeSample(a, fmt.Sprintf(what, a.port), a.otherPackets, rule)
	s.match = m
	for i, frame := range s.frames {
		s.frames[i] = change(frame)
	}
	return s
}

// sendAndCheck makes and sends samples, waits for them, and reports in f each sample that does not
// take the path that these rules give it. If the rule exists, it also calls checkOtherPort.
func (t *traffic) sendAndCheck(ctx context.Context, f *suite.Finding, a trafficOptions, rules ruleset) error {
	samples := t.makeSamples(a)
	var frames [][]byte
	for _, s := range samples {
		frames = append(frames, s.frames...)
	}
	if err := t.sendFrames(ctx, t.from, frames); err != nil {
		return err
	}
	err := t.waitForPackets(ctx, func() bool {
		return !slices.ContainsFunc(samples, func(s *sample) bool { return !t.hasArrived(s, rules) })
	})
	if err != nil {
		return err
	}
	before := len(f.Want)
	for _, s := range samples {
		t.checkSample(f, s, rules)
	}
	if len(f.Want) == before {
		f.AddFact(t.summarizePaths(samples, rules))
	}
	if rules.rule {
		return t.checkOtherPort(ctx, f, a, rules)
	}
	return nil
}

// checkOtherPort sends packets that match the rule, but enter the board by its other port. It
// reports packets that the rule forwards nevertheless. Not every network lets these packets reach
// the port, so packets that do not arrive are only a fact of the finding.
func (t *traffic) checkOtherPort(ctx context.Context, f *suite.Finding, a trafficOptions, rules ruleset) error {
	like := datagram{protocol: protocolUDP, fromPort: sourcePort, toPort: a.port}
	if a.allFields {
		like.protocol = protocolTCP
	}
	s := t.makeSample(a, fmt.Sprintf("packets to port %d that come in by the other port", a.port), a.otherPackets, like)
	for i, frame := range s.frames {
		s.frames[i] = slices.Concat(t.outMAC, t.toMAC, frame[12:])
	}
	if err := t.sendFrames(ctx, *t.dpu.To, s.frames); err != nil {
		return err
	}
	if err := t.waitForPackets(ctx, func() bool { return len(t.out.packetsOf(s.number)) >= len(s.frames) }); err != nil {
		return err
	}
	if n := len(t.packetsAt(t.to, s)) + len(t.home.packetsOf(s.number)); n > 0 {
		f.Expect(false, s.what+" are not for the rule", fmt.Sprintf("%s%s: %d packets at to or from, not 0", rules.messagePrefix(), s.what, n))
	} else if len(t.out.packetsOf(s.number)) == 0 {
		f.AddFact(s.what + " do not arrive there")
	}
	return nil
}

// arrivalTime is how long packets may take. After lull without a packet, no more are expected.
var arrivalTime, lull = 10 * time.Second, time.Second

// waitForPackets waits until arrived is true and no packet came for the time lull, or until
// arrivalTime is over. Then it checks that all captures still run.
func (t *traffic) waitForPackets(ctx context.Context, arrived func() bool) error {
	late := time.After(arrivalTime)
	for quiet := time.After(lull); ; {
		select {
		case <-t.more:
			quiet = time.After(lull)
		case <-quiet:
			if arrived() {
				return t.checkCaptures()
			}
			quiet = time.After(max(lull, 10*time.Millisecond))
		case <-late:
			return t.checkCaptures()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// checkCaptures returns an error if a capture has ended: missing packets then prove nothing.
func (t *traffic) checkCaptures() error {
	for _, c := range t.allCaptures() {
		select {
		case <-c.done:
			return errors.Join(fmt.Errorf("the capture at %s ended by itself", c.what), c.err)
		default:
		}
	}
	return nil
}

// expectedCounts returns how many packets of a sample each capture must have.
func (t *traffic) expectedCounts(s *sample, rules ruleset) map[*capture]int {
	n := len(s.frames)
	want := map[*capture]int{t.to: 0, t.other: 0, t.in: 0, t.out: 0}
	switch rules.expectedPath(s.match) {
	case offloaded:
		want[t.to] = n
	case offloadedWide:
		want[t.other] = n
	case byKernel:
		want[t.in], want[t.out] = n, n
		if s.target == t.direct {
			want[t.to] = n
		} else {
			want[t.other] = n
		}
	case kernelOnly, unrouted:
		want[t.in] = n
	case toProgram:
		want[t.home] = n
	}
	delete(want, nil)
	return want
}

// packetsAt returns the captured packets of a sample: on the board all, at a peer those to its MAC
// address. It ignores the copies that a bridge floods to all ports while it does not know a MAC
// address. It also ignores packets that the peer dpu.to routes on to the peer dpu.other.
func (t *traffic) packetsAt(c *capture, s *sample) []arrival {
	own := map[*capture]net.HardwareAddr{t.to: t.toMAC, t.other: t.otherMAC}[c]
	if own == nil {
		return c.packetsOf(s.number)
	}
	return slices.DeleteFunc(slices.Clone(c.packetsOf(s.number)), func(a arrival) bool {
		return !bytes.Equal(a.frame[:6], own) || c == t.other && bytes.Equal(a.frame[6:12], t.toMAC)
	})
}

// hasArrived reports whether each capture has at least the expected packets of a sample.
func (t *traffic) hasArrived(s *sample, rules ruleset) bool {
	for c, want := range t.expectedCounts(s, rules) {
		if len(t.packetsAt(c, s)) < want {
			return false
		}
	}
	return true
}

// checkSample adds a fault with up to five details to f if a sample's packets took another path or
// were damaged. It adds the sample to the counter that the matching rule should have.
func (t *traffic) checkSample(f *suite.Finding, s *sample, rules ruleset) {
	switch rules.expectedPath(s.match) {
	case offloaded, toProgram:
		t.rule.add(s)
	case offloadedWide:
		t.wide.add(s)
	}
	wrong := t.findMisplaced(s, rules)
	for _, c := range []*capture{t.to, t.other, t.home, t.in} {
		if w := rules.expectedPath(s.match); c != nil && (w != kernelOnly && w != unrouted || c == t.in) {
			wrong = append(wrong, t.findDamaged(c, s)...)
		}
	}
	if len(wrong) > 0 {
		f.Expect(false, s.what+" "+pathWords[rules.expectedPath(s.match)], rules.messagePrefix()+s.what+": "+strings.Join(wrong[:min(len(wrong), 5)], "; "))
	}
}

var pathWords = map[packetPath]string{
	offloaded: "rewritten to to", offloadedWide: "rewritten to other", byKernel: "by the kernel", kernelOnly: "no further",
	toProgram: "by testpmd", unrouted: "by the kernel or nowhere",
}

// summarizePaths returns a line with how many packets must take each path, without unrouted ones.
func (t *traffic) summarizePaths(samples []*sample, rules ruleset) string {
	var words []string
	for _, w := range []packetPath{offloaded, offloadedWide, byKernel, kernelOnly, toProgram} {
		n := 0
		for _, s := range samples {
			if rules.expectedPath(s.match) == w {
				n += len(s.frames)
			}
		}
		if n > 0 {
			words = append(words, fmt.Sprintf("%d %s", n, pathWords[w]))
		}
	}
	return rules.messagePrefix() + strings.Join(words, ", ")
}

// add adds the packets of a sample and their bytes to c.
func (c *tally) add(s *sample) {
	for _, frame := range s.frames {
		c.packets, c.bytes = c.packets+1, c.bytes+int64(len(frame))
	}
}

// findMisplaced describes each capture that has too many or too few packets of a sample, or packets
// for an unknown MAC address. It does not count forwarded packets that the kernel may drop.
func (t *traffic) findMisplaced(s *sample, rules ruleset) (wrong []string) {
	expected := t.expectedCounts(s, rules)
	for _, c := range t.allCaptures() {
		if rules.expectedPath(s.match) == unrouted && (c == t.other || c == t.out || t.other == nil && c == t.to) {
			continue
		}
		got := t.packetsAt(c, s)
		if want := expected[c]; len(got) != want {
			wrong = append(wrong, fmt.Sprintf("%d packets at %s, not %d", len(got), c.what, want))
		}
		if n := len(findStrays(c.packetsOf(s.number), t.fromMAC, t.toMAC, t.otherMAC, t.outMAC, t.gateway)); n > 0 {
			wrong = append(wrong, fmt.Sprintf("%d packets at %s are for a MAC that nobody has", n, c.what))
		}
	}
	return wrong
}

// findStrays returns the packets whose target MAC address is none of the known ones.
func findStrays(all []arrival, known ...net.HardwareAddr) []arrival {
	return slices.DeleteFunc(slices.Clone(all), func(a arrival) bool {
		return slices.ContainsFunc(known, func(m net.HardwareAddr) bool { return bytes.Equal(a.frame[:6], m) })
	})
}

// findDamaged describes what is wrong with the captured packets of a sample, each fault once:
// packets that came twice or out of order, with an unknown number, or with bytes that differ.
func (t *traffic) findDamaged(c *capture, s *sample) (wrong []string) {
	const twice, behind, unknown = "arrived twice", "arrived behind later ones", "have a number that was not sent"
	seen, last := map[int]bool{}, -1
	counts, first := map[string]int{}, []difference{}
	for _, a := range t.packetsAt(c, s) {
		switch {
		case a.number >= len(s.frames):
			counts[unknown]++
			continue
		case seen[a.number]:
			counts[twice]++
		case a.number < last:
			counts[behind]++
		}
		seen[a.number], last = true, max(last, a.number)
		for _, d := range t.compareWithSent(c, s.frames[a.number], a.captured) {
			if counts[d.part]++; counts[d.part] == 1 {
				first = append(first, d)
			}
		}
	}
	for _, what := range []string{twice, behind, unknown} {
		if n := counts[what]; n > 0 {
			wrong = append(wrong, fmt.Sprintf("%d packets at %s %s", n, c.what, what))
		}
	}
	for _, d := range first {
		wrong = append(wrong, fmt.Sprintf("%s, of %d packets at %s", d.text, counts[d.part], c.what))
	}
	return wrong
}

// compareWithSent compares a captured frame with the sent frame, as the capture's place should show
// it: unchanged, returned by testpmd, or routed. A router may remove padding.
func (t *traffic) compareWithSent(c *capture, sent []byte, got captured) []difference {
	mac := t.toMAC
	switch c {
	case t.in:
		if !bytes.Equal(sent, got.frame) {
			return []difference{{"frame", "the frame is not as it was sent"}}
		}
		return nil
	case t.home:
		return compareFrames(swapMACs(sent), got)
	case t.other:
		mac = t.otherMAC
	}
	want := routeFrame(sent, t.outMAC, mac)
	if short := trimPadding(want); got.size == len(short) {
		want = short
	}
	return compareFrames(want, got)
}
