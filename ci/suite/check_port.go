package suite

import (
	"context"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"slipway/ci/suite/match"
	"slipway/layers/plaintext"
)

// port is a port that a program on the board listens on, or must not listen on.
type port struct {
	protocol  string // tcp, tcp6, udp, udp6
	number    uint16
	listening bool
	ip        match.Matcher
}

func readPort(e *Entry) Probe {
	p := port{protocol: "tcp", ip: e.Matcher("ip", match.List), listening: true}
	name := e.Text("port", e.Name)
	text := name
	if protocol, rest, ok := strings.Cut(name, ":"); ok {
		p.protocol, text = protocol, rest
	}
	number, err := strconv.ParseUint(text, 10, 16)
	if err != nil || number == 0 || !slices.Contains([]string{"tcp", "tcp6", "udp", "udp6"}, p.protocol) {
		e.Fail(e.Key, "%q is not a port like tcp:22 (tcp, tcp6, udp or udp6)", name)
	}
	p.number = uint16(number)
	if l := e.Flag("listening"); l != nil {
		p.listening = *l
	}
	return p
}

// socket is a listening socket of /proc/net.
type socket struct {
	protocol string
	ip       netip.Addr
	port     uint16
}

// tcpListen is the state of a listening TCP socket. UDP has no such state. As in goss, all
// UDP sockets count as listening.
const tcpListen = "0A"

// parseSockets reads /proc/net/tcp, tcp6, udp and udp6, as grep -H prints them.
func parseSockets(text string) []socket {
	var found []socket
	for _, line := range plaintext.Lines(text) {
		file, rest, ok := strings.Cut(line, ":")
		protocol := file[strings.LastIndexByte(file, '/')+1:]
		fields := strings.Fields(rest)
		if !ok || len(fields) < 4 || strings.HasPrefix(protocol, "tcp") && fields[3] != tcpListen {
			continue
		}
		address, number, _ := strings.Cut(fields[1], ":")
		ip, okIP := kernelAddress(address)
		p, err := strconv.ParseUint(number, 16, 16)
		if okIP && err == nil {
			found = append(found, socket{protocol, ip, uint16(p)})
		}
	}
	return found
}

// kernelAddress reads an address as the kernel of a little-endian board prints it: each
// group of four bytes is reversed.
func kernelAddress(text string) (netip.Addr, bool) {
	raw, err := hex.DecodeString(text)
	if err != nil || len(raw) != 4 && len(raw) != 16 {
		return netip.Addr{}, false
	}
	for i := 0; i < len(raw); i += 4 {
		slices.Reverse(raw[i : i+4])
	}
	return netip.AddrFromSlice(raw)
}

func (p port) Inspect(ctx context.Context, s *Session) (Finding, error) {
	var f Finding
	// A kernel without IPv6 lacks some of the files. grep's status is then not 0.
	r, err := s.Board.Run(ctx, "grep", "-Hs", ":", "/proc/net/tcp", "/proc/net/tcp6", "/proc/net/udp", "/proc/net/udp6")
	if err != nil {
		return f, err
	}
	if len(r.Stdout) == 0 {
		return f, fmt.Errorf("read /proc/net/tcp: %s", DescribeResult(r))
	}
	if isCut, _ := truncatedOutputs(r); isCut {
		return f, fmt.Errorf("read /proc/net: %w: there is %s", errTruncated, moreThan(len(r.Stdout)))
	}
	p.checkSockets(&f, parseSockets(string(r.Stdout)))
	return f, nil
}

func (p port) checkSockets(f *Finding, all []socket) {
	var ips, elsewhere []string
	for _, s := range all {
		switch {
		case s.port != p.number:
		case s.protocol == p.protocol:
			ips = append(ips, s.ip.String())
		default:
			elsewhere = append(elsewhere, s.protocol+":"+s.ip.String())
		}
	}
	name := fmt.Sprintf("%s:%d", p.protocol, p.number)
	saw := "nothing listens on " + name
	if len(ips) > 0 {
		saw = name + " is listened on at " + strings.Join(ips, ", ")
	} else if len(elsewhere) > 0 {
		saw += "; that port is listened on at " + strings.Join(elsewhere, ", ")
	}
	f.Expect(p.listening == (len(ips) > 0), plaintext.Either(p.listening, "something listens on "+name, "nothing listens on "+name), saw)
	if p.listening && len(ips) > 0 {
		f.ExpectMatch("ip", p.ip, ips, "at "+strings.Join(ips, ", "))
	}
}

func (p port) Next() string {
	return fmt.Sprintf("on the board: ss -lnp | grep :%d; then the journal of the service that should listen there", p.number)
}
