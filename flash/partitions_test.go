package flash

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"slipway/flash/device"
	"slipway/flash/flashtest"
	"slipway/images"
	"slipway/layers/progress"
)

// impatient waits less for partitions that somebody has open.
func impatient(t *testing.T) {
	was := device.LockPatience
	t.Cleanup(func() { device.LockPatience = was })
	device.LockPatience = 200 * time.Millisecond
}

// foreign is what another program writes into a partition and does not sync.
var foreign = bytes.Repeat([]byte("foreign."), 512)

// TestMapper is this test as another program: it maps a device, closes it, and stays.
func TestMapper(t *testing.T) {
	path := os.Getenv("SLIPWAY_TEST_MAP")
	if path == "" {
		t.Skip("is run by TestWrongDisk")
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	p, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	copy(p, foreign)
	if err := unix.Msync(p, unix.MS_SYNC); err != nil { // else the kernel writes it at a time of its own
		t.Fatal(err)
	}
	fmt.Println("mapped")
	time.Sleep(time.Hour)
}

// mappedBy has another program map a device.
func mappedBy(t *testing.T, device string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestMapper$")
	cmd.Env = append(os.Environ(), "SLIPWAY_TEST_MAP="+device)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	said := make([]byte, len("mapped"))
	if _, err := out.Read(said); err != nil || string(said) != "mapped" {
		t.Fatalf("the other program says %q: %v", said, err)
	}
}

var partitionCases = []wrongCase{
	{"a partition written by another program", "p1: open for writing by sleep (process ", itself(func(t *testing.T, device, _ string) {
		hold(t, flashtest.Partition(t, device), os.O_WRONLY)
	})},
	{"a partition read by another program", "p1: open by sleep (process ", itself(func(t *testing.T, device, _ string) {
		impatient(t)
		hold(t, flashtest.Partition(t, device), os.O_RDONLY)
	})},
	{"a partition opened by nobody who can be seen", "a partition of it is in use", itself(func(t *testing.T, device, _ string) {
		impatient(t)
		flashtest.Open(t, flashtest.Partition(t, device), 0)
	})},
	{"a disk in another program's memory", "open for writing by ", itself(func(t *testing.T, device, _ string) { mappedBy(t, device) })},
	{"a partition in another program's memory", "p1: open for writing by ", itself(func(t *testing.T, device, _ string) { mappedBy(t, flashtest.Partition(t, device)) })},
	{"a partition with data that nobody synced, and a reader", "p1: open by sleep (process ", func(t *testing.T, a images.Artifact) error {
		impatient(t)
		device, _ := flashtest.Loop(t, littleDevice)
		node := flashtest.Partition(t, device)
		hold(t, node, os.O_RDONLY)
		flashtest.Scribble(t, node, 0, foreign)
		_, err := Write(t.Context(), spec, a, device, byAnswer)
		return err
	}},
	{"a partition opened while the question is asked", "p1: open by sleep (process ", afterwards(func(t *testing.T, device, _ string) {
		impatient(t)
		hold(t, flashtest.Partition(t, device), os.O_RDONLY)
	})},
	{"a partition mounted while the question is asked", "p1: mounted on ", afterwards(func(t *testing.T, device, file string) {
		node := flashtest.Partition(t, device)
		ext4(t, node, file)
		mountAt(t, node, "ext4", "")
	})},
	{"a partition opened for one program alone", "in use by sleep (process ", itself(func(t *testing.T, device, _ string) {
		hold(t, flashtest.Partition(t, device), os.O_RDONLY|unix.O_EXCL)
	})},
	{"a file with a second loop device over a part of it", "shares its file with /dev/loop", itself(func(t *testing.T, _, file string) {
		flashtest.Attach(t, "--offset=1048576", file)
	})},
}

// onMedium is what the file behind a loop device holds once every cache was written
// out and dropped.
func onMedium(t *testing.T, file string) []byte {
	t.Helper()
	unix.Sync()
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0); err != nil {
		t.Log(err)
	}
	return read(t, file)
}

// What another program left in a partition's page cache must not reach the disk after
// the image was read back: neither what was written before the flash, nor while it runs.
func TestPartitionsCannotBeWrittenMeanwhile(t *testing.T) {
	a := artifact(t)
	for _, args := range [][]string{{"--partscan"}, nil} {
		device, file := flashtest.Loop(t, deviceSize, args...)
		node := flashtest.Partition(t, device)
		flashtest.Scribble(t, node, 4096, foreign)
		var once sync.Once
		opened := errors.New("the hook was not called")
		ctx := progress.With(t.Context(), progress.New(sink(func(progress.Event) {
			once.Do(func() {
				var f *os.File
				if f, opened = os.OpenFile(node, os.O_RDWR, 0); opened == nil {
					_, _ = f.Write(foreign)
					f.Close()
				}
			})
		})))
		receipt, err := Write(ctx, spec, a, device, Options{Yes: []string{device}})
		if err != nil || !receipt.ReadBack {
			t.Fatalf("Write = %+v, %v; want what is read back", receipt, err)
		}
		if !errors.Is(opened, unix.ENXIO) {
			t.Errorf("while the disk is written, its partition opens with %v; want %v", opened, unix.ENXIO)
		}
		same(t, "medium", onMedium(t, file)[:imageSize], image(t, a))
	}
}

