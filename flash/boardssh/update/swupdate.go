package update

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"slipway/flash/boardssh"
	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// swupdate drives SWUpdate's daemon through swupdate-client on the board. It pipes the update to
// the client, so that the board needs no space for the file.
type swupdate struct {
	c       *boardssh.Conn
	version string
}

// findSWUpdateScript checks that the daemon runs. The daemon's options select the half of an update
// and the key to verify. A daemon that Slipway starts would lack these options.
const findSWUpdateScript = `command -v swupdate-client >/dev/null || exit 3
[ -S "${TMPDIR:-/tmp}/sockinstctrl" ] || [ -S /run/swupdate/sockinstctrl ] || exit 4
swupdate --version 2>/dev/null || true`

// findSWUpdate returns SWUpdate's engine, if the board has its client and a running daemon.
func findSWUpdate(ctx context.Context, c *boardssh.Conn, _ string) (Engine, error) {
	r, err := c.Ask(ctx, "sh", "-c", findSWUpdateScript)
	switch {
	case err != nil:
		return nil, err
	case r.Status == 4:
		return nil, errors.New("SWUpdate is installed, but its daemon does not run (systemctl start swupdate.socket)")
	case r.Status != 0:
		return nil, errors.New("SWUpdate's client is not installed")
	}
	return &swupdate{c, swupdateVersion(string(r.Stdout))}, nil
}

var swupdateRelease = plaintext.Regexp(`20\d\d\.\d\d(\.\d+)?`)

func swupdateVersion(text string) string { return swupdateRelease().FindString(text) }

func (s *swupdate) Name() string { return strings.TrimSpace(string(SWUpdate) + " " + s.version) }

func (s *swupdate) ChooseDelivery(context.Context, *Bundle) (Delivery, string) { return Piped, "" }

// Status returns the firmware's slots on a Jetson. On another board it returns only the device of
// the root file system, as SWUpdate does not know the slots.
func (s *swupdate) Status(ctx context.Context) (Status, error) {
	j, err := readJetson(ctx, s.c)
	if err != nil {
		return Status{}, err
	}
	if j != nil {
		return j.toStatus(), nil
	}
	return runningRoot(ctx, s.c)
}

// runningRoot returns a Status with one slot, the device of the board's root file system.
func runningRoot(ctx context.Context, c *boardssh.Conn) (Status, error) {
	r, err := c.Ask(ctx, "findmnt", "-n", "-o", "SOURCE", "/")
	if err != nil {
		return Status{}, err
	}
	device := truncateText(plaintext.OneLine(strings.TrimSpace(string(r.Stdout))), maxTextBytes)
	if r.Status != 0 || device == "" {
		return Status{}, fmt.Errorf("ask %s where its root is (findmnt): status %d", c.Address().Host, r.Status)
	}
	return Status{Slots: []Slot{{Name: device, Device: device, Booted: true}}}, nil
}

func (s *swupdate) Inspect(context.Context, *Source) (Claims, error) {
	return Claims{}, ErrNoInspection
}

func (s *swupdate) Images(context.Context, *Source) ([]Image, error) { return nil, ErrNoInspection }

// Install pipes the update to swupdate-client. The client's progress output differs between
// releases, so Install reports how much of the update went through the pipe. A client that did not
// take all of it, or printed nothing, has failed.
func (s *swupdate) Install(ctx context.Context, from *Source, tell func(int, string)) error {
	piped := &progressReader{from: from, tell: tell}
	r, err := s.c.Feed(ctx, piped, "swupdate-client", "-v")
	words := truncateText(plaintext.OneLine(lastLines(r.Stdout, r.Stderr)), maxTextBytes)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case r.Status != 0 && (strings.Contains(words, "busy") || strings.Contains(words, "in progress")):
		return fmt.Errorf("%w (SWUpdate says %q)", ErrBusy, words)
	case r.Status != 0:
		return fmt.Errorf("SWUpdate could not install the update: %s; more on the board: journalctl -u swupdate", words)
	case err != nil:
		return fmt.Errorf("%w: %w", ErrLost, err)
	case words == "" || from.ServedBytes() < from.sizeBytes: // a client that succeeded prints that
		return fmt.Errorf("SWUpdate could not install the update: its client took %d of %d bytes, ended with status 0 and said: %s", from.ServedBytes(), from.sizeBytes, cmp.Or(words, "nothing"))
	}
	tell(100, "installed")
	return nil
}

