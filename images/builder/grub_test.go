package builder

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"slipway/images"
	"slipway/layers/host"
	"slipway/layers/run"
)

// A real GRUB runs the grub.cfg of the boards, on a disk of their layout: once for each
// state that RAUC can leave. It says what it would boot instead of doing so.
func TestGrubConfigs(t *testing.T) {
	needGrub(t)
	t.Run("of recipes", func(t *testing.T) {
		testGrub(t, recipesGrub(t), "/boot/Image q panic=10 rootwait rw", grubTests)
	})
	t.Run("of Debian boards", func(t *testing.T) {
		testGrub(t, debianGrub(t), "/vmlinuz q", slices.Concat(grubTests, provedTests))
	})
}

// A state is what the environment has for OK and TRY of A, then of B; before may follow
// the slot that ran last, and PROVED of A and of B.
type grubTest struct{ name, order, state, want, before string }

// provedTests are of the boards that know which slots were marked good.
var provedTests = []grubTest{
	{"new, as it is flashed", "A B", "10 00", "A 11 00 proved", "A 10"},
	{"marked good since it was booted", "A B", "10 00", "A 11 00 proved", "A 00"},
	{"not marked good since it was booted", "A B", "11 00", "A 12 00", "A 00"},
	{"proved, and nobody logged in since it was booted", "A B", "11 00", "A 12 00 proved", "A 10"},
	{"written by RAUC", "B A", "10 10", "B 10 11", "A 10"},
	{"written by RAUC, and proved before that", "B A", "10 10", "B 10 11", "A 11"},
	{"written by RAUC and lost its tries: the other one was marked good", "B A", "10 13", "A 11 13 proved", "B 10"},
	{"marked bad by who looked at it", "B A", "10 00", "A 11 00 proved", "B 10"},
	{"marked bad, and the other one made the first", "A B", "10 00", "A 11 00 proved", "B 10"},
	{"marked good after an update", "B A", "10 10", "B 10 11 proved", "B 10"},
	{"the fallback runs, and is updated from", "B A", "10 10", "B 10 11", "A 10"},
	{"the fallback is booted again", "B A", "10 13", "A 11 13 proved", "A 10"},
	{"a proved slot no longer boots: back to the older one", "B A", "10 13", "A 11 13 proved", "B 11"},
	{"none has tries left: the proved one", "B A", "13 13", "A 13 13 proved", "B 10"},
	{"on trial, and the other one is written anew", "A B", "10 11", "A 11 11", "B 10"},
}

var grubTests = []grubTest{
	{"new", "A B", "10 00", "A 11 00", ""},
	{"second try", "A B", "11 00", "A 12 00", ""},
	{"last try", "A B", "12 00", "A 13 00", ""},
	{"B after an update", "B A", "10 10", "B 10 11", ""},
	{"B has no tries left", "B A", "10 13", "A 11 13", ""},
	{"B is bad", "B A", "10 00", "A 11 00", ""},
	{"A is bad", "A B", "00 12", "B 00 13", ""},
	{"none has tries left", "A B", "13 00", "A 13 00", ""},
	{"A is half written and B has no tries left", "B A", "00 13", "B 00 13", ""},
	{"both are good and have no tries left", "B A", "13 13", "B 13 13", ""},
	{"none is good", "B A", "00 03", "A 00 03", ""},
	{"no order", "", "10 10", "A 10 10", ""},
}

// testGrub looks what a configuration boots, which is a kernel with its options behind
// the name of its partition.
func testGrub(t *testing.T, config, kernel string, tests []grubTest) {
	t.Helper()
	var driver, want strings.Builder
	driver.WriteString("serial --unit=0\nterminal_output serial\n")
	for _, test := range tests {
		before := test.before
		if before == "" {
			before = "- 00"
		}
		fmt.Fprintf(&driver, "set ORDER='%s'; set A_OK=%c; set A_TRY=%c; set B_OK=%c; set B_TRY=%c\n",
			test.order, test.state[0], test.state[1], test.state[3], test.state[4])
		fmt.Fprintf(&driver, "set LAST=%c; set A_PROVED=%c; set B_PROVED=%c\n", before[0], before[2], before[3])
		driver.WriteString("save_env --file (hd0,gpt2)/grubenv ORDER A_OK A_TRY B_OK B_TRY LAST A_PROVED B_PROVED\nset root=hd0,gpt1\n")
		driver.WriteString("source (hd0,gpt2)/grub.cfg\nload_env --file (hd0,gpt2)/grubenv\n")
		driver.WriteString("echo \"state: $A_OK$A_TRY $B_OK$B_TRY\"\n")
		slot, state, _ := strings.Cut(test.want, " ")
		state, isProved := strings.CutSuffix(state, " proved")
		fmt.Fprintf(&want, "(hd0,gpt%d)%s root=PARTLABEL=root%[3]s rauc.slot=%[3]s%[4]s\nstate: %[5]s\n",
			map[string]int{"A": 3, "B": 4}[slot], kernel, slot, map[bool]string{true: " " + provedWord}[isProved], state)
	}
	// There is no kernel: where GRUB does not reboot then, it waits at its prompt.
	driver.WriteString("source (hd0,gpt2)/real.cfg\n")
	if diff := cmp.Diff(want.String(), runGrub(t, config, driver.String(), nil)); diff != "" {
		t.Errorf("GRUB went elsewhere than (-want +got):\n%s", diff)
	}
}

