package tegra

import (
	"encoding/binary"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"slipway/layers/run"
)

func TestVars(t *testing.T) {
	tests := []struct {
		name, input string
		want        map[string]string
		wantErr     string
	}{
		{"as meta-tegra writes them", "FLASH_HELPER=tegra-flash-helper.sh\nBOOTDEV=\"nvme0n1p1\"\nDEFAULTS[BOARDID]=\"3767\"\nDATAFILE=\"\"\nEXTERNAL_ROOTFS_DRIVE=1\n", map[string]string{
			"FLASH_HELPER": "tegra-flash-helper.sh", "BOOTDEV": "nvme0n1p1", "DEFAULTS[BOARDID]": "3767", "DATAFILE": "", "EXTERNAL_ROOTFS_DRIVE": "1",
		}, ""},
		{"comments, empty lines, several on one", "# a comment\n\n  A=1 B='two words'; export C=\"x\"y'z' # more\n", map[string]string{"A": "1", "B": "two words", "C": "xyz"}, ""},
		{"escapes", `A="say \"\$5\" \\ now"`, map[string]string{"A": `say "$5" \ now`}, ""},
		{"single quotes are plain", `A='$(reboot)'`, map[string]string{"A": "$(reboot)"}, ""},
		{"CRLF", "A=1\r\nB=\"2\"\r\n", map[string]string{"A": "1", "B": "2"}, ""},
		{"nothing", "", map[string]string{}, ""},
		{"a substitution", "A=$(reboot)", nil, `line 1: "A=$(reboot)" is no assignment`},
		{"a substitution in quotes", "A=1\nB=\"$(reboot)\"", nil, "line 2: \"B=\\\"$(reboot)\\\"\" is no assignment"},
		{"backquotes", "A=\"`reboot`\"", nil, "is no assignment"},
		{"a command", "rm -rf /", nil, "is no assignment"},
		{"a command after", "A=1; reboot", nil, "is no assignment"},
		{"a command's variable", "A=1 reboot --now", nil, "is no assignment"},
		{"a redirection", "A=1>/etc/x", nil, "is no assignment"},
		{"an open quote", `A="x`, nil, "is no assignment"},
		{"a name", "1A=x", nil, "is no assignment"},
		{"an index that runs", "A[$(x)]=1", nil, "is no assignment"},
		{"escape sequences", "A='\x1b[2J'", nil, "is no assignment"},
		{"long", "A='" + strings.Repeat("x", 5000) + "''y'", nil, "more than 4096 bytes"},
		{"many lines", strings.Repeat("A=1\n", 1001), nil, "more than 1000 lines"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseVars(tt.input)
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Errorf("parseVars = %v, %v; want an error with %q", got, err, tt.wantErr)
				}
				return
			}
			if err != nil || !maps.Equal(got, tt.want) {
				t.Errorf("parseVars = %q, %v; want %q", got, err, tt.want)
			}
		})
	}
}

const layoutXML = `<?xml version="1.0"?>
<!-- as NVIDIA's -->
<partition_layout version="01.00.0000">
    <device type="spi" instance="0" sector_size="512" num_sectors="131072">
        <partition name="BCT" type="boot_config_table">
            <allocation_policy> sequential </allocation_policy>
            <size> 1048576 </size>
            <filename> br_bct_BR.bct </filename>
        </partition>
    </device>
    <device type="nvme" instance="4" sector_size="512" num_sectors="4096000">
        <partition name="master_boot_record" type="protective_master_boot_record"><size> 512 </size></partition>
        <partition name="primary_gpt" type="primary_gpt"><size> 19968 </size></partition>
        <partition name="APP" id="1" type="data">
            <allocation_attribute> 0x8 </allocation_attribute>
            <size> 0x1000000 </size>
            <filename> APPFILE </filename>
            <description> the root file system </description>
        </partition>
        <partition name="A_kernel" type="data"><size> 1048576 </size><filename> boot.img </filename></partition>
        <partition name="UDA" type="data"><allocation_attribute> 0x808 </allocation_attribute><size> 18432 </size></partition>
        <partition name="secondary_gpt" type="secondary_gpt"><size> 0xFFFFFFFFFFFFFFFF </size></partition>
    </device>
</partition_layout>
`

