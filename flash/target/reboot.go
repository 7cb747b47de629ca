package target

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"slipway/layers/plaintext"
)

// Reboot restarts the board and returns when it answers again: not when an
// answer comes, which the old system may still give, but when its boot id is
// another.
func (c *Conn) Reboot(ctx context.Context, timeout time.Duration) error {
	limit, cancel := context.WithTimeoutCause(ctx, timeout, errTimeUp)
	defer cancel()
	before, err := c.bootID(limit)
	if err != nil {
		return err
	}
	// The connection may end before the command does, so only its refusal counts.
	if r, err := c.Run(limit, "reboot"); err == nil && r.Status != 0 {
		return fmt.Errorf("reboot %s: status %d: %s", c.addr, r.Status, Printable(string(r.Stderr)))
	}
	began := time.Now()
	last := errors.New("it still runs the boot that it was to end")
	for limit.Err() == nil {
		sleepFor(limit, 5*askEvery)
		link, err := c.login.waitForLogin(limit, timeout-time.Since(began))
		if isPermanent(err) {
			return fmt.Errorf("after the reboot: %w", err)
		}
		if err != nil {
			last = err
			continue
		}
		fresh := &Conn{addr: c.addr, login: c.login, link: link}
		if id, err := fresh.bootID(limit); err == nil && id != before {
			c.adoptLink(link)
			return nil
		}
		link.Close()
	}
	if ctx.Err() != nil {
		return fmt.Errorf("reboot %s: %w", c.addr, context.Cause(ctx))
	}
	return fmt.Errorf("%s is not back within %s of its reboot: %w", c.addr, timeout, last)
}

// adoptLink takes over a fresh connection in place of the old one.
func (c *Conn) adoptLink(fresh *link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link == nil { // closed during the reboot
		fresh.Close()
		return
	}
	c.link.Close()
	c.link = fresh
}

var bootIDPattern = plaintext.Regexp(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

func (c *Conn) bootID(ctx context.Context) (string, error) {
	r, err := c.Ask(ctx, "cat", "/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	id := strings.TrimSpace(string(r.Stdout))
	if r.Status != 0 || !bootIDPattern().MatchString(id) {
		return "", fmt.Errorf("boot id of %s: status %d: %s", c.addr, r.Status, Printable(id+" "+string(r.Stderr)))
	}
	return id, nil
}
