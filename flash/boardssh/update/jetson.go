package update

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"slipway/flash/boardssh"
	"slipway/layers/plaintext"
)

// jetson is the state of a Jetson's boot slots, from nvbootctrl and the UEFI variables. It was not
// tried on a Jetson. The formats are from NVIDIA's pages of L4T R35 and R36, and published outputs.
type jetson struct {
	version string // of the firmware
	current int    // slot that runs
	active  int    // slot that runs next
	slots   []jetsonSlot
	capsule bool // a capsule waits for the next boot
	classes []firmwareClass
}

type jetsonSlot struct{ bad bool }

// firmwareClass is an entry of the UEFI ESRT: firmware that capsules can update.
type firmwareClass struct{ guid, version, last string }

// jetsonStateScript prints the state in sections, on other boards notJetson. It changes nothing.
const jetsonStateScript = `command -v nvbootctrl >/dev/null || { echo "== none"; exit 0; }
echo "== slots"
nvbootctrl dump-slots-info
echo "== classes"
for d in /sys/firmware/efi/esrt/entries/*; do
	[ -d "$d" ] && echo "$(cat "$d/fw_class") $(cat "$d/fw_version") $(cat "$d/last_attempt_status")"
done
echo "== variables"
for v in OsIndications-8be4df61-93ca-11d2-aa0d-00e098032b8c \
	RootfsStatusSlotA-781e084c-a330-417c-b678-38e696380cb9 \
	RootfsStatusSlotB-781e084c-a330-417c-b678-38e696380cb9 \
	BootChainFwNext-781e084c-a330-417c-b678-38e696380cb9; do
	f=/sys/firmware/efi/efivars/$v
	[ -e "$f" ] && echo "${v%%-*} $(od -An -v -tu1 -j4 "$f")"
done
true`

const notJetson = "== none\n"

// readJetson runs jetsonStateScript on the board. It returns nil if the board is no Jetson.
func readJetson(ctx context.Context, c *boardssh.Conn) (*jetson, error) {
	r, err := c.Ask(ctx, "sh", "-c", jetsonStateScript)
	if err != nil {
		return nil, err
	}
	if string(r.Stdout) == notJetson {
		return nil, nil
	}
	j, err := parseJetson(string(r.Stdout))
	if err != nil {
		return nil, boardssh.BoardError("ask the firmware of "+c.Address().Host+" for its slots", fmt.Errorf("%w %s", err, lastLines(r.Stderr)))
	}
	return j, nil
}

var slotPattern = plaintext.Regexp(`^slot: (\d),.*\bstatus: (\w+)`)

// parseJetson parses the output of jetsonStateScript, which must name the running slot.
func parseJetson(text string) (*jetson, error) {
	j := &jetson{current: -1, active: -1}
	section := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "== "); ok {
			section = name
			continue
		}
		switch section {
		case "slots":
			j.readSlots(line)
		case "classes":
			if words := strings.Fields(line); len(words) == 3 && guidPattern().MatchString(words[0]) && len(j.classes) < maxSlots {
				j.classes = append(j.classes, firmwareClass{words[0], truncateText(plaintext.OneLine(words[1]), 40), truncateText(plaintext.OneLine(words[2]), 40)})
			}
		case "variables":
			j.readVariable(strings.Fields(line))
		}
	}
	if j.current < 0 || len(j.slots) == 0 {
		return nil, fmt.Errorf("nvbootctrl does not name the slot that runs (nvbootctrl dump-slots-info)")
	}
	if j.active < 0 {
		j.active = j.current
	}
	return j, nil
}