// progressReader reads a source and reports how much of it was read.
type progressReader struct {
	from *Source
	tell func(int, string)
}

// Read reads from the source, and reports to tell the percentage that was read, at most 99.
func (t *progressReader) Read(p []byte) (int, error) {
	n, err := t.from.Data.Read(p)
	t.tell(int(min(99, 100*t.from.ServedBytes()/max(1, t.from.sizeBytes))), "writing")
	return n, err
}

// lastLines returns the last four lines of the outputs, joined by "; ". If there are lines with
// ERROR or FATAL, it returns only the last four of those.
func lastLines(outputs ...[]byte) string {
	var all, wrong []string
	for line := range strings.Lines(string(bytes.Join(outputs, []byte("\n")))) {
		line = strings.TrimSpace(line)
		switch {
		case line == "":
			continue
		case strings.Contains(line, "ERROR"), strings.Contains(line, "FATAL"):
			wrong = append(wrong, line)
		}
		all = append(all, line)
	}
	if len(wrong) > 0 {
		all = wrong
	}
	return strings.Join(all[max(0, len(all)-4):], "; ")
}

// WaitUntilIdle waits for pollInterval only. When its client ends, the daemon fails the update.
func (s *swupdate) WaitUntilIdle(ctx context.Context) error { return run.Sleep(ctx, pollInterval) }

// markGoodScript marks the running system as good for the boot loader, in a Jetson's firmware or in
// U-Boot's environment. It succeeds if the board has neither.
const markGoodScript = `if command -v nvbootctrl >/dev/null; then exec nvbootctrl verify; fi
command -v fw_setenv >/dev/null || exit 0
[ "$(fw_printenv -n upgrade_available 2>/dev/null)" = 1 ] && { fw_setenv upgrade_available 0 || exit; }
[ "$(fw_printenv -n ustate 2>/dev/null)" = 1 ] && { fw_setenv ustate 0 || exit; }
exit 0`

func (s *swupdate) MarkGood(ctx context.Context) error {
	return s.runMarkScript(ctx, "mark the running system good", markGoodScript)
}

// otherSlotScript makes the firmware boot the slot $1 next.
const otherSlotScript = `nvbootctrl set-active-boot-slot "$1"`

// MarkBad makes a Jetson's firmware boot the other slot next. On another board it returns an error.
func (s *swupdate) MarkBad(ctx context.Context) error {
	j, err := readJetson(ctx, s.c)
	if err != nil {
		return err
	}
	if j == nil {
		return errors.New("SWUpdate on this board has no command to roll back; set the boot loader's variables by hand, then restart it")
	}
	return s.runMarkScript(ctx, "go back to the other slot", otherSlotScript, strconv.Itoa(1-j.current))
}

// runMarkScript runs a script that must succeed. what names it in an error.
func (s *swupdate) runMarkScript(ctx context.Context, what, script string, args ...string) error {
	r, err := s.c.Ask(ctx, append([]string{"sh", "-c", script, "sh"}, args...)...)
	if err == nil && r.Status != 0 {
		err = fmt.Errorf("%s: status %d: %s", what, r.Status, truncateText(plaintext.OneLine(lastLines(r.Stdout, r.Stderr)), maxTextBytes))
	}
	return err
}

// cpioEntry is a file in a cpio archive, the format of SWUpdate updates.
type cpioEntry struct {
	name   string
	offset int64 // where its content begins in the archive
	size   int64
}

