package tegra

import (
	"regexp"

	"slipway/layers/plaintext"
)

// failure is a known failure: a pattern of the output, its meaning, and what to do.
type failure struct {
	pattern func() *regexp.Regexp
	means   string
	next    string
}

func known(pattern, means, next string) failure {
	return failure{plaintext.Regexp(pattern), means, next}
}

// failures match the scripts' and NVIDIA's output. Causes come before messages that often follow
// from them: the first match counts. The meanings are from the scripts and reports to meta-tegra.
var failures = []failure{
	known(`chip does not identify as \S+ \((0x)?\)|actual chip ID \((0x)?\)|unrecognized chip ID: (0x)?\s*$`, "the board did not answer when it was asked for its chip: it is not in recovery mode, or was talked to before", recoverAgain+"; see that its recovery jumper or button makes contact"),
	known(`failed to get storage info`, "doflash.sh found no storage on the module: Orin Nano and Orin NX boot from an NVMe drive or a card, which only initrd-flash can write", "set TEGRAFLASH_INITRD_FLASH_IMAGE in the build, so that the package has initrd-flash, and build again"),
	known(`NV3P_SERVER: Failed to initialize partition table from GPT`, "the board's boot flash holds a partition table of an earlier flash, which doflash.sh cannot replace", "flash it once by a package with initrd-flash, which writes the boot flash from Linux (TEGRAFLASH_INITRD_FLASH_IMAGE in the build)"),
	known(`CHIPID \S+ does not match actual chip ID|chip does not identify as|unrecognized chip ID`, "the board has another chip than the image is for", "flash the board that the image was built for, or build for this one"),
	known(`actual board ID \S+ does not match expected`, "the module is another one than the image is for", "flash the module that the image was built for, or build for this one"),
	known(`unrecognized chip SKU`, "the package's release of L4T does not know this module; it is newer", "build with a newer branch of meta-tegra"),
	known(`configured for secure boot`, "the board is fused: it takes signed images only", "set TEGRA_SIGNING_ARGS in the build, so that the package is signed with the board's keys"),
	known(`non-production chip found`, "the module is an engineering sample", "NVIDIA's public tools do not flash it"),
	known(`'dtc' command not found|Could not find dtc|\bdtc: (command )?not found`, "the program dtc is missing", "apt install device-tree-compiler"),
	known(`'sgdisk' command not found|\bsgdisk: (command )?not found`, "the program sgdisk is missing", "apt install gdisk"),
	known(`No module named '?yaml`, "python3 has no yaml", "apt install python3-yaml"),
	known(`xmllint not found|\bxmllint: (command )?not found`, "the program xmllint is missing", "apt install libxml2-utils"),
	known(`\budisksctl: (command )?not found`, "the program udisksctl is missing", "apt install udisks2"),
	known(`\bcpp: (command )?not found`, "the C preprocessor is missing", "apt install cpp"),
	known(`\bpartprobe: (command )?not found`, "the program partprobe is missing", "apt install parted"),
	known(`UDisks2 was not provided|connecting to the udisks daemon|Could not connect: No such file`, "udisks does not run, by which the script mounts the board's disk", "systemctl start udisks2"),
	known(`NotAuthorized|Not authorized to perform operation`, "this user may not mount and release disks", "run this as root"),
	known(`sudo: (a terminal|a password|no password|no tty)`, "the script needs root and cannot ask for a password", "run this as root"),
	known(`No space left on device|Disk quota exceeded`, "the disk of the package's copy is full", "free space on the disk of build/ (three times the package's size), and in /tmp"),
	known(`got flashpkg when expecting`, "the board could not export its storage and gave up: the drive or card is missing, or dead", "see whether the NVMe drive or card is in the board; its export-*.log is among the logs"),
	known(`might be timeout in USB write`, "the board stopped taking data in the middle: it had been talked to since it came into recovery mode, the USB 3 port or a hub loses data, or power saving put it to sleep", "power off, recovery mode by the button again, then at once; use a USB 2 port of the computer itself and another cable; stop TLP"),
	known(`chip_info\.bin_bak missing|could not retrieve EEPROM|failed to retrieve chip and module info|could not retrieve board information|[Rr]eading board information failed|could not be extracted from chip info`, "the module's data could not be read", "bring the board into recovery mode by power and button again; where its EEPROM is empty, set flash.module in board.yml (BOARDID, FAB, ...)"),
	known(`printf: [^:]{0,64}: (invalid|expected a numeric)|printf: [^:]{0,64}: value not completely converted`, "the module's serial number is no number, which the script takes it for, so that it waits for a board that never comes", "see issue 1913 of meta-tegra; a module with such a serial number is flashed by doflash.sh or from a card"),
	known(`None of the bootloaders are running|Applet/MB2 is not running on device|USB communication failed|Cannot Open USB|Could not open USB|Error: Return value 8\b|could not retrieve chip ID|RCM boot failed`, "the board is not in the state of recovery that this step needs", recoverAgain+"; in a virtual machine, pass the whole USB port through, not one device"),
	known(`No UDC found|Kernel panic`, "the flashing system on the board came up without its USB device controller", "put the cable into the board's recovery port (not a host port); "+seeSerial),
	known(`ERR: unmount \S+ on device \S+ failed|target is busy|[Dd]evice or resource busy`, "another program has the board's disk, as a desktop that mounts whatever comes", "switch the desktop's automount off while flashing (gsettings set org.gnome.desktop.media-handling automount false)"),
	known(`could not mount USB (device|storage)`, "the board's disk could not be mounted", "see that udisks runs and no desktop mounts it first"),
	known(`partition \S+ start location \S+ overlaps|File \S+ is larger than|[Ii]nvalid partition size|exceeds partition size|does not fit (in|into) partition`, "the partition layout does not fit its files or the storage", "look at the sizes in flash.xml.in (ROOTFSPART_SIZE, TEGRA_EXTERNAL_DEVICE_SECTORS), fix them and build again"),
	known(`could not initialize GPT|partitioning failed|partprobe failed|could not locate block device|cannot locate block device`, "the board's storage did not take a partition table", "see that it is as large as the layout says, and that nothing else uses it; another cable"),
	known(`ERR: failed to write \S+ to|Input/output error`, "writing to the board's storage failed", otherPort+"; if it stays, the storage is worn out"),
	known(`error while loading shared libraries|cannot execute|Exec format error|required file not found`, "an NVIDIA program does not run on this machine: they are for 64-bit PCs with glibc", "flash from an x86-64 machine with Debian, Ubuntu or Fedora"),
	known(`No Jetson device in recovery mode found|Device not found at`, "the board is not in recovery mode", recoverAgain),
	known(`\.dtsi?:[0-9]+:[0-9]+: (fatal )?error: |Error: \S+\.dtsi?:[0-9]+\.[0-9]+|FATAL ERROR: Unable to parse input tree`, "a device tree of the board's boot configuration (pinmux, GPIO, pad voltage) does not compile", "compare the .dtsi that the log names with the one of this L4T release, correct it, and build again"),
	known(`: command not found`, "a program that the scripts need is missing", "install it; the line above names it"),
	known(`Permission denied`, "this user may not use the USB device or a disk", "run this as root"),
	known(`cannot find file \S+ for partition|could not copy \S+ from \S+$`, "the package lacks a file that its partition layout names", "build again; for a layout of your own, see that the build adds the file to the package"),
	// Only consequences: the cause is in a program's own words, in the log.
	known(`cp: cannot stat 'signed/|flash\.idx: No such file|no SPI or eMMC boot partition entries found|signing failed at`, "the signing step made no files; what stopped it is in log.initrd-flash.* or output.log, before the first of these lines", "correct what the log names (a .dtsi, key or file of your own machine, a missing program), then "+recoverAgain),
}

// findFailure returns the index in failures of the first that matches a line of output, or -1.
func findFailure(line string) int {
	for i, f := range failures {
		if f.pattern().MatchString(line) {
			return i
		}
	}
	return -1
}
