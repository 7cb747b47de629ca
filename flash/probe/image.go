package probe

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// mostBytes is more than any disk has. As the size, it finds partitions beyond the image's end.
const mostBytes = 1 << 50

// CheckImage returns an error if an image is not one of a whole disk: it is empty or a VHD, has no
// partition table, or one with offsets outside the image or for other sectors. sectorBytes is the
// device's, or 0 if the image goes to a file. CheckImage reads only the first sizeBytes of r.
// Unreadable bytes count as zeros, because only the beginning of a compressed image is known. If
// sizeBytes is below 0, the size is unknown and only the table itself is checked.
func CheckImage(r io.ReaderAt, sizeBytes, sectorBytes int64) error {
	if sizeBytes < 0 {
		sizeBytes, sectorBytes = mostBytes, 0
	}
	s := &source{r: zeroPadded{r, sizeBytes}, size: mostBytes, failure: new(error)}
	if sizeBytes == 0 {
		return errors.New("it is empty\nnext: ls -l IMAGE")
	}
	if string(s.readAt(max(0, sizeBytes-512), 8)) == "conectix" {
		return errors.New("it is a fixed VHD disk\nnext: qemu-img convert -f vpc -O raw IMAGE disk.img")
	}
	whole := &source{r: s.r, size: sizeBytes, failure: s.failure}
	content := whole.identifyContent()
	l, err := s.readExtents(content.Type)
	switch {
	case err != nil:
		return err
	case l == nil:
		return whole.explainNoTable(content)
	}
	return l.checkSize(sizeBytes, sectorBytes)
}

// FindGPTEntries returns offset and length of the partition entries of an image's first GPT, and
// where those of the second begin, by the unverified header; all 0 without protective MBR or GPT.
func FindGPTEntries(image io.ReaderAt) (offset, length, second int64) {
	mbr, p := make([]byte, 512), make([]byte, 512)
	_, _ = image.ReadAt(mbr, 0) // an unreadable image has no GPT
	if !slices.ContainsFunc(parseMBREntries(mbr), func(e mbrEntry) bool { return e.kind == protective }) {
		return 0, 0, 0
	}
	for _, sector := range []int64{512, 4096} {
		_, _ = image.ReadAt(p, sector)
		other, from, n, each := le.Uint64(p[32:]), le.Uint64(p[72:]), int64(le.Uint32(p[80:])), int64(le.Uint32(p[84:]))
		if string(p[:8]) == "EFI PART" && max(other, from) <= mostBytes/4096 && max(n, each) <= maxEntryBytes {
			length = n * each
			return int64(from) * sector, length, max(0, int64(other)*sector-length)
		}
	}
	return 0, 0, 0
}

// zeroPadded reads zeros after the end of r.
type zeroPadded struct {
	r         io.ReaderAt
	sizeBytes int64
}

// ReadAt fills b, with zeros after sizeBytes and for bytes that cannot be read. It never fails.
func (p zeroPadded) ReadAt(b []byte, off int64) (int, error) {
	clear(b)
	if n := min(int64(len(b)), p.sizeBytes-off); n > 0 {
		_, _ = p.r.ReadAt(b[:n], off)
	}
	return len(b), nil
}

// tableExtents is a partition table's content, unchecked.
type tableExtents struct {
	gpt    bool
	sector int64 // of a GPT; an MBR does not say
	parts  []extent
	end    uint64 // the disk's sectors by the table; 0: unknown
}

// extent is a partition, in sectors.
type extent struct {
	number int
	end    uint64 // the sector after its last one
}

// readExtents returns the partitions of the MBR or GPT, even outside the disk; nil without a table.
// fsType is the whole disk's. A GPT that is damaged, or that Linux would not see, is an error.
func (s *source) readExtents(fsType string) (*tableExtents, error) {
	old := s.readMBRExtents(fsType)
	if old != nil && !old.gpt { // Linux then ignores a GPT that an earlier use left
		return old, nil
	}
	for _, sector := range []int64{512, 4096} {
		if h := s.readGPTHeader(sector, sector); h != nil && old != nil {
			return &tableExtents{gpt: true, sector: sector, parts: h.listExtents(), end: h.other + 1}, nil
		} else if h != nil {
			return nil, errors.New("there is no protective MBR before its GPT, so Linux sees no partitions\nnext: /sbin/fdisk -l IMAGE  # gdisk repairs the table")
		}
	}
	if old != nil {
		return nil, errors.New("the GPT at its beginning is damaged or gone\nnext: /sbin/fdisk -l IMAGE  # then fetch or build it again")
	}
	return nil, nil
}

// listExtents returns the number of each partition that has a type, and the first sector after it.
func (h *gptHeader) listExtents() (all []extent) {
	for i := 0; (i+1)*h.each <= len(h.entries); i++ {
		if e := h.entries[i*h.each:]; formatGUID(e[:16]) != "" {
			all = append(all, extent{i + 1, le.Uint64(e[40:]) + 1})
		}
	}
	return all
}

