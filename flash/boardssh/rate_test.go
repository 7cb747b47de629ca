package boardssh

import (
	"bytes"
	"math"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"slipway/flash/boardssh/sshtest"
)

func TestParseRate(t *testing.T) {
	for text, want := range map[string]Rate{
		"": 0, "16k": 16 << 10, "512K": 512 << 10, "10M": 10 << 20, "1.5G": 3 << 29, "100000": 100000,
	} {
		if got, err := ParseRate(text); err != nil || got != want {
			t.Errorf("ParseRate(%q) = %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"0", "-1M", "1k", "M", "NaN", "inf", "1e99G", "10MB", "10 M"} {
		if got, err := ParseRate(text); err == nil {
			t.Errorf("ParseRate(%q) = %d; want an error", text, got)
		}
	}
}

func FuzzParseRate(f *testing.F) {
	f.Add("10M")
	f.Add("1e3k")
	f.Fuzz(func(t *testing.T, text string) {
		if r, err := ParseRate(text); err == nil && text != "" && (r < leastRate || r > mostRate) {
			t.Errorf("ParseRate(%q) = %d", text, r)
		}
	})
}

// simulatedClock is a time that passes only where somebody sleeps.
type simulatedClock struct{ at time.Time }

func (c *simulatedClock) now() time.Time { return c.at }

func (c *simulatedClock) sleep(d time.Duration) { c.at = c.at.Add(d) }

// kept is a connection that remembers what was written, and when.
type kept struct {
	net.Conn
	clock *simulatedClock
	bytes bytes.Buffer
	times []time.Time
}

func (k *kept) Write(p []byte) (int, error) {
	k.times = append(k.times, k.clock.at)
	return k.bytes.Write(p)
}

// Two connections of one board send together what the rate allows, at each moment.
func TestPace(t *testing.T) {
	for _, rate := range []Rate{leastRate, 1 << 20, 100 << 20} {
		clock := &simulatedClock{at: time.Unix(1_000_000, 0)}
		began := clock.at
		p := &pace{rate: rate, now: clock.now}
		out := [2]*kept{{clock: clock}, {clock: clock}}
		data := bytes.Repeat([]byte("0123456789abcdef"), 30_003)
		for half := 0; half < len(data); half += 200_000 {
			conn := &paced{Conn: out[half/200_000%2], pace: p, sleep: clock.sleep}
			part := data[half:min(len(data), half+200_000)]
			if n, err := conn.Write(part); n != len(part) || err != nil {
				t.Fatal(n, err)
			}
		}
		if n := out[0].bytes.Len() + out[1].bytes.Len(); n != len(data) {
			t.Errorf("rate %d: %d bytes came through, of %d", rate, n, len(data))
		}
		want := float64(len(data)-p.sliceBytes()) / float64(rate)
		if took := clock.at.Sub(began).Seconds(); math.Abs(took-want) > 0.05+want/1000 {
			t.Errorf("rate %d: %d bytes took %.3f s of the simulated time, want %.3f", rate, len(data), took, want)
		}
		if most := float64(rate)/25 + 1<<11; p.sliceBytes() > 1<<10 && float64(p.sliceBytes()) > most {
			t.Errorf("rate %d: %d bytes go out at once, want at most %.0f", rate, p.sliceBytes(), most)
		}
	}
}

// What was not sent in a quiet time is not sent later on top of the rate.
func TestPaceSavesNothing(t *testing.T) {
	clock := &simulatedClock{at: time.Unix(1_000_000, 0)}
	p := &pace{rate: 1 << 20, now: clock.now}
	for _, step := range []struct {
		pass time.Duration
		n    int
		want time.Duration
	}{{0, 1 << 19, 0}, {0, 1 << 18, 500*time.Millisecond - paceCredit}, {time.Hour, 1 << 20, 0}, {0, 1, time.Second - paceCredit}} {
		clock.at = clock.at.Add(step.pass)
		if wait := p.reserveDelay(step.n); wait != step.want {
			t.Errorf("after %s, take(%d) = %s, want %s", step.pass, step.n, wait, step.want)
		}
	}
}

// paidUntil is read while sessions are closed, which costs a few bytes too.
func (p *pace) paidUntil() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.free
}

// A file goes through a real server at a rate, and all of it is counted.
func TestPutAtARate(t *testing.T) {
	a := addressOf(sshtest.StartSSHD(t))
	waited, err := WaitDial(WithRate(t.Context(), 512<<20), a, sshtest.LongEnough)
	if err != nil {
		t.Fatal(err)
	}
	defer waited.Close()
	if waited.Rate() != 512<<20 {
		t.Errorf("WaitDial gives a connection of the rate %d; want the context's", waited.Rate())
	}
	c, err := Dial(WithRate(t.Context(), 512<<20), a)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	remote := filepath.Join(t.TempDir(), "file")
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<16+7)
	before := c.login.pace.paidUntil()
	if _, err := c.Feed(t.Context(), bytes.NewReader(data), "sh", "-c", `cat >"$1"`, "sh", remote); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(remote); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes arrived, %v; want %d", len(got), err, len(data))
	}
	paid := c.login.pace.paidUntil().Sub(before).Seconds() * (512 << 20)
	if int(paid) < len(data) {
		t.Errorf("the pace was asked for %.0f bytes, of %d", paid, len(data))
	}
}
