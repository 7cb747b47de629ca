package tegra

import (
	"cmp"
	"regexp"
	"strings"
	"time"

	"slipway/layers/plaintext"
)

// stage is a step of a flow that is visible in the script's output.
type stage struct {
	name   string
	title  string
	begins func() *regexp.Regexp // nil: starts with the script
	late   bool                  // only after the stage before it, since the line appears earlier too
	limit  time.Duration
	hangs  string // cause and remedy if the stage does not end
}

// flow is the order of the stages of a package's script.
type flow struct {
	name   string
	stages []stage
	done   string // the beginning of the script's last line; "" if it has none
}

const (
	recoverAgain = "take the power away, bring the board into recovery mode again and start again: the boot ROM talks once"
	otherPort    = "use a USB 2 port of the computer itself, without a hub, and another cable"
	seeSerial    = "its serial console says why"
)

func bannerPattern(message string) func() *regexp.Regexp {
	return plaintext.Regexp(`^== Step [0-9]{1,3}: (` + message + `) `)
}

// flows are those of meta-tegra's scripts, kirkstone-l4t-r32.7.x to wrynose. The limits
// are several times the reported durations, so that only a hang exceeds them.
var flows = map[string]flow{
	Initrd: {Initrd, []stage{
		{name: "recovery", title: "finding the board", limit: 5 * time.Minute, hangs: "the board left recovery mode or never was in it; " + recoverAgain},
		{name: "sign", title: "signing", begins: bannerPattern("Signing binaries|Preparing binaries"), limit: 15 * time.Minute, hangs: "the board does not answer; " + recoverAgain},
		{name: "boot", title: "booting the board over USB", begins: bannerPattern("Boot Jetson via RCM"), limit: 5 * time.Minute, hangs: "the board did not come back into recovery mode after its data were read; " + recoverAgain + "; " + otherPort},
		{name: "commands", title: "sending what to do", begins: bannerPattern("Sending flash sequence commands"), limit: 5 * time.Minute, hangs: "the board booted and does not show up as a USB disk: its kernel has no USB device controller (then it panics), the serial number it shows is another, or the cable is in a port that is host only; " + seeSerial},
		{name: "write", title: "writing partitions", begins: bannerPattern("Writing partitions on (?:external|internal) storage device"), limit: 180 * time.Minute, hangs: "the storage did not appear or the writing stands still: the board has no such drive or card, or a hub or power saving cut it off; " + otherPort},
		{name: "status", title: "waiting for the board's verdict", begins: bannerPattern("Waiting for final status from device"), limit: 20 * time.Minute, hangs: "the board is still programming its boot flash, or died in it; " + seeSerial},
	}, "Successfully finished at "},
	Unified: {Unified, []stage{
		{name: "recovery", title: "finding the board", limit: 10 * time.Minute, hangs: "the board left recovery mode or never was in it; " + recoverAgain},
		{name: "sign", title: "preparing the boot flash", begins: bannerPattern("Preparing contents for QSPI boot flash"), limit: 15 * time.Minute},
		{name: "storage", title: "preparing the storage", begins: bannerPattern("Preparing contents for external storage"), limit: 15 * time.Minute},
		{name: "boot", title: "preparing the boot over USB", begins: bannerPattern("Preparing for RCM boot"), limit: 15 * time.Minute},
		{name: "workspace", title: "laying out NVIDIA's tools", begins: bannerPattern("Setting up unified flash workspace"), limit: 20 * time.Minute},
		{name: "write", title: "NVIDIA's tool writes", begins: bannerPattern("Running unified flash"), limit: 180 * time.Minute, hangs: "NVIDIA's tool waits for the board; " + recoverAgain + "; " + otherPort},
	}, "Finished at "},
	Direct: {Direct, []stage{
		{name: "recovery", title: "reading the board's data", limit: 5 * time.Minute, hangs: "the board does not answer; " + recoverAgain},
		{name: "sign", title: "signing", begins: plaintext.Regexp(`^Board ID\(`), limit: 30 * time.Minute},
		{name: "send", title: "sending the boot loader", begins: plaintext.Regexp(`Sending bootloader and pre-requisite binaries|Sending bct_br|Boot Rom communication`), late: true, limit: 10 * time.Minute, hangs: "the board does not take it; " + recoverAgain + "; " + otherPort},
		{name: "write", title: "writing partitions", begins: plaintext.Regexp(`Writing partition \S+ with `), limit: 180 * time.Minute, hangs: "the writing stands still; " + otherPort},
	}, ""},
	card: {card, []stage{
		{name: "sign", title: "signing", limit: 15 * time.Minute},
		{name: "partition", title: "making partitions", begins: plaintext.Regexp(`^Creating partitions`), limit: 5 * time.Minute},
		{name: "write", title: "writing partitions", begins: plaintext.Regexp(`^Writing partitions`), limit: 180 * time.Minute},
	}, "[OK: "},
}

