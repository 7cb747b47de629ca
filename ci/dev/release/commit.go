package release

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/blang/semver/v4"

	"slipway/layers/progress"
	"slipway/layers/run"
)

// commit is the commit of a release, checked out in a new clone.
type commit struct {
	source  string // the clone
	id      string
	date    time.Time
	author  string // NAME <MAIL>, who maintains the packages
	version string // "": of a snapshot, which the go command chooses
}

// prepareCommit clones HEAD of o.Root into the folder to, and chooses the version. It refuses
// uncommitted changes. In a clone no untracked file reaches a release.
func prepareCommit(ctx context.Context, o Options, to string) (commit, error) {
	c := commit{source: to}
	err := progress.Run(ctx, "source", func(*progress.Step) (string, error) {
		if err := refuseChanges(ctx, o.Root); err != nil {
			return "", err
		}
		if err := c.readHead(ctx, o.Root); err != nil {
			return "", err
		}
		if err := c.chooseVersion(ctx, o.Root); err != nil {
			return "", err
		}
		return c.id, c.clone(ctx, o.Root)
	})
	return c, err
}

func git(ctx context.Context, dir string, args ...string) (string, error) {
	out, err := run.Output(ctx, run.Command{Argv: append([]string{"git", "-C", dir}, args...)})
	return strings.TrimSpace(string(out)), err
}

// refuseChanges returns an error if files differ from HEAD or are untracked.
func refuseChanges(ctx context.Context, root string) error {
	changed, err := git(ctx, root, "status", "--porcelain")
	if err != nil {
		return err
	}
	if changed != "" {
		first, _, _ := strings.Cut(changed, "\n")
		return fmt.Errorf("release HEAD: the files here differ from it (%d), such as %q\nnext: git commit, or git stash --include-untracked", strings.Count(changed, "\n")+1, strings.TrimSpace(first))
	}
	return nil
}

// readHead sets the ID, date and committer to those of HEAD.
func (c *commit) readHead(ctx context.Context, root string) error {
	text, err := git(ctx, root, "log", "-1", "--no-show-signature", "--format=%H%n%ct%n%cn <%ce>", "HEAD")
	if err != nil {
		return err
	}
	lines := strings.SplitN(text, "\n", 3)
	if len(lines) != 3 {
		return fmt.Errorf("read HEAD: git log printed %q", text)
	}
	seconds, err := strconv.ParseInt(lines[1], 10, 64)
	c.id, c.date, c.author = lines[0], time.Unix(seconds, 0).UTC(), lines[2]
	return err
}

// chooseVersion sets the version to HEAD's version tag, or "" for a snapshot. It refuses two tags.
func (c *commit) chooseVersion(ctx context.Context, root string) error {
	text, err := git(ctx, root, "tag", "--points-at", "HEAD")
	tags := slices.DeleteFunc(strings.Fields(text), func(tag string) bool { return !isVersion(tag) })
	switch {
	case err != nil:
		return err
	case len(tags) > 1:
		return fmt.Errorf("choose the version: HEAD has the tags %s\nnext: git tag -d %s  # or another one", strings.Join(tags, ", "), tags[len(tags)-1])
	case len(tags) == 1:
		c.version = tags[0]
	}
	return nil
}

func isVersion(name string) bool {
	v, err := semver.Parse(strings.TrimPrefix(name, "v"))
	return err == nil && len(v.Build) == 0 && name == "v"+v.String()
}

// clone clones root into c.source and checks that its HEAD is c.id.
func (c *commit) clone(ctx context.Context, root string) error {
	if _, err := git(ctx, root, "-c", "advice.detachedHead=false", "clone", "--quiet", "-c", "core.autocrlf=false", "-c", "core.hooksPath=/dev/null", ".", c.source); err != nil {
		return err
	}
	if head, err := git(ctx, c.source, "rev-parse", "HEAD"); err != nil || head != c.id {
		return errors.Join(err, fmt.Errorf("clone %s: its HEAD is %s, and was %s when the release began", root, head, c.id))
	}
	return nil
}
