package soak

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"golang.org/x/sys/unix"

	"slipway/flash/place"
	"slipway/flash/qemu"
	"slipway/flash/write"
	"slipway/images"
	"slipway/images/builder"
	"slipway/layers/host"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

//go:embed place.sh
var placeScript string

//go:embed place-guest.sh
var placeGuest string

// Faults of cards that their disks, or the worker, must know.
const (
	small      = "is too small"
	other      = "has another product"
	unknown    = "has unknown data"
	readOnly   = "is read-only"
	smaller    = "lies about its size"
	wornOut    = "reads back other data"
	unwritable = "fails to write"
	vanishes   = "vanishes"
	swapped    = "comes back as another"
	known      = "is whole already"
)

// usbOnly are the faults that QEMU's SD cards cannot have: they drop errors of writes.
var usbOnly = []string{readOnly, unwritable, swapped}

// faults are the state that the place must show of a card with a fault, and words of the cause.
var faults = map[string]struct {
	state place.State
	cause string
}{
	small: {place.Refused, "too small"}, other: {place.Refused, "photos"}, unknown: {place.Refused, "data without a partition table"}, readOnly: {place.Refused, "read-only"},
	smaller: {place.Fail, "lies about its size"}, wornOut: {place.Fail, "worn out"}, unwritable: {place.Fail, "input/output error"},
	vanishes: {place.Fail, "pulled out"}, swapped: {place.Fail, "pulled out"}, known: {place.Known, "again: true"},
}

const (
	placeSilence = 2 * time.Minute // of the emulated machine
	cardBytes    = 32 << 20
	dataAt       = 2 << 20 // of the image
	dataBytes    = 8 << 20
	stampAt      = 1<<20 - 4096
	stampBytes   = 64
	filesAt      = 11 << 20 // the partition with the files of a row
	filesBytes   = 2 << 20
	spareRows    = 40 // for cards that kills and the power cut left without an end
)

// socket is what a disk is plugged into.
type socket struct {
	name   string // in place.yml; "": the place must not touch what is in it
	port   string // of USB, in QEMU's words; "": the slot for SD cards
	disk   *disk  // plugged in
	idle   bool   // no card of the queue can be in it
	pulled *disk  // was pulled out while it was written, and the place has not said so yet
}

// soakedPlace is a virtual machine with a place, its worker, and the judge of both.
type soakedPlace struct {
	w       io.Writer
	random  *rand.Rand
	dir     string
	spec    images.Spec // of the machine
	root    *fs.Inode   // folder of the disks
	image   []byte
	erased  []byte // content of cards that are written
	older   []byte
	other   []byte // of cards that are not
	unknown []byte
	record  *disk
	sockets []*socket
	pulled  chan *disk

	machine *exec.Cmd
	qmp     net.Conn
	replies *json.Decoder
	guest   net.Conn
	lines   chan placeLine
	killing bool // the place, so that its end is expected

	queue    []string // faults of the cards to come
	whole    []*disk  // cards that come again
	made     int
	results  []placeLine
	good     int
	silent   int               // cards that the machine was too busy to read
	cuts     int               // that were made
	owners   map[string]string // names of whole cards, by their stamps and rows
	disturbs map[int]string    // what happens after so many results
	seed     uint64
}

// placeLine is a line of the place's JSON, and what the judge knows of its card.
type placeLine struct {
	place.Port
	stamp string
	fault string
}

// A place in a virtual machine writes cards; one of ten has a fault, and at least one for each kind of
// fault. The place is killed, and the machine's power is cut once. Each card, the record, and the
// disks at ports without a name are compared.
func TestPlace(t *testing.T) {
	var opt Options
	var dir, self string
	if _, err := fmt.Sscan(os.Getenv(placeVariable), &dir, &opt.Seed, &opt.Cards, &self); err != nil {
		t.Skip("minutes: go tool mage soak place")
	}
	ctx, stop := signal.NotifyContext(t.Context(), os.Interrupt, unix.SIGTERM)
	defer stop()
	opt.Self = []string{self}
	if err := soakPlace(ctx, os.Stdout, dir, opt); err != nil {
		t.Fatal(err)
	}
}

