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

	"golang.org/x/sys/unix"

	"slipway/ci"
	"slipway/ci/reach"
	"slipway/flash/boardssh/sshd"
	"slipway/flash/qemu"
	"slipway/images"
	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// Update updates the virtual board between two systems, and cuts the connection or the power at
// random moments. After each cut the board must run the complete old or new system, and the command
// update must have reported which. At the end the file systems must be without errors. It runs in
// Slipway's clone, has the board and its disk below dir, an empty folder, and stops it at the end.
func Update(ctx context.Context, w io.Writer, dir string, opt Options) (err error) {
	fmt.Fprintf(w, "seed %d\n", opt.Seed)
	spec, err := images.Default()
	if err != nil {
		return err
	}
	s := &soakedUpdate{
		w: w, random: rand.New(rand.NewPCG(opt.Seed, 0)), self: opt.Self, dir: dir, spec: spec, took: 3 * time.Minute,
		build: images.Options{Dir: filepath.Join(dir, "build"), Cache: "build/cache"}, digests: map[string]string{},
	}
	if s.relay, err = sshd.NewRelay(); err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, ci.StopVirtual(context.WithoutCancel(ctx), io.Discard, s.build, spec, true), s.relay.Close())
	}()
	if err = s.prepare(ctx); err == nil {
		s.runs, err = s.readSystem(ctx)
	}
	for err == nil && s.killed < opt.Kills {
		err = s.disturbUpdate(ctx)
	}
	if err == nil {
		err = s.checkDisk(ctx)
	}
	if err != nil {
		return fmt.Errorf("after kill %d: %w", s.killed, err)
	}
	_, err = fmt.Fprintf(w, "%d kills, 0 faults\n", opt.Kills)
	return err
}

type soakedUpdate struct {
	w       io.Writer
	random  *rand.Rand
	self    []string
	dir     string
	spec    images.Spec
	build   images.Options
	relay   *sshd.Relay
	bundles [2]string
	keys    [2]string         // of their images
	digests map[string]string // of /usr, by the image's key
	runs    string            // the key of the image that runs
	took    time.Duration     // of the last undisturbed update; at first a guess
	killed  int
}

// prepare builds two bundles and the board's image, flashes, boots, and deploys the container.
func (s *soakedUpdate) prepare(ctx context.Context) error {
	for i := range s.bundles {
		s.bundles[i] = filepath.Join(s.dir, fmt.Sprintf("%d.raucb", i))
		a, err := ci.BuildBundle(ctx, s.w, s.spec.WithFile("overlay/etc/motd", fmt.Sprintf("%d\n", i)), s.build, s.bundles[i])
		if err != nil {
			return err
		}
		s.keys[i] = a.Key
	}
	if _, err := ci.Build(ctx, s.w, s.spec, s.build); err != nil {
		return err
	}
	disk := filepath.Join(s.build.MachineDir(s.spec), qemu.DiskName)
	if err := os.MkdirAll(filepath.Dir(disk), 0o755); err != nil {
		return err
	}
	_, err := s.runCommand(ctx, "flash", s.spec.Board, disk, "--yes="+disk)
	if err == nil {
		err = s.switchOn(ctx)
	}
	if err == nil { // the suites need the container, which outlives updates
		_, err = s.runCommand(ctx, "deploy", s.spec.Board, s.spec.Board)
	}
	return err
}

// runCommand runs a command of Slipway to its end and returns its output.
func (s *soakedUpdate) runCommand(ctx context.Context, args ...string) ([]byte, error) {
	return run.Output(ctx, run.Command{Argv: append(slices.Clone(s.self), args...), Dir: s.dir})
}

// switchOn switches the board on, waits for a login, and connects other commands through the relay.
func (s *soakedUpdate) switchOn(ctx context.Context) error {
	if err := ci.StartVirtual(ctx, s.w, s.build, s.spec); err != nil {
		return err
	}
	vm, err := qemu.Find(s.build.MachineDir(s.spec))
	if err != nil {
		return err
	}
	s.relay.SetTarget(vm.SSHPort)
	return vm.Through(s.relay.Port())
}

// cutPower kills the virtual machine, as a power cut would, and waits for its end.
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

// updateOutcome has the fields of the command update's JSON that are checked.
type updateOutcome struct {
	System, Slot, Why    string
	Committed, Restarted bool
}

// runUpdate runs the command update and returns its outcome, also if the update failed.
func (s *soakedUpdate) runUpdate(ctx context.Context, bundle string) (o updateOutcome, err error) {
	out, failed := s.runCommand(ctx, "update", s.spec.Board, s.spec.Board, bundle, "--yes", "--json", "--downgrade")
	if ctx.Err() != nil {
		return o, context.Cause(ctx)
	}
	if err := json.Unmarshal(out, &o); err != nil {
		return o, fmt.Errorf("update printed no outcome: %w; %w", err, failed)
	}
	o.Why, _, _ = strings.Cut(o.Why, "\n")
	return o, nil
}

