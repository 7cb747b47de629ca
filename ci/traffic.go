package ci

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"slipway/images"
)

// traffic is packets that are sent past the board, and what arrives on its other sides.
type traffic struct {
	*session
	from      images.Peer
	target    string   // address that they are sent to
	to, other *capture // other is nil where the board's board.yml names none
	ttl       int      // that they are sent with

	toMAC, otherMAC net.HardwareAddr
	outMAC          string // of the port that rewritten packets leave by
}

// noTraffic says why nothing can be sent, or "".
func noTraffic(d *images.DPU) string {
	if d.From == nil || d.To == nil {
		return "no packets were sent: dpu in the board's board.yml has no from and to"
	}
	return ""
}

// startTraffic watches where packets may arrive. Nothing is sent yet.
func (s *session) startTraffic(ctx context.Context, d *images.DPU) (t *traffic, err error) {
	t = &traffic{session: s, from: *d.From, target: d.To.Address}
	defer func() {
		if err != nil {
			t.stop()
		}
	}()
	if t.ttl, err = s.defaultTTL(ctx, t.from); err != nil {
		return t, err
	}
	mac, err := s.macOf(ctx, images.Peer{Interface: d.Ports[1]})
	if err != nil {
		return t, err
	}
	t.outMAC = mac.String()
	if t.toMAC, err = s.macOf(ctx, *d.To); err != nil {
		return t, err
	}
	if t.to, err = s.capture(ctx, *d.To, t.from.Address); err != nil || d.Other == nil {
		return t, err
	}
	t.target = d.Other.Address
	if t.otherMAC, err = s.macOf(ctx, *d.Other); err != nil {
		return t, err
	}
	t.other, err = s.capture(ctx, *d.Other, t.from.Address)
	return t, err
}

func (t *traffic) stop() {
	for _, c := range []*capture{t.to, t.other} {
		if c != nil {
			c.stop()
		}
	}
}

// there is a command that is run where a peer is.
func there(p images.Peer, argv ...string) []string { return slices.Concat(p.Run, argv) }

func (s *session) defaultTTL(ctx context.Context, p images.Peer) (int, error) {
	out, err := s.ask(ctx, there(p, "cat", "/proc/sys/net/ipv4/ip_default_ttl")...)
	if err != nil {
		return 0, err
	}
	ttl, err := strconv.Atoi(strings.TrimSpace(out))
	if err != nil || ttl < 2 || ttl > 255 {
		return 0, fmt.Errorf("packets are sent with a TTL of %q", clean(out, 100))
	}
	return ttl, nil
}

func (s *session) macOf(ctx context.Context, p images.Peer) (net.HardwareAddr, error) {
	out, err := s.ask(ctx, there(p, "cat", "/sys/class/net/"+p.Interface+"/address")...)
	if err != nil {
		return nil, err
	}
	mac, err := net.ParseMAC(strings.TrimSpace(out))
	if err != nil || len(mac) != 6 {
		return nil, fmt.Errorf("interface %s has the address %q", p.Interface, clean(out, 100))
	}
	return mac, nil
}

// sender is bash's own way to send UDP, as every Debian has it, on a rig and on a host
// of a BlueField's: a fixed text, which gets address, port, number and payload as words.
// A program of ours would have to be built for each kind of machine, and python3 and
// socat are on few boards.
const sender = `for ((i = 0; i < $3; i++)); do printf %s "$4" > "/dev/udp/$1/$2" || exit 1; done`

// knocker opens connections by TCP in the same way. Nobody has to listen: that it is
// refused, or not answered, is no error.
const knocker = `for ((i = 0; i < $3; i++)); do timeout 2 bash -c ': 2> /dev/null < "/dev/tcp/$0/$1"' "$1" "$2"; [ $? -lt 125 ] || exit 1; done`

// sample is packets of one kind that were sent.
type sample struct {
	what     string // for a person
	protocol byte
	count    int
	holds    func(packet) bool
}

// send sends packets of UDP with a payload of their own.
func (t *traffic) send(ctx context.Context, port uint16, n int) (sample, error) {
	payload := "slipway " + rand.Text()
	s := sample{fmt.Sprintf("UDP to port %d", port), protocolUDP, n, func(p packet) bool { return string(p.payload) == payload }}
	return s, t.emit(ctx, s, sender, port, payload)
}

// knock opens connections. Their first packets have no payload, and each has a port of
// its own that it comes from.
func (t *traffic) knock(ctx context.Context, port uint16, n int) (sample, error) {
	s := sample{fmt.Sprintf("TCP to port %d", port), protocolTCP, n, func(p packet) bool { return p.protocol == protocolTCP && p.toPort == port }}
	return s, t.emit(ctx, s, knocker, port)
}

