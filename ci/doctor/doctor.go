// Package doctor checks this machine, with a board's project, before the build does. Each finding
// names a fault, the reason why it matters, and the fix. The package changes nothing.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	_ "slipway/ci/offload" // registers sections of suites
	"slipway/ci/suite"
	"slipway/images"
	"slipway/images/lint"
	"slipway/layers"
	"slipway/layers/host"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// The states of a finding.
const (
	OK      = "ok"
	Warning = "warning" // the build begins, and may be slow or fail late
	Stops   = "stops"   // the build would stop at it
)

// Finding is the result of one check.
type Finding struct {
	What  string `json:"what"`
	State string `json:"state"`
	Saw   string `json:"saw"`
	Why   string `json:"why,omitempty"`
	Fix   string `json:"fix,omitempty"`
}

func okFinding(what, saw string, args ...any) Finding {
	return Finding{What: what, State: OK, Saw: fmt.Sprintf(saw, args...)}
}

// errNotReady means that a build would stop.
var errNotReady = errors.New("this machine is not ready")

// Options says what to check.
type Options struct {
	Build images.Options // with Offline no server is asked
	JSON  bool
}

// boardBuild is the board, project and options that the checks look at.
type boardBuild struct {
	Options
	spec    images.Spec
	project layers.Project // of a board that bitbake builds
	ws      layers.Workspace
	layers  lint.Layers
}

// bitbakeDir returns the build folder of bitbake.
func (p boardBuild) bitbakeDir() string { return images.BitbakeDirOf(p.ws) }

// siteConf returns the path of bitbake's site.conf, which only the user writes.
func (p boardBuild) siteConf() string { return filepath.Join(p.bitbakeDir(), "conf", "site.conf") }

// check looks at one thing on this machine. An error of the check itself is a finding too.
type check func(context.Context, boardBuild) []Finding

// All builds get baseChecks, bitbake's also bitbakeChecks. projectChecks need a loaded project.
var (
	baseChecks    = []check{checkClone, checkPackages, checkDisk, checkMemory, checkBuildable, checkSuites}
	bitbakeChecks = []check{checkUser, checkUmask, checkFileSystem}
	projectChecks = []check{checkTools, checkUserNamespaces, checkWatches, checkPath, checkOtherBuilds, checkRepositories, checkConnectivity, checkNVIDIA, checkManualDownloads, checkProxies, checkLayers, checkConfiguration}
)

// Look runs all checks for a board's build and writes the findings. It returns an error if the
// build would stop. If the project cannot be loaded, that is a finding, and Look skips its checks.
func Look(ctx context.Context, w io.Writer, spec images.Spec, opt Options) error {
	p := boardBuild{Options: opt, spec: spec}
	looks := baseChecks
	var findings []Finding
	if spec.Debian == nil {
		looks = slices.Concat(baseChecks, bitbakeChecks)
		var err error
		if p.project, p.ws, err = images.Project(ctx, spec, opt.Build); err != nil {
			findings = append(findings, unreadProject(spec, p.project, err))
		} else {
			p.layers = lint.LayersOf(p.project, p.ws)
			looks = append(looks, projectChecks...)
		}
	}
	findings = append(findings, runChecks(ctx, p, looks)...)
	if ctx.Err() != nil { // a check that was cut off is no finding
		return fmt.Errorf("doctor %s was stopped: %w", spec.Board, context.Cause(ctx))
	}
	stopped, err := Write(w, findings, opt.JSON)
	if err == nil && stopped > 0 {
		err = fmt.Errorf("%w for %s: the build would stop at %d of the findings\nnext: doctor %s  # after the lines below each STOP", errNotReady, spec.Board, stopped, plaintext.Quote(spec.TypedName()))
	}
	return err
}

