package commands

import (
	"context"
	"errors"
	"fmt"

	"slipway/ci/report"
	"slipway/flash/evidence"
	"slipway/flash/trust"
	"slipway/images"
	"slipway/layers/plaintext"
)

func evidenceCommand() *Command {
	c := New("evidence TARGET", "Show who built and signed an artifact, its sources, and its known flaws")
	c.Long = `TARGET is a board that is built, or the folder of an artifact. Slipway reads:
- the digests of all files
- the signature of artifact.json, which "sign" makes. It must be there if --signers, SLIPWAY_SIGNERS
  or a policy names signers. Without them ~/.config/slipway/allowed_signers verifies one
- the provenance: an in-toto statement, which must name the same files
- the bill of material: SPDX 2 or 3, CycloneDX, or dpkg's list of packages
- the findings of cve-check in Yocto
- with --tracker the flaws of Debian packages, from the file
  https://security-tracker.debian.org/tracker/data/json
- with --since the flaws that an earlier artifact does not have

Slipway judges the artifact by the board's policy, by that of SLIPWAY_POLICY, and by --policy.
It is an error if files do not belong together, or if a policy refuses the artifact.`
	c.exits = []exit{{4, "files, signature or provenance do not belong together, or a policy refuses the artifact"}}
	c.Example = `slipway evidence isar-amd64
slipway evidence build/orin-lab --signers=keys/allowed_signers --since=/srv/released/orin-lab
slipway evidence build/orin-lab --policy=release-policy.yml --json`
	signers := c.Text("signers=FILE", "", "one of these must have signed it (or SLIPWAY_SIGNERS)")
	since := c.Text("since=FOLDER", "", "an earlier artifact of the board")
	policy := c.Text("policy=FILE", "", "also judge by this file, with the keys of board.yml's policy")
	tracker := c.Text("tracker=FILE", "", "add the flaws in this file of the Debian security tracker")
	asJSON := c.Switch("json", "print the evidence as JSON")
	c.Run = func(ctx context.Context, words []string) error {
		return WithSignals(ctx, func(ctx context.Context) error {
			spec, err := images.LoadBuilt(words[0])
			if err != nil {
				return err
			}
			policies, err := policiesFor(spec, *policy)
			if err != nil {
				return err
			}
			r, err := evidence.Examine(ctx, options.BoardDir(spec), evidence.Options{Signers: *signers, Since: *since, Tracker: *tracker, Policies: policies})
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
	}
	return c
}

// policiesFor returns the policies of the board and of the environment, and the one in file, if
// given.
func policiesFor(spec images.Spec, file string) ([]evidence.Policy, error) {
	all, err := evidence.PoliciesOf(spec)
	if err != nil || file == "" {
		return all, err
	}
	p, err := evidence.ReadPolicy(file)
	return append(all, p), err
}

func signCommand() *Command {
	c := New("sign TARGET", "Sign an artifact, after a proof that its files belong together")
	c.Long = `TARGET is a board that is built, or the folder of an artifact. The signature is the file
artifact.json.sig, as "ssh-keygen -Y sign -n file" makes it. artifact.json has the digests of all
other files. A new build removes the signature.`
	c.exits = []exit{{4, "files or provenance do not belong together; nothing is signed"}}
	c.Example = `slipway sign orin-lab --key=~/.ssh/id_release.pub
slipway sign build/orin-lab --key=release.pub`
	key := c.Text("key=FILE", "", "a private key without a passphrase, or a public key whose private half ssh-agent or a token has")
	c.check = func([]string) error {
		if *key == "" {
			return errors.New("--key is missing")
		}
		return nil
	}
	c.Run = func(ctx context.Context, words []string) error {
		return WithSignals(ctx, func(ctx context.Context) error {
			folder, err := artifactFolder(words[0])
			if err != nil {
				return err
			}
			path, err := evidence.Sign(ctx, folder, *key)
			if err == nil {
				_, err = fmt.Fprintf(stdout, "signed: %s\n", path)
			}
			return err
		})
	}
	return c
}

// artifactFolder returns the folder of an artifact: the build folder of a board, or target itself.
func artifactFolder(target string) (string, error) {
	spec, err := images.LoadBuilt(target)
	if err != nil {
		return "", err
	}
	return options.BoardDir(spec), nil
}

func verifyCommand() *Command {
	c := New("verify FILE...", "Verify signed files, such as a release of Slipway")
	c.Long = `The list of digests, SHA256SUMS, is in the folder of the files. Its signature is SHA256SUMS.sig, which
"ssh-keygen -Y sign -n file" makes. Slipway verifies the signature, then the digest of each
file. With a folder, it verifies all files in it and in its list. A missing file, or a file that the
list does not name, is an error.

The signers are the lines of a file of allowed signers, as ssh-keygen(1) describes it. A
minisign public key and a GPG keyring work too. Slipway refuses a list of signers in the folder
of the files, or below it, because it proves nothing.`
	c.Example = `slipway verify slipway_0.1.0_amd64.deb
slipway verify ~/Downloads/slipway --signers=keys/allowed_signers
slipway verify ~/Downloads/slipway --json`
	signers := c.Text("signers=FILE", "", "who may sign (or SLIPWAY_SIGNERS); ~/.config/slipway/allowed_signers if not given")
	asJSON := c.Switch("json", "print the verified files and their signers as JSON")
	c.Run = func(ctx context.Context, words []string) error {
		return WithSignals(ctx, func(ctx context.Context) error {
			report, err := trust.VerifyFiles(ctx, words, *signers)
			if *asJSON {
				return errors.Join(err, printJSON(report))
			}
			report.Show(stdout)
			return err
		})
	}
	return c
}
