package offload

import (
	"bytes"
	endian "encoding/binary" // binary is a kind of check
	"fmt"
	"net"
	"net/netip"
	"slices"
)

const (
	etherBytes = 14
	ipv4Bytes  = 20 // without options
	udpBytes   = 8
	tcpBytes   = 20 // without options

	etherIPv4   = 0x0800
	etherTagged = 0x8100
	etherOther  = 0x88b5 // for experiments: nobody forwards it
	protocolTCP = 6
	protocolUDP = 17

	protocolUDPLite = 136 // has UDP's ports where UDP has them

	dontFragment, moreFragments = 0x4000, 0x2000
)

// Offsets of fields in the headers of IPv4, UDP and TCP.
const (
	ipTOS, ipTotal, ipID, ipFragment, ipTTL, ipProtocol, ipChecksum = 1, 2, 4, 6, 8, 9, 10

	udpChecksum, tcpChecksum = 6, 16
)

// etherMTU is the size of an IPv4 packet that every interface accepts.
const etherMTU = 1500

// The UDP and TCP checksums that a packet may have. Routers do not check them.
const (
	rightSum = iota
	noSum    // zero, which in UDP means that there is no checksum
	onesSum  // all ones, which UDP uses for a checksum of zero
	wrongSum
)

// datagram is an IPv4 packet to send. The check builds the whole frame, to know what must arrive.
type datagram struct {
	source, target   netip.Addr
	protocol         byte
	fromPort, toPort uint16
	ttl, tos         byte
	whole            bool   // with the flag "don't fragment"
	options          []byte // of IPv4, a multiple of 4 bytes
	flags            byte   // of TCP
	sum              int    // which checksum of UDP or TCP: rightSum, noSum, onesSum or wrongSum
	checksum         uint16 // of the IPv4 header, not 0xffff; buildFrame chooses the identification that leads to it
	payload          []byte
}

// buildFrame returns the packet's Ethernet frame. It chooses the IPv4 identification by which the
// checksum of the header is d.checksum.
func (d datagram) buildFrame(from, to net.HardwareAddr) []byte {
	ip := append(make([]byte, ipv4Bytes), d.options...)
	ip[0] = 4<<4 | byte(len(ip)/4)
	body := d.buildBody()
	endian.BigEndian.PutUint16(ip[ipTotal:], uint16(len(ip)+len(body)))
	ip[ipTOS], ip[ipTTL], ip[ipProtocol] = d.tos, d.ttl, d.protocol
	if d.whole {
		endian.BigEndian.PutUint16(ip[ipFragment:], dontFragment)
	}
	copy(ip[12:], d.source.AsSlice())
	copy(ip[16:], d.target.AsSlice())
	endian.BigEndian.PutUint16(ip[ipID:], addOnesComplement(^d.checksum, internetChecksum(ip)))
	endian.BigEndian.PutUint16(ip[ipChecksum:], internetChecksum(ip))
	return slices.Concat(to, from, []byte{etherIPv4 >> 8, etherIPv4 & 255}, ip, body)
}

// layer4Bytes returns the length of the TCP header, or for any other protocol of the UDP header.
func (d datagram) layer4Bytes() int {
	if d.protocol == protocolTCP {
		return tcpBytes
	}
	return udpBytes
}

// buildBody returns the bytes after the IPv4 header: UDP or TCP with d.sum's checksum, and payload.
// For onesSum it also fills two zero bytes after the payload's mark, so that the checksum is right.
func (d datagram) buildBody() []byte {
	header, at := make([]byte, d.layer4Bytes()), udpChecksum
	if d.protocol == protocolTCP {
		at = tcpChecksum
		header[12], header[13] = tcpBytes/4<<4, d.flags
	} else {
		endian.BigEndian.PutUint16(header[4:], uint16(udpBytes+len(d.payload)))
	}
	endian.BigEndian.PutUint16(header, d.fromPort)
	endian.BigEndian.PutUint16(header[2:], d.toPort)
	body := append(header, d.payload...)
	pseudo := slices.Concat(d.source.AsSlice(), d.target.AsSlice(), []byte{0, d.protocol, byte(len(body) >> 8), byte(len(body))})
	sum := internetChecksum(append(pseudo, body...))
	switch {
	case d.sum == noSum:
		sum = 0
	case d.sum == wrongSum:
		sum ^= 0x5a5a
	case d.sum == onesSum:
		endian.BigEndian.PutUint16(body[len(header)+markedBytes:], sum) // over the zeros of the payload
		sum = 0xffff
	case sum == 0 && d.protocol == protocolUDP:
		sum = 0xffff // zero means that there is none
	}
	endian.BigEndian.PutUint16(body[at:], sum)
	return body
}

// fragmentFrame splits a frame without IP options into two fragments, with first bytes (a multiple
// of 8) after the IPv4 header in the first one.
func fragmentFrame(frame []byte, first int) [][]byte {
	head, body := frame[:etherBytes+ipv4Bytes], frame[etherBytes+ipv4Bytes:]
	piece := func(body []byte, place uint16) []byte {
		b := slices.Concat(head, body)
		ip := b[etherBytes : etherBytes+ipv4Bytes]
		endian.BigEndian.PutUint16(ip[ipTotal:], uint16(ipv4Bytes+len(body)))
		endian.BigEndian.PutUint16(ip[ipFragment:], place)
		setHeaderChecksum(ip)
		return b
	}
	return [][]byte{piece(body[:first], moreFragments), piece(body[first:], uint16(first/8))}
}

