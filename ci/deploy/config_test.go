package deploy

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"slipway/flash/boardssh"
	"slipway/flash/boardssh/boardtest"
	"slipway/flash/boardssh/undo"
	"slipway/layers/run"
)

func TestParseConfig(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"frr.conf": "hostname a\n", "app.conf": "a\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/etc/hostname", filepath.Join(dir, "away.conf")); err != nil {
		t.Fatal(err)
	}
	tests := []struct{ name, in, wantErr string }{
		{"all", configOfAll, ""},
		{"empty", "", "the file has no values; a configuration is"},
		{"list", "- a\n", "a mapping of sections"},
		{"unknown section", "sysctl: {a.b: 1}\nsysctls: {}\n", ":2:1: unknown section"},
		{"twice", "modules: [a]\nmodules: [b]\n", ":2:1: duplicate key"},
		{"alias", "modules: &a [x]\nfrr: {daemons: *a}\n", ":2:16: YAML aliases"},
		{"module", "modules: [a, ../b]\n", ":1:14: \"../b\" is no name"},
		{"no modules", "modules: []\n", "1 to 500 names"},
		{"sysctl name", "sysctl:\n  net..core: 1\n", ":2:3: \"net..core\" is no name"},
		{"sysctl path", "sysctl: {net/../../etc/passwd: 1}\n", "is no name"},
		{"sysctl lines", "sysctl: {net.core.x: \"1\\n2; reboot\"}\n", ""}, // becomes one line of words, which the kernel accepts or refuses
		{"sysctl value", "sysctl: {net.core.x: [1]}\n", ":1:22: net.core.x must be"},
		{"one sysctl twice", "sysctl: {net.core.x: 1, net/core/x: 2}\n", ":1:25: net/core/x is the same as net.core.x in line 1"},
		{"one size twice", "hugepages: {1G: 1, 1024M: 2}\n", ":1:20: 1024M is the same as 1G in line 1"},
		{"a file in a file", "files: {/etc/x/y/z: {from: app.conf}, /etc/x: {from: app.conf}}\n", ":1:9: /etc/x/y/z lies in what line 1 makes a file: /etc/x"},
		{"size", "hugepages: {2T: 1}\n", ":1:13: \"2T\" is no size"},
		{"size of none", "hugepages: {0M: 1}\n", "is no size"},
		{"count", "hugepages: {2M: -1}\n", ":1:17: 2M must be a count"},
		{"count in words", "hugepages: {2M: many}\n", "must be a count"},
		{"place", "files: {etc/x: {from: app.conf}}\n", "is no place on the board"},
		{"climbing place", "files: {/etc/../x: {from: app.conf}}\n", "is no place on the board"},
		{"from", "files: {/etc/x: {from: ../app.conf}}\n", ":1:24: from must be a file beside"},
		{"no from", "files: {/etc/x: {}}\n", "needs \"from\""},
		{"missing", "files: {/etc/x: {from: other.conf}}\n", "no such file"},
		{"mode", "files: {/etc/x: {from: app.conf, mode: \"4755\"}}\n", "at most 0777"},
		{"mode of another notation", "files: {/etc/x: {from: app.conf, mode: 0o640}}\n", "mode must be one in octal, such as 0640"},
		{"owner", "files: {/etc/x: {from: app.conf, owner: \"a b\"}}\n", ":1:41: \"a b\" is no owner"},
		{"unit", "files: {/etc/x: {from: app.conf, restart: [a, \"-x\"]}}\n", "\"-x\" is no name of a unit"},
		{"link that leads away", "files: {/etc/x: {from: away.conf}}\n", ":1:24: "},
		{"folder", "files: {/etc/x: {from: .}}\n", "not a regular file"},
		{"attribute", "files: {/etc/x: {source: app.conf}}\n", "unknown attribute \"source\""},
		{"power mode", "nvpmodel: {mode: \"$(id)\"}\n", "needs a mode"},
		{"no power mode", "nvpmodel: {}\n", "needs a mode"},
		{"daemon", "frr: {daemons: [\"bgpd=yes\"]}\n", "must be a daemon's name"},
		{"daemon's word", "frr: {daemons: {bgpd: maybe}}\n", "with yes or no"},
		{"nothing of FRR", "frr: {}\n", "needs daemons"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f, err := parseConfigFile(filepath.Join(dir, "lab.yml"), []byte(tt.in))
			if tt.wantErr == "" {
				if err != nil || len(f.parts) == 0 {
					t.Errorf("parseConfigFile = %v, %v", f, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.wantErr) || !strings.HasPrefix(err.Error(), dir) {
				t.Errorf("error %v; want the file and %q in it", err, tt.wantErr)
			}
		})
	}
}

