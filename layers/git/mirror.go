package git

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
	"slipway/layers/run"
)

// Mirror is a bare repository with the commits that were fetched from one url, so that all boards
// and builds fetch each once. A checkout gets the mirror's packs as hard links, or copies on
// another file system. A checkout with links survives the deletion of its mirror.
type Mirror struct{ repository }

// maxPacks of a mirror start a repack: each git program looks for an object in every pack.
const maxPacks = 40

// notInNames matches what a mirror's folder name lacks of its url. A digest makes the name unique.
var notInNames = plaintext.Regexp(`[^A-Za-z0-9.]+`)

// MirrorFor returns the mirror for r's url and length of commit ids in a folder. It need not exist.
func MirrorFor(mirrors string, r Remote) Mirror {
	name := strings.Trim(notInNames().ReplaceAllString(strings.TrimSuffix(r.storedURL(), ".git"), "-"), "-.")
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d", r.storedURL(), max(len(r.Commit), 40)))
	dir := filepath.Join(mirrors, fmt.Sprintf("%s-%.6x.git", name[max(0, len(name)-80):], sum))
	return Mirror{repository{Dir: dir, gitDir: dir, url: r.URL}}
}

// fetchInto fetches r's commit into the mirror if it is missing, links or copies the packs into the
// tree, sets the tree's ref of a branch or tag, and returns the commit. It recreates a damaged
// mirror. It holds the mirror's lock.
func (m Mirror) fetchInto(ctx context.Context, r Remote, t Tree) (commit string, err error) {
	lock, err := lockMirror(ctx, m.Dir)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	m.hold = lock
	err = m.withRepair(ctx, r, []string{"--objects"}, func() (err error) {
		if err = m.prepareMirror(ctx, r); err == nil {
			commit, err = m.ensureCommit(ctx, r)
		}
		return err
	})
	if err != nil && ctx.Err() == nil { // half a pack may be what fills the disk
		err = errors.Join(err, m.removeLeftovers(ctx))
	}
	switch {
	case err != nil && DiskFull(err):
		return "", err // the caller says how to continue
	case err != nil:
		return "", localfile.Unwritable(m.Dir, err)
	}
	if err := m.copyTo(t, commit); err != nil {
		return "", fmt.Errorf("%s: take packs from the mirror %s: %w", t.Dir, m.Dir, err)
	}
	if r.Tag == "" && r.Commit != "" {
		return commit, nil
	}
	_, err = t.Run(ctx, "update-ref", r.localRef(), commit)
	return commit, err
}

// lockMirror creates the folder of the mirrors, and waits for the lock of the mirror dir, which one
// process has at a time. Closing the file releases the lock.
func lockMirror(ctx context.Context, dir string) (*os.File, error) {
	err := localfile.MkdirAll(filepath.Dir(dir))
	if err != nil {
		return nil, localfile.Unwritable(filepath.Dir(dir), err)
	}
	lock, err := localfile.Lock(ctx, dir+".lock", 0o644)
	return lock, localfile.Unwritable(filepath.Dir(dir), err)
}

// prepareMirror creates an empty mirror, or removes a killed fetch's leftovers in it. The caller
// holds the mirror's lock, so no other process uses it.
func (m Mirror) prepareMirror(ctx context.Context, r Remote) error {
	if err := m.awaitFetch(ctx); err != nil {
		return err
	}
	if localfile.Exists(filepath.Join(m.Dir, "HEAD")) {
		return m.removeLeftovers(ctx)
	}
	partial := Mirror{repository{Dir: m.Dir + ".partial", gitDir: m.Dir + ".partial", hold: m.hold, url: r.URL}}
	if err := os.RemoveAll(partial.Dir); err != nil {
		return err
	}
	if err := partial.initRepository(r); err != nil {
		return err
	}
	return os.Rename(partial.Dir, m.Dir)
}

