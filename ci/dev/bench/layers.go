package bench

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"slipway/images"
	"slipway/layers/kastest"
	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// serversScript makes the project's repositories.
//
//go:embed servers.sh
var serversScript string

const (
	layersDelay = 20 * time.Millisecond
	layersDisk  = 8 << 30 // sparse, of which 2 GiB are used
)

// layersVariants check a project out and configure it, in a folder. The folder empties is
// empty before.
var layersVariants = []struct{ name, empties, kas, words string }{
	{name: "slipway, cold", empties: "build"},
	{name: "slipway, second board", empties: "build/{board}"},
	{name: "slipway, warm"},
	{name: "kas, only its start", kas: ".", words: "--version"},
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
func measureLayers(ctx context.Context, s *session) (err error) {
	kas, err := kastest.Find(ctx, kastest.Testing)
	if err != nil {
		return err
	}
	if err := s.buildProgram(ctx, ".", "./magefiles/slipway"); err != nil {
		return err
	}
	spec, err := images.WithLayers()
	if err != nil {
		return err
	}
	top := filepath.Join(s.dir, "top")
	if err := os.Mkdir(top, 0o755); err != nil {
		return err
	}
	if err := mountNewDisk(ctx, filepath.Join(s.dir, "disk"), layersDisk, top); err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, run.Run(context.Background(), run.Command{Argv: []string{"umount", top}}))
	}()
	servers := filepath.Join(top, "servers")
	server, stop, err := startDaemon(ctx, servers)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(stop(), err) }()
	slow, err := listenLine(server, layersDelay)
	if err != nil {
		return err
	}
	defer slow.Close()
	file := filepath.Join(top, "images/boards", spec.Board, "kas.yml")
	if err := writeProject(ctx, servers, file, slow.port()); err != nil {
		return err
	}
	values := strings.NewReplacer("{board}", spec.Board, "{top}", top)
	var variants []variant
	for _, v := range layersVariants {
		timed := variant{name: v.name, command: "{program} layers checkout " + spec.Board, dir: top}
		if v.kas != "" {
			timed.runKas(kas, filepath.Join(top, v.kas), file, values.Replace(v.words))
		}
		if v.empties != "" {
			timed.prepare = func(context.Context, variant) error { return emptyDir(top, values.Replace(v.empties)) }
		}
		variants = append(variants, timed)
	}
	rows, err := s.measure(ctx, variants)
	if err != nil {
		return err
	}
	fmt.Fprintf(s.w, "8 git repositories with 2000 files and 2000 commits each, from git's daemon behind %s in either direction; kas %s\n", layersDelay, kas.Version)
	return s.print(rows, layersRatios)
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
// mountNewDisk's reason.
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

// mountNewDisk makes an ext4 in a file and mounts it at top. ext4 does not reuse the inode of a
// removed file for minutes, and skips all of them for each new file. On the machine's own file
// system, earlier removals would change the times. It initialises the tables at once, as the
// kernel would otherwise do so during the measurement.
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

// startDaemon runs git's daemon. It listens when this returns.
func startDaemon(ctx context.Context, dir string) (at int, stop func() error, err error) {
	if at, err = run.FreePort(); err != nil {
		return 0, nil, err
	}
	file := dir + ".pid"
	if err := os.Mkdir(dir, 0o755); err != nil {
		return 0, nil, err
	}
	err = run.Run(ctx, run.Command{Argv: []string{
		"git", "daemon", "--detach", "--pid-file=" + file, "--export-all", "--reuseaddr", "--base-path=" + dir, "--listen=127.0.0.1", fmt.Sprint("--port=", at), dir,
	}})
	return at, func() error {
		return run.Run(context.Background(), run.Command{Argv: []string{"sh", "-c", `kill "$(cat "$1")"`, "sh", file}})
	}, err
}

// writeProject makes the repositories, and the project file that locks them.
func writeProject(ctx context.Context, servers, file string, port int) error {
	commits, err := run.Output(ctx, run.Command{Argv: []string{"sh", "-euc", serversScript, "sh", servers}})
	if err != nil {
		return err
	}
	project := "header: {version: 14}\nmachine: qemuarm64\ndistro: poky\nrepos:\n"
	for i, commit := range strings.Fields(string(commits)) {
		project += fmt.Sprintf("  r%d: {url: \"git://127.0.0.1:%d/r%d\", branch: main, commit: %s, layers: {meta: }}\n", i, port, i, commit)
	}
	return errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(project), 0o644))
}
