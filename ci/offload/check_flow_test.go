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
	apart := playedSpec
	apart.Other = nil
	parts := images.DPU{Ports: playedSpec.Ports}
	for _, tt := range []struct {
		name, driver, fault string
		spec                *images.DPU
		want                string // of what was seen
		proves              report.Proof
	}{
		{"in software", "net_swflow", "", &playedSpec, "passed: port 0 pf0vf0 is net_swflow, port 1 p0 is net_swflow; without a rule: 105 by the kernel, 12 no further; a socket at to answers in 700µs; " +
			"with both rules: 24 rewritten to to, 47 rewritten to other, 34 by the kernel, 12 no further; the rule counts 44 packets, ", report.ProvesSoftware},
		{"in hardware", "mlx5_pci", "", &playedSpec, "rule 1 is gone; with the wider rule: 71 rewritten to other, 34 by the kernel, 12 no further; the wider rule counts 118 packets", report.ProvesHardware},
		{"once both are gone", "mlx5_pci", "", &playedSpec, "; rule 0 is gone; without a rule: 105 by ", report.ProvesHardware},
		{"a bridge that floods", "net_swflow", "floods", &playedSpec, "rule 0 is gone", report.ProvesSoftware},
		{"a driver that nobody knows", "net_new", "", &playedSpec, "the rule counts 44 packets", ""},
		{"nowhere else", "net_swflow", "", &apart, "; rule 0 is gone; without a rule: 105 by the kernel", report.ProvesSoftware},
		{"no traffic", "mlx5_pci", "", &parts, "no packets were sent: dpu in the board's board.yml has no from and to; port 0 pf0vf0 is mlx5_pci, port 1 p0 is mlx5_pci; rule 0 is gone", report.ProvesParts},
		{"no section", "", "", nil, "skipped: the board's board.yml has no section dpu", ""},
		{"no testpmd", "", "no dpdk-testpmd", &playedSpec, "skipped: the board lacks what it needs: it has no program dpdk-testpmd", ""},
		{"no tcpdump", "", "no tcpdump", &playedSpec, "skipped: there is no tcpdump where packets are sent, pass or arrive: in leaf2 tcpdump", ""},
		{"no python3", "", "no python3", &playedSpec, "skipped: there is no python3 where packets are sent, pass or arrive: in vf0 python3", ""},
		{"the capture fails", "", "tcpdump fails", &playedSpec, "failed: tcpdump on eth0 ended: tcpdump: eth0: No such device exists", ""},
		{"no socket", "net_swflow", "no socket", &playedSpec, "failed: the socket at UDP port 53 of 192.0.2.2 ended\npython3 exited with 1: no output", ""},
		{"testpmd fails", "", "does not start", &playedSpec, "Cannot init EAL: Permission denied", ""},
		{"the rule is refused", "net_tap", "refuses", &playedSpec, "failed: the driver refused the rule", ""},
		{"the source stays", "net_swflow", "keeps the source", &playedSpec, "failed: with both rules: UDP to port 53: the source MAC is " + vfMAC + ", not " + p0MAC + ", of 7 packets at to", ""},
		{"the destination stays", "net_swflow", "keeps the destination", &playedSpec, "failed: with both rules: UDP to port 53: 0 packets at to, not 7", ""},
		{"a wrong MAC", "net_swflow", "sets a wrong MAC", &playedSpec, "7 packets at to are for a MAC that nobody has", ""},
		{"the TTL stays", "net_swflow", "keeps the TTL", &playedSpec, "failed: with both rules: UDP to port 53: the TTL is 64, not 63, of 7 packets at to", ""},
		{"the checksum stays", "net_swflow", "keeps the checksum", &playedSpec, "the checksum of the IPv4 header is 0x0100, not 0x0000, of 7 packets at to", ""},
		{"the sum of UDP", "net_swflow", "breaks the sum of UDP", &playedSpec, "the checksum of UDP is 0x", ""},
		{"the payload", "net_swflow", "breaks the payload", &playedSpec, "the payload is 0x", ""},
		{"a byte less", "net_swflow", "cuts a byte", &playedSpec, "the frame has 67 bytes, not 68, of 7 packets at to; the capture has 67 of its 68 bytes, of 7 packets at to", ""},
		{"a byte more", "net_swflow", "adds a byte", &playedSpec, "the frame has 69 bytes, not 68, of 7 packets at to", ""},
		{"lost ones", "net_swflow", "loses every 20th", &playedSpec, "failed: with both rules: ", ""},
		{"another order", "net_swflow", "swaps two", &playedSpec, "3 packets at to arrived behind later ones", ""},
		{"twice", "net_swflow", "sends it twice", &playedSpec, "14 packets at to, not 7; 7 packets at to arrived twice", ""},
		{"the slow path has them too", "net_swflow", "sends a copy", &playedSpec, "7 packets at other, not 0; 7 packets at the kernel's pf0vf0, not 0; 7 packets at the kernel's p0, not 0", ""},
		{"the kernel has them too", "net_swflow", "tells the kernel", &playedSpec, "UDP to port 53: 7 packets at the kernel's pf0vf0, not 0", ""},
		{"they come back too", "net_swflow", "sends it back", &playedSpec, "7 packets at from, not 0", ""},
		{"late ones", "net_swflow", "is late", &playedSpec, "with both rules: 0 of 20 answers came within 200ms", ""},
		{"TCP too", "net_swflow", "moves TCP too", &playedSpec, "with both rules: TCP to port 53: 3 packets at to, not 0", ""},
		{"tags too", "net_swflow", "takes tags", &playedSpec, "packets to port 53 with a VLAN tag: 3 packets at to, not 0; 0 packets at the kernel's pf0vf0, not 3", ""},
		{"TTL 1 too", "net_swflow", "takes TTL 1", &playedSpec, "UDP to port 53 with TTL 1: 3 packets at to, not 0", ""},
		{"any source", "net_swflow", "takes any source", &playedSpec, "UDP to port 53 from another address: 3 packets at to, not 0", ""},
		{"any port", "net_swflow", "takes any port", &playedSpec, "UDP to port 5300: 3 packets at to, not 0", ""},
		{"fragments too", "net_swflow", "takes fragments", &playedSpec, "fragments of UDP to port 53: 6 packets at to, not 0", ""},
		{"the other port's", "net_swflow", "takes any port's", &playedSpec, "with both rules: packets to port 53 that come in by the other port: 3 packets at to or from, not 0", ""},
		{"a bit of the port", "net_swflow", "ignores a bit of ports", &playedSpec, "UDP to port 49: 2 packets at to, not 0", ""},
		{"any type", "net_swflow", "takes any type", &playedSpec, "packets to port 53 of another EtherType: 3 packets at to, not 0", ""},
		{"TTL 0 too", "net_swflow", "takes TTL 0", &playedSpec, "packets to port 53 with TTL 0: 3 packets at to, not 0", ""},
		{"what is over", "net_swflow", "damages what is over", &playedSpec, "UDP to port 53 with TTL 1: the frame is not as it was sent, of 3 packets at the kernel's pf0vf0", ""},
		{"a checksum that was not there", "net_swflow", "makes checksums", &playedSpec, "UDP to port 53 without a checksum: the checksum of UDP is 0x0100, not 0x0000, of 2 packets at to", ""},
		{"long ones", "net_swflow", "loses long ones", &playedSpec, "with both rules: UDP to port 53: 6 packets at to, not 7", ""},
		{"no options", "net_swflow", "does not know options", &playedSpec, "UDP to port 5300 with 53 in an IP option: 3 packets at to, not 0", ""},
		{"the older rule", "net_swflow", "does the older rule", &playedSpec, "with both rules: UDP to port 53: 0 packets at to, not 7", ""},
		{"a wrong count", "net_swflow", "counts twice", &playedSpec, "failed: the rule counts 88 packets, ", ""},
		{"a wrong count of bytes", "net_swflow", "counts no headers", &playedSpec, "failed: the rule counts 44 packets, ", ""},
		{"an old count", "net_swflow", "knows nothing yet", &playedSpec, "failed: the rule counts 0 packets, 0 bytes", ""},
		{"a count that is gone", "mlx5_pci", "forgets its count", &playedSpec, "and when asked again 0 and 0", ""},
		{"the rule stays", "net_swflow", "keeps the rule", &playedSpec, "failed: the rule still answers: COUNT:", ""},
		{"only its name stays", "net_swflow", "answers for ever", &playedSpec, "failed: the rule still answers: COUNT:", ""},
		{"the other rule goes", "net_swflow", "destroys the other rule", &playedSpec, "failed: the rule still answers: COUNT:", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := &playedDPU{driver: tt.driver, faults: map[string]bool{tt.fault: true}, plays: suitetest.Recorded{"true": ""}}
			shorten(t)
			r := d.prove(t, tt.spec, flowSuite)
			if got := suitetest.Verdict(r); !strings.Contains(got, tt.want) || r.Proves != tt.proves {
				t.Errorf("proves %q: %s\nwant %q: %s", r.Proves, got, tt.proves, tt.want)
			}
		})
	}
}

