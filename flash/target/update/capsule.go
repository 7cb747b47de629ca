package update

import (
	"encoding/binary"
	"fmt"
)

// capsule is a UEFI capsule: firmware in an update for a Jetson (UEFI 2.10, 8.5.3 and 23.3).
type capsule struct {
	guid      string // the class of firmware that it is for
	sizeBytes int64
}

// firmwareManagement is the GUID at the beginning of a capsule of firmware.
const firmwareManagement = "6dcbd5ed-e82d-4c44-bda1-7194199ad92a"

// capsuleName is the capsule's file name in an update.
const capsuleName = "tegra-bl.cap"

// parseCapsule reads the GUID of the first item of a capsule. head is the beginning of the
// capsule.
func parseCapsule(head []byte, sizeBytes int64) (*capsule, error) {
	if len(head) < 28 || formatGUID(head) != firmwareManagement {
		return nil, fmt.Errorf("%s is no capsule of firmware", capsuleName)
	}
	// After the header come a version, two counts and the items' offsets from the version.
	at := uint64(binary.LittleEndian.Uint32(head[16:]))
	if at > uint64(len(head)) || uint64(len(head))-at < 16 {
		return nil, fmt.Errorf("%s is damaged: its header has %d bytes", capsuleName, at)
	}
	items := head[at:]
	drivers, payloads := binary.LittleEndian.Uint16(items[4:]), binary.LittleEndian.Uint16(items[6:])
	if drivers != 0 || payloads == 0 {
		return nil, fmt.Errorf("%s has %d drivers and %d items of firmware; want only firmware", capsuleName, drivers, payloads)
	}
	item := binary.LittleEndian.Uint64(items[8:])
	if item > uint64(len(items)) || uint64(len(items))-item < 20 {
		return nil, fmt.Errorf("%s is damaged: its first item lies at %d", capsuleName, item)
	}
	return &capsule{formatGUID(items[item+4:]), sizeBytes}, nil
}

// formatGUID formats the first 16 bytes. The first three numbers are little endian.
func formatGUID(b []byte) string {
	return fmt.Sprintf("%08x-%04x-%04x-%x-%x", binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint16(b[4:]), binary.LittleEndian.Uint16(b[6:]), b[8:10], b[10:16])
}
