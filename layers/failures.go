package layers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"

	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// diskFullTexts are what programs print if a disk is full.
var diskFullTexts = []string{"No space left on device", "Out of diskspace", "Disk quota exceeded"}

func diskFull(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || saysAny(err, diskFullTexts)
}

// saysAny reports whether an error's text contains one of the texts.
func saysAny(err error, texts []string) bool {
	return slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(err.Error(), text) })
}

// explainError adds a next step to a checkout's error if the disk is full. If ctx has ended, it
// returns the cause of that with a next step. Other errors stay as they are.
func (c *checkout) explainError(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%s: the checkout was stopped: %w\nnext: repeat the line  # it continues", c.ws.Dir, context.Cause(ctx))
	case diskFull(err) && !strings.Contains(err.Error(), "\nnext: "):
		return fmt.Errorf("%s: the disk is full: %w\nnext: df -h %s  # make room there, then repeat the line: it continues", c.failedFolder(err), err, plaintext.Quote(c.failedFolder(err)))
	}
	return err
}

// failedFolder returns the folder in which a failed git wrote: the mirrors, or else the checkouts.
func (c *checkout) failedFolder(err error) string {
	var failure *run.Failure
	inMirrors := func(arg string) bool { return strings.HasPrefix(arg, "--git-dir="+c.ws.Mirrors+"/") }
	if c.ws.Mirrors != "" && errors.As(err, &failure) && slices.ContainsFunc(failure.Argv, inMirrors) {
		return c.ws.Mirrors
	}
	return c.ws.Dir
}

// refusalTexts are the messages of a reachable server that refuses to send a single commit. They
// come from git itself, the server, or git for servers of plain files.
var refusalTexts = []string{"Server does not allow request for unadvertised object", "remote error: ", "not support shallow", "couldn't find remote ref"}

// serverRefused reports whether the server answered, but refused this fetch, so that a complete
// clone may succeed. Slipway does not retry a server that it cannot reach, which may take minutes.
func serverRefused(err error) bool { return saysAny(err, refusalTexts) }

// serverLacksCommit reports whether err says that the server has no such commit, so that no clone
// has it. It asks the server for its protocol: before version 2, err may also be a refusal.
func (g store) serverLacksCommit(ctx context.Context, err error) bool {
	if err == nil || !strings.Contains(err.Error(), "not our ref") {
		return false
	}
	newer := false
	c := g.command("ls-remote", "-q", "origin", "HEAD")
	c.Env = append(c.Env, "GIT_TRACE2_EVENT=2") // to standard error
	c.Line = func(line string) {
		newer = newer || strings.Contains(line, `"key":"negotiated-version","value":"2"`)
	}
	_, err = run.Output(ctx, c)
	return err == nil && newer
}

// shownURL returns the url of r without secrets, quoted for a command that a person copies.
func shownURL(r Repo) string { return plaintext.Quote(plaintext.HideSecrets(r.URL)) }

func (r Repo) noCommitError() error {
	return cmp.Or(r.commitAt, r.at).Errorf("repos.%s: commit %s is not in %s; is the url or the commit mistyped?\nnext: git ls-remote %[3]s", r.ID, r.Commit, shownURL(r))
}

// explainFetchError adds the repository, the place in the project file and the next step to the
// error of a failed fetch. Errors of a full disk, or that are no run.Failure, stay as they are.
func (r Repo) explainFetchError(err error) error {
	var failure *run.Failure
	if !errors.As(err, &failure) || diskFull(err) {
		return err
	}
	shown := shownURL(r)
	if strings.Contains(err.Error(), "mismatched algorithms: client sha1; server sha256") {
		return r.at.Errorf("repos.%s: the commit ids of %s have 64 digits (sha256), and Slipway finds its branches and tags only with commit:\nnext: git ls-remote %[2]s  # write the id as commit:", r.ID, shown)
	}
	return r.at.Errorf("repos.%s: cannot fetch from %s: %w\nnext: git ls-remote %s", r.ID, shown, &gitError{failure}, shown)
}

// gitError is the error of a failed git command. Its text is the last lines that git printed.
type gitError struct{ failure *run.Failure }

// emptyWords are lines of git that add nothing to the line before them.
var emptyWords = []string{"Could not read from remote repository.", "Please make sure you have the correct access rights", "and the repository exists."}

const maxGitLines = 3 // a server may greet at length before it refuses

// Error returns the last maxGitLines lines of git that say something, or else git's exit status.
func (g *gitError) Error() string {
	var said []string
	for line := range strings.Lines(g.failure.Tail) {
		line = strings.TrimPrefix(strings.TrimSpace(line), "fatal: ")
		if _, cause, ok := strings.Cut(line, "': "); ok && strings.HasPrefix(line, "unable to access '") {
			line = cause
		}
		if !slices.Contains(emptyWords, line) && strings.IndexFunc(strings.TrimPrefix(line, "remote:"), unicode.IsLetter) >= 0 {
			said = append(said, line)
		}
	}
	return cmp.Or(strings.Join(said[max(0, len(said)-maxGitLines):], "; "), "git: "+g.failure.Status)
}

func (g *gitError) Unwrap() error { return g.failure }