// unreadProject returns the finding for an unreadable project, a warning if a checkout is missing.
func unreadProject(spec images.Spec, partial layers.Project, err error) Finding {
	if errors.Is(err, layers.ErrNotHere) {
		why := "what it is built of was not looked at"
		if partial.BuildSystem == "" {
			why += "; the checks are those of OpenEmbedded, and Isar needs other things"
		}
		return Finding{"project", Warning, err.Error(), why, host.ProgramName() + " layers checkout " + plaintext.Quote(spec.TypedName()) + ", with a network"}
	}
	saw, next, found := strings.Cut(err.Error(), "\nnext: ")
	if !found || strings.HasPrefix(next, "layers dump ") { // which only reads the file again
		next = "correct the file"
	}
	return Finding{"project", Stops, saw, "the build reads it first", next}
}

// Conf checks only the names in a bitbake configuration file against a branch of meta-tegra, and
// writes the findings. It returns an error if bitbake would stop at one.
func Conf(w io.Writer, file, branch string, asJSON bool) error {
	l, err := lint.Branch(branch)
	if err != nil {
		return err
	}
	if file == "" {
		return errors.New("--conf is missing: the local.conf, or other configuration, to look at for --branch=" + branch)
	}
	src, err := lint.Read(file)
	if err != nil {
		return err
	}
	found, err := lint.Check([]lint.Source{src}, l)
	if err != nil {
		return err
	}
	stopped, err := Write(w, lintFindings(found, withoutCheckouts), asJSON)
	if err == nil && stopped > 0 {
		err = fmt.Errorf("%s: bitbake on %s would stop at %d of the findings", file, branch, stopped)
	}
	return err
}

// runChecks runs all checks at once, because some wait for servers, and returns findings in order.
func runChecks(ctx context.Context, p boardBuild, looks []check) []Finding {
	step := progress.Start(ctx, "doctor", int64(len(looks)), progress.Tasks)
	defer func() { step.End(fmt.Sprintf("%d checks", len(looks)), context.Cause(ctx)) }()
	found := make([][]Finding, len(looks))
	var g errgroup.Group
	for i, l := range looks {
		g.Go(func() error {
			found[i] = l(ctx, p)
			step.Add(1)
			return nil
		})
	}
	_ = g.Wait() // a look that fails says so in its finding
	return slices.Concat(found...)
}

// Write writes the findings as text or JSON, and returns how many would stop the build.
func Write(w io.Writer, findings []Finding, asJSON bool) (stopped int, err error) {
	for _, f := range findings {
		if f.State == Stops {
			stopped++
		}
		if !asJSON {
			f.writeText(w)
		}
	}
	if !asJSON {
		return stopped, nil
	}
	return stopped, plaintext.WriteJSON(w, findings)
}

var marks = map[string]string{OK: "ok", Warning: "WARN", Stops: "STOP"}

var colours = map[string]plaintext.Colour{OK: plaintext.Good, Warning: plaintext.Doubt, Stops: plaintext.Bad}

// writeText writes the finding's state, subject and observation, then below the reason and the fix.
func (f Finding) writeText(w io.Writer) {
	mark := colours[f.State].On(w, fmt.Sprintf("%-4s", marks[f.State]))
	fmt.Fprintf(w, "  %s  %-13s %s\n", mark, f.What, indentText(f.Saw))
	for _, text := range []string{f.Why, f.Fix} {
		if text != "" {
			fmt.Fprintf(w, "        %s\n", indentText(text))
		}
	}
}

// indentText indents all lines but the first, trims the text, and removes control characters.
func indentText(text string) string {
	return strings.ReplaceAll(strings.TrimSpace(plaintext.Printable(text)), "\n", "\n        ")
}

// checkSuites loads the board's suites, to warn of a mistake in them before the build. A board
// without a name of its own, such as a project file, may have none.
func checkSuites(_ context.Context, p boardBuild) []Finding {
	f := Finding{What: "suites", Why: "smoke proves the board by them", Fix: suite.SuitesNext}
	if len(p.spec.Suites) == 0 && p.spec.TypedName() != p.spec.Board {
		return []Finding{okFinding("suites", "none: smoke --suite names them")}
	}
	if _, err := suite.LoadAll(p.spec); err != nil {
		f.State, f.Saw = Warning, err.Error()
		return []Finding{f}
	}
	return []Finding{okFinding("suites", "%s", strings.Join(p.spec.Suites, ", "))}
}
