package offload

import (
	"bufio"
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"slipway/ci/suite"
	"slipway/images"
	"slipway/layers/plaintext"
)

// A peer's Python reads its program from standard input. The command line has only plain
// words, because a peer's run may be ssh, which passes them to a shell.

// senderProgram sends the frames that are written before it, one a line in hexadecimal.
// With a port it binds a socket there and waits for the answer to each frame. It prints
// after how many microseconds the same payload came back. It stays on one processor,
// because the kernel may reorder the frames of several.
const senderProgram = `
import os, socket, sys, time
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
out.bind((sys.argv[1], 0))
back = None
if len(sys.argv) > 3:
    back = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    back.bind((sys.argv[2], int(sys.argv[3])))
for line in frames.split():
    frame = bytes.fromhex(line)
    began = time.monotonic()
    out.send(frame)
    while back:
        back.settimeout(max(began + 1 - time.monotonic(), 0.001))
        try:
            answer = back.recv(65535)
        except socket.timeout:
            print("none", flush=True)
            break
        if answer and frame.endswith(answer):
            print(int((time.monotonic() - began) * 1e6), flush=True)
            break
    time.sleep(0.001)
`

// listenerProgram prints each payload that its socket receives, in hexadecimal, and sends
// it back.
const listenerProgram = `
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((sys.argv[1], int(sys.argv[2])))
print("ready", flush=True)
while True:
    data, peer = s.recvfrom(65535)
    print(data.hex(), flush=True)
    s.sendto(data, peer)
`

// runPython runs a Python program on a peer.
func (t *traffic) runPython(ctx context.Context, p images.Peer, program string, stdout io.Writer, args ...string) error {
	errs := &outputWatcher{seen: make(chan struct{})}
	status, err := t.Stream(ctx, strings.NewReader(program), stdout, errs, peerCommand(p, append([]string{"python3", "-"}, args...)...)...)
	if err == nil && status != 0 {
		err = fmt.Errorf("python3 exited with %d: %s", status, cmp.Or(plaintext.CleanTail(errs.String(), 500), "no output"))
	}
	return err
}

// sendFrames sends frames from a peer.
func (t *traffic) sendFrames(ctx context.Context, p images.Peer, frames [][]byte, args ...string) (string, error) {
	var program, out strings.Builder
	program.WriteString("frames = \"\"\"\n")
	for _, frame := range frames {
		fmt.Fprintln(&program, hex.EncodeToString(frame))
	}
	program.WriteString("\"\"\"" + senderProgram)
	err := t.runPython(ctx, p, program.String(), &out, append([]string{p.Interface}, args...)...)
	if err != nil {
		err = fmt.Errorf("send %d packets by %s: %w", len(frames), p.Interface, err)
	}
	return out.String(), err
}

// udpListener is a UDP socket on the peer where packets must arrive, with the payloads
// that it has received.
type udpListener struct {
	cancel context.CancelFunc
	done   chan struct{}
	more   chan<- struct{}

	mu       sync.Mutex
	payloads []string
}

// startListener binds a socket on a peer and collects what it receives.
func (t *traffic) startListener(ctx context.Context, p images.Peer, port uint16) (*udpListener, error) {
	ctx, cancel := context.WithCancel(ctx)
	e := &udpListener{cancel: cancel, done: make(chan struct{}), more: t.more}
	ready := make(chan struct{})
	out, in := io.Pipe()
	var err error
	go func() {
		defer close(e.done)
		err = t.runPython(ctx, p, listenerProgram, in, p.Address, strconv.Itoa(int(port)))
		in.Close()
	}()
	go func() {
		defer io.Copy(io.Discard, out) // also of a line that is too long for the scanner
		lines := bufio.NewScanner(out)
		if lines.Scan() && lines.Text() == "ready" {
			close(ready)
		}
		for lines.Scan() {
			e.addPayload(lines.Text())
		}
	}()
	select {
	case <-ready:
		return e, nil
	case <-e.done:
		cancel()
		return nil, errors.Join(fmt.Errorf("the socket at UDP port %d of %s ended", port, p.Address), err)
	}
}

