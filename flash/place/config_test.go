package place

import (
	"path/filepath"
	"strings"
	"testing"
)

// Each wrong place.yml is refused with its file and, for a value, its line, before anything else.
func TestWrongConfigs(t *testing.T) {
	const port = "ports: {mmc0: slot}\n"
	for _, test := range []struct{ text, want string }{
		{"", "place.yml: "},
		{"image: x.img\n", "no port is named"},
		{"ports: {}\n", "place.yml:1:1: no port is named"},
		{"ports: {usb:1-2: a\n", "place.yml:"},
		{"ports: [usb:1-2]\n", "want a mapping"},
		{"ports: {\"usb:*\": any}\n", "is a pattern"},
		{"ports:\n  usb:1-2: a\n  usb:1-?: b\n", "place.yml:3:3: \"usb:1-?\" is a pattern"},
		{"ports: {\"usb:1-[12]\": a}\n", "is a pattern"},
		{"ports: {/dev/sdb: a}\n", "name its port"},
		{"ports: {/dev/disk/by-id/usb-x: a}\n", "name its port"},
		{"ports: {sdb: a}\n", "no name of a port"},
		{"ports: {usb: a}\n", "no name of a port"},
		{"ports: {any: a}\n", "no name of a port"},
		{"ports: {usb:1: a}\n", "no name of a port"},
		{"ports: {usb:1-2-3: a}\n", "no name of a port"},
		{"ports: {\"usb:1-2 \": a}\n", "no name of a port"},
		{"ports: {removable: a}\n", "no name of a port"},
		{"ports: {loop:relative.img: a}\n", "no name of a port"},
		{"ports: {loop:/tmp/../etc: a}\n", "no name of a port"},
		{"ports: {mmc0: a, mmc0: b}\n", "mmc0"},
		{"ports: {mmc0: a, mmc1: a}\n", "both called \"a\""},
		{"ports: {mmc0: mmc1, mmc1: }\n", "both called"},
		{"ports: {mmc0: \"\\u001b[31m\"}\n", "no name to show"},
		{"ports: {mmc0: \" \"}\n", "no name to show"},
		{"ports: {mmc0: " + strings.Repeat("x", 41) + "}\n", "no name to show"},
		{port + "identity: {table: \"hub:a/b\", form: slipway}\n", "is no name of a table"},
		{port + "identity: {table: \"hub:lab\", form: slipway, by: serial}\n", "leave out key and by"},
		{port + "identity: {table: \"hub:lab\", form: slipway, ahead: 5000}\n", "5000 is no number of rows"},
		{port + "prots: 3\n", "unknown key \"prots\": did you mean ports?"},
		{port + "count: 3\n", "unknown key"},
		{port + "overwrite: sure\n", "true or false"},
		{port + "failures: -1\n", "place.yml:2:1: -1 is no number"},
		{port + "failures: 0\n", "place.yml:2:1: 0 is no number"},
		{port + "failures: many\n", "a number"},
		{port + "largestGB: -4\n", "no size"},
		{port + "largestGB: 99999999\n", "no size"},
		{port + "after: [/no/such/program]\n", "place.yml:2:1: "},
		{port + "after: [\"\"]\n", "place.yml:2:1: exec: \"\": executable file not found"},
		{port + "after: no-such-program-at-all\n", "a list of texts"},
		{port + "after: [no-such-program-at-all]\n", "no-such-program-at-all"},
		{port + "image: [a, b]\n", "a text"},
		{port + "image: \xff\n", "not UTF-8"},
	} {
		_, err := parse("place.yml", []byte(test.text))
		if err == nil || !strings.Contains(err.Error(), test.want) || !strings.HasPrefix(err.Error(), "place.yml") {
			t.Errorf("%q: %v; want place.yml and %q", test.text, err, test.want)
		}
	}
}

// Paths are relative to place.yml, and a port without a name is called by its own.
func TestConfig(t *testing.T) {
	c, err := parse("/srv/line/place.yml", []byte("ports: {usb:1-2.3/1: , mmc0: slot, pcie-0000:03:00.2: dpu}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if c.Record != "/srv/line/record" || c.Failures != 3 || c.LargestGB != 256 || c.Ports["usb:1-2.3/1"] != "usb:1-2.3/1" || c.Ports["mmc0"] != "slot" {
		t.Errorf("config = %+v", c)
	}
	if c, err = parse(filepath.Join("a", "place.yml"), []byte("ports: {mmc0: slot}\nrecord: /var/place\n")); err != nil || c.Record != "/var/place" {
		t.Errorf("record = %v, %v", c, err)
	}
}

// No input makes the reader fail in another way than by an error.
func FuzzConfig(f *testing.F) {
	f.Add([]byte("ports: {usb:1-2: a}\nafter: [sh, '{port}']\n"))
	f.Add([]byte("ports: {mmc0: }\nlargestGB: 0x10\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if c, err := parse("place.yml", data); err == nil && len(c.Ports) == 0 {
			t.Error("no port")
		}
	})
}
