package bench

import (
	"context"
	"debug/buildinfo"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// hookMethods are the methods to add the board's files to a container: runc, a wrapper of it,
// or runc with a hook. The floor is a hook that checks nothing. As a wrapper it only becomes runc.
var hookMethods = []struct{ name, runtime, hook string }{
	{"plain runc", "runc", ""},
	{"nvidia-container-runtime, csv", "{peers}/nvidia-container-runtime", ""},
	{"slipway-hook, createRuntime", "runc", "hook"},
	{"slipway-hook runtime", "{program} runtime", ""},
	{"floor, createRuntime", "runc", "floor"},
	{"floor runtime", "{floor} runtime", "floor"},
}

var hookMedia = []string{"tmpfs", "disk"}

func hookNames() (names []string) {
	for _, medium := range hookMedia {
		for _, m := range hookMethods {
			names = append(names, medium+": "+m.name)
		}
	}
	return names
}

// hookRatios are what each method adds to plain runc, relative to what NVIDIA's and the floor
// add, in elapsed time and in processor time.
func hookRatios() (all []ratio) {
	for _, medium := range hookMedia {
		for _, r := range []ratio{
			{name: "hook_over_peer_", over: "slipway-hook, createRuntime", under: "nvidia-container-runtime, csv"},
			{name: "hook_over_floor_", over: "slipway-hook, createRuntime", under: "floor, createRuntime"},
			{name: "wrapper_over_peer_", over: "slipway-hook runtime", under: "nvidia-container-runtime, csv"},
			{name: "wrapper_over_wrapper_floor_", over: "slipway-hook runtime", under: "floor runtime"},
		} {
			r.name += medium
			r.over, r.under, r.base = medium+": "+r.over, medium+": "+r.under, medium+": plain runc"
			added, cpu := r, r
			added.name, cpu.name, cpu.cpu = "added_"+r.name, "cpu_"+r.name, true
			all = append(all, added, cpu)
		}
	}
	return all
}

// boardScript makes a board, and prints the path of ld.so in its image. bundleScript prepares a
// container, and lifeScript runs it.
var (
	//go:embed board.sh
	boardScript string
	//go:embed bundle.sh
	bundleScript string
	//go:embed life.py
	lifeScript []byte
)

// hookBench is a board, and what its containers show.
type hookBench struct {
	dir, loader string // a tmpfs, and ld.so in the image
	containers  int
}

// measureHook measures the cost of adding the board's files to a container: the life of a runc
// container (create, start, exit, delete) on a new overlay, in memory and on a disk.
func measureHook(ctx context.Context, s *session) error {
	peers, err := filepath.Abs("build/peers")
	if err != nil {
		return err
	}
	b, life := &hookBench{dir: filepath.Join(s.dir, "board")}, filepath.Join(s.dir, "life.py")
	floor := filepath.Join(b.dir, "../floor")
	build := run.Command{Argv: []string{"go", "build", "-o", floor, "./ci/dev/bench/floor"}, Env: []string{"CGO_ENABLED=0"}}
	err = errors.Join(s.buildProgram(ctx, "runtime-hook", "."), run.Run(ctx, build), buildPeers(ctx, peers), os.Mkdir(b.dir, 0o755), os.WriteFile(life, lifeScript, 0o644))
	if err != nil {
		return err
	}
	words := strings.NewReplacer("{peers}", plaintext.Quote(peers), "{floor}", plaintext.Quote(floor))
	return inMountNamespace(func() error {
		if err := b.makeBoard(ctx, s, peers); err != nil {
			return err
		}
		var variants []variant
		for _, medium := range hookMedia {
			for _, m := range hookMethods {
				plain := m.name == "plain runc"
				command := []string{"python3", "-I", "-S", plaintext.Quote(life), plaintext.Quote(b.dir), words.Replace(m.runtime)}
				variants = append(variants, variant{
					name: medium + ": " + m.name, command: strings.Join(command, " "), ours: m.hook == "hook",
					prepare: func(ctx context.Context, v variant) error { return b.makeBundle(ctx, v, medium, m.hook, plain) },
					check: func(context.Context) error {
						return errors.Join(b.checkContainer(plain), b.keepCache(medium, m.hook))
					},
				})
			}
		}
		rows, err := s.measure(ctx, variants)
		if err != nil {
			return err
		}
		return s.print(rows, hookRatios())
	})
}

// inMountNamespace calls work on a thread with a mount namespace of its own. So are the
// programs that work starts. What it mounts ends with the thread, which Go ends as it is never
// unlocked.
func inMountNamespace(work func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			err = work()
		}
		done <- err
	}()
	return <-done
}

