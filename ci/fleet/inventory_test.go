package fleet

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"slipway/ci/report"
	"slipway/flash/boardssh"
	"slipway/layers/run"
)

// ansibleList is what "ansible-inventory --list" prints of one file.
type ansibleList struct {
	hosts  map[string]map[string]any
	groups map[string][]string // with all their hosts
}

func queryAnsible(t *testing.T, file string) ansibleList {
	t.Helper()
	command := run.Command{Argv: []string{"ansible-inventory", "-i", file, "--list"}, Env: []string{"HOME=" + t.TempDir()}}
	out, err := run.Output(t.Context(), command)
	if err != nil {
		t.Fatal(err)
	}
	var list map[string]json.RawMessage
	if err := json.Unmarshal(out, &list); err != nil {
		t.Fatalf("ansible-inventory: %v in %s", err, out)
	}
	var meta struct{ HostVars map[string]map[string]any }
	if err := json.Unmarshal(list["_meta"], &meta); err != nil {
		t.Fatal(err)
	}
	delete(list, "_meta")
	return ansibleList{meta.HostVars, membersOf(t, list)}
}

// membersOf returns the hosts of each group, including those of the groups in it.
func membersOf(t *testing.T, list map[string]json.RawMessage) map[string][]string {
	t.Helper()
	type entry struct{ Hosts, Children []string }
	groups := map[string]entry{}
	for name, data := range list {
		var e entry
		if err := json.Unmarshal(data, &e); err != nil {
			t.Fatal(err)
		}
		groups[name] = e
	}
	all := map[string][]string{}
	var collect func(name string) []string
	collect = func(name string) []string {
		hosts := slices.Clone(groups[name].Hosts)
		for _, child := range groups[name].Children {
			hosts = append(hosts, collect(child)...)
		}
		slices.Sort(hosts)
		return slices.Compact(hosts)
	}
	for name := range groups {
		if hosts := collect(name); len(hosts) > 0 {
			all[name] = hosts
		}
	}
	return all
}

// For each file of the corpus, Slipway and ansible-inventory find the same hosts, groups
// and values of the variables that Slipway reads.
func TestLikeAnsible(t *testing.T) {
	if _, err := exec.LookPath("ansible-inventory"); err != nil {
		t.Skip("ansible-inventory is not installed: apt-get install ansible-core")
	}
	files, err := filepath.Glob("testdata/inventory/*")
	if err != nil || len(files) < 5 {
		t.Fatalf("%d files (%v); want the corpus", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			inv, err := Load(file)
			if err != nil {
				t.Fatal(err)
			}
			want := queryAnsible(t, file)
			// Hosts without a variable are in groups alone.
			if got := namesOf(inv.Hosts); !cmp.Equal(slices.Sorted(slices.Values(got)), want.groups[allGroup]) {
				t.Errorf("hosts: %s", cmp.Diff(want.groups[allGroup], slices.Sorted(slices.Values(got))))
			}
			for _, h := range inv.Hosts {
				if diff := cmp.Diff(onlyKnown(want.hosts[h.Name]), valuesOf(h)); diff != "" {
					t.Errorf("%s: variables (-ansible +slipway):\n%s", h.Name, diff)
				}
			}
			for name, g := range inv.groups {
				hosts := map[string]bool{}
				inv.collectHosts(g, hosts, map[string]bool{})
				if len(hosts) == 0 {
					continue
				}
				if got := slices.Sorted(maps.Keys(hosts)); !cmp.Equal(got, want.groups[name]) {
					t.Errorf("group %s = %v; ansible has %v", name, got, want.groups[name])
				}
				delete(want.groups, name)
			}
			if len(want.groups) > 0 {
				t.Errorf("ansible has the groups %v, too", want.groups)
			}
		})
	}
}

func namesOf(hosts []*Host) []string {
	var names []string
	for _, h := range hosts {
		names = append(names, h.Name)
	}
	return names
}

func onlyKnown(vars map[string]any) map[string]string {
	all := map[string]string{}
	for name, value := range vars {
		if isKnownVariable(name) && name != priorityVariable {
			all[name] = fmt.Sprint(value)
		}
	}
	return all
}

func valuesOf(h *Host) map[string]string {
	all := map[string]string{}
	for name, v := range h.vars {
		if name != priorityVariable {
			all[name] = v.value
		}
	}
	return all
}

