package commands

import (
	"context"
	"errors"
	"os"

	"slipway/ci/plan"
	"slipway/ci/report"
	"slipway/images"
)

// ciPlanCommand returns the command ci plan, which lists the boards to build for a change.
func ciPlanCommand() *Command {
	c := New("plan", "List the boards that a change makes necessary to build, with the reasons")
	c.Long = `The change is what differs between the last commit that REF and this one have in common, and the
work tree, with files that git does not know yet. With --to it ends at that commit.

A board is built again if one of these changed:
- its board.yml or a file of its folder, or of a board that it extends
- the combined content of its project files, with their includes and lock files
- a file of its layers in this repository, unless its last build left build/BOARD/inputs.json, which
  shows that it did not read the file
- the pipeline, or the folder ci

If only the suites of a board changed, the board is tested. If Slipway cannot decide, it takes the
board. With 40 zeros, which is git's name for no commit, --from takes all boards.

matrix has the jobs that need no board: up for a virtual board, build for others. lab has those on
the boards of --lab: flash, or smoke if only suites changed. If a CI server reads a summary,
Slipway adds the plan with all reasons to it.`
	c.Example = `slipway ci plan --from=main
slipway ci plan --from=v1.0 --to=v1.1 --json
slipway ci plan --from=origin/main --github --lab=orin-lab,orin-rack`
	from := c.Text("from=REF", "", "the commit, branch or tag before the change")
	to := c.Text("to=REF", "", "the commit after the change; the work tree if not given")
	asJSON := c.Switch("json", "print the plan as JSON, with a matrix of jobs")
	var lab []string
	c.addFlag("lab", "boards that a machine of your lab has, with commas between them; may be empty", "BOARDS", func(text string) error {
		lab = splitList(text)
		return nil
	})
	github := c.Switch("github", "add any=true|false, matrix={...}, lab_any and lab to the file GITHUB_OUTPUT; print them without it")
	gitlab := c.Text("gitlab=FILE", "", "write a child pipeline for GitLab, which includes "+plan.GitLabJobs)
	c.check = func([]string) error {
		if *from == "" {
			return errors.New("--from is missing: it names the commit before the change")
		}
		return c.refuseTogether("json", "github")
	}
	c.RunSignalled(func(ctx context.Context, _ []string) error {
		folder, err := images.OwnFolder()
		if err == nil && folder == "" {
			err = errors.New("no project: neither this folder nor one above has boards/BOARD/board.yml\nnext: init lab --like=virt")
		}
		if err != nil {
			return err
		}
		p, err := plan.Make(ctx, folder, plan.Options{From: *from, To: *to, Lab: lab, Images: options})
		if err == nil {
			err = report.AddSummary(p.Markdown)
		}
		if err == nil && *gitlab != "" {
			err = p.SaveGitLab(*gitlab)
		}
		switch {
		case err != nil:
			return err
		case *github:
			return p.SaveGitHub(stdout, os.Getenv("GITHUB_OUTPUT"))
		case *asJSON:
			return printJSON(p)
		}
		return p.Write(stdout)
	})
	return c
}
