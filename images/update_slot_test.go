package images

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"slipway/layers/run"
)

const (
	publicVariables = "-781e084c-a330-417c-b678-38e696380cb9" // NVIDIA's
	indications     = "OsIndications-8be4df61-93ca-11d2-aa0d-00e098032b8c"
	capsule         = "boot/efi/EFI/UpdateCapsule/TEGRA_BL.Cap"
)

// A jetson is a folder in which the scripts of an update find what they look for on a
// board. nvbootctrl, the firmware's variables and the partitions are simulated; mounts are
// real, in a namespace of their own.
type jetson struct {
	t         *testing.T
	dir       string
	variables string // where the firmware keeps them
}

func newJetson(t *testing.T) jetson {
	t.Helper()
	if out, err := exec.Command("unshare", "-rm", "true").CombinedOutput(); err != nil {
		t.Skipf("this machine allows no user namespaces: sysctl kernel.unprivileged_userns_clone=1 (%v, %s)", err, out)
	}
	j := jetson{t, t.TempDir(), "sys/firmware/efi/efivars/"}
	for name, content := range map[string]string{
		"bin/nvbootctrl": `#!/bin/sh
cd "${0%/*}/.."
case $1 in
get-current-slot) cat slot ;;
set-active-boot-slot) printf '\007\000\000\000\00'$2'\000\000\000' > "$(cat variables)BootChainFwNext-781e084c-a330-417c-b678-38e696380cb9" ;;
esac
`,
		"bin/df":                   "#!/bin/sh\necho Filesystem 1024-blocks Used Available Capacity Mounted\necho x 65536 1 100 1% $2\n",
		"bin/mount":                "#!/bin/sh\n[ \"$1 $2 ${3##*/}\" = \"-t ext4 $(cat \"${0%/*}/../other\")\" ] && exec /bin/mount --bind \"${0%/*}/../new\" \"$4\"\n",
		"usr/bin/uefi_common.func": `set_efi_var() { if [ -z "$STUCK" ]; then /usr/bin/printf '\007\0\0\0%b' "$3" > "` + j.dir + `/$(cat "` + j.dir + `/variables")$1-$2"; fi; }` + "\n",
		"proc/mounts":              "/dev/x " + j.dir + "/boot/efi vfat rw 0 0\n",
		"slot":                     "0\n",
		"other":                    "APP_b",
		"variables":                j.variables,
		"etc/machine-id":           "here\n",
		"etc/ssh/ssh_host_rsa_key": "key\n",
		"etc/ssh/sshd_config":      "old\n",
		"var/lib/slipway/a/b":      "deployed\n",
		"sw-description":           "\t// text\n\tcapsule-bytes = \"100000\";\n",
		"new" + j.dir + "/etc/new": "image\n",
		j.variables + "x":          "",
		"boot/efi/EFI/x":           "",
		capsule + ".x":             "",
		"usr/bin/oe4t-set-uefi-OSIndications": "#!/bin/sh\n. \"${0%/*}/uefi_common.func\"\n" +
			`set_efi_var OsIndications 8be4df61-93ca-11d2-aa0d-00e098032b8c '\x04\x00\x00\x00\x00\x00\x00\x00'` + "\n",
	} {
		j.write(name, content)
	}
	j.partitions("APP", "APP_b", "esp")
	return j
}

func (j jetson) write(name, content string) {
	j.t.Helper()
	path := filepath.Join(j.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		j.t.Fatal(err)
	}
	if err := run.WriteProgram(path, []byte(content), 0o755); err != nil {
		j.t.Fatal(err)
	}
}

func (j jetson) read(name string) string {
	data, err := os.ReadFile(filepath.Join(j.dir, name))
	if err != nil {
		return "none"
	}
	return string(data)
}

func (j jetson) partitions(labels ...string) {
	for i, label := range labels {
		j.write(fmt.Sprintf("sys/class/block/p%d/uevent", i), "DEVTYPE=partition\nPARTNAME="+label+"\n")
	}
}

// place puts a script there, with its paths in the board's folder.
func (j jetson) place(script string) {
	j.t.Helper()
	text, err := os.ReadFile(filepath.Join(updates, script))
	if err != nil {
		j.t.Fatal(err)
	}
	var moved []string
	for _, at := range []string{"/sys/", "/proc/", "/boot/efi", "/usr/bin/", "/etc/", "/var/lib/"} {
		moved = append(moved, at, j.dir+at)
	}
	j.write("script", strings.NewReplacer(moved...).Replace(string(text)))
}

func (j jetson) env() []string {
	return []string{"PATH=" + filepath.Join(j.dir, "bin") + ":" + os.Getenv("PATH"), "TMPDIR=" + j.dir}
}

