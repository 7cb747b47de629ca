package builder

import (
	"context"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"slipway/images"
	"slipway/layers"
	"slipway/layers/plaintext"
)

// CheckoutLayers fetches a board's layers, checks out the commits that its
// project file names, and writes bitbake's conf folder for them.
func CheckoutLayers(ctx context.Context, spec images.Spec, opt images.Options) error {
	p, ws, err := images.Project(ctx, spec, opt)
	if err != nil {
		return err
	}
	return layers.Checkout(ctx, p, ws)
}

// WithLayers returns the first board that is built of layers, for commands that need any of them.
func WithLayers() (images.Spec, error) {
	return images.First("is built of layers", func(s images.Spec) bool { return s.Debian == nil })
}

// LockLayers writes the commits of a board's layers to the lock file beside its project file.
// Existing pins stay, except those of the repositories in update: see layers.Lock.
func LockLayers(ctx context.Context, spec images.Spec, opt images.Options, update []string) error {
	p, ws, err := images.Project(ctx, spec, opt)
	if err != nil {
		return err
	}
	return layers.Lock(ctx, p, ws, update)
}

// DumpLayers writes a board's project file merged with all that it includes, as YAML or JSON.
func DumpLayers(ctx context.Context, w io.Writer, spec images.Spec, opt images.Options, asJSON bool) error {
	p, _, err := images.Project(ctx, spec, opt)
	if err != nil {
		return err
	}
	dump := layers.Dump
	if asJSON {
		dump = layers.DumpJSON
	}
	flat, err := dump(p)
	if err != nil {
		return err
	}
	_, err = w.Write(flat)
	return err
}

// LayerStatus writes, as a table or JSON, how a board's checkouts compare with its project file.
func LayerStatus(ctx context.Context, w io.Writer, spec images.Spec, opt images.Options, asJSON bool) error {
	p, ws, err := images.Project(ctx, spec, opt)
	if err != nil {
		return err
	}
	states, err := layers.Status(ctx, p, ws)
	if err != nil {
		return err
	}
	rows := make([]layerRow, len(states))
	for i, s := range states {
		rows[i] = layerRow{s.Repo.ID, s.Word(), s.Head, s.Wanted, s.Branch, s.Edited, s.Repo.Local, s.Patched, s.Ahead, s.Behind, s.Dir}
	}
	if asJSON {
		return plaintext.WriteJSON(w, rows)
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "REPOSITORY\tSTATE\tHEAD\tWANTED\tFOLDER")
	for _, r := range rows {
		fmt.Fprintf(tw, "%s\t%s\t%.12s\t%.12s\t%s\n", r.Repository, r.State, r.Head, r.Wanted, r.Folder)
	}
	return tw.Flush()
}

// layerRow is a row of LayerStatus: one checkout.
type layerRow struct {
	Repository string `json:"repository"`
	State      string `json:"state"`
	Head       string `json:"head,omitempty"`
	Wanted     string `json:"wanted,omitempty"`
	Branch     string `json:"branch,omitempty"`
	Edited     bool   `json:"edited"`
	Local      bool   `json:"local,omitempty"` // a folder of the user's in place of a checkout
	Patches    int    `json:"patches"`
	Ahead      int    `json:"ahead"`
	Behind     int    `json:"behind"`
	Folder     string `json:"folder"`
}

// How many commits of a repository are named: few for people, more for programs.
const (
	commitsShown  = 20
	commitsInJSON = 1000
)

// DiffLayers writes which layers moved, and up to 20 of their commits (1000 in JSON), between an
// older state of a board's project and this one. from is a project or lock file, or a commit,
// branch or tag of the repository that holds the project.
func DiffLayers(ctx context.Context, w io.Writer, spec images.Spec, opt images.Options, from string, asJSON bool) error {
	p, ws, err := images.Project(ctx, spec, opt)
	if err != nil {
		return err
	}
	older, err := olderProject(ctx, p, from, ws)
	if err != nil {
		return err
	}
	most := commitsShown
	if asJSON {
		most = commitsInJSON
	}
	moves, err := layers.Diff(ctx, older, p, ws, most)
	if err != nil {
		return err
	}
	if asJSON {
		return plaintext.WriteJSON(w, append([]layers.Move{}, moves...)) // a list, also if nothing moved
	}
	if len(moves) == 0 {
		fmt.Fprintf(w, "nothing moved since %s\n", from)
	}
	for _, m := range moves {
		writeMove(w, m)
	}
	return nil
}

// olderProject loads the project from the file from, or at the commit from if no such file exists.
func olderProject(ctx context.Context, p layers.Project, from string, ws layers.Workspace) (layers.Project, error) {
	if info, err := os.Stat(from); err == nil && !info.IsDir() {
		return layers.Load(ctx, from, ws)
	}
	return layers.LoadAt(ctx, p, from, ws)
}

// writeMove writes one repository's change of commit and the subjects of the commits between.
func writeMove(w io.Writer, m layers.Move) {
	switch {
	case m.Was != "" && m.From == "":
		fmt.Fprintf(w, "%s  pinned at %.12s, was %s of its server\n", m.ID, m.To, m.Was)
	case m.From == "":
		fmt.Fprintf(w, "%s  new, at %.12s\n", m.ID, m.To)
	case m.To == "":
		fmt.Fprintf(w, "%s  gone, was at %.12s\n", m.ID, m.From)
	case m.Unknown != "":
		fmt.Fprintf(w, "%s  %.12s..%.12s  the commits between are not to be had: %s\n", m.ID, m.From, m.To, m.Unknown)
	case m.Behind > 0:
		fmt.Fprintf(w, "%s  %.12s..%.12s  %d commits forward, %d back\n", m.ID, m.From, m.To, m.Ahead, m.Behind)
	default:
		fmt.Fprintf(w, "%s  %.12s..%.12s  %d commits\n", m.ID, m.From, m.To, m.Ahead)
	}
	for _, c := range m.Commits {
		fmt.Fprintf(w, "  %.12s  %s\n", c.Commit, c.Subject)
	}
	if more := m.Ahead - len(m.Commits); more > 0 && m.Unknown == "" {
		fmt.Fprintf(w, "  and %d more\n", more)
	}
}
