package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"slipway/images"
	"slipway/layers/host"
	"slipway/layers/kastest"
	"slipway/layers/run"
)

// The project has as many repositories as a Jetson's image. The real ones have 15,000
// commits and 1,700 files on average.
const (
	benchRepos     = 8
	filesInRepo    = 2000
	commitsInRepo  = 2000
	filesInCommit  = 10
	commitsBehind  = 20 // the locked commit is so far behind the branch, as locks usually are
	linkDelay      = 20 * time.Millisecond
	layersRounds   = 3
	diskSize       = 8 << 30 // sparse, of which 2 GiB are used
	daemonGraceSec = 10
)

// Layers measures the checkout and configuration of a project beside kas. Both run as a
// person starts them, from a git server behind a slow link.
func Layers(ctx context.Context, w io.Writer) error {
	if err := host.Ensure(ctx, w, "build/bench/apt.log", append(kastest.TestingPackages(), "git", "iproute2", "e2fsprogs", "mount")...); err != nil {
		return err
	}
	kas, err := kastest.Find(ctx, kastest.Testing)
	if err != nil {
		return err
	}
	b := layersBench{kas: kas}
	rows, err := onOwnDisk(ctx, func(dir string) ([]Row, error) {
		b.dir = dir
		if err := b.prepareServers(ctx); err != nil {
			return nil, err
		}
		return b.measureCheckouts(ctx)
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%d git repositories with %d files and %d commits each, from git's daemon behind %s in either direction; kas %s\n",
		benchRepos, filesInRepo, commitsInRepo, linkDelay, kas.Version)
	return PrintTable(
		w, rows,
		TimeRatio("kas_over_ours_cold_20ms", rows[4], rows[0]),
		TimeRatio("kas_shallow_over_ours_cold_20ms", rows[5], rows[0]),
		TimeRatio("kas_over_kas_shallow", rows[4], rows[5]),
		TimeRatio("kas_over_ours_second_board", rows[6], rows[1]),
		TimeRatio("kas_over_ours_warm", rows[7], rows[2]),
		Ratio{"warm_ms", float64(rows[2].Median().Microseconds()) / 1000},
	)
}

// onOwnDisk calls work with a new file system. ext4 does not reuse the inode of a removed
// file for minutes, and skips all of them for each new file. On the machine's own file
// system, earlier removals would change the times.
func onOwnDisk(ctx context.Context, work func(dir string) ([]Row, error)) (rows []Row, err error) {
	dir, err := os.MkdirTemp("", "slipway-bench-layers-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	top := filepath.Join(dir, "top")
	if err := os.Mkdir(top, 0o755); err != nil {
		return nil, err
	}
	if err := mountNewDisk(ctx, filepath.Join(dir, "disk"), diskSize, top); err != nil {
		return nil, err
	}
	defer func() {
		err = errors.Join(err, run.Run(context.Background(), run.Command{Argv: []string{"umount", top}}))
	}()
	return work(top)
}

// mountNewDisk makes an ext4 in a file and mounts it at top. It initialises the tables at
// once, as the kernel would otherwise do so during the measurement.
func mountNewDisk(ctx context.Context, file string, sizeBytes int64, top string) error {
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, sizeBytes)); err != nil {
		return err
	}
	for _, argv := range [][]string{
		{"mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", file},
		{"mount", "-o", "loop", file, top},
	} {
		if err := run.Run(ctx, run.Command{Argv: argv}); err != nil {
			return err
		}
	}
	return nil
}

type layersBench struct {
	dir   string
	kas   kastest.Kas
	self  string // the program with our commands
	board string
	file  string
}

func (b *layersBench) prepareServers(ctx context.Context) error {
	var err error
	if b.self, err = os.Executable(); err != nil {
		return err
	}
	spec, err := images.WithLayers()
	if err != nil {
		return err
	}
	b.board = spec.Board
	b.file = filepath.Join(b.dir, "images/boards", b.board, "kas.yml")
	if err := os.MkdirAll(filepath.Dir(b.file), 0o755); err != nil {
		return err
	}
	var project strings.Builder
	project.WriteString("header: {version: 14}\nmachine: qemuarm64\ndistro: poky\nrepos:\n")
	for i := range benchRepos {
		commit, err := makeRepo(ctx, b.serverDir(i), i)
		if err != nil {
			return err
		}
		fmt.Fprintf(&project, "  r%d: {url: \"git://%s/r%d\", branch: main, commit: %s, layers: {meta: }}\n", i, serverAddress, i, commit)
	}
	return os.WriteFile(b.file, []byte(project.String()), 0o644)
}

func (b *layersBench) serverDir(i int) string {
	return filepath.Join(b.dir, "servers", fmt.Sprintf("r%d", i))
}

func (b *layersBench) measureCheckouts(ctx context.Context) (rows []Row, err error) {
	line, err := newLink(ctx, linkDelay)
	if err != nil {
		return nil, err
	}
	defer line.close()
	stop, err := b.startDaemon(ctx, line)
	if err != nil {
		return nil, err
	}
	defer stop()
	ours, build := b.atClient(line, b.runSlipway), filepath.Join(b.dir, "build")
	at := func(name string) string { return filepath.Join(b.dir, name) }
	refs := "KAS_REPO_REF_DIR=" + at("kas-refs")
	return Measure(
		ctx, layersRounds,
		Variant{"slipway, cold", b.emptyDir(build), ours},
		Variant{"slipway, second board", b.emptyDir(filepath.Join(build, b.board)), ours},
		Variant{"slipway, warm", nil, ours},
		Variant{"kas, only its start", nil, b.atClient(line, b.runKas("", "--version"))},
		Variant{"kas, cold", b.emptyDir(at("kas")), b.atClient(line, b.runKas("kas", "checkout", b.file))},
		Variant{"kas, cold, depth 1", b.emptyDir(at("kas-shallow")), b.atClient(line, b.runKas("kas-shallow", "checkout", b.file, "KAS_CLONE_DEPTH=1"))},
		Variant{"kas, second board", b.emptyDir(at("kas-second")), b.atClient(line, b.runKas("kas-second", "checkout", b.file, refs))},
		Variant{"kas, warm", nil, b.atClient(line, b.runKas("kas", "checkout", b.file))},
	)
}

