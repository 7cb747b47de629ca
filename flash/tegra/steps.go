package tegra

import (
	"regexp"
	"slices"
	"strings"
	"time"

	"slipway/layers/lazy"
	"slipway/layers/plaintext"
)

// stage is a part of a flow that its script's output tells of.
type stage struct {
	name   string
	title  string
	begins func() *regexp.Regexp // nil: with the script
	late   bool                  // only after the stage before it: the line comes earlier too
	limit  time.Duration
	hangs  string // what it is where nothing ends the stage, and what to do
}

// flow is one order of stages.
type flow struct {
	name   string
	stages []stage
	done   string // what the script's own last word begins with; "" where it has none
}

const (
	recoverAgain = "take the power away, bring the board into recovery mode again and start anew: the boot ROM talks once"
	otherPort    = "use a USB 2 port of the computer itself, without a hub, and another cable"
	seeSerial    = "its serial console says why"
)

func banner(message string) func() *regexp.Regexp {
	return lazy.Regexp(`^== Step [0-9]{1,3}: (` + message + `) `)
}

// flows are those of meta-tegra's scripts, kirkstone-l4t-r32.7.x to wrynose. The
// limits are several times what people report: a limit is for what never ends.
var flows = map[string]flow{
	Initrd: {Initrd, []stage{
		{name: "recovery", title: "finding the board", limit: 5 * time.Minute, hangs: "the board left recovery mode or never was in it; " + recoverAgain},
		{name: "sign", title: "signing", begins: banner("Signing binaries|Preparing binaries"), limit: 15 * time.Minute, hangs: "the board does not answer; " + recoverAgain},
		{name: "boot", title: "booting the board over USB", begins: banner("Boot Jetson via RCM"), limit: 5 * time.Minute, hangs: "the board did not come back into recovery mode after its data were read; " + recoverAgain + "; " + otherPort},
		{name: "commands", title: "sending what to do", begins: banner("Sending flash sequence commands"), limit: 5 * time.Minute, hangs: "the board booted and does not show up as a USB disk: its kernel has no USB device controller (then it panics), the serial number it shows is another, or the cable is in a port that is host only; " + seeSerial},
		{name: "write", title: "writing partitions", begins: banner("Writing partitions on (?:external|internal) storage device"), limit: 60 * time.Minute, hangs: "the storage did not appear or the writing stands still: the board has no such drive or card, or a hub or power saving cut it off; " + otherPort},
		{name: "status", title: "waiting for the board's verdict", begins: banner("Waiting for final status from device"), limit: 20 * time.Minute, hangs: "the board is still programming its boot flash, or died in it; " + seeSerial},
	}, "Successfully finished at "},
	Unified: {Unified, []stage{
		{name: "recovery", title: "finding the board", limit: 10 * time.Minute, hangs: "the board left recovery mode or never was in it; " + recoverAgain},
		{name: "sign", title: "preparing the boot flash", begins: banner("Preparing contents for QSPI boot flash"), limit: 15 * time.Minute},
		{name: "storage", title: "preparing the storage", begins: banner("Preparing contents for external storage"), limit: 15 * time.Minute},
		{name: "boot", title: "preparing the boot over USB", begins: banner("Preparing for RCM boot"), limit: 15 * time.Minute},
		{name: "workspace", title: "laying out NVIDIA's tools", begins: banner("Setting up unified flash workspace"), limit: 20 * time.Minute},
		{name: "write", title: "NVIDIA's tool writes", begins: banner("Running unified flash"), limit: 60 * time.Minute, hangs: "NVIDIA's tool waits for the board; " + recoverAgain + "; " + otherPort},
	}, "Finished at "},
	Direct: {Direct, []stage{
		{name: "recovery", title: "reading the board's data", limit: 5 * time.Minute, hangs: "the board does not answer; " + recoverAgain},
		{name: "sign", title: "signing", begins: lazy.Regexp(`^Board ID\(`), limit: 30 * time.Minute},
		{name: "send", title: "sending the boot loader", begins: lazy.Regexp(`Sending bootloader and pre-requisite binaries|Sending bct_br|Boot Rom communication`), late: true, limit: 10 * time.Minute, hangs: "the board does not take it; " + recoverAgain + "; " + otherPort},
		{name: "write", title: "writing partitions", begins: lazy.Regexp(`Writing partition \S+ with `), limit: 60 * time.Minute, hangs: "the writing stands still; " + otherPort},
	}, ""},
	card: {card, []stage{
		{name: "sign", title: "signing", limit: 15 * time.Minute},
		{name: "partition", title: "making partitions", begins: lazy.Regexp(`^Creating partitions`), limit: 5 * time.Minute},
		{name: "write", title: "writing partitions", begins: lazy.Regexp(`^Writing partitions`), limit: 60 * time.Minute},
	}, "[OK: "},
}