var guidPattern = plaintext.Regexp(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// readSlots reads one line of nvbootctrl dump-slots-info into j. It ignores unknown lines.
func (j *jetson) readSlots(line string) {
	key, value, _ := strings.Cut(line, ": ")
	slot := slices.Index([]string{"A", "B"}, strings.TrimSpace(value))
	switch key {
	case "Current version":
		j.version = truncateText(plaintext.OneLine(value), 40)
	case "Current bootloader slot":
		j.current = slot
	case "Active bootloader slot":
		j.active = slot
	}
	m := slotPattern().FindStringSubmatch(line)
	if m != nil && m[1] == strconv.Itoa(len(j.slots)) && len(j.slots) < 2 {
		j.slots = append(j.slots, jetsonSlot{bad: m[2] != "normal"})
	}
}

// readVariable reads one UEFI variable into j: its name, then its bytes as decimal numbers. Only
// the first byte counts. It ignores other variables.
func (j *jetson) readVariable(words []string) {
	if len(words) < 2 {
		return
	}
	first, err := strconv.ParseUint(words[1], 10, 8)
	if err != nil {
		return
	}
	switch words[0] {
	case "OsIndications":
		j.capsule = first&4 != 0
	case "BootChainFwNext":
		if first < 2 {
			j.active = int(first)
		}
	case "RootfsStatusSlotA", "RootfsStatusSlotB":
		slot := int(words[0][len("RootfsStatusSlot")] - 'A')
		// 0xff: the slot failed too often, and does not boot until the variable is reset.
		if first == 0xff && slot < len(j.slots) {
			j.slots[slot].bad = true
		}
	}
}

// toStatus returns slots A and B. Primary boots next: the other slot if a capsule waits.
func (j *jetson) toStatus() Status {
	var s Status
	for i, slot := range j.slots {
		name := string(rune('A' + i))
		state := Good
		if slot.bad {
			state = Bad
		}
		s.Slots = append(s.Slots, Slot{
			Name: name, Boot: name, Device: []string{"/dev/disk/by-partlabel/APP", "/dev/disk/by-partlabel/APP_b"}[i],
			State: state, Booted: i == j.current,
		})
	}
	// A capsule is for the slot that does not run. The firmware boots that slot afterwards.
	next := j.active
	if j.capsule && len(j.slots) > 1 {
		next = 1 - j.current
	}
	s.Primary = string(rune('A' + next))
	return s
}

// checkFirmware checks, on a Jetson, that the firmware knows the bundle's capsule. Engines do not
// check that, and the firmware silently ignores an unknown capsule.
func (p preflight) checkFirmware() Finding {
	j, err := readJetson(p.ctx, p.c)
	switch {
	case err != nil:
		return refusedFinding("ask it by hand: nvbootctrl dump-slots-info", "%v", err)
	case j == nil:
		return notApplicableFinding("no Jetson")
	}
	return j.checkCapsule(p.bundle.capsule)
}

// checkCapsule refuses a capsule whose GUID is not in the board's list of firmware, unless that
// list is empty. It accepts an update without a capsule.
func (j *jetson) checkCapsule(capsule string) Finding {
	seen := fmt.Sprintf("firmware %s, slot %c runs", cmp.Or(j.version, "of no known version"), 'A'+j.current)
	if capsule == "" {
		return checkedFinding("%s; the update brings no firmware", seen)
	}
	known := slices.IndexFunc(j.classes, func(f firmwareClass) bool { return f.guid == capsule })
	switch {
	case len(j.classes) > 0 && known < 0:
		return refusedFinding("build the update for this module: the firmware silently ignores a capsule that it does not know",
			"%s; the capsule is for firmware %s, and the board's is %s", seen, capsule, j.classes[0].guid)
	case known >= 0 && j.classes[known].last != "0":
		return checkedFinding("%s; its last capsule ended with status %s; the new one fits", seen, j.classes[known].last)
	}
	return checkedFinding("%s; the capsule fits", seen)
}

// firmwareManagement is the GUID at the beginning of a capsule of firmware.
const firmwareManagement = "6dcbd5ed-e82d-4c44-bda1-7194199ad92a"

// capsuleName is the capsule's file name in an update.
const capsuleName = "tegra-bl.cap"

// parseCapsule returns the GUID of the firmware that a UEFI capsule updates, which its first item
// names (UEFI 2.10, 8.5.3 and 23.3). head is the beginning of the capsule.
func parseCapsule(head []byte) (string, error) {
	if len(head) < 28 || formatGUID(head) != firmwareManagement {
		return "", fmt.Errorf("%s is no capsule of firmware", capsuleName)
	}
	// After the header come a version, two counts and the items' offsets from the version.
	at := uint64(binary.LittleEndian.Uint32(head[16:]))
	if at > uint64(len(head)) || uint64(len(head))-at < 16 {
		return "", fmt.Errorf("%s is damaged: its header has %d bytes", capsuleName, at)
	}
	items := head[at:]
	drivers, payloads := binary.LittleEndian.Uint16(items[4:]), binary.LittleEndian.Uint16(items[6:])
	if drivers != 0 || payloads == 0 {
		return "", fmt.Errorf("%s has %d drivers and %d items of firmware; want only firmware", capsuleName, drivers, payloads)
	}
	item := binary.LittleEndian.Uint64(items[8:])
	if item > uint64(len(items)) || uint64(len(items))-item < 20 {
		return "", fmt.Errorf("%s is damaged: its first item lies at %d", capsuleName, item)
	}
	return formatGUID(items[item+4:]), nil
}

// formatGUID formats the first 16 bytes. The first three numbers are little endian.
func formatGUID(b []byte) string {
	return fmt.Sprintf("%08x-%04x-%04x-%x-%x", binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint16(b[4:]), binary.LittleEndian.Uint16(b[6:]), b[8:10], b[10:16])
}