func TestLayout(t *testing.T) {
	l, err := parseLayout([]byte(layoutXML))
	if err != nil {
		t.Fatal(err)
	}
	if len(l.devices) != 2 || l.devices[0].hasRootFS() || !l.devices[1].hasRootFS() {
		t.Fatalf("devices = %+v; want a spi and an nvme", l.devices)
	}
	want := []partition{
		{name: "master_boot_record", kind: "protective_master_boot_record", sizeBytes: 512},
		{name: "primary_gpt", kind: "primary_gpt", sizeBytes: 19968},
		{name: "APP", kind: "data", file: "APPFILE", sizeBytes: 16 << 20},
		{name: "A_kernel", kind: "data", file: "boot.img", sizeBytes: 1 << 20},
		{name: "UDA", kind: "data", sizeBytes: 18432, fills: true},
		{name: "secondary_gpt", kind: "secondary_gpt", sizeBytes: -1},
	}
	if diff := cmp.Diff(want, l.devices[1].partitions, cmp.AllowUnexported(partition{})); diff != "" {
		t.Errorf("partitions (-want +got):\n%s", diff)
	}
	if got := l.diskBytes(); got < 17<<20+64<<20 || got > 100<<20 {
		t.Errorf("needed() = %d; want some 82 MiB", got)
	}
}

func TestBrokenLayouts(t *testing.T) {
	part := func(inner string) string {
		return `<partition_layout><device type="nvme" sector_size="512"><partition name="APP" type="data">` + inner + `</partition></device></partition_layout>`
	}
	tests := []struct{ name, xml, want string }{
		{"empty", "", "EOF"},
		{"other root", "<flash/>", "partition_layout"},
		{"no devices", "<partition_layout/>", "0 devices"},
		{"cut", layoutXML[:700], "EOF"},
		{"size", part("<size>LNXSIZE</size>"), `partition "APP": size "LNXSIZE" is no number`},
		{"negative", part("<size>-5</size>"), "is no number of bytes"},
		{"huge", part("<size>99999999999999999999</size>"), "is no number of bytes"},
		{"attribute", part("<allocation_attribute>zz</allocation_attribute>"), "allocation_attribute"},
		{"file that leads out", part("<filename>../../etc/passwd</filename>"), "leads out of the package"},
		{"absolute file", part("<filename>/etc/passwd</filename>"), "leads out of the package"},
		{"no name", strings.Replace(part(""), `name="APP"`, "", 1), "no name"},
		{"sector size", strings.Replace(part(""), `"512"`, `"0"`, 1), "no size of a sector"},
		{"entity", `<!DOCTYPE x [<!ENTITY a "b">]>` + part("<size>&a;</size>"), "entity"},
		{"deep", strings.Repeat("<x>", 100000), "deep"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := parseLayout([]byte(tt.xml)); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("parseLayout = %v; want an error with %q", err, tt.want)
			}
		})
	}
}