// Rules of a group, and those without transfer.
func TestFlowGroupsAndPlain(t *testing.T) {
	const group, plain = "flow: {a rule moves DNS: {packets: 7, other-packets: 3, group: 1}}", "flow: {a rule receives DNS: {packets: 7, other-packets: 3, transfer: false}}"
	apart := playedSpec
	apart.Other = nil
	parts := images.DPU{Ports: playedSpec.Ports}
	for _, tt := range []struct {
		name, suite, fault string
		spec               *images.DPU
		want               string
	}{
		{"a group", group, "", &playedSpec, "without a rule: 105 by the kernel, 12 no further; the rule counts 0 packets, 0 bytes; the wider rule counts 0 packets, 0 bytes; " +
			"with both rules: 24 rewritten to to, 47 rewritten to other, 34 by the kernel, 12 no further; the rule counts 44 packets, "},
		{"no jump", group, "does not jump", &playedSpec, "failed: with both rules: UDP to port 53: 0 packets at to, not 7"},
		{"without a jump", group, "jumps by itself", &playedSpec, "failed: without a rule: UDP to port 53: 7 packets at to, not 0"},
		{"a jump that stays", group, "keeps the rule", &playedSpec, "failed: the rule still answers: COUNT:"},
		{"no other", group, "", &apart, "skipped: dpu in the board's board.yml has no other; "},
		{"rules are not freed", group, "leaks rules", &playedSpec, "failed: once the rules were destroyed: 98 objects, 2048 free buffers"},
		{"without transfer", plain, "", &playedSpec, "passed: port 0 pf0vf0 is net_swflow, port 1 p0 is net_swflow; without a rule: 105 by the kernel, 12 no further; a socket at to answers in 700µs; " +
			"with the rule: 81 by the kernel, 6 no further, 30 by testpmd; the rule counts 30 packets, "},
		{"and with a wider rule", plain, "", &playedSpec, "with both rules: 71 rewritten to other, 34 by the kernel, 6 no further, 6 by testpmd; "},
		{"nowhere else", plain, "", &apart, "rule 0 is gone; without a rule: 105 by the kernel"},
		{"the kernel has them too", plain, "tells the kernel", &playedSpec, "failed: with the rule: UDP to port 53: 7 packets at other, not 0; 7 packets at the kernel's pf0vf0, not 0"},
		{"another group", group, "mixes groups", &playedSpec, "failed: with both rules: UDP to port 53: 0 packets at to, not 7"},
		{"a flush that does nothing", group, "does not flush", &playedSpec, "failed: without a rule: UDP to port 53: 0 packets at the kernel's pf0vf0, not 7"},
		{"they are damaged", plain, "damages what it receives", &playedSpec, "failed: with the rule: UDP to port 53: the payload is 0x"},
		{"nothing comes back", plain, "sends nothing back", &playedSpec, "failed: with the rule: UDP to port 53: 0 packets at from, not 7"},
		{"they are lost", plain, "loses them", &playedSpec, "failed: testpmd received 0 packets"},
		{"before those with transfer", plain, "does plain rules first", &playedSpec, "failed: with both rules: UDP to port 53: 0 packets at other, not 7"},
		{"buffers are not freed", plain, "leaks buffers", &playedSpec, " free buffers"},
		{"no traffic", group, "", &parts, "rule 0 is gone"},
		{"no traffic, without transfer", plain, "", &parts, "rule 0 is gone"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := &playedDPU{driver: "net_swflow", faults: map[string]bool{tt.fault: true}, plays: suitetest.Recorded{"true": ""}}
			shorten(t)
			if got := suitetest.Verdict(d.prove(t, tt.spec, tt.suite)); !strings.Contains(got, tt.want) {
				t.Errorf("%s\nwant %s", got, tt.want)
			}
		})
	}
	if _, err := suite.Load(suitetest.WriteSuite(t, map[string]string{"main.yml": "flow: {a: {group: 1, transfer: false}}"})); err == nil || !strings.Contains(err.Error(), "only one of group") {
		t.Errorf("LoadSuite = %v; want an error", err)
	}
}

