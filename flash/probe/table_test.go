package probe

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
)

const gptScript = `label: gpt
label-id: 11111111-2222-3333-4444-555555555555
start=2048, size=4096, type=C12A7328-F81F-11D2-BA4B-00A0C93EC93B, name="esp", uuid=AAAAAAAA-0000-0000-0000-000000000001
start=8192, size=8192, type=0FC63DAF-8483-4772-8E79-3D69D8477DE4, name="my root", uuid=AAAAAAAA-0000-0000-0000-000000000002
`

const dosScript = `label: dos
label-id: 0x12345678
start=2048, size=4096, type=c, bootable
start=8192, size=40960, type=5
start=10240, size=4096, type=83
start=16384, size=4096, type=82
`

func makePartitioned(t *testing.T, script string) string {
	t.Helper()
	path := makeDisk(t, 32*mib)
	mustRun(t, script, "sfdisk", "fdisk", "--quiet", "--no-reread", "--no-tell-kernel", path)
	return path
}

// sfdisk is util-linux's view of a table.
func sfdisk(t *testing.T, path string) (table struct {
	PartitionTable struct {
		Label      string
		Partitions []struct {
			Node, Name  string
			Start, Size int64
		}
	}
},
) {
	t.Helper()
	if err := json.Unmarshal([]byte(mustRun(t, "", "sfdisk", "fdisk", "--json", path)), &table); err != nil {
		t.Fatal(err)
	}
	return table
}

func TestTables(t *testing.T) {
	for name, script := range map[string]string{"gpt": gptScript, "dos": dosScript} {
		t.Run(name, func(t *testing.T) {
			path := makePartitioned(t, script)
			got, want := probe(t, path, 512).Table, sfdisk(t, path).PartitionTable
			if got == nil || got.Type != want.Label || len(got.Faults) > 0 || len(got.Partitions) != len(want.Partitions) {
				t.Fatalf("table = %+v; sfdisk has %+v", got, want)
			}
			for i, w := range want.Partitions {
				g := got.Partitions[i]
				if g.OffsetBytes != w.Start*512 || g.SizeBytes != w.Size*512 || g.Name != w.Name || !strings.HasSuffix(w.Node, string(rune('0'+g.Number))) {
					t.Errorf("partition = %+v; sfdisk has %+v", g, w)
				}
			}
		})
	}
}

func TestContentOfPartitions(t *testing.T) {
	path := makePartitioned(t, gptScript)
	mustRun(t, "", "mke2fs", "e2fsprogs", "-q", "-t", "ext4", "-L", "root", "-E", "offset=4194304", path, "4M")
	got := probe(t, path, 512).Table.Partitions[1]
	if got.Type != "ext4" || got.Label != "root" {
		t.Errorf("partition = %+v; want ext4 with label root", got)
	}
}

// The tables are damaged, and Read reports their faults.
func TestDamagedTables(t *testing.T) {
	tests := []struct {
		name       string
		damage     func(p []byte) []byte
		faults     []string
		partitions int
	}{
		{name: "none", damage: func(p []byte) []byte { return p }, partitions: 2},
		{name: "first header", damage: func(p []byte) []byte { p[512+56] ^= 1; return p }, faults: []string{"the first copy of the partition table is damaged, the second one at the end is whole"}, partitions: 2},
		{name: "first entries", damage: func(p []byte) []byte { p[1024] ^= 1; return p }, faults: []string{"the first copy of the partition table is damaged, the second one at the end is whole"}, partitions: 2},
		{name: "first MiB erased", damage: func(p []byte) []byte { clear(p[:mib]); return p }, faults: []string{"the first copy of the partition table is damaged, the second one at the end is whole", "no protective MBR before it"}, partitions: 2},
		{name: "second header", damage: func(p []byte) []byte { clear(p[len(p)-512:]); return p }, faults: []string{"the second copy of the partition table, at the end, is damaged or missing"}, partitions: 2},
		{name: "both", damage: func(p []byte) []byte { clear(p[512:1024]); clear(p[len(p)-512:]); return p }, faults: []string{"both copies of the GPT are damaged or gone"}},
		{name: "larger disk", damage: func(p []byte) []byte { return append(p, make([]byte, mib)...) }, faults: []string{"the second copy of the partition table is not at the end: the table was made for a smaller disk"}, partitions: 2},
		{name: "smaller disk", damage: func(p []byte) []byte { return p[:6*mib] }, faults: []string{"the second copy of the partition table, at the end, is damaged or missing", "partition 2 ends behind the disk's end"}, partitions: 2},
	}
	whole, err := os.ReadFile(makePartitioned(t, gptScript))
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p := test.damage(slices.Clone(whole))
			d, err := Read(bytes.NewReader(p), int64(len(p)), 512)
			if err != nil || d.Table == nil {
				t.Fatalf("Read = %+v, %v; want a table", d, err)
			}
			if !slices.Equal(d.Table.Faults, test.faults) || len(d.Table.Partitions) != test.partitions {
				t.Errorf("faults = %q, %d partitions; want %q, %d", d.Table.Faults, len(d.Table.Partitions), test.faults, test.partitions)
			}
		})
	}
}