const configOfAll = `
modules: [nf_conntrack]
sysctl:
  net.core.rmem_max: 26214400
  net.ipv4.tcp_rmem: 4096 87380 6291456
  net.ipv4.conf.eth0/100.rp_filter: 0
hugepages: {2M: 512, 1G: 2}
files:
  /etc/app/app.conf: {from: app.conf, mode: 0640, owner: "7:8", restart: [app.service]}
nvpmodel: {mode: MAXN}
frr: {daemons: {bgpd: yes, ospfd: no}, config: frr.conf}
`

func FuzzConfig(f *testing.F) {
	f.Add(configOfAll)
	f.Add("hugepages: {2M: 512}\n")
	f.Add("frr: {daemons: [bgpd]}\n")
	f.Add("files: {/a: {from: /etc/passwd}}\n")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := parseConfigFile("/nowhere/lab.yml", []byte(text))
		if err != nil {
			if !strings.Contains(err.Error(), "/nowhere/lab.yml") {
				t.Errorf("error without the file: %v", err)
			}
			return
		}
		for _, part := range c.parts {
			if s, ok := part.(sysctls); ok {
				for _, one := range s.all {
					if p := one.procPath(); filepath.Clean(p) != p || !strings.HasPrefix(p, "/proc/sys/") {
						t.Errorf("sysctl %q is at %q", one.name, p)
					}
				}
			}
		}
	})
}

func TestSetDaemons(t *testing.T) {
	before := "# bgpd=no is a remark\nbgpd=no\r\nospfd=yes  \n\nzebra_options=\"-A ::1\"\nbfdd=no"
	tests := []struct {
		name    string
		want    map[string]string
		after   string
		wantErr string
	}{
		{"on", map[string]string{"bgpd": "yes"}, strings.Replace(before, "bgpd=no\r", "bgpd=yes\r", 1), ""},
		{"off", map[string]string{"ospfd": "no"}, strings.Replace(before, "ospfd=yes  ", "ospfd=no", 1), ""},
		{"last line", map[string]string{"bfdd": "yes"}, strings.TrimSuffix(before, "no") + "yes", ""},
		{"as it is", map[string]string{"ospfd": "yes", "bgpd": "no"}, before, ""},
		{"unknown", map[string]string{"xd": "yes"}, "", `no daemon "xd" (/etc/frr/daemons has bfdd, bgpd, ospfd)`},
	}
	for _, tt := range tests {
		got, err := setDaemons(before, tt.want)
		if got != tt.after || (err == nil) != (tt.wantErr == "") || err != nil && !strings.Contains(err.Error(), tt.wantErr) {
			t.Errorf("%s: setDaemons = %q, %v; want %q, %s", tt.name, got, err, tt.after, tt.wantErr)
		}
	}
}

func FuzzSetDaemons(f *testing.F) {
	f.Add("bgpd=no\nospfd=yes\n")
	f.Fuzz(func(t *testing.T, text string) {
		got, err := setDaemons(text, map[string]string{"bgpd": "yes"})
		if err != nil {
			return
		}
		again, err := setDaemons(got, map[string]string{"bgpd": "yes"})
		if err != nil || again != got || strings.Count(got, "\n") != strings.Count(text, "\n") {
			t.Errorf("%q became %q, then %q, %v", text, got, again, err)
		}
	})
}

// powerConfig has the format of L4T's nvpmodel.conf.
const powerConfig = `< PARAM TYPE=FILE NAME=CPU_ONLINE >
###
< POWER_MODEL ID=0 NAME=15W >
CPU_ONLINE CORE_0 1
< POWER_MODEL ID=1 NAME=25W >
  <POWER_MODEL  ID=2  NAME=MAXN_SUPER>
< POWER_MODEL ID=3 NAME=OTHER_CORES >
< PM_CONFIG DEFAULT=1 >
`