// pack lays out a package as meta-tegra makes it, without NVIDIA's programs.
func pack(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, body := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := run.WriteProgram(path, []byte(body), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func envFile(chip, device string) string {
	return `FLASH_HELPER=tegra-flash-helper.sh
BOOTDEV="` + device + `p1"
ROOTFS_DEVICE="` + device + `"
CHIPID="` + chip + `"
MACHINE="jetson-orin-nano-devkit"
DEFAULTS[BOARDID]="3767"
DEFAULTS[FAB]="300"
LNXFILE="boot.img"
ROOTFS_IMAGE="image.ext4"
DATAFILE=""
EXTERNAL_ROOTFS_DRIVE=1
NO_INTERNAL_STORAGE=1
`
}

// orin is a package of R36, thor one of R39.
func orin() map[string]string {
	return map[string]string{
		".env.initrd-flash": envFile("0x23", "nvme0n1"), "bsp_version": "BSP_BRANCH=36\nBSP_MAJOR=4\nBSP_MINOR=4\n",
		"tegra-flash-helper.sh": "", "initrd-flash": "", "initrd-flash.img": "", "doflash.sh": "", "flashvars": `CHIPID="0x23"`,
		"flash.xml.in": layoutXML, "external-flash.xml.in": layoutXML, "image.ext4": "rootfs", "boot.img": "kernel",
	}
}

func thor() map[string]string {
	return map[string]string{
		".env.initrd-flash": envFile("0x26", "nvme0n1"), "bsp_version": "BSP_BRANCH=39\nBSP_MAJOR=2\nBSP_MINOR=0\n",
		"tegra-flash-helper.sh": "", "initrd-flash": "", "initrd-flash.img": "", "boardvars.sh": "", "create_l4t_bsp_images.py": "",
		"flash.xml.in": layoutXML, "external-flash.xml.in": layoutXML, "rcmboot-flash.xml.in": layoutXML, "image.ext4": "rootfs",
	}
}

func nano() map[string]string {
	return map[string]string{
		"bsp_version": "BSP_BRANCH=32\nBSP_MAJOR=7\nBSP_MINOR=6\n", "tegra210-flash-helper.sh": "", "doflash.sh": "", "dosdcard.sh": "",
		"flash.xml.in": layoutXML,
	}
}

func with(files map[string]string, name, body string) map[string]string {
	files[name] = body
	return files
}

func without(files map[string]string, names ...string) map[string]string {
	for _, name := range names {
		delete(files, name)
	}
	return files
}

func TestOpenTellsTheGeneration(t *testing.T) {
	tests := []struct {
		name    string
		files   map[string]string
		want    string
		wantErr string
	}{
		{"R36", orin(), "R36.4.4 for jetson-orin-nano-devkit (t234), by initrd-flash", ""},
		{"R39 on Orin", with(orin(), "bsp_version", "BSP_BRANCH=39\nBSP_MAJOR=2\nBSP_MINOR=0\n"), "R39.2.0 for jetson-orin-nano-devkit (t234), by initrd-flash", ""},
		{"R39 on Thor", thor(), "R39.2.0 for jetson-orin-nano-devkit (t264), by unified flash", ""},
		{"R32", nano(), "R32.7.6 for unknown machine (t210), by doflash.sh", ""},
		{"two helpers", with(with(with(nano(), "tegra194-flash-helper.sh", ""), "tegra186-flash-helper.sh", ""), "tegra234-flash-helper.sh", ""), "R32.7.6 for unknown machine (t186), by doflash.sh", ""},
		{"without the initrd", without(orin(), "initrd-flash", "initrd-flash.img", ".env.initrd-flash"), "R36.4.4 for unknown machine (t234), by doflash.sh", ""},
		{"without a release", without(orin(), "bsp_version"), "L4T of unknown release for", ""},
		{"empty", map[string]string{}, "", "has none of its helper scripts"},
		{"no scripts", without(orin(), "initrd-flash", "doflash.sh"), "", "has neither initrd-flash"},
		{"chip", with(orin(), ".env.initrd-flash", envFile("0x99", "x")), "", `CHIPID "0x99" is not known`},
		{"release", with(orin(), "bsp_version", "BSP_BRANCH='3 6'"), "", "is no release"},
		{"variables that run", with(orin(), ".env.initrd-flash", "MACHINE=$(reboot)"), "", ".env.initrd-flash: line 1"},
		{"rootfs that leads out", with(orin(), ".env.initrd-flash", "ROOTFS_IMAGE=../../x\nCHIPID=0x23"), "", "leads out of the package"},
		{"layout", with(orin(), "flash.xml.in", "<x/>"), "", "flash.xml.in"},
		{"no layout", without(orin(), "flash.xml.in"), "", "flash.xml.in"},
		{"half a Thor", without(thor(), "create_l4t_bsp_images.py"), "", "it is not whole"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := Open(pack(t, tt.files))
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Errorf("Open = %v; want an error with %q", err, tt.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := p.Describe(); !strings.HasPrefix(got, tt.want) {
				t.Errorf("Describe = %q; want %q", got, tt.want)
			}
		})
	}
}

// simg is the head of Android's sparse image of so many bytes.
func simg(bytes uint32) string {
	head := make([]byte, 28)
	binary.LittleEndian.PutUint32(head, 0xed26ff3a)
	binary.LittleEndian.PutUint32(head[12:], 4096)
	binary.LittleEndian.PutUint32(head[16:], bytes/4096)
	return string(head)
}

func TestCheckComparesSizes(t *testing.T) {
	many := strings.Replace(layoutXML, `num_sectors="4096000"`, `num_sectors="2048"`, 1)
	tests := []struct {
		name    string
		files   map[string]string
		wantErr string
	}{
		{"fits", orin(), ""},
		{"kernel", with(orin(), "boot.img", strings.Repeat("k", 1<<20+1)), "partition A_kernel has 1048576 bytes, its file boot.img needs 1048577"},
		{"exactly", with(orin(), "boot.img", strings.Repeat("k", 1<<20)), ""},
		{"sparse root file system that fits", with(orin(), "image.ext4", simg(16<<20)), ""},
		{"sparse root file system", with(orin(), "image.ext4", simg(16<<20+4096)), "partition APP has 16777216 bytes, its file image.ext4 needs 16781312"},
		{"device", with(orin(), "external-flash.xml.in", many), `the partitions of device "nvme" have 17846272 bytes together, the device has 1048576`},
		{"no root file system", without(orin(), "image.ext4"), "has no image.ext4"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := Open(pack(t, tt.files))
			if err != nil {
				t.Fatal(err)
			}
			err = p.Check()
			if tt.wantErr == "" && err != nil || tt.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tt.wantErr)) {
				t.Errorf("Check = %v; want %q", err, tt.wantErr)
			}
		})
	}
}

