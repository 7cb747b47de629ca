package soak

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"slipway/ci"
	"slipway/ci/dev/tinyclone"
	"slipway/ci/reach"
	"slipway/flash/qemu"
	"slipway/flash/target/relay"
	"slipway/images"
	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// Update updates the virtual board again and again. Each round has one update of each kind
// with a known result: good ones, and ones that do not boot, fail their suites, are signed
// by an unknown key or are for another board. Then the connection or the power is cut
// during updates, at a random moment. After each update the board must run the complete old
// or new system, and update must have reported which.
func Update(ctx context.Context, w io.Writer, dir string, opt Options) (err error) {
	fmt.Fprintf(w, "seed %d\n", opt.Seed)
	s, err := newSoakedUpdate(ctx, w, dir, opt)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.switchOn(ctx); err != nil {
		return err
	}
	// The suites need the container, which outlives updates.
	if err := s.runCommand(ctx, io.Discard, "deploy", s.spec.Board, s.spec.Board); err != nil {
		return err
	}
	if s.runs, err = s.readSystem(ctx); err != nil {
		return err
	}
	for range cmp.Or(opt.Rounds, 1) {
		for _, c := range updateCases {
			if err := s.runCase(ctx, c); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
		}
	}
	for n := 0; n < opt.Kills; {
		disturbed, err := s.disturbUpdate(ctx, n, opt.Kills)
		if err != nil {
			return fmt.Errorf("kill %d: %w", n+1, err)
		}
		if disturbed {
			n++
		}
	}
	if err := s.checkDisk(ctx); err != nil {
		return err
	}
	fmt.Fprintf(w, "%d updates, %d of them disturbed: %d came to the new system, %d stayed on the old one, 0 faults; of %d update could not say which at first\n",
		s.updates, opt.Kills, s.came["new"], s.came["old"], s.came["unknown"])
	return nil
}

// updateCase is an update that is not disturbed.
type updateCase struct {
	name, bundle string
	system       string // that must run afterwards: old or new
	why          string // part of the message that update must print
}

var updateCases = []updateCase{
	{"an update", "one", "new", ""},
	{"whose kernel is not there", "kernel", "old", "the boot loader went back to the old one"},
	{"whose init is not there", "init", "old", "the boot loader went back to the old one"},
	{"whose suites fail", "unit", "old", "failed"},
	{"signed by somebody else", "other-signer", "old", "signature"},
	{"for another board", "other", "old", "compatible"},
	{"back to the first slot", "two", "new", ""},
}

// soakedSystem is a system in a bundle, as a change of the board that is made of packages,
// and as a configuration of Isar's image.
type soakedSystem struct {
	name   string
	change func(images.Spec) images.Spec
	conf   string
}

var soakedSystems = []soakedSystem{
	{"one", func(s images.Spec) images.Spec { return s.WithFile("overlay/etc/motd", "one\n") }, ""},
	{"two", func(s images.Spec) images.Spec { return s.WithFile("overlay/etc/motd", "two\n") }, ""},
	{"kernel", func(s images.Spec) images.Spec { return withoutFiles(s, "vmlinuz", "boot/vmlinuz-*") }, inSlot("rm vmlinuz")},
	{"init", func(s images.Spec) images.Spec { return withoutFiles(s, "usr/lib/systemd/systemd") }, inSlot("rm usr/lib/systemd/systemd", "rm lib/systemd/systemd")},
	{
		"unit", func(s images.Spec) images.Spec {
			debian := *s.Debian
			debian.Enable = append(slices.Clone(debian.Enable), "fails.service")
			s.Debian = &debian
			return s.WithFile("overlay/usr/lib/systemd/system/fails.service", "[Service]\nType=oneshot\nExecStart=false\n")
		},
		`IMAGE_CMD:slot:prepend = " printf '[Service]\nType=oneshot\nExecStart=false\n' >'${WORKDIR}/fails.service'; "` + "\n" +
			inSlot("write ${WORKDIR}/fails.service etc/systemd/system/fails.service", "symlink etc/systemd/system/multi-user.target.wants/fails.service ../fails.service"),
	},
	{"other", func(s images.Spec) images.Spec {
		const manifest = "bundle/manifest.raucm"
		text, _ := s.File(manifest) // a board with a keyring has one
		return s.WithFile(manifest, strings.Replace(string(text), "compatible=", "compatible=not-", 1))
	}, tinyclone.Only("SLIPWAY_COMPATIBLE:append", "slipway-image", "-not")},
	{"other-signer", func(s images.Spec) images.Spec { return s }, ""},
}