// addVLANTag returns the frame with an 802.1Q tag.
func addVLANTag(frame []byte, vlan uint16) []byte {
	return slices.Concat(frame[:12], []byte{etherTagged >> 8, etherTagged & 255, byte(vlan >> 8), byte(vlan)}, frame[12:])
}

// routeFrame returns an untagged frame as a router forwards it: new MAC addresses, TTL less one.
func routeFrame(frame []byte, from, to net.HardwareAddr) []byte {
	b := slices.Concat(to, from, frame[12:])
	ip := b[etherBytes : etherBytes+headerBytes(b)]
	ip[ipTTL]--
	setHeaderChecksum(ip)
	return b
}

// swapMACs returns the frame with its MAC addresses exchanged, as testpmd sends it back.
func swapMACs(frame []byte) []byte { return slices.Concat(frame[6:12], frame[:6], frame[12:]) }

// trimPadding returns the frame without the padding after its IPv4 packet.
func trimPadding(frame []byte) []byte {
	return frame[:etherBytes+int(endian.BigEndian.Uint16(frame[etherBytes+ipTotal:]))]
}

// headerBytes returns the length of the IPv4 header in an untagged frame.
func headerBytes(frame []byte) int { return int(frame[etherBytes]&15) * 4 }

func setHeaderChecksum(ip []byte) {
	endian.BigEndian.PutUint16(ip[ipChecksum:], 0)
	endian.BigEndian.PutUint16(ip[ipChecksum:], internetChecksum(ip))
}

// internetChecksum returns the checksum of RFC 1071, as IPv4, UDP and TCP use it. It is 0 for bytes
// that contain their own correct checksum.
func internetChecksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(endian.BigEndian.Uint16(b[i:]))
	}
	if len(b)%2 == 1 {
		sum += uint32(b[len(b)-1]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// addOnesComplement adds two numbers in one's complement, as checksums are added.
func addOnesComplement(a, b uint16) uint16 {
	sum := uint32(a) + uint32(b)
	return uint16(sum>>16 + sum&0xffff)
}

// framePart is a named range of bytes of a frame.
type framePart struct {
	name     string
	from, to int
	show     func([]byte) string
}

// frameParts returns parts of an untagged frame, which overlap: shared bytes belong to the first.
func frameParts(frame []byte) []framePart {
	ip := etherBytes
	body := ip + headerBytes(frame)
	all := []framePart{
		{"the destination MAC", 0, 6, formatMAC},
		{"the source MAC", 6, 12, formatMAC},
		{"the TTL", ip + ipTTL, ip + ipTTL + 1, formatByte},
		{"the checksum of the IPv4 header", ip + ipChecksum, ip + ipChecksum + 2, formatHex},
		{"the IPv4 header", ip, body, formatHex},
	}
	if endian.BigEndian.Uint16(frame[ip+ipFragment:])&0x1fff != 0 {
		return append(all, framePart{"the fragment", body, len(frame), formatHex})
	}
	name, at, size := "UDP", udpChecksum, udpBytes
	if frame[ip+ipProtocol] == protocolTCP {
		name, at, size = "TCP", tcpChecksum, tcpBytes
	}
	return append(all,
		framePart{"the checksum of " + name, body + at, body + at + 2, formatHex},
		framePart{"the " + name + " header", body, body + size, formatHex},
		framePart{"the payload", body + size, len(frame), formatHex})
}

func formatMAC(b []byte) string  { return net.HardwareAddr(b).String() }
func formatByte(b []byte) string { return fmt.Sprint(b[0]) }
func formatHex(b []byte) string  { return fmt.Sprintf("%#x", b[:min(len(b), 24)]) }

// difference is a part of a frame that differs from the expected frame, with a text that says how.
type difference struct{ part, text string }

// compareFrames compares a captured frame with the expected one, and returns the parts that differ.
// If the captured one is too short, it compares only the length.
func compareFrames(want []byte, got captured) (all []difference) {
	if got.size != len(want) {
		all = append(all, difference{"length", fmt.Sprintf("the frame has %d bytes, not %d", got.size, len(want))})
	}
	if len(got.frame) < len(want) {
		return append(all, difference{"cut", fmt.Sprintf("the capture has %d of its %d bytes", len(got.frame), len(want))})
	}
	seen := make([]bool, len(want))
	for _, p := range frameParts(want) {
		w, g := bytes.Clone(want[p.from:p.to]), bytes.Clone(got.frame[p.from:p.to])
		for i := range w {
			if seen[p.from+i] {
				g[i] = w[i]
			}
			seen[p.from+i] = true
		}
		if !bytes.Equal(w, g) {
			at := firstDifference(w, g)
			if len(w) > 24 {
				w, g = w[at:], g[at:]
			}
			all = append(all, difference{p.name, fmt.Sprintf("%s is %s, not %s", p.name, p.show(g), p.show(w))})
		}
	}
	return all
}

// firstDifference returns the first index where a differs from b, which is not shorter, or len(a).
func firstDifference(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return len(a)
}
