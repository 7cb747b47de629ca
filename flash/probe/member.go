package probe

import (
	"bytes"
	"fmt"
)

// members are the formats of members of RAID arrays, volume groups and pools.
var members = []format{
	{name: "linux_raid_member", magic: mdMagic, at: []int64{4096, 0}, read: readMD},
	{name: "linux_raid_member", read: readMDAtEnd},
	{name: "linux_raid_member", read: readMD090},
	{name: "isw_raid_member", magic: "Intel Raid ISM Cfg Sig. ", at: []int64{-1024}, part: firmwareRAID},
	{name: "ddf_raid_member", magic: "\xde\x11\xde\x11", at: []int64{-512}, part: firmwareRAID},
	{name: "LVM2_member", magic: "LABELONE", at: []int64{512, 0, 1024, 1536}, read: readLVM},
	{name: "zfs_member", read: readZFS},
	{name: "bcache", magic: "\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81", at: []int64{4096 + 24}, label: textAt{4096 + 24 + 48, 32}, part: "a bcache"},
	{name: "bcachefs", magic: "\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef", at: []int64{4096 + 24}, read: readBcachefs},
	{name: "ceph_bluestore", magic: "bluestore block device", at: []int64{0}, part: "a Ceph cluster"},
}

const (
	mdMagic      = "\xfc\x4e\x2b\xa9"
	firmwareRAID = "a RAID array of the computer's firmware"
)

// readMD reads an MD RAID superblock of version 1, whose own offset field must agree with at.
func readMD(s *source, at int64) (Content, bool) {
	p := s.bytesAt(at, 256)
	if le.Uint32(p[4:]) != 1 || le.Uint64(p[144:]) != uint64(at/512) {
		return Content{}, false
	}
	name := cleanText(p[32:64])
	return Content{Label: name, Part: withName("a RAID array", name)}, true
}

// readMDAtEnd reads the MD RAID superblock of version 1.0, which is near the disk's end.
func readMDAtEnd(s *source, _ int64) (Content, bool) {
	at := (s.size/512 - 16) &^ 7 * 512
	if string(s.bytesAt(at, 4)) != mdMagic {
		return Content{}, false
	}
	return readMD(s, at)
}

// readMD090 reads an MD RAID superblock of version 0.90, in either byte order.
func readMD090(s *source, _ int64) (Content, bool) {
	p := s.bytesAt(s.size&^0xffff-0x10000, 64)
	if string(p[:4]) != mdMagic && be.Uint32(p) != le.Uint32([]byte(mdMagic)) || p[7]|p[4] != 0 {
		return Content{}, false
	}
	return Content{Part: "a RAID array"}, true
}

// readLVM reads an LVM label, and the name of the volume group.
func readLVM(s *source, at int64) (Content, bool) {
	p := s.bytesAt(at, 512)
	if string(p[24:32]) != "LVM2 001" {
		return Content{}, false
	}
	header := s.bytesAt(at+int64(min(le.Uint32(p[20:]), 512-40)), 512)
	group := findVolumeGroup(s, header[40:])
	return Content{Label: group, Part: withName("an LVM volume group", group)}, true
}

// findVolumeGroup returns the name of an LVM volume group, with which the text in a metadata area
// begins. places has two lists of areas, each ended by a zero: data, then metadata.
func findVolumeGroup(s *source, places []byte) string {
	for len(places) >= 16 && le.Uint64(places) != 0 {
		places = places[16:]
	}
	if len(places) < 32 {
		return ""
	}
	area := int64(le.Uint64(places[16:]))
	head := s.bytesAt(area, 64)
	if string(head[4:20]) != " LVM2 x[5A%r0N*>" || le.Uint64(head[40:]) > 1<<30 {
		return ""
	}
	name, _, found := bytes.Cut(s.bytesAt(area+int64(le.Uint64(head[40:])), 160), []byte(" {"))
	if !found || bytes.ContainsAny(name, "\n\"") {
		return ""
	}
	return cleanText(name)
}

// readZFS searches the two labels at each end for the pool's properties, 16 KiB after their start.
func readZFS(s *source, _ int64) (Content, bool) {
	const label = 256 << 10
	end := s.size &^ (label - 1)
	for _, at := range []int64{0, label, end - 2*label, end - label} {
		// Most of the 112 KiB are a pool's later properties.
		if c, ok := readPool(s.bytesAt(at+16<<10, 8<<10)); ok {
			return c, true
		}
	}
	return Content{}, false
}

// readPool reads a pool's name, if it has a GUID, from pairs in XDR: the size of the pair, its size in
// memory, the name, a type, a count, the value.
func readPool(p []byte) (Content, bool) {
	if len(p) < 12 || p[0] != 1 || be.Uint32(p[4:]) != 0 {
		return Content{}, false
	}
	const number, str = 8, 9
	c, found := Content{}, false
	for p = p[12:]; len(p) >= 24; {
		size := be.Uint32(p)
		if size < 24 || int64(size) > int64(len(p)) {
			break
		}
		pair := p[8:size]
		p = p[size:]
		name, rest := readXDRString(pair)
		switch {
		case len(rest) < 12:
			continue
		case name == "name" && be.Uint32(rest) == str:
			c.Label, _ = readXDRString(rest[8:])
		case name == "pool_guid" && be.Uint32(rest) == number && len(rest) >= 16:
			found = true
		}
	}
	c.Label = cleanText([]byte(c.Label))
	c.Part = withName("a ZFS pool", c.Label)
	return c, found
}

// readXDRString returns the string at the start of p, and what follows it; nil if it is cut off.
func readXDRString(p []byte) (string, []byte) {
	if len(p) < 4 || int64(be.Uint32(p)) > int64(len(p)-4) {
		return "", nil
	}
	n := int(be.Uint32(p))
	return string(p[4 : 4+n]), p[min(4+(n+3)&^3, len(p)):]
}

// readBcachefs reads the label, sets Part if there are several devices, and returns true.
func readBcachefs(s *source, at int64) (Content, bool) {
	p := s.bytesAt(at, 104)
	c := Content{Label: cleanText(p[48:80])}
	if n := p[98]; n > 1 {
		c.Part = withName(fmt.Sprintf("a bcachefs over %d devices", n), c.Label)
	}
	return c, true
}
