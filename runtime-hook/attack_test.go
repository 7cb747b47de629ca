package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// An attack is one that NVIDIA's hooks once fell to, mounted by an image in a real
// container. It is tried on three hooks: a naive one, a few lines of shell that
// make the old mistake and must come to harm, or the attack proves nothing; ours,
// which must not; and NVIDIA's of today, whose outcome is told.
type attack struct {
	name  string
	image func(l *lab) // what the image holds
	env   []string     // of the image
	naive string       // runs in the image's folder, before the container is in it
	// harm says what the attack won, held where that is nothing.
	harm func(l *lab, run func() string) string
}

// held is the outcome of an attack that won nothing.
const held = "held"

// secret stands in a file of the board that no list names.
const secret = "the board's secret"

var attacks = []attack{
	{
		name:  "CVE-2024-0132, CVE-2025-23359: a source in the image is a link to the board's files",
		image: func(l *lab) { link(l.t, l, l.board("/opt/victim"), "/usr/local/cuda/compat") },
		naive: "mkdir -p opt/board/lib; : > opt/board/lib/a.so; mount --bind usr/local/cuda/compat/libcuda.so.999.1 opt/board/lib/a.so",
		harm:  seesSecret,
	},
	{
		name:  "the same: a listed name in the image is a link to the board's file",
		image: func(l *lab) { link(l.t, l, l.board("/opt/victim/libcuda.so.999.1"), "/opt/board/lib/a.so") },
		naive: "mkdir -p opt/out; : > opt/out/x; mount --bind opt/board/lib/a.so opt/out/x",
		harm:  seesSecret,
	},
	{
		name:  "CVE-2024-0133: a folder in the image is a link, files are made on the board",
		image: func(l *lab) { link(l.t, l, l.board("/opt/victim"), "/opt/board/lib") },
		naive: ": > opt/board/lib/a.so",
		harm:  boardChanges,
	},
	{
		name:  "CVE-2024-0134: a folder in the image is a link, links are made on the board",
		image: func(l *lab) { link(l.t, l, l.board("/opt/victim"), "/opt/board/links") },
		naive: "ln -s ../lib/a.so opt/board/links/a",
		harm:  boardChanges,
	},
	{
		name:  "CVE-2024-0135 to 0137: the image's ldconfig is run with the board's rights",
		image: fakeLdconfig,
		env:   []string{"PATH=.:./sbin:/bin:/usr/bin"},
		naive: "/usr/sbin/chroot . /sbin/ldconfig",
		harm:  ldconfigRuns,
	},
	{
		name:  "CVE-2025-23266: the image's LD_PRELOAD reaches a hook that has no env",
		image: preload,
		env:   []string{"LD_PRELOAD=./evil.so", "LD_LIBRARY_PATH=.", "GODEBUG=inittrace=1", "GOTRACEBACK=crash", "GOMEMLIMIT=1", "TMPDIR=."},
		naive: ":",
		harm:  boardChanges,
	},
	{
		name:  "CVE-2025-23267: the image's ld.so.cache is a link to the board's",
		image: cacheLinks,
		naive: "echo new > etc/ld.so.cache",
		harm:  boardChanges,
	},
	{
		name:  "the same: the image's /etc is a link to the board's",
		image: func(l *lab) { link(l.t, l, l.board("/opt/victim"), "/etc") },
		naive: "echo new > etc/ld.so.cache",
		harm:  boardChanges,
	},
	{
		name:  "CVE-2026-24260: a folder in the image becomes a link while the hook runs",
		image: func(l *lab) { write(l.t, l.rootfs("/opt/board/lib/x"), "x") },
		naive: "i=0; while test $i -lt 300; do i=$((i+1)); test -L opt/board/lib; link=$?; sleep 0.001; test $link = 0 || : > opt/board/lib/a.so; done",
		harm:  raced,
	},
	{
		name:  "linkExists of 1.20.1: whether the board has a link decides what the image gets",
		image: func(l *lab) { link(l.t, l, l.board("/opt/victim"), "/opt/board/links") },
		naive: "test -L opt/board/links/a",
		harm:  tellsOfBoard,
	},
}

// board is where the lab's file p is for a process that still sees all of the
// machine's processes, as hooks do.
func (l *lab) board(p string) string {
	return fmt.Sprintf("/proc/%d/task/%d/root%s", os.Getpid(), unix.Gettid(), p)
}

