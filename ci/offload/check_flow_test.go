package offload

import (
	"bytes"
	endian "encoding/binary"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"slipway/ci/report"
	"slipway/ci/suite"
	"slipway/ci/suite/suitetest"
	"slipway/images"
)

const flowSuite = "flow: {a rule moves DNS: {packets: 7, other-packets: 3}}"

func TestFlow(t *testing.T) {
	apart := simulatedSpec
	apart.Other = nil
	parts := images.DPU{Ports: simulatedSpec.Ports}
	for _, tt := range []struct {
		name, driver, fault string
		spec                *images.DPU
		want                string // of what was seen
		proves              report.Proof
	}{
		{"in software", "net_swflow", "", &simulatedSpec, "passed: port 0 pf0vf0 is net_swflow, port 1 p0 is net_swflow; without a rule: 105 by the kernel, 12 no further; " +
			"with both rules: 24 rewritten to to, 47 rewritten to other, 34 by the kernel, 12 no further; the rule counts 24 packets, ", report.ProvesSoftware},
		{"in hardware", "mlx5_pci", "", &simulatedSpec, "rule 1 is gone; with the wider rule: 71 rewritten to other, 34 by the kernel, 12 no further; the wider rule counts 118 packets", report.ProvesHardware},
		{"once both are gone", "mlx5_pci", "", &simulatedSpec, "; rule 0 is gone; without a rule: 105 by ", report.ProvesHardware},
		{"a bridge that floods", "net_swflow", "floods", &simulatedSpec, "rule 0 is gone", report.ProvesSoftware},
		{"a driver that nobody knows", "net_new", "", &simulatedSpec, "the rule counts 24 packets", ""},
		{"nowhere else", "net_swflow", "", &apart, "; rule 0 is gone; without a rule: 105 by the kernel", report.ProvesSoftware},
		{"no traffic", "mlx5_pci", "", &parts, "no packets were sent: dpu in the board's board.yml has no from and to; port 0 pf0vf0 is mlx5_pci, port 1 p0 is mlx5_pci; rule 0 is gone", report.ProvesParts},
		{"no section", "", "", nil, "skipped: the board's board.yml has no section dpu", ""},
		{"no testpmd", "", "no dpdk-testpmd", &simulatedSpec, "skipped: the board lacks what it needs: it has no program dpdk-testpmd", ""},
		{"no tcpdump", "", "no tcpdump", &simulatedSpec, "skipped: there is no tcpdump where packets are sent, pass or arrive: in leaf2 tcpdump", ""},
		{"no python3", "", "no python3", &simulatedSpec, "skipped: there is no python3 where packets are sent, pass or arrive: in vf0 python3", ""},
		{"the capture fails", "", "tcpdump fails", &simulatedSpec, "failed: tcpdump on eth0 ended: tcpdump: eth0: No such device exists", ""},
		{"nothing is sent", "net_swflow", "does not send", &simulatedSpec, "python3 exited with 1: no output", ""},
		{"testpmd fails", "", "does not start", &simulatedSpec, "Cannot init EAL: Permission denied", ""},
		{"the rule is refused", "net_tap", "refuses", &simulatedSpec, "failed: the driver refused the rule", ""},
		{"the source stays", "net_swflow", "keeps the source", &simulatedSpec, "failed: with both rules: UDP to port 53: the source MAC is " + vfMAC + ", not " + p0MAC + ", of 7 packets at to", ""},
		{"the destination stays", "net_swflow", "keeps the destination", &simulatedSpec, "failed: with both rules: UDP to port 53: 0 packets at to, not 7", ""},
		{"a wrong MAC", "net_swflow", "sets a wrong MAC", &simulatedSpec, "7 packets at to are for a MAC that nobody has", ""},
		{"the TTL stays", "net_swflow", "keeps the TTL", &simulatedSpec, "failed: with both rules: UDP to port 53: the TTL is 64, not 63, of 7 packets at to", ""},
		{"the checksum stays", "net_swflow", "keeps the checksum", &simulatedSpec, "the checksum of the IPv4 header is 0x0100, not 0x0000, of 7 packets at to", ""},
		{"the sum of UDP", "net_swflow", "breaks the sum of UDP", &simulatedSpec, "the checksum of UDP is 0x", ""},
		{"the payload", "net_swflow", "breaks the payload", &simulatedSpec, "the payload is 0x", ""},
		{"a byte less", "net_swflow", "cuts a byte", &simulatedSpec, "the frame has 67 bytes, not 68, of 7 packets at to; the capture has 67 of its 68 bytes, of 7 packets at to", ""},
		{"a byte more", "net_swflow", "adds a byte", &simulatedSpec, "the frame has 69 bytes, not 68, of 7 packets at to", ""},
		{"lost ones", "net_swflow", "loses every 20th", &simulatedSpec, "failed: with both rules: ", ""},
		{"another order", "net_swflow", "swaps two", &simulatedSpec, "3 packets at to arrived behind later ones", ""},
		{"twice", "net_swflow", "sends it twice", &simulatedSpec, "14 packets at to, not 7; 7 packets at to arrived twice", ""},
		{"the slow path has them too", "net_swflow", "sends a copy", &simulatedSpec, "7 packets at other, not 0; 7 packets at the kernel's pf0vf0, not 0; 7 packets at the kernel's p0, not 0", ""},
		{"the kernel has them too", "net_swflow", "tells the kernel", &simulatedSpec, "UDP to port 53: 7 packets at the kernel's pf0vf0, not 0", ""},
		{"they come back too", "net_swflow", "sends it back", &simulatedSpec, "7 packets at from, not 0", ""},
		{"TCP too", "net_swflow", "moves TCP too", &simulatedSpec, "with both rules: TCP to port 53: 3 packets at to, not 0", ""},
		{"tags too", "net_swflow", "takes tags", &simulatedSpec, "packets to port 53 with a VLAN tag: 3 packets at to, not 0; 0 packets at the kernel's pf0vf0, not 3", ""},
		{"TTL 1 too", "net_swflow", "takes TTL 1", &simulatedSpec, "UDP to port 53 with TTL 1: 3 packets at to, not 0", ""},
		{"any source", "net_swflow", "takes any source", &simulatedSpec, "UDP to port 53 from another address: 3 packets at to, not 0", ""},
		{"any port", "net_swflow", "takes any port", &simulatedSpec, "UDP to port 5300: 3 packets at to, not 0", ""},
		{"fragments too", "net_swflow", "takes fragments", &simulatedSpec, "fragments of UDP to port 53: 6 packets at to, not 0", ""},
		{"the other port's", "net_swflow", "takes any port's", &simulatedSpec, "with both rules: packets to port 53 that come in by the other port: 3 packets at to or from, not 0", ""},
		{"a bit of the port", "net_swflow", "ignores a bit of ports", &simulatedSpec, "UDP to port 49: 2 packets at to, not 0", ""},
		{"any type", "net_swflow", "takes any type", &simulatedSpec, "packets to port 53 of another EtherType: 3 packets at to, not 0", ""},
		{"TTL 0 too", "net_swflow", "takes TTL 0", &simulatedSpec, "packets to port 53 with TTL 0: 3 packets at to, not 0", ""},
		{"what is over", "net_swflow", "damages what is over", &simulatedSpec, "UDP to port 53 with TTL 1: the frame is not as it was sent, of 3 packets at the kernel's pf0vf0", ""},
		{"a checksum that was not there", "net_swflow", "makes checksums", &simulatedSpec, "UDP to port 53 without a checksum: the checksum of UDP is 0x0100, not 0x0000, of 2 packets at to", ""},
		{"long ones", "net_swflow", "loses long ones", &simulatedSpec, "with both rules: UDP to port 53: 6 packets at to, not 7", ""},
		{"no options", "net_swflow", "does not know options", &simulatedSpec, "UDP to port 5300 with 53 in an IP option: 3 packets at to, not 0", ""},
		{"the older rule", "net_swflow", "does the older rule", &simulatedSpec, "with both rules: UDP to port 53: 0 packets at to, not 7", ""},
		{"a wrong count", "net_swflow", "counts twice", &simulatedSpec, "failed: the rule counts 48 packets, ", ""},
		{"a wrong count of bytes", "net_swflow", "counts no headers", &simulatedSpec, "failed: the rule counts 24 packets, ", ""},
		{"an old count", "net_swflow", "knows nothing yet", &simulatedSpec, "failed: the rule counts 0 packets, 0 bytes", ""},
		{"a count that is gone", "mlx5_pci", "forgets its count", &simulatedSpec, "and when asked again 0 and 0", ""},
		{"the rule stays", "net_swflow", "keeps the rule", &simulatedSpec, "failed: the rule still answers: COUNT:", ""},
		{"only its name stays", "net_swflow", "answers for ever", &simulatedSpec, "failed: the rule still answers: COUNT:", ""},
		{"the other rule goes", "net_swflow", "destroys the other rule", &simulatedSpec, "failed: the rule still answers: COUNT:", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := &simulatedDPU{driver: tt.driver, faults: map[string]bool{tt.fault: true}, recorded: suitetest.Recorded{"true": ""}}
			shortenTimeouts(t)
			r := d.runCheck(t, tt.spec, flowSuite)
			if got := suitetest.FormatResult(r); !strings.Contains(got, tt.want) || r.Proves != tt.proves {
				t.Errorf("proves %q: %s\nwant %q: %s", r.Proves, got, tt.proves, tt.want)
			}
		})
	}
}

