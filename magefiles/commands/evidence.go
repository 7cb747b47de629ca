package commands

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"slipway/ci/report"
	"slipway/flash/evidence"
	"slipway/images"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// evidenceCommand returns the command evidence, which judges an artifact's signature and sources.
func evidenceCommand() *Command {
	c := New("evidence TARGET", "Show who built and signed an artifact, its sources, and its known flaws")
	c.Long = `TARGET is a board that is built, or the folder of an artifact. Slipway reads:
- the digests of all files
- the signature of artifact.json, as "ssh-keygen -Y sign -n file" makes it. It must be there if --signers, SLIPWAY_SIGNERS
  or a policy names signers. Without them ~/.config/slipway/allowed_signers verifies one
- the provenance: an in-toto statement, which must name the same files
- the bill of material: SPDX 2 or 3, CycloneDX, or dpkg's list of packages
- the findings of cve-check in Yocto
- with --tracker the flaws of Debian packages, from the file
  https://security-tracker.debian.org/tracker/data/json

Slipway judges the artifact by the board's policy, by that of SLIPWAY_POLICY, and by --policy.
It is an error if files do not belong together, or if a policy refuses the artifact.`
	c.exits = []exit{{4, "files, signature or provenance do not belong together, or a policy refuses the artifact"}}
	c.Example = `slipway evidence isar-amd64
slipway evidence build/orin-lab --signers=keys/allowed_signers
slipway evidence build/orin-lab --policy=release-policy.yml --json`
	signers := c.Text("signers=FILE", "", "one of these must have signed it (or SLIPWAY_SIGNERS)")
	policy := c.Text("policy=FILE", "", "also judge by this file, with the keys of board.yml's policy")
	tracker := c.Text("tracker=FILE", "", "add the flaws in this file of the Debian security tracker")
	asJSON := c.Switch("json", "print the evidence as JSON")
	c.RunSignalled(func(ctx context.Context, words []string) error {
		spec, err := loadTarget(c.Command, words[0])
		if err != nil {
			return err
		}
		policies, err := evidence.PoliciesOf(spec)
		if err != nil {
			return err
		}
		if *policy != "" {
			p, err := evidence.ReadPolicy(*policy)
			if err != nil {
				return err
			}
			policies = append(policies, p)
		}
		r, err := evidence.Examine(ctx, options.BoardDir(spec), evidence.Options{Signers: *signers, Tracker: *tracker, Policies: policies})
		if err != nil {
			return fmt.Errorf("evidence %s: %w", words[0], err)
		}
		if *asJSON {
			err = plaintext.WriteJSON(stdout, r)
		} else {
			r.Show(stdout)
		}
		return errors.Join(err, report.Because(ctx, report.ErrFailed, r.Err()))
	})
	return c
}

// loadTarget loads a board or an artifact's folder. It refuses a file that is no board's, and a
// folder without artifact.json. For a file beside artifact.json the next line names the folder.
func loadTarget(cmd *cobra.Command, target string) (images.Spec, error) {
	info, err := os.Stat(target)
	names, failed := images.Boards()
	if _, unknown := images.Load(target); err != nil || failed != nil || slices.Contains(names, target) || unknown == nil && filepath.Base(target) != images.ArtifactName {
		return images.LoadBuilt(target)
	}
	dir := plaintext.Either(info.IsDir(), target, filepath.Dir(target))
	switch whole := localfile.Exists(images.ArtifactPath(dir)); {
	case info.IsDir() && whole:
		return images.LoadBuilt(target)
	case info.IsDir():
		return images.Spec{}, fmt.Errorf("%s %s: %w: the folder has no %s\nnext: ls %s", cmd.Name(), target, images.ErrNoArtifact, images.ArtifactName, plaintext.Quote(target))
	case whole:
		return images.Spec{}, usageError{fmt.Sprintf("%s: %s is a file: name the folder of the artifact", cmd.Name(), target), swapWord(typedLine(cmd), target, dir)}
	}
	return images.Spec{}, usageError{fmt.Sprintf("%s: %s is a file: name a board, or the folder of an artifact", cmd.Name(), target), helpLine(pathOf(cmd))}
}

// swapWord returns a copy of a line with now for each word, or flag's value, that is old.
func swapWord(line []string, old, now string) []string {
	line = slices.Clone(line)
	for i, arg := range line {
		if arg == old || strings.HasSuffix(arg, "="+old) {
			line[i] = strings.TrimSuffix(arg, old) + now
		}
	}
	return line
}