// removeLeftovers removes a killed git's locks and partial packs. The caller has locked the mirror.
func (m Mirror) removeLeftovers(ctx context.Context) error {
	for _, pattern := range []string{"*.lock", "objects/pack/tmp_*", "objects/pack/.tmp-*"} {
		names, err := filepath.Glob(filepath.Join(localfile.QuoteGlob(m.Dir), pattern))
		if err != nil {
			return err
		}
		if err := localfile.Remove(names...); err != nil {
			return err
		}
	}
	return m.removeLocks(ctx)
}

// ensureCommit returns r's commit, and fetches it if the mirror lacks it. It always fetches a
// branch or tag without a commit, which may have moved. It refuses a tag that is not at its pinned
// commit, and repacks a mirror with many packs.
func (m Mirror) ensureCommit(ctx context.Context, r Remote) (commit string, err error) {
	packs, err := filepath.Glob(filepath.Join(localfile.QuoteGlob(m.Dir), "objects/pack/*.pack"))
	if err != nil {
		return "", err
	}
	if r.Commit != "" && len(packs) > 0 {
		commit, _ = m.LocalCommit(ctx, r) // fails if the mirror lacks it
	}
	if commit == "" {
		if commit, err = m.fetchFromServer(ctx, r, true, "refs/slipway/keep/"+r.Commit); err != nil {
			return "", err
		}
	}
	if r.Tag != "" && r.Commit != "" {
		if err := m.checkTag(ctx, r, true); err != nil {
			return "", err
		}
	}
	if len(packs) < maxPacks {
		return commit, nil
	}
	_, err = m.Run(ctx, "repack", "-a", "-d", "-q")
	return commit, err
}

// copyTo links or copies all complete packs of the mirror into a tree, and sets where the history
// ends. It copies the index of a pack last, because git finds a pack by its index.
func (m Mirror) copyTo(t Tree, commit string) error {
	indexes, err := filepath.Glob(filepath.Join(localfile.QuoteGlob(m.Dir), "objects/pack/pack-*.idx"))
	if err != nil {
		return err
	}
	for _, index := range indexes {
		pack := strings.TrimSuffix(index, ".idx")
		if !isCompletePack(pack, len(commit)/2) {
			continue // nothing that was looked up came out of it
		}
		for _, ending := range []string{".pack", ".rev", ".idx"} {
			err := linkOrCopy(pack+ending, filepath.Join(t.gitDir, "objects/pack", filepath.Base(pack)+ending))
			if err != nil && (ending != ".rev" || !errors.Is(err, fs.ErrNotExist)) {
				return err
			}
		}
	}
	return m.writeShallow(t, commit)
}

// isCompletePack reports whether a pack and its index are complete: both contain the pack's
// checksum. digest is the length of a checksum in bytes.
func isCompletePack(pack string, digest int) bool {
	own, err := lastBytes(pack+".pack", digest)
	if err != nil {
		return false
	}
	known, err := lastBytes(pack+".idx", 2*digest)
	return err == nil && bytes.Equal(own, known[:digest])
}

// lastBytes returns the last n bytes of a file. A shorter file is an error.
func lastBytes(path string, n int) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if _, err := f.Seek(-int64(n), io.SeekEnd); err != nil {
		return nil, err
	}
	last := make([]byte, n)
	_, err = io.ReadFull(f, last)
	return last, err
}

