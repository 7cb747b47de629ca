package boardssh

import (
	"context"
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Bounds of a rate. Below the least, a login would not be through in its time.
const (
	leastRate = 16 << 10
	mostRate  = 1 << 40
)

// Rate is how many bytes a second go to a board at most, by all of its connections
// together, with what SSH adds. 0: as many as the line takes.
type Rate int64

// ParseRate reads a rate as curl and rsync take it: k, M and G are powers of 1024.
func ParseRate(text string) (Rate, error) {
	if text == "" {
		return 0, nil
	}
	number, unit := text, float64(1)
	for letter, factor := range map[string]float64{"k": 1 << 10, "m": 1 << 20, "g": 1 << 30} {
		if before, found := strings.CutSuffix(strings.ToLower(text), letter); found {
			number, unit = before, factor
		}
	}
	n, err := strconv.ParseFloat(number, 64)
	if n *= unit; err != nil || math.IsNaN(n) || n < leastRate || n > mostRate {
		return 0, fmt.Errorf("rate %q: want bytes a second from %dk on, such as 512k, 10M or 1.5G", text, leastRate>>10)
	}
	return Rate(n), nil
}

const paceCredit = 20 * time.Millisecond

type rateKey struct{}

// WithRate limits what goes to each board that is dialed with the context.
func WithRate(ctx context.Context, r Rate) context.Context {
	return context.WithValue(ctx, rateKey{}, r)
}

func rateOf(ctx context.Context) *pace {
	r, _ := ctx.Value(rateKey{}).(Rate)
	if r == 0 {
		return nil
	}
	return &pace{rate: r, now: time.Now}
}

// pace spaces what all connections to one board send. Whoever sends waits until what
// was sent before is paid for. A timer wakes late, and what that cost is made up for, as
// far as the credit goes; so never more than the credit and a slice is ahead of the rate.
type pace struct {
	rate Rate
	now  func() time.Time

	mu   sync.Mutex
	free time.Time // when what was sent is paid for
}

// sliceBytes is how much goes out at once: a fiftieth of a second, and no more than SSH
// puts into a packet.
func (p *pace) sliceBytes() int { return int(min(max(p.rate/50, 1<<10), 32<<10)) }

// reserveDelay is how long n bytes have to wait.
func (p *pace) reserveDelay(n int) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	if saved := now.Add(-paceCredit); p.free.Before(saved) {
		p.free = saved
	}
	wait := max(p.free.Sub(now), 0)
	p.free = p.free.Add(time.Duration(float64(n) / float64(p.rate) * float64(time.Second)))
	return wait
}

// paced is a connection that keeps to a pace.
type paced struct {
	net.Conn
	pace   *pace
	sleep  func(time.Duration, <-chan struct{}) bool // false if the connection was closed during the sleep
	closed chan struct{}
	once   sync.Once
}

func newPaced(conn net.Conn, p *pace) *paced {
	return &paced{Conn: conn, pace: p, sleep: sleepUnless, closed: make(chan struct{})}
}

func sleepUnless(d time.Duration, closed <-chan struct{}) bool {
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-closed:
		return false
	}
}

func (p *paced) Write(data []byte) (written int, err error) {
	for written < len(data) && err == nil {
		part := data[written:min(len(data), written+p.pace.sliceBytes())]
		if !p.sleep(p.pace.reserveDelay(len(part)), p.closed) {
			return written, net.ErrClosed
		}
		n := 0
		n, err = p.Conn.Write(part)
		written += n
	}
	return written, err
}

func (p *paced) Close() error {
	p.once.Do(func() { close(p.closed) })
	return p.Conn.Close()
}

// Rate is the limit of what goes to the board. 0: there is none.
func (c *Conn) Rate() Rate {
	if c.login.pace == nil {
		return 0
	}
	return c.login.pace.rate
}
