package rshim

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"

	"slipway/layers/plaintext"
)

// maxMiscBytes is the size limit for the driver's misc file.
const maxMiscBytes = 64 << 10

// Misc is the content of an rshim's misc file.
type Misc struct {
	Name       string  `json:"name"` // how the driver reaches it: pcie-0000:03:00.2, usb-1.0
	Info       string  `json:"info"` // BlueField-2(Rev 1)
	Part       string  `json:"part,omitempty"`
	Mode       string  `json:"mode,omitempty"` // DPU mode, NIC mode; of a BlueField-3 and later
	BootMode   string  `json:"bootMode"`
	TimeoutSec int     `json:"timeoutSec"` // how long the driver waits for the DPU to take data
	Dropped    bool    `json:"dropped"`    // the driver has released the DPU
	Locked     bool    `json:"locked"`     // it accepts nothing from this host
	Fields     []Field `json:"fields"`     // all fields, in the file's order

	level string   // DISPLAY_LEVEL at the time of reading
	clear string   // CLEAR_ON_READ; "": not shown, as below DISPLAY_LEVEL 1
	log   []string // the DPU's messages, if shown
}

// Field is one setting in the misc file.
type Field struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// parseMisc parses the misc file: lines of key and value, then messages. It must have DEV_NAME.
func parseMisc(text []byte) (Misc, error) {
	var m Misc
	if len(text) > maxMiscBytes {
		return m, fmt.Errorf("%d bytes, which is no misc file of an rshim", len(text))
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, maxMiscBytes+1)
	inLog := false
	for lines.Scan() {
		line := plaintext.OneLine(plaintext.WithoutEscapes(strings.ToValidUTF8(lines.Text(), "?")))
		switch {
		case strings.HasPrefix(line, "----"):
			inLog = true
		case inLog || isMessage(line):
			inLog = true
			if t := strings.TrimSpace(line); t != "" && t != "Log Messages" {
				m.log = append(m.log, t)
			}
		default:
			m.addField(line)
		}
	}
	if m.Name == "" {
		return m, errors.New("it does not name the device; this is no misc file of an rshim")
	}
	return m, lines.Err()
}

// isMessage reports whether a line is the DPU's, as " INFO[BL2]: start". The driver indents those.
func isMessage(line string) bool {
	return strings.HasPrefix(line, " ") && strings.TrimSpace(line) != ""
}

// addField adds a line of the misc file to m.Fields, and sets m's own field for a known key. It
// ignores a line that does not begin with a key in capitals.
func (m *Misc) addField(line string) {
	key, value, _ := strings.Cut(line, " ")
	if key == "" || strings.ContainsFunc(key, func(r rune) bool { return r != '_' && !unicode.IsUpper(r) && !unicode.IsDigit(r) }) {
		return
	}
	value = strings.TrimSpace(value)
	m.Fields = append(m.Fields, Field{key, value})
	first, _, _ := strings.Cut(value, " ")
	switch key {
	case "DEV_NAME":
		m.Name = value
	case "DEV_INFO":
		m.Info = value
	case "OPN_STR":
		if value != "N/A" {
			m.Part = value
		}
	case "BF_MODE":
		m.Mode = value
	case "BOOT_MODE":
		m.BootMode = value
	case "BOOT_TIMEOUT":
		m.TimeoutSec, _ = strconv.Atoi(first) // no number: the default applies
	case "DROP_MODE":
		m.Dropped = first != "0"
	case "SECURE_NIC_MODE":
		m.Locked = first != "0"
	case "DISPLAY_LEVEL":
		m.level = first
	case "CLEAR_ON_READ":
		m.clear = first
	}
}

// bootTimeout returns the driver's BOOT_TIMEOUT, or 300 s if that is missing or implausible.
func (m Misc) bootTimeout() time.Duration {
	const usual, most = 300, 3600
	if m.TimeoutSec <= 0 || m.TimeoutSec > most {
		return usual * time.Second
	}
	return time.Duration(m.TimeoutSec) * time.Second
}

// checkPushable returns an error if the DPU takes no stream: it is dropped, locked, or in NIC mode.
func (m Misc) checkPushable(p *Port) error {
	switch {
	case m.Dropped:
		return fmt.Errorf("the driver has let go of it (DROP_MODE), as another host or its BMC may use it; if none does: echo 'DROP_MODE 0' > %s", p.filePath("misc"))
	case m.Locked:
		return errors.New("it is locked (SECURE_NIC_MODE), so it takes nothing from this host; push from its BMC, or let mlxprivhost on the DPU lift the lock")
	case m.Mode == "NIC mode":
		// Untested: mlx5 would lose its device, and a register has to tell the DPU the boot mode.
		return errors.New("it is in NIC mode, in which the host's driver has to let go of it first; bfb-install does that, or put it into DPU mode (mlxconfig: INTERNAL_CPU_OFFLOAD_ENGINE=0, then switch the host off and on)")
	}
	return nil
}

// checkSameDPU returns an error unless before is nil or this DPU. The driver numbers DPUs as they
// appear, and one may have appeared or left since the user confirmed.
func (m Misc) checkSameDPU(before *Misc) error {
	if before == nil || m.Name == before.Name && m.Info == before.Info && m.Part == before.Part {
		return nil
	}
	return fmt.Errorf("it was %s, and is %s now; nothing was done; start again", before.describe(), m.describe())
}

func (m Misc) describe() string { return strings.TrimSpace(m.Info+" "+m.Part) + " at " + m.Name }