// readMBRExtents returns the partitions of the MBR; nil without one, and if fsType is one that
// begins like an MBR. gpt is set if it protects a GPT. An ISO's partition may begin at sector 0.
func (s *source) readMBRExtents(fsType string) *tableExtents {
	p := s.bytesAt(0, 512)
	if p[510] != 0x55 || p[511] != 0xaa || slices.Contains([]string{"vfat", "ntfs", "exfat", "BitLocker"}, fsType) {
		return nil
	}
	l := &tableExtents{}
	for i, e := range parseMBREntries(p) {
		switch {
		case e.boot&0x7f != 0: // a boot sector, not a table
			return nil
		case e.kind == protective:
			l.gpt = true
		case e.count > 0 && (e.kind != 0 && e.start > 0 || fsType == "iso9660"):
			l.parts = append(l.parts, extent{i + 1, uint64(e.start + e.count)})
		}
		if e.isExtended() {
			for _, p := range s.readLogical(e.start, 512) {
				l.parts = append(l.parts, extent{p.Number, uint64((p.OffsetBytes + p.SizeBytes) / 512)})
			}
		}
	}
	if !l.gpt && len(l.parts) == 0 {
		return nil
	}
	return l
}

// checkSize returns an error if a partition or the second GPT ends outside the image, if there are
// no partitions, or if the table is made for other sectors than the device's.
func (l *tableExtents) checkSize(sizeBytes, sectorBytes int64) error {
	sector := cmp.Or(l.sector, l.guessMBRSector(sizeBytes, sectorBytes))
	if sectorBytes != 0 && sector != sectorBytes {
		return fmt.Errorf("its partition table is made for sectors of %d bytes, and the device has sectors of %d: no system would find the partitions\nnext: devices  # take another one, or make the image for such sectors (wic create --sector-size %[2]d)", sector, sectorBytes)
	}
	sectors := uint64(sizeBytes / sector)
	for _, p := range l.parts {
		if p.end == 0 || p.end > sectors {
			return fmt.Errorf("its partition %d ends at byte %s, and the image has %d bytes: it is cut off\nnext: ls -l IMAGE  # then fetch or build it again", p.number, formatBytes(p.end, sector), sizeBytes)
		}
	}
	if l.end > sectors || l.gpt && l.end == 0 {
		return fmt.Errorf("the second copy of its partition table ends at byte %s, and the image has %d bytes: it is cut off\nnext: ls -l IMAGE  # then fetch or build it again", formatBytes(l.end, sector), sizeBytes)
	}
	if len(l.parts) == 0 {
		return errors.New("its partition table has no partitions\nnext: /sbin/fdisk -l IMAGE  # then make the image again")
	}
	return nil
}

// formatBytes returns sectors in bytes, or a lower bound if they are too many or overflowed to 0.
func formatBytes(sectors uint64, sector int64) string {
	if sectors == 0 || sectors > mostBytes {
		return fmt.Sprintf("%d or more", int64(mostBytes))
	}
	return fmt.Sprint(sectors * uint64(sector))
}

// guessMBRSector guesses the sector size of an MBR, which has no field for it. It is 4096 only if
// the device has such sectors and the partitions then end in the image's second half.
func (l *tableExtents) guessMBRSector(sizeBytes, sectorBytes int64) int64 {
	if sectorBytes != 4096 {
		return 512
	}
	end := uint64(0)
	for _, p := range l.parts {
		end = max(end, p.end)
	}
	if sectors := uint64(sizeBytes / 4096); end <= sectors && end > sectors/2 {
		return 4096
	}
	return 512
}

// OtherFormat is a kind of files that users mistake for disk images.
type OtherFormat struct {
	at         int // where its magic begins
	magic      string
	What, Next string // its name, and the command for the next step
	Packed     bool   // the user must unpack or convert it first; the image is in it
}

