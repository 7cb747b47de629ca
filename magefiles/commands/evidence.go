package commands

import (
	"context"
	"errors"
	"fmt"
	"os"

	"slipway/ci/report"
	"slipway/flash/evidence"
	"slipway/images"
	"slipway/layers/plaintext"
)

func evidenceCommand() *Command {
	c := New("evidence TARGET", "Show who built and signed an artifact, what it is made of, and its known flaws")
	c.Long = `TARGET is a board that is built, or the folder of an artifact. Slipway reads:
- the digests of all files
- the signature of artifact.json, which "sign" makes
- the provenance: an in-toto statement, which must name the same files
- the bill of material: SPDX 2 or 3, CycloneDX, or dpkg's list of packages
- the findings of Yocto's CVE check, with --since those that an earlier artifact does not have

What does not belong together is an error.`
	c.exits = []exit{{4, "files, signature or provenance do not belong together"}}
	c.Example = `slipway evidence isar-amd64
slipway evidence build/orin-lab --signers=keys/allowed_signers --since=/srv/released/orin-lab
slipway evidence build/orin-lab --json`
	signers := c.Text("signers=FILE", "", "who may sign (or SLIPWAY_SIGNERS); ~/.config/slipway/allowed_signers if not given")
	since := c.Text("since=FOLDER", "", "an earlier artifact of the board")
	asJSON := c.Switch("json", "print the evidence as JSON")
	c.Run = func(ctx context.Context, words []string) error {
		return WithSignals(ctx, func(ctx context.Context) error {
			folder, err := artifactFolder(words[0])
			if err != nil {
				return err
			}
			r, err := evidence.Examine(ctx, folder, evidence.Options{Signers: *signers, Since: *since})
			if err != nil {
				return fmt.Errorf("evidence %s: %w", words[0], err)
			}
			if *asJSON {
				err = plaintext.WriteJSON(os.Stdout, r)
			} else {
				r.Show(os.Stdout)
			}
			return errors.Join(err, report.Because(ctx, report.ErrFailed, r.Err()))
		})
	}
	return c
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
				_, err = fmt.Printf("signed: %s\n", path)
			}
			return err
		})
	}
	return c
}

// artifactFolder returns the folder of the artifact of a board, or a folder itself.
func artifactFolder(target string) (string, error) {
	spec, err := images.LoadBuilt(target)
	if err != nil {
		return "", err
	}
	return options.BoardDir(spec), nil
}