func soakPlace(ctx context.Context, w io.Writer, dir string, opt Options) (err error) {
	fmt.Fprintf(w, "seed %d\n", opt.Seed)
	s := &soakedPlace{w: w, seed: opt.Seed, random: rand.New(rand.NewPCG(opt.Seed, 0)), dir: dir, root: &fs.Inode{}, pulled: make(chan *disk, 64), owners: map[string]string{}}
	if err := s.prepare(ctx, opt); err != nil {
		return err
	}
	server, err := fs.Mount(filepath.Join(dir, "disks"), s.root, &fs.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Unmount()) }()
	if err := s.makeDisks(opt.Cards); err != nil {
		return err
	}
	if err = s.switchOn(ctx); err == nil {
		err = s.work(ctx)
	}
	if err != nil {
		_ = s.machine.Process.Kill()
		_ = s.machine.Wait()
		return fmt.Errorf("after %d results: %w\n%s", len(s.results), err, localfile.Tail(filepath.Join(dir, "console.log"), 3000))
	}
	return s.judge(ctx)
}

// run runs a verb of place.sh.
func (s *soakedPlace) run(ctx context.Context, verb ...string) error {
	_, err := script{placeScript, s.dir}.call(ctx, verb...)
	return err
}

// prepare makes the image, and the machine's root with the program, its configuration and the artifact.
func (s *soakedPlace) prepare(ctx context.Context, opt Options) (err error) {
	if s.spec, err = images.Default(); err != nil {
		return err
	}
	board, err := cardBoard()
	if err != nil {
		return err
	}
	packages := append(qemu.HostPackages(s.spec), "mmdebstrap", "libarchive-tools", "fdisk", "mtools", "e2fsprogs", "fuse3")
	if err := host.Ensure(ctx, s.w, filepath.Join(s.dir, "apt.log"), packages...); err != nil {
		return err
	}
	if err := s.run(ctx, "files", board.Board, opt.Self[0], placeGuest, fmt.Sprint(opt.Cards+spareRows)); err != nil {
		return err
	}
	if s.image, err = os.ReadFile(filepath.Join(s.dir, "image")); err != nil {
		return err
	}
	_, _ = rand.NewChaCha8([32]byte{byte(opt.Seed)}).Read(s.image[dataAt : dataAt+dataBytes]) // it never fails
	if err := saveImage(ctx, filepath.Join(s.dir, "guest/work/build", board.Board), "0123456789abcdef", s.image); err != nil {
		return err
	}
	return progress.Run(ctx, "machine", func(step *progress.Step) (string, error) {
		spec, debian := s.spec, *s.spec.Debian
		spec.Debian = &debian
		debian.Packages = []string{"linux-image-amd64", "tiny-initramfs", "udev", "kmod", "eject", "mtools", "busybox-static"}
		debian.Exclude = append(slices.Clone(debian.Exclude), "/usr/lib/modules/*/kernel/drivers/net/*", "/usr/lib/modules/*/kernel/drivers/[gm][pe][ud]*", "/usr/lib/modules/*/kernel/sound/*")
		root, err := builder.Userland(ctx, step, spec, images.Options{Dir: filepath.Join(s.dir, "build"), Cache: "build/cache"})
		if err != nil {
			return "", err
		}
		return "", s.run(ctx, "guest", root)
	})
}

// makeDisks makes the disks of the record and of ports without a name, and plans cards and disturbances.
func (s *soakedPlace) makeDisks(cards int) error {
	record, err := os.ReadFile(filepath.Join(s.dir, "recorded"))
	if err != nil {
		return err
	}
	if s.other, err = os.ReadFile(filepath.Join(s.dir, "other")); err != nil {
		return err
	}
	s.erased, s.unknown, s.older = slices.Repeat([]byte{0xff}, cardBytes), slices.Repeat([]byte{0xa5}, cardBytes), bytes.Clone(s.image)
	clear(s.older[dataAt : dataAt+dataBytes/2])
	s.record = newDisk(s.root, "record", int64(len(record)), record)
	for _, name := range []string{"usb:2-1 1", "usb:2-2 2", "usb:2-3 3", "usb:2-4 4", "usb:2-5 5", "usb:1-6.1 6.1", "usb:1-6.2 6.2", "mmc0 "} {
		name, port, _ := strings.Cut(name, " ")
		s.sockets = append(s.sockets, &socket{name: name, port: port})
	}
	for i, content := range [][]byte{nil, s.image, s.unknown, s.image[:1<<20]} {
		s.sockets = append(s.sockets, &socket{port: []string{"6.3", "6.4", "7", "8"}[i], disk: newDisk(s.root, fmt.Sprintf("unnamed%d", i), cardBytes, content)})
	}
	kinds := slices.Sorted(maps.Keys(faults))
	shuffle(s.random, kinds)
	s.queue = make([]string, cards)
	for i := range min(cards, max(len(kinds), cards/10)) {
		s.queue[i] = kinds[i%len(kinds)]
	}
	shuffle(s.random, s.queue)
	s.disturbs = map[int]string{}
	parts := max(1, cards/60) + 2 // with the power cut
	for i := 1; i < parts; i++ {
		s.disturbs[i*cards/parts] = "kill"
	}
	s.disturbs[(1+s.random.IntN(parts-1))*cards/parts] = "cut"
	return nil
}