// otherFormats are looked for in this order.
var otherFormats = []OtherFormat{
	{0, "7z\xbc\xaf\x27\x1c", "a 7z archive; unpack it and give the image in it", "7z x IMAGE", true},
	{0, "Rar!\x1a\x07", "a RAR archive; unpack it and give the image in it", "unrar x IMAGE", true},
	{0, "\x04\x22\x4d\x18", "packed by lz4", "lz4 -dc IMAGE > disk.img", true},
	{0, "\x3a\xff\x26\xed", "an Android sparse image", "simg2img IMAGE disk.img", true},
	{0, "\x5d\x00\x00", "packed by lzma", "xz -dc IMAGE > disk.img", true},
	{0, "QFI\xfb", "a qcow2 disk", "qemu-img convert -O raw IMAGE disk.img", true},
	{0, "KDMV", "a VMware disk", "qemu-img convert -O raw IMAGE disk.img", true},
	{64, "\x7f\x10\xda\xbe", "a VirtualBox disk (VDI)", "qemu-img convert -O raw IMAGE disk.img", true},
	{0, "conectix", "a VHD disk", "qemu-img convert -f vpc -O raw IMAGE disk.img", true},
	{0, "vhdxfile", "a Hyper-V disk (VHDX)", "qemu-img convert -O raw IMAGE disk.img", true},
	{0, "version https://git-lfs", "a pointer of Git LFS", "git lfs pull  # in its folder", true},
	{0, "<!DOCTYPE", webPage, "", true},
	{0, "<!doctype", webPage, "", true},
	{0, "<html", webPage, "", true},
	{0, "<?xml", "XML; a block map is given beside the image, not as the image", "", true},
	{257, "ustar", "a tar archive; unpack it and give the image in it", "tar -xvf IMAGE", true},
	{0, "!<arch>\ndebian-binary", "a Debian package", "dpkg --info IMAGE  # install it on the board with dpkg -i", false},
	{0, "!<arch>\n", "an archive of ar", "", false},
	{110, "sw-description", "a bundle of SWUpdate", "update --help", false},
	{0, "070701", "a cpio archive, as an initramfs is", "", false},
	{0, "\x7fELF", "a program (ELF)", "", false},
	{0, "ANDROID!", "an Android boot image", "", false},
	{0, "\x42\x66\x02\x13", "a boot stream of a BlueField (BFB)", "bfb list IMAGE  # flash it to /dev/rshim0", false},
	{0, "\xd0\x0d\xfe\xed", "a device tree, or a FIT image", "", false},
	{0, "\x27\x05\x19\x56", "an image for U-Boot", "", false},
	{56, "ARMd", "a Linux kernel", "", false},
	{0x202, "HdrS", "a Linux kernel", "", false},
	{0, "MZ", "a program for EFI or Windows", "", false},
	{0, "UBI#", "a UBI image for flash chips", "", false},
}

const webPage = "a web page; the server sent this instead of the image"

// FindOtherFormat returns the first of otherFormats whose magic head has, or nil.
func FindOtherFormat(head []byte) *OtherFormat {
	i := slices.IndexFunc(otherFormats, func(f OtherFormat) bool {
		return len(head) > f.at && bytes.HasPrefix(head[f.at:], []byte(f.magic))
	})
	if i < 0 {
		return nil
	}
	return &otherFormats[i]
}

const wholeImageAdvice = "file IMAGE  # then give the image of the whole disk (of bitbake: the .wic)"

// explainNoTable returns an error that says what an image without a partition table seems to be.
func (s *source) explainNoTable(content Content) error {
	head := s.readAt(0, int(min(s.size, 1<<20)))
	next := wholeImageAdvice
	what := ""
	if f := FindOtherFormat(head); f != nil {
		what, next = f.What, cmp.Or(f.Next, wholeImageAdvice)
	}
	switch {
	case what != "":
	case content.Type == "squashfs" && s.hasSignature():
		what, next = "a bundle of RAUC", "update --help"
	case content.Type == "iso9660":
		what = "an ISO image that only optical drives boot"
	case content.Type != "":
		what = withName("a single "+content.Type+" volume without a partition table", content.Label)
	case len(bytes.Trim(head, "\x00")) == 0:
		what = fmt.Sprintf("%d bytes of zeros at its beginning, where a partition table belongs", len(head))
	case isText(head):
		line, _, _ := strings.Cut(string(head[:min(len(head), 80)]), "\n")
		what, next = fmt.Sprintf("a text that begins with %q", cleanText([]byte(line))), "head -c 200 IMAGE  # a server may have sent an error instead of the image"
	default:
		return fmt.Errorf("it has no partition table\nnext: %s", next)
	}
	return fmt.Errorf("it is %s\nnext: %s", what, next)
}

// hasSignature reports whether the source seems to end in a RAUC signature: by the length in its
// last 8 bytes, and the first byte of DER at the signature's beginning.
func (s *source) hasSignature() bool {
	if s.size < 16 {
		return false
	}
	n := be.Uint64(s.readAt(s.size-8, 8))
	return n > 0 && n < 1<<20 && int64(n) < s.size-8 && s.readAt(s.size-8-int64(n), 1)[0] == 0x30
}

// isText reports whether the first 4 KiB of p, without zeros at their end, are UTF-8 text or empty.
func isText(p []byte) bool {
	const most = 4096
	return !bytes.ContainsFunc(bytes.TrimRight(p[:min(len(p), most)], "\x00"), func(c rune) bool {
		return c < ' ' && !strings.ContainsRune("\t\n\f\r\x1b", c) || c == '\ufffd'
	})
}
