package bfb

import (
	"fmt"
	"strconv"
	"strings"
)

// kind is one kind of image that a boot stream can hold.
type kind struct {
	name  string
	about string
	id    uint8
}

// kinds are all kinds of images, in the order in which a stream has them, so that the boot ROM and
// the firmware find each image when they need it.
var kinds = []kind{
	{"psc-bl", "PSC bootloader image", 36},
	{"psc-fw", "PSC framework image", 37},
	{"bl2r-cert", "RIoT Core (BL2R) content certificate", 31},
	{"bl2r", "RIoT Core (BL2R) bin", 30},
	{"bl2r-auth-cert", "BL2R AUTHCERT DER-encoded certificate", 42},
	{"bl2-cert", "Trusted Boot Firmware BL2 certificate", 6},
	{"bl2", "Trusted Boot Firmware BL2 bin", 1},
	{"sys", "Running system's part number or PSID", 29},
	{"bl2-auth-cert", "BL2 AUTHCERT DER-encoded certificate", 43},
	{"ddr-cert", "DDR Images Content Certificate", 38},
	{"ddr_ini", "File From Which Will Load DDR (pseudo spd) Parameters", 32},
	{"snps_images", "Combined SNPS Images for all DIMM types", 33},
	{"ddr5_snps_images", "DDR5 Combined SNPS Images for all DIMM types", 40},
	{"ddr_ate_imem", "Analog Test Engine INSTRUCTIONS", 34},
	{"ddr_ate_dmem", "Analog Test Engine DATA", 35},
	{"bl30-key-cert", "SCP Firmware BL3-0 key certificate", 8},
	{"bl30-cert", "SCP Firmware BL3-0 certificate", 12},
	{"bl30", "SCP Firmware BL3-0", 2},
	{"psc-app", "PSC application image", 39},
	{"psc-certs", "PSC attestation certificates", 53},
	{"trusted-key-cert", "Trusted key certificate", 7},
	{"bl31-key-cert", "EL3 Runtime Firmware BL3-1 key certificate", 9},
	{"bl31-cert", "EL3 Runtime Firmware BL3-1 content certificate", 13},
	{"bl31", "EL3 Runtime Firmware BL3-1 bin", 3},
	{"bl32-key-cert", "Secure Payload BL3-2 (Trusted OS) key certificate", 10},
	{"bl32-cert", "Secure Payload BL3-2 (Trusted OS) content certificate", 14},
	{"bl32", "Secure Payload BL3-2 (Trusted OS) bin", 4},
	{"bl33-key-cert", "Non-Trusted Firmware BL3-3 key certificate", 11},
	{"bl33-cert", "Non-Trusted Firmware BL3-3 content certificate", 15},
	{"bl33", "Non-Trusted Firmware BL3-3 bin", 5},
	{"capsule", "UEFI capsule image", 52},
	{"boot-acpi", "Name of the ACPI table", 55},
	{"boot-dtb", "Name of the dtb file", 56},
	{"boot-desc", "Default boot menu item description", 57},
	{"boot-path", "Boot image path", 58},
	{"boot-args", "Arguments for boot image", 59},
	{"boot-timeout", "Boot menu timeout", 60},
	{"uefi-tests", "Specify what UEFI tests to run", 61},
	{"nicfw", "NIC Firmware image", 41},
	{"ramdisk", "RAM Disk image", 54},
	{"dpu-gi", "DPU golden image", 49},
	{"cfg-gi", "Config golden image", 48},
	{"info", "BFB versioning information", 50},
	{"image", "Boot image", 62},
	{"initramfs", "In-memory filesystem", 63},
	{"upgrade-image", "Runtime upgrade image", 51},
}

// BootLoader is the ID of bl2, which every stream for a card's flash begins with.
const BootLoader = 1

// maxVersion is the highest hardware version of an image.
const maxVersion = 2

// findKind returns the kind with that ID, or a made-up kind and false if none has it.
func findKind(id uint8) (kind, bool) {
	for _, k := range kinds {
		if k.id == id {
			return k, true
		}
	}
	return kind{fmt.Sprintf("image_id_%d", id), fmt.Sprintf("Unknown image type, ID %d", id), id}, false
}

// parseName parses "bl2" or "bl2-v1" into kind and version, 0 without -v. A name may contain "-v".
func parseName(name string) (kind, int, error) {
	base, version := name, 0
	if i := strings.LastIndex(name, "-v"); i >= 0 {
		if n, err := strconv.ParseUint(name[i+2:], 10, 8); err == nil {
			base, version = name[:i], int(n)
		}
	}
	var names []string
	for _, k := range kinds {
		if k.name != base {
			names = append(names, k.name)
			continue
		}
		if version > maxVersion {
			return k, 0, fmt.Errorf("%q: the versions of an image are 0 to %d", name, maxVersion)
		}
		return k, version, nil
	}
	return kind{}, 0, fmt.Errorf("no image is called %q; the names are: %s", name, strings.Join(names, " "))
}
