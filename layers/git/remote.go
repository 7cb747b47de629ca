package git

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"slipway/layers/plaintext"
	"slipway/layers/run"
	"slipway/layers/yaml"
)

// Remote is a repository at a server, with what a project takes from it.
type Remote struct {
	ID     string // in the project
	URL    string // "" for a folder that exists already
	Branch string // or a whole ref, if it begins with refs/
	OrTag  bool   // Branch may as well be a tag: see LookUp
	Tag    string
	Commit string

	At       yaml.Position // in the project's files, for errors
	CommitAt yaml.Position // of a commit that an override names
}

// CheckCommit returns an error if r has a url and a commit that is no whole id: a shorter one, or a
// branch's name, could name another commit tomorrow. A checkout fails with it, and Load only warns.
func (r Remote) CheckCommit() error {
	if r.URL == "" || r.Commit == "" || IsCommit(r.Commit) {
		return nil
	}
	at := cmp.Or(r.CommitAt, r.At)
	return at.Errorf("repos.%s: commit %q is not a whole commit id (40 digits, lower case)\nnext: git ls-remote %s  # write the id, or branch: or tag: in place of commit:", r.ID, r.Commit, plaintext.HideSecrets(r.URL))
}

// storedURL returns r's address for files: others can read them. git gets the login in its
// environment, each time that it asks the server.
func (r Remote) storedURL() string { return plaintext.HideSecrets(r.URL) }

// ref returns the server's whole ref of r's tag, or of its branch. Without either it ends in /.
func (r Remote) ref() string {
	if r.Tag != "" {
		return "refs/tags/" + r.Tag
	}
	if strings.HasPrefix(r.Branch, "refs/") {
		return r.Branch
	}
	return "refs/heads/" + r.Branch
}

// localRef returns the ref that keeps the commit of ref, apart from a user's own refs.
func (r Remote) localRef() string {
	return "refs/slipway/at/" + strings.TrimPrefix(r.ref(), "refs/")
}

// Tip is a branch or tag at the server, with its commit. Object is the ID of an annotated tag.
type Tip struct{ Ref, Commit, Object string }

// LookUp asks r's server for the commit of r's branch or tag. If a name is both a tag and a branch,
// the tag wins, unless the branch is the server's default, as in kas's clones.
func (r Remote) LookUp(ctx context.Context) (Tip, error) {
	refs := []string{r.ref()}
	if r.OrTag {
		refs = append(refs, "refs/tags/"+r.Branch)
	}
	args := []string{"-c", "protocol.ext.allow=never", "ls-remote", "--symref", "--", r.storedURL(), "HEAD"}
	for _, ref := range refs {
		args = append(args, ref, ref+"^{}")
	}
	out, err := run.Output(ctx, limitSilence(withLogin(Command("", args...), r.URL)))
	if err != nil {
		return Tip{}, r.explainFetchError(err)
	}
	found := map[string]string{}
	for line := range strings.Lines(string(out)) { // a signed tag has a second line, for the commit that it holds
		id, name, _ := strings.Cut(strings.TrimSpace(line), "\t")
		found[name] = cmp.Or(found[name], id) // of HEAD, the branch comes first
	}
	ref := refs[0]
	if r.OrTag && found[refs[1]] != "" && (found[ref] == "" || found["HEAD"] != "ref: "+ref) {
		ref = refs[1]
	}
	t := Tip{Ref: ref, Commit: cmp.Or(found[ref+"^{}"], found[ref]), Object: found[ref]}
	if !IsCommit(t.Commit) {
		return Tip{}, r.At.Errorf("repos.%s: %s has no %s\nnext: git ls-remote %[2]s", r.ID, r.ShownURL(), strings.Join(refs, " or "))
	}
	return t, nil
}

// Query runs git ls-remote for HEAD at r's server, until timeout is over, and returns its error.
func (r Remote) Query(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no answer within %v", timeout))
	defer cancel()
	_, err := run.Output(ctx, withLogin(Command(".", "-c", "protocol.ext.allow=never", "ls-remote", "-q", "--", r.storedURL(), "HEAD"), r.URL))
	if failure, ok := errors.AsType[*run.Failure](err); ok {
		return &commandError{failure}
	}
	return err
}

// limitSilence returns c with a limit of silence, SLIPWAY_SILENCE or 5 minutes: git has none.
func limitSilence(c run.Command) run.Command {
	limit, _ := time.ParseDuration(os.Getenv("SLIPWAY_SILENCE")) // Slipway has checked it
	c.Silence = cmp.Or(limit, 5*time.Minute)
	return c
}

// diskFullTexts are what programs print if a disk is full.
var diskFullTexts = []string{"No space left on device", "Out of diskspace", "Disk quota exceeded"}