// TestFlowGroupsAndPlain covers rules of a group and rules without transfer.
func TestFlowGroupsAndPlain(t *testing.T) {
	const group, plain = "flow: {a rule moves DNS: {packets: 7, other-packets: 3, group: 1}}", "flow: {a rule receives DNS: {packets: 7, other-packets: 3, transfer: false}}"
	apart := simulatedSpec
	apart.Other = nil
	parts := images.DPU{Ports: simulatedSpec.Ports}
	for _, tt := range []struct {
		name, suite, fault string
		spec               *images.DPU
		want               string
	}{
		{"a group", group, "", &simulatedSpec, "without a rule: 105 by the kernel, 12 no further; the rule counts 0 packets, 0 bytes; the wider rule counts 0 packets, 0 bytes; " +
			"with both rules: 24 rewritten to to, 47 rewritten to other, 34 by the kernel, 12 no further; the rule counts 24 packets, "},
		{"no jump", group, "does not jump", &simulatedSpec, "failed: with both rules: UDP to port 53: 0 packets at to, not 7"},
		{"without a jump", group, "jumps by itself", &simulatedSpec, "failed: without a rule: UDP to port 53: 7 packets at to, not 0"},
		{"a jump that stays", group, "keeps the rule", &simulatedSpec, "failed: the rule still answers: COUNT:"},
		{"no other", group, "", &apart, "skipped: dpu in the board's board.yml has no other; "},
		{"rules are not freed", group, "leaks rules", &simulatedSpec, "failed: once the rules were destroyed: 98 objects, 2048 free buffers"},
		{"without transfer", plain, "", &simulatedSpec, "passed: port 0 pf0vf0 is net_swflow, port 1 p0 is net_swflow; without a rule: 105 by the kernel, 12 no further; " +
			"with the rule: 81 by the kernel, 6 no further, 30 by testpmd; the rule counts 30 packets, "},
		{"and with a wider rule", plain, "", &simulatedSpec, "with both rules: 71 rewritten to other, 34 by the kernel, 6 no further, 6 by testpmd; "},
		{"nowhere else", plain, "", &apart, "rule 0 is gone; without a rule: 105 by the kernel"},
		{"the kernel has them too", plain, "tells the kernel", &simulatedSpec, "failed: with the rule: UDP to port 53: 7 packets at other, not 0; 7 packets at the kernel's pf0vf0, not 0"},
		{"another group", group, "mixes groups", &simulatedSpec, "failed: with both rules: UDP to port 53: 0 packets at to, not 7"},
		{"a flush that does nothing", group, "does not flush", &simulatedSpec, "failed: without a rule: UDP to port 53: 0 packets at the kernel's pf0vf0, not 7"},
		{"they are damaged", plain, "damages what it receives", &simulatedSpec, "failed: with the rule: UDP to port 53: the payload is 0x"},
		{"nothing comes back", plain, "sends nothing back", &simulatedSpec, "failed: with the rule: UDP to port 53: 0 packets at from, not 7"},
		{"they are lost", plain, "loses them", &simulatedSpec, "failed: testpmd received 0 packets"},
		{"before those with transfer", plain, "does plain rules first", &simulatedSpec, "failed: with both rules: UDP to port 53: 0 packets at other, not 7"},
		{"buffers are not freed", plain, "leaks buffers", &simulatedSpec, " free buffers"},
		{"no traffic", group, "", &parts, "rule 0 is gone"},
		{"no traffic, without transfer", plain, "", &parts, "rule 0 is gone"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := &simulatedDPU{driver: "net_swflow", faults: map[string]bool{tt.fault: true}, recorded: suitetest.Recorded{"true": ""}}
			shortenTimeouts(t)
			if got := suitetest.FormatResult(d.runCheck(t, tt.spec, tt.suite)); !strings.Contains(got, tt.want) {
				t.Errorf("%s\nwant %s", got, tt.want)
			}
		})
	}
	if _, err := suite.Load(suitetest.WriteSuite(t, map[string]string{"main.yml": "flow: {a: {group: 1, transfer: false}}"})); err == nil || !strings.Contains(err.Error(), "only one of group") {
		t.Errorf("LoadSuite = %v; want an error", err)
	}
}

