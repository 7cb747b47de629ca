package hubstest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"slipway/ci/hub/access"
	"slipway/ci/job"
	"slipway/layers/run"
)

// A station in a virtual machine, whose power is cut by killing QEMU: what the guest did not sync is
// lost. Its boards are on a disk of their own, which is written at once, as a board keeps what it got.
const (
	makeDisks = `cd "$1"
mkdir -p vm/init/bin vm/init/modules vm/disk/boards
for lib in $(ldd "$4" | grep -o '/[^ ]*'); do
	cp --parents --dereference "$lib" vm/init
done
cp "$(command -v busybox)" vm/init/bin/busybox
for module in virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk failover net_failover virtio_net; do
	cp "$(find "$3" -name "$module.ko*")" vm/init/modules
done
chmod 755 vm/init/init
(cd vm/init && find . | busybox cpio -o -H newc) >vm/initrd
cp -a "$2" "$2.yml" vm/disk
cp "$4" vm/disk/slipway
mke2fs -q -t ext4 -d vm/disk vm/state.img 600M
mke2fs -q -t ext4 -d boards vm/boards.img 64M`

	initScript = `#!/bin/busybox sh
b=/bin/busybox
$b mkdir -p /proc /sys /dev /tmp %[1]s
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
for module in virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk failover net_failover virtio_net; do
	$b insmod /modules/$module.ko*
done
$b ip link set lo up
$b ip link set eth0 up
$b ip addr add 10.0.2.15/24 dev eth0
$b ip route add default via 10.0.2.2
$b mount -t ext4 /dev/vda %[1]s
$b mount -t ext4 -o sync /dev/vdb %[1]s/boards
XDG_STATE_HOME=%[1]s/%[2]s %[1]s/slipway station %[1]s/%[2]s.yml
$b poweroff -f
`

	readBoards = `cd "$1"
e2fsck -p vm/boards.img >&2 || [ $? -eq 1 ]
rm -r boards
mkdir boards
debugfs -R "rdump / boards" vm/boards.img`
)

// addVirtual makes a station in a virtual machine, and starts it. Its folders have the paths that they
// have here.
func (l *Lab) addVirtual(ctx context.Context, name, kernel string) (*Machine, error) {
	m, err := l.makeStation(ctx, name)
	for _, board := range m.Boards { // so that a job takes a while
		err = errors.Join(err, os.WriteFile(filepath.Join(filepath.Dir(l.BoardFile(board)), chattyName), []byte("3"), 0o600))
	}
	vm := filepath.Join(l.Dir, "vm")
	err = errors.Join(err, os.MkdirAll(filepath.Join(vm, "init"), 0o755), os.WriteFile(filepath.Join(vm, "init", "init"), fmt.Appendf(nil, initScript, l.Dir, name), 0o755))
	if err == nil {
		err = run.Run(ctx, run.Command{Argv: []string{"sh", "-ec", makeDisks, "sh", l.Dir, name, kernel, l.Program}})
	}
	images, _ := filepath.Glob(filepath.Join(kernel, "boot", "vmlinuz-*")) // the pattern is well-formed
	if err != nil || len(images) != 1 {
		return m, errors.Join(err, fmt.Errorf("%s has the kernels %v", kernel, images))
	}
	disk := "if=virtio,format=raw,cache=writeback,file=" + vm + "/"
	m.program = "qemu-system-x86_64"
	m.argv = []string{
		"-machine", "pc", "-accel", "tcg,thread=multi", "-m", "768", "-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio",
		"-kernel", images[0], "-initrd", filepath.Join(vm, "initrd"), "-append", "console=ttyS0 quiet panic=-1",
		"-drive", disk + "state.img", "-drive", disk + "boards.img",
		"-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net",
	}
	return m, m.Start()
}

// moments are those of a job at which the power is cut: between claim, order, child, result, and after
// the end that the hub has and the station did not note perhaps.
var moments = []struct {
	name string
	has  func(c job.Change, logBytes int64) bool
}{
	{"added", func(job.Change, int64) bool { return true }},
	{"claimed", func(c job.Change, _ int64) bool { return c.Job.State != job.Queued }},
	{"begun", func(_ job.Change, logBytes int64) bool { return logBytes > 0 }},
	{"at work", func(c job.Change, logBytes int64) bool { return logBytes > 100_000 || c.Job.State == job.Ended }},
	{"ended", func(c job.Change, _ int64) bool { return c.Job.State == job.Ended }},
}

// cutPower cuts the power of a station at a moment of each job. The job ends once, as the board says.
func (s *soakedHub) cutPower(ctx context.Context, kernel string) error {
	m, err := s.lab.addVirtual(ctx, "st01", kernel)
	if err == nil {
		err = s.lab.WaitForBoards(ctx)
	}
	s.done = map[string]int{}
	for i := range s.Rounds {
		if err == nil {
			err = s.cutPowerOnce(ctx, m, i)
		}
	}
	if err == nil {
		err = s.lab.WaitForBoards(ctx)
	}
	if err != nil {
		return err
	}
	m.Kill()
	if err := run.Run(ctx, run.Command{Argv: []string{"sh", "-ec", readBoards, "sh", s.lab.Dir}}); err != nil {
		return err
	}
	jobs, err := s.lab.KeepBooks(ctx)
	fmt.Fprintf(s.w, "%d jobs with a power cut each: %s\n", len(jobs), counts(s.done))
	return err
}

func (s *soakedHub) cutPowerOnce(ctx context.Context, m *Machine, i int) error {
	began, moment := time.Now(), moments[i%len(moments)]
	c, err := s.add(ctx, Job(m, m.Boards[i%len(m.Boards)]))
	if err != nil {
		return err
	}
	err = until(ctx, func() bool {
		now, err := Ask[job.Change](ctx, s.lab, job.VerbJobWait, job.Wait{ID: c.Job.ID})
		n, logErr := s.lab.logBytes(ctx, c.Job.ID)
		return err == nil && logErr == nil && moment.has(now, n) || m.Alive() != nil
	})
	if err == nil {
		err = run.Sleep(ctx, time.Duration(s.random.Int64N(int64(300*time.Millisecond))))
	}
	if err := errors.Join(err, m.Alive()); err != nil {
		return err
	}
	m.Kill()
	if err := m.Start(); err != nil {
		return err
	}
	j, err := access.Wait(ctx, s.lab.Admin, c.Job.ID)
	if err != nil {
		return errors.Join(err, m.Alive())
	}
	s.done[fmt.Sprintf("%s in attempt %d", j.Result.Kind, j.Result.Attempts)]++
	took := time.Since(began).Round(time.Second / 10)
	_, err = fmt.Fprintf(s.w, "job %s, cut when %s: %s in attempt %d, after %v\n", j.ID, moment.name, j.Result.Kind, j.Result.Attempts, took)
	return err
}