func (t *traffic) emit(ctx context.Context, s sample, script string, port uint16, more ...string) error {
	argv := append([]string{"bash", "-c", script, "bash", t.target, strconv.Itoa(int(port)), strconv.Itoa(s.count)}, more...)
	if _, err := t.ask(ctx, there(t.from, argv...)...); err != nil {
		return fmt.Errorf("send %d packets, %s: %w", s.count, s.what, err)
	}
	return nil
}

// capture is a tcpdump that runs.
type capture struct {
	peer   images.Peer
	cancel context.CancelFunc
	done   chan struct{}
	err    error // once it is done

	mu      sync.Mutex
	packets []packet
	more    chan struct{} // there is one more
}

// watched are the packets that are read of a capture, in tcpdump's words.
const watched = "(udp or tcp[tcpflags] & (tcp-syn | tcp-ack) == tcp-syn) and src host "

// capture starts tcpdump for what one address sends, and waits until it listens.
func (s *session) capture(ctx context.Context, p images.Peer, source string) (*capture, error) {
	if _, err := s.ask(ctx, there(p, "sh", "-c", `command -v "$1"`, "sh", "tcpdump")...); err != nil {
		return nil, missing("there is no tcpdump where packets must arrive: " + shellLine(there(p, "tcpdump")))
	}
	ctx, cancel := context.WithCancel(ctx)
	c := &capture{peer: p, cancel: cancel, done: make(chan struct{}), more: make(chan struct{}, 1)}
	errs := &awaited{want: "listening on", seen: make(chan struct{})}
	out, in := io.Pipe()
	go func() {
		defer close(c.done)
		argv := there(p, "tcpdump", "-i", p.Interface, "-n", "-p", "-U", "--immediate-mode", "-Q", "in", "-s", "256", "-w", "-", watched+source)
		_, c.err = s.stream(ctx, nil, in, errs, argv...)
		in.Close()
	}()
	go func() {
		out.CloseWithError(readPackets(out, c.take))
	}()
	select {
	case <-errs.seen:
		return c, nil
	case <-c.done:
		err := fmt.Errorf("tcpdump on %s ended: %s", p.Interface, or(clean(errs.String(), 500), "no output"))
		return nil, errors.Join(err, c.err)
	}
}

func (c *capture) take(p packet) {
	c.mu.Lock()
	c.packets = append(c.packets, p)
	c.mu.Unlock()
	select {
	case c.more <- struct{}{}:
	default:
	}
}

func (c *capture) stop() {
	c.cancel()
	<-c.done
}

// of returns the packets of a sample. TCP sends one again that nobody answers in time.
func (c *capture) of(s sample) []packet {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []packet
	again := map[uint16]bool{}
	for _, p := range c.packets {
		if s.holds(p) && !again[p.fromPort] {
			all = append(all, p)
			again[p.fromPort] = p.protocol == protocolTCP
		}
	}
	return all
}

// arrival is how long packets that were sent may take.
const arrival = 10 * time.Second

// lull is how long packets are waited for that should not arrive.
var lull = 2 * time.Second

// await waits until all packets of a sample have arrived, or are unlikely to.
func (c *capture) await(ctx context.Context, s sample) []packet {
	late := time.After(arrival)
	for {
		all := c.of(s)
		if len(all) >= s.count {
			return all
		}
		select {
		case <-c.more:
		case <-c.done:
			return c.of(s)
		case <-late:
			return all
		case <-ctx.Done():
			return all
		}
	}
}

// awaited keeps the beginning of what is written, and tells when it holds a text.
type awaited struct {
	want string
	seen chan struct{}

	mu    sync.Mutex
	text  []byte
	found bool
}

func (a *awaited) Write(b []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.text = append(a.text, b[:min(len(b), maxSawBytes-len(a.text))]...)
	if !a.found && strings.Contains(string(a.text), a.want) {
		a.found = true
		close(a.seen)
	}
	return len(b), nil
}

func (a *awaited) String() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return string(a.text)
}

// aim is what a rule is for, and how much is sent to see that it keeps to that.
type aim struct {
	port         uint16 // that the rule names
	others       uint16 // another one
	packets      int
	otherPackets int
}

const maxSent = 10_000 // packets of one check

func readAim(e *entry) aim {
	a := aim{
		port: uint16(e.number("port", 53, 1, 65535)), others: uint16(e.number("other-port", 5300, 1, 65535)),
		packets: int(e.number("packets", 20, 1, maxSent)), otherPackets: int(e.number("other-packets", 5, 1, maxSent)),
	}
	if a.port == a.others {
		e.fail(e.key, "port and other-port are the same; packets to one of them must not match the rule")
	}
	return a
}

// sent is what went out for a rule, and beside it.
type sent struct {
	matching sample
	others   []sample
}

