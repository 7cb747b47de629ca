package cache

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	// bitbake's servers answer within milliseconds. Every build would wait for a longer probe.
	probeTime          = 10 * time.Second
	maxDescriptorBytes = 32 << 10
)

// checkServers compares versions: it is an error if bitbake v cannot use servers of c.Bitbake.
func (c Cache) checkServers(v Version) error {
	switch {
	case v.atLeast(existsStream) && !c.Bitbake.atLeast(existsStream):
		return c.explainPart("hashserv", c.Hashserv, fmt.Errorf("is of bitbake %s, and cannot answer what bitbake %s asks; serve the cache with bitbake %s or later", c.Bitbake, v, existsStream))
	case c.Bitbake.atLeast(historyPR) != v.atLeast(historyPR):
		return c.explainPart("prserv", c.PRServ, fmt.Errorf("is of bitbake %s, which bitbake %s cannot use; serve the cache with a bitbake %s", c.Bitbake, v, prGeneration(v)))
	}
	return nil
}

// prGeneration returns the bitbake versions, in words, that share the protocol of v's PR server.
func prGeneration(v Version) string {
	if v.atLeast(historyPR) {
		return historyPR.String() + " or later"
	}
	return "before " + historyPR.String()
}

// probePort checks that something listens at a TCP address.
func probePort(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return explainLoss(ctx, plainDialError(err))
	}
	return conn.Close()
}

// explainLoss returns "does not answer within" for an error after probeTime, the cause if the
// caller's context ended, and any other error as it is.
func explainLoss(ctx context.Context, err error) error {
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("does not answer within %v", probeTime)
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return err
}

// plainDialError rewords an error of Go's network packages: nothing answers, or not as expected.
func plainDialError(err error) error {
	if op, is := errors.AsType[*net.OpError](err); is && op.Op == "dial" {
		return fmt.Errorf("nothing answers: %w", op.Err)
	}
	if wrapped, is := errors.AsType[*url.Error](err); is {
		err = wrapped.Err
	}
	return fmt.Errorf("does not answer as it should: %w", err)
}

// fetchURL returns what an HTTP server sends with status 200. Over maxDescriptorBytes is an error.
func fetchURL(ctx context.Context, address string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, explainLoss(ctx, plainDialError(err))
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("answers %d %s", response.StatusCode, http.StatusText(response.StatusCode))
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, maxDescriptorBytes+1))
	if err == nil && len(data) > maxDescriptorBytes {
		err = fmt.Errorf("answers more than %d bytes", maxDescriptorBytes)
	}
	return data, err
}

// descriptor is the content of /cache.json, by which a cache serve describes itself. It names ports
// and no hosts, because all servers are on the same host.
type descriptor struct {
	Slipway  string `json:"slipway"` // "cache 1"
	Bitbake  string `json:"bitbake"` // the version of the servers
	Hashserv int    `json:"hashserv"`
	PRServ   int    `json:"prserv"`
	// Folder and Key are for this machine only: who has the key of the folder fills the cache.
	Folder string `json:"folder,omitempty"`
	Key    string `json:"key,omitempty"`

	version Version // Bitbake's
}

const descriptorKind = "cache 1"

// fetchDescriptor fetches and parses the /cache.json of a cache serve.
func fetchDescriptor(ctx context.Context, server string) (descriptor, error) {
	data, err := fetchURL(ctx, server+descriptorPath)
	if err != nil {
		return descriptor{}, err
	}
	return parseDescriptor(data)
}

// parseDescriptor parses a cache.json, and refuses another version and invalid ports.
func parseDescriptor(data []byte) (descriptor, error) {
	var d descriptor
	if err := json.Unmarshal(data, &d); err != nil || !strings.HasPrefix(d.Slipway, "cache ") {
		return d, errors.New("is no cache serve")
	}
	if d.Slipway != descriptorKind {
		return d, fmt.Errorf("is a cache serve of another slipway (%.20q; want %q): use the same on both machines", d.Slipway, descriptorKind)
	}
	for _, port := range []int{d.Hashserv, d.PRServ} {
		if port < 1 || port > 65535 {
			return d, fmt.Errorf("names a port that there is not, %d", port)
		}
	}
	var err error
	if d.version, err = parseVersion(d.Bitbake); err != nil {
		return d, fmt.Errorf("names no version of bitbake: %.20q", d.Bitbake)
	}
	return d, nil
}