const (
	nvidiaModule  = "github.com/NVIDIA/nvidia-container-toolkit"
	nvidiaVersion = "v1.20.1"
)

// buildPeers builds NVIDIA's programs in dir.
func buildPeers(ctx context.Context, dir string) error {
	info, err := buildinfo.ReadFile(filepath.Join(dir, "nvidia-container-runtime"))
	if err == nil && info.Main.Version == nvidiaVersion {
		return nil
	}
	return run.Run(ctx, run.Command{
		Argv: []string{"go", "install", nvidiaModule + "/cmd/...@" + nvidiaVersion},
		Env:  []string{"GOBIN=" + dir},
		Log:  filepath.Join(dir, "install.log"),
	})
}

// makeBoard makes the board, and its image on both media.
func (b *hookBench) makeBoard(ctx context.Context, s *session, peers string) error {
	loader, err := run.Output(ctx, run.Command{Argv: []string{"sh", "-euc", boardScript, "sh", b.dir, s.program, peers}})
	if err != nil {
		return err
	}
	b.loader = strings.TrimSpace(string(loader))
	disk := filepath.Join(b.dir, "disk")
	if err := os.Mkdir(disk, 0o755); err != nil {
		return err
	}
	// The disk has space for the changes of all containers. They are never removed: see mountNewDisk.
	if err := mountNewDisk(ctx, filepath.Join(s.dir, "disk"), 2<<30, disk); err != nil {
		return err
	}
	return run.Run(ctx, run.Command{Argv: []string{"cp", "-a", filepath.Join(b.dir, "tmpfs/image"), disk}})
}

// makeBundle makes a new container for each life, as NVIDIA's runtime writes into config.json.
// The container of the round that is not counted lists the board's files that it has, and the
// libraries that ld.so finds.
func (b *hookBench) makeBundle(ctx context.Context, v variant, medium, hook string, plain bool) error {
	b.containers++
	command, env, hookCommand := []string{"/usr/bin/program"}, []string{"PATH=/usr/bin"}, []string(nil)
	if v.first {
		script := `while read -r kind path; do [ ! -e "$path" ] && [ ! -L "$path" ] || echo "has $path"; done </list; cp /etc/ld.so.cache /; exec ` + b.loader + " --list /usr/lib/proof.so"
		command = []string{"/usr/bin/busybox", "sh", "-c", script}
	}
	if !plain {
		env = append(env, "NVIDIA_VISIBLE_DEVICES=all")
	}
	switch hook {
	case "hook":
		hookCommand = []string{v.program, hook}
	case "floor":
		hookCommand = []string{filepath.Join(b.dir, "../floor"), filepath.Join(b.dir, "floor.plan")}
	}
	argv := []string{"sh", "-euc", bundleScript, "sh", b.dir, medium, strconv.Itoa(b.containers)}
	for _, words := range [][]string{command, env, hookCommand} {
		text, err := json.Marshal(words)
		if err != nil {
			return err
		}
		argv = append(argv, string(text))
	}
	return run.Run(ctx, run.Command{Argv: argv})
}

// checkContainer counts the board's files in a container, and the libraries that ld.so found,
// so that no method is fast because it does nothing.
func (b *hookBench) checkContainer(plain bool) error {
	text, err := os.ReadFile(filepath.Join(b.dir, "bundle/output"))
	if err != nil {
		return err
	}
	list, err := os.ReadFile(filepath.Join(b.dir, "tmpfs/image/list"))
	if err != nil {
		return err
	}
	files, found := strings.Count(string(text), "has "), strings.Count(string(text), "=> "+filepath.Join(b.dir, "lib")+"/")
	want, libraries := strings.Count(string(list), "\n"), strings.Count(string(list), "lib, ")
	if plain {
		want, libraries = 0, 0
	}
	if files != want || found != libraries {
		return fmt.Errorf("the container has %d of the board's files, not %d, and ld.so finds %d of its libraries, not %d\n%s", files, want, found, libraries, text)
	}
	return nil
}

// keepCache keeps the ld cache of the hook's container for the floor, which makes none.
func (b *hookBench) keepCache(medium, hook string) error {
	if hook != "hook" {
		return nil
	}
	cache, err := os.ReadFile(filepath.Join(b.dir, medium, "changes", strconv.Itoa(b.containers), "upper/ld.so.cache"))
	return errors.Join(err, os.WriteFile(filepath.Join(b.dir, "ld.so.cache"), cache, 0o644))
}