func TestExpandHosts(t *testing.T) {
	for _, c := range []struct {
		pattern string
		want    string // names with blanks between, and the port
		wantErr string
	}{
		{"one", "one", ""},
		{"one:22", "one 22", ""},
		{"n[08:10]", "n08 n09 n10", ""},
		{"n[1:6:2]", "n1 n3 n5", ""},
		{"n[:2]", "n0 n1 n2", ""},
		{"n[a:c]x[1:2]", "nax1 nax2 nbx1 nbx2 ncx1 ncx2", ""},
		{"n[y:B]", "ny nz nA nB", ""},
		{"192.0.2.[1:2]:2222", "192.0.2.1 192.0.2.2 2222", ""},
		{"2001:db8::1", "2001:db8::1", ""},
		{"[2001:db8::1]:22", "2001:db8::1 22", ""},
		{"n[1:3]:99999999", "", "99999999"},
		{"n[3:1]", "", "after"},
		{"n[c:a]", "", "after"},
		{"n[01:100]", "", "same number of digits"},
		{"n[1:]", "", "nothing"},
		{"n[1:3:0]", "", "step"},
		{"n[1:3", "", "without"},
		{"n[1]", "", "want [begin:end]"},
		{"n[a:3]", "", "must both"},
		{"n[0:99999999]", "", "more than"},
		{"n[0:999][0:999]", "", "more than"},
	} {
		hosts, port, err := expandHosts(c.pattern)
		got := strings.TrimSpace(strings.Join(hosts, " ") + " " + port)
		switch {
		case c.wantErr != "" && (err == nil || !strings.Contains(err.Error(), c.wantErr)):
			if err == nil && c.wantErr == "99999999" { // no port, so part of a name, as with Ansible
				continue
			}
			t.Errorf("expandHosts(%q) = %q, %v; want error with %q", c.pattern, got, err, c.wantErr)
		case c.wantErr == "" && (err != nil || got != c.want):
			t.Errorf("expandHosts(%q) = %q, %v; want %q", c.pattern, got, err, c.want)
		}
	}
}

func loadText(t *testing.T, name, text string) (*Inventory, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return Load(file)
}

// An error names the line and what to do.
func TestRefusedInventories(t *testing.T) {
	for name, c := range map[string]struct{ file, text, want string }{
		"vault":         {"h.yml", "$ANSIBLE_VAULT;1.1;AES256\n3132\n", "h.yml:1: encrypted by ansible-vault"},
		"program":       {"h", "#!/usr/bin/env python3\n", "h:1: a program"},
		"plugin":        {"h.yml", "plugin: amazon.aws.aws_ec2\nregions: [a]\n", "h.yml:1: the settings of the inventory plugin"},
		"list":          {"h.yml", "- a\n- b\n", "h.yml:1:1: an inventory is a mapping"},
		"broken":        {"h.yml", "all:\n  hosts: [a\n", "h.yml:"},
		"hosts as list": {"h.yml", "all:\n  hosts:\n    - a\n", "h.yml:3: hosts of all must be a mapping"},
		"two documents": {"h.yml", "all:\n---\nall:\n", "h.yml:2:1: a second document begins here"},
		"empty":         {"h.yml", "# nothing\n", "h.yml: the file has no values; an inventory is a mapping of groups"},
		"loop":          {"h.yml", "a:\n  children: {b: }\nb:\n  children:\n    c:\n      children: {a: }\n", "h.yml:1: groups contain each other in a loop; it is among a, b, c"},
		"own child":     {"h.yml", "a:\n  children:\n    a:\n", `h.yml:3: group "a" is its own child`},
		"all as child":  {"h.yml", "a:\n  children:\n    all:\n", `h.yml:3: "all" is the parent`},
		"range":         {"h.yml", "a:\n  hosts:\n    n[1:x]:\n", `h.yml:3: host "n[1:x]"`},
		"name":          {"h.yml", "a:\n  hosts:\n    ../../etc:\n", `h.yml:3: host "../../etc": a name cannot begin`},
		"escape":        {"h.yml", "a:\n  hosts:\n    \"a\\e[2J\":\n", `h.yml:3: host`},
		"template":      {"h.yml", "a:\n  hosts:\n    \"{{ name }}\":\n", "templates are not filled in"},
		"too many":      {"h.ini", "n[0:9999]\nm[0:9999]\n", "h.ini:2: more than 10000 hosts"},
		"ini section":   {"h.ini", "[a:things]\nx\n", "h.ini:1: section [a:things]: unknown kind"},
		"ini group":     {"h.ini", "[a:children]\nb\n", `h.ini:2: there is no group "b"`},
		"ini vars":      {"h.ini", "[b:vars]\nx=1\n", `h.ini:1: there is no group "b"`},
		"ini no pair":   {"h.ini", "[a]\nh1 ansible_port = 3\n", `h.ini:2: "ansible_port" is no variable`},
		"ini quote":     {"h.ini", "h1 x='a\n", "h.ini:1: a quote is not closed"},
		"ini no pairs":  {"h.ini", "[a]\nh\n[a:vars]\nx\n", `h.ini:4: "x" is no variable`},
		"alias":         {"h.yml", "a: &a\n  children: &c\n    b: *a\n", "h.yml:3:8: YAML aliases are not allowed; write the value out"},
		"merge key":     {"h.yml", "a:\n  hosts:\n    b:\n      <<: {ansible_port: 22}\n", "h.yml:4: merge keys (<<) are not followed"},
		"duplicate key": {"h.yml", "a:\n  hosts:\n    b:\n    b:\n", `h.yml:4:5: duplicate key "b" (first at line 3)`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := loadText(t, c.file, c.text)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Load = %v; want %q", err, c.want)
			}
		})
	}
}

