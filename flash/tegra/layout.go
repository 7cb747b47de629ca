package tegra

import (
	"bytes"
	"encoding/binary"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// Limits of a layout. NVIDIA's have some sixty partitions on two devices.
const (
	layoutBytes      = 4 << 20
	layoutDevices    = 16
	layoutPartitions = 2000
)

// layout is a flash.xml: NVIDIA's description of a board's storage.
type layout struct {
	name    string
	devices []storage
}

// storage is one device of a layout.
type storage struct {
	kind       string // spi, sdmmc_boot, sdmmc_user, sdcard, nvme, external, ...
	sectorSize int64
	sectors    int64 // 0: unknown
	partitions []partition
}

type partition struct {
	name, kind, file string
	sizeBytes        int64 // -1: the rest of the device
	fills            bool  // up to the end of the device, whatever its size
}

// hasRootFS reports whether the root file system, not the boot firmware, is on the device.
func (s storage) hasRootFS() bool { return s.kind != "spi" && s.kind != "sdmmc_boot" }

// isTable reports whether the partition is the device's own partition table.
func (p partition) isTable() bool {
	switch p.kind {
	case "GP1", "GPT", "protective_master_boot_record", "primary_gpt", "secondary_gpt":
		return true
	}
	return false
}

// readLayout reads and parses the layout in the file path, and sets its name to the file's.
func readLayout(path string) (layout, error) {
	data, err := localfile.Read(path, layoutBytes)
	if err != nil {
		return layout{}, err
	}
	l, err := parseLayout(data)
	if err != nil {
		return layout{}, fmt.Errorf("%s: %w", path, err)
	}
	l.name = filepath.Base(path)
	return l, nil
}

// xmlLayout has the elements that Slipway reads. encoding/xml expands no entities of the file.
type xmlLayout struct {
	XMLName xml.Name `xml:"partition_layout"`
	Devices []struct {
		Type       string `xml:"type,attr"`
		SectorSize string `xml:"sector_size,attr"`
		Sectors    string `xml:"num_sectors,attr"`
		Partitions []struct {
			Name      string `xml:"name,attr"`
			Type      string `xml:"type,attr"`
			Size      string `xml:"size"`
			Attribute string `xml:"allocation_attribute"`
			File      string `xml:"filename"`
		} `xml:"partition"`
	} `xml:"device"`
}

// parseLayout parses a layout and checks its depth, sizes and numbers of devices and partitions.
func parseLayout(data []byte) (layout, error) {
	if err := checkDepth(data); err != nil {
		return layout{}, err
	}
	var x xmlLayout
	if err := xml.Unmarshal(data, &x); err != nil {
		return layout{}, err
	}
	if len(x.Devices) == 0 || len(x.Devices) > layoutDevices {
		return layout{}, fmt.Errorf("%d devices; a layout has between 1 and %d", len(x.Devices), layoutDevices)
	}
	var l layout
	for _, d := range x.Devices {
		s := storage{kind: strings.TrimSpace(d.Type)}
		var err error
		if s.sectorSize, err = parseNumber(d.SectorSize, 512); err != nil || s.sectorSize < 1 || s.sectorSize > 1<<20 {
			return layout{}, fmt.Errorf("device %s: sector_size %q is no size of a sector", quoteShort(s.kind), shorten(d.SectorSize))
		}
		if s.sectors, err = parseNumber(d.Sectors, 0); err != nil || s.sectors < 0 || s.sectors > 1<<40 {
			return layout{}, fmt.Errorf("device %s: num_sectors %q is no number of sectors", quoteShort(s.kind), shorten(d.Sectors))
		}
		if len(d.Partitions) > layoutPartitions {
			return layout{}, fmt.Errorf("device %s: more than %d partitions", quoteShort(s.kind), layoutPartitions)
		}
		for _, p := range d.Partitions {
			made, err := newPartition(p.Name, p.Type, p.Size, p.Attribute, p.File)
			if err != nil {
				return layout{}, fmt.Errorf("device %s: partition %s: %w", quoteShort(s.kind), quoteShort(p.Name), err)
			}
			s.partitions = append(s.partitions, made)
		}
		l.devices = append(l.devices, s)
	}
	return l, nil
}

// newPartition parses a partition's fields. It refuses a file outside of the package. attribute is
// hexadecimal; 0x800 in it means that the partition fills the device.
func newPartition(name, kind, size, attribute, file string) (partition, error) {
	p := partition{name: strings.TrimSpace(name), kind: strings.TrimSpace(kind), file: strings.TrimSpace(file)}
	if p.name == "" || len(p.name) > 128 || p.name != plaintext.OneLine(p.name) {
		return p, errors.New("no name that a partition can have")
	}
	if p.file != "" && (!filepath.IsLocal(p.file) || p.file != plaintext.OneLine(p.file)) {
		return p, fmt.Errorf("its file %s leads out of the package", quoteShort(p.file))
	}
	size = strings.TrimSpace(size)
	var err error
	if strings.HasPrefix(strings.ToLower(size), "0xffffffff") {
		p.sizeBytes = -1
	} else if p.sizeBytes, err = parseNumber(size, 0); err != nil || p.sizeBytes < 0 {
		return p, fmt.Errorf("size %q is no number of bytes", shorten(size))
	}
	a, err := strconv.ParseUint(strings.TrimPrefix(strings.TrimSpace(attribute), "0x"), 16, 64)
	if err != nil && strings.TrimSpace(attribute) != "" {
		return p, fmt.Errorf("allocation_attribute %q is no hexadecimal number", shorten(attribute))
	}
	p.fills = a&0x800 != 0
	return p, nil
}

// parseNumber parses a decimal, 0x or 0 (octal) number. It returns otherwise for an empty text.
func parseNumber(s string, otherwise int64) (int64, error) {
	if s = strings.TrimSpace(s); s == "" {
		return otherwise, nil
	}
	return strconv.ParseInt(s, 0, 62)
}

func shorten(s string) string { return plaintext.OneLine(s[:min(len(s), 60)]) }

func quoteShort(s string) string { return strconv.Quote(shorten(s)) }

// checkDepth refuses XML elements nested over 16 deep, because xml.Unmarshal is recursive.
func checkDepth(data []byte) error {
	const deepest = 16
	d := xml.NewDecoder(bytes.NewReader(data))
	for depth := 0; ; {
		token, err := d.RawToken()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch token.(type) {
		case xml.StartElement:
			depth++
		case xml.EndElement:
			depth--
		}
		if depth > deepest {
			return fmt.Errorf("elements lie %d deep", depth)
		}
	}
}

// diskBytes returns the size of a disk that holds all partitions of the device with the root file
// system, and space for tables and alignment. It returns 0 if the layout has no such device.
func (l layout) diskBytes() int64 {
	for _, d := range l.devices {
		if !d.hasRootFS() {
			continue
		}
		all := int64(64 << 20)
		for _, p := range d.partitions {
			if p.sizeBytes > 0 && !p.isTable() {
				all = min(all+p.sizeBytes+1<<20, 1<<60) // each begins at a multiple of 1 MiB
			}
		}
		return all
	}
	return 0
}

// checkFiles returns an error if a file in dir is larger than its partition, or the partitions are
// larger than their device. NVIDIA's tools would notice that only when they write the partition.
// placeholders maps names such as APPFILE to the files that the scripts use for them.
func (l layout) checkFiles(dir string, placeholders map[string]string) error {
	var wrong []error
	for _, d := range l.devices {
		var used int64
		for _, p := range d.partitions {
			if p.sizeBytes > 0 && !p.fills && used <= 1<<60 {
				used += min(p.sizeBytes, 1<<60)
			}
			if err := p.checkFile(dir, placeholders); err != nil {
				wrong = append(wrong, fmt.Errorf("%s: %w", l.name, err))
			}
		}
		if all := d.sectors * d.sectorSize; d.sectors > 0 && d.sectors < 1<<62/d.sectorSize && used > all {
			wrong = append(wrong, fmt.Errorf("%s: the partitions of device %s have %d bytes together, the device has %d; make ROOTFSPART_SIZE smaller or the device's sectors (TEGRA_EXTERNAL_DEVICE_SECTORS, TEGRA_INTERNAL_DEVICE_SECTORS) more, and build again",
				l.name, quoteShort(d.kind), used, all))
		}
	}
	return errors.Join(wrong...)
}

// checkFile returns an error if the partition's file is too large; for placeholders see checkFiles.
// It accepts a missing file, and any file of a partition table or of one whose size is not fixed.
func (p partition) checkFile(dir string, placeholders map[string]string) error {
	file := p.file
	if other, ok := placeholders[file]; ok {
		file = other
	}
	if file == "" || p.sizeBytes <= 0 || p.fills || p.isTable() || !filepath.IsLocal(file) {
		return nil
	}
	has, err := contentBytes(filepath.Join(dir, file))
	if errors.Is(err, os.ErrNotExist) {
		return nil // the signing step creates it
	}
	if err != nil {
		return err
	}
	if has > p.sizeBytes {
		return fmt.Errorf("partition %s has %d bytes, its file %s needs %d; make the partition larger (ROOTFSPART_SIZE for APP) or the file smaller, and build again", p.name, p.sizeBytes, file, has)
	}
	return nil
}

// contentBytes returns the expanded size of an Android sparse image, else the file's size.
func contentBytes(path string) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	var head [28]byte
	if _, err := io.ReadFull(f, head[:]); err != nil {
		return info.Size(), nil // shorter than any sparse image
	}
	if le := binary.LittleEndian; le.Uint32(head[:]) == 0xed26ff3a {
		blocks := uint64(le.Uint32(head[12:])) * uint64(le.Uint32(head[16:]))
		return int64(min(blocks, math.MaxInt64)), nil
	}
	return info.Size(), nil
}
