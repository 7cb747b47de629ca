package flashtest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"slipway/layers/plaintext"
)

// DPU simulates a BlueField DPU behind an rshim driver, as a folder with the files boot and misc
// (rshim-user-space 2.3). Its messages are from published logs. It adds one message for each read
// of misc, so that no test depends on speed. After the mount, only its methods may change it.
type DPU struct {
	Says      []string // after a push, one line per reading of misc
	SaidOld   []string // its log before the first push
	Mode      string   // DPU mode or NIC mode; "" for a BlueField-2, which has no such field
	Name      string   // how the driver reaches it; "" for pcie-0000:03:00.2
	Locked    bool
	Dropped   bool
	CannotClr bool // an old driver, without CLEAR_ON_READ
	KeepsLog  bool // through a reset
	TakesOnly int  // how much of each write it takes; 0: all of it
	WaitSec   int  // its BOOT_TIMEOUT; 0: 300
	DeafAfter int  // bytes after which boot times out; 0: never
	HangAfter int  // bytes after which a write waits until it is interrupted or TimeOut is called; 0: never
	AwayFor   int  // readings of misc after a push for which the device is gone; -1: for good

	mu       sync.Mutex
	open     bool
	resets   int
	pushed   bytes.Buffer // since the last open
	pushes   int          // that were closed
	log      []string
	next     int // of Says
	away     int
	level    string
	clear    string
	hanging  chan struct{} // closed once a write hangs
	hangOnce sync.Once
	over     chan struct{} // closed once writes hang no longer
	overOnce sync.Once
}

// MountDPUs mounts DPUs as rshim0, ... until the test ends. It skips the test without FUSE or root.
func MountDPUs(t *testing.T, dpus ...*DPU) []string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting a file tree that simulates an rshim needs root")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skipf("no FUSE, which simulates an rshim: %v", err)
	}
	at := t.TempDir()
	root := &fs.Inode{}
	server, err := fs.Mount(at, root, &fs.Options{
		MountOptions: fuse.MountOptions{DirectMountStrict: true, FsName: "rshim", Name: "rshim", DisableReadDirPlus: true},
		OnAdd:        func(ctx context.Context) { addFiles(ctx, root, dpus) },
	})
	if err != nil {
		t.Skipf("FUSE, which simulates an rshim, cannot be mounted here: %v", err)
	}
	t.Cleanup(func() {
		for _, d := range dpus {
			d.TimeOut()
		}
		unmountTree(t, server, at)
	})
	dirs := make([]string, len(dpus))
	for i := range dpus {
		dirs[i] = filepath.Join(at, fmt.Sprint("rshim", i))
	}
	return dirs
}

// unmountTree unmounts the simulated driver, and waits for programs that have a file open. After a
// minute it detaches it and fails the test. Removing a folder with a hanging file would never end.
func unmountTree(t *testing.T, server *fuse.Server, at string) {
	t.Helper()
	var err error
	for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(10 * time.Millisecond) {
		if err = server.Unmount(); err == nil {
			return
		}
	}
	t.Errorf("unmount %s: %v", at, errors.Join(err, syscall.Unmount(at, syscall.MNT_DETACH)))
}

// addFiles adds a folder with boot and misc for each DPU, and sets the DPU's first state.
func addFiles(ctx context.Context, root *fs.Inode, dpus []*DPU) {
	for i, d := range dpus {
		d.log, d.level, d.clear = d.SaidOld, "0", "0"
		d.hanging, d.over = make(chan struct{}), make(chan struct{})
		dir := root.NewPersistentInode(ctx, &fs.Inode{}, fs.StableAttr{Mode: syscall.S_IFDIR})
		root.AddChild(fmt.Sprint("rshim", i), dir, false)
		file := fs.StableAttr{Mode: syscall.S_IFREG}
		dir.AddChild("boot", root.NewPersistentInode(ctx, &boot{rshimFile{dpu: d}}, file), false)
		dir.AddChild("misc", root.NewPersistentInode(ctx, &misc{rshimFile{dpu: d}}, file), false)
	}
}

// Pushed returns the bytes written to boot since it was last opened, and how many pushes ended.
func (d *DPU) Pushed() (data []byte, pushes int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return bytes.Clone(d.pushed.Bytes()), d.pushes
}

// Resets returns how often the DPU was reset.
func (d *DPU) Resets() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.resets
}

// Settings returns the present DISPLAY_LEVEL and CLEAR_ON_READ.
func (d *DPU) Settings() (level, clear string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.level, d.clear
}