// card is the flow that makes an image file for a card or drive. It needs no board.
const card = "make-sdcard"

// transcript is what a script's output, which is not trusted, has shown so far.
type transcript struct {
	flow    flow
	at      int
	detail  string
	done    bool
	status  string // the board's report, or ""
	escaped string // a failed command that the script ignored
	known   int    // the failure that was recognised, an index into failures, or -1
}

func newTranscript(f flow) *transcript { return &transcript{flow: f, known: -1} }

var (
	finalStatus = plaintext.Regexp(`^Final status:\s*(.*)$`)
	writes      = plaintext.Regexp(`Writing (?:partition )?([^\s(]+)`)
	trapped     = plaintext.Regexp(`^slipway: (status [0-9]{1,3}: .*)$`)
)

// readLine records what a line shows: a known failure, the board's status, a failed command, what
// is written, or the end. It reports whether another stage began.
func (t *transcript) readLine(text string) bool {
	text = plaintext.OneLine(text)
	if i := findFailure(text); i >= 0 && (t.known < 0 || i < t.known) {
		t.known = i
	}
	if m := finalStatus().FindStringSubmatch(text); m != nil {
		t.status = cmp.Or(strings.TrimSpace(m[1]), "(nothing)")
	}
	if m := trapped().FindStringSubmatch(text); m != nil && t.escaped == "" {
		t.escaped = m[1]
	}
	if m := writes().FindStringSubmatch(text); m != nil {
		t.detail = m[1]
	}
	if t.flow.done != "" && strings.HasPrefix(text, t.flow.done) {
		t.done = true
	}
	return t.enterStage(text)
}

// enterStage moves to a later stage if the line begins one, and reports whether it did.
func (t *transcript) enterStage(text string) bool {
	for i := len(t.flow.stages) - 1; i > t.at; i-- {
		s := t.flow.stages[i]
		if s.begins != nil && s.begins().MatchString(text) && (!s.late || t.at >= i-1) {
			t.at, t.detail = i, ""
			return true
		}
	}
	return false
}

func (t *transcript) current() stage { return t.flow.stages[t.at] }

// describe returns the stage in words, for a progress bar.
func (t *transcript) describe() string {
	if t.detail == "" {
		return t.current().title
	}
	return t.current().title + ": " + t.detail
}

// findFault returns a fault that the output shows although the script exited with 0; "" if there is
// none. initrd-flash exits with 0 when the board reports a failure, and the unified flash always.
func (t *transcript) findFault() string {
	last := t.at == len(t.flow.stages)-1
	switch {
	case t.flow.name != Initrd && t.escaped != "": // the initrd flow relies on the board's report
		return "a command of the script failed, and the script went on: " + t.escaped
	case t.flow.name == Initrd && t.status == "":
		return "the board did not say what came of it"
	case t.flow.name == Initrd && t.status != "SUCCESS":
		return "the board reports: " + t.status
	case t.flow.done != "" && !t.done:
		return "the script ended without saying that it is done"
	case !last:
		return "the script ended while " + t.current().title + ", before anything else was said"
	}
	return ""
}
