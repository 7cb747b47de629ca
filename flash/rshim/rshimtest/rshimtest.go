// Package rshimtest plays BlueField DPUs behind an rshim driver, for tests: a file tree
// whose boot and misc do what the driver's do (rshim-user-space 2.3, read), and DPUs
// that say what is in logs that people published. What a DPU says next comes with the next time
// that misc is read, so that no test depends on how fast it runs.
package rshimtest

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
)

// DPU is how one behaves. It is changed by methods alone once it is
// mounted.
type DPU struct {
	Says      []string // after a push, a line each time that misc is read
	SaidOld   []string // what is in its log before the first push
	Mode      string   // DPU mode, NIC mode; "" for a BlueField-2, which does not say
	Name      string   // how the driver reaches it; "" for pcie-0000:03:00.2
	Locked    bool
	Dropped   bool
	CannotClr bool // an old driver, without CLEAR_ON_READ
	KeepsLog  bool // through a reset
	TakesOnly int  // of each write; 0: all of it
	WaitSec   int  // its BOOT_TIMEOUT; 0: 300
	DeafAfter int  // bytes after which boot times out; 0: never
	HangAfter int  // bytes after which a write waits until it is broken off or TimeOut is called; 0: never
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

// Mount puts the DPUs into a folder as rshim0, rshim1, ... and returns their folders. It
// skips the test where FUSE is not to be had.
func Mount(t *testing.T, dpus ...*DPU) []string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting a file tree that plays an rshim needs root")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skipf("no FUSE, with which an rshim is played: %v", err)
	}
	at := t.TempDir()
	root := &fs.Inode{}
	server, err := fs.Mount(at, root, &fs.Options{
		MountOptions: fuse.MountOptions{DirectMountStrict: true, FsName: "rshim", Name: "rshimtest", DisableReadDirPlus: true},
		OnAdd:        func(ctx context.Context) { plant(ctx, root, dpus) },
	})
	if err != nil {
		t.Skipf("FUSE, with which an rshim is played, cannot be mounted here: %v", err)
	}
	t.Cleanup(func() {
		for _, d := range dpus {
			d.TimeOut()
		}
		unmount(t, server, at)
	})
	dirs := make([]string, len(dpus))
	for i := range dpus {
		dirs[i] = filepath.Join(at, fmt.Sprint("rshim", i))
	}
	return dirs
}

// unmount waits for programs that still have a file open: removing a folder with one that
// hangs would never end.
func unmount(t *testing.T, server *fuse.Server, at string) {
	t.Helper()
	var err error
	for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(10 * time.Millisecond) {
		if err = server.Unmount(); err == nil {
			return
		}
	}
	t.Errorf("unmount %s: %v", at, errors.Join(err, syscall.Unmount(at, syscall.MNT_DETACH)))
}

func plant(ctx context.Context, root *fs.Inode, dpus []*DPU) {
	for i, d := range dpus {
		d.log, d.level, d.clear = d.SaidOld, "0", "0"
		d.hanging, d.over = make(chan struct{}), make(chan struct{})
		dir := root.NewPersistentInode(ctx, &fs.Inode{}, fs.StableAttr{Mode: syscall.S_IFDIR})
		root.AddChild(fmt.Sprint("rshim", i), dir, false)
		file := fs.StableAttr{Mode: syscall.S_IFREG}
		dir.AddChild("boot", root.NewPersistentInode(ctx, &boot{node{dpu: d}}, file), false)
		dir.AddChild("misc", root.NewPersistentInode(ctx, &misc{node{dpu: d}}, file), false)
	}
}

// Pushed is what was written to boot since it was last opened, and how many pushes ended.
func (d *DPU) Pushed() (data []byte, pushes int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return bytes.Clone(d.pushed.Bytes()), d.pushes
}

// Resets is how often the DPU was reset.
func (d *DPU) Resets() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.resets
}

// Settings are DISPLAY_LEVEL and CLEAR_ON_READ as they are now.
func (d *DPU) Settings() (level, clear string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.level, d.clear
}

// Hanging is closed once a write hangs.
func (d *DPU) Hanging() <-chan struct{} { return d.hanging }

// Swap puts the DPU of this name in this one's place.
func (d *DPU) Swap(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.Name = name
}

// TimeOut ends writes that hang, as the driver does after its BOOT_TIMEOUT.
func (d *DPU) TimeOut() { d.overOnce.Do(func() { close(d.over) }) }

func (d *DPU) reset() {
	d.resets++
	d.next, d.away = 0, 0
	if !d.KeepsLog {
		d.log = nil
	}
}

// node is what the files of the rshim's folder have in common.
type node struct {
	fs.Inode
	dpu *DPU
}

func (f *node) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode = 0o600
	return 0
}