func shuffle(random *rand.Rand, all []string) {
	random.Shuffle(len(all), func(i, k int) { all[i], all[k] = all[k], all[i] })
}

// switchOn starts the machine with the disks that are plugged in, and connects to it and its place.
func (s *soakedPlace) switchOn(ctx context.Context) (err error) {
	accel, _ := qemu.ChooseAccelerator(ctx, s.spec)
	cpu := plaintext.Either(accel == qemu.KVM, "host", s.spec.Machine.CPU)
	s.machine = exec.CommandContext(ctx, "sh", "-eu", "-c", placeScript, "sh", s.dir, "boot", s.spec.Machine.Program, accel, cpu)
	s.machine.Stderr = s.w
	if err := s.machine.Start(); err != nil {
		return err
	}
	dial := func(name string) (conn net.Conn) {
		for range 100 {
			if conn, err = net.Dial("unix", filepath.Join(s.dir, name)); err == nil {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		return conn
	}
	if s.qmp = dial("qmp"); err == nil {
		s.guest = dial("place")
	}
	if err != nil {
		return err
	}
	s.killing, s.replies, s.lines = false, json.NewDecoder(s.qmp), make(chan placeLine, 64)
	go readLines(s.guest, s.lines)
	err = s.command("qmp_capabilities", nil)
	for _, p := range s.sockets {
		if p.disk != nil && err == nil {
			err = s.plug(p, p.disk)
		}
	}
	return errors.Join(err, s.command("cont", nil))
}

// cutPower kills the machine. All disks that are plugged in lose what was not flushed.
func (s *soakedPlace) cutPower() {
	_ = s.machine.Process.Kill() // it may have ended
	_ = s.machine.Wait()
	s.qmp.Close()
	s.guest.Close()
	for _, p := range s.sockets {
		if p.disk != nil {
			s.lose(p, p.disk)
		}
	}
	s.record.lose(s.random)
}

// lose has a disk lose what was not flushed, and returns what is left. QEMU's SD cards have no flush.
func (s *soakedPlace) lose(p *socket, d *disk) []byte {
	if p.port == "" {
		_ = d.Fsync(context.Background(), nil, 0) // it never fails
	}
	return d.lose(s.random)
}

// readLines sends the place's lines to lines, and closes that. It drops those that a kill cut off.
func readLines(from io.Reader, lines chan<- placeLine) {
	defer close(lines)
	for scanner := bufio.NewScanner(from); scanner.Scan(); {
		var line placeLine
		if json.Unmarshal(scanner.Bytes(), &line) == nil {
			lines <- line
		}
	}
}

// command has QEMU's monitor do something.
func (s *soakedPlace) command(name string, arguments map[string]any) error {
	if err := json.NewEncoder(s.qmp).Encode(map[string]any{"execute": name, "arguments": maps.Collect(maps.All(arguments))}); err != nil {
		return err
	}
	for {
		var reply struct {
			Return json.RawMessage
			Error  struct{ Desc string }
		}
		if err := s.replies.Decode(&reply); err != nil {
			return fmt.Errorf("QEMU ended at %s: %w", name, err)
		}
		if reply.Error.Desc != "" {
			return fmt.Errorf("%s %v: %s", name, arguments, reply.Error.Desc)
		}
		if reply.Return != nil {
			return nil
		}
	}
}

// plug plugs a disk in.
func (s *soakedPlace) plug(p *socket, d *disk) error {
	p.disk = d
	err := s.command("blockdev-add", map[string]any{
		"driver": "file", "node-name": d.name, "filename": filepath.Join(s.dir, "disks", d.name), "locking": "off", "read-only": d.fault == readOnly,
	})
	switch {
	case err != nil:
		return err
	case p.port == "":
		return s.command("blockdev-insert-medium", map[string]any{"id": "sd", "node-name": d.name})
	}
	return s.command("device_add", map[string]any{
		"driver": "usb-storage", "id": "usb-" + d.name, "bus": "xhci.0", "port": p.port, "drive": d.name, "serial": d.name, "removable": true,
	})
}

// unplug pulls out what is plugged in, which loses what was not flushed. It returns what is left.
func (s *soakedPlace) unplug(p *socket) (content []byte, err error) {
	d := p.disk
	if p.disk = nil; p.port == "" {
		err = s.command("blockdev-remove-medium", map[string]any{"id": "sd"})
	} else {
		err = s.command("device_del", map[string]any{"id": "usb-" + d.name})
	}
	content = s.lose(p, d)
	for range 1200 { // requests may be under way
		if err != nil {
			break
		}
		if err = s.command("blockdev-del", map[string]any{"node-name": d.name}); err == nil || !strings.HasSuffix(err.Error(), "is in use") {
			break
		}
		err = nil
		time.Sleep(50 * time.Millisecond)
	}
	return content, err
}

// work has all cards of the queue written, with kills and a power cut, and then ends all.
func (s *soakedPlace) work(ctx context.Context) (err error) {
	disturb, what, replugged := (<-chan time.Time)(nil), "", false
	for err == nil && (len(s.queue) > 0 || slices.ContainsFunc(s.sockets, func(p *socket) bool { return p.name != "" && (p.disk != nil || p.pulled != nil) })) {
		if next := s.disturbs[len(s.results)]; next != "" && what == "" {
			delete(s.disturbs, len(s.results))
			disturb, what = time.After(time.Duration(s.random.Int64N(int64(5*time.Second)))), next
		}
		for _, p := range s.sockets {
			if p.idle && err == nil {
				err = s.plugNext(p)
			}
		}
		if err != nil {
			break
		}
		select {
		case line, open := <-s.lines:
			replugged = false
			if err = s.hear(line); !open {
				err = errors.New("QEMU ended")
			}
		case d := <-s.pulled:
			err = s.pull(d)
		case <-disturb:
			s.cuts++
			fmt.Fprintln(s.w, what)
			if what == "kill" {
				s.killing = true
				_, err = fmt.Fprintln(s.guest, "kill")
			} else {
				s.cutPower()
				err = s.switchOn(ctx)
			}
			what = ""
		case <-time.After(placeSilence):
			if err = s.replug(); replugged {
				err = fmt.Errorf("the place said nothing for %s", 2*placeSilence)
			}
			replugged = true
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(s.guest, "stop"); err != nil {
		return err
	}
	end := time.AfterFunc(placeSilence, func() { _ = s.machine.Process.Kill() })
	defer end.Stop()
	for range s.lines {
	}
	return s.machine.Wait()
}

// replug plugs all cards in again, as a worker does if a port with a card is EMPTY: the place was
// killed when it had ejected the card, and had not said so.
func (s *soakedPlace) replug() error {
	for _, p := range s.sockets {
		if d := p.disk; p.name != "" && d != nil {
			fmt.Fprintf(s.w, "%s at %s is plugged in again\n", d.name, p.name)
			_, err := s.unplug(p)
			if err = errors.Join(err, s.plug(p, d)); err != nil {
				return err
			}
		}
	}
	return nil
}

// hear does what the worker does when a port shows something: it plugs in, pulls out and judges.
func (s *soakedPlace) hear(line placeLine) error {
	i := slices.IndexFunc(s.sockets, func(p *socket) bool { return p.name != "" && p.name == line.Port.Port })
	switch {
	case line.State == "EXIT" && !s.killing:
		return fmt.Errorf("the place ended: %s", line.Text)
	case line.State == "EXIT":
		s.killing = false
		return nil
	case i < 0 && line.State != place.Unnamed && line.State != place.Empty:
		return fmt.Errorf("the place shows %+v", line)
	case i < 0:
		return nil
	}
	p := s.sockets[i]
	isOf := func(d *disk) bool { return d != nil && (p.port == "" || line.Serial == d.name) }
	switch {
	case line.State == place.Empty && p.disk == nil:
		if p.pulled != nil { // and the place was killed before it could say so
			s.queue, p.pulled = append(s.queue, p.pulled.fault), nil
		}
		return s.plugNext(p)
	case !slices.Contains([]place.State{place.Pass, place.Known, place.Refused, place.Fail, place.Closed}, line.State):
	case isOf(p.pulled):
		d := p.pulled
		p.pulled = nil
		return s.judgeCard(line, d, d.kept)
	case isOf(p.disk):
		d := p.disk
		content, err := s.unplug(p)
		return errors.Join(err, s.judgeCard(line, d, content), s.moveUnnamed())
	}
	return nil
}

// pull pulls a card out while it is written, and plugs the next one in at once if it has to.
func (s *soakedPlace) pull(d *disk) error {
	i := slices.IndexFunc(s.sockets, func(p *socket) bool { return p.disk == d })
	if i < 0 { // the place came first
		return nil
	}
	p := s.sockets[i]
	p.pulled = d
	if _, err := s.unplug(p); err != nil || d.fault != swapped {
		return err
	}
	return s.plugNext(p)
}

// moveUnnamed plugs a disk in or out, at a port without a name, now and then.
func (s *soakedPlace) moveUnnamed() (err error) {
	p := s.sockets[len(s.sockets)-1-s.random.IntN(4)]
	switch {
	case s.random.IntN(4) > 0:
	case p.disk == nil:
		err = s.plug(p, p.pulled)
	default:
		p.pulled = p.disk
		_, err = s.unplug(p)
	}
	return err
}

// plugNext plugs the next card of the queue in that can be in this socket, if there is one.
func (s *soakedPlace) plugNext(p *socket) error {
	i := slices.IndexFunc(s.queue, func(fault string) bool {
		return (p.port != "" || !slices.Contains(usbOnly, fault)) && (fault != known || len(s.whole) > 0)
	})
	if p.idle = i < 0; p.idle {
		return nil
	}
	fault := s.queue[i]
	s.queue = slices.Delete(s.queue, i, i+1)
	if fault == known {
		d := s.whole[0]
		s.whole = s.whole[1:]
		d.fault, d.written = known, 0
		return s.plug(p, d)
	}
	return s.plug(p, s.newCard(fault, p.port == ""))
}

// newCard makes a card that is empty, erased, or has an older image, with a fault. QEMU's SD cards have
// one serial, so that each gets a size of its own: the place must not take them for one card.
func (s *soakedPlace) newCard(fault string, sd bool) *disk {
	content, size := [][]byte{nil, s.erased, s.older}[s.random.IntN(3)], int64(cardBytes)
	switch fault {
	case small:
		content, size = nil, 8<<20
	case other:
		content = s.other
	case unknown:
		content = s.unknown
	}
	if s.made++; sd && fault == small {
		size += int64(s.made%16) << 18
	} else if sd {
		size += int64(s.made) << 18
	}
	d := newDisk(s.root, fmt.Sprintf("card%d", s.made), size, content)
	d.fault, d.pulled, d.bad = fault, s.pulled, dataAt+s.random.Int64N(dataBytes)
	switch fault {
	case smaller:
		d.room = size / 2
	case unwritable: // where the older image differs, as nothing else is written
		d.bad = dataAt + s.random.Int64N(dataBytes/2)
	case vanishes, swapped:
		d.pullAt = 1<<20 + s.random.Int64N(dataBytes/2)
	}
	if !sd && s.random.IntN(8) == 0 {
		d.pause = 10 * time.Millisecond // a slow one
	}
	return d
}

// judgeCard compares what the place says of a card, and what is on it, with what has to be.
func (s *soakedPlace) judgeCard(line placeLine, d *disk, content []byte) error {
	if line.State == place.Refused && strings.Contains(line.Text, "does not answer") && d.written == 0 && s.silent < spareRows/4 {
		s.silent++
		s.queue = append(s.queue, d.fault) // the worker plugs it in again
		return nil
	}
	want, faulty := faults[d.fault]
	fmt.Fprintf(s.w, "%3d: %s at %s, which %s: %s %s\n", len(s.results)+1, d.name, line.Label, cmp.Or(d.fault, "is good"), line.State, line.Text)
	line.stamp, line.fault = write.ReadStamp(bytes.NewReader(content)), d.fault
	good := !faulty && (line.State == place.Pass || line.State == place.Known) // it was whole before a kill
	switch {
	case !good && (line.State != want.state || !strings.Contains(line.Text, want.cause)):
		return fmt.Errorf("the place says %s %s of a card that %s", line.State, line.Text, d.fault)
	case line.State == place.Refused || d.fault == known:
		if d.written > 0 {
			return fmt.Errorf("%s is %s, and %d bytes of it were written", d.name, line.State, d.written)
		}
	case good:
		rows := slices.Compact(rowName().FindAllString(string(content[filesAt:filesAt+filesBytes]), -1))
		content = bytes.Clone(content)
		copy(content[stampAt:stampAt+stampBytes], s.image[stampAt:])
		copy(content[filesAt:filesAt+filesBytes], s.image[filesAt:])
		if differs := firstDifference(content, s.image); differs >= 0 {
			return fmt.Errorf("%s passed, and differs from the image at %d", d.name, differs)
		}
		if line.stamp == "" || !slices.Equal(rows, []string{line.Row}) || s.owners[line.stamp] != "" || s.owners[line.Row] != "" {
			return fmt.Errorf("%s has stamp %q, which %q has, and rows %q, not %q, which %q has", d.name, line.stamp, s.owners[line.stamp], rows, line.Row, s.owners[line.Row])
		}
		s.owners[line.stamp], s.owners[line.Row] = d.name, d.name
		s.good++
	case string(content[512:520]) == "EFI PART":
		return fmt.Errorf("%s failed, and has a partition table", d.name)
	}
	s.results = append(s.results, line)
	if good && len(s.whole) < 4 { // the others never come again
		s.whole = append(s.whole, d)
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.now, d.kept = nil, nil
	return nil
}

var rowName = plaintext.Regexp(`row\d{4}`)

// firstDifference returns where the content of a card differs from the image; -1: nowhere.
func firstDifference(content, image []byte) int {
	for i := range image {
		if content[i] != image[i] {
			return i
		}
	}
	return -1
}

// judge compares the record with what the place said, and looks at the disks of unnamed ports.
func (s *soakedPlace) judge(ctx context.Context) error {
	if err := os.WriteFile(filepath.Join(s.dir, "recorded"), s.record.lose(s.random), 0o600); err != nil {
		return err
	}
	if err := s.run(ctx, "record"); err != nil {
		return err
	}
	for _, r := range s.results {
		var e place.Entry
		data, err := os.ReadFile(filepath.Join(s.dir, r.Receipt)) // below /record
		if err == nil {
			err = json.Unmarshal(data, &e)
		}
		said := e.Cause + " " + e.Error
		if r.State == place.Known { // which is no error
			said = r.Text
		}
		if err != nil || e.Verdict != string(r.State) || e.Row != r.Row || r.State == place.Pass && e.Stamp != r.stamp || !strings.Contains(said, faults[r.fault].cause) {
			return fmt.Errorf("the place showed %+v, and the record has %+v: %w", r, e, err)
		}
	}
	record, err := place.ReadReport(filepath.Join(s.dir, "record"), "")
	if err != nil {
		return err
	}
	once := map[string]bool{}
	for _, e := range record.Entries {
		if e.Verdict == string(place.Pass) && (once[e.Stamp] || s.owners[e.Stamp] == "") {
			return fmt.Errorf("the record has a second or unknown card: %+v", e)
		}
		once[e.Stamp] = once[e.Stamp] || e.Verdict == string(place.Pass)
	}
	for _, p := range s.sockets {
		if d := cmp.Or(p.disk, p.pulled); d != nil && d.written > 0 {
			return fmt.Errorf("%s at a port without a name has %d bytes written", d.name, d.written)
		}
	}
	_, err = fmt.Fprintf(s.w, "seed %d: %d good cards are the image with a row of their own, %d bad ones are named, %d kills and power cuts, %d entries, 4 disks at other ports untouched, %d cards refused as silent and plugged in again\n", s.seed, s.good, len(s.results)-s.good, s.cuts, len(record.Entries), s.silent)
	return err
}
