package source

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// stage is a folder whose packages may import those of its own level and below.
type stage struct {
	dir   string // below the module's root
	level int
	why   string // why it must not import from levels above
}

// The stages of the flow. If two match a path, the longer one applies.
var stages = []stage{
	{"layers/progress", 0, "every stage reports through it"},
	{"layers/run", 0, "every stage runs its programs through it"},
	{"layers/plaintext", 0, "every stage shows text through it"},
	{"layers/yaml", 0, "every stage reads its users' YAML through it"},
	{"layers/localfile", 0, "every stage reads its users' files through it"},
	{"layers/git", 0, "every stage may ask for the commit of a folder"},
	{"layers/htmlstyle", 0, "every stage may write a page"},
	{"flash/sealed", 0, "every stage keeps a file to what it proved through it"},
	{"layers/host", 0, "every stage may need packages of the host"},
	{"recipes", 0, "a program of a board is compiled without the rest"},
	{"layers", 1, "a checkout is the same for every image"},
	{"images", 2, "an image is built on machines that reach no board"},
	{"flash/boardssh", 3, "a connection serves whatever is done with a board"},
	{"flash/boardssh/files", 4, "files reach a board the same way, whatever they are for"},
	{"flash/boardssh/undo", 5, "a deploy can be undone on boards without containers"},
	{"flash/boardssh/container", 6, "it takes images from flash/oci"},
	{"flash/boardssh/update", 6, "an engine installs what flash writes elsewhere"},
	{"flash", 6, "a field engineer flashes what others built, without the suites"},
	{"flash/store", 6, "artifacts are kept on machines that flash nothing"},
	{"ci/report", 7, "a report is read where no board is"},
	{"ci/trends", 7, "a job compares the reports of others, without a board"},
	{"ci/plan", 7, "a pipeline asks it before any board is built or reached"},
	{"ci/rig", 7, "a rig is a machine, whatever runs on it"},
	{"ci/audit", 7, "it looks at a root file system, also of a board, and runs nothing there but tar"},
	{"ci/suite/match", 7, "it compares values, wherever they come from"},
	{"ci/suite", 9, "a check needs a connection alone"},
	{"ci/offload", 10, "its checks are some among others"},
	{"ci/doctor", 10, "it looks at this machine, before any board"},
	{"ci/reach", 10, "a board is reached the same way for every command"},
	{"ci/deploy", 11, "a deploy needs no build"},
	{"ci", 12, "the flow of one board runs from any program, not only from Mage"},
	{"ci/fleet", 13, "a fleet is many flows of one board"},
	{"ci/job", 14, "a job is commands for one board, of a fleet of one"},
	{"ci/hub/access", 15, "who asks a hub needs none of its engine"},
	{"ci/hub/artifacts", 16, "artifacts are kept without a look at jobs"},
	{"ci/hub", 16, "a hub keeps jobs, and works on no board"},
	{"ci/station", 16, "a station works on boards, and keeps nothing of other stations"},
	{"ci/hub/page", 17, "a hub works without its page"},
	{"ci/hub/health", 17, "what a hub lacks is found while none runs"},
	{"ci/hub/local", 18, "it only starts the others"},
	{"ci/dev", 19, "no command of users needs the tools of this repository"},
	{"magefiles", 20, "commands are the top"},
}

// stageOf returns the stage with the longest folder that contains the import path, or false.
func stageOf(path, module string) (stage, bool) {
	dir := strings.TrimPrefix(path, module+"/")
	var best stage
	for _, s := range stages {
		if (dir == s.dir || strings.HasPrefix(dir, s.dir+"/")) && len(s.dir) > len(best.dir) {
			best = s
		}
	}
	return best, best.dir != ""
}

// checkImports finds imports, also those of tests, from a higher level of the flow, and packages in
// no stage. It checks only the root's module.
func checkImports(ctx context.Context, t tree) ([]string, error) {
	packages, err := goList(ctx, t.root, nil, "./...")
	if err != nil {
		return nil, err
	}
	var found []string
	for _, p := range packages {
		from, ok := stageOf(p.ImportPath, t.module)
		if !ok {
			found = append(found, p.ImportPath+": in no stage; the stages are listed in ci/dev/source/imports.go")
			continue
		}
		all := slices.Sorted(slices.Values(slices.Concat(p.Imports, p.TestImports, p.XTestImports)))
		for _, path := range slices.Compact(all) {
			if !strings.HasPrefix(path, t.module+"/") {
				continue
			}
			if to, ok := stageOf(path, t.module); ok && to.level > from.level {
				found = append(found, fmt.Sprintf("%s imports %s: %s must not know of %s (%s)", p.ImportPath, path, from.dir, to.dir, from.why))
			}
		}
	}
	return found, nil
}