// Setattr lets itself be truncated: a device cannot be, and does not mind.
func (f *node) Setattr(ctx context.Context, h fs.FileHandle, _ *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	return f.Getattr(ctx, h, out)
}

// boot is the file that a stream is written to.
type boot struct{ node }

var (
	_ fs.NodeOpener    = (*boot)(nil)
	_ fs.NodeSetattrer = (*boot)(nil)
	_ fs.NodeGetattrer = (*boot)(nil)
	_ fs.FileWriter    = (*pushing)(nil)
	_ fs.FileReleaser  = (*pushing)(nil)
)

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
	d.reset()
	return &pushing{d}, fuse.FOPEN_DIRECT_IO, 0
}

type pushing struct{ dpu *DPU }

func (p *pushing) Write(ctx context.Context, data []byte, _ int64) (uint32, syscall.Errno) {
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

func (p *pushing) Release(context.Context) syscall.Errno {
	d := p.dpu
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open = false
	d.pushes++
	d.away = d.AwayFor
	return 0
}

// misc is the file of settings and messages.
type misc struct{ node }

var (
	_ fs.NodeOpener    = (*misc)(nil)
	_ fs.NodeSetattrer = (*misc)(nil)
	_ fs.NodeGetattrer = (*misc)(nil)
	_ fs.FileReader    = (*asking)(nil)
	_ fs.FileWriter    = (*asking)(nil)
)

func (m *misc) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	d := m.dpu
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.away != 0 {
		d.away--
		return nil, 0, syscall.ENODEV
	}
	return &asking{dpu: d}, fuse.FOPEN_DIRECT_IO, 0
}

// asking is misc opened once: one reading gives all, the next nothing.
type asking struct {
	dpu  *DPU
	text []byte
	read bool
}

func (a *asking) Read(_ context.Context, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	a.dpu.mu.Lock()
	defer a.dpu.mu.Unlock()
	if !a.read {
		a.text, a.read = []byte(a.dpu.show()), true
	}
	rest := a.text[min(off, int64(len(a.text))):]
	return fuse.ReadResultData(rest[:min(len(rest), len(dest))]), 0
}

// show is misc as the driver writes it.
func (d *DPU) show() string {
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
	field("DROP_MODE", strconv.Itoa(btoi(d.Dropped))+" (0:normal, 1:drop)")
	field("SW_RESET", "0 (1: reset)")
	field("DEV_NAME", cmp.Or(d.Name, "pcie-0000:03:00.2"))
	field("DEV_INFO", chip)
	field("OPN_STR", "N/A")
	if d.Mode != "" {
		field("UP_TIME", "4321(s)")
		field("SECURE_NIC_MODE", strconv.Itoa(btoi(d.Locked))+" (0:no, 1:yes)")
	}
	field("FORCE_CMD", "0 (1: send Force command)")
	if d.level == "2" {
		d.showLog(&b)
	}
	return b.String()
}

const rule = "---------------------------------------\n"

func (d *DPU) showLog(b *strings.Builder) {
	if d.pushes > 0 && !d.open && d.next < len(d.Says) {
		d.log = append(d.log, d.Says[d.next])
		d.next++
	}
	b.WriteString(rule + "             Log Messages\n" + rule)
	for _, line := range d.log {
		b.WriteString(" " + line + "\n")
	}
	if d.clear == "1" {
		d.log = nil
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (a *asking) Write(_ context.Context, data []byte, _ int64) (uint32, syscall.Errno) {
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
		d.reset()
	default:
		return 0, syscall.EINVAL
	}
	return uint32(len(data)), 0
}

// Installs is what a BlueField-2 says, in logs that people published, while it installs
// a system from a stream, with the NIC's firmware.
var Installs = []string{
	"INFO[BL2]: start", "INFO[BL2]: DDR POST passed", "INFO[BL2]: UEFI loaded", "INFO[BL31]: start", "INFO[BL31]: runtime",
	"INFO[UEFI]: eMMC init", "INFO[UEFI]: eMMC probed", "INFO[UEFI]: PCIe enum start", "INFO[UEFI]: PCIe enum end",
	"INFO[UEFI]: exit Boot Service", "INFO[MISC]: Found bf.cfg", "INFO[MISC]: Ubuntu installation started",
	"INFO[MISC]: Installing OS image", "INFO[MISC]: Ubuntu installation completed", "INFO[MISC]: Updating NIC firmware...",
	"INFO[MISC]: NIC firmware update done", "INFO[MISC]: Rebooting...",
}

// Boots is what it says when it starts an installed system.
var Boots = []string{"INFO[BL2]: start", "INFO[BL31]: start", "INFO[UEFI]: exit Boot Service", "INFO[MISC]: Linux up", "INFO[MISC]: DPU is ready"}
