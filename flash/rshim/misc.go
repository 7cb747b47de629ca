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

// maxMiscBytes is more than the driver has room for in the misc file.
const maxMiscBytes = 64 << 10

// Misc is what an rshim's misc file says of a DPU.
type Misc struct {
	Name       string  `json:"name"` // how the driver reaches it: pcie-0000:03:00.2, usb-1.0
	Info       string  `json:"info"` // BlueField-2(Rev 1)
	Part       string  `json:"part,omitempty"`
	Mode       string  `json:"mode,omitempty"` // DPU mode, NIC mode; of a BlueField-3 and later
	BootMode   string  `json:"bootMode"`
	TimeoutSec int     `json:"timeoutSec"` // how long the driver waits for the DPU to take data
	Dropped    bool    `json:"dropped"`    // the driver has let go of it
	Locked     bool    `json:"locked"`     // it takes nothing from this host
	Fields     []Field `json:"fields"`     // all that it says, in its order

	level string   // what was shown when it was read
	log   []string // the DPU's messages, where they are shown
}

// Field is one setting in the misc file.
type Field struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// parseMisc reads lines of a key and a value, and behind a title the DPU's messages.
func parseMisc(text []byte) (Misc, error) {
	var m Misc
	if len(text) > maxMiscBytes {
		return m, fmt.Errorf("%d bytes, which is no misc file of an rshim", len(text))
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, maxMiscBytes+1)
	inLog := false
	for lines.Scan() {
		line := plaintext.OneLine(strings.ToValidUTF8(lines.Text(), "?"))
		switch {
		case strings.HasPrefix(line, "----"):
			inLog = true
		case inLog || message(line):
			inLog = true
			if t := strings.TrimSpace(line); t != "" && t != "Log Messages" {
				m.log = append(m.log, t)
			}
		default:
			m.field(line)
		}
	}
	if m.value("DEV_NAME") == "" {
		return m, errors.New("it does not name the device; this is no misc file of an rshim")
	}
	return m, lines.Err()
}

// message tells a message of the DPU: " INFO[BL2]: start". The driver indents them.
func message(line string) bool {
	return strings.HasPrefix(line, " ") && strings.TrimSpace(line) != ""
}

func (m *Misc) field(line string) {
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
		m.TimeoutSec, _ = strconv.Atoi(first) // one that is no number is left to the driver
	case "DROP_MODE":
		m.Dropped = first != "0"
	case "SECURE_NIC_MODE":
		m.Locked = first != "0"
	case "DISPLAY_LEVEL":
		m.level = first
	}
}

// bootTimeout is how long the driver waits until the DPU takes data. Its releases differ,
// and a file from outside may say anything.
func (m Misc) bootTimeout() time.Duration {
	const usual, most = 300, 3600
	if m.TimeoutSec <= 0 || m.TimeoutSec > most {
		return usual * time.Second
	}
	return time.Duration(m.TimeoutSec) * time.Second
}

func (m Misc) value(key string) string {
	for _, f := range m.Fields {
		if f.Key == key {
			return f.Value
		}
	}
	return ""
}

// refusal says why no stream can be pushed to the DPU now.
func (m Misc) refusal(p *Port) error {
	switch {
	case m.Dropped:
		return fmt.Errorf("the driver has let go of it (DROP_MODE), as another host or its BMC may use it; if none does: echo 'DROP_MODE 0' > %s", p.path("misc"))
	case m.Locked:
		return errors.New("it is locked (SECURE_NIC_MODE), so it takes nothing from this host; push from its BMC, or let mlxprivhost on the DPU lift the lock")
	case m.Mode == "NIC mode":
		// The host's mlx5 driver would lose its device under it, and a register has to tell
		// the DPU's boot of the mode. Neither could be tried here.
		return errors.New("it is in NIC mode, in which the host's driver has to let go of it first; bfb-install does that, or put it into DPU mode (mlxconfig: INTERNAL_CPU_OFFLOAD_ENGINE=0, then switch the host off and on)")
	}
	return nil
}

// same refuses another DPU than the one that was there before: the driver numbers them as
// they come, and one may have come or gone since somebody was asked.
func (m Misc) same(before *Misc) error {
	if before == nil || m.Name == before.Name && m.Info == before.Info && m.Part == before.Part {
		return nil
	}
	return fmt.Errorf("it was %s, and is %s now; nothing was done, begin anew", before.label(), m.label())
}

func (m Misc) label() string { return strings.TrimSpace(m.Info+" "+m.Part) + " at " + m.Name }
