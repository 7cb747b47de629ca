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
	"strings"
	"time"

	"slipway/images"
	"slipway/layers/kastest"
	"slipway/layers/plaintext"
	"slipway/layers/port"
	"slipway/layers/run"
)

// The project has as many repositories as a Jetson's image. The real ones have 15,000
// commits and 1,700 files on average.
const (
	benchRepos    = 8
	filesInRepo   = 2000
	commitsInRepo = 2000
	filesInCommit = 10
	commitsBehind = 20 // the locked commit is so far behind the branch, as locks usually are
	layersDelay   = 20 * time.Millisecond
	layersDisk    = 8 << 30 // sparse, of which 2 GiB are used
)

// layersVariants check a project out and configure it, in a folder. The folder empties is
// empty before.
var layersVariants = []struct{ name, empties, kas, words string }{
	{name: "slipway, cold", empties: "build"},
	{name: "slipway, second board", empties: "build/{board}"},
	{name: "slipway, warm"},
	{name: "kas, only its start", kas: "kas", words: "--version"},
	{name: "kas, cold", empties: "kas", kas: "kas", words: "checkout"},
	{name: "kas, cold, depth 1", empties: "kas-shallow", kas: "kas-shallow", words: "KAS_CLONE_DEPTH=1 checkout"},
	{name: "kas, second board", empties: "kas-second", kas: "kas-second", words: "KAS_REPO_REF_DIR={top}/kas-refs checkout"},
	{name: "kas, warm", kas: "kas", words: "checkout"},
}

var layersRatios = []ratio{
	{name: "kas_over_ours_cold_20ms", over: "kas, cold", under: "slipway, cold"},
	{name: "kas_shallow_over_ours_cold_20ms", over: "kas, cold, depth 1", under: "slipway, cold"},
	{name: "kas_over_kas_shallow", over: "kas, cold", under: "kas, cold, depth 1"},
	{name: "kas_over_ours_second_board", over: "kas, second board", under: "slipway, second board"},
	{name: "kas_over_ours_warm", over: "kas, warm", under: "slipway, warm"},
}

func layersNames() (names []string) {
	for _, v := range layersVariants {
		names = append(names, v.name)
	}
	return names
}

// measureLayers measures the checkout and configuration of a project beside kas. Both run as
// a person starts them, from a git server behind a slow line.
func measureLayers(ctx context.Context, s *session) error {
	kas, err := kastest.Find(ctx, kastest.Testing)
	if err != nil {
		return err
	}
	slipway, err := s.buildSlipway(ctx)
	if err != nil {
		return err
	}
	spec, err := images.WithLayers()
	if err != nil {
		return err
	}
	return s.onNewDisk(ctx, layersDisk, func(top string) error {
		server, stop, err := startDaemon(ctx, filepath.Join(top, "servers"))
		if err != nil {
			return err
		}
		defer stop()
		slow, err := listenLine(server, layersDelay)
		if err != nil {
			return err
		}
		defer slow.Close()
		file := filepath.Join(top, "images/boards", spec.Board, "kas.yml")
		if err := writeProject(ctx, top, file, slow.port()); err != nil {
			return err
		}
		values := strings.NewReplacer("{board}", spec.Board, "{top}", top)
		var variants []variant
		for _, v := range layersVariants {
			timed := variant{name: v.name, command: plaintext.Quote(slipway) + " layers checkout " + spec.Board, dir: top}
			if v.kas != "" {
				timed.runKas(kas, filepath.Join(top, v.kas), file, values.Replace(v.words))
			}
			if v.empties != "" {
				timed.prepare = func(context.Context) error { return emptyDir(top, values.Replace(v.empties)) }
			}
			variants = append(variants, timed)
		}
		rows, err := s.measure(ctx, variants)
		if err != nil {
			return err
		}
		fmt.Fprintf(s.w, "%d git repositories with %d files and %d commits each, from git's daemon behind %s in either direction; kas %s\n",
			benchRepos, filesInRepo, commitsInRepo, layersDelay, kas.Version)
		return s.print(rows, layersRatios)
	})
}

// runKas has the variant run kas in a folder. Words with a = are variables.
func (v *variant) runKas(kas kastest.Kas, dir, file, words string) {
	var args []string
	for word := range strings.FieldsSeq(words) {
		switch {
		case strings.Contains(word, "="):
			v.env = append(v.env, word)
		case word == "checkout":
			args = append(args, word, file)
		default:
			args = append(args, word)
		}
	}
	c := kas.Command(dir, args...)
	v.dir, v.env = dir, append(c.Env, v.env...)
	// The command's env removes variables. Those of the variant are set after it.
	at := 1
	for at < len(c.Argv) && c.Argv[at] == "-u" {
		at += 2
	}
	argv := append(append(append([]string(nil), c.Argv[:at]...), v.env...), c.Argv[at:]...)
	for i := range argv {
		argv[i] = plaintext.Quote(argv[i])
	}
	v.command = strings.Join(argv, " ")
}