func fakeLdconfig(l *lab) {
	for _, p := range []string{"/sbin/ldconfig", "/sbin/ldconfig.real", "/usr/sbin/ldconfig"} {
		write(l.t, l.rootfs(p), "#!/bin/sh\nprintf ran > /ran\n")
	}
}

// preload puts a library into the image that changes the board when it is loaded.
func preload(l *lab) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		l.t.Skip("needs a C compiler (Debian packages gcc, libc6-dev)")
	}
	source := filepath.Join(l.dir, "evil.c")
	write(l.t, source, "#include <fcntl.h>\n__attribute__((constructor)) static void run(void) { creat(\"/opt/victim/preloaded\", 0644); }\n")
	if out, err := exec.Command(cc, "-shared", "-fPIC", "-o", l.rootfs("/evil.so"), source).CombinedOutput(); err != nil {
		l.t.Fatalf("%v\n%s", err, out)
	}
}

func cacheLinks(l *lab) {
	for _, name := range []string{"ld.so.cache", "ld.so.cache~", "ld.so.conf", "ld.so.conf.d", "ld-musl-x86_64.path"} {
		link(l.t, l, l.board("/opt/victim/"+name), "/etc/"+name)
	}
	write(l.t, "/opt/victim/ld.so.cache", "old")
	write(l.t, "/opt/victim/ld.so.cache~", "old")
	must(l.t, os.Mkdir("/opt/victim/ld.so.conf.d", 0o755))
}

// realLibrary is one that the hook enters in the image's ld.so.cache, and makes the
// image one of glibc.
func (l *lab) realLibrary() string {
	l.t.Helper()
	found, err := filepath.Glob("/usr/lib/*-linux-gnu*/liblzma.so.5")
	if err != nil || len(found) == 0 {
		l.t.Skip("needs liblzma.so.5 (Debian package liblzma5)")
	}
	for _, p := range []string{"/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"} {
		write(l.t, l.rootfs(p), "")
	}
	return found[0]
}

func seesSecret(_ *lab, run func() string) string {
	if out := run(); strings.Contains(out, secret) {
		return "the container sees a file of the board"
	}
	return held
}

func boardChanges(l *lab, run func() string) string {
	before := look(l.t)
	run()
	if look(l.t) != before {
		return "the board's files changed"
	}
	return held
}

func ldconfigRuns(l *lab, run func() string) string {
	run()
	if _, err := os.Stat(l.rootfs("/ran")); err == nil {
		return "the image's program ran outside of the container"
	}
	return held
}

func raced(l *lab, run func() string) string {
	before := look(l.t)
	stop := swap(l.t, l.rootfs("/opt/board"), "lib", l.board("/opt/victim"))
	defer stop()
	for i := 0; i < 3; i++ {
		run()
		if look(l.t) != before {
			return "the board's files changed"
		}
	}
	return held
}

// tellsOfBoard compares what a container can know of a run when the board has
// a link and when it has not.
func tellsOfBoard(l *lab, run func() string) string {
	without := run()
	must(l.t, os.Symlink("../lib/a.so", "/opt/victim/a"))
	if with := run(); with != without {
		return "the image learns whether the board has a link"
	}
	return held
}

// swap exchanges the folder dir/name and a link to target without end, until stop.
func swap(t *testing.T, dir, name, target string) (stop func()) {
	t.Helper()
	at, err := os.Open(dir)
	must(t, err)
	must(t, unix.Symlinkat(target, int(at.Fd()), name+".other"))
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-end:
				return
			default:
				_ = unix.Renameat2(int(at.Fd()), name, int(at.Fd()), name+".other", unix.RENAME_EXCHANGE)
			}
		}
	}()
	return func() { close(end); <-ended; at.Close() }
}

func inOrder(changes ...func(*specs.Spec)) func(*specs.Spec) {
	return func(s *specs.Spec) {
		for _, change := range changes {
			if change != nil {
				change(s)
			}
		}
	}
}

func hookWithoutEnv(s *specs.Spec) {
	for i := range s.Hooks.CreateContainer {
		s.Hooks.CreateContainer[i].Env = nil
	}
}

// hookProgram puts another program in the hook's place.
func hookProgram(argv ...string) func(*specs.Spec) {
	return func(s *specs.Spec) {
		for i := range s.Hooks.CreateContainer {
			s.Hooks.CreateContainer[i].Path, s.Hooks.CreateContainer[i].Args = argv[0], argv
		}
	}
}

// untried is the outcome where something is missing.
const untried = "not tried"

