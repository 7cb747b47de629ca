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

// Programs are given to a peer's Python by its standard input, and all that stands on a
// command line is plain words: a peer's run may be ssh, which gives them to a shell.

// sender sends frames, which stand before it, one a line in hexadecimal. With a port it has
// a socket there, waits for an answer to each frame, and prints after how many microseconds
// the same payload came back. It stays on one processor: the kernel may change the order of
// what several send.
const sender = `
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

// listener prints each payload that its socket receives, in hexadecimal, and sends it back.
const listener = `
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((sys.argv[1], int(sys.argv[2])))
print("ready", flush=True)
while True:
    data, peer = s.recvfrom(65535)
    print(data.hex(), flush=True)
    s.sendto(data, peer)
`

// python runs a program where a peer is.
func (t *traffic) python(ctx context.Context, p images.Peer, program string, stdout io.Writer, args ...string) error {
	errs := &awaited{seen: make(chan struct{})}
	status, err := t.Stream(ctx, strings.NewReader(program), stdout, errs, there(p, append([]string{"python3", "-"}, args...)...)...)
	if err == nil && status != 0 {
		err = fmt.Errorf("python3 exited with %d: %s", status, cmp.Or(plaintext.CleanTail(errs.String(), 500), "no output"))
	}
	return err
}

// emit sends frames where a peer is.
func (t *traffic) emit(ctx context.Context, p images.Peer, frames [][]byte, args ...string) (string, error) {
	var program, out strings.Builder
	program.WriteString("frames = \"\"\"\n")
	for _, frame := range frames {
		fmt.Fprintln(&program, hex.EncodeToString(frame))
	}
	program.WriteString("\"\"\"" + sender)
	err := t.python(ctx, p, program.String(), &out, append([]string{p.Interface}, args...)...)
	if err != nil {
		err = fmt.Errorf("send %d packets by %s: %w", len(frames), p.Interface, err)
	}
	return out.String(), err
}

// ear is a socket that is bound where packets must arrive, and what it has received.
type ear struct {
	cancel context.CancelFunc
	done   chan struct{}
	more   chan<- struct{}

	mu       sync.Mutex
	payloads []string
}

// listen binds a socket.
func (t *traffic) listen(ctx context.Context, p images.Peer, port uint16) (*ear, error) {
	ctx, cancel := context.WithCancel(ctx)
	e := &ear{cancel: cancel, done: make(chan struct{}), more: t.more}
	ready := make(chan struct{})
	out, in := io.Pipe()
	var err error
	go func() {
		defer close(e.done)
		err = t.python(ctx, p, listener, in, p.Address, strconv.Itoa(int(port)))
		in.Close()
	}()
	go func() {
		defer io.Copy(io.Discard, out) // a line that is too long is read to its end
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

func (e *ear) stop() {
	e.cancel()
	<-e.done
}

func (e *ear) addPayload(line string) {
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

func (e *ear) heard() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.payloads[:len(e.payloads):len(e.payloads)]
}

// talks is how many packets are sent one at a time, to a socket that answers.
const talks = 20

// Limits of answers. A rule's packets take about as long as those of the slow path; one
// packet in twenty may have been unlucky.
const (
	lateAnswer   = 200 * time.Millisecond
	maxLate      = 1
	slowerAnswer = 50 * time.Millisecond // than without the rule, half of them
)

// talk sends packets to the address of to, where a socket is bound: it must receive each
// payload, once. They must not take long either, of which the answers tell.
func (t *traffic) talk(ctx context.Context, f *suite.Finding, a aim, rules ruleset) error {
	like := datagram{protocol: protocolUDP, fromPort: sourcePort, toPort: a.port, source: t.source, target: t.direct}
	if w := rules.expectedPath(t.claimOf(a, like, false)); w == offWide || w == toProgram {
		return nil // other has not the socket's address, and testpmd answers nobody
	}
	e, err := t.listen(ctx, *t.dpu.To, a.port)
	if err != nil {
		return err
	}
	defer e.stop()
	s := t.sample(a, fmt.Sprintf("UDP to port %d of the socket at to", a.port), talks, like)
	said, err := t.emit(ctx, t.from, s.frames, t.from.Address, strconv.Itoa(sourcePort))
	if err != nil {
		return err
	}
	if err := t.waitForPackets(ctx, func() bool { return t.arrived(s, rules) && len(e.heard()) >= talks }); err != nil {
		return err
	}
	t.checkSample(f, s, rules)
	got, right := e.heard(), 0
	for _, frame := range s.frames {
		payload := string(frame[etherBytes+ipv4Bytes+udpBytes:])
		if i := slices.Index(got, payload); i >= 0 {
			got, right = slices.Delete(slices.Clone(got), i, i+1), right+1
		}
	}
	if right != talks || len(got) > 0 {
		f.Expect(false, fmt.Sprintf("a socket at to receives %d payloads, each once", talks), fmt.Sprintf("%sa socket at to received %d of %d payloads, and %d others", rules.when(), right, talks, len(got)))
	}
	t.judgeTimes(f, strings.Fields(said), rules)
	return nil
}

// judgeTimes compares the times after which answers came with those without a rule.
func (t *traffic) judgeTimes(f *suite.Finding, said []string, rules ruleset) {
	var times []time.Duration
	late := talks
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
		f.Expect(false, fmt.Sprintf("answers within %s", lateAnswer), fmt.Sprintf("%s%d of %d answers came within %s", rules.when(), talks-late, talks, lateAnswer))
		return
	}
	slices.Sort(times)
	half := times[len(times)/2]
	switch {
	case t.answers == 0:
		t.answers = half
		f.Fact(fmt.Sprintf("a socket at to answers in %s", half))
	case half > t.answers+slowerAnswer:
		f.Expect(false, fmt.Sprintf("answers as soon as without a rule, in %s", t.answers), fmt.Sprintf("%sa socket at to answers in %s", rules.when(), half))
	}
}