// inSlot returns a configuration of Isar's image that changes the file system of its slot.
func inSlot(requests ...string) string {
	return fmt.Sprintf(`IMAGE_CMD:slot:append = " printf '%s\n' | sudo debugfs -w -f - '${IMAGE_FILE_HOST}'"`, strings.Join(requests, `\n`))
}

func withoutFiles(s images.Spec, files ...string) images.Spec {
	debian := *s.Debian
	debian.Remove = append(slices.Clone(debian.Remove), files...)
	s.Debian = &debian
	return s
}

type soakedUpdate struct {
	w       io.Writer
	random  *rand.Rand
	job     Job
	clone   *tinyclone.Clone // of a board that bitbake builds
	spec    images.Spec
	build   images.Options
	relay   *relay.Relay
	bundles map[string]string // by the system's name
	keys    map[string]string // of their images
	digests map[string]string // of /usr, by the image's key
	runs    string            // the key of the image that runs
	took    time.Duration
	updates int
	came    map[string]int
}

func newSoakedUpdate(ctx context.Context, w io.Writer, dir string, opt Options) (*soakedUpdate, error) {
	spec, err := images.Default()
	if opt.Board != "" {
		spec, err = images.Load(opt.Board)
	}
	if err != nil {
		return nil, err
	}
	cache, err := filepath.Abs("build/cache") // the packages of the clone, where it has them
	if err != nil {
		return nil, err
	}
	s := &soakedUpdate{
		w: w, random: rand.New(rand.NewPCG(opt.Seed, 0)), spec: spec, took: firstTook,
		build:   images.Options{Dir: filepath.Join(dir, "build"), Cache: cache},
		bundles: map[string]string{}, keys: map[string]string{}, digests: map[string]string{}, came: map[string]int{},
	}
	s.job = Job{Argv: opt.Self, Dir: dir}
	if spec.Debian == nil {
		clone, err := tinyclone.Isar(dir, spec)
		if err != nil {
			return nil, err
		}
		s.clone = &clone
	}
	if s.relay, err = relay.New(); err != nil {
		return nil, err
	}
	if err := s.prepareBoard(ctx, dir); err != nil {
		return nil, errors.Join(err, s.relay.Close())
	}
	return s, nil
}

// prepareBoard makes the bundles and the board's disk.
func (s *soakedUpdate) prepareBoard(ctx context.Context, dir string) error {
	for _, system := range soakedSystems {
		file := filepath.Join(dir, system.name+".raucb")
		pack := s.packBundle
		if s.clone != nil {
			pack = s.bitbakeBundle
		}
		key, err := pack(ctx, dir, system, file)
		if err != nil {
			return fmt.Errorf("bundle %s: %w", system.name, err)
		}
		info, err := os.Stat(file)
		if err != nil {
			return err
		}
		s.bundles[system.name], s.keys[system.name] = file, key
		fmt.Fprintf(s.w, "bundle %s: %d MiB\n", system.name, info.Size()>>20)
	}
	return s.flashDisk(ctx)
}

// firstTook is the assumed time of an update, until one was measured.
const firstTook = 3 * time.Minute

// packBundle builds a system of packages and keeps its bundle.
func (s *soakedUpdate) packBundle(ctx context.Context, dir string, system soakedSystem, file string) (key string, err error) {
	opt := s.build
	if system.name == otherSigner {
		opt.Dir = filepath.Join(dir, "elsewhere") // with a key of its own
	}
	a, err := ci.BuildBundle(ctx, s.w, system.change(s.spec), opt, file)
	return a.Key, err
}

