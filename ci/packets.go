package ci

import (
	"bytes"
	endian "encoding/binary" // binary is a kind of check
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
)

// Limits of a capture. What is sent by a check is far less.
const (
	maxPackets     = 200_000
	maxPacketBytes = 64 << 10
)

// packet is what is read of an Ethernet frame that holds IPv4, and in it UDP or the
// opening of a connection by TCP.
type packet struct {
	from, to         net.HardwareAddr
	source, target   netip.Addr
	ttl              int
	checksum         bool // of the IPv4 header is right
	protocol         byte
	fromPort, toPort uint16
	payload          []byte
}

// readPackets reads a capture as tcpdump -w writes it, while it is written, and gives
// each packet that it knows to take. Others are left out; a frame that was cut has what there
// is of its payload.
func readPackets(r io.Reader, take func(packet)) error {
	order, err := pcapHeader(r)
	if err != nil {
		return err
	}
	for n := 0; ; n++ {
		frame, err := pcapRecord(r, order)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil || n == maxPackets {
			return errors.Join(err, fmt.Errorf("the capture ends after %d packets", n))
		}
		if p, ok := parseFrame(frame); ok {
			take(p)
		}
	}
}

const linkEthernet = 1

// pcapHeader reads what a capture begins with. Its first number says in which order all
// of them are written.
func pcapHeader(r io.Reader) (endian.ByteOrder, error) {
	var head [24]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, fmt.Errorf("read the capture's header: %w", err)
	}
	var order endian.ByteOrder = endian.LittleEndian
	switch magic := endian.BigEndian.Uint32(head[:4]); magic {
	case 0xa1b2c3d4, 0xa1b23c4d:
		order = endian.BigEndian
	case 0xd4c3b2a1, 0x4d3cb2a1:
	default:
		return nil, fmt.Errorf("%08x is no capture of tcpdump's", magic)
	}
	if link := order.Uint32(head[20:]) & 0xffff; link != linkEthernet {
		return nil, fmt.Errorf("the capture is of link type %d, not of Ethernet", link)
	}
	return order, nil
}

func pcapRecord(r io.Reader, order endian.ByteOrder) ([]byte, error) {
	var head [16]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	size := order.Uint32(head[8:])
	if size > maxPacketBytes {
		return nil, fmt.Errorf("a packet of %d bytes", size)
	}
	frame := make([]byte, size)
	if _, err := io.ReadFull(r, frame); err != nil {
		return nil, io.ErrUnexpectedEOF
	}
	return frame, nil
}

const (
	etherBytes = 14
	ipv4Bytes  = 20 // at least
	udpBytes   = 8
	tcpBytes   = 20 // at least

	etherIPv4   = 0x0800
	protocolTCP = 6
	protocolUDP = 17

	tcpSYN, tcpACK = 1 << 1, 1 << 4
)

// parseFrame reads a frame, where it holds whole headers of a packet's.
func parseFrame(b []byte) (packet, bool) {
	if len(b) < etherBytes+ipv4Bytes || endian.BigEndian.Uint16(b[12:]) != etherIPv4 {
		return packet{}, false
	}
	ip := b[etherBytes:]
	header := int(ip[0]&15) * 4
	if ip[0]>>4 != 4 || header < ipv4Bytes || len(ip) < header {
		return packet{}, false
	}
	p := packet{
		from: bytes.Clone(b[6:12]), to: bytes.Clone(b[:6]),
		source: netip.AddrFrom4([4]byte(ip[12:16])), target: netip.AddrFrom4([4]byte(ip[16:20])),
		ttl: int(ip[8]), checksum: checksum(ip[:header]) == 0, protocol: ip[9],
	}
	return p, p.readPorts(ip[header:])
}

// readPorts reads what stands behind the header of IPv4.
func (p *packet) readPorts(b []byte) bool {
	switch {
	case p.protocol == protocolUDP && len(b) >= udpBytes:
		size := max(int(endian.BigEndian.Uint16(b[4:])), udpBytes)
		p.payload = bytes.Clone(b[udpBytes:min(size, len(b))])
	case p.protocol == protocolTCP && len(b) >= tcpBytes && b[13]&(tcpSYN|tcpACK) == tcpSYN:
	default:
		return false
	}
	p.fromPort, p.toPort = endian.BigEndian.Uint16(b), endian.BigEndian.Uint16(b[2:])
	return true
}

// checksum is IPv4's: of a header that holds its own it is 0.
func checksum(header []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(header); i += 2 {
		sum += uint32(endian.BigEndian.Uint16(header[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