// shoot sends what the rule is for, and beside it what differs in the port alone and in
// the protocol alone.
func (t *traffic) shoot(ctx context.Context, a aim) (s sent, err error) {
	if s.matching, err = t.send(ctx, a.port, a.packets); err != nil {
		return s, err
	}
	udp, err := t.send(ctx, a.others, a.otherPackets)
	if err != nil {
		return s, err
	}
	tcp, err := t.knock(ctx, a.port, a.otherPackets)
	s.others = []sample{udp, tcp}
	return s, err
}

// before wants packets to arrive elsewhere while there is no rule: what a rule is to
// change must be so without it.
func (t *traffic) before(ctx context.Context, f *finding, port uint16) error {
	if t.other == nil {
		return nil
	}
	one, err := t.send(ctx, port, 1)
	if err != nil {
		return err
	}
	got := len(t.other.await(ctx, one))
	f.expect(got == 1, "a packet arrives at other before there is a rule", fmt.Sprintf("without a rule %d of 1 packets arrived at other", got))
	return nil
}

// judge holds what arrived against what a rule had to make of it.
func (t *traffic) judge(ctx context.Context, f *finding, s sent, sourceMAC string) {
	got, n := t.to.await(ctx, s.matching), s.matching.count
	f.expect(len(got) == n, fmt.Sprintf("%d packets at to", n), fmt.Sprintf("%d of %d packets arrived at to", len(got), n))
	for _, wrong := range t.wrong(got, sourceMAC) {
		f.expect(false, "packets as a router sends them on", wrong)
	}
	if len(got) > 0 && f.ok() {
		f.fact(fmt.Sprintf("all of them from %s to %s, TTL %d of %d", sourceMAC, t.toMAC, t.ttl-1, t.ttl))
	}
	for _, other := range s.others {
		t.judgeOther(ctx, f, other)
	}
	if t.other == nil {
		return
	}
	// What comes from to was sent on by it, as by a router; the rule had it before.
	strays := slices.DeleteFunc(addressed(t.other.of(s.matching), t.otherMAC), func(p packet) bool { return p.from.String() == t.toMAC.String() })
	if n := len(strays); n > 0 {
		f.expect(false, "no packet of the rule's at other", fmt.Sprintf("%d of the rule's packets arrived at other, from %s with TTL %d", n, strays[0].from, strays[0].ttl))
	}
}

// judgeOther wants what a rule is not for to go where it went without.
func (t *traffic) judgeOther(ctx context.Context, f *finding, s sample) {
	if t.other != nil {
		n := len(t.other.await(ctx, s))
		f.expect(n == s.count, fmt.Sprintf("%d others at other, %s", s.count, s.what), fmt.Sprintf("%d of %d others arrived at other, %s", n, s.count, s.what))
	}
	if n := len(addressed(t.to.of(s), t.toMAC)); n > 0 {
		f.expect(false, "no other packet at to", fmt.Sprintf("%d others arrived at to, %s", n, s.what))
	}
}

// addressed are the packets that are for a MAC: a bridge that does not know yet where a
// machine is sends to all sides.
func addressed(all []packet, mac net.HardwareAddr) []packet {
	return slices.DeleteFunc(all, func(p packet) bool { return p.to.String() != mac.String() })
}

// wrong says, each once, what is wrong with packets that a rule has rewritten.
func (t *traffic) wrong(all []packet, sourceMAC string) (wrong []string) {
	note := func(right bool, format string, args ...any) {
		if text := fmt.Sprintf(format, args...); !right && !slices.Contains(wrong, text) && len(wrong) < maxProblems {
			wrong = append(wrong, text)
		}
	}
	for _, p := range all {
		note(p.from.String() == sourceMAC, "a packet comes from %s, not from %s", p.from, sourceMAC)
		note(p.to.String() == t.toMAC.String(), "a packet is for %s, not for %s", p.to, t.toMAC)
		note(p.ttl == t.ttl-1, "a packet has TTL %d, sent with %d", p.ttl, t.ttl)
		note(p.checksum, "the checksum of a packet's IPv4 header is wrong")
	}
	return wrong
}

// after wants the same packets not to arrive any more once the rule is gone. What arrives
// elsewhere in their place shows that they were sent; without other, waiting has to do.
func (t *traffic) after(ctx context.Context, f *finding, port uint16, n int) error {
	s, err := t.send(ctx, port, n)
	if err != nil {
		return err
	}
	if t.other != nil {
		got := len(t.other.await(ctx, s))
		f.expect(got == n, fmt.Sprintf("%d packets at other once the rule is gone", n), fmt.Sprintf("without the rule %d of %d packets arrived at other", got, n))
	} else {
		t.settle(ctx)
	}
	late := len(addressed(t.to.of(s), t.toMAC))
	f.expect(late == 0, "no packet at to once the rule is gone", fmt.Sprintf("without the rule %d packets arrived at to", late))
	return nil
}

// settle gives packets that should not arrive a moment to do so.
func (t *traffic) settle(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(lull):
	}
}
