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

// Bounds of a rate. Below leastRate, a login would run into its timeout.
const (
	leastRate = 16 << 10
	mostRate  = 1 << 40
)

// Rate is a limit in bytes a second for what Slipway sends to one board, over all connections and
// with SSH's overhead. 0 means no limit.
type Rate int64

// ParseRate parses a rate as curl and rsync write it, with k, M and G for powers of 1024, in either
// case. "" is 0. It refuses rates below leastRate or above mostRate.
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

// WithRate sets the rate limit for each board that Dial, DialUnattended or WaitDial connects to with
// the context.
func WithRate(ctx context.Context, r Rate) context.Context {
	return context.WithValue(ctx, rateKey{}, r)
}

// pace limits the rate of all connections to one board. A sender waits until the time for earlier
// bytes is over. Because timers wake late, paceCredit of that time may be saved up, so at most the
// credit and one slice are ahead of the rate.
type pace struct {
	rate Rate
	now  func() time.Time

	mu   sync.Mutex
	free time.Time // when the time for what was sent is over
}

// sliceBytes is the size of one write: 1/50 second of the rate, and at most an SSH packet.
func (p *pace) sliceBytes() int { return int(min(max(p.rate/50, 1<<10), 32<<10)) }

// reserveDelay reserves the time for n bytes, and returns how long to wait before sending them. 0
// means at once. It does not wait itself.
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

// paced is a connection whose writes wait as its pace says. A wait lasts for the slices of the
// board's other connections, which is a fraction of a second.
type paced struct {
	net.Conn
	pace  *pace
	sleep func(time.Duration)
}

// Write writes data in slices, and waits before each as long as the pace says.
func (p *paced) Write(data []byte) (written int, err error) {
	for written < len(data) && err == nil {
		part := data[written:min(len(data), written+p.pace.sliceBytes())]
		p.sleep(p.pace.reserveDelay(len(part)))
		n := 0
		n, err = p.Conn.Write(part)
		written += n
	}
	return written, err
}

// Rate returns the rate limit of the connection. 0 means no limit.
func (c *Conn) Rate() Rate {
	if c.login.pace == nil {
		return 0
	}
	return c.login.pace.rate
}