// A block that a power cut damaged is not what a board boots by.
func TestGrubConfigsWithoutBlock(t *testing.T) {
	needGrub(t)
	configs := map[string]string{"recipes": recipesGrub(t), "debian": debianGrub(t)}
	boots := map[string]string{
		"recipes": "(hd0,gpt4)/boot/Image q panic=10 rootwait rw root=PARTLABEL=rootB rauc.slot=B\n",
		"debian":  "(hd0,gpt4)/vmlinuz q root=PARTLABEL=rootB rauc.slot=B " + provedWord + "\n",
	}
	blocks := map[string]string{"empty": "", "zeros": strings.Repeat("\x00", 1024), "half": "# GRUB Env", "missing": ""}
	files := map[string]string{}
	driver, want := "serial --unit=0\nterminal_output serial\nset root=hd0,gpt1\n", ""
	for _, of := range slices.Sorted(maps.Keys(configs)) {
		for _, damage := range slices.Sorted(maps.Keys(blocks)) {
			name := of + damage
			if damage != "missing" {
				files[name] = blocks[damage]
			}
			files[name+".good"] = grubBlock("ORDER=B A\nLAST=B\nB_OK=1\nB_TRY=0\nB_PROVED=1\nA_OK=0\nA_TRY=0\nA_PROVED=0\n")
			files[name+".cfg"] = sayNotBoot.Replace(strings.ReplaceAll(configs[of], "/grubenv", "/"+name))
			driver += forget + "source (hd0,gpt2)/" + name + ".cfg\n"
			want += boots[of]
		}
	}
	if diff := cmp.Diff(want, runGrub(t, configs["recipes"], driver+"reboot\n", files)); diff != "" {
		t.Errorf("GRUB went elsewhere than (-want +got):\n%s", diff)
	}
}

// forget is for a driver that has GRUB run several configurations.
const forget = "unset ORDER; unset LAST; unset A_OK; unset A_TRY; unset A_PROVED; unset B_OK; unset B_TRY; unset B_PROVED\n"

// What a Debian board boots by when its block is damaged is the proved slot that it
// booted last: not one that was on trial, and one whose tries begin anew.
func TestGrubConfigKeepsProvedSlot(t *testing.T) {
	needGrub(t)
	config := debianGrub(t)
	files := map[string]string{
		"proved": grubBlock("ORDER=B A\nLAST=B\nA_OK=1\nA_TRY=0\nA_PROVED=1\nB_OK=1\nB_TRY=0\nB_PROVED=0\n"),
		"trial":  grubBlock("ORDER=A B\nLAST=B\nA_OK=1\nA_TRY=0\nA_PROVED=0\nB_OK=1\nB_TRY=1\nB_PROVED=1\n"),
		"kept":   grubBlock("ORDER=A B\nLAST=A\nA_OK=1\nA_TRY=0\nA_PROVED=1\n"),
	}
	driver := "serial --unit=0\nterminal_output serial\nset root=hd0,gpt1\n"
	for _, env := range []string{"proved", "trial", "missing"} {
		files[env+".cfg"] = sayNotBoot.Replace(strings.NewReplacer("/grubenv.good", "/kept", "/grubenv", "/"+env).Replace(config))
		driver += forget + "source (hd0,gpt2)/" + env + ".cfg\n"
	}
	driver += forget + "load_env --file (hd0,gpt2)/kept\necho \"state: $ORDER, $LAST, $A_OK$A_TRY$A_PROVED $B_OK$B_TRY$B_PROVED\"\nreboot\n"
	const want = "(hd0,gpt4)/vmlinuz q root=PARTLABEL=rootB rauc.slot=B " + provedWord + "\n" +
		"(hd0,gpt3)/vmlinuz q root=PARTLABEL=rootA rauc.slot=A\n" +
		"(hd0,gpt4)/vmlinuz q root=PARTLABEL=rootB rauc.slot=B " + provedWord + "\n" +
		"state: B A, B, 000 101\n"
	if diff := cmp.Diff(want, runGrub(t, config, driver, files)); diff != "" {
		t.Errorf("GRUB went elsewhere than (-want +got):\n%s", diff)
	}
}