// atClient runs work at the client's end of the link.
func (b *layersBench) atClient(line *link, work func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error { return line.client.runOnThread(func() error { return work(ctx) }) }
}

// emptyDir replaces dir by an empty folder. It keeps the old one until the end, for
// onOwnDisk's reason.
func (b *layersBench) emptyDir(dir string) func(context.Context) error {
	return func(context.Context) error {
		aside, err := os.MkdirTemp(b.dir, "aside-")
		if err != nil {
			return err
		}
		if err := os.Rename(dir, filepath.Join(aside, "was")); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return os.MkdirAll(dir, 0o755)
	}
}

func (b *layersBench) runSlipway(ctx context.Context) error {
	return run.Run(ctx, run.Command{Argv: []string{b.self, "layers", "checkout", b.board}, Dir: b.dir})
}

// runKas runs kas in a folder. Words with a = are variables of its environment.
func (b *layersBench) runKas(folder string, words ...string) func(context.Context) error {
	var args, env []string
	for _, word := range words {
		if strings.Contains(word, "=") {
			env = append(env, word)
		} else {
			args = append(args, word)
		}
	}
	return func(ctx context.Context) error {
		c := b.kas.Command(filepath.Join(b.dir, folder), args...)
		at := 1 // after "env" and its -u options
		for at < len(c.Argv) && c.Argv[at] == "-u" {
			at += 2
		}
		c.Argv = slices.Insert(c.Argv, at, env...)
		return run.Run(ctx, c)
	}
}

// startDaemon runs git's daemon at the server's end of the link.
func (b *layersBench) startDaemon(ctx context.Context, line *link) (stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	daemon := run.Prepare(ctx, run.Command{Argv: []string{
		"git", "daemon", "--export-all", "--reuseaddr", "--base-path=" + filepath.Join(b.dir, "servers"), "--listen=" + serverAddress, filepath.Join(b.dir, "servers"),
	}})
	if err := line.server.runOnThread(daemon.Start); err != nil {
		cancel()
		return nil, err
	}
	stop = func() {
		cancel()
		_ = daemon.Wait() // it was told to end
	}
	if err := line.client.runOnThread(func() error { return waitForDaemon(ctx, serverAddress+":9418") }); err != nil {
		stop()
		return nil, err
	}
	return stop, nil
}

func waitForDaemon(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, daemonGraceSec*time.Second)
	defer cancel()
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err == nil {
			return conn.Close()
		}
		if ctx.Err() != nil {
			return fmt.Errorf("git's daemon does not answer: %w", err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// makeRepo makes a repository by git's fast-import and returns the commit that projects
// lock. It packs the repository again, as fast-import's manual advises: with fast-import's
// own deltas, git's daemon uses two thirds of this machine to send one commit.
func makeRepo(ctx context.Context, dir string, number int) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	var stream bytes.Buffer
	writeHistory(&stream, number)
	for _, c := range []run.Command{
		{Argv: []string{"git", "init", "-q", "--bare", "-b", "main"}},
		{Argv: []string{"git", "fast-import", "--quiet"}, Stdin: &stream},
		{Argv: []string{"git", "repack", "-a", "-d", "-f", "-q"}},
	} {
		c.Dir = dir
		if err := run.Run(ctx, c); err != nil {
			return "", err
		}
	}
	out, err := run.Output(ctx, run.Command{Argv: []string{"git", "rev-parse", fmt.Sprintf("main~%d", commitsBehind)}, Dir: dir})
	return strings.TrimSpace(string(out)), err
}

func writeHistory(stream *bytes.Buffer, number int) {
	w := bufio.NewWriter(stream)
	defer w.Flush()
	for commit := range commitsInRepo {
		message := fmt.Sprintf("commit %d", commit)
		fmt.Fprintf(w, "commit refs/heads/main\ncommitter bench <bench@localhost> %d +0000\ndata %d\n%s\n", 1_700_000_000+commit, len(message), message)
		if commit == 0 {
			writeFile(w, "oe-init-build-env", "export BUILDDIR=\"$1\"\n", number > 0) // kas wants it in one repository
			for file := range filesInRepo {
				writeFile(w, recipeName(file), recipeText(number, file, 0), false)
			}
			continue
		}
		for i := range filesInCommit {
			file := (commit*7919 + i*31) % filesInRepo
			writeFile(w, recipeName(file), recipeText(number, file, commit), false)
		}
	}
}

func writeFile(w io.Writer, name, content string, not bool) {
	if !not {
		fmt.Fprintf(w, "M 100644 inline %s\ndata %d\n%s\n", name, len(content), content)
	}
}

func recipeName(file int) string { return fmt.Sprintf("meta/recipes-%d/recipe-%d.bb", file/50, file) }

// recipeText returns text that has a recipe's length and compresses about as well as one.
func recipeText(number, file, commit int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "SUMMARY = \"recipe %d of repository %d\"\nPR = \"r%d\"\n", file, number, commit)
	for line := range 25 {
		fmt.Fprintf(&b, "SRC_URI[%d.sha256sum] = \"%08x%08x\"\n", line, uint32(file*2654435761+line*40503+number), uint32(line*2246822519+file))
	}
	return b.String()
}
