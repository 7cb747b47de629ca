package evidence

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"slipway/flash/trust"
	"slipway/images"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// Admitted is an artifact that all policies admit and that a signer of each list signed.
type Admitted struct {
	Policies []string // where they are written
	SignedBy []trust.Signer
	artifact images.Artifact
}

// Admit checks an artifact before any of its files is written to a board. It compares the digests
// of the files of these kinds, or of all files if there is a policy, and checks the provenance.
// Every policy must admit it. If SLIPWAY_SIGNERS names signers, one must have signed it.
func Admit(ctx context.Context, spec images.Spec, a images.Artifact, kinds ...string) (Admitted, error) {
	lists, err := trust.Named("")
	if err != nil {
		return Admitted{}, err
	}
	return AdmitSigned(ctx, spec, a, lists, kinds...)
}

// AdmitSigned does the same as Admit, with the given lists of signers in place of SLIPWAY_SIGNERS.
func AdmitSigned(ctx context.Context, spec images.Spec, a images.Artifact, lists trust.Lists, kinds ...string) (Admitted, error) {
	policies, err := PoliciesOf(spec)
	if err != nil {
		return Admitted{}, err
	}
	admitted := Admitted{artifact: a}
	if len(policies)+len(lists) == 0 {
		return admitted, proveKinds(ctx, a, kinds)
	}
	path := images.ArtifactPath(a.Dir())
	description, err := localfile.Read(path, maxDescription)
	if err == nil {
		err = CheckSame(path, description, a)
	}
	if err == nil && len(lists) > 0 {
		admitted.SignedBy, err = lists.Verify(ctx, trust.Folder(a.Dir()), path, trust.Bytes(description))
	}
	if err != nil {
		return admitted, err
	}
	if len(policies) == 0 {
		return admitted, proveKinds(ctx, a, kinds)
	}
	r, err := examine(ctx, a, description, Options{Policies: policies, skipSignature: true})
	if err != nil {
		return admitted, err
	}
	for _, v := range r.Verdicts {
		admitted.Policies = append(admitted.Policies, v.Policy)
	}
	admitted.SignedBy = append(admitted.SignedBy, r.admittedBy...)
	return admitted, r.refusal()
}

// proveKinds compares the artifact's files of the given kinds, if any, with their digests. It also
// verifies the provenance, if the artifact has one.
func proveKinds(ctx context.Context, a images.Artifact, kinds []string) error {
	for _, kind := range kinds {
		f, err := a.File(kind)
		if err != nil {
			continue // the artifact has none
		}
		if err := a.VerifyFile(ctx, f, func(int64) {}); err != nil {
			return fmt.Errorf("%w; nothing was written\nnext: build %s  # or copy the file again", err, a.Board)
		}
	}
	if _, err := a.File(images.Provenance); err != nil {
		return nil
	}
	if _, err := a.ReadStatement(); err != nil {
		return fmt.Errorf("%w; nothing was written\nnext: evidence %s", err, a.Dir())
	}
	return nil
}

// CheckSame refuses a description, the text of an artifact.json, that differs from the artifact a.
func CheckSame(path string, description []byte, a images.Artifact) error {
	var now images.Artifact
	if err := json.Unmarshal(description, &now); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	x, errX := json.Marshal(now)
	y, errY := json.Marshal(a)
	if err := errors.Join(errX, errY); err != nil {
		return err
	}
	if !bytes.Equal(x, y) {
		return fmt.Errorf("%s changed while it was read; repeat the command", path)
	}
	return nil
}

// refusal returns an error with all objections to the artifact; nil if there are none.
func (r Report) refusal() error {
	lines := r.objections()
	if len(lines) == 0 {
		return nil
	}
	return fmt.Errorf("the artifact %s is refused, and nothing was written:\n  %s\nnext: evidence %[1]s", r.Folder, strings.Join(lines, "\n  "))
}

// AdmitFile runs Admit for the artifact that lists file, such as a bundle: the artifact in the
// file's own folder, else in boardDir. It finds the file by its digest, for which it calls digest.
// A file of no artifact is refused. Without a policy and SLIPWAY_SIGNERS it admits any file.
func AdmitFile(ctx context.Context, spec images.Spec, boardDir, file string, digest func() (string, error)) (Admitted, error) {
	policies, err := PoliciesOf(spec)
	lists, listErr := trust.Named("")
	if err = cmp.Or(err, listErr); err != nil || len(policies)+len(lists) == 0 {
		return Admitted{}, err
	}
	judge := trust.SignersVariable
	if len(policies) > 0 {
		judge = "the policy of " + policies[0].From
	}
	sum, err := digest()
	if err != nil {
		return Admitted{}, err
	}
	for _, dir := range []string{filepath.Dir(file), boardDir} {
		a, err := images.ArtifactOf(spec, dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return Admitted{}, err
		}
		for _, f := range a.Files {
			if f.SHA256 == sum {
				return Admit(ctx, spec, a)
			}
		}
	}
	return Admitted{}, fmt.Errorf("%s is refused, and nothing was written: it is of no artifact that %s could judge\nnext: ls -l %s  # name the file in the folder of its artifact, beside artifact.json", file, judge, plaintext.Quote(filepath.Dir(file)))
}

// newest identifies the newest build of a board that this machine wrote.
type newest struct {
	Built time.Time `json:"built"`
	Key   string    `json:"key"`
}

// newestPath returns the file that records the newest build of a board that this machine wrote.
func newestPath(board string) (string, error) {
	home, err := images.StateHome()
	return filepath.Join(home, "newest", url.PathEscape(board)+".json"), err
}

// readNewest returns the newest build of the board that this machine recorded; zero without one.
func readNewest(board string) (newest, error) {
	var n newest
	path, err := newestPath(board)
	if err != nil {
		return n, err
	}
	data, err := localfile.Read(path, maxDescription)
	if errors.Is(err, fs.ErrNotExist) {
		return n, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &n)
	}
	if err != nil {
		err = fmt.Errorf("read the record of the newest build: %s: %w", path, err)
	}
	return n, err
}

// Record records the build in the file of newestPath, if it is newer than the recorded one. If no
// policy admitted the build, Record does nothing.
func (m Admitted) Record() error {
	if len(m.Policies) == 0 {
		return nil
	}
	last, err := readNewest(m.artifact.Board)
	if err != nil || !m.artifact.Built.After(last.Built) {
		return err
	}
	path, err := newestPath(m.artifact.Board)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return localfile.WriteJSON(path, newest{m.artifact.Built, m.artifact.Key}, 0o644)
}