// otherSigner is a system whose bundle is signed by a key that the board does not know.
const otherSigner = "other-signer"

// bitbakeBundle has bitbake build a system and keeps its bundle.
func (s *soakedUpdate) bitbakeBundle(ctx context.Context, dir string, system soakedSystem, file string) (key string, err error) {
	if err := s.clone.WriteIsar(fmt.Sprintf("ISAR_RELEASE_CMD = \"echo %s\"\n%s", system.name, system.conf)); err != nil {
		return "", err
	}
	if system.name == otherSigner {
		keys := filepath.Join(dir, "elsewhere")
		if s.job.Env, err = tinyclone.Key(ctx, keys); err != nil {
			return "", err
		}
		defer func() { s.job.Env = nil }()
	}
	if err := s.runCommand(ctx, s.w, "build", s.spec.Board); err != nil {
		return "", err
	}
	a, err := images.OpenArtifact(s.clone.Built)
	if err != nil {
		return "", err
	}
	bundle, err := a.File(images.Bundle)
	if err != nil {
		return "", err
	}
	return system.name, os.Link(a.Path(bundle), file) // bitbake makes the next one as another file
}

// flashDisk writes the board's own image to its virtual disk.
func (s *soakedUpdate) flashDisk(ctx context.Context) error {
	if err := s.buildOwn(ctx); err != nil {
		return err
	}
	disk := filepath.Join(s.build.MachineDir(s.spec), qemu.DiskName)
	if err := os.MkdirAll(filepath.Dir(disk), 0o755); err != nil {
		return err
	}
	return s.runCommand(ctx, io.Discard, "flash", s.spec.Board, disk, "--yes="+disk)
}

// buildOwn builds the board as it is.
func (s *soakedUpdate) buildOwn(ctx context.Context) error {
	if s.clone == nil {
		_, err := ci.Build(ctx, s.w, s.spec, s.build)
		return err
	}
	if err := s.clone.WriteIsar(""); err != nil {
		return err
	}
	return s.runCommand(ctx, s.w, "build", s.spec.Board)
}

// runCommand runs one of our commands to its end.
func (s *soakedUpdate) runCommand(ctx context.Context, out io.Writer, args ...string) error {
	j := s.job
	j.Argv = append(slices.Clone(j.Argv), args...)
	cmd := j.newCommand(ctx, out)
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, outputEnd(said.String()))
	}
	return nil
}

// outputEnd returns the end of a command's output.
func outputEnd(text string) string { return text[max(0, len(text)-2000):] }

// switchOn switches the board on, waits for a login, and has other commands reach it
// through the relay.
func (s *soakedUpdate) switchOn(ctx context.Context) error {
	if err := ci.StartVirtual(ctx, s.w, s.build, s.spec); err != nil {
		return err
	}
	vm, err := qemu.Find(s.build.MachineDir(s.spec))
	if err != nil {
		return err
	}
	s.relay.Lead(vm.SSHPort)
	return vm.Through(s.relay.Port())
}

// cutPower kills the machine, like a power cut.
func (s *soakedUpdate) cutPower() error {
	vm, err := qemu.Find(s.build.MachineDir(s.spec))
	if err != nil {
		return err
	}
	if err := unix.Kill(vm.PID, unix.SIGKILL); err != nil {
		return fmt.Errorf("cut the power of %s (pid %d): %w", s.spec.Board, vm.PID, err)
	}
	return vm.WaitOff(context.Background(), time.Minute)
}

func (s *soakedUpdate) close() error {
	vm, err := qemu.Find(s.build.MachineDir(s.spec))
	if err == nil {
		err = vm.Stop()
	} else if errors.Is(err, qemu.ErrOff) {
		err = nil
	}
	if s.clone != nil {
		err = errors.Join(err, s.clone.RemoveBuilt(context.Background()))
	}
	return errors.Join(err, s.relay.Close())
}

