package ci

import (
	"bytes"
	"io"
	"strings"
	"testing"

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
		proves              Proof
	}{
		{"in software", "net_swflow", "", &playedSpec, "7 of 7 packets arrived at to; all of them from " + p0MAC + " to " + leaf2MAC + ", TTL 63 of 64; 3 of 3 others arrived at other", ProvesSoftware},
		{"in hardware", "mlx5_pci", "", &playedSpec, "the rule counts 7 of 7 packets; Flow rule #0 destroyed; the rule is gone; without the rule 7 of 7 packets arrived at other; without the rule 0 packets arrived at to", ProvesHardware},
		{"a driver that nobody knows", "net_new", "", &playedSpec, "the rule counts 7 of 7", ""},
		{"nowhere else", "net_swflow", "", &apart, "without the rule 0 packets arrived at to", ProvesSoftware},
		{"no traffic", "mlx5_pci", "", &parts, "no packets were sent: dpu in the board's board.yml has no from and to; port 0 pf0vf0 is mlx5_pci, port 1 p0 is mlx5_pci; Flow rule #0 destroyed; the rule is gone", ProvesParts},
		{"no section", "", "", nil, "skipped: the board's board.yml has no section dpu", ""},
		{"no testpmd", "", "no dpdk-testpmd", &playedSpec, "skipped: the board lacks what it needs: it has no program dpdk-testpmd", ""},
		{"no tcpdump", "", "no tcpdump", &playedSpec, "skipped: there is no tcpdump where packets must arrive: in leaf2 tcpdump", ""},
		{"the capture fails", "", "tcpdump fails", &playedSpec, "failed: tcpdump on eth0 ended: tcpdump: eth0: No such device exists", ""},
		{"testpmd fails", "", "does not start", &playedSpec, "Cannot init EAL: Permission denied", ""},
		{"the rule is refused", "net_tap", "refuses", &playedSpec, "failed: the driver refused the rule", ""},
		{"the source stays", "net_swflow", "keeps the source", &playedSpec, "failed: a packet comes from " + vfMAC + ", not from " + p0MAC, ""},
		{"the destination stays", "net_swflow", "keeps the destination", &playedSpec, "failed: a packet is for " + vfMAC + ", not for " + leaf2MAC, ""},
		{"the TTL stays", "net_swflow", "keeps the TTL", &playedSpec, "failed: a packet has TTL 64, sent with 64", ""},
		{"the checksum stays", "net_swflow", "keeps the checksum", &playedSpec, "failed: the checksum of a packet's IPv4 header is wrong", ""},
		{"the slow path has them too", "net_swflow", "sends a copy", &playedSpec, "failed: 7 of the rule's packets arrived at other", ""},
		{"a wrong count", "net_swflow", "counts twice", &playedSpec, "failed: the rule counts 14 of 7 packets", ""},
		{"the rule stays", "net_swflow", "keeps the rule", &playedSpec, "failed: the rule still answers: COUNT:", ""},
		{"only its name stays", "net_swflow", "answers for ever", &playedSpec, "failed: the rule still answers: COUNT:", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := &playedDPU{driver: tt.driver, faults: map[string]bool{tt.fault: true}, plays: recorded{"true": ""}}
			shorten(t)
			r := d.prove(t, tt.spec, flowSuite)
			if got := judged(r); !strings.Contains(got, tt.want) || r.Proves != tt.proves {
				t.Errorf("proves %q: %s\nwant %q: %s", r.Proves, got, tt.proves, tt.want)
			}
		})
	}
}

func TestReadPackets(t *testing.T) {
	good := frame(p0MAC, leaf2MAC, 63, 53, "payload")
	arp := append(bytes.Clone(good[:12]), 8, 6)
	for _, tt := range []struct {
		name, capture string
		packets       int
		wantErr       string
	}{
		{"two packets and another", string(captureHeader) + string(record(good)) + string(record(arp)) + string(record(good)), 2, ""},
		{"none", string(captureHeader), 0, ""},
		{"nothing", "", 0, "read the capture's header: EOF"},
		{"an error's text", "tcpdump: permission denied on eth0", 0, "is no capture"},
		{"another link", string(captureHeader[:20]) + "\x71\x00\x00\x00", 0, "link type 113"},
		{"cut", string(captureHeader) + string(record(good)) + string(record(good)[:40]), 1, "ends after 1 packets"},
		{"a huge packet", string(captureHeader) + "\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\x7f\x00\x00\x00\x00", 0, "a packet of 2147483647 bytes"},
	} {
		n := 0
		err := readPackets(strings.NewReader(tt.capture), func(p packet) {
			n++
			if string(p.payload) != "payload" || p.ttl != 63 || p.toPort != 53 || p.to.String() != leaf2MAC || !p.checksum || p.source.String() != vfIP {
				t.Errorf("%s: %+v", tt.name, p)
			}
		})
		if n != tt.packets || tt.wantErr == "" && err != nil || tt.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tt.wantErr)) {
			t.Errorf("%s: readPackets = %d packets, %v; want %d, %q", tt.name, n, err, tt.packets, tt.wantErr)
		}
	}
}

// Of TCP what opens a connection is read, and no answer.
func TestParseFrameTCP(t *testing.T) {
	syn := opening(p0MAC, leaf1MAC, 40001, 53)
	p, ok := parseFrame(syn)
	if !ok || p.protocol != protocolTCP || p.fromPort != 40001 || p.toPort != 53 || len(p.payload) != 0 || !p.checksum {
		t.Errorf("parseFrame = %+v, %v; want the opening of a connection from 40001 to 53", p, ok)
	}
	answer := bytes.Clone(syn)
	answer[etherBytes+ipv4Bytes+13] |= tcpACK
	for name, frame := range map[string][]byte{"an answer": answer, "a cut one": syn[:len(syn)-1]} {
		if p, ok := parseFrame(frame); ok {
			t.Errorf("%s: parseFrame = %+v; want nothing", name, p)
		}
	}
}

func FuzzPackets(f *testing.F) {
	good := frame(p0MAC, leaf2MAC, 63, 53, "payload")
	f.Add(append(bytes.Clone(captureHeader), record(good)...))
	f.Add(append(bytes.Clone(captureHeader), record(good[:40])...))
	f.Add(append(bytes.Clone(captureHeader), record(opening(p0MAC, leaf1MAC, 40001, 53))...))
	f.Add([]byte("\xa1\xb2\xc3\xd4"))
	f.Fuzz(func(t *testing.T, data []byte) {
		readPackets(bytes.NewReader(data), func(p packet) {
			if len(p.from) != 6 || len(p.to) != 6 || len(p.payload) > maxPacketBytes {
				t.Errorf("%+v", p)
			}
		})
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
		if n, err := parseHits(text); err == nil && n < 0 {
			t.Errorf("%d hits", n)
		}
		if v := oneNumber(rulesInserted, text); v != nil && *v < 0 {
			t.Errorf("%v rules", *v)
		}
		pmd := &testpmd{keys: io.Discard, screen: strings.NewReader(text)}
		if out, err := pmd.until(testpmdPrompt); err == nil && strings.Contains(out, testpmdPrompt) {
			t.Errorf("until = %q", out)
		}
	})
}
