package offload

import (
	endian "encoding/binary" // binary is a kind of check
	"errors"
	"fmt"
	"io"
)

// Limits of a capture. A check sends far less.
const (
	maxPackets     = 200_000
	maxPacketBytes = 64 << 10
)

// captured is a frame of a capture, with its size before tcpdump truncated it.
type captured struct {
	frame []byte
	size  int
}

// readPackets reads a capture from tcpdump -w until the capture ends, and calls add with each
// frame. It fails after maxPackets frames.
func readPackets(r io.Reader, add func(captured)) error {
	order, err := pcapHeader(r)
	if err != nil {
		return err
	}
	for n := 0; ; n++ {
		c, err := pcapRecord(r, order)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil || n == maxPackets {
			return errors.Join(err, fmt.Errorf("the capture ends after %d packets", n))
		}
		add(c)
	}
}

const linkEthernet = 1

// pcapHeader reads a pcap capture's header, and returns its byte order. It must be of Ethernet.
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

// pcapRecord reads the next frame, of at most maxPacketBytes, of a pcap capture, or io.EOF.
func pcapRecord(r io.Reader, order endian.ByteOrder) (c captured, err error) {
	var head [16]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return c, err
	}
	kept, size := order.Uint32(head[8:]), order.Uint32(head[12:])
	if kept > maxPacketBytes || size > maxPacketBytes {
		return c, fmt.Errorf("a packet of %d bytes", max(kept, size))
	}
	c = captured{make([]byte, kept), int(size)}
	if _, err := io.ReadFull(r, c.frame); err != nil {
		return c, io.ErrUnexpectedEOF
	}
	return c, nil
}