// ruleFrame returns a frame that matches the rule.
func ruleFrame(payload string) []byte {
	d := datagram{
		source: netip.MustParseAddr(vfIP), target: netip.MustParseAddr(leaf2IP), protocol: protocolUDP, fromPort: sourcePort, toPort: 53,
		ttl: 64, checksum: 0xfeff, payload: []byte(payload),
	}
	return d.buildFrame(parseMAC(vfMAC), parseMAC(portMAC))
}

func TestReadPackets(t *testing.T) {
	good := ruleFrame("payload")
	for _, tt := range []struct {
		name, capture string
		packets       int
		wantErr       string
	}{
		{"two packets", string(captureHeader) + string(pcapPacket(good)) + string(pcapPacket(good)), 2, ""},
		{"none", string(captureHeader), 0, ""},
		{"nothing", "", 0, "read the capture's header: EOF"},
		{"an error's text", "tcpdump: permission denied on eth0", 0, "is no capture"},
		{"another link", string(captureHeader[:20]) + "\x71\x00\x00\x00", 0, "link type 113"},
		{"cut", string(captureHeader) + string(pcapPacket(good)) + string(pcapPacket(good)[:40]), 1, "ends after 1 packets"},
		{"a huge packet", string(captureHeader) + "\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\x7f\x00\x00\x00\x00", 0, "a packet of 2147483647 bytes"},
		{"of a huge packet", string(captureHeader) + "\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\xff\xff\xff\x7f", 0, "a packet of 2147483647 bytes"},
	} {
		n := 0
		err := readPackets(strings.NewReader(tt.capture), func(c captured) {
			n++
			if !bytes.Equal(c.frame, good) || c.size != len(good) {
				t.Errorf("%s: %+v", tt.name, c)
			}
		})
		if n != tt.packets || tt.wantErr == "" && err != nil || tt.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tt.wantErr)) {
			t.Errorf("%s: readPackets = %d packets, %v; want %d, %q", tt.name, n, err, tt.packets, tt.wantErr)
		}
	}
}

