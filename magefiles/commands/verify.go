package commands

import (
	"context"
	"errors"

	"slipway/flash/trust"
)

func verifyCommand() *Command {
	c := New("verify FILE...", "Prove that files are those that somebody signed, as a release of Slipway")
	c.Long = `The list of digests, SHA256SUMS, is in the folder of the files. Its signature is SHA256SUMS.sig, which
"ssh-keygen -Y sign -n file" makes. Slipway verifies the signature, then the digest of each
file. With a folder, it verifies all files in it and in its list. A missing file, or a file that the
list does not name, is an error.

The signers are the lines of a file of allowed signers, as ssh-keygen(1) describes it. A
minisign public key and a GPG keyring do too. Slipway refuses a list that lies beside the
files, or in a folder below: it proves nothing.`
	c.Example = `slipway verify slipway_0.1.0_amd64.deb
slipway verify ~/Downloads/slipway --signers=keys/allowed_signers
slipway verify ~/Downloads/slipway --json`
	signers := c.Text("signers=FILE", "", "who may sign (or SLIPWAY_SIGNERS); ~/.config/slipway/allowed_signers if not given")
	asJSON := c.Switch("json", "print what was verified, and by whom, as JSON")
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
