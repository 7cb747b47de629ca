package target

import (
	"bytes"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"
)

// pidLine finds the program's process id, which its shell prints as a marked
// line on standard error before it becomes the program. SSH's own signals will
// not do: OpenSSH refuses them for root, and a program whose connection goes away
// is not ended by that.
//
// The number is also the proof that a shell has run the line. A forced command, or a login
// shell that is no POSIX shell, may ignore the line or repeat it, and end with status 0.
type pidLine struct {
	mark string
	out  io.Writer // gets everything but the line
	over func()    // is told that there will be no more; nil: nobody is

	mu   sync.Mutex
	held []byte // bytes that arrived before the line
	done bool   // there is nothing more to look for
	pid  int    // 0: no shell has run the line
	said []byte // the first that came without the line
}

// Login scripts may print something first, but not without end.
const maxHeldBytes = 8 << 10

// shellPrefix is fixed text but for the mark, which is ours.
func (p *pidLine) shellPrefix() string { return "echo '" + p.mark + "'$$ >&2; exec " }

func (p *pidLine) Write(b []byte) (int, error) {
	p.mu.Lock()
	if p.done {
		p.mu.Unlock() // a goroutine that needs the number does not wait for a slow reader
		return p.out.Write(b)
	}
	defer p.mu.Unlock()
	p.held = append(p.held, b...)
	if before, pid, rest, found := p.findLine(); found {
		p.pid, p.held, p.done = pid, append(bytes.Clone(before), rest...), true
		p.passHeld(len(p.held))
	} else if len(p.held) > maxHeldBytes {
		p.passHeld(len(p.held) - len(p.mark) - maxPIDBytes)
	}
	return len(b), nil
}

const maxPIDBytes = 12 // with the end of the line

// findLine looks for the mark with a number after it. A shell that repeats the line has the
// mark too, and one that traces its commands.
func (p *pidLine) findLine() (before []byte, pid int, rest []byte, found bool) {
	for at := 0; ; at += len(p.mark) {
		i := bytes.Index(p.held[at:], []byte(p.mark))
		if i < 0 {
			return nil, 0, nil, false
		}
		at += i
		number, rest, whole := bytes.Cut(p.held[at+len(p.mark):], []byte("\n"))
		pid, err := strconv.Atoi(strings.TrimSuffix(string(number), "\r"))
		if whole && err == nil && pid > 0 && len(number) < maxPIDBytes {
			return p.held[:at], pid, rest, true
		}
	}
}

// ReadFrom is as that of LimitedBuffer.
func (p *pidLine) ReadFrom(r io.Reader) (int64, error) { return copyByHand(p, r) }

// passHeld passes on the first n held bytes.
func (p *pidLine) passHeld(n int) {
	if p.pid == 0 && len(p.said) == 0 {
		p.said = bytes.Clone(p.held[:min(n, maxShownBytes)])
	}
	p.out.Write(p.held[:n])
	p.held = bytes.Clone(p.held[n:])
}

// flushHeld passes on what was held back if the line never came.
func (p *pidLine) flushHeld() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.done {
		p.done = true
		p.passHeld(len(p.held))
	}
	if p.over != nil {
		p.over()
	}
}

// waitForPID waits a moment for the number, because the program's output may come before it.
func (p *pidLine) waitForPID() int {
	for end := time.Now().Add(quick); p.knownPID() == 0 && time.Now().Before(end); {
		time.Sleep(quick / 50)
	}
	return p.knownPID()
}

func (p *pidLine) knownPID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pid
}
