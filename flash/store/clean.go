package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"slipway/layers/host"
	"slipway/layers/plaintext"
)

// CleanOptions says which artifacts Clean removes. One with a tag not made by push always stays.
type CleanOptions struct {
	Keep int  // so many of each board stay, the newest
	Yes  bool // remove; otherwise only say what would go
}

// Check returns an error without Keep, because only artifacts with a person's tag would stay.
func (o CleanOptions) Check() error {
	if o.Keep <= 0 {
		return errors.New("--keep is missing: say how many artifacts of each board stay")
	}
	return nil
}

// Cleaned is the result of Clean, or of its dry run.
type Cleaned struct {
	Store      string  `json:"store"`
	Removed    bool    `json:"removed"` // otherwise it was a dry run
	Gone       []Entry `json:"gone"`
	Kept       []Kept  `json:"kept"`
	FreedBytes int64   `json:"freedBytes"` // in a folder
	IsFolder   bool    `json:"isFolder"`
	isHub      bool
}

// Kept is an artifact that stays.
type Kept struct {
	Entry
	Why string `json:"why"`
}

// Clean removes artifacts from a store by the rules in opt, and from a folder also the blobs that
// nothing needs. Without opt.Yes it only lists them.
func Clean(ctx context.Context, reference string, opt CleanOptions) (Cleaned, error) {
	if err := opt.Check(); err != nil {
		return Cleaned{}, err
	}
	actions := toPull
	if opt.Yes {
		actions = toClean
	}
	s, place, err := openWhole(reference, actions)
	if err != nil {
		return Cleaned{}, err
	}
	defer s.close()
	c := Cleaned{Store: place.String(), Gone: []Entry{}, Kept: []Kept{}, IsFolder: place.Folder != "", isHub: place.Hub != nil}
	all, err := list(ctx, s)
	if err != nil {
		return c, listError(place, err)
	}
	c.choose(all, opt)
	var digests []string
	for _, e := range c.Gone {
		digests = append(digests, e.Digest)
	}
	if c.FreedBytes, err = s.remove(ctx, digests, !opt.Yes); err != nil {
		return c, explainStoreError(place, fmt.Errorf("%s: %w", place, err))
	}
	c.Removed = opt.Yes
	return c, nil
}

// choose divides entries, the newest first, into those to remove and those to keep.
func (c *Cleaned) choose(all []Entry, opt CleanOptions) {
	seen := map[string]int{} // artifacts by board
	for _, e := range all {
		if e.Other == "" {
			seen[e.Board]++
		}
		if why := opt.keepReason(e, seen[e.Board]); why != "" {
			c.Kept = append(c.Kept, Kept{e, why})
		} else {
			c.Gone = append(c.Gone, e)
		}
	}
}

// keepReason returns why to keep an artifact, the nth newest of its board; "" to remove it. It
// keeps what is not Slipway's, has no date, or has a person's tag, and the newest of each board.
func (o CleanOptions) keepReason(e Entry, nth int) string {
	pinned := slices.IndexFunc(e.Tags, func(tag string) bool { return tag != defaultTag(e.Board, e.Key) })
	switch {
	case e.Other != "":
		return "not an artifact of Slipway"
	case e.Built.IsZero():
		return "it does not say when it was built"
	case pinned >= 0:
		return "pinned by its tag " + e.Tags[pinned]
	case nth <= o.Keep:
		return fmt.Sprintf("among the newest %d of its board", o.Keep)
	}
	return ""
}

// Show prints the result for a person.
func (c Cleaned) Show(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "\tTAGS\tBOARD\tBUILT\tSIZE\tCOMMIT\tSIGNED")
	verb := plaintext.Either(c.Removed, "removed", "would go")
	for _, e := range c.Gone {
		fmt.Fprintln(tw, verb+"\t"+e.row())
	}
	for _, k := range c.Kept {
		fmt.Fprintln(tw, "stays\t"+k.row()+"\t"+k.Why)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	return c.showRest(w)
}

// showRest prints the bytes freed, or how to free them, and after a dry run the next step.
func (c Cleaned) showRest(w io.Writer) error {
	text := ""
	switch {
	case c.IsFolder && c.Removed:
		text = fmt.Sprintf("%s freed\n", plaintext.SizeText(c.FreedBytes))
	case c.IsFolder:
		text = fmt.Sprintf("%s would be freed\n", plaintext.SizeText(c.FreedBytes))
	case len(c.Gone) > 0 && c.isHub:
		text = "The hub frees the blobs 30 days after they were pushed.\n"
	case len(c.Gone) > 0:
		text = "The registry's own collector frees the blobs: docker-registry garbage-collect CONFIG.\n"
	}
	if !c.Removed && (len(c.Gone) > 0 || c.FreedBytes > 0) {
		text += "To remove it, add --yes.\nnext: " + host.ProgramName() + " store list " + plaintext.Quote(c.Store) + "\n"
	}
	_, err := io.WriteString(w, text)
	return err
}