func TestResolveAccess(t *testing.T) {
	const key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl5"
	for name, c := range map[string]struct {
		vars    string // of host h, each in a line
		want    Access
		wantErr string
	}{
		"nothing":        {"x: 1", Access{Host: "h"}, ""},
		"all":            {"ansible_host: 192.0.2.1\nansible_port: 2222\nansible_user: root\nansible_ssh_private_key_file: /k\nslipway_limit: 90s\nslipway_serial: S1\nslipway_board: virt\nslipway_host_key: " + key, Access{Host: "192.0.2.1", Port: 2222, User: "root", Identity: "/k", Limit: 90 * time.Second, Serial: "S1", Board: "virt", HostKey: key}, ""},
		"old names":      {"ansible_ssh_host: a\nansible_ssh_port: '22'\nansible_ssh_user: u", Access{Host: "a", Port: 22, User: "u"}, ""},
		"two names":      {"ansible_host: a\nansible_ssh_host: b", Access{}, "h.yml:5: h: ansible_host and ansible_ssh_host differ"},
		"null":           {"ansible_host:", Access{Host: "h"}, ""},
		"jumps":          {"ansible_ssh_common_args: '-C -J a,root@b:2222 -o ControlMaster=auto'", Access{Host: "h", Jump: []string{"a", "root@b:2222"}}, ""},
		"jump, joined":   {"ansible_ssh_common_args: '-Ja'", Access{Host: "h", Jump: []string{"a"}}, ""},
		"no jump":        {"ansible_ssh_extra_args: -o ProxyJump=none", Access{Host: "h"}, ""},
		"unchecked keys": {"ansible_ssh_common_args: -o StrictHostKeyChecking=no -oUserKnownHostsFile=/dev/null", Access{Host: "h"}, ""},
		"proxy command":  {"ansible_ssh_common_args: -o ProxyCommand=\"ssh -W %h:%p x\"", Access{}, "h.yml:4: h: ansible_ssh_common_args: ProxyCommand is not run; write -J"},
		"forwarding":     {"ansible_ssh_common_args: -L 1:2:3", Access{}, "is not followed, only -J"},
		"option":         {"ansible_ssh_common_args: -o Hostname=other", Access{}, "-o Hostname is not followed"},
		"vault":          {"ansible_host: !vault |\n        abc", Access{}, "h.yml:4: h: ansible_host: encrypted by ansible-vault"},
		"vault, unread":  {"password: !vault |\n        abc", Access{Host: "h"}, ""},
		"template":       {"ansible_host: \"{{ ip }}\"", Access{}, "h.yml:4: h: ansible_host: a template"},
		"list":           {"ansible_host: [a]", Access{}, "must be one value"},
		"bool":           {"ansible_user: yes", Access{}, "true or false to Ansible"},
		"port":           {"ansible_port: 022", Access{}, `port "022" is not a number`},
		"big port":       {"ansible_port: 70000", Access{}, "h.yml:4: h: port"},
		"local":          {"ansible_connection: local", Access{}, "connection local is not SSH"},
		"somebody's key": {"ansible_ssh_private_key_file: ~bob/k", Access{}, "another user's folder"},
		"limit":          {"slipway_limit: 90", Access{}, "is no time such as 90s"},
		"host key":       {"slipway_host_key: ssh-ed25519 nonsense", Access{}, "is no public key"},
	} {
		t.Run(name, func(t *testing.T) {
			inv, err := loadText(t, "h.yml", "all:\n  hosts:\n    h:\n      "+strings.ReplaceAll(c.vars, "\n", "\n      ")+"\n")
			if err != nil {
				t.Fatal(err)
			}
			got, err := inv.ResolveAccess(inv.Hosts[0])
			if c.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), c.wantErr) {
					t.Errorf("ResolveAccess = %v; want %q", err, c.wantErr)
				}
				return
			}
			if err != nil || !cmp.Equal(got, c.want) {
				t.Errorf("Access: %v %s", err, cmp.Diff(c.want, got))
			}
		})
	}
}