func TestPowerModes(t *testing.T) {
	modes := parsePowerModes(powerConfig)
	if got, want := modes.String(), "0 15W, 1 25W, 2 MAXN_SUPER, 3 OTHER_CORES"; got != want {
		t.Errorf("modes %s; want %s", got, want)
	}
	for mode, want := range map[string]string{"2": "2", "02": "2", "maxn_super": "2", "15W": "0", "9": "", "": "", "25": ""} {
		if got, ok := modes.findNumber(mode); got != want || ok != (want != "") {
			t.Errorf("number(%q) = %q, %t; want %q", mode, got, ok, want)
		}
	}
}

// enterBoard runs each command of a board's sshd with a folder as its root, in its own mount
// namespace. sh and its tools are this machine's. Scripts simulate the kernel, systemd and
// NVIDIA's programs.
const enterBoard = `#!/bin/sh
exec unshare -m sh -c 'mount --bind /usr "$1/usr" && PATH=/simulated:/usr/bin:/usr/sbin && exec /usr/sbin/chroot "$1" sh -c "$2"' sh ROOT "$SSH_ORIGINAL_COMMAND"
`

var simulatedBoard = map[string]string{
	"/etc/passwd":                                "root:x:0:0::/:/bin/sh\nfrr:x:40:40::/:/bin/sh\n",
	"/etc/group":                                 "root:x:0:\nfrr:x:40:\n",
	"/etc/sysctl.d/10-other.conf":                "vm.swappiness = 1\n",
	"/etc/frr/daemons":                           "bgpd=no\nospfd=yes\nvtysh_enable=yes\n",
	"/etc/frr/frr.conf":                          "hostname before\n",
	"/etc/nvpmodel.conf":                         powerConfig,
	"/var/lib/nvpmodel/status":                   "pmode:0001\n",
	"/proc/meminfo":                              "MemTotal: 9 kB\nHugepagesize:       2048 kB\n",
	"/proc/sys/net/core/rmem_max":                "212992\n",
	"/proc/sys/net/ipv4/tcp_rmem":                "4096\t131072\t6291456\n",
	"/proc/sys/net/ipv4/conf/eth0.100/rp_filter": "2\n",
	"/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages":    "0\n",
	"/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages": "0\n",
	"/sys/module/loop/x":                     "",
	"/simulated/mode":                        "1\n",
	"/simulated/frr.service.active":          "active\n",
	"/simulated/frr.service.enabled":         "enabled\n",
	"/simulated/app.service.active":          "active\n",
	"/simulated/app.service.enabled":         "enabled\n",
	"/simulated/broken.service.active":       "failed\n",
	"/opt/x":                                 "",
	"/tmp/x":                                 "",
	"/lib/modules/simulated/modules.builtin": "kernel/net/bridge/br_netfilter.ko\nkernel/net/802/fddi.ko\n",
	"/simulated/uname":                       "#!/bin/sh\necho simulated\n",
	"/usr/x":                                 "",
	"/simulated/systemd-tmpfiles":            "#!/bin/sh\n",
	"/simulated/journalctl":                  "#!/bin/sh\necho the journal\n",
	"/simulated/modprobe":                    "#!/bin/sh\nif [ \"$1\" = -r ]; then rmdir \"/sys/module/$2\"; else mkdir \"/sys/module/$1\"; fi\n[ \"$1\" != held ] || mkdir /sys/module/held/holders\n",
	"/simulated/cat": `#!/bin/sh
case $1 in *1048576kB/nr_hugepages) n=$(/usr/bin/cat "$1"); [ "$n" -le 2 ] || n=2; echo "$n" ;; *) exec /usr/bin/cat "$@" ;; esac
`,
	"/simulated/systemctl": `#!/bin/sh
echo "$*" >>/simulated/calls; cd /simulated
case $1 in
is-active) s=$(cat "$2.active"); echo "$s"; [ "$s" = active ] ;;
is-enabled) cat "$2.enabled" ;;
enable|disable) echo "${1}d" >"$2.enabled" ;;
stop) echo inactive >"$2.active" ;;
start|restart) [ "$2" != broken.service ] || exit 1
	if [ "$2" = frr.service ] && grep -q breaks /etc/frr/frr.conf; then echo failed >"$2.active"; exit 1; fi; echo active >"$2.active" ;;
reload) ! grep -q "cannot reload" /etc/frr/frr.conf ;;
show) printf 'LoadState=loaded\nActiveState=%s\nSubState=running\nResult=success\nNRestarts=0\nType=simple\n' "$(cat "$3.active")" ;;
esac
`,
	"/simulated/vtysh": `#!/bin/sh
case $1 in
-C) n=$(grep -n nonsense "$3" | cut -d: -f1); [ -z "$n" ] || { echo "line $n: % Unknown command[4]: nonsense" >&2; exit 2; } ;;
-c) exec /usr/bin/cat /etc/frr/frr.conf ;;
esac
`,
	"/simulated/nvpmodel": `#!/bin/sh
case $1$2 in
-q) echo "NV Power Mode: X"; cat /simulated/mode ;;
-m3) echo "NVPM WARN: Reboot required for changing to this power mode: 3"
	echo "NVPM WARN: DO YOU WANT TO REBOOT NOW? enter YES/yes to confirm: "
	read answer; [ "$answer" = no ] || touch /simulated/rebooted ;;
-m*) echo "$2" >/simulated/mode; printf 'pmode:%04d\n' "$2" >/var/lib/nvpmodel/status ;;
esac
`,
}