// updateOutcome holds the fields of update's outcome that are checked.
type updateOutcome struct {
	System    string `json:"system"`
	Slot      string `json:"slot"`
	Committed bool   `json:"committed"`
	Restarted bool   `json:"restarted"`
	SentBytes int64  `json:"sentBytes"`
	Why       string `json:"why"`
}

// runUpdate runs the command update. A failed update is no error here.
func (s *soakedUpdate) runUpdate(ctx context.Context, bundle string) (updateOutcome, error) {
	var out strings.Builder
	failed := s.runCommand(ctx, &out, "update", s.spec.Board, s.spec.Board, s.bundles[bundle], "--yes", "--json", "--downgrade")
	if ctx.Err() != nil {
		return updateOutcome{}, context.Cause(ctx)
	}
	s.updates++
	var o updateOutcome
	if err := json.Unmarshal([]byte(out.String()), &o); err != nil {
		return o, fmt.Errorf("update printed no outcome: %w; %w", err, failed)
	}
	return o, nil
}

// runCase runs one case.
func (s *soakedUpdate) runCase(ctx context.Context, c updateCase) error {
	began := time.Now()
	o, err := s.runUpdate(ctx, c.bundle)
	if err != nil {
		return err
	}
	took := time.Since(began)
	if o.System != c.system || !strings.Contains(o.Why, c.why) || o.Committed != (c.system == "new") {
		return fmt.Errorf("update says %+v; want the %s system, and %q", o, c.system, c.why)
	}
	if c.system == "new" {
		s.took = took
	}
	_, err = s.checkSystem(ctx, o, c.bundle)
	fmt.Fprintf(s.w, "%s: the %s system runs in %s, after %s, %d KiB of the bundle sent. %s\n",
		c.name, o.System, o.Slot, took.Round(time.Second), o.SentBytes>>10, plaintext.OneLine(firstLine(o.Why)))
	return err
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

// disturbUpdate updates to the system that does not run, and cuts the connection or the
// power meanwhile. An update that ends before the cut sets the expected time.
func (s *soakedUpdate) disturbUpdate(ctx context.Context, n, of int) (disturbed bool, err error) {
	bundle := "one"
	if s.runs == s.keys["one"] {
		bundle = "two"
	}
	after, power := time.Duration(s.random.Int64N(int64(s.took))), n%3 != 0 // a third are cut connections
	var o updateOutcome
	g, grouped := errgroup.WithContext(ctx)
	ended, began := make(chan struct{}), time.Now()
	g.Go(func() (err error) {
		defer close(ended)
		o, err = s.runUpdate(grouped, bundle)
		return err
	})
	g.Go(func() error {
		select {
		case <-time.After(after):
		case <-ended:
			s.took = time.Since(began)
			return nil
		}
		disturbed = true
		if !power {
			s.relay.Cut()
			return nil
		}
		return errors.Join(s.cutPower(), s.switchOn(grouped))
	})
	if err := g.Wait(); err != nil {
		return disturbed, err
	}
	is, err := s.checkSystem(ctx, o, bundle)
	if err == nil && !(is == "new" && o.Committed) { // the new system may be on trial, or wait for a restart
		_, err = s.runScript(ctx, "rauc status mark-active booted && rauc status mark-good booted")
	}
	what := fmt.Sprintf("kill %d of %d: the %s was cut after %s", n+1, of, map[bool]string{true: "power", false: "connection"}[power], after.Round(time.Second))
	if !disturbed {
		what = fmt.Sprintf("undisturbed: it took %s", s.took.Round(time.Second))
	}
	fmt.Fprintf(s.w, "%s; the %s system runs in %s. %s\n", what, o.System, o.Slot, plaintext.OneLine(firstLine(o.Why)))
	return disturbed, err
}

// checkSystem compares the running system with update's report and with the bundle.
func (s *soakedUpdate) checkSystem(ctx context.Context, o updateOutcome, bundle string) (is string, err error) {
	now, err := s.readSystem(ctx)
	if err != nil {
		return "", fmt.Errorf("the board after the update (which said %+v): %w", o, err)
	}
	is = map[bool]string{true: "new", false: "old"}[now == s.keys[bundle]]
	if is == "old" && now != s.runs {
		return "", fmt.Errorf("the board runs image %s, which is neither the old one (%s) nor the new one (%s)", now, s.runs, s.keys[bundle])
	}
	if o.System == "unknown" && !o.Restarted {
		o.System = "old" // update never reached the board, so it changed nothing
	}
	if o.System == "unknown" {
		s.came["unknown"]++
	} else if o.System != is {
		return "", fmt.Errorf("update says that the %s system runs, and it is the %s one: %+v", o.System, is, o)
	}
	s.runs = now
	s.came[is]++
	return is, nil
}

// systemScript prints the running slot, the key of its image, and a digest of its programs.
const systemScript = `systemctl is-system-running --wait >/dev/null
set -e
rauc status --output-format=json >/dev/null
tr ' ' '\n' < /proc/cmdline | grep '^rauc.slot='
cat /etc/slipway/image.json
find /usr -xdev -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum`

// readSystem returns the key of the running image. It checks that the image's programs have
// not changed.
func (s *soakedUpdate) readSystem(ctx context.Context) (key string, err error) {
	out, err := s.runScript(ctx, systemScript)
	if err != nil {
		return "", err
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	var image struct{ Key string }
	if len(lines) != 3 || json.Unmarshal([]byte(lines[1]), &image) != nil || image.Key == "" {
		return "", fmt.Errorf("the board says %q; want its slot, its image and a digest", out)
	}
	if before := s.digests[image.Key]; cmp.Or(before, lines[2]) != lines[2] {
		return "", fmt.Errorf("the files in /usr of image %s are %s, and were %s", image.Key, lines[2], before)
	}
	s.digests[image.Key] = lines[2]
	return image.Key, nil
}

// systemLimit is long, as the board may still be starting.
const systemLimit = 10 * time.Minute

// runScript runs a script on the board as soon as a login succeeds.
func (s *soakedUpdate) runScript(ctx context.Context, script string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, systemLimit)
	defer cancel()
	for {
		conn, err := reach.Connect(ctx, s.build, s.spec, s.spec.Board)
		if err == nil {
			defer conn.Close()
			r, err := conn.Run(ctx, "sh", "-c", script)
			if err == nil && r.Status != 0 {
				err = fmt.Errorf("%s: status %d: %s", script, r.Status, plaintext.OneLine(string(r.Stderr)))
			}
			return string(r.Stdout), err
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-time.After(time.Second):
		}
	}
}

// checkDisk shuts the board down and runs e2fsck on its file systems: those that are
// mounted at every boot, and the slot that runs.
func (s *soakedUpdate) checkDisk(ctx context.Context) error {
	out, err := s.runScript(ctx, "tr ' ' '\\n' < /proc/cmdline | grep '^root=PARTLABEL='")
	if err != nil {
		return err
	}
	root := strings.TrimPrefix(strings.TrimSpace(out), "root=PARTLABEL=")
	if err := ci.StopVirtual(ctx, s.w, s.build, s.spec, false); err != nil {
		return err
	}
	a, err := images.OpenArtifact(s.build.BoardDir(s.spec))
	if err != nil {
		return err
	}
	disk := filepath.Join(s.build.MachineDir(s.spec), qemu.DiskName)
	for _, p := range a.Partitions {
		if p.Name != root && p.Use != "boot" && p.Use != "data" {
			continue
		}
		if err := run.Run(ctx, run.Command{Argv: []string{"e2fsck", "-fn", fmt.Sprintf("%s?offset=%d", disk, p.OffsetBytes)}}); err != nil {
			return fmt.Errorf("the file system of %s is not whole: %w", p.Name, err)
		}
	}
	return nil
}
