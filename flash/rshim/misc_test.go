package rshim

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const aMisc = `DISPLAY_LEVEL   2 (0:basic, 1:advanced, 2:log)
BF_MODE         NIC mode
BOOT_MODE       1 (0:rshim, 1:emmc, 2:emmc-boot-swap)
BOOT_TIMEOUT    150 (seconds)
USB_TIMEOUT     40 (seconds)
DROP_MODE       0 (0:normal, 1:drop)
SW_RESET        0 (1: reset)
DEV_NAME        pcie-0000:03:00.2
DEV_INFO        BlueField-3(Rev 1)
OPN_STR         900-9D3B6
UP_TIME         4321(s)
SECURE_NIC_MODE 1 (0:no, 1:yes)
FORCE_CMD       0 (1: send Force command)
---------------------------------------
             Log Messages
---------------------------------------
 INFO[PSC]: PSC BL1 START
 WARN[BL2]: ` + "\x1b[31mred\x1b[0m" + `
   elr_el3         0x1234
`

func TestParseMisc(t *testing.T) {
	m, err := parseMisc([]byte(aMisc))
	if err != nil {
		t.Fatal(err)
	}
	if m.Mode != "NIC mode" || !m.Locked || m.Dropped || m.TimeoutSec != 150 || m.Name != "pcie-0000:03:00.2" || m.Info != "BlueField-3(Rev 1)" || m.Part != "900-9D3B6" || m.level != "2" || len(m.Fields) != 13 {
		t.Errorf("misc is %+v", m)
	}
	if diff := cmp.Diff([]string{"INFO[PSC]: PSC BL1 START", "WARN[BL2]: red", "elr_el3         0x1234"}, m.log); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
	// the kernel's former driver has no title above its messages
	m, err = parseMisc([]byte("DEV_NAME  usb-1.0\n INFO[BL2]: start\n"))
	if err != nil || len(m.log) != 1 {
		t.Errorf("misc without a title is %+v, %v; want one message", m, err)
	}
	for _, text := range []string{"", "hello\n", strings.Repeat("x", maxMiscBytes+1)} {
		if _, err := parseMisc([]byte(text)); err == nil {
			t.Errorf("%.20q is taken for a misc file", text)
		}
	}
}

func TestJournal(t *testing.T) {
	type reading struct{ log, want string }
	for _, test := range []struct {
		name     string
		clears   bool
		readings []reading
	}{
		{"cleared", true, []reading{{"a b", "a b"}, {"", ""}, {"a", "a"}}},
		{"grows", false, []reading{{"a", "a"}, {"a b", "b"}, {"a b", ""}, {"a b c d", "c d"}}},
		{"reset", false, []reading{{"a b c", "a b c"}, {"a", "a"}, {"a b", "b"}}},
		{"reset to nothing", false, []reading{{"a b", "a b"}, {"", ""}, {"a b c", "a b c"}}},
	} {
		j := &messageLog{clears: test.clears}
		for i, r := range test.readings {
			if got := strings.Join(j.newMessages(strings.Fields(r.log)), " "); got != r.want {
				t.Errorf("%s: reading %d gives %q; want %q", test.name, i, got, r.want)
			}
		}
	}
}

func TestIs(t *testing.T) {
	for name, want := range map[string]bool{
		"/dev/rshim0": true, "/dev/rshim12/": true, "root@10.0.0.1:/dev/rshim0": true, "bmc:/dev/rshim1": true, "ssh://root@h:2222:/dev/rshim0": true,
		"/dev/rshim": false, "/dev/rshim0/boot": false, "/dev/sda": false, "h:/dev/sda": false, ":/dev/rshim0": false, "h:/dev/rshim0/../sda": false,
	} {
		if Is(name) != want {
			t.Errorf("Is(%q) = %v", name, !want)
		}
	}
}

func FuzzMisc(f *testing.F) {
	f.Add([]byte(aMisc))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := parseMisc(text)
		if err != nil {
			return
		}
		var v Verdict
		for _, line := range m.log {
			if strings.ContainsAny(line, "\n\r\x1b\x00") || line == "" {
				t.Errorf("a message is %q", line)
			}
			if over, _ := v.addLine(line); over && v.Outcome != "" && v.Line == "" {
				t.Errorf("%q gives %+v", line, v)
			}
		}
		for _, field := range m.Fields {
			if strings.ContainsAny(field.Key+field.Value, "\n\r\x1b\x00") {
				t.Errorf("a field is %q", field)
			}
		}
	})
}
