package files

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"slipway/flash/boardssh"
	"slipway/flash/boardssh/boardtest"
	"slipway/flash/boardssh/sshd"
	"slipway/flash/boardssh/sshtest"
	"slipway/layers/run"
)

// carriage is a transfer of data to a file over several streams. All but the first go to more.
type carriage struct {
	more    boardssh.Address
	several int
	second  bool   // the first stream waits until another one has brought something
	brought func() // is called when something arrived
	name    string // of the file; "": a new one
}

func (o carriage) carry(t *testing.T, first boardssh.Address, data []byte) (string, *stream, error) {
	t.Helper()
	c, lead := dialSwitched(t, first)
	b, err := openChannel(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.close)
	if o.name == "" {
		o.name = filepath.Join(t.TempDir(), "f")
		if _, err := b.createFile(t.Context(), o.name); err != nil {
			t.Fatal(err)
		}
	}
	lead(o.more.Port)
	start := make(chan struct{})
	open := sync.OnceFunc(func() { close(start) })
	if !o.second {
		open()
	}
	count := func(int64) {
		open()
		if o.brought != nil {
			go o.brought()
		}
	}
	early := openEarlyStreams(t.Context(), c, false, func() int { return o.several })
	t.Cleanup(early.close)
	k := &transfer{conn: c, early: early, src: source{data: bytes.NewReader(data)}, name: o.name, queue: newQueue(wholeFile(int64(len(data))), count)}
	t.Cleanup(k.close)
	w, err := k.sendAll(t.Context(), blockedWriter{b, start}, o.several)
	return o.name, w, err
}

// blockedWriter writes nothing before start is closed.
type blockedWriter struct {
	boardFiles
	start chan struct{}
}

func (g blockedWriter) openFile(name string) (pieceWriter, error) {
	<-g.start
	return g.boardFiles.openFile(name)
}

func checkCarried(t *testing.T, name string, data []byte, w *stream, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(name); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes arrived, %v; want %d as sent", len(got), err, len(data))
	}
	if sum, err := Digest(t.Context(), w.conn, name); err != nil || sum == "" {
		t.Errorf("the stream that is left gives %q, %v; want a digest", sum, err)
	}
}

func TestSeveralStreams(t *testing.T) {
	s := sshtest.StartSSHD(t)
	data := sshtest.RandomBytes(8<<20 + 1)
	cut, _ := boardtest.StartRelay(t, boardtest.AddressOf(s), 3<<20, false)
	early, _ := boardtest.StartRelay(t, boardtest.AddressOf(s), 5_000, false)
	refused, r := boardtest.StartRelay(t, boardtest.AddressOf(s), 0, false)
	r.Close()
	for name, o := range map[string]carriage{
		"all work":                 {more: boardtest.AddressOf(s), second: true},
		"no second connection":     {more: refused},
		"others break off":         {more: cut, second: true},
		"others break off at once": {more: early},
	} {
		t.Run(name, func(t *testing.T) {
			o.several = 4
			name, w, err := o.carry(t, boardtest.AddressOf(s), data)
			checkCarried(t, name, data, w, err)
		})
	}
}

// The first stream is held up until the second one has brought something, and then cut.
func TestFirstStreamBreaks(t *testing.T) {
	s := sshtest.StartSSHD(t)
	data := sshtest.RandomBytes(8 << 20)
	held, r := boardtest.StartRelay(t, boardtest.AddressOf(s), 100_000, true)
	o := carriage{more: boardtest.AddressOf(s), several: 2, brought: func() { r.End() }}
	name, w, err := o.carry(t, held, data)
	checkCarried(t, name, data, w, err)
}

// A stream that stalls fails after the limit of silence. The others send its pieces.
func TestStalledStream(t *testing.T) {
	t.Setenv(boardssh.SilenceVariable, "2s")
	s := sshtest.StartSSHD(t)
	data := sshtest.RandomBytes(8 << 20)
	stalled, _ := boardtest.StartRelay(t, boardtest.AddressOf(s), 1<<20, true)
	o := carriage{more: stalled, several: 2, second: true}
	name, w, err := o.carry(t, boardtest.AddressOf(s), data)
	checkCarried(t, name, data, w, err)
}

func TestAllStreamsBreak(t *testing.T) {
	s := sshtest.StartSSHD(t)
	cut, _ := boardtest.StartRelay(t, boardtest.AddressOf(s), 3<<20, false)
	o := carriage{more: cut, several: 2}
	if _, _, err := o.carry(t, cut, sshtest.RandomBytes(8<<20)); err == nil {
		t.Error("each stream broke off, and there is no error")
	}
}

