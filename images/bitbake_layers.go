package images

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"

	"slipway/layers"
	"slipway/layers/progress"
)

// CheckoutLayers fetches a board's layers and checks out the commits that its
// project file names.
func CheckoutLayers(ctx context.Context, spec Spec, opt Options) error {
	p, err := loadProject(ctx, spec, opt)
	if err != nil {
		return err
	}
	return layers.Checkout(ctx, p, opt.workspace(spec))
}

// LockLayers pins the branches of a board's layers to where they are now, in the
// lock file beside its project file.
func LockLayers(ctx context.Context, spec Spec, opt Options) error {
	p, err := loadProject(ctx, spec, opt)
	if err != nil {
		return err
	}
	return layers.Lock(ctx, p, opt.workspace(spec))
}

// DumpLayers writes a board's project file with all that it includes.
func DumpLayers(ctx context.Context, w io.Writer, spec Spec, opt Options) error {
	p, err := loadProject(ctx, spec, opt)
	if err != nil {
		return err
	}
	flat, err := layers.Dump(p)
	if err != nil {
		return err
	}
	_, err = w.Write(flat)
	return err
}

// LayerStatus writes how a board's checkouts compare with its project file.
func LayerStatus(ctx context.Context, w io.Writer, spec Spec, opt Options, asJSON bool) error {
	p, err := loadProject(ctx, spec, opt)
	if err != nil {
		return err
	}
	states, err := layers.Status(ctx, p, opt.workspace(spec))
	if err != nil {
		return err
	}
	if asJSON {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(states)
	}
	return layerTable(w, states)
}

func layerTable(w io.Writer, states []layers.State) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "REPOSITORY\tSTATE\tHEAD\tFOLDER")
	for _, s := range states {
		fmt.Fprintf(tw, "%s\t%s\t%.12s\t%s\n", s.Repo.ID, s.Word(), s.Head, s.Dir)
	}
	return tw.Flush()
}

// loadProject reads a board's project file. It lies in the clone and not in this
// binary, because it names layers and recipes that lie there too.
func loadProject(ctx context.Context, spec Spec, opt Options) (layers.Project, error) {
	if spec.Debian != nil {
		return layers.Project{}, fmt.Errorf("board %s is made of Debian packages: it has no layers", spec.Board)
	}
	path, err := projectFile(spec)
	if err != nil {
		return layers.Project{}, err
	}
	p, err := layers.Load(ctx, path, opt.workspace(spec))
	for _, w := range p.Warnings {
		progress.Start(ctx, "warning", 0, "").End(w, nil)
	}
	return p, err
}

// projectFiles are the names of a board's project file: kas's or bitbake-setup's.
var projectFiles = []string{"kas.yml", "setup.conf.json"}

// projectFile finds the board's project file, or that of a board which it
// extends, in the clone around the current folder.
func projectFile(spec Spec) (string, error) {
	at, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; at = filepath.Dir(at) {
		for _, board := range slices.Backward(spec.lineage) {
			for _, name := range projectFiles {
				if path := filepath.Join(at, "images/boards", board, name); onDisk(path) {
					return path, nil
				}
			}
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("board %s is built from layers and recipes in Slipway's clone, and this folder is in none: clone it and run this there", spec.Board)
		}
	}
}
