// Package tegra flashes a tegraflash package onto Jetsons in recovery mode. It runs the
// package's scripts and NVIDIA's tools on one USB port, and never talks to the boot ROM
// itself. A port is the kernel's name for a place on the USB bus, as 1-2.3. A board on it gets a
// new number whenever it appears. A flow is the order in which a package's script works.
package tegra

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// Package is an unpacked tegraflash package.
type Package struct {
	Dir     string
	Release string // R36.4.4; "" if the package does not have it
	Chip    string // t234
	Machine string
	Flow    string // one of the flows

	vars            map[string]string // .env.initrd-flash
	layouts         []layout
	helper          string // the helper script that the others source
	acceptsAnyBoard bool   // see AcceptsAnyBoard
}

// The flows.
const (
	Initrd  = "initrd-flash"  // a small Linux on the board exports its storage
	Unified = "unified flash" // NVIDIA's tool for Thor writes all
	Direct  = "doflash.sh"    // the boot loader in recovery mode writes all
)

// chips maps the CHIPID in a package to the chip.
var chips = map[string]string{"0x21": "t210", "0x18": "t186", "0x19": "t194", "0x23": "t234", "0x26": "t264"}

// helpers maps the name of a package's helper script to its chip.
var helpers = map[string]string{
	"tegra210-flash-helper.sh": "t210", "tegra186-flash-helper.sh": "t186",
	"tegra194-flash-helper.sh": "t194", "tegra234-flash-helper.sh": "t234",
	"tegra-flash-helper.sh": "", // of all chips since R36
}

// Open reads variables, layouts, chip and flow of the unpacked package in dir, if that is complete.
func Open(dir string) (*Package, error) {
	p := &Package{Dir: dir}
	for _, step := range []func() error{p.readVars, p.readRelease, p.findHelper, p.findChip, p.findFlow, p.findAcceptsAnyBoard, p.readLayouts} {
		if err := step(); err != nil {
			return nil, fmt.Errorf("tegraflash package: %w", err)
		}
	}
	return p, nil
}

func (p *Package) hasFile(name string) bool { return localfile.IsRegular(filepath.Join(p.Dir, name)) }

// readVars sets p.vars and p.Machine from .env.initrd-flash, if any. It refuses files not in p.Dir.
func (p *Package) readVars() (err error) {
	p.vars, err = readVars(filepath.Join(p.Dir, ".env.initrd-flash"))
	p.Machine = p.vars["MACHINE"]
	for _, name := range []string{"ROOTFS_IMAGE", "DATAFILE", "LNXFILE", "FLASH_HELPER"} {
		if v := p.vars[name]; v != "" && !filepath.IsLocal(v) && err == nil {
			err = fmt.Errorf(".env.initrd-flash: %s %s leads out of the package", name, quoteShort(v))
		}
	}
	return err
}

// readRelease sets p.Release, such as R36.4.4, from bsp_version, if the package has that.
func (p *Package) readRelease() error {
	vars, err := readVars(filepath.Join(p.Dir, "bsp_version"))
	if err != nil || vars["BSP_BRANCH"] == "" {
		return err
	}
	p.Release = strings.TrimRight("R"+strings.Join([]string{vars["BSP_BRANCH"], vars["BSP_MAJOR"], vars["BSP_MINOR"]}, "."), ".")
	if !regexp.MustCompile(`^R[0-9]{1,3}(\.[0-9]{1,3}){0,2}$`).MatchString(p.Release) {
		return fmt.Errorf("bsp_version: %s is no release of L4T", quoteShort(p.Release))
	}
	return nil
}

// findHelper sets p.helper to the package's helper script: FLASH_HELPER, else the first by name. It
// returns an error if there is none.
func (p *Package) findHelper() error {
	p.helper = filepath.Base(cmp.Or(p.vars["FLASH_HELPER"], "."))
	if p.hasFile(p.helper) {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(helpers)) {
		if p.hasFile(name) {
			p.helper = name
			return nil
		}
	}
	return fmt.Errorf("%s has none of its helper scripts (tegra-flash-helper.sh and others): it is no tegraflash package, or was built without its tools (TEGRA_SIGNING_EXCLUDE_TOOLS)", p.Dir)
}

// findChip sets p.Chip from .env.initrd-flash, else from the helper's name, else from flashvars.
// The chip stays "" if none of them names one. An unknown CHIPID in .env.initrd-flash is an error.
func (p *Package) findChip() error {
	p.Chip = helpers[p.helper]
	if id := p.vars["CHIPID"]; id != "" {
		if p.Chip = chips[id]; p.Chip == "" {
			return fmt.Errorf(".env.initrd-flash: CHIPID %s is not known here", quoteShort(id))
		}
	}
	if p.Chip != "" {
		return nil
	}
	data, err := localfile.Read(filepath.Join(p.Dir, "flashvars"), varsBytes)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for line := range bytes.Lines(data) {
		if id, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("CHIPID=")); ok {
			p.Chip = chips[string(bytes.Trim(id, `"'`))]
		}
	}
	return nil // some packages do not say; At reads it from the board
}

