// Package doctor looks at this machine, and at what a board is built of, before the
// board's build does. Each finding says what, why it matters and what fixes it. It
// changes nothing.
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

	"slipway/images"
	"slipway/images/lint"
	"slipway/layers"
	"slipway/layers/plaintext"
)

// How a finding stands.
const (
	OK      = "ok"
	Warning = "warning" // the build begins, and may be slow or fail late
	Stops   = "stops"   // the build would stop at it
)

// Finding is one thing that was looked at.
type Finding struct {
	What  string `json:"what"`
	State string `json:"state"`
	Saw   string `json:"saw"`
	Why   string `json:"why,omitempty"`
	Fix   string `json:"fix,omitempty"`
}

func ok(what, saw string, args ...any) Finding {
	return Finding{What: what, State: OK, Saw: fmt.Sprintf(saw, args...)}
}

// errNotReady is what Look ends with where a build would stop.
var errNotReady = errors.New("this machine is not ready")

// Options says what to look at.
type Options struct {
	Build images.Options // with Offline no server is asked
	JSON  bool
}

// patient is what the findings are about.
type patient struct {
	Options
	spec    images.Spec
	project layers.Project // of a board that bitbake builds
	ws      layers.Workspace
	layers  lint.Layers
}

// bitbake is the folder that bitbake works in.
func (p patient) bitbake() string { return images.BitbakeDirOf(p.ws) }

// siteConf is the file of the user's own settings, which nothing else writes.
func (p patient) siteConf() string { return filepath.Join(p.bitbake(), "conf", "site.conf") }

type look func(context.Context, patient) []Finding

// Every build needs the first ones; what bitbake builds needs the others as well. The
// last ones look at the project.
var (
	always      = []look{clone, packages, disk, memory, buildable}
	withBitbake = []look{user, umask, fileSystem}
	withProject = []look{tools, userNamespaces, watches, path, running, repositories, connectivity, nvidia, manualDownloads, proxies, configuration}
)

// Look looks at what a board's build and tests need of this machine, and writes what
// it found. It ends with an error where the build would stop.
func Look(ctx context.Context, w io.Writer, spec images.Spec, opt Options) error {
	p := patient{Options: opt, spec: spec}
	looks := always
	var findings []Finding
	if spec.Debian == nil {
		looks = slices.Concat(always, withBitbake)
		var err error
		if p.project, p.ws, err = images.Project(ctx, spec, opt.Build); err != nil {
			findings = append(findings, unread(spec, err))
		} else {
			p.layers = lint.LayersOf(p.project, p.ws)
			looks = append(looks, withProject...)
		}
	}
	stopped, err := write(w, append(findings, all(ctx, p, looks)...), opt.JSON)
	if err == nil && stopped > 0 {
		err = fmt.Errorf("%w for %s: the build would stop at %d of the findings", errNotReady, spec.Board, stopped)
	}
	return err
}

func unread(spec images.Spec, err error) Finding {
	if errors.Is(err, layers.ErrNotHere) {
		return Finding{"project", Warning, err.Error(), "what it is built of was not looked at", "go tool mage layers:checkout " + spec.Board + ", with a network"}
	}
	return Finding{"project", Stops, err.Error(), "the build reads it first", "fix the file"}
}

// Conf looks at a file of configuration alone, for a branch of meta-tegra.
func Conf(w io.Writer, file, branch string, asJSON bool) error {
	l, err := lint.Branch(branch)
	if err != nil {
		return err
	}
	if file == "" {
		return errors.New("-conf is missing: the local.conf, or other configuration, to look at for -branch=" + branch)
	}
	src, err := lint.Read(file)
	if err != nil {
		return err
	}
	found, err := lint.Check([]lint.Source{src}, l)
	if err != nil {
		return err
	}
	stopped, err := write(w, linted(found, withoutCheckouts), asJSON)
	if err == nil && stopped > 0 {
		err = fmt.Errorf("%s: bitbake on %s would stop at %d of the findings", file, branch, stopped)
	}
	return err
}

// all looks at everything side by side: some of it waits for servers.
func all(ctx context.Context, p patient, looks []look) []Finding {
	found := make([][]Finding, len(looks))
	var g errgroup.Group
	for i, l := range looks {
		g.Go(func() error {
			found[i] = l(ctx, p)
			return nil
		})
	}
	_ = g.Wait() // a look that fails says so in its finding
	return slices.Concat(found...)
}

// write returns how many findings the build would stop at.
func write(w io.Writer, findings []Finding, asJSON bool) (stopped int, err error) {
	for _, f := range findings {
		if f.State == Stops {
			stopped++
		}
		if !asJSON {
			f.print(w)
		}
	}
	if !asJSON {
		return stopped, nil
	}
	return stopped, plaintext.WriteJSON(w, findings)
}

var marks = map[string]string{OK: "ok", Warning: "WARN", Stops: "STOP"}

func (f Finding) print(w io.Writer) {
	fmt.Fprintf(w, "  %-4s  %-13s %s\n", marks[f.State], f.What, indented(f.Saw))
	for _, text := range []string{f.Why, f.Fix} {
		if text != "" {
			fmt.Fprintf(w, "        %s\n", indented(text))
		}
	}
}

// indented keeps a text of several lines under its finding. What comes from outside
// may hold control characters.
func indented(text string) string {
	return strings.ReplaceAll(strings.TrimSpace(plaintext.Printable(text)), "\n", "\n        ")
}