// DiskFull reports whether an error means that a disk is full.
func DiskFull(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || saysAny(err, diskFullTexts)
}

// saysAny reports whether an error's text contains one of the texts.
func saysAny(err error, texts []string) bool {
	return err != nil && slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(err.Error(), text) })
}

// refusalTexts are the messages of a reachable server that refuses to send a single commit. They
// come from git itself, the server, or git for servers of plain files.
var refusalTexts = []string{"Server does not allow request for unadvertised object", "remote error: ", "not support shallow", "couldn't find remote ref"}

// serverRefused reports whether the server answered, but refused this fetch, so that a complete
// clone may succeed. Slipway does not retry a server that it cannot reach, which may take minutes.
func serverRefused(err error) bool { return saysAny(err, refusalTexts) }

// serverLacksCommit reports whether err says that the server has no such commit, so that no clone
// has it. It asks the server for its protocol: before version 2, err may also be a refusal.
func (g repository) serverLacksCommit(ctx context.Context, err error) bool {
	if !saysAny(err, []string{"not our ref"}) {
		return false
	}
	newer := false
	c := limitSilence(g.command("ls-remote", "-q", "origin", "HEAD"))
	c.Env = append(c.Env, "GIT_TRACE2_EVENT=2") // to standard error
	c.Line = func(line string) {
		newer = newer || strings.Contains(line, `"key":"negotiated-version","value":"2"`)
	}
	_, err = run.Output(ctx, c)
	return err == nil && newer
}

// ShownURL returns the url of r without secrets, quoted for a command that a person copies.
func (r Remote) ShownURL() string { return plaintext.Quote(plaintext.HideSecrets(r.URL)) }

func (r Remote) noCommitError() error {
	return cmp.Or(r.CommitAt, r.At).Errorf("repos.%s: commit %s is not in %s; is the url or the commit mistyped?\nnext: git ls-remote %[3]s", r.ID, r.Commit, r.ShownURL())
}

// explainFetchError adds the repository, the place in the project file and the next step to the
// error of a failed fetch. Errors of a full disk, or that are no run.Failure, stay as they are.
func (r Remote) explainFetchError(err error) error {
	var failure *run.Failure
	if !errors.As(err, &failure) || DiskFull(err) {
		return err
	}
	shown := r.ShownURL()
	if strings.Contains(err.Error(), "mismatched algorithms: client sha1; server sha256") {
		return r.At.Errorf("repos.%s: the commit ids of %s have 64 digits (sha256), and Slipway finds its branches and tags only with commit:\nnext: git ls-remote %[2]s  # write the id as commit:", r.ID, shown)
	}
	if strings.Contains(err.Error(), "couldn't find remote ref") {
		return r.At.Errorf("repos.%s: %s has no %s\nnext: git ls-remote %[2]s", r.ID, shown, r.ref())
	}
	next := plaintext.Either(errors.Is(err, run.ErrSilent), "SLIPWAY_SILENCE=30m repeat the line  # to wait longer", "git ls-remote "+shown)
	if _, step, dubious := strings.Cut(failure.Tail, "git config --global --add safe.directory "); dubious {
		next = "git config --global --add safe.directory " + strings.Fields(step)[0]
	}
	return fmt.Errorf("%s: repos.%s: cannot fetch from %s: %w\nnext: %s", r.At, r.ID, shown, &commandError{failure}, next) // no ErrProject
}

// commandError is the error of a failed git command. Its text is the last lines that git printed.
type commandError struct{ failure *run.Failure }

// emptyWords are in lines of git that add nothing to the line before them, or show progress.
var emptyWords = []string{"Could not read from remote repository.", "Please make sure you have the correct access rights", "and the repository exists.", "ing objects: ", "remote: Total "}

const maxLines = 3 // a server may greet at length before it refuses

// Error joins git's last maxLines lines that say something by "; ", or returns git's exit status.
func (g *commandError) Error() string {
	var said []string
	for line := range strings.Lines(g.failure.Tail) {
		line = strings.TrimPrefix(strings.TrimSpace(line), "fatal: ")
		if _, cause, ok := strings.Cut(line, "': "); ok && strings.HasPrefix(line, "unable to access '") {
			line = cause
		}
		empty := slices.ContainsFunc(emptyWords, func(words string) bool { return strings.Contains(line, words) })
		if !empty && strings.IndexFunc(strings.TrimPrefix(line, "remote:"), unicode.IsLetter) >= 0 {
			said = append(said, line)
		}
	}
	return cmp.Or(strings.Join(said[max(0, len(said)-maxLines):], "; "), "git: "+g.failure.Status)
}

func (g *commandError) Unwrap() error { return g.failure }