// Linux reads the MBR, even if a GPT of an earlier use remains.
func TestOldTableBeforeGPT(t *testing.T) {
	p, old := makeWic(t, gptScript), makeWic(t, dosScript)
	copy(p[440:512], old[440:512])
	d, err := Read(bytes.NewReader(p), int64(len(p)), 512)
	if err != nil || d.Table == nil || d.Table.Type != "dos" {
		t.Errorf("Read = %+v, %v; want the old table", d.Table, err)
	}
}

func TestOtherSectors(t *testing.T) {
	path := makePartitioned(t, gptScript)
	d := probe(t, path, 4096)
	if d.Table == nil || len(d.Table.Partitions) != 2 || !strings.Contains(strings.Join(d.Table.Faults, "\n"), "made for sectors of 512 bytes, while the device has 4096") {
		t.Errorf("table = %+v; want it with the fault that the kernel does not see it", d.Table)
	}
}

func TestHybrid(t *testing.T) {
	path := makePartitioned(t, gptScript)
	mustRun(t, "", "sgdisk", "gdisk", "--hybrid=1", path)
	if d := probe(t, path, 512); d.Table == nil || d.Table.Type != "gpt" || !d.Table.Hybrid || len(d.Table.Partitions) != 2 {
		t.Errorf("table = %+v; want a hybrid GPT with its two partitions", d.Table)
	}
}

// One chain of logical partitions is a loop. The other is longer than that of any disk.
func TestLogicalEnds(t *testing.T) {
	whole, err := os.ReadFile(makePartitioned(t, dosScript))
	if err != nil {
		t.Fatal(err)
	}
	second := whole[(8192+(16384-2048)-8192)*512:] // the second table lies before its partition
	if string(second[510:512]) != "\x55\xaa" {
		second = whole[bytes.LastIndex(whole[:16384*512], []byte("\x55\xaa"))-510:]
	}
	second[446+16+4] = 5
	le.PutUint32(second[446+16+8:], 0)
	le.PutUint32(second[446+16+12:], 100)
	d, err := Read(bytes.NewReader(whole), int64(len(whole)), 512)
	if err != nil || len(d.Table.Partitions) != 4 {
		t.Errorf("table = %+v, %v; want the four partitions, once", d.Table, err)
	}
	// Every sector from the extended partition on is a table that names the next.
	for at := int64(8192); at+1 < int64(len(whole))/512; at++ {
		e := whole[at*512:]
		copy(e[510:], "\x55\xaa")
		clear(e[446:510])
		e[446+4], e[446+16+4] = 0x83, 5
		le.PutUint32(e[446+8:], 1)
		le.PutUint32(e[446+12:], 1)
		le.PutUint32(e[446+16+8:], uint32(at+1-8192))
		le.PutUint32(e[446+16+12:], 1)
	}
	d, err = Read(bytes.NewReader(whole), int64(len(whole)), 512)
	if err != nil || len(d.Table.Partitions) != 2+maxLogical {
		t.Errorf("%d partitions, %v; want %d", len(d.Table.Partitions), err, 2+maxLogical)
	}
}
