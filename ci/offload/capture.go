package offload

import (
	"bytes"
	"cmp"
	"context"
	endian "encoding/binary" // binary is a kind of check
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"

	"slipway/ci/report"
	"slipway/ci/suite"
	"slipway/images"
	"slipway/layers/plaintext"
)

// capture is a running tcpdump. It keeps the captured packets with the mark of this check.
type capture struct {
	what   string // the point of capture, for messages
	mark   []byte
	cancel context.CancelFunc
	done   chan struct{}
	err    error // valid once done is closed
	more   chan<- struct{}

	mu   sync.Mutex
	seen map[int][]arrival // by the sample's number
}

// arrival is one captured packet of a sample, with its number in the sample.
type arrival struct {
	captured
	number int
}

// unusedVLAN is a VLAN that no rule matches.
const unusedVLAN = 3333

// startTcpdump starts tcpdump on a peer, with -Q direction, and waits until it listens. It captures
// packets with one of the source addresses, the check's EtherType, or the check's VLAN tag.
func (c *capture) startTcpdump(ctx context.Context, s *suite.Session, p images.Peer, direction string, sources []string) error {
	if err := wantPeerProgram(ctx, s, p, "tcpdump"); err != nil {
		return err
	}
	ctx, c.cancel = context.WithCancel(ctx)
	c.done, c.seen = make(chan struct{}), map[int][]arrival{}
	errs := &outputWatcher{want: "listening on", seen: make(chan struct{})}
	argv := peerCommand(p, "tcpdump", "-i", p.Interface, "-n", "-p", "-U", "--immediate-mode", "-Q", direction, "-s", "2048", "-w", "-")
	for _, source := range sources {
		argv = append(argv, "src", "host", source, "or")
	}
	argv = append(argv, "ether", "proto", strconv.Itoa(etherOther), "or", "vlan", strconv.Itoa(unusedVLAN))
	out, in := io.Pipe()
	go func() {
		defer close(c.done)
		_, c.err = s.Stream(ctx, nil, in, errs, argv...)
		in.Close()
	}()
	go func() { out.CloseWithError(readPackets(out, c.addFrame)) }()
	select {
	case <-errs.seen:
		return nil
	case <-c.done:
		err := fmt.Errorf("tcpdump on %s ended: %s", p.Interface, cmp.Or(plaintext.Clean(errs.String(), 500), "no output"))
		return errors.Join(err, c.err)
	}
}

// stop ends tcpdump, if it was started, and waits for its end.
func (c *capture) stop() {
	if c.cancel != nil {
		c.cancel()
		<-c.done
	}
}

// A payload begins with the mark, the number of the sample, and the packet's number in the sample.
const (
	markBytes   = 8
	markedBytes = markBytes + 4
)

// packetMark returns the first bytes of a packet's payload: the mark and the two numbers.
func packetMark(mark []byte, sample, number int) []byte {
	b := endian.BigEndian.AppendUint16(bytes.Clone(mark), uint16(sample))
	return endian.BigEndian.AppendUint16(b, uint16(number))
}

// addFrame adds a frame with the check's random mark to c.seen, and wakes waitForPackets.
func (c *capture) addFrame(p captured) {
	_, after, found := bytes.Cut(p.frame, c.mark)
	if !found || len(after) < markedBytes-markBytes || len(p.frame) < etherBytes {
		return
	}
	sample := int(endian.BigEndian.Uint16(after))
	c.mu.Lock()
	c.seen[sample] = append(c.seen[sample], arrival{p, int(endian.BigEndian.Uint16(after[2:]))})
	c.mu.Unlock()
	select {
	case c.more <- struct{}{}:
	default:
	}
}

// packetsOf returns the packets of a sample in the order in which they arrived.
func (c *capture) packetsOf(sample int) []arrival {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen[sample][:len(c.seen[sample]):len(c.seen[sample])]
}

// outputWatcher keeps the beginning of an output. It closes seen once the output contains want.
type outputWatcher struct {
	want string
	seen chan struct{}

	mu    sync.Mutex
	text  []byte
	found bool
}

// Write keeps the first report.MaxSawBytes of the output, and closes a.seen once it has a.want.
func (a *outputWatcher) Write(b []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.text = append(a.text, b[:min(len(b), report.MaxSawBytes-len(a.text))]...)
	if !a.found && strings.Contains(string(a.text), a.want) {
		a.found = true
		close(a.seen)
	}
	return len(b), nil
}

// String returns the output that was kept.
func (a *outputWatcher) String() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return string(a.text)
}