func FuzzVars(f *testing.F) {
	f.Add(envFile("0x23", "nvme0n1"))
	f.Add("A='x'\"y\"z; export B=1 # c\nC[d]=\"\\\"\"")
	f.Fuzz(func(t *testing.T, text string) {
		vars, err := parseVars(text)
		if err != nil {
			return
		}
		for name, value := range vars {
			if !varName().MatchString(name) || len(value) > valueBytes {
				t.Errorf("parseVars(%q) has %q = %q", text, name, value)
			}
			again, err := parseVars(name + "='" + strings.ReplaceAll(value, "'", `'"'"'`) + "'")
			if err != nil || again[name] != value {
				t.Errorf("%q = %q reads back as %q, %v", name, value, again[name], err)
			}
		}
	})
}

func FuzzLayout(f *testing.F) {
	f.Add([]byte(layoutXML))
	f.Add([]byte(`<partition_layout><device type="spi"><partition name="a"><size>0x10</size></partition></device></partition_layout>`))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		l, err := parseLayout(data)
		if err != nil {
			return
		}
		if l.diskBytes() < 0 {
			t.Errorf("needed() = %d", l.diskBytes())
		}
		for _, d := range l.devices {
			for _, p := range d.partitions {
				if p.sizeBytes < -1 || p.file != "" && !filepath.IsLocal(p.file) {
					t.Errorf("partition %+v", p)
				}
			}
		}
		_ = l.checkFiles(dir, nil) // must end, whatever the numbers
	})
}

func TestHelpersThatAcceptAnyBoard(t *testing.T) {
	tests := []struct {
		helper string
		want   bool
	}{
		{"", false},
		{"BR_CID=$($here/tegrarcm_v2 ${chipidargs} ${inst_args} --uid | grep BR_CID)", false},
		{"  ./tegrarcm_v2 --instance \"$usb_instance\" --uid", false},
		{"cp $here/tegrarcm_v2 $here/chkbdinfo blob/\nln -sf \"$here/tegrarcm_v2\" blob/", false},
		{"# ./tegrarcm_v2 --uid", false},
		{"BR_CID=$($here/tegrarcm --uid)", true},
		{"if x; then\n\tif ./tegrarcm_v2 --chip $CHIPID 0 --oem platformdetails chip c.bin && \\\n", true},
		{"\"$here/tegrarcm_v2\" ${chipidargs} --uid", true},
	}
	for _, tt := range tests {
		if got := open(t, with(orin(), "tegra-flash-helper.sh", tt.helper)).AcceptsAnyBoard(); got != tt.want {
			t.Errorf("AcceptsAnyBoard with %q = %v; want %v", tt.helper, got, tt.want)
		}
	}
}