// Each setting that Slipway does not follow gets one warning per line.
func TestWarnings(t *testing.T) {
	inv, err := loadText(t, "h.yml", `all:
  vars:
    ansible_ssh_common_args: -o StrictHostKeyChecking=no
    ansible_become_password: secret
  hosts: {h1: , h2: }
  host: {h3: }
`)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(filepath.Dir(inv.File), "group_vars"), 0o755); err != nil {
		t.Fatal(err)
	}
	inv.warnOfVariableFolders()
	for _, h := range inv.Hosts {
		if _, err := inv.ResolveAccess(h); err != nil {
			t.Error(err)
		}
	}
	got := strings.Join(inv.WarningsFor(inv.Hosts), "\n")
	for _, want := range []string{"h.yml:6: host is ignored", "group_vars beside it is not read", "h.yml:3: StrictHostKeyChecking is not followed", "h.yml:4: ansible_become_password"} {
		if strings.Count(got, want) != 1 {
			t.Errorf("warnings:\n%s\nwant %q once", got, want)
		}
	}
}

func TestSelect(t *testing.T) {
	inv, err := Load("testdata/inventory/lab.yml")
	if err != nil {
		t.Fatal(err)
	}
	for pattern, want := range map[string]string{
		"":                     "lonely node01 node02 node03 node04 node05 node07 node09 dpu-a dpu-b dpu-c",
		"*":                    "lonely node01 node02 node03 node04 node05 node07 node09 dpu-a dpu-b dpu-c",
		"rack1":                "node01 node02 node03 node04",
		"racks:&dpus":          "node01",
		"racks:!rack1":         "node05 node07 node09",
		"racks,!rack1,!node07": "node05 node09",
		"node0[1-3]":           "node01 node02 node03",
		"node*:!*[5-7]":        "node01 node02 node03 node04 node09",
		"~node0(2|4)$":         "node02 node04",
		"dpu-b:lonely":         "lonely dpu-b",
		"!racks":               "lonely dpu-a dpu-b dpu-c",
		"rack?:&dpus:!dpu-?":   "node01",
	} {
		hosts, err := inv.Select(pattern)
		if got := strings.Join(namesOf(hosts), " "); err != nil || got != want {
			t.Errorf("Select(%q) = %s, %v; want %s", pattern, got, err, want)
		}
	}
	for pattern, want := range map[string]string{
		"rakc1":         `no host and no group is called "rakc1"`,
		"all:!rakc1":    `no host and no group is called "rakc1"`,
		"rack1:&rack2":  "no host of testdata/inventory/lab.yml is left",
		"rack1[9]":      "subscript",
		"rack1[0:2]":    "subscript",
		"rack1[-1]":     "subscript",
		"~(":            "missing closing",
		"all:!":         "empty",
		",":             "empty",
		" : ":           "empty",
		",!rack1":       "empty", // such as "$UNSET,!rack1"
		":&rack1":       "empty",
		"node[":         "syntax error",
		"ungrouped:!al": `called "al"`,
	} {
		if hosts, err := inv.Select(pattern); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Select(%q) = %v, %v; want %q", pattern, namesOf(hosts), err, want)
		}
	}
}

