// Package images turns a board's name into a Spec, and describes its built files (see builder) as
// an Artifact. It also has the glossary (glossary.md): one word has one meaning in the tree.
package images

import "slipway/images/cache"

// Spec is what board.yml says of a board, with what Load finds: its files, suites and project file.
type Spec struct {
	Board       string `yaml:"-" json:"board"`
	Description string `yaml:"description" json:"description"`
	Extends     string `yaml:"extends" json:"extends,omitempty"` // board whose files and settings serve where this one has none
	Default     bool   `yaml:"default" json:"default,omitempty"` // the board that commands mean when they are given none
	Arch        string `yaml:"arch" json:"arch"`                 // amd64 or arm64, Go's names

	Build Needs `yaml:"build" json:"build,omitzero"` // only of boards that bitbake builds
	// Cache names the cache. The environment's SLIPWAY_CACHE comes before it.
	Cache cache.Setting `yaml:"cache" json:"cache,omitzero"`

	// Local are absolute folders, by repository of kas.yml, that a build takes as they are
	// in place of checkouts. The environment's SLIPWAY_LOCAL comes before it.
	Local map[string]string `yaml:"local" json:"local,omitempty"`

	Debian  *Debian  `yaml:"debian" json:"debian,omitempty"` // built from Debian packages; nil: built by bitbake from kas.yml
	Disk    *Disk    `yaml:"disk" json:"disk,omitempty"`
	Machine *Machine `yaml:"machine" json:"machine,omitempty"` // nil: real hardware, or a rig
	Rig     *Rig     `yaml:"rig" json:"rig,omitempty"`         // of namespaces on the machine itself: nothing is flashed or switched on

	Flash  Flash    `yaml:"flash" json:"flash"`
	Policy *Policy  `yaml:"policy" json:"policy,omitempty"` // of the artifacts that may be written; nil: of all
	Deploy Deploy   `yaml:"deploy" json:"deploy"`
	SSH    SSH      `yaml:"ssh" json:"ssh"`
	DPU    *DPU     `yaml:"dpu" json:"dpu,omitempty"` // nil: it offloads no packets that a suite could prove
	Suites []string `yaml:"suites" json:"suites"`

	// Project is bitbake's project file, "" for Slipway's own boards outside of a clone.
	Project    string `yaml:"-" json:"-"`
	ownProject bool   // it lies in the user's own folder

	files   map[string][]byte // of the board's folder, over those of the board that it extends
	lineage []boardPlace      // the board and those that it extends, the oldest first
	project string            // the project files of a board that has no board.yml
	places  map[string]string // where each key is written, for errors

	folder   string // with the board's artifact, if that is not below build/
	state    string // StateDir of that folder
	deployed string // bitbake's folder with the images, where Slipway has no artifact of them
}

// Needs is the disk and memory that a build with bitbake needs. A board inherits the figures of the
// one that it extends; otherwise defaultNeeds apply.
type Needs struct {
	Disk      DiskNeeds `yaml:"disk" json:"disk,omitzero"`
	MemoryGiB int       `yaml:"memoryGiB" json:"memoryGiB,omitempty"` // for the largest single task and bitbake itself
	// TaskMiB is one compiler's memory, which limits the advised number of tasks.
	TaskMiB int `yaml:"taskMiB" json:"taskMiB,omitempty"`
}

// DiskNeeds is the disk space of a first build of all images, before doctor subtracts what exists.
type DiskNeeds struct {
	LayersGiB    int `yaml:"layersGiB" json:"layersGiB,omitempty"`       // checkouts and their mirror cache
	DownloadsGiB int `yaml:"downloadsGiB" json:"downloadsGiB,omitempty"` // DL_DIR
	SstateGiB    int `yaml:"sstateGiB" json:"sstateGiB,omitempty"`       // SSTATE_DIR
	TmpGiB       int `yaml:"tmpGiB" json:"tmpGiB,omitempty"`             // TMPDIR, with the images
}

// defaultNeeds is an image with systemd, a kernel and a container engine, on a machine
// of a few cores. Rather too much than too little: a build that runs full loses hours.
var defaultNeeds = Needs{
	Disk:      DiskNeeds{LayersGiB: 4, DownloadsGiB: 15, SstateGiB: 15, TmpGiB: 66},
	MemoryGiB: 8, TaskMiB: 1024,
}