// Where the kernel keeps partitions of before, the next mount would use old places. A
// program that looks at each disk adds one and holds it.
func TestTableThatTheKernelDoesNotRead(t *testing.T) {
	impatient(t)
	a := artifact(t)
	device, file := flashtest.Loop(t, deviceSize, "--partscan")
	var once sync.Once
	ctx := progress.With(t.Context(), progress.New(sink(func(progress.Event) {
		once.Do(func() { hold(t, flashtest.Partition(t, device), os.O_RDONLY) })
	})))
	_, err := Write(ctx, spec, a, device, Options{Yes: []string{device}})
	for _, want := range []string{"the kernel has not read its partition table", "p1: open by sleep", "next: ", "blockdev --rereadpt " + device} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Write = %v; want an error with %q", err, want)
		}
	}
	same(t, "medium", onMedium(t, file)[:imageSize], image(t, a))
}

// Somebody who looks at a partition for a moment does not stop a flash.
func TestPartitionReadForAMoment(t *testing.T) {
	a := little(t)
	device, file := flashtest.Loop(t, littleDevice)
	reader := flashtest.Open(t, flashtest.Partition(t, device), 0)
	go func() {
		time.Sleep(100 * time.Millisecond)
		reader.Close()
	}()
	if _, err := Write(t.Context(), spec, a, device, Options{Yes: []string{device}}); err != nil {
		t.Fatal(err)
	}
	same(t, "medium", onMedium(t, file)[:littleImage], image(t, a))
}

// Who is not root cannot have the kernel drop partitions, and is told so.
func TestDropPartitionsWithoutRights(t *testing.T) {
	device, file := flashtest.Loop(t, littleDevice)
	node := flashtest.Partition(t, device)
	before := read(t, file)
	a := little(t)
	cmd := exec.Command("setpriv", "--bounding-set=-sys_admin", os.Args[0], "-test.run=^TestFlashForAnother$")
	cmd.Env = append(os.Environ(), "SLIPWAY_TEST_FLASH="+device, "SLIPWAY_TEST_ARTIFACT="+a.Dir())
	out, _ := cmd.CombinedOutput() // the test there fails
	if !strings.Contains(string(out), "only root can have the kernel drop them") {
		t.Errorf("without CAP_SYS_ADMIN a disk with partitions gives %s", out)
	}
	same(t, "device", read(t, file), before)
	if _, err := os.Stat(filepath.Join("/sys/dev/block", nodeNumber(t, node))); err != nil {
		t.Errorf("the partition went with the refusal: %v", err)
	}
}

func nodeNumber(t *testing.T, node string) string {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(node, &st); err != nil {
		t.Fatal(err)
	}
	return strconv.Itoa(int(unix.Major(st.Rdev))) + ":" + strconv.Itoa(int(unix.Minor(st.Rdev)))
}

// TestFlashForAnother is a flash by a program with fewer rights.
func TestFlashForAnother(t *testing.T) {
	device := os.Getenv("SLIPWAY_TEST_FLASH")
	if device == "" {
		t.Skip("is run by TestDropPartitionsWithoutRights")
	}
	a, err := images.OpenArtifact(os.Getenv("SLIPWAY_TEST_ARTIFACT"))
	if err == nil {
		_, err = Write(t.Context(), spec, a, device, Options{Yes: []string{device}})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A disk that is refused keeps all partitions that the kernel knows.
func TestRefusalKeepsPartitions(t *testing.T) {
	impatient(t)
	a := little(t)
	device, file := flashtest.Loop(t, littleDevice, "--partscan")
	flashtest.MustRun(t, "addpart", device, "2", "8192", "1024")
	node := flashtest.Partition(t, device)
	second := flashtest.PartitionNode(t, device+"p2")
	hold(t, second, os.O_RDONLY)
	before := read(t, file)
	if _, err := Write(t.Context(), spec, a, device, Options{Yes: []string{device}}); err == nil || !strings.Contains(err.Error(), "p2: open by sleep") {
		t.Errorf("Write = %v; want it refused for the second partition", err)
	}
	same(t, "device", read(t, file), before)
	for _, node := range []string{node, second} {
		if _, err := os.Stat(filepath.Join("/sys/dev/block", nodeNumber(t, node))); err != nil {
			t.Errorf("a partition went with the refusal: %v", err)
		}
	}
}
