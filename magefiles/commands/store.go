package commands

import (
	"context"
	"fmt"

	"slipway/flash/store"
)

func pushCommand() *Command {
	c := New("push ARTIFACT REFERENCE", "Put an artifact into a registry or a folder")
	c.Long = `ARTIFACT is a board that is built, or the folder of an artifact. REFERENCE is
HOST[:PORT]/REPOSITORY[:TAG] of an OCI registry, or a folder that begins with / ./ or ../ and
becomes an OCI image layout.

Slipway pushes artifact.json and the files that it lists. It also pushes the signature,
inputs.json and the report in build/reports if they are there. Only what the store does not have travels. The tags
come last. A file that is not what artifact.json says is refused, and nothing is tagged.

Without a tag, the tag is the board's name and the first 12 digits of the artifact's key.`
	c.Example = `slipway push orin-lab registry.example.com/lab/images
slipway push orin-lab registry.example.com/lab/images:v1.4 --tag=stable
slipway push build/orin-lab ./store`
	tags := c.Names("tag", "tags, with commas between them, beside that of REFERENCE")
	asJSON := c.Switch("json", "print what was pushed as JSON")
	c.Run = func(ctx context.Context, words []string) error {
		return WithSignals(ctx, func(ctx context.Context) error {
			folder, err := artifactFolder(words[0])
			if err != nil {
				return err
			}
			pushed, err := store.Push(ctx, folder, options.ReportsDir(), words[1], *tags)
			if err != nil {
				return err
			}
			if *asJSON {
				return printJSON(pushed)
			}
			pushed.Show(stdout)
			return nil
		})
	}
	return c
}

func pullCommand() *Command {
	c := New("pull REFERENCE", "Copy an artifact from a registry or a folder")
	c.Long = `REFERENCE is HOST[:PORT]/REPOSITORY:TAG, or FOLDER:TAG for a folder that begins with / ./ or
../. @sha256:DIGEST instead of a tag always means the same artifact.

A pull carries no report: "slipway store reports" does. Files that are there with their digests
stay. Each other file is proved before it gets its name.
artifact.json is written last. After a Ctrl-C or a broken connection, the same line goes on.`
	c.Example = `slipway pull registry.example.com/lab/images:v1.4
slipway pull registry.example.com/lab/images:v1.4 --into=/srv/released/orin-lab
slipway pull ./store:stable --json`
	into := c.Text("into=FOLDER", "", "the artifact's folder, new or not; build/BOARD if not given, which then must have no other artifact")
	asJSON := c.Switch("json", "print what was pulled as JSON")
	c.Run = func(ctx context.Context, words []string) error {
		return WithSignals(ctx, func(ctx context.Context) error {
			pulled, err := store.Pull(ctx, words[0], store.PullOptions{Into: *into, Below: options.Dir})
			if err != nil {
				return err
			}
			if *asJSON {
				return printJSON(pulled)
			}
			pulled.Show(stdout)
			return nil
		})
	}
	return c
}

func storeGroup() *Command {
	return newGroup("store", "See and clean what was pushed", storeListCommand(), storeReportsCommand(), storeCleanCommand())
}

func storeListCommand() *Command {
	c := New("list REPOSITORY", "List the artifacts of a registry's repository or a folder")
	c.Long = `It shows what each artifact says of itself, the newest first. "signed" says that there is a
signature. "slipway evidence" verifies it after a pull.`
	c.Example = `slipway store list registry.example.com/lab/images
slipway store list ./store --json`
	asJSON := c.Switch("json", "print the list as JSON")
	c.Run = func(ctx context.Context, words []string) error {
		return WithSignals(ctx, func(ctx context.Context) error {
			all, err := store.List(ctx, words[0])
			if err != nil {
				return err
			}
			if *asJSON {
				return printJSON(all)
			}
			return store.Show(stdout, all)
		})
	}
	return c
}

func storeReportsCommand() *Command {
	c := New("reports REPOSITORY", "Copy the reports of the newest artifacts")
	c.Long = `It copies report.json and artifact.json of the newest artifacts that have a report, each into a
folder of its own. No other file travels. It prints the folders, the oldest artifact first.`
	c.Example = `slipway store reports registry.example.com/lab/images --last=50
slipway store reports ./store --into=/tmp/reports --json`
	last := c.Number("last", 20, 1, "of so many artifacts; 20 if not given")
	into := c.Text("into=FOLDER", "reports", "where the folders are made; reports if not given")
	asJSON := c.Switch("json", "print the folders as JSON")
	c.Run = func(ctx context.Context, words []string) error {
		return WithSignals(ctx, func(ctx context.Context) error {
			folders, err := store.FetchReports(ctx, words[0], *last, *into)
			if err != nil {
				return err
			}
			if *asJSON {
				return printJSON(folders)
			}
			for _, folder := range folders {
				fmt.Fprintln(stdout, folder)
			}
			return nil
		})
	}
	return c
}

func storeCleanCommand() *Command {
	c := New("clean REPOSITORY", "Remove old artifacts from a registry's repository or a folder")
	c.Long = `Without --yes it shows what would go, and removes nothing. An artifact goes if --keep and --older
both let it go, and all of its tags do. A tag lets it go if --tags matches it. Without --tags,
only the tags that push makes do: an artifact that a person tagged stays.

In a folder, Slipway also removes the blobs that no manifest needs. In a registry it removes
manifests, and the registry's own collector frees the blobs.`
	c.Example = `slipway store clean registry.example.com/lab/images --keep=20  # show what would go
slipway store clean registry.example.com/lab/images --keep=20 --older=30d --yes
slipway store clean ./store --older=2w --tags='nightly-*' --yes`
	var opt store.CleanOptions
	keep := c.Number("keep", 0, 1, "so many of each board stay, the newest")
	older := parsed(c, "older", "AGE", "only artifacts that were built longer ago, such as 30d, 2w or 12h", store.ParseAge)
	tags := c.Names("tags", "patterns of the tags that let an artifact go, such as nightly-*, with commas between them")
	yes := c.Switch("yes", "remove; otherwise only show what would go")
	asJSON := c.Switch("json", "print what went and what stays as JSON")
	c.check = func([]string) error {
		opt = store.CleanOptions{Keep: *keep, Older: *older, Tags: *tags, Yes: *yes}
		return opt.Check()
	}
	c.Run = func(ctx context.Context, words []string) error {
		return WithSignals(ctx, func(ctx context.Context) error {
			cleaned, err := store.Clean(ctx, words[0], opt)
			if err != nil {
				return err
			}
			if *asJSON {
				return printJSON(cleaned)
			}
			return cleaned.Show(stdout)
		})
	}
	return c
}