// card makes a file that a card or drive is written from; no board takes part.
const card = "make-sdcard"

// StageNames are the names by which board.yml may set other limits.
func StageNames() []string {
	var names []string
	for _, f := range flows {
		for _, s := range f.stages {
			names = append(names, s.name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// transcript is what a script's output says, line by line. The output is NVIDIA's,
// the package's and partly the board's: nothing in it is taken for more than a report.
type transcript struct {
	flow    flow
	at      int
	detail  string
	done    bool
	status  string // the board's, "" as long as it has said nothing
	escaped string // a command of the script that failed without the script minding
	known   int    // the failure that was recognised, an index into failures, or -1
}

func newTranscript(f flow) *transcript { return &transcript{flow: f, known: -1} }

var (
	finalStatus = lazy.Regexp(`^Final status:\s*(.*)$`)
	writes      = lazy.Regexp(`Writing (?:partition )?([^\s(]+)`)
	trapped     = lazy.Regexp(`^slipway: (status [0-9]{1,3}: .*)$`)
)

// line takes the next line, and says whether another stage began.
func (t *transcript) line(text string) bool {
	text = plaintext.OneLine(text)
	if i := recognise(text); i >= 0 && (t.known < 0 || i < t.known) {
		t.known = i
	}
	if m := finalStatus().FindStringSubmatch(text); m != nil {
		t.status = strings.TrimSpace(m[1])
		if t.status == "" {
			t.status = "(nothing)"
		}
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
	return t.advance(text)
}

// advance moves on where a later stage begins. No line leads back.
func (t *transcript) advance(text string) bool {
	for i := len(t.flow.stages) - 1; i > t.at; i-- {
		s := t.flow.stages[i]
		if s.begins != nil && s.begins().MatchString(text) && (!s.late || t.at >= i-1) {
			t.at, t.detail = i, ""
			return true
		}
	}
	return false
}

func (t *transcript) stage() stage { return t.flow.stages[t.at] }

// says is the stage in words, for a bar.
func (t *transcript) says() string {
	if t.detail == "" {
		return t.stage().title
	}
	return t.stage().title + ": " + t.detail
}

// verdict is what came of it by what was said, where the script itself had no
// complaint: initrd-flash ends well when the board reports that it failed, and the
// unified flash whatever happens.
func (t *transcript) verdict() string {
	last := t.at == len(t.flow.stages)-1
	switch {
	case t.flow.name != Initrd && t.escaped != "": // there the board's word counts
		return "a command of the script failed, and the script went on: " + t.escaped
	case t.flow.name == Initrd && t.status == "":
		return "the board did not say what came of it"
	case t.flow.name == Initrd && t.status != "SUCCESS":
		return "the board reports: " + t.status
	case t.flow.done != "" && !t.done:
		return "the script ended without saying that it is done"
	case !last:
		return "the script ended while " + t.stage().title + ", before anything else was said"
	}
	return ""
}