// boardInFolder returns a connection to the simulated board, and its root. The lines first run
// before each command.
func boardInFolder(t *testing.T, first ...string) (*boardssh.Conn, string) {
	t.Helper()
	if os.Geteuid() != 0 || exec.Command("unshare", "-m", "true").Run() != nil {
		t.Skip("a board in a folder needs root, and mounts of its own (unshare -m): run this as root")
	}
	root := t.TempDir()
	for name, text := range simulatedBoard {
		file := filepath.Join(root, name)
		mode := fs.FileMode(0o644)
		if strings.HasPrefix(text, "#!") {
			mode = 0o755
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), run.WriteProgram(file, []byte(text), mode)); err != nil {
			t.Fatal(err)
		}
	}
	libs, _ := filepath.Glob("/usr/lib/*-linux*") // /lib has its own modules
	for _, name := range append(libs, "/usr/bin", "/usr/sbin", "/usr/lib64") {
		if err := os.Symlink(name, filepath.Join(root, strings.TrimPrefix(name, "/usr"))); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Mkdir(root+"/dev", 0o755), unix.Mknod(root+"/dev/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3)))); err != nil {
		t.Skipf("a board in a folder needs a /dev/null of its own: %v", err)
	}
	if err := errors.Join(os.Chown(root+"/etc/frr/frr.conf", 40, 40), os.Chmod(root+"/etc/frr/frr.conf", 0o640)); err != nil {
		t.Fatal(err)
	}
	enter := filepath.Join(t.TempDir(), "enter")
	if err := run.WriteProgram(enter, []byte(strings.NewReplacer("ROOT", root, "#!/bin/sh\n", "#!/bin/sh\n"+strings.Join(first, "")).Replace(enterBoard)), 0o755); err != nil {
		t.Fatal(err)
	}
	return connectBy(t, "ForceCommand "+enter, "Subsystem sftp /usr/lib/openssh/sftp-server"), root
}

func connectBy(t *testing.T, settings ...string) *boardssh.Conn {
	t.Helper()
	t.Setenv("SSH_AUTH_SOCK", "")
	return boardtest.Connect(t, settings...)
}