// Limits for what Slipway reads of an update.
const (
	maxEntries         = 1000
	maxDescription     = 256 << 10
	cpioHead           = 110
	maxEntryNameLength = 255
)

func isCpio(head []byte) bool {
	return bytes.HasPrefix(head, []byte("070702")) || bytes.HasPrefix(head, []byte("070701"))
}

// readEntries lists a cpio archive's files, without contents. It refuses an archive that is cut
// short, or has more than maxEntries files.
func readEntries(data io.ReaderAt, size int64) ([]cpioEntry, error) {
	var all []cpioEntry
	for at := int64(0); len(all) <= maxEntries; {
		head := make([]byte, cpioHead)
		if _, err := data.ReadAt(head, at); err != nil || !isCpio(head) {
			return nil, fmt.Errorf("it is cut short or damaged at byte %d; copy or make it again", at)
		}
		length, errLength := strconv.ParseUint(string(head[54:62]), 16, 32)
		named, errName := strconv.ParseUint(string(head[94:102]), 16, 32)
		if errLength != nil || errName != nil || named < 2 || named > maxEntryNameLength {
			return nil, fmt.Errorf("it is damaged at byte %d; copy or make it again", at)
		}
		name := make([]byte, named)
		if _, err := data.ReadAt(name, at+cpioHead); err != nil {
			return nil, fmt.Errorf("it is cut short at byte %d; copy it again", at)
		}
		e := cpioEntry{string(bytes.TrimRight(name, "\x00")), (at + cpioHead + int64(named) + 3) / 4 * 4, int64(length)}
		if e.name == "TRAILER!!!" {
			return all, nil
		}
		if e.offset+e.size > size {
			return nil, fmt.Errorf("it is cut short in %s; copy it again", plaintext.OneLine(e.name))
		}
		all = append(all, e)
		at = (e.offset + e.size + 3) / 4 * 4
	}
	return nil, fmt.Errorf("it has more than %d files", maxEntries)
}

// versionPattern matches the version in an sw-description, in libconfig's format or in JSON.
var versionPattern = plaintext.Regexp(`(?m)^[\s{]*"?version"?\s*[=:]\s*"([^"\n]{1,100})"`)

// readSWUpdate reads the version from sw-description, the first file, and a Jetson capsule's GUID.
func readSWUpdate(b *Bundle) error {
	entries, err := readEntries(b.file, b.SizeBytes)
	if err != nil {
		return err
	}
	if len(entries) == 0 || entries[0].name != "sw-description" {
		return errors.New("its first file is not sw-description, so it is no update of SWUpdate's")
	}
	text, err := b.readEntry(entries[0])
	if err != nil {
		return err
	}
	if m := versionPattern().FindSubmatch(text); m != nil {
		b.Version = plaintext.OneLine(string(m[1]))
	}
	for _, e := range entries[1:] {
		if e.name == capsuleName {
			if err := b.readCapsule(e); err != nil {
				return err
			}
		}
	}
	return nil
}

// readCapsule sets b.capsule to the GUID of the firmware that the capsule e updates.
func (b *Bundle) readCapsule(e cpioEntry) error {
	head := make([]byte, min(e.size, 4096))
	if _, err := b.file.ReadAt(head, e.offset); err != nil && err != io.EOF {
		return err
	}
	var err error
	b.capsule, err = parseCapsule(head)
	return err
}

// readEntry reads the content of a file in the update. It refuses more than maxDescription bytes.
func (b *Bundle) readEntry(e cpioEntry) ([]byte, error) {
	if e.size > maxDescription {
		return nil, fmt.Errorf("its %s has %d bytes, which is more than any has", e.name, e.size)
	}
	data := make([]byte, e.size)
	_, err := b.file.ReadAt(data, e.offset)
	if err == io.EOF {
		err = nil
	}
	return data, err
}