// The checksums were computed with another implementation from the same packets (python3, by hand).
func TestFrames(t *testing.T) {
	udp := ruleFrame("payload")
	ip, body := udp[etherBytes:etherBytes+ipv4Bytes], udp[etherBytes+ipv4Bytes:]
	if got := endian.BigEndian.Uint16(ip[ipChecksum:]); got != 0xfeff || internetChecksum(ip) != 0 {
		t.Errorf("the header's checksum is %#x, over it %#x; want 0xfeff and 0", got, internetChecksum(ip))
	}
	pseudo := slices.Concat(ip[12:20], []byte{0, protocolUDP, 0, byte(len(body))}, body)
	if internetChecksum(pseudo) != 0 {
		t.Errorf("the checksum over the datagram is %#x; want 0", internetChecksum(pseudo))
	}
	out := routeFrame(udp, parseMAC(p0MAC), parseMAC(leaf2MAC))
	if got := out[etherBytes+ipTTL]; got != 63 || internetChecksum(out[etherBytes:etherBytes+ipv4Bytes]) != 0 || endian.BigEndian.Uint16(out[etherBytes+ipChecksum:]) != 0 {
		t.Errorf("routed: TTL %d, %x", got, out)
	}
	if got := compareFrames(out, captured{out, len(out)}); len(got) != 0 {
		t.Errorf("compareFrames of the same = %v", got)
	}
	pieces := fragmentFrame(ruleFrame(strings.Repeat("x", 100)), 48)
	if len(pieces) != 2 || len(pieces[0]) != etherBytes+ipv4Bytes+48 || pieces[0][etherBytes+ipFragment] != 0x20 || pieces[1][etherBytes+ipFragment+1] != 6 {
		t.Errorf("fragmentFrame = %x", pieces)
	}
}