// boardFiles returns the board's files with their modes, without the state of the
// scripts.
func boardFiles(t *testing.T, root string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		rel := strings.TrimPrefix(name, root)
		if err != nil || rel == "/simulated/calls" || strings.HasPrefix(rel, "/var/lib/slipway") {
			return err
		}
		info, err := d.Info()
		if err != nil || !info.Mode().IsRegular() {
			if d.IsDir() && rel != "" {
				found[rel] = "folder"
			}
			return err
		}
		data, err := os.ReadFile(name)
		found[rel] = info.Mode().String() + " " + string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func deployConfig(t *testing.T, c *boardssh.Conn, text string, o ConfigOptions, beside ...string) (configDone, error) {
	t.Helper()
	dir := t.TempDir()
	files := map[string]string{"app.conf": "a\n", "frr.conf": "hostname after\n"}
	for i := 0; i+1 < len(beside); i += 2 {
		files[beside[i]] = beside[i+1]
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f, err := parseConfigFile(filepath.Join(dir, "lab.yml"), []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return planAndApply(t.Context(), c, f, o)
}

func TestConfigure(t *testing.T) {
	c, root := boardInFolder(t)
	was := boardFiles(t, root)
	text := strings.Replace(configOfAll, "MAXN", "2", 1)
	dry, err := deployConfig(t, c, text, ConfigOptions{DryRun: true})
	if err != nil || !strings.Contains(dry.Diff, "-bgpd=no\n-ospfd=yes\n+bgpd=yes") || !strings.Contains(dry.Diff, "+hostname after") {
		t.Fatalf("a dry run: %v, %s", err, dry.Diff)
	}
	if diff := cmp.Diff(was, boardFiles(t, root)); diff != "" {
		t.Fatalf("a dry run changed (-, +):\n%s", diff)
	}
	done, err := deployConfig(t, c, text, ConfigOptions{})
	if err != nil || done.Undo == "" {
		t.Fatalf("deployConfig = %+v, %v", done, err)
	}
	now := boardFiles(t, root)
	for name, want := range map[string]string{
		"/proc/sys/net/core/rmem_max":                               "26214400\n",
		"/proc/sys/net/ipv4/tcp_rmem":                               "4096 87380 6291456\n",
		"/proc/sys/net/ipv4/conf/eth0.100/rp_filter":                "0\n",
		"/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages":    "512\n",
		"/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages": "2\n",
		"/etc/sysctl.d/90-slipway-hugepages.conf":                   "vm.nr_hugepages = 512\n",
		"/etc/tmpfiles.d/slipway-hugepages.conf":                    "w /sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages - - - - 2\n",
		"/etc/sysctl.d/90-slipway.conf":                             "net.ipv4.conf.eth0/100.rp_filter = 0\n",
		"/etc/modules-load.d/slipway.conf":                          "nf_conntrack\n",
		"/sys/module/nf_conntrack":                                  "folder",
		"/etc/frr/daemons":                                          "bgpd=yes\nospfd=no\nvtysh_enable=yes\n",
		"/etc/frr/frr.conf":                                         "-rw-r----- hostname after\n",
		"/etc/app/app.conf":                                         "-rw-r----- a\n",
		"/simulated/mode":                                           "2\n",
		"/var/lib/nvpmodel/status":                                  "pmode:0002\n",
	} {
		if !strings.HasSuffix(now[name], want) {
			t.Errorf("%s is %q; want %q", name, now[name], want)
		}
	}
	if notes := strings.Join(done.Notes, "\n"); !strings.Contains(notes, "set of daemons changed") || !strings.Contains(notes, "app.service was restarted") {
		t.Errorf("notes %q", notes)
	}
	again, err := deployConfig(t, c, text, ConfigOptions{})
	if err != nil || again.Undo != "" || len(again.Changes)+len(again.Settings) > 0 {
		t.Errorf("a second time: %+v, %v", again, err)
	}
	if _, err := undo.Restore(t.Context(), c, "", false); err != nil {
		t.Fatal(err)
	}
	now = boardFiles(t, root)
	for _, values := range []string{"/proc/sys/net/ipv4/tcp_rmem"} { // the kernel prints tabs where we wrote blanks
		now[values] = strings.ReplaceAll(now[values], " 131072 ", "\t131072\t")
	}
	if diff := cmp.Diff(was, now); diff != "" {
		t.Errorf("before (-), after an undo (+):\n%s", diff)
	}
}

// A change that does not work is put back, and the error says so.
func TestConfigureFails(t *testing.T) {
	c, root := boardInFolder(t)
	was := boardFiles(t, root)
	tests := []struct {
		name, text string
		frr        string
		want       string
		undone     bool
	}{
		{"fewer pages", "hugepages: {2M: 5, 1G: 4}\nsysctl: {net.core.rmem_max: 7}\n", "", "nr_hugepages is 2 after it was set to 4\n  1G: if it is fewer, memory", true},
		{"no such pages", "hugepages: {16M: 4}\n", "", "lab.yml:1:13: the board's kernel has no pages of 16M (has these of KiB: 1048576, 2048)", false},
		{"no such sysctl", "sysctl: {net.core.nothing: 4}\n", "", "net.core.nothing: read /proc/sys/net/core/nothing", false},
		{"no such mode", "nvpmodel: {mode: MAXN}\n", "", `no power mode "MAXN" (has 0 15W, 1 25W, 2 MAXN_SUPER, 3 OTHER_CORES)`, false},
		{"nonsense", "frr: {config: frr.conf}\n", "hostname a\nnonsense\n", "frr.conf:2: the board's FRR refuses it: % Unknown command[4]: nonsense", false},
		{"no such daemon", "frr: {daemons: [eigrpd]}\n", "", `no daemon "eigrpd" (/etc/frr/daemons has bgpd, ospfd)`, false},
		{"FRR does not start", "frr: {daemons: [bgpd], config: frr.conf}\n", "this breaks\n", "the journal\n  all was put back as it was", true},
		{"a unit that never runs", "files: {/etc/x: {from: app.conf, restart: [broken.service]}}\n", "", "the journal\n  all was put back as it was, and still: the unit does not run", true},
		{"no such owner", "files: {/etc/x: {from: app.conf, owner: nobody-here}}\n", "", "the board has no user nobody-here\nnext: ssh ", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			done, err := deployConfig(t, c, tt.text, ConfigOptions{}, "frr.conf", tt.frr)
			if err == nil || !strings.Contains(err.Error(), tt.want) || done.Undone != tt.undone || len(done.Notes) > 0 {
				t.Errorf("undone: %t, notes %q, error %v; want %q in it", done.Undone, done.Notes, err, tt.want)
			}
			if diff := cmp.Diff(was, boardFiles(t, root)); diff != "" {
				t.Errorf("before (-), after (+):\n%s", diff)
			}
		})
	}
}

// A user without the right learns it before anything is sent, and not at all in a dry run.
func TestConfigureWantsRoot(t *testing.T) {
	c, root := boardInFolder(t)
	if err := run.WriteProgram(root+"/simulated/id", []byte("#!/bin/sh\necho 1000\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	was := boardFiles(t, root)
	const text = "files: {/etc/x: {from: app.conf}}\n"
	if done, err := deployConfig(t, c, text, ConfigOptions{DryRun: true}); err != nil || len(done.Changes) != 1 {
		t.Errorf("a dry run: %+v, %v", done, err)
	}
	done, err := deployConfig(t, c, text, ConfigOptions{})
	if err == nil || !strings.HasSuffix(err.Error(), " is not root on the board; nothing was written\nnext: repeat the line with --become") || done.Undo != "" {
		t.Errorf("deployConfig = %+v, %v", done, err)
	}
	if diff := cmp.Diff(was, boardFiles(t, root)); diff != "" {
		t.Errorf("before (-), after (+):\n%s", diff)
	}
}

// A mode that needs a restart is recorded, and the restart is not confirmed.
func TestConfigurePowerModeLater(t *testing.T) {
	c, root := boardInFolder(t)
	was := boardFiles(t, root)
	done, err := deployConfig(t, c, "nvpmodel: {mode: 3}\n", ConfigOptions{})
	if err != nil || len(done.Notes) != 1 || !strings.Contains(done.Notes[0], "power mode 3 begins with the next restart") {
		t.Errorf("deployConfig = %+v, %v", done, err)
	}
	now := boardFiles(t, root)
	if now["/simulated/rebooted"] != "" || !strings.HasSuffix(now["/var/lib/nvpmodel/status"], " pmode:0003\n") {
		t.Errorf("restarted: %q; status %q", now["/simulated/rebooted"], now["/var/lib/nvpmodel/status"])
	}
	if _, err := undo.Restore(t.Context(), c, "", false); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(was, boardFiles(t, root)); diff != "" {
		t.Errorf("before (-), after an undo (+):\n%s", diff)
	}
}

// A running FRR is reloaded if its daemons stay the same. It is restarted if a reload is not
// possible, and started if it does not run.
func TestConfigureFRR(t *testing.T) {
	c, root := boardInFolder(t)
	for _, tt := range []struct{ config, want, call string }{
		{"hostname one\n", "FRR was reloaded", "reload frr.service\n"},
		{"cannot reload\n", "could not be reloaded", "restart frr.service\n"},
	} {
		done, err := deployConfig(t, c, "frr: {config: frr.conf}\n", ConfigOptions{}, "frr.conf", tt.config)
		calls, _ := os.ReadFile(root + "/simulated/calls")
		if err != nil || !strings.Contains(strings.Join(done.Notes, ""), tt.want) || !strings.Contains(string(calls), tt.call) {
			t.Errorf("%s: %+v, %v; calls:\n%s", tt.want, done, err, calls)
		}
	}
	for name, state := range map[string]string{"active": "inactive\n", "enabled": "disabled\n"} {
		if err := os.WriteFile(root+"/simulated/frr.service."+name, []byte(state), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	was := boardFiles(t, root)
	if done, err := deployConfig(t, c, "frr: {daemons: [bgpd]}\n", ConfigOptions{}); err != nil || len(done.Settings) != 2 {
		t.Errorf("deployConfig = %+v, %v; want two settings", done, err)
	}
	u, err := undo.Restore(t.Context(), c, "", false)
	if err != nil || len(u.Units) != 0 {
		t.Errorf("Restore = %+v, %v", u, err)
	}
	if diff := cmp.Diff(was, boardFiles(t, root)); diff != "" {
		t.Errorf("before (-), after an undo (+):\n%s", diff)
	}
}

// The umask of the caller may hide new files from others. Programs on the board must be able
// to read them.
func TestConfigureUnderUmask(t *testing.T) {
	c, root := boardInFolder(t)
	defer unix.Umask(unix.Umask(0o077))
	if _, err := deployConfig(t, c, "files: {/etc/app/more/app.conf: {from: app.conf}}\n", ConfigOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"/etc/app", "/etc/app/more"} {
		if info, err := os.Stat(root + name); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("%s on the board: %v, %v; want it to be of mode 0755", name, info.Mode(), err)
		}
	}
}

// A link has the mode 0777. The file that replaces it gets the mode of the target, with setgid.
func TestConfigureFRRThatIsALink(t *testing.T) {
	c, root := boardInFolder(t)
	if err := errors.Join(os.Rename(root+"/etc/frr/frr.conf", root+"/etc/frr/site.conf"), os.Symlink("site.conf", root+"/etc/frr/frr.conf"), os.Chmod(root+"/etc/frr/frr.conf", 0o604|fs.ModeSetgid)); err != nil {
		t.Fatal(err)
	}
	if _, err := deployConfig(t, c, "frr: {config: frr.conf}\n", ConfigOptions{}); err != nil {
		t.Fatal(err)
	}
	if got, want := boardFiles(t, root)["/etc/frr/frr.conf"], "grw----r-- hostname after\n"; got != want {
		t.Errorf("frr.conf is %q; want %q", got, want)
	}
}

// A module in use cannot be removed. Everything else is put back nevertheless, and runs
// again.
func TestConfigurePutsBackTheRest(t *testing.T) {
	c, root := boardInFolder(t)
	was := boardFiles(t, root)
	text := "modules: [nf_conntrack, held]\nsysctl: {net.core.rmem_max: 7}\nfrr: {config: frr.conf}\n"
	done, err := deployConfig(t, c, text, ConfigOptions{}, "frr.conf", "cannot reload\nbreaks\n")
	if err == nil || !strings.Contains(err.Error(), "held is loaded after it was set to absent") || done.Undone {
		t.Errorf("deployConfig = %+v, %v", done, err)
	}
	now := boardFiles(t, root)
	for name := range now {
		if strings.HasPrefix(name, "/sys/module/held") {
			delete(now, name)
		}
	}
	if diff := cmp.Diff(was, now); diff != "" {
		t.Errorf("before (-), after (+):\n%s", diff)
	}
}

// A module may be built into the kernel. Then /sys/module may not list it.
func TestConfigureModuleBuiltIn(t *testing.T) {
	c, root := boardInFolder(t)
	if done, err := deployConfig(t, c, "modules: [br-netfilter]\n", ConfigOptions{}); err != nil || len(done.Settings) != 0 {
		t.Errorf("deployConfig = %+v, %v; want no settings", done, err)
	}
	if _, err := os.Stat(root + "/sys/module/br-netfilter"); err == nil {
		t.Error("it was loaded")
	}
}

// A unit that several files name is restarted once, after all of them are in place.
func TestConfigureRestartsOnce(t *testing.T) {
	c, root := boardInFolder(t)
	text := "files:\n  /etc/a: {from: app.conf, restart: [app.service]}\n  /etc/b: {from: app.conf, restart: [app.service]}\n"
	done, err := deployConfig(t, c, text, ConfigOptions{})
	calls, _ := os.ReadFile(root + "/simulated/calls")
	if err != nil || strings.Count(string(calls), "restart app.service\n") != 1 || len(done.Notes) != 1 {
		t.Errorf("deployConfig = %+v, %v; calls:\n%s", done, err, calls)
	}
}

// A setting that was changed since stays, unless the undo is forced.
func TestUndoOfSettingsThatChanged(t *testing.T) {
	c, root := boardInFolder(t)
	if _, err := deployConfig(t, c, "sysctl: {net.core.rmem_max: 7}\n", ConfigOptions{}); err != nil {
		t.Fatal(err)
	}
	file := root + "/proc/sys/net/core/rmem_max"
	if err := os.WriteFile(file, []byte("9\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := undo.Restore(t.Context(), c, "", false); err == nil || !strings.Contains(err.Error(), "changed since the deploy: /proc/sys/net/core/rmem_max") || strings.Contains(err.Error(), "ls -l") {
		t.Errorf("Restore: %v", err)
	}
	if _, err := undo.Restore(t.Context(), c, "", true); err != nil {
		t.Error(err)
	}
	if now, _ := os.ReadFile(file); string(now) != "212992\n" {
		t.Errorf("it is %q after the undo", now)
	}
}

// FRR's own vtysh reads a configuration as checkConfig expects.
func TestRealVtysh(t *testing.T) {
	path := "/usr/bin:/bin"
	if dir := os.Getenv("SLIPWAY_FRR"); dir != "" {
		libs, err := filepath.Glob(dir + "/usr/lib/*-linux-gnu*")
		if err != nil || len(libs) == 0 {
			t.Fatalf("SLIPWAY_FRR=%s holds no usr/lib/*-linux-gnu: dpkg-deb -x frr and its libraries there", dir)
		}
		text := "#!/bin/sh\nLD_LIBRARY_PATH=" + libs[0] + ":" + libs[0] + "/frr exec " + dir + "/usr/bin/vtysh \"$@\"\n"
		programs := t.TempDir()
		if err := run.WriteProgram(programs+"/vtysh", []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		path = programs + ":" + path
	} else if _, err := exec.LookPath("vtysh"); err != nil {
		t.Skip("vtysh is missing: install the Debian package frr (it starts a service), or unpack it and its libraries with dpkg-deb -x and name the folder in SLIPWAY_FRR")
	}
	c := connectBy(t, "SetEnv PATH="+path)
	good := "hostname a\nrouter bgp 65000\n neighbor 192.0.2.1 remote-as 65001\nexit\n"
	if err := (frr{config: []byte(good), local: "frr.conf"}).checkConfig(t.Context(), c); err != nil {
		t.Errorf("checkConfig: %v", err)
	}
	bad := strings.Replace(good, "exit", " neighbour 192.0.2.1 up\nexit", 1)
	err := (frr{config: []byte(bad), local: "frr.conf"}).checkConfig(t.Context(), c)
	if err == nil || !strings.HasPrefix(err.Error(), "frr.conf:4: the board's FRR refuses it: % Unknown command") {
		t.Errorf("checkConfig: %v", err)
	}
}
