package layers

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"slipway/layers/localfile"
)

// record is the state that slipway brought a checkout to. With it, and git's own small
// files, a checkout that is up to date needs no run of git.
type record struct {
	URL     string `json:"url"`
	Ref     string `json:"ref"`           // the branch or tag that was requested
	Commit  string `json:"commit"`        // as the server has it
	Pin     string `json:"pin,omitempty"` // the tag by whose id the project pins the commit
	Patches string `json:"patches"`       // a digest of those applied; "" for none
	Count   int    `json:"count"`         // of patches
	Head    string `json:"head"`          // the commit with the patches

	Unfetched unfetched `json:"unfetched,omitzero"`
}

// Files of git's and ours that are read here are this small, or not what they
// should be.
const maxStateBytes = 1 << 18

func (t tree) recordFile() string { return filepath.Join(t.gitDir, "slipway.json") }

// readRecord returns an empty record if there is none that can be read.
func (t tree) readRecord() (r record) {
	if err := json.Unmarshal(readSmall(t.recordFile()), &r); err != nil {
		return record{}
	}
	return r
}

func (t tree) writeRecord(r record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return replaceFile(t.recordFile(), data)
}

// replaceFile writes a file that is complete or absent, where the caller holds the
// workspace's lock. It does not sync: a sync here
// would wait for all files of all checkouts, which git does not sync either.
func replaceFile(path string, content []byte) error {
	part := filepath.Join(filepath.Dir(path), ".new-"+filepath.Base(path))
	_ = os.Remove(part) // of a run that was killed
	f, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer os.Remove(part) // gone already where all went well
	_, err = f.Write(content)
	if err := errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(part, path)
}

// matchesRepo reports whether the record is of r's settings, except its patches.
func (c record) matchesRepo(r Repo) bool {
	return c.Head != "" && c.URL == r.storedURL() && c.Ref == remoteRef(r) && (r.Commit == "" || c.Commit == r.Commit || c.Pin == r.Commit)
}

// isCurrent reports whether the tree is at the commit that slipway checked out for r,
// patched or not.
func (t tree) isCurrent(r Repo) bool {
	c := t.readRecord()
	return c.matchesRepo(r) && t.isComplete() && t.headCommit() == c.Head
}

// headCommit returns the commit of HEAD, or "" if only git can tell.
func (t tree) headCommit() string {
	head := strings.TrimSpace(string(readSmall(filepath.Join(t.gitDir, "HEAD"))))
	if ref, ok := strings.CutPrefix(head, "ref: "); ok {
		if !strings.HasPrefix(ref, "refs/heads/") || !filepath.IsLocal(ref) {
			return ""
		}
		head = strings.TrimSpace(string(readSmall(filepath.Join(t.gitDir, ref))))
	}
	if !wholeCommit().MatchString(head) {
		return ""
	}
	return head
}

func readSmall(path string) []byte {
	if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() {
		return nil
	}
	data, _ := localfile.Read(path, maxStateBytes)
	return data
}
