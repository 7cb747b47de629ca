package station

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"slipway/ci/fleet"
	"slipway/ci/job"
)

func TestConfig(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "hosts.yml"), []byte("all: {hosts: {node-1: {slipway_board: orin}}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	clone := t.TempDir()
	if err := os.WriteFile(filepath.Join(clone, "go.mod"), []byte("module slipway\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{
		"good.yml": "ports: {usb:1-1: left}", "other.yml": "ports: {usb:1-2: left}", "relative.yml": "image: disk.img\nports: {usb:1-1: left}",
	} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, tt := range map[string]struct{ text, err string }{
		"all": {`
parallel: 16
inventory: hosts.yml
boards:
  lab3-07: {board: orin-lab, port: "usb:1-2.3", host: root@10.0.0.7, power: [true, off]}
  disk: {board: pi, device: "file:/tmp/disk.img"}
  node-1: {board: orin}
virtual: [virt]
does: [flash, smoke]
keepGiB: 20
`, ""},
		"nothing":           {"{}", ""},
		"a builder":         {"does: [build]\nclone: " + clone, ""},
		"no clone":          {"clone: .", "station.yml:1:1: " + dir + " is in no clone of Slipway"},
		"unknown key":       {"paralel: 3", `station.yml:1:1: unknown key "paralel": did you mean parallel?`},
		"key of a board":    {"boards:\n  b: {bord: x}", `station.yml:2:7: unknown key "bord": did you mean board?`},
		"no number":         {"parallel: many", `station.yml:1:11: want a number, not "many"`},
		"none at once":      {"\nparallel: 0", "station.yml:2:1: 0 is no number of jobs at once"},
		"too many":          {"parallel: 513", "station.yml:1:1: 513 is no number"},
		"step":              {"does: [flash, smok]", `station.yml:1:1: the step "smok" is unknown: did you mean smoke?`},
		"size below 1":      {"keepGiB: 0", "station.yml:1:1: 0 is not between 1 and 1048576"},
		"name of a board":   {"boards:\n  a/b: {board: x, port: usb:1-1}", `station.yml:2:3: the board's name "a/b"`},
		"no kind":           {"boards:\n  b: {port: usb:1-1}", `station.yml:2:3: board ""`},
		"no place":          {"boards:\n  b: {board: x}", "station.yml:2:3: b has neither port, device nor host\nnext: slipway devices"},
		"two places":        {"boards:\n  b: {board: x, port: usb:1-1, device: rshim0}", "b has a port and a device"},
		"a path":            {"boards:\n  b: {board: x, device: /dev/sdb}", `"/dev/sdb" may be another device tomorrow: name its port`},
		"one port twice":    {"boards:\n  a: {board: x, port: usb:1-1}\n  b: {board: x, port: usb:1-1}", "station.yml:3:3: a and b are both at usb:1-1"},
		"an option":         {"boards:\n  b: {board: x, host: -oProxyCommand=x}", `station.yml:2:17: "-oProxyCommand=x" is no USER@ADDRESS`},
		"no power":          {"boards:\n  b: {board: x, port: usb:1-1, power: [no-such-program]}", "no-such-program"},
		"virtual twice":     {"virtual: [virt, virt]", "virt is the name of another board here"},
		"virtual and board": {"virtual: [b]\nboards: {b: {board: x, port: usb:1-1}}", "b is the name of another board here"},
		"virtual and host":  {"virtual: [node-1]\ninventory: hosts.yml", "node-1 is a host of the inventory, too"},
		"place":             {"places: {line-1: {board: pi, place: good.yml}}", ""},
		"no place.yml":      {"places:\n  line-1: {board: pi, place: none.yml}", "station.yml:2:3: open "},
		"place at a board":  {"boards: {b: {board: x, port: usb:1-1}}\nplaces: {line-1: {board: pi, place: good.yml}}", "b and line-1 are both at usb:1-1"},
		"place as a board":  {"boards: {b: {board: x, port: usb:1-9}}\nplaces: {b: {board: pi, place: good.yml}}", "b is the name of a board here"},
		"one record":        {"places: {l1: {board: pi, place: good.yml}, l2: {board: pi, place: other.yml}}", "l1 and l2 have one record"},
		"relative image":    {"places: {l1: {board: pi, place: relative.yml}}", `the image "disk.img" is neither an address nor an absolute path`},
		"no inventory":      {"inventory: none.yml", "station.yml:1:1: "},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(dir, strings.ReplaceAll(name, " ", "-"), "..", "station.yml")
			if err := os.MkdirAll(filepath.Join(dir, strings.ReplaceAll(name, " ", "-")), 0o700); err != nil {
				t.Fatal(err)
			}
			_, err := parseConfig(file, []byte(tt.text))
			if tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
				t.Errorf("parseConfig(%q) = %v; want %q", tt.text, err, tt.err)
			}
		})
	}
}

func TestConfigOfNoFile(t *testing.T) {
	c, err := LoadConfig("")
	if err != nil || len(c.Boards)+len(c.Virtual) > 0 || c.inventory != nil || c.Parallel != defaultParallel || c.KeepGiB != 50 {
		t.Errorf("LoadConfig = %+v, %v; want no boards", c, err)
	}
	if _, err := LoadConfig(filepath.Join(t.TempDir(), "none.yml")); err == nil || !strings.Contains(err.Error(), "none.yml") {
		t.Errorf("LoadConfig of no file = %v; want its name", err)
	}
}

// An inventory of one host says of it what the whole inventory says.
func TestInventoryOf(t *testing.T) {
	want := fleet.Access{
		Host: "10.0.0.7", Port: 2222, User: "root", Identity: "/keys/a b", Jump: []string{"a", "root@b:2222"}, Become: "root",
		HostKey: "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJkp4OuXs3ISLpmqjYYXn5dGW9Qyq7ddgIc1fm6Wyk2k", Serial: "'1421\"{", Board: "orin", Limit: 90e9,
	}
	for name, want := range map[string]fleet.Access{"lab3-07": want, "plain": {Host: "plain"}} {
		text, err := inventoryOf(name, want)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "one.yml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		inv, err := fleet.Load(file)
		if err != nil || len(inv.Hosts) != 1 || inv.Hosts[0].Name != name {
			t.Fatalf("Load(%s) = %+v, %v; want %s alone", text, inv, err, name)
		}
		got, err := inv.ResolveAccess(inv.Hosts[0])
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("ResolveAccess of %s: %v, %s", text, err, diff)
		}
	}
}

func FuzzConfig(f *testing.F) {
	f.Add([]byte("parallel: 16\nboards:\n  b: {board: orin, port: \"usb:1-2\", host: root@h}\nvirtual: [virt]\ndoes: [flash]\nkeepGiB: 1024"))
	f.Add([]byte("boards: {a: {board: x, device: \"file:/x\"}, b: {board: x, device: rshim0}}"))
	f.Add([]byte("does: []\nkeepGiB: 99999999999\nboards: {b: }"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if strings.Contains(string(data), "inventory") || strings.Contains(string(data), "places") {
			t.Skip("it names a file of this machine")
		}
		c, err := parseConfig("station.yml", data)
		if err != nil {
			return
		}
		s := &station{config: c, boards: newBoards()}
		s.Identity.Name = "bench-1"
		for name, b := range s.compose() {
			if job.CheckName("the board's name", name) != nil || job.CheckName("the board", b.Board.Board) != nil || b.Name != name {
				t.Errorf("%q: the hub would refuse the board %+v", data, b.Board)
			}
		}
	})
}