// Debian describes a userland made of Debian packages.
type Debian struct {
	Suite    string   `yaml:"suite" json:"suite"`
	Packages []string `yaml:"packages" json:"packages"`
	Exclude  []string `yaml:"exclude" json:"exclude,omitempty"` // dpkg path-exclude patterns
	Remove   []string `yaml:"remove" json:"remove,omitempty"`   // files of packages that the image leaves out
	Mask     []string `yaml:"mask" json:"mask,omitempty"`       // systemd units that must not run
	// Generators are systemd's that must not run.
	Generators []string `yaml:"generators" json:"generators,omitempty"`
	Enable     []string `yaml:"enable" json:"enable,omitempty"` // units that multi-user.target wants
	Hook       string   `yaml:"hook" json:"hook,omitempty"`     // where slipway-hook is installed; "" leaves it out
	Probe      []string `yaml:"probe" json:"probe,omitempty"`   // files of the image that make the container of the suite containers
	// Keyring has the certificates of those whose bundles RAUC installs. Without it, no bundle can
	// be made. A bundle's manifest is the board's file bundle/manifest.raucm.
	Keyring string `yaml:"keyring" json:"keyring,omitempty"`
}

// Disk is a whole-disk image: a GPT, a boot loader, file systems. Where bitbake makes it,
// the partitions only say what each is for.
type Disk struct {
	Firmware   string          `yaml:"firmware" json:"firmware"` // bios or uefi
	Cmdline    string          `yaml:"cmdline" json:"cmdline"`   // of the kernel, before root= and rauc.slot=
	Partitions []DiskPartition `yaml:"partitions" json:"partitions"`
}

// DiskPartition is one line of a disk's table.
type DiskPartition struct {
	Name    string `yaml:"name" json:"name"`
	SizeMiB int64  `yaml:"sizeMiB" json:"sizeMiB"` // 0 where bitbake makes the disk
	Use     string `yaml:"use" json:"use"`         // loader, boot, root, spare (a root slot left empty) or data
}

// Machine is the virtual hardware of a board that has no other.
type Machine struct {
	Program string `yaml:"program" json:"program"` // qemu-system-x86_64
	Type    string `yaml:"type" json:"type"`       // -machine
	CPU     string `yaml:"cpu" json:"cpu"`
	CPUs    int    `yaml:"cpus" json:"cpus"`
	RAMMiB  int    `yaml:"ramMiB" json:"ramMiB"`
	Package string `yaml:"package" json:"package"`       // Debian package that holds Program
	Ready   string `yaml:"ready" json:"ready,omitempty"` // what the serial line says once SSH can be tried
	// Firmware is the machine's firmware, if that is not QEMU's own.
	Firmware struct {
		Path    string `yaml:"path" json:"path,omitempty"`
		Package string `yaml:"package" json:"package,omitempty"`
	} `yaml:"firmware" json:"firmware"`
}

// Flash says how an image gets onto the board.
type Flash struct {
	Kinds []string `yaml:"kinds" json:"kinds"` // of devices: file, block, tegra, rshim
	// Signers is a file, in the board's folder or with an absolute path, with the keys of those
	// whose images may be flashed: OpenSSH's allowed signers or a keyring of GPG.
	Signers string `yaml:"signers" json:"signers,omitempty"`
	// LargestGiB is the size of the largest disk that is written for the board: what is
	// larger is somebody's disk rather than a card. 0 leaves that to package flash.
	LargestGiB int `yaml:"largestGiB" json:"largestGiB,omitempty"`
	// DPU is the driver's name for it, as BlueField-2. Slipway refuses another generation.
	DPU string `yaml:"dpu" json:"dpu,omitempty"`

	// The rest is of Jetsons in recovery mode.
	Chip     string            `yaml:"chip" json:"chip,omitempty"`        // t210, t186, t194, t234 or t264; a board with another is refused
	Recovery Recovery          `yaml:"recovery" json:"recovery,omitzero"` // brings the board into recovery mode
	Module   map[string]string `yaml:"module" json:"module,omitempty"`    // BOARDID, FAB, ...: the values of the module's EEPROM, if it is empty
}

// Recovery is a command that switches a board into recovery mode, by a relay or a controller beside
// it. Slipway replaces {port} in it by the board's USB port.
type Recovery struct {
	Command []string `yaml:"command" json:"command,omitempty"`
	SSH     string   `yaml:"ssh" json:"ssh,omitempty"` // user@host:port or an alias of the machine that runs it; "": this machine
}

// Deploy says what a running board is given.
type Deploy struct {
	Dir string `yaml:"dir" json:"dir"` // folder on the board for what Slipway leaves there
}

// SSH describes how to reach a board that Slipway itself has switched on. For other boards, the
// host is on the command line. An image of bitbake accepts a root login only if
// SLIPWAY_ROOT_LOGIN=1 was set when it was built.
type SSH struct {
	User string `yaml:"user" json:"user"`
	Port int    `yaml:"port" json:"port"`

	// HostCA is who signs the host keys of such boards: a public key, or a file of
	// public keys in the board's folder, or one with an absolute path.
	HostCA string `yaml:"hostCA" json:"hostCA,omitempty"`
}