// linkOrCopy hard-links a file, or copies it read-only if that fails. An existing target stays.
func linkOrCopy(from, to string) error {
	err := os.Link(from, to)
	if err == nil || errors.Is(err, fs.ErrExist) {
		return nil
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.CreateTemp(filepath.Dir(to), "tmp_copy_")
	if err != nil {
		return err
	}
	defer os.Remove(out.Name()) // gone already if all went well
	_, err = io.Copy(out, in)
	if err := errors.Join(err, out.Chmod(0o444), out.Close()); err != nil {
		return err
	}
	return os.Rename(out.Name(), to)
}

// writeShallow adds the commits at which the mirror's history ends to the tree's file shallow. If
// the history ends at the commit itself, it adds only that. Entries of the tree stay.
func (m Mirror) writeShallow(t Tree, commit string) error {
	ends, err := shallowCommits(m.gitDir)
	if err != nil || len(ends) == 0 {
		return err
	}
	if slices.Contains(ends, commit) {
		ends = []string{commit}
	}
	have, err := shallowCommits(t.gitDir)
	if err != nil {
		return err
	}
	all := slices.Compact(slices.Sorted(slices.Values(slices.Concat(have, ends))))
	if len(all) == len(have) {
		return nil
	}
	return localfile.Replace(filepath.Join(t.gitDir, "shallow"), []byte(strings.Join(all, "\n")+"\n"))
}

// shallowCommits returns the commits at which a shallow history ends, none for a complete history.
func shallowCommits(gitDir string) ([]string, error) {
	data, err := os.ReadFile(filepath.Join(gitDir, "shallow"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return strings.Fields(string(data)), err
}

// A mirror is only a cache. If a full disk or a loss of power damaged it, Slipway deletes and
// recreates it. It looks for damage only after an error.

// damageTexts are git's messages about files that a disk or a loss of power damaged.
var damageTexts = []string{" is corrupt", "inflate: ", "bad object", "does not match index", "to be a packfile", "index file "}

// ExplainDamage adds to an error of git that the checkout is damaged, if git's output says so.
// Slipway does not repair a checkout: the user's work in it may exist nowhere else.
func (t Tree) ExplainDamage(err error) error {
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

func (t Tree) damagedError(err error) error {
	return fmt.Errorf("%s: is damaged; save what is yours in it, move it away, then try again: %w", t.Dir, err)
}

// withRepair calls work. If that fails, and canList with the options list is false, it deletes the
// mirror and calls work again, which remakes it.
func (m Mirror) withRepair(ctx context.Context, r Remote, list []string, work func() error) error {
	err := work()
	if err == nil || ctx.Err() != nil {
		return err
	}
	if dropped, bad := m.removeUnlessSound(ctx, m.canList(ctx, r, list)); !dropped || bad != nil {
		return err
	}
	return work()
}

// canList reports whether the mirror has r's url and git can list its commits with the options.
func (m Mirror) canList(ctx context.Context, r Remote, options []string) bool {
	url, err := m.Run(ctx, "config", "--get", "remote.origin.url")
	if err != nil || url != r.storedURL() {
		return false
	}
	_, err = m.Run(ctx, append([]string{"rev-list", "--quiet", "--all"}, options...)...)
	return err == nil
}

// dropDamaged verifies all packs of the mirror, deletes it if it is damaged, and returns true then.
func (m Mirror) dropDamaged(ctx context.Context) (dropped bool, err error) {
	lock, err := lockMirror(ctx, m.Dir)
	if err != nil {
		return false, err
	}
	defer lock.Close()
	m.hold = lock
	packs, err := filepath.Glob(filepath.Join(localfile.QuoteGlob(m.Dir), "objects/pack/*.idx"))
	if err != nil || len(packs) == 0 {
		return false, err
	}
	_, err = m.Run(ctx, append([]string{"verify-pack", "--"}, packs...)...)
	return m.removeUnlessSound(ctx, err == nil)
}

// removeUnlessSound deletes the mirror and prints that, unless it is sound or ctx has ended.
func (m Mirror) removeUnlessSound(ctx context.Context, sound bool) (dropped bool, err error) {
	if sound || ctx.Err() != nil {
		return false, ctx.Err()
	}
	progress.Start(ctx, "mirror", 0, "").End(m.Dir+" was damaged; Slipway makes it again", nil)
	return true, os.RemoveAll(m.Dir)
}

// Change is one commit.
type Change struct {
	Commit  string `json:"commit"`
	Subject string `json:"subject"`
}

// history is a mirror that has commits without their files.
type history struct{ Mirror }

// ListCommits fetches the histories of two commits of r into a second mirror, without files. It
// returns how many commits only to has (ahead), how many only from has (behind), and the newest of
// the first, at most most. It locks the mirror, and recreates a damaged one.
func ListCommits(ctx context.Context, mirrors string, r Remote, from, to string, most int) (ahead, behind int, commits []Change, err error) {
	dir := strings.TrimSuffix(MirrorFor(mirrors, r).Dir, ".git") + "-history.git"
	h, commits := history{Mirror{repository{Dir: dir, gitDir: dir, url: r.URL}}}, []Change{}
	lock, err := lockMirror(ctx, h.Dir)
	if err != nil {
		return 0, 0, commits, err
	}
	defer lock.Close()
	h.hold = lock
	err = h.withRepair(ctx, r, nil, func() error {
		if err := h.prepareMirror(ctx, r); err != nil {
			return err
		}
		return h.fetchHistory(ctx, from, to)
	})
	if err != nil {
		return ahead, behind, commits, err
	}
	count, err := h.Run(ctx, "rev-list", "--left-right", "--count", from+"..."+to)
	if err != nil {
		return ahead, behind, commits, err
	}
	if _, err := fmt.Sscan(count, &behind, &ahead); err != nil {
		return ahead, behind, commits, err
	}
	lines, err := h.list(ctx, "log", "-z", fmt.Sprintf("--max-count=%d", most), "--format=%H %s", from+".."+to)
	for _, line := range lines {
		commit, subject, _ := strings.Cut(line, " ")
		commits = append(commits, Change{commit, plaintext.ShortLine(subject)})
	}
	return ahead, behind, commits, err
}

// fetchHistory fetches the commits that are missing, with their histories. It asks for no files
// or folders, but a server that cannot filter sends them too.
func (h history) fetchHistory(ctx context.Context, commits ...string) error {
	args := []string{"--filter=tree:0", "--", "origin"}
	missing := false
	for _, commit := range commits {
		kept := "refs/slipway/keep/" + commit
		if at, err := h.Resolve(ctx, kept); err != nil || at != commit {
			args, missing = append(args, commit+":"+kept), true
		}
	}
	if !missing {
		return ctx.Err()
	}
	return h.runFetch(ctx, args...)
}

// IsFileName reports whether ref ends like a file, as in kas.lock.yml.old. The end of a version, as
// in v1.0, is none.
func IsFileName(ref string) bool {
	end := strings.TrimLeft(filepath.Ext(ref), ".")
	return end != "" && (end[0] < '0' || end[0] > '9')
}

// ExportFiles writes the YAML and JSON files of the commit ref in the checkout root, and an empty
// .git folder, into dir/project. The index that git needs for that stays as dir/index.
func ExportFiles(ctx context.Context, root, ref, dir string) error {
	t := TreeIn(root, nil)
	commit, err := t.Run(ctx, "rev-parse", "--verify", "--quiet", "--end-of-options", ref+"^{commit}")
	if err != nil {
		next := "git -C " + plaintext.Quote(cmp.Or(root, ".")) + plaintext.Either(ref == "HEAD", " commit -a  # it has no commit yet", " show-ref")
		if IsFileName(ref) {
			next = "ls " + plaintext.Quote(localfile.NearestFolder(ref))
		}
		return fmt.Errorf("%q is neither a file nor a commit of %s\nnext: %s", ref, cmp.Or(root, "."), next)
	}
	index := []string{"GIT_INDEX_FILE=" + filepath.Join(dir, "index")}
	if _, err := t.runWith(ctx, index, nil, "read-tree", commit); err != nil {
		return err
	}
	names, err := t.runWith(ctx, index, nil, "ls-files", "-z", "--", "*.yml", "*.yaml", "*.json")
	if err != nil {
		return err
	}
	// Includes are looked for from the root of a repository, which a .git marks.
	if err := os.MkdirAll(filepath.Join(dir, "project/.git"), 0o755); err != nil {
		return err
	}
	_, err = t.runWith(ctx, index, []byte(names), "checkout-index", "-q", "-z", "--stdin", "--prefix="+filepath.Join(dir, "project")+"/")
	return err
}