func (e *udpListener) stop() {
	e.cancel()
	<-e.done
}

func (e *udpListener) addPayload(line string) {
	payload, err := hex.DecodeString(line)
	e.mu.Lock()
	if err == nil && len(e.payloads) < maxPackets {
		e.payloads = append(e.payloads, string(payload))
	}
	e.mu.Unlock()
	select {
	case e.more <- struct{}{}:
	default:
	}
}

func (e *udpListener) receivedPayloads() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.payloads[:len(e.payloads):len(e.payloads)]
}

// answerPackets is how many packets are sent one at a time to a socket that answers.
const answerPackets = 20

// Limits of answers. A rule's packets take about as long as those of the slow path. One packet
// in twenty may be late by chance.
const (
	lateAnswer   = 200 * time.Millisecond
	maxLate      = 1
	slowerAnswer = 50 * time.Millisecond // the median may be so much longer than without a rule
)

// checkAnswers sends packets to the address of to, where a socket is bound. The socket
// must receive each payload once, and its answers must come back soon enough.
func (t *traffic) checkAnswers(ctx context.Context, f *suite.Finding, a trafficOptions, rules ruleset) error {
	like := datagram{protocol: protocolUDP, fromPort: sourcePort, toPort: a.port, source: t.source, target: t.direct}
	if w := rules.expectedPath(t.claimOf(a, like, false)); w == offloadedWide || w == toProgram {
		return nil // other does not have the socket's address, and testpmd does not answer
	}
	e, err := t.startListener(ctx, *t.dpu.To, a.port)
	if err != nil {
		return err
	}
	defer e.stop()
	s := t.makeSample(a, fmt.Sprintf("UDP to port %d of the socket at to", a.port), answerPackets, like)
	said, err := t.sendFrames(ctx, t.from, s.frames, t.from.Address, strconv.Itoa(sourcePort))
	if err != nil {
		return err
	}
	if err := t.waitForPackets(ctx, func() bool { return t.hasArrived(s, rules) && len(e.receivedPayloads()) >= answerPackets }); err != nil {
		return err
	}
	t.checkSample(f, s, rules)
	got, right := e.receivedPayloads(), 0
	for _, frame := range s.frames {
		payload := string(frame[etherBytes+ipv4Bytes+udpBytes:])
		if i := slices.Index(got, payload); i >= 0 {
			got, right = slices.Delete(slices.Clone(got), i, i+1), right+1
		}
	}
	if right != answerPackets || len(got) > 0 {
		f.Expect(false, fmt.Sprintf("a socket at to receives %d payloads, each once", answerPackets), fmt.Sprintf("%sa socket at to received %d of %d payloads, and %d others", rules.messagePrefix(), right, answerPackets, len(got)))
	}
	t.checkAnswerTimes(f, strings.Fields(said), rules)
	return nil
}

// checkAnswerTimes compares the answer times with the limits and with the times without a
// rule.
func (t *traffic) checkAnswerTimes(f *suite.Finding, said []string, rules ruleset) {
	var times []time.Duration
	late := answerPackets
	for _, word := range said {
		us, err := strconv.ParseUint(word, 10, 31)
		if err != nil {
			continue
		}
		d := time.Duration(us) * time.Microsecond
		if times = append(times, d); d <= lateAnswer {
			late--
		}
	}
	if late > maxLate {
		f.Expect(false, fmt.Sprintf("answers within %s", lateAnswer), fmt.Sprintf("%s%d of %d answers came within %s", rules.messagePrefix(), answerPackets-late, answerPackets, lateAnswer))
		return
	}
	slices.Sort(times)
	half := times[len(times)/2]
	switch {
	case t.answers == 0:
		t.answers = half
		f.AddFact(fmt.Sprintf("a socket at to answers in %s", half))
	case half > t.answers+slowerAnswer:
		f.Expect(false, fmt.Sprintf("answers as soon as without a rule, in %s", t.answers), fmt.Sprintf("%sa socket at to answers in %s", rules.messagePrefix(), half))
	}
}