// emptyDir replaces a folder of top by an empty one. It keeps the old one until the end, for
// onNewDisk's reason.
func emptyDir(top, dir string) error {
	aside, err := os.MkdirTemp(top, "aside-")
	if err != nil {
		return err
	}
	dir = filepath.Join(top, dir)
	if err := os.Rename(dir, filepath.Join(aside, "was")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.MkdirAll(dir, 0o755)
}

// onNewDisk calls work with a new file system. ext4 does not reuse the inode of a removed file
// for minutes, and skips all of them for each new file. On the machine's own file system,
// earlier removals would change the times.
func (s *session) onNewDisk(ctx context.Context, sizeBytes int64, work func(top string) error) (err error) {
	top := filepath.Join(s.dir, "top")
	if err := os.Mkdir(top, 0o755); err != nil {
		return err
	}
	if err := mountNewDisk(ctx, filepath.Join(s.dir, "disk"), sizeBytes, top); err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, run.Run(context.Background(), run.Command{Argv: []string{"umount", top}}))
	}()
	return work(top)
}

// mountNewDisk makes an ext4 in a file and mounts it at top. It initialises the tables at
// once, as the kernel would otherwise do so during the measurement.
func mountNewDisk(ctx context.Context, file string, sizeBytes int64, top string) error {
	err := errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, sizeBytes))
	for _, argv := range [][]string{
		{"mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", file},
		{"mount", "-o", "loop", file, top},
	} {
		if err == nil {
			err = run.Run(ctx, run.Command{Argv: argv})
		}
	}
	return err
}

// startDaemon runs git's daemon.
func startDaemon(ctx context.Context, dir string) (at int, stop func(), err error) {
	if at, err = port.Free(); err != nil {
		return 0, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	daemon := run.Prepare(ctx, run.Command{Argv: []string{
		"git", "daemon", "--export-all", "--reuseaddr", "--base-path=" + dir, "--listen=127.0.0.1", fmt.Sprint("--port=", at), dir,
	}})
	if err := errors.Join(os.MkdirAll(dir, 0o755), daemon.Start()); err != nil {
		cancel()
		return 0, nil, err
	}
	stop = func() {
		cancel()
		_ = daemon.Wait() // it was told to end
	}
	if err := waitForPort(ctx, at); err != nil {
		stop()
		return 0, nil, fmt.Errorf("git's daemon does not answer: %w", err)
	}
	return at, stop, nil
}

// waitForPort waits until a server listens.
func waitForPort(ctx context.Context, port int) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for ; ; time.Sleep(20 * time.Millisecond) {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", fmt.Sprint("127.0.0.1:", port))
		if err == nil {
			return c.Close()
		}
		if ctx.Err() != nil {
			return err
		}
	}
}

// writeProject makes the repositories, and the project file that locks them.
func writeProject(ctx context.Context, top, file string, port int) error {
	project := "header: {version: 14}\nmachine: qemuarm64\ndistro: poky\nrepos:\n"
	for i := range benchRepos {
		commit, err := makeRepo(ctx, filepath.Join(top, fmt.Sprintf("servers/r%d", i)), i)
		if err != nil {
			return err
		}
		project += fmt.Sprintf("  r%d: {url: \"git://127.0.0.1:%d/r%d\", branch: main, commit: %s, layers: {meta: }}\n", i, port, i, commit)
	}
	return errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(project), 0o644))
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

// writeHistory writes commits for fast-import: one of all files, then some that change a few.
func writeHistory(stream io.Writer, number int) {
	w := bufio.NewWriter(stream)
	defer w.Flush()
	for commit := range commitsInRepo {
		message := fmt.Sprintf("commit %d", commit)
		fmt.Fprintf(w, "commit refs/heads/main\ncommitter bench <bench@localhost> %d +0000\ndata %d\n%s\n", 1_700_000_000+commit, len(message), message)
		if commit == 0 && number == 0 {
			writeFile(w, "oe-init-build-env", "export BUILDDIR=\"$1\"\n") // kas wants it in one repository
		}
		first, count, step := commit*7919, filesInCommit, 31
		if commit == 0 {
			count, step = filesInRepo, 1
		}
		for i := range count {
			file := (first + i*step) % filesInRepo
			writeFile(w, fmt.Sprintf("meta/recipes-%d/recipe-%d.bb", file/50, file), recipeText(number, file, commit))
		}
	}
}

func writeFile(w io.Writer, name, content string) {
	fmt.Fprintf(w, "M 100644 inline %s\ndata %d\n%s\n", name, len(content), content)
}

// recipeText returns text that has a recipe's length and compresses about as well as one.
func recipeText(number, file, commit int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "SUMMARY = \"recipe %d of repository %d\"\nPR = \"r%d\"\n", file, number, commit)
	for line := range 25 {
		fmt.Fprintf(&b, "SRC_URI[%d.sha256sum] = \"%08x%08x\"\n", line, uint32(file*2654435761+line*40503+number), uint32(line*2246822519+file))
	}
	return b.String()
}