// Hanging returns a channel that is closed once a write hangs.
func (d *DPU) Hanging() <-chan struct{} { return d.hanging }

// Swap changes the DPU's name, as if another one had taken its place.
func (d *DPU) Swap(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.Name = name
}

// TimeOut ends hanging writes with ETIMEDOUT, as the driver does after its BOOT_TIMEOUT.
func (d *DPU) TimeOut() { d.overOnce.Do(func() { close(d.over) }) }

// restart counts and simulates a reset: messages start again, and the log is lost without KeepsLog.
func (d *DPU) restart() {
	d.resets++
	d.next, d.away = 0, 0
	if !d.KeepsLog {
		d.log = nil
	}
}

// rshimFile is the common part of boot and misc.
type rshimFile struct {
	fs.Inode
	dpu *DPU
}

func (f *rshimFile) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode = 0o600
	return 0
}

// Setattr accepts and ignores truncation, as a device does.
func (f *rshimFile) Setattr(ctx context.Context, h fs.FileHandle, _ *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	return f.Getattr(ctx, h, out)
}

// boot is the file that a stream is written to.
type boot struct{ rshimFile }

var (
	_ fs.NodeOpener    = (*boot)(nil)
	_ fs.NodeSetattrer = (*boot)(nil)
	_ fs.NodeGetattrer = (*boot)(nil)
	_ fs.FileWriter    = (*bootHandle)(nil)
	_ fs.FileReleaser  = (*bootHandle)(nil)
)

// Open begins a push and resets the DPU. It fails for a DPU that is dropped, locked or open.
func (b *boot) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	d := b.dpu
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.Dropped:
		return nil, 0, syscall.EINVAL
	case d.Locked:
		return nil, 0, syscall.EPERM
	case d.open:
		return nil, 0, syscall.EBUSY
	}
	d.open = true
	d.pushed.Reset()
	d.restart()
	return &bootHandle{d}, fuse.FOPEN_DIRECT_IO, 0
}

// bootHandle is an open boot.
type bootHandle struct{ dpu *DPU }

// Write adds up to TakesOnly bytes to d.pushed. After HangAfter bytes it waits for an interrupt or
// TimeOut, and fails. After DeafAfter bytes each call logs all of Says and returns ETIMEDOUT.
func (p *bootHandle) Write(ctx context.Context, data []byte, _ int64) (uint32, syscall.Errno) {
	d := p.dpu
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.HangAfter > 0 && d.pushed.Len() >= d.HangAfter {
		d.hangOnce.Do(func() { close(d.hanging) })
		d.mu.Unlock()
		defer d.mu.Lock()
		select {
		case <-ctx.Done():
			return 0, syscall.EINTR
		case <-d.over:
			return 0, syscall.ETIMEDOUT
		}
	}
	if d.DeafAfter > 0 && d.pushed.Len() >= d.DeafAfter {
		d.log = append(d.log, d.Says...)
		return 0, syscall.ETIMEDOUT
	}
	if d.TakesOnly > 0 {
		data = data[:min(len(data), d.TakesOnly)]
	}
	d.pushed.Write(data)
	return uint32(len(data)), 0
}

// Release ends and counts the push, after which misc is gone for AwayFor readings.
func (p *bootHandle) Release(context.Context) syscall.Errno {
	d := p.dpu
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open = false
	d.pushes++
	d.away = d.AwayFor
	return 0
}

// misc is the file of settings and messages.
type misc struct{ rshimFile }

var (
	_ fs.NodeOpener    = (*misc)(nil)
	_ fs.NodeSetattrer = (*misc)(nil)
	_ fs.NodeGetattrer = (*misc)(nil)
	_ fs.FileReader    = (*miscHandle)(nil)
	_ fs.FileWriter    = (*miscHandle)(nil)
)

// Open fails with ENODEV for the first AwayFor readings after a push.
func (m *misc) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	d := m.dpu
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.away != 0 {
		d.away--
		return nil, 0, syscall.ENODEV
	}
	return &miscHandle{dpu: d}, fuse.FOPEN_DIRECT_IO, 0
}

// miscHandle is an open misc. Its first read fixes the text that all its reads return.
type miscHandle struct {
	dpu  *DPU
	text []byte
	read bool
}