// runScript runs a script and returns what it says, and whether it succeeds.
func (j jetson) runScript(script string, env ...string) (string, bool) {
	j.t.Helper()
	j.place(script)
	cmd := exec.Command("unshare", "-rm", filepath.Join(j.dir, "script"))
	cmd.Env = append(j.env(), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err == nil
}

func variable(value string) string { return "\a\x00\x00\x00" + value }

// Before an update writes, what an earlier one requested from the firmware is taken back; and
// what would make it fail half-way, or write elsewhere, stops it.
func TestBeforeUpdate(t *testing.T) {
	const script = "slipway-swupdate/files/before-update"
	for _, tt := range []struct {
		name    string
		prepare func(j jetson)
		env     string
		want    string // what it says, if it fails
	}{
		{name: "nothing armed", prepare: func(jetson) {}},
		{name: "by a capsule", prepare: func(j jetson) {
			j.write(capsule, "old")
			j.write(j.variables+indications, variable("\x05\x00\x00\x00\x00\x00\x00\x01"))
		}},
		{name: "by a switch", prepare: func(j jetson) {
			j.write(j.variables+"BootChainFwNext"+publicVariables, variable("\x01\x00\x00\x00"))
		}},
		{name: "the old capsule's space counts", prepare: func(j jetson) {
			j.write("sw-description", "\tcapsule-bytes = \"102403\";\n")
			j.write(capsule, "old")
		}},
		{name: "no space", want: "has 102401 bytes, and", prepare: func(j jetson) {
			j.write("sw-description", "\tcapsule-bytes = \"102401\";\n")
			j.write(j.variables+indications, variable("\x04\x00\x00\x00\x00\x00\x00\x00"))
		}},
		{name: "two disks", want: "2 partitions are named APP_b", prepare: func(j jetson) {
			j.partitions("APP", "APP_b", "esp", "APP_b")
			j.write(capsule, "old")
		}},
		{name: "no partition", want: "0 partitions are named esp", prepare: func(j jetson) { j.partitions("APP", "APP_b", "espx") }},
		{name: "not mounted", want: "boot/efi is not mounted", prepare: func(j jetson) { j.write("proc/mounts", "") }},
		{name: "no slot", want: "does not name the slot", prepare: func(j jetson) { j.write("slot", "") }},
		{name: "stuck", want: "still waits for a capsule", env: "STUCK=1", prepare: func(j jetson) {
			j.write(j.variables+indications, variable("\x04\x00\x00\x00\x00\x00\x00\x00"))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			j := newJetson(t)
			tt.prepare(j)
			before := j.armed()
			said, ok := j.runScript(script, tt.env)
			if ok != (tt.want == "") || !strings.Contains(said, tt.want) {
				t.Errorf("succeeded: %v, and said %q; want %q", ok, said, tt.want)
			}
			want := "none 0 0"
			if !ok {
				want = before
			}
			if got := j.armed(); got != want {
				t.Errorf("armed (capsule, bit of OsIndications, next slot): %q; want %q", got, want)
			}
		})
	}
	j := newJetson(t)
	j.write(j.variables+indications, variable("\x05\x00\x00\x00\x00\x00\x00\x01"))
	if said, ok := j.runScript(script); !ok || j.read(j.variables+indications) != variable("\x01\x00\x00\x00\x00\x00\x00\x01") {
		t.Errorf("OsIndications = %q (%s); want all but its bit 2", j.read(j.variables+indications), said)
	}
}

// armed says what will happen at the next boot.
func (j jetson) armed() string {
	bit, next := byte(0), byte(0)
	if v := j.read(j.variables + indications); len(v) == 12 {
		bit = v[4] & 4
	}
	if v := j.read(j.variables + "BootChainFwNext" + publicVariables); len(v) == 8 {
		next = v[4]
	}
	return fmt.Sprintf("%s %d %d", j.read(capsule), bit, next)
}

// A board keeps its identity in the slot that an update wrote, and only then boots it.
func TestNextSlot(t *testing.T) {
	const script = "slipway-update/files/next-slot.sh"
	for _, tt := range []struct {
		name    string
		prepare func(j *jetson)
		env     string
		want    string // what is armed, or what it says where it fails
		fails   bool
	}{
		{name: "by a capsule", want: "new 4 0", prepare: func(j *jetson) { j.write(capsule, "new") }},
		{name: "by a switch", want: "none 0 1", prepare: func(*jetson) {}},
		{name: "AGX Xavier", want: "new 4 0", prepare: func(j *jetson) {
			j.write(capsule, "new")
			j.variables = "boot/efi/EFI/NVDA/Variables/"
			j.write(j.variables+"x", "")
			j.write("variables", j.variables)
		}},
		{name: "no slot", fails: true, want: "does not name the slot", prepare: func(j *jetson) { j.write("slot", "") }},
		{name: "the new slot is not there", fails: true, want: "", prepare: func(j *jetson) { j.write("other", "APP_c") }},
		{name: "the firmware bars the slot", fails: true, want: "did not take RootfsStatusSlotB", env: "STUCK=1", prepare: func(j *jetson) {
			j.write(capsule, "new")
			j.write(j.variables+"RootfsStatusSlotB"+publicVariables, variable("\xff\x00\x00\x00"))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			j := newJetson(t)
			tt.prepare(&j)
			before := j.armed()
			said, ok := j.runScript(script, tt.env)
			if tt.fails {
				if ok || !strings.Contains(said, tt.want) || j.armed() != before {
					t.Errorf("succeeded: %v, said %q, armed %q; want %q, and %q as before", ok, said, j.armed(), tt.want, before)
				}
				return
			}
			if !ok || j.armed() != tt.want {
				t.Errorf("succeeded: %v, said %q, armed %q; want %q", ok, said, j.armed(), tt.want)
			}
			new := "new" + j.dir + "/"
			for name, want := range map[string]string{
				"etc/machine-id": "here\n", "etc/ssh/ssh_host_rsa_key": "key\n", "var/lib/slipway/a/b": "deployed\n",
				"etc/new": "image\n", "etc/ssh/sshd_config": "none",
			} {
				if got := j.read(new + name); got != want {
					t.Errorf("the new slot's %s = %q; want %q", name, got, want)
				}
			}
			if left, _ := filepath.Glob(filepath.Join(j.dir, "tmp.*")); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}
