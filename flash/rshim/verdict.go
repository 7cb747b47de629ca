package rshim

import (
	"fmt"
	"strings"

	"slipway/layers/plaintext"
)

// Outcome is the final state that a DPU reports for a stream.
type Outcome string

// The outcomes of a push that went well.
const (
	Ready     Outcome = "ready"     // the installed system is ready
	Up        Outcome = "up"        // its Linux runs
	Rebooting Outcome = "rebooting" // it is installed, and the DPU restarts into it
	NICMode   Outcome = "nic mode"  // the DPU serves its host as a network card
)

// The NIC's firmware, if the stream brings one.
const (
	firmwareBegun  = "begun"
	firmwareDone   = "updated"
	firmwareFailed = "failed"
)

// Verdict is the result of a push.
type Verdict struct {
	Outcome     Outcome  `json:"outcome"`
	Line        string   `json:"line"`                  // the message that says so
	NICFirmware string   `json:"nicFirmware,omitempty"` // updated; "" if the stream brings none
	PowerCycle  bool     `json:"powerCycle,omitempty"`  // the NIC's firmware needs a power cycle of the host
	Errors      []string `json:"errors,omitempty"`      // messages of level ERR that did not stop it
}

var (
	// The final messages of installers and installed systems, for which bfb-install waits too.
	finalMessages = []struct {
		words   string // in lower case
		outcome Outcome
	}{
		{"dpu is ready", Ready},
		{"linux up", Up},
		{"in enhanced nic mode", NICMode},
		{"rebooting...", Rebooting},
	}
	crashed = plaintext.Regexp(`^(PANIC|Exception)\([A-Z0-9]+\):|^ASSERT\[`)
	stage   = plaintext.Regexp(`[\[(](PSC|BL1|BL2|BL2R|BL31|UEFI)[\])]`)

	firmware     = plaintext.Regexp(`(?i)(updating NIC (firmware|FW)|NIC (firmware|FW) (update|upgrade))`)
	firmwareOver = plaintext.Regexp(`(?i)\b(done|completed?|finished|success\w*|skipped|up[- ]to[- ]date)\b`)
	firmwareBad  = plaintext.Regexp(`(?i)\b(fail\w*|error)\b`)
	powerCycle   = plaintext.Regexp(`(?i)power[- ]cycle is required`)
)

// addLine updates the verdict with a message, and adds up to 100 of level ERR to v.Errors. It
// returns true for the final message, with an error if the DPU or its NIC's firmware failed.
func (v *Verdict) addLine(line string) (bool, error) {
	v.followFirmware(line)
	v.PowerCycle = v.PowerCycle || powerCycle().MatchString(line)
	switch {
	case strings.Contains(strings.ToLower(line), "critical error"):
		return true, fmt.Errorf("the DPU says %q: the installer in the stream gave up", line)
	case crashed().MatchString(line):
		return true, fmt.Errorf("the DPU's boot crashed: %q; is the stream one for this DPU and, with secure boot, signed for it?", line)
	case strings.HasPrefix(line, "ERR[") && len(v.Errors) < 100:
		v.Errors = append(v.Errors, line)
	}
	for _, f := range finalMessages {
		if strings.Contains(strings.ToLower(line), f.words) {
			v.Outcome, v.Line = f.outcome, line
			return true, v.firmwareVerdict()
		}
	}
	return false, nil
}

// followFirmware sets NICFirmware from a message about the NIC's firmware.
func (v *Verdict) followFirmware(line string) {
	switch {
	case !firmware().MatchString(line):
	case firmwareBad().MatchString(line):
		v.NICFirmware = firmwareFailed
	case firmwareOver().MatchString(line):
		v.NICFirmware = firmwareDone
	default:
		v.NICFirmware = firmwareBegun
	}
}

// firmwareVerdict returns an error if the NIC's firmware failed, or its update did not end.
func (v *Verdict) firmwareVerdict() error {
	switch v.NICFirmware {
	case firmwareFailed:
		return fmt.Errorf("the system was installed (%q), but not the NIC's firmware%s; update that on the DPU: mlxfwmanager", v.Line, joinLines(v.Errors))
	case firmwareBegun:
		return fmt.Errorf("the DPU says %q, but never said that the NIC's firmware, which it had begun to write, is done; look at it on the DPU: mlxfwmanager --query", v.Line)
	}
	return nil
}

// joinLines returns the lines between "; ", in brackets, after a space; "" for none.
func joinLines(lines []string) string {
	if len(lines) == 0 {
		return ""
	}
	return " (" + strings.Join(lines, "; ") + ")"
}