func TestABoardThatRefusesToWrite(t *testing.T) {
	s := sshtest.StartSSHD(t)
	o := carriage{more: boardtest.AddressOf(s), several: 1, name: "/dev/full"}
	_, _, err := o.carry(t, boardtest.AddressOf(s), sshtest.RandomBytes(8<<20))
	var f finalError
	if !errors.As(err, &f) {
		t.Errorf("carry = %v; want the board's own words", err)
	}
}

// Whatever dies, each byte gets an answer, and is counted once.
func TestQueue(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(strconv.Itoa(int(seed)), func(t *testing.T) {
			const size = 1 << 17
			var counted int64
			q := newQueue(wholeFile(size), func(n int64) { counted += n })
			arrived := make([]bool, size)
			var mu sync.Mutex
			var all sync.WaitGroup
			for i := range uint64(5) {
				random := rand.New(rand.NewPCG(seed, i))
				for range 3 {
					mortal := i > 0
					random := rand.New(rand.NewPCG(seed, random.Uint64()))
					all.Go(func() {
						for {
							p, ok := q.nextPiece(t.Context(), 1+random.Int64N(1000))
							if !ok {
								return
							}
							if mortal && random.IntN(10) == 0 {
								q.recordAnswer(p, io.ErrUnexpectedEOF)
								return
							}
							mu.Lock()
							for j := p.offset; j < p.offset+p.length; j++ {
								arrived[j] = true
							}
							mu.Unlock()
							q.recordAnswer(p, nil)
						}
					})
				}
			}
			all.Wait()
			if q.bytesLeft() != 0 || counted != size {
				t.Errorf("%d bytes are left and %d were counted; want 0 and %d", q.bytesLeft(), counted, size)
			}
			for i, there := range arrived {
				if !there {
					t.Fatalf("byte %d was never written", i)
				}
			}
		})
	}
}