// disturbUpdate updates to the other system, cuts the connection or the power during that, checks
// which system runs then, and marks it good. An update that ends first only sets s.took.
func (s *soakedUpdate) disturbUpdate(ctx context.Context) (err error) {
	to := (slices.Index(s.keys[:], s.runs) + 1) % len(s.keys)
	after, what := time.Duration(s.random.Int64N(int64(s.took))), []string{"connection", "power", "power"}[s.killed%3]
	var o updateOutcome
	ended, began := make(chan error, 1), time.Now()
	go func() {
		var err error
		o, err = s.runUpdate(ctx, s.bundles[to])
		ended <- err
	}()
	select {
	case err = <-ended:
		s.took, what = time.Since(began), "undisturbed: nothing"
	case <-time.After(after):
		s.killed++
		if what == "power" {
			err = errors.Join(s.cutPower(), s.switchOn(ctx))
		} else {
			s.relay.Cut()
		}
		err = errors.Join(err, <-ended)
	}
	if err != nil {
		return err
	}
	is, err := s.checkSystem(ctx, o, s.keys[to])
	if err == nil && !(is == "new" && o.Committed) { // the new system may be on trial, or wait for a restart
		_, err = s.runScript(ctx, "rauc status mark-active booted && rauc status mark-good booted")
	}
	fmt.Fprintf(s.w, "kill %d: %s was cut after %s; the %s system runs in %s. %s\n",
		s.killed, what, min(after, s.took).Round(time.Second), o.System, o.Slot, plaintext.OneLine(o.Why))
	return err
}

// checkSystem reads which system runs, compares that with update's report, records the key in
// s.runs, and returns "old" or "new".
func (s *soakedUpdate) checkSystem(ctx context.Context, o updateOutcome, key string) (is string, err error) {
	now, err := s.readSystem(ctx)
	if err != nil {
		return "", fmt.Errorf("the board after the update (which said %+v): %w", o, err)
	}
	is = map[bool]string{true: "new", false: "old"}[now == key]
	if is == "old" && now != s.runs {
		return "", fmt.Errorf("the board runs image %s, which is neither the old one (%s) nor the new one (%s)", now, s.runs, key)
	}
	if o.System == "unknown" && !o.Restarted {
		o.System = "old" // update never reached the board, so it changed nothing
	}
	if o.System != "unknown" && o.System != is {
		return "", fmt.Errorf("update says that the %s system runs, and it is the %s one: %+v", o.System, is, o)
	}
	s.runs = now
	return is, nil
}

// systemScript prints the key of the running image, and a digest of all files in /usr.
const systemScript = `systemctl is-system-running --wait >/dev/null
set -e
rauc status >/dev/null
sed -n 's/.*"key":"\([^"]*\)".*/\1/p' /etc/slipway/image.json
find /usr -xdev -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum`

// readSystem waits for the end of the boot and returns the running image's key. It keeps the digest
// of the image's files in /usr, and fails if an earlier one of the same image differs.
func (s *soakedUpdate) readSystem(ctx context.Context) (key string, err error) {
	out, err := s.runScript(ctx, systemScript)
	if err != nil {
		return "", err
	}
	key, digest, _ := strings.Cut(out, "\n")
	if before := s.digests[key]; key == "" || digest == "" || cmp.Or(before, digest) != digest {
		return "", fmt.Errorf("image %q has files in /usr with the digest %q, and had %q", key, digest, before)
	}
	s.digests[key] = digest
	return key, nil
}

// runScript runs a script on the board and returns its output. It retries a failed connect, and has
// 10 minutes for all. An exit status other than 0 is an error.
func (s *soakedUpdate) runScript(ctx context.Context, script string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	conn, err := reach.Connect(ctx, s.build, s.spec, s.spec.Board)
	for err != nil && ctx.Err() == nil {
		time.Sleep(time.Second)
		conn, err = reach.Connect(ctx, s.build, s.spec, s.spec.Board)
	}
	if err != nil {
		return "", err
	}
	defer conn.Close()
	r, err := conn.Run(ctx, "sh", "-c", script)
	if err == nil && r.Status != 0 {
		err = fmt.Errorf("%s: status %d: %s", script, r.Status, plaintext.OneLine(string(r.Stderr)))
	}
	return string(r.Stdout), err
}

// checkDisk shuts the board down and runs e2fsck on boot, data and the running slot.
func (s *soakedUpdate) checkDisk(ctx context.Context) error {
	cmdline, err := s.runScript(ctx, "cat /proc/cmdline")
	if err != nil {
		return err
	}
	if err := ci.StopVirtual(ctx, s.w, s.build, s.spec, false); err != nil {
		return err
	}
	a, err := images.OpenArtifact(s.build.BoardDir(s.spec))
	if err != nil {
		return err
	}
	disk := filepath.Join(s.build.MachineDir(s.spec), qemu.DiskName)
	for _, p := range a.Partitions {
		if p.Use != "boot" && p.Use != "data" && !slices.Contains(strings.Fields(cmdline), "root=PARTLABEL="+p.Name) {
			continue
		}
		if err := run.Run(ctx, run.Command{Argv: []string{"e2fsck", "-fn", fmt.Sprintf("%s?offset=%d", disk, p.OffsetBytes)}}); err != nil {
			return fmt.Errorf("the file system of %s is not whole: %w", p.Name, err)
		}
	}
	return nil
}