// frame is one that is for the rule.
func frame(payload string) []byte {
	d := datagram{
		source: netip.MustParseAddr(vfIP), target: netip.MustParseAddr(leaf2IP), protocol: protocolUDP, fromPort: sourcePort, toPort: 53,
		ttl: 64, checksum: 0xfeff, payload: []byte(payload),
	}
	return d.frame(parseMAC(vfMAC), parseMAC(portMAC))
}

func TestReadPackets(t *testing.T) {
	good := frame("payload")
	for _, tt := range []struct {
		name, capture string
		packets       int
		wantErr       string
	}{
		{"two packets", string(captureHeader) + string(record(good)) + string(record(good)), 2, ""},
		{"none", string(captureHeader), 0, ""},
		{"nothing", "", 0, "read the capture's header: EOF"},
		{"an error's text", "tcpdump: permission denied on eth0", 0, "is no capture"},
		{"another link", string(captureHeader[:20]) + "\x71\x00\x00\x00", 0, "link type 113"},
		{"cut", string(captureHeader) + string(record(good)) + string(record(good)[:40]), 1, "ends after 1 packets"},
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

// Sums are those that another implementation made of the same packets (python3, by hand).
func TestFrames(t *testing.T) {
	udp := frame("payload")
	ip, body := udp[etherBytes:etherBytes+ipv4Bytes], udp[etherBytes+ipv4Bytes:]
	if got := endian.BigEndian.Uint16(ip[ipChecksum:]); got != 0xfeff || checksum(ip) != 0 {
		t.Errorf("the header's checksum is %#x, over it %#x; want 0xfeff and 0", got, checksum(ip))
	}
	pseudo := slices.Concat(ip[12:20], []byte{0, protocolUDP, 0, byte(len(body))}, body)
	if checksum(pseudo) != 0 {
		t.Errorf("the checksum over the datagram is %#x; want 0", checksum(pseudo))
	}
	out := routed(udp, parseMAC(p0MAC), parseMAC(leaf2MAC))
	if got := out[etherBytes+ipTTL]; got != 63 || checksum(out[etherBytes:etherBytes+ipv4Bytes]) != 0 || endian.BigEndian.Uint16(out[etherBytes+ipChecksum:]) != 0 {
		t.Errorf("routed: TTL %d, %x", got, out)
	}
	if got := differences(out, captured{out, len(out)}); len(got) != 0 {
		t.Errorf("differences of the same = %v", got)
	}
	pieces := split(frame(strings.Repeat("x", 100)), 48)
	if len(pieces) != 2 || len(pieces[0]) != etherBytes+ipv4Bytes+48 || pieces[0][etherBytes+ipFragment] != 0x20 || pieces[1][etherBytes+ipFragment+1] != 6 {
		t.Errorf("split = %x", pieces)
	}
}

// Each byte of a frame that is another is found, and has a name.
func TestDifferences(t *testing.T) {
	tcp := datagram{source: netip.MustParseAddr(vfIP), target: netip.MustParseAddr(leaf2IP), protocol: protocolTCP, ttl: 9, options: make([]byte, 8), payload: []byte("odd")}
	for _, want := range [][]byte{frame("payload"), tcp.frame(parseMAC(vfMAC), parseMAC(p0MAC)), split(frame(strings.Repeat("x", 100)), 48)[1]} {
		for i := range want {
			if i == 12 || i == 13 {
				continue // the type: what is another is never captured as the packet
			}
			got := bytes.Clone(want)
			got[i] ^= 0x10
			if all := differences(want, captured{got, len(got)}); len(all) != 1 {
				t.Errorf("byte %d: differences = %q", i, all)
			}
		}
	}
}

func FuzzPackets(f *testing.F) {
	good := frame("payload")
	f.Add(append(bytes.Clone(captureHeader), record(good)...))
	f.Add(append(bytes.Clone(captureHeader), record(good[:40])...))
	f.Add(append(bytes.Clone(captureHeader), record(append(bytes.Clone(good), marked([]byte("12345678"), 1, 2)...))...))
	f.Add([]byte("\xa1\xb2\xc3\xd4"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c := capture{mark: []byte("12345678"), seen: map[int][]arrival{}}
		readPackets(bytes.NewReader(data), c.addFrame)
		for sample, all := range c.seen {
			for _, a := range all {
				if len(a.frame) < etherBytes || sample > 0xffff {
					t.Errorf("%d: %+v", sample, a)
				}
				differences(good, a.captured)
			}
		}
	})
}

// FuzzTestpmd reads what a board may say for testpmd.
func FuzzTestpmd(f *testing.F) {
	f.Add("0    02:00:00:00:00:0A net_swflow0  net_swflow     up       25 Gbps\r\n")
	f.Add("COUNT:\n hits_set: 1\n bytes_set: 1\n hits: 7\n bytes: 420\n")
	f.Add("\x1b[0mtestpmd> testpmd> ")
	f.Add(ratesSaid)
	f.Fuzz(func(t *testing.T, text string) {
		for _, p := range parsePorts(text) {
			if p.number < 0 || p.driver == "" {
				t.Errorf("%+v", p)
			}
		}
		if n, err := parseCount(text); err == nil && (n.packets < 0 || n.bytes < 0) {
			t.Errorf("count %+v", n)
		}
		if v := oneNumber(rulesInserted(), text); v != nil && *v < 0 {
			t.Errorf("%v rules", *v)
		}
		pmd := &testpmd{keys: io.Discard, screen: strings.NewReader(text)}
		if out, err := pmd.until(testpmdPrompt); err == nil && strings.Contains(out, testpmdPrompt) {
			t.Errorf("until = %q", out)
		}
	})
}