// eachStart makes a server that calls a script for each program: "$SSH_ORIGINAL_COMMAND" is
// what it starts, and the shell's function await waits for a condition, or makes the file late.
func eachStart(t *testing.T, script string) (s *sshd.Server, dir string) {
	t.Helper()
	dir = t.TempDir()
	name := filepath.Join(dir, "board")
	text := fmt.Sprintf(`#!/bin/sh
cd %s
await() {
	tries=600
	until "$@"; do
		[ "$((tries -= 1))" -gt 0 ] || { >late; break; }
		sleep 0.1
	done
}
lines() { [ "$(wc -l <servers)" -ge "$1" ]; }
case "$SSH_ORIGINAL_COMMAND" in
%s
esac
exec sh -c "$SSH_ORIGINAL_COMMAND"
`, dir, script)
	if err := run.WriteProgram(name, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	return sshtest.StartSSHD(t, externalSFTP, "ForceCommand "+name), dir
}

// Over a long line all streams are opened while the first one finds out what the board has of the file: here
// it does not answer that before. It is asked while the sftp-server starts.
func TestStreamsAreOpenedEarly(t *testing.T) {
	s, dir := eachStart(t, `
*sftp-server) echo >>servers; await test -e asked ;;
*"ls -ldn"*) >asked; await lines 4 ;;`)
	a, r := boardtest.StartRelay(t, boardtest.AddressOf(s), 1<<40, false)
	r.Late.Store(int64(60 * time.Millisecond)) // four streams, whatever processors this machine has
	c := boardtest.Dial(t, a)
	data := sshtest.RandomBytes(severalBytes)
	remote := filepath.Join(t.TempDir(), "f")
	if _, err := Put(t.Context(), c, sshtest.WriteFile(t, data), remote, 0o600); err != nil {
		t.Fatal(err)
	}
	sshtest.CheckFile(t, remote, data, 0o600)
	if _, err := os.Stat(filepath.Join(dir, "late")); err == nil {
		t.Error("something was not asked for before the board had answered something else")
	}
}

// heldBoard holds each login but the first until held is closed, and counts them.
func heldBoard(t *testing.T) (c *boardssh.Conn, came *atomic.Int64, held chan struct{}, ended chan error) {
	came, held, ended = &atomic.Int64{}, make(chan struct{}), make(chan error, 6)
	board := boardtest.HostileBoard(t, func(conn net.Conn, config *ssh.ServerConfig) {
		if came.Add(1) == 1 {
			sshtest.Conversation{}.Serve(conn, config)
			return
		}
		<-held
		_, _, _, err := ssh.NewServerConn(conn, config)
		ended <- err
	})
	return boardtest.Dial(t, board), came, held, ended
}

func waitFor(t *testing.T, n int64, came *atomic.Int64) {
	t.Helper()
	for began := time.Now(); came.Load() < n; time.Sleep(time.Millisecond) {
		if time.Since(began) > sshtest.LongEnough {
			t.Fatalf("%d connections came; want %d", came.Load(), n)
		}
	}
}

// As many logins run at once as a dropbear with tight limits accepts.
func TestLoginsAtOnce(t *testing.T) {
	c, came, held, _ := heldBoard(t)
	defer close(held)
	defer openEarlyStreams(t.Context(), c, false, func() int { return 6 }).close()
	waitFor(t, 1+3, came)
	time.Sleep(50 * time.Millisecond) // one more would come in this time
	if n := came.Load() - 1; n != 3 {
		t.Errorf("%d logins ran at once; want 3", n)
	}
}

// A login that nobody needs any more is not broken off: sshd refuses who does that.
func TestLoginsAreNotBrokenOff(t *testing.T) {
	c, came, held, ended := heldBoard(t)
	e := openEarlyStreams(t.Context(), c, true, func() int { return 1 })
	waitFor(t, 2, came)
	e.close()
	close(held)
	if err := <-ended; err != nil {
		t.Errorf("the login ended with %v", err)
	}
}

// All streams are opened early, and those that nobody takes are closed.
func TestEarlyStreamsThatNobodyTakes(t *testing.T) {
	c := boardtest.Connect(t)
	e := openEarlyStreams(t.Context(), c, true, func() int { return 4 })
	taken := e.nextStream(t.Context())
	left := e.nextStream(t.Context())
	e.close()
	rest := &earlyStreams{opened: make(chan *stream, 1)}
	rest.opened <- left
	close(rest.opened)
	rest.close()
	var err error
	for began := time.Now(); err == nil && time.Since(began) < sshtest.LongEnough; time.Sleep(time.Millisecond) {
		_, err = left.conn.Run(t.Context(), "true")
	}
	if err == nil {
		t.Error("a connection that nobody took is open")
	}
	if err := taken.conn.Close(); err != nil {
		t.Errorf("Close of the stream that was taken = %v", err)
	}
}

func TestInFlight(t *testing.T) {
	for _, tt := range []struct {
		packet    int
		roundTrip time.Duration
		want      int
	}{
		{packetBytes, 0, 3},
		{packetBytes, 100 * time.Microsecond, 3},
		{packetBytes, time.Millisecond, 5},
		{packetBytes, longRoundTrip, 10},
		{packetBytes, unknownRoundTrip, 10},
		{smallPacket, 0, 23},
		{smallPacket, unknownRoundTrip, mostInFlight},
	} {
		b := &sftpFiles{packet: tt.packet}
		if got := b.inFlight(tt.roundTrip); got != tt.want {
			t.Errorf("%d bytes a packet, round trip %v: %d are in flight; want %d", tt.packet, tt.roundTrip, got, tt.want)
		}
	}
}

func TestRateFits(t *testing.T) {
	const rate = 512 << 20
	if !rateFits(rate, windowBytes, time.Millisecond) || rateFits(rate, windowBytes, time.Minute) || rateFits(0, 1, 0) {
		t.Error("rateFits is wrong")
	}
}

// dialSwitched connects to the board at first. Further logins go to the port that lead names.
func dialSwitched(t *testing.T, first boardssh.Address) (c *boardssh.Conn, lead func(port int)) {
	t.Helper()
	r, err := sshd.NewRelay()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	r.SetTarget(first.Port)
	if first.HostKeyAlias == "" {
		first = boardtest.WithAlias(t, first)
	}
	first.Port = r.Port()
	return boardtest.Dial(t, first), r.SetTarget
}

func TestFillingStreams(t *testing.T) {
	for _, tt := range []struct {
		processors int
		roundTrip  time.Duration
		want       int
	}{
		{2, longRoundTrip, 2},
		{2, 21 * time.Millisecond, 3},
		{2, 100 * time.Millisecond, 6},
		{1, 20 * time.Millisecond, 2},
		{4, 20 * time.Millisecond, 6},
		{64, 20 * time.Millisecond, 6},
		{1, unknownRoundTrip, 6},
	} {
		if got := fillingStreams(tt.processors, tt.roundTrip); got != tt.want {
			t.Errorf("fillingStreams(%d, %s) = %d; want %d", tt.processors, tt.roundTrip, got, tt.want)
		}
	}
}
