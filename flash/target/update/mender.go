package update

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"slipway/flash/target"
	"slipway/layers/plaintext"
)

// mender drives Mender's client without Mender's server. Its commands are those of the
// documentation. It was not tested on a board with Mender.
type mender struct {
	c       *target.Conn
	program string // mender-update since release 4, mender before
}

const findMenderScript = `for p in mender-update mender; do command -v $p >/dev/null && exec echo $p; done; exit 3`

func findMender(ctx context.Context, c *target.Conn, _ string) (Engine, error) {
	r, err := c.Ask(ctx, "sh", "-c", findMenderScript)
	if err != nil {
		return nil, err
	}
	program := strings.TrimSpace(string(r.Stdout))
	if r.Status != 0 || program != "mender-update" && program != "mender" {
		return nil, errors.New("no client of Mender's is there")
	}
	return &mender{c, program}, nil
}

func (m *mender) Name() string { return string(Mender) }

func (m *mender) ChooseDelivery(context.Context, *Bundle) (Delivery, string) { return Streamed, "" }

// runMender runs the client. An error has the client's output.
func (m *mender) runMender(ctx context.Context, args ...string) (target.Result, error) {
	run := m.c.Ask
	if args[0] == "install" {
		run = m.c.Run
	}
	r, err := run(ctx, append([]string{m.program}, args...)...)
	if err == nil && r.Status != 0 {
		err = fmt.Errorf("%s %s on %s: status %d: %s", m.program, args[0], m.c.Address().Host, r.Status,
			truncateText(plaintext.OneLine(lastLines(r.Stdout, r.Stderr)), maxTextBytes))
	}
	return r, err
}

// Status returns the root's device and the name of the artifact on it. Mender's client does
// not show its slots, or whether an update waits for a restart.
func (m *mender) Status(ctx context.Context) (Status, error) {
	s, err := runningRoot(ctx, m.c)
	if err != nil {
		return s, err
	}
	if r, err := m.runMender(ctx, "show-artifact"); err == nil {
		s.Slots[0].Version = truncateText(plaintext.OneLine(strings.TrimSpace(string(r.Stdout))), maxTextBytes)
	}
	r, err := m.c.Ask(ctx, "cat", "/var/lib/mender/device_type")
	if err != nil {
		return s, err
	}
	if kind, ok := strings.CutPrefix(strings.TrimSpace(string(r.Stdout)), "device_type="); ok && r.Status == 0 {
		s.Compatible = truncateText(plaintext.OneLine(kind), maxTextBytes)
	}
	return s, nil
}

func (m *mender) Inspect(context.Context, *Source) (Claims, error) { return Claims{}, ErrNoInspection }

// Install reports how much the client has fetched, since the client reports no progress.
func (m *mender) Install(ctx context.Context, from *Source, tell func(int, string)) error {
	watched, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		from.reportProgress(watched, tell)
	}()
	_, err := m.runMender(ctx, "install", from.Where)
	stop()
	<-done
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return err
	case from.ServedBytes() == 0:
		return fmt.Errorf("%s install on %s ended with status 0 and fetched nothing", m.program, m.c.Address().Host)
	}
	tell(100, "installed")
	return nil
}

// reportProgress calls tell with the served part of the source, until ctx ends.
func (s *Source) reportProgress(ctx context.Context, tell func(int, string)) {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			tell(int(min(99, 100*s.ServedBytes()/max(1, s.sizeBytes))), "writing")
		}
	}
}

// WaitUntilIdle returns at once, because the client ends with its connection.
func (m *mender) WaitUntilIdle(ctx context.Context) error { return ctx.Err() }

// MarkGood commits the update. It also succeeds if the system is committed already, since
// the answer to an earlier commit may have been lost.
func (m *mender) MarkGood(ctx context.Context) error {
	r, err := m.runMender(ctx, "commit")
	if r.Status != 0 && strings.Contains(string(r.Stdout)+string(r.Stderr), "No update in progress") {
		return nil
	}
	return err
}

func (m *mender) MarkBad(ctx context.Context) error {
	_, err := m.runMender(ctx, "rollback")
	return err
}

func isTar(head []byte) bool {
	return len(head) >= 262 && string(head[257:262]) == "ustar" && strings.HasPrefix(string(head), "version\x00")
}

// readMender reads the header of a Mender Artifact of version 2 or 3. The artifact's name
// and its device types are in header.tar.gz.
func readMender(b *Bundle) error {
	files := tar.NewReader(io.NewSectionReader(b.file, 0, b.SizeBytes))
	for range maxEntries {
		h, err := files.Next()
		if err != nil {
			return fmt.Errorf("the artifact is cut short or damaged (no header.tar in it): %w", err)
		}
		switch h.Name {
		case "manifest.sig":
			b.Signer = "a key without a name"
		case "header.tar.gz":
			return b.readMenderHeader(io.LimitReader(files, maxDescription))
		case "header.tar", "header.tar.xz", "header.tar.zst":
			return nil // Slipway does not read it, Mender does
		}
	}
	return errors.New("the artifact has no header.tar")
}

// readMenderHeader reads header-info, the first file of the header.
func (b *Bundle) readMenderHeader(packed io.Reader) error {
	unpacked, err := gzip.NewReader(packed)
	if err != nil {
		return fmt.Errorf("the artifact's header: %w", err)
	}
	files := tar.NewReader(io.LimitReader(unpacked, maxDescription))
	h, err := files.Next()
	if err != nil || h.Name != "header-info" {
		return errors.New("the artifact's header does not begin with header-info")
	}
	var info struct {
		Provides struct {
			Name string `json:"artifact_name"`
		} `json:"artifact_provides"`
		Depends struct {
			Devices []string `json:"device_type"`
		} `json:"artifact_depends"`
	}
	if err := json.NewDecoder(files).Decode(&info); err != nil {
		return fmt.Errorf("the artifact's header-info: %w", err)
	}
	b.Version = truncateText(plaintext.OneLine(info.Provides.Name), maxTextBytes)
	if len(info.Depends.Devices) == 1 { // of several, Mender finds the board's
		b.Compatible = truncateText(plaintext.OneLine(info.Depends.Devices[0]), maxTextBytes)
	}
	return nil
}