// An error about missing hosts says which key of the file is misspelt.
func TestSelectOfMisspeltKey(t *testing.T) {
	file := filepath.Join(t.TempDir(), "h.yml")
	if err := os.WriteFile(file, []byte("all:\n  hots:\n    b1:\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	inv, err := Load(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := inv.Select(""); err == nil || !strings.Contains(err.Error(), "is left; "+file+":2: hots is ignored") {
		t.Errorf("Select = %v; want the line of the misspelt key", err)
	}
}

// A sudo that refuses has a kind of its own, and the exit status that smoke has for it.
func TestKindOfSudo(t *testing.T) {
	err := fmt.Errorf("run true: %w", boardssh.ErrBecome)
	kind := kindOf(t.Context(), t.Context(), err, connecting, false)
	o := Outcome{Results: []Result{{Host: "b", Kind: kind}}}
	if got := report.ExitStatus(o.Err(t.Context(), "")); kind != Sudo || got != 3 {
		t.Errorf("%s, status %d; want %s, and 3", kind, got, Sudo)
	}
}

// The list shows how each host is reached, or why it cannot be.
func TestList(t *testing.T) {
	file := filepath.Join(t.TempDir(), "hosts.ini")
	text := "[a]\nh1 ansible_host=192.0.2.1 ansible_user=root ansible_port=2222 ansible_ssh_common_args='-J jump'\nh2 ansible_host={{ip}}\nh3 ansible_ssh_pass=secret\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, notes strings.Builder
	if err := List(&out, &notes, file, "a", false); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"h1    192.0.2.1", "2222  root  jump", "h2    not reachable this way: " + file + ":3: h2: ansible_host: a template"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("list:\n%s\nwant %q in it", out.String(), want)
		}
	}
	if !strings.Contains(notes.String(), "passwords are not used") || strings.Contains(out.String()+notes.String(), "secret") {
		t.Errorf("notes %q; want a word about the password, and not the password", notes.String())
	}
	out.Reset()
	if err := List(&out, &notes, file, "h1", true); err != nil {
		t.Fatal(err)
	}
	var listed []map[string]any
	if err := json.Unmarshal([]byte(out.String()), &listed); err != nil || len(listed) != 1 || listed[0]["port"] != 2222.0 || !cmp.Equal(listed[0]["jump"], []any{"jump"}) {
		t.Errorf("JSON %s: %v", out.String(), err)
	}
}

func FuzzInventory(f *testing.F) {
	files, _ := filepath.Glob("testdata/inventory/*")
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(filepath.Ext(file) == ".ini", string(data))
	}
	f.Add(false, "a: &a {children: {b: {<<: *a}}}")
	f.Add(false, "all: {hosts: {'n[1:3]:22': {ansible_host: !vault x, ansible_port: 0x16}}}")
	f.Add(true, "[a:children]\nb\n[b]\nh[a:c] ansible_ssh_common_args=\"-o 'ProxyJump=a' -J\"\n[a:vars]\nansible_port=")
	f.Fuzz(func(t *testing.T, ini bool, text string) {
		name := "hosts.yml"
		if ini {
			name = "hosts.ini"
		}
		inv, err := Parse(name, []byte(text))
		if err != nil {
			return
		}
		for _, h := range inv.Hosts[:min(len(inv.Hosts), 100)] {
			if err := validName(h.Name); err != nil {
				t.Fatalf("host %q: %v", h.Name, err)
			}
			a, err := inv.ResolveAccess(h)
			if err == nil && (a.Host == "" || a.Port < 0 || a.Port > 65535) {
				t.Fatalf("%s: access %+v", h.Name, a)
			}
		}
	})
}

func FuzzSelect(f *testing.F) {
	for _, seed := range []string{"all", "rack1[0:2]:!node02", "~n.*,&dpus", "node[", "[::]", "!"} {
		f.Add(seed)
	}
	inv, err := Load("testdata/inventory/lab.yml")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, pattern string) {
		hosts, err := inv.Select(pattern)
		if err == nil && len(hosts) == 0 {
			t.Fatalf("Select(%q) is neither a host nor an error", pattern)
		}
	})
}

// become of the inventory has the same effect as the flag --become.
func TestAccessBecome(t *testing.T) {
	for text, want := range map[string]string{
		"--become":                                      "root",
		"--become ansible_become_user=field":            "field",
		"--become ansible_become=no":                    "",
		"--become ansible_become_method=su":             "h1: ansible_become_method su",
		"ansible_become=true":                           "root",
		"ansible_become=yes ansible_become_method=sudo": "root",
		"ansible_become=1 ansible_become_user=field":    "field",
		"ansible_become=no ansible_become_user=field":   "",
		"ansible_become_user=field":                     "",
		"":                                              "",
		"ansible_become=true ansible_become_method=su":  "h1: ansible_become_method su",
		"ansible_become=perhaps":                        "neither true nor false",
		"ansible_become=true ansible_become_user=-x":    "no name of a user",
		"ansible_become=true ansible_become_user='a b'": "no name of a user",
	} {
		line, flag := strings.CutPrefix(text, "--become")
		inv, err := loadText(t, "h", "h1 ansible_host=192.0.2.1 "+line+"\n")
		if err != nil {
			t.Fatal(err)
		}
		inv.become = map[bool]string{true: "root"}[flag]
		a, err := inv.ResolveAccess(inv.Hosts[0])
		got := a.Become
		if err != nil {
			got = err.Error()
		}
		if got != want && (err == nil || !strings.Contains(got, want)) {
			t.Errorf("%s: %q; want %q", text, got, want)
		}
	}
}