// Read returns the text from off. The first call of a handle gets the text from formatMisc.
func (a *miscHandle) Read(_ context.Context, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	a.dpu.mu.Lock()
	defer a.dpu.mu.Unlock()
	if !a.read {
		a.text, a.read = []byte(a.dpu.formatMisc()), true
	}
	rest := a.text[min(off, int64(len(a.text))):]
	return fuse.ReadResultData(rest[:min(len(rest), len(dest))]), 0
}

// formatMisc returns misc as the driver writes it. At level 2 showLog adds the next message.
func (d *DPU) formatMisc() string {
	var b strings.Builder
	field := func(key, value string) { fmt.Fprintf(&b, "%-16s%s\n", key, value) }
	field("DISPLAY_LEVEL", d.level+" (0:basic, 1:advanced, 2:log)")
	chip := "BlueField-2(Rev 1)"
	if d.Mode != "" {
		field("BF_MODE", d.Mode)
		chip = "BlueField-3(Rev 1)"
	}
	field("BOOT_MODE", "1 (0:rshim, 1:emmc, 2:emmc-boot-swap)")
	field("BOOT_TIMEOUT", strconv.Itoa(cmp.Or(d.WaitSec, 300))+" (seconds)")
	field("USB_TIMEOUT", "40 (seconds)")
	field("DROP_MODE", plaintext.Either(d.Dropped, "1", "0")+" (0:normal, 1:drop)")
	field("SW_RESET", "0 (1: reset)")
	field("DEV_NAME", cmp.Or(d.Name, "pcie-0000:03:00.2"))
	field("DEV_INFO", chip)
	field("OPN_STR", "N/A")
	if d.Mode != "" {
		field("UP_TIME", "4321(s)")
		field("SECURE_NIC_MODE", plaintext.Either(d.Locked, "1", "0")+" (0:no, 1:yes)")
	}
	field("FORCE_CMD", "0 (1: send Force command)")
	if d.level == "1" && !d.CannotClr {
		field("CLEAR_ON_READ", d.clear+" (0:no, 1:yes)")
	}
	if d.level == "2" {
		d.showLog(&b)
	}
	return b.String()
}

const logRule = "---------------------------------------\n"

// showLog logs the next message after a push, writes the log to b, and clears it if CLEAR_ON_READ.
func (d *DPU) showLog(b *strings.Builder) {
	if d.pushes > 0 && !d.open && d.next < len(d.Says) {
		d.log = append(d.log, d.Says[d.next])
		d.next++
	}
	b.WriteString(logRule + "             Log Messages\n" + logRule)
	for _, line := range d.log {
		b.WriteString(" " + line + "\n")
	}
	if d.clear == "1" {
		d.log = nil
	}
}

// Write sets DISPLAY_LEVEL or CLEAR_ON_READ, or resets the DPU for SW_RESET.
func (a *miscHandle) Write(_ context.Context, data []byte, _ int64) (uint32, syscall.Errno) {
	d := a.dpu
	d.mu.Lock()
	defer d.mu.Unlock()
	words := strings.Fields(string(data))
	if len(words) != 2 {
		return 0, syscall.EINVAL
	}
	switch key, value := words[0], words[1]; {
	case key == "DISPLAY_LEVEL":
		d.level = value
	case key == "CLEAR_ON_READ" && !d.CannotClr:
		d.clear = value
	case key == "SW_RESET":
		d.restart()
	default:
		return 0, syscall.EINVAL
	}
	return uint32(len(data)), 0
}

// Installs is the published log of a BlueField-2 that installs a stream's system and NIC firmware.
var Installs = []string{
	"INFO[BL2]: start", "INFO[BL2]: DDR POST passed", "INFO[BL2]: UEFI loaded", "INFO[BL31]: start", "INFO[BL31]: runtime",
	"INFO[UEFI]: eMMC init", "INFO[UEFI]: eMMC probed", "INFO[UEFI]: PCIe enum start", "INFO[UEFI]: PCIe enum end",
	"INFO[UEFI]: exit Boot Service", "INFO[MISC]: Found bf.cfg", "INFO[MISC]: Ubuntu installation started",
	"INFO[MISC]: Installing OS image", "INFO[MISC]: Ubuntu installation completed", "INFO[MISC]: Updating NIC firmware...",
	"INFO[MISC]: NIC firmware update done", "INFO[MISC]: Rebooting...",
}

// Boots is the log of a DPU that starts an installed system.
var Boots = []string{"INFO[BL2]: start", "INFO[BL31]: start", "INFO[UEFI]: exit Boot Service", "INFO[MISC]: Linux up", "INFO[MISC]: DPU is ready"}