// findFlow sets p.Flow: with initrd-flash to Unified (Thor) or Initrd, else to Direct, which has no
// report of its result and needs sparse copies. It refuses an incomplete package.
func (p *Package) findFlow() error {
	switch {
	case p.vars != nil && p.hasFile("initrd-flash") && p.hasFile("initrd-flash.img") && p.Chip == "t264":
		p.Flow = Unified
	case p.vars != nil && p.hasFile("initrd-flash") && p.hasFile("initrd-flash.img"):
		p.Flow = Initrd
	case p.hasFile("doflash.sh"):
		p.Flow = Direct
	default:
		return fmt.Errorf("%s has neither initrd-flash with .env.initrd-flash and initrd-flash.img nor doflash.sh: it is not whole; build again", p.Dir)
	}
	if p.Flow == Unified && !p.hasFile("create_l4t_bsp_images.py") {
		return fmt.Errorf("%s is for Thor and has no create_l4t_bsp_images.py: it is not whole; build again", p.Dir)
	}
	return nil
}

// callsRCM matches a line that runs NVIDIA's program for boards in recovery mode.
var callsRCM = plaintext.Regexp(`(?m)^[^#\n]*\btegrarcm(_v2)?"? +(-|\$\{).*$`)

// findAcceptsAnyBoard sets acceptsAnyBoard if the package's scripts do not tell NVIDIA's programs
// which USB device is meant: tegra210's helper as it reads the chip, R39's as it reads the module's
// data, and doflash.sh of a package signed at build time, because it ignores its arguments.
func (p *Package) findAcceptsAnyBoard() error {
	helper, err := localfile.Read(filepath.Join(p.Dir, p.helper), layoutBytes)
	if err != nil {
		return err
	}
	p.acceptsAnyBoard = p.Chip == "t210" || slices.ContainsFunc(callsRCM().FindAll(helper, -1), func(line []byte) bool { return !bytes.Contains(line, []byte("inst")) })
	if p.acceptsAnyBoard || p.Flow != Direct {
		return nil
	}
	script, err := localfile.Read(filepath.Join(p.Dir, "doflash.sh"), layoutBytes)
	p.acceptsAnyBoard = !bytes.Contains(script, []byte("$@"))
	return err
}

// AcceptsAnyBoard reports whether the scripts may use any board. Then they flash one after another.
func (p *Package) AcceptsAnyBoard() bool { return p.acceptsAnyBoard }

// CheckOthers refuses boards in recovery mode on other ports, if the scripts accept any board.
func (p *Package) CheckOthers(h Host, port string) error {
	if !p.acceptsAnyBoard {
		return nil
	}
	there, err := List(h.Sys)
	for _, other := range there {
		if other.Port != port {
			return fmt.Errorf("the package's scripts do not say which board is meant, and there is a %s in recovery mode on %s too\nnext: repeat the line  # with that board off; flash it afterwards", other.Module, other.Port)
		}
	}
	return err
}

// readLayouts reads the package's layouts. Only a package signed at build time may lack
// flash.xml.in, any may lack external-flash.xml.in.
func (p *Package) readLayouts() error {
	for _, name := range []string{"flash.xml.in", "external-flash.xml.in"} {
		l, err := readLayout(filepath.Join(p.Dir, name))
		if errors.Is(err, os.ErrNotExist) && (name != "flash.xml.in" || p.isPresigned()) {
			continue
		}
		if err != nil {
			return err
		}
		p.layouts = append(p.layouts, l)
	}
	return nil
}

func (p *Package) isPresigned() bool { return p.hasFile(".presigning-vars") }

// Check refuses files that do not fit into their partitions, and a missing root file system.
func (p *Package) Check() error {
	placeholders := map[string]string{
		"APPFILE": p.vars["ROOTFS_IMAGE"], "APPFILE_b": p.vars["ROOTFS_IMAGE"],
		"DATAFILE": p.vars["DATAFILE"],
	}
	var wrong []error
	for _, l := range p.layouts {
		wrong = append(wrong, l.checkFiles(p.Dir, placeholders))
	}
	if err := errors.Join(wrong...); err != nil {
		return fmt.Errorf("the package does not fit together, and no board was touched:\n%w", err)
	}
	if image := p.vars["ROOTFS_IMAGE"]; image != "" && !p.hasFile(image) {
		return fmt.Errorf("the package has no %s, its root file system: build again", image)
	}
	return nil
}

// Describe returns the package's release, machine, chip and flow in one line.
func (p *Package) Describe() string {
	return fmt.Sprintf("%s for %s (%s), by %s", cmp.Or(p.Release, "L4T of unknown release"), cmp.Or(p.Machine, "unknown machine"), cmp.Or(p.Chip, "unknown chip"), p.Flow)
}
