package commands

import (
	"context"
	"fmt"
	"io"

	"slipway/flash/store"
)

// pushCommand returns the command push, which puts an artifact into an OCI registry or a folder.
func pushCommand() *Command {
	c := New("push ARTIFACT REFERENCE", "Put an artifact into a registry or a folder")
	c.Long = `ARTIFACT is a board that is built, or the folder of an artifact. REFERENCE is
HOST[:PORT]/REPOSITORY[:TAG] of an OCI registry, or a folder that begins with / ./ or ../ and
becomes an OCI image layout.

Slipway pushes artifact.json and the files that it lists. It also pushes the signature,
inputs.json and the report in build/reports, if they exist. It sends only files that the store does
not have, and sets the tags last. If a file differs from artifact.json, Slipway refuses it and sets
no tag.

Without a tag, the tag is the board's name and the first 12 digits of the artifact's key.`
	c.Example = `slipway push orin-lab registry.example.com/lab/images
slipway push orin-lab registry.example.com/lab/images:v1.4 --tag=stable
slipway push build/orin-lab ./store`
	tags := c.Names("tag", "tags, with commas between them, beside that of REFERENCE")
	asJSON := c.Switch("json", "print the pushed artifact as JSON")
	c.RunSignalled(func(ctx context.Context, words []string) error {
		spec, err := loadTarget(c.Command, words[0])
		if err != nil {
			return err
		}
		pushed, err := store.Push(ctx, options.BoardDir(spec), options.ReportsDir(), words[1], *tags)
		return printResult(pushed, err, *asJSON, pushed.Show)
	})
	return c
}

// pullCommand returns the command pull, which copies an artifact from a registry or a folder.
func pullCommand() *Command {
	c := New("pull REFERENCE", "Copy an artifact from a registry or a folder")
	c.Long = `REFERENCE is HOST[:PORT]/REPOSITORY:TAG, or FOLDER:TAG for a folder that begins with / ./ or
../. @sha256:DIGEST instead of a tag always means the same artifact.

A pull does not copy the report. "slipway store reports" copies reports. Files of the folder with
the right digest stay. Slipway proves each other file before the file gets its name, and writes
artifact.json last. After a Ctrl-C or a broken connection, repeat the command to continue.`
	c.Example = `slipway pull registry.example.com/lab/images:v1.4
slipway pull registry.example.com/lab/images:v1.4 --into=/srv/released/orin-lab
slipway pull ./store:stable --json`
	into := c.Text("into=FOLDER", "", "the artifact's folder, new or not; build/BOARD if not given, which then must have no other artifact")
	asJSON := c.Switch("json", "print the pulled artifact as JSON")
	c.RunSignalled(func(ctx context.Context, words []string) error {
		pulled, err := store.Pull(ctx, words[0], store.PullOptions{Into: *into, Below: options.Dir})
		return printResult(pulled, err, *asJSON, pulled.Show)
	})
	return c
}

func storeListCommand() *Command {
	c := New("list REPOSITORY", "List the artifacts of a registry's repository or a folder")
	c.Long = `It shows the description of each artifact, the newest first. "signed" means that a signature
exists. "slipway evidence" verifies it after a pull.`
	c.Example = `slipway store list registry.example.com/lab/images
slipway store list ./store --json`
	asJSON := c.Switch("json", "print the list as JSON")
	c.RunSignalled(func(ctx context.Context, words []string) error {
		all, err := store.List(ctx, words[0])
		return printResult(all, err, *asJSON, func(w io.Writer) error { return store.Show(w, all) })
	})
	return c
}

// storeReportsCommand returns the command store reports, which copies reports from a store.
func storeReportsCommand() *Command {
	c := New("reports REPOSITORY", "Copy the reports of the newest artifacts")
	c.Long = `It copies report.json and artifact.json of the newest artifacts that have a report, each into a
folder of its own. It copies no other file. It prints the folders, the oldest artifact first.`
	c.Example = `slipway store reports registry.example.com/lab/images --last=50
slipway store reports ./store --into=/tmp/reports --json`
	last := c.Number("last", 20, 1, "the number of artifacts; 20 if not given")
	into := c.Text("into=FOLDER", "reports", "the parent of these folders; reports if not given")
	asJSON := c.Switch("json", "print the folders as JSON")
	c.RunSignalled(func(ctx context.Context, words []string) error {
		folders, err := store.FetchReports(ctx, words[0], *last, *into)
		return printResult(folders, err, *asJSON, func(w io.Writer) error {
			for _, folder := range folders {
				fmt.Fprintln(w, folder)
			}
			return nil
		})
	})
	return c
}

func storeCleanCommand() *Command {
	c := New("clean REPOSITORY", "Remove old artifacts from a registry's repository or a folder")
	c.Long = `Without --yes it only lists artifacts, and removes nothing. The newest artifacts of
each board stay, as many as --keep says. An artifact that a person tagged stays too.

In a folder, Slipway also removes the blobs that no manifest needs. In a registry it removes
manifests, and the registry's own collector frees the blobs.`
	c.Example = `slipway store clean registry.example.com/lab/images --keep=20  # list what it would remove
slipway store clean ./store --keep=3 --yes`
	var opt store.CleanOptions
	keep := c.Number("keep", 0, 1, "keep the newest ones of each board, this many")
	yes := c.Switch("yes", "remove; otherwise only list them")
	asJSON := c.Switch("json", "print the removed and the kept artifacts as JSON")
	c.check = func([]string) error {
		opt = store.CleanOptions{Keep: *keep, Yes: *yes}
		return opt.Check()
	}
	c.RunSignalled(func(ctx context.Context, words []string) error {
		cleaned, err := store.Clean(ctx, words[0], opt)
		return printResult(cleaned, err, *asJSON, cleaned.Show)
	})
	return c
}
