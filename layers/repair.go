package layers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"slipway/layers/progress"
	"slipway/layers/run"
)

// A mirror is only a cache. Where a full disk or a loss of power damaged it, it is
// thrown away and made anew. That is looked for only after something went wrong.

// damageTexts are git's messages about files that a disk or a loss of power damaged.
var damageTexts = []string{" is corrupt", "inflate: ", "bad object", "does not match index", "to be a packfile", "index file "}

// explainDamage adds to a failure of git what to do about a damaged checkout. Slipway
// does not repair it: a user's work in a checkout may exist nowhere else.
func (t tree) explainDamage(err error) error {
	var failure *run.Failure
	if !errors.As(err, &failure) || !slices.Contains(failure.Argv, "--git-dir="+t.gitDir) {
		return err
	}
	for _, said := range damageTexts {
		if strings.Contains(failure.Tail, said) {
			return t.damagedError(err)
		}
	}
	return err
}

func (t tree) damagedError(err error) error {
	return fmt.Errorf("%s: is damaged; save what is yours in it, move it away, then try again: %w", t.dir, err)
}

// withRepair does work in the mirror. If git cannot list the mirror's commits
// afterwards, it does the work again in a new mirror. list holds options for the
// listing.
func (m mirror) withRepair(ctx context.Context, r Repo, list []string, work func() error) error {
	err := work()
	if err == nil || ctx.Err() != nil {
		return err
	}
	if dropped, bad := m.removeUnlessSound(ctx, m.canList(ctx, r, list)); !dropped || bad != nil {
		return err
	}
	return work()
}

func (m mirror) canList(ctx context.Context, r Repo, options []string) bool {
	url, err := m.git(ctx, "config", "--get", "remote.origin.url")
	if err != nil || url != r.storedURL() {
		return false
	}
	_, err = m.git(ctx, append([]string{"rev-list", "--quiet", "--all"}, options...)...)
	return err == nil
}

// dropDamaged verifies all packs of the mirror, after a checkout from it failed.
func (m mirror) dropDamaged(ctx context.Context) (dropped bool, err error) {
	lock, err := lockMirror(ctx, m.dir)
	if err != nil {
		return false, err
	}
	defer lock.Close()
	m.hold = lock
	packs, err := filepath.Glob(filepath.Join(quoteGlob(m.dir), "objects/pack/*.idx"))
	if err != nil || len(packs) == 0 {
		return false, err
	}
	_, err = m.git(ctx, append([]string{"verify-pack", "--"}, packs...)...)
	return m.removeUnlessSound(ctx, err == nil)
}

func (m mirror) removeUnlessSound(ctx context.Context, sound bool) (dropped bool, err error) {
	if sound || ctx.Err() != nil {
		return false, ctx.Err()
	}
	progress.Start(ctx, "mirror", 0, "").End(m.dir+" was damaged and is made anew", nil)
	return true, os.RemoveAll(m.dir)
}