func TestAttacks(t *testing.T) {
	peer := peers(t)
	var told strings.Builder
	table := tabwriter.NewWriter(&told, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ATTACK\tSLIPWAY\tNVIDIA")
	for i, a := range attacks {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			naive := a.on(t, "naive", func(c *container, _ *lab) { c.spec = hookProgram("/bin/sh", "-c", a.naive) })
			if strings.HasPrefix(naive, held) {
				t.Errorf("%s: harmless even to a naive hook; the attack has no teeth", a.name)
			}
			ours := a.on(t, "ours", func(c *container, _ *lab) { c.stage = "createRuntime" })
			if !strings.HasPrefix(ours, held) && ours != untried {
				t.Errorf("%s: %s", a.name, ours)
			}
			other := untried
			if peer != "" {
				other = a.on(t, "peer", func(c *container, l *lab) { l.byPeer(c, peer) })
			}
			fmt.Fprintf(table, "%s\t%s\t%s\n", a.name, ours, other)
		})
	}
	table.Flush()
	t.Log("\n" + told.String())
	if peer == "" {
		t.Log("NVIDIA's programs were not tried: name their folder in SLIPWAY_NVIDIA; go tool mage bench hook builds them")
	}
}

// on mounts the attack on a hook, in a lab of its own.
func (a attack) on(t *testing.T, who string, hook func(*container, *lab)) (outcome string) {
	outcome = untried
	t.Run(who, func(t *testing.T) {
		l := newLab(t, "runc")
		l.shell()
		must(t, os.Mkdir(l.rootfs("/proc"), 0o755))
		write(t, "/opt/victim/libcuda.so.999.1", secret)
		write(t, "/opt/board/lib/a.so", "board a")
		must(t, os.Mkdir("/opt/board/links", 0o755))
		must(t, os.Symlink("../lib/a.so", "/opt/board/links/a"))
		l.lists("lib, /opt/board/lib/a.so", "sym, /opt/board/links/a", "lib, "+l.realLibrary())
		a.image(l)
		// NVIDIA's hook fails where an image has none.
		if _, err := os.Lstat(l.rootfs("/etc")); err != nil {
			must(t, os.Mkdir(l.rootfs("/etc"), 0o755))
		}
		c := container{stage: "createContainer", env: append(a.env, all...), script: "busybox find /opt; busybox find /opt -type f -exec cat {} +"}
		hook(&c, l)
		// The image chooses the environment of a hook whose entry has none.
		c.spec = inOrder(c.spec, hookWithoutEnv)
		failed := ""
		outcome = a.harm(l, func() string {
			out, err := l.runContainer(c)
			if err != nil {
				failed = ", and the container does not start"
				t.Log(err)
			}
			if err != nil && strings.Contains(err.Error(), "signal: killed") {
				t.Errorf("%s: hangs", a.name)
			}
			return fmt.Sprint(out, err != nil)
		})
		if outcome == held {
			outcome += failed
		}
	})
	return outcome
}

// byPeer makes NVIDIA's runtime the lab's engine.
func (l *lab) byPeer(c *container, folder string) {
	runtime := filepath.Join(folder, "nvidia-container-runtime")
	write(l.t, "/etc/nvidia-container-runtime/config.toml", fmt.Sprintf(`[nvidia-container-runtime]
mode = "csv"
runtimes = ["runc"]
[nvidia-ctk]
path = %q
[nvidia-container-runtime-hook]
path = %q
`, filepath.Join(folder, "nvidia-ctk"), runtime+"-hook"))
	// It serves create, and leaves run alone.
	l.engine = filepath.Join(l.dir, "peer")
	write(l.t, l.engine, fmt.Sprintf(`#!/bin/sh
case $3 in
run) %s "$1" "$2" create --bundle "$5" "$6" && runc "$1" "$2" start "$6" || exit
	while runc "$1" "$2" state "$6" | grep -q '"running"'; do sleep 0.02; done
	exec runc "$1" "$2" delete "$6" ;;
*) exec runc "$@" ;;
esac
`, runtime))
	c.stage, c.env = "", append(c.env, "NVIDIA_REQUIRE_JETPACK=csv-mounts=all")
}

// peers is the folder of NVIDIA's programs, "" where there is none.
func peers(t *testing.T) string {
	folder := os.Getenv("SLIPWAY_NVIDIA")
	if folder == "" {
		folder = "../build/peers"
	}
	folder, err := filepath.Abs(folder)
	must(t, err)
	if _, err := os.Stat(filepath.Join(folder, "nvidia-container-runtime")); errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	return folder
}
