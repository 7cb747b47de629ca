package bench

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"

	"slipway/layers"
	"slipway/layers/engine"
	"slipway/layers/host"
)

// What is checked out: about as much as a small board's layers.
const (
	benchRepos  = 6
	filesInRepo = 2000
)

// Layers measures the checkout and configuration of a project with six local
// repositories beside kas: cold into an empty folder, warm where all is done.
func Layers(ctx context.Context, w io.Writer) error {
	if err := host.Ensure(ctx, w, "build/bench/apt.log", "git", "kas"); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "slipway-bench-layers-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	project, err := makeProject(ctx, dir)
	if err != nil {
		return err
	}
	ours := func(ctx context.Context) error { return checkoutOurs(ctx, project, filepath.Join(dir, "ours")) }
	kas := func(ctx context.Context) error { return checkoutKas(ctx, project, filepath.Join(dir, "kas")) }
	rows, err := Measure(
		ctx, 5,
		Variant{"slipway, cold", empty(filepath.Join(dir, "ours")), ours},
		Variant{"slipway, warm", nil, ours},
		Variant{"kas, cold", empty(filepath.Join(dir, "kas")), kas},
		Variant{"kas, warm", nil, kas},
	)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%d git repositories with %d files each, from the same disk\n", benchRepos, filesInRepo)
	return Print(w, rows, Over("kas_over_ours_cold", rows[2], rows[0]), Over("kas_over_ours_warm", rows[3], rows[1]))
}

func empty(dir string) func(context.Context) error {
	return func(context.Context) error {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
		return os.Mkdir(dir, 0o755)
	}
}

func checkoutOurs(ctx context.Context, file, dir string) error {
	ws := layers.Workspace{Dir: dir}
	p, err := layers.Load(ctx, file, ws)
	if err != nil {
		return err
	}
	if err := layers.Checkout(ctx, p, ws); err != nil {
		return err
	}
	return layers.Configure(p, ws, filepath.Join(dir, "build"))
}

func checkoutKas(ctx context.Context, file, dir string) error {
	return engine.Run(ctx, engine.Command{
		Argv: []string{"kas", "checkout", file}, Dir: dir,
		Env: []string{"KAS_WORK_DIR=" + dir},
	})
}

// makeProject makes the repositories and a project file that any kas reads.
func makeProject(ctx context.Context, dir string) (string, error) {
	var b strings.Builder
	b.WriteString("header: {version: 8}\nmachine: qemuarm64\ndistro: poky\nrepos:\n")
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(2)
	for i := range benchRepos {
		repo := filepath.Join(dir, fmt.Sprintf("server-%d", i))
		fmt.Fprintf(&b, "  r%d: {url: %s, refspec: main, layers: {meta: }}\n", i, repo)
		group.Go(func() error { return makeRepo(ctx, repo, i) })
	}
	if err := group.Wait(); err != nil {
		return "", err
	}
	file := filepath.Join(dir, "project", "kas.yml")
	if err := os.Mkdir(filepath.Dir(file), 0o755); err != nil {
		return "", err
	}
	return file, os.WriteFile(file, []byte(b.String()), 0o644)
}

func makeRepo(ctx context.Context, dir string, number int) error {
	for i := range filesInRepo {
		sub := filepath.Join(dir, "meta", fmt.Sprintf("recipes-%d", i/50))
		if i%50 == 0 {
			if err := os.MkdirAll(sub, 0o755); err != nil {
				return err
			}
		}
		content := strings.Repeat(fmt.Sprintf("SUMMARY = \"recipe %d of repository %d\"\n", i, number), 20)
		if err := os.WriteFile(filepath.Join(sub, fmt.Sprintf("recipe-%d.bb", i)), []byte(content), 0o644); err != nil {
			return err
		}
	}
	if number == 0 { // kas wants one repository to have OpenEmbedded's script
		if err := os.WriteFile(filepath.Join(dir, "oe-init-build-env"), []byte("export BUILDDIR=\"$1\"\n"), 0o644); err != nil {
			return err
		}
	}
	for _, args := range [][]string{
		{"init", "-q", "-b", "main"},
		{"add", "-A"},
		{"-c", "user.name=bench", "-c", "user.email=bench@localhost", "commit", "-q", "-m", "all"},
	} {
		if err := engine.Run(ctx, engine.Command{Argv: append([]string{"git"}, args...), Dir: dir}); err != nil {
			return err
		}
	}
	return nil
}