// compareFrames must find each changed byte of a frame and name its part.
func TestDifferences(t *testing.T) {
	tcp := datagram{source: netip.MustParseAddr(vfIP), target: netip.MustParseAddr(leaf2IP), protocol: protocolTCP, ttl: 9, options: make([]byte, 8), payload: []byte("odd")}
	for _, want := range [][]byte{ruleFrame("payload"), tcp.buildFrame(parseMAC(vfMAC), parseMAC(p0MAC)), fragmentFrame(ruleFrame(strings.Repeat("x", 100)), 48)[1]} {
		for i := range want {
			if i == 12 || i == 13 {
				continue // the EtherType: a frame with another one is never captured
			}
			got := bytes.Clone(want)
			got[i] ^= 0x10
			if all := compareFrames(want, captured{got, len(got)}); len(all) != 1 {
				t.Errorf("byte %d: differences = %q", i, all)
			}
		}
	}
}

func FuzzPackets(f *testing.F) {
	good := ruleFrame("payload")
	f.Add(append(bytes.Clone(captureHeader), pcapPacket(good)...))
	f.Add(append(bytes.Clone(captureHeader), pcapPacket(good[:40])...))
	f.Add(append(bytes.Clone(captureHeader), pcapPacket(append(bytes.Clone(good), packetMark([]byte("12345678"), 1, 2)...))...))
	f.Add([]byte("\xa1\xb2\xc3\xd4"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c := capture{mark: []byte("12345678"), seen: map[int][]arrival{}}
		readPackets(bytes.NewReader(data), c.addFrame)
		for sample, all := range c.seen {
			for _, a := range all {
				if len(a.frame) < etherBytes || sample > 0xffff {
					t.Errorf("%d: %+v", sample, a)
				}
				compareFrames(good, a.captured)
			}
		}
	})
}

// FuzzTestpmd parses arbitrary output as testpmd's.
func FuzzTestpmd(f *testing.F) {
	f.Add("0    02:00:00:00:00:0A net_swflow0  net_swflow     up       25 Gbps\r\n")
	f.Add("COUNT:\n hits_set: 1\n bytes_set: 1\n hits: 7\n bytes: 420\n")
	f.Add("\x1b[0mtestpmd> testpmd> ")
	f.Fuzz(func(t *testing.T, text string) {
		for _, p := range parsePorts(text) {
			if p.number < 0 || p.driver == "" {
				t.Errorf("%+v", p)
			}
		}
		if n, err := parseCount(text); err == nil && (n.packets < 0 || n.bytes < 0) {
			t.Errorf("count %+v", n)
		}
		pmd := &testpmd{keys: io.Discard, screen: strings.NewReader(text)}
		if out, err := pmd.readUntil(testpmdPrompt); err == nil && strings.Contains(out, testpmdPrompt) {
			t.Errorf("until = %q", out)
		}
	})
}
