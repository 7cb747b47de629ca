package commands

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/renameio/v2"

	"slipway/ci/report"
	"slipway/ci/trends"
	"slipway/flash/store"
)

// trendsCommand returns the command trends, which finds regressions in the reports of runs.
func trendsCommand() *Command {
	c := New("trends [FOLDER...]", "Find regressions over the runs of a branch")
	c.Long = `FOLDER... are folders with the reports of earlier runs; build if none is given. Each folder in them
that has report.json, artifact.json or both is a run. Slipway compares:
- build time, cache hits, and the sizes of images
- boot time, and the metrics of suites
- checks: which began to fail, and which pass and fail by turns

A change needs 4 runs after it. It must be larger than the noise, and 5 % or more. Slipway names the
commits around it, of the project's own repository. ci/trends.md explains how it decides.`
	c.exits = []exit{{4, "with --fail: there is a regression"}}
	c.Example = `slipway trends
slipway trends runs --branch=main --html=trends.html --fail
slipway trends runs --board=orin-lab --last=50 --json
slipway trends --store=registry.example.com/lab/images --html=trends.html`
	from := c.Text("store=REPOSITORY", "", "also compare the reports in this store, see push")
	last := c.Number("last", 100, 1, fmt.Sprintf("how many runs of each device to compare, at most %d (100 if not given)", trends.MaxLast))
	branch := c.Text("branch=NAME", "", "compare runs of this branch; the one with the most runs if not given")
	board := c.Text("board=BOARD", "", "compare only runs of this board")
	html := c.Text("html=FILE", "", "write a page, which opens without a network")
	asJSON := c.Switch("json", "print everything as JSON")
	fail := c.Switch("fail", "exit with status 4 if there is a regression")
	c.check = func(words []string) error {
		if len(words) > 1 && slices.Contains(words, "") {
			return errors.New("a word is empty; want the name of a folder")
		}
		if *last > trends.MaxLast {
			return fmt.Errorf("--last=%d: want at most %d", *last, trends.MaxLast)
		}
		return nil
	}
	c.RunSignalled(func(ctx context.Context, words []string) error {
		folders, err := reportFolders(ctx, words, *from, *last)
		if err != nil {
			return err
		}
		runs, err := trends.Read(ctx, folders)
		if err != nil {
			return err
		}
		found, err := trends.Of(runs, trends.Options{Branch: *branch, Board: *board, Last: *last})
		if err != nil {
			return err
		}
		if err := showTrends(found, *html, *asJSON); err != nil || !*fail {
			return err
		}
		return report.Because(ctx, report.ErrFailed, found.Err())
	})
	return c
}

// reportFolders returns the folders words. With from, it copies the reports of that store's last
// artifacts into the cache and adds their folders. With neither, it returns the build folder.
func reportFolders(ctx context.Context, words []string, from string, last int) ([]string, error) {
	folders := slices.DeleteFunc(slices.Clone(words), func(word string) bool { return word == "" })
	if from != "" {
		fetched, err := store.FetchReports(ctx, from, last, options.ReportCacheDir(from))
		return append(folders, fetched...), err
	}
	if len(folders) == 0 {
		folders = []string{options.Dir}
	}
	return folders, nil
}

// showTrends writes the page html, if given, and prints the trends as text or JSON.
func showTrends(t trends.Trends, html string, asJSON bool) error {
	if html != "" {
		page, err := t.Page()
		if err != nil {
			return err
		}
		if err := renameio.WriteFile(html, page, 0o644); err != nil {
			return fmt.Errorf("write the page: %w", err)
		}
	}
	if asJSON {
		return printJSON(t)
	}
	err := t.Write(stdout)
	if html != "" && err == nil {
		_, err = fmt.Fprintf(stdout, "page: %s\n", html)
	}
	return err
}