func recipesGrub(t *testing.T) string {
	t.Helper()
	source, err := os.ReadFile("../../recipes/slipway-loader/files/grub.cfg.in")
	if err != nil {
		t.Fatal(err)
	}
	return strings.NewReplacer("@KERNEL@", "Image", "@APPEND@", "q").Replace(string(source))
}

// GRUB breaks long lines, so its command line for the kernel is short.
func debianGrub(t *testing.T) string {
	t.Helper()
	return debianGrubWith(t, "q")
}

func debianGrubWith(t *testing.T, cmdline string) string {
	t.Helper()
	spec, err := images.Default()
	if err != nil {
		t.Fatal(err)
	}
	small := *spec.Disk
	small.Cmdline = cmdline
	spec.Disk = &small
	return disk{spec: spec}.grubConfig()
}

func needGrub(t *testing.T) {
	t.Helper()
	needed := []string{"grub-common", "grub-pc-bin", "dosfstools", "mtools", "fdisk", "qemu-system-x86"}
	if missing, err := host.Missing(t.Context(), needed...); err != nil || len(missing) > 0 {
		t.Skipf("this machine lacks the Debian packages %v (%v)", missing, err)
	}
}

func grubBlock(content string) string {
	content = "# GRUB Environment Block\n" + content
	return content + strings.Repeat("#", 1024-len(content))
}

var sayNotBoot = strings.NewReplacer("linux (", "echo (", "\nboot\nreboot\n", "\n")

// runGrub returns what GRUB says that it would boot, and the driver's own lines. The
// boot partition has some more files.
func runGrub(t *testing.T, real, driver string, more map[string]string) string {
	t.Helper()
	d := disk{dir: t.TempDir(), spec: images.Spec{Disk: &images.Disk{Firmware: "bios", Partitions: []images.DiskPartition{
		{Name: "loader", SizeMiB: 1, Use: images.UseLoader},
		{Name: "boot", SizeMiB: 16, Use: images.UseBoot},
		{Name: "rootA", SizeMiB: 1, Use: images.UseRoot},
		{Name: "rootB", SizeMiB: 1, Use: images.UseSpare},
	}}}}
	d.log = d.path("log")
	files := map[string]string{"grub.cfg": sayNotBoot.Replace(real), "real.cfg": real, "driver.cfg": driver, "grubenv": grubBlock("")}
	maps.Copy(files, more)
	var onDisk []string
	for name := range files {
		onDisk = append(onDisk, d.path(name))
	}
	files["early.cfg"] = "normal (hd0,gpt2)/driver.cfg\n"
	for name, content := range files {
		if err := os.WriteFile(d.path(name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := grubDisk(ctx, d, onDisk); err != nil {
		t.Fatal(err)
	}
	out, err := run.Output(ctx, run.Command{Argv: []string{
		"qemu-system-x86_64", "-m", "128", "-display", "none", "-monitor", "none", "-serial", "stdio", "-net", "none", "-no-reboot",
		"-drive", "format=raw,if=virtio,file=" + d.path(diskName),
	}, Log: d.log})
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var said strings.Builder
	for _, line := range strings.Split(string(out), "\n") {
		if at := strings.Index(line, "(hd0,gpt"); at >= 0 {
			said.WriteString(strings.TrimRight(line[at:], "\r ") + "\n")
		} else if at := strings.Index(line, "state: "); at >= 0 {
			said.WriteString(strings.TrimRight(line[at:], "\r ") + "\n")
		}
	}
	return said.String()
}

func grubDisk(ctx context.Context, d disk, files []string) error {
	if err := d.makeTable(ctx); err != nil {
		return err
	}
	const modules = "/usr/lib/grub/i386-pc"
	p, _ := d.partitionFor(images.UseBoot)
	at := fmt.Sprintf("%s@@%d", d.path(diskName), p.OffsetBytes)
	for _, argv := range [][]string{
		{"mkfs.vfat", "--offset", fmt.Sprint(p.OffsetBytes / sectorBytes), d.path(diskName), fmt.Sprint(p.SizeBytes / 1024)},
		append(append([]string{"mcopy", "-i", at}, files...), "::/"),
		{
			"grub-mkimage", "-O", "i386-pc", "-d", modules, "-o", d.path("core.img"), "-c", d.path("early.cfg"), "-p", "(hd0,gpt2)",
			"biosdisk", "part_gpt", "fat", "normal", "loadenv", "test", "echo", "regexp", "serial", "terminal", "linux", "boot", "reboot", "configfile",
		},
	} {
		if err := d.runProgram(ctx, argv...); err != nil {
			return err
		}
	}
	return d.biosLoader(d.path("core.img"), filepath.Join(modules, "boot.img"))
}
