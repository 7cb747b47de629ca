package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"text/tabwriter"
	"time"

	"slipway/layers/host"
	"slipway/layers/plaintext"
)

// CleanOptions says which artifacts Clean removes: those that all of the rules let go.
type CleanOptions struct {
	Keep  int           // so many of each board stay, the newest; 0: any number goes
	Older time.Duration // younger ones stay; 0: of any age
	// Tags are patterns of tags. An artifact with any other tag stays. Without patterns, these
	// are the tags that push makes: what a person tagged stays.
	Tags []string
	Yes  bool // remove; otherwise only say what would go
}

// Check returns an error if the options would remove everything, or if a pattern is wrong.
func (o CleanOptions) Check() error {
	if o.Keep <= 0 && o.Older <= 0 {
		return errors.New("neither --keep nor --older is given: say which artifacts may go")
	}
	for _, pattern := range o.Tags {
		if _, err := path.Match(pattern, ""); err != nil {
			return fmt.Errorf("--tags: %q is no pattern: %w", pattern, err)
		}
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
}

// Kept is an artifact that stays.
type Kept struct {
	Entry
	Why string `json:"why"`
}

// Clean removes artifacts from a store by the rules in opt. Without opt.Yes it only lists them.
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
	c := Cleaned{Store: place.String(), Gone: []Entry{}, Kept: []Kept{}, IsFolder: place.Folder != ""}
	all, err := list(ctx, s)
	if err != nil {
		return c, listError(place, err)
	}
	c.choose(all, opt, time.Now())
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
func (c *Cleaned) choose(all []Entry, opt CleanOptions, now time.Time) {
	seen := map[string]int{} // artifacts by board
	for _, e := range all {
		if e.Other == "" {
			seen[e.Board]++
		}
		if why := opt.keeps(e, seen[e.Board], now); why != "" {
			c.Kept = append(c.Kept, Kept{e, why})
		} else {
			c.Gone = append(c.Gone, e)
		}
	}
}

// keeps returns why to keep an artifact, the nth newest of its board; "" to remove it.
func (o CleanOptions) keeps(e Entry, nth int, now time.Time) string {
	pinned := slices.IndexFunc(e.Tags, func(tag string) bool { return !o.canDelete(tag, e) })
	switch {
	case e.Other != "":
		return "not an artifact of Slipway"
	case e.Built.IsZero():
		return "it does not say when it was built"
	case pinned >= 0:
		return "pinned by its tag " + e.Tags[pinned]
	case o.Keep > 0 && nth <= o.Keep:
		return fmt.Sprintf("among the newest %d of its board", o.Keep)
	case o.Older > 0 && now.Sub(e.Built) < o.Older:
		return "young"
	}
	return ""
}

// canDelete reports whether an artifact with this tag may be removed.
func (o CleanOptions) canDelete(tag string, e Entry) bool {
	if len(o.Tags) == 0 {
		return tag == defaultTag(e.Board, e.Key)
	}
	return slices.ContainsFunc(o.Tags, func(pattern string) bool {
		match, _ := path.Match(pattern, tag) // Check refused what is no pattern
		return match
	})
}

// Show prints the result for a person.
func (c Cleaned) Show(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "\tTAGS\tBOARD\tBUILT\tSIZE\tCOMMIT\tSIGNED")
	verb := "would go"
	if c.Removed {
		verb = "removed"
	}
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

func (c Cleaned) showRest(w io.Writer) error {
	text := ""
	switch {
	case c.IsFolder && c.Removed:
		text = fmt.Sprintf("%s freed\n", size(c.FreedBytes))
	case c.IsFolder:
		text = fmt.Sprintf("%s would be freed\n", size(c.FreedBytes))
	case len(c.Gone) > 0:
		text = "The registry's own collector frees the blobs: docker-registry garbage-collect CONFIG.\n"
	}
	if !c.Removed && (len(c.Gone) > 0 || c.FreedBytes > 0) {
		text += "To remove it, add --yes.\nnext: " + host.ProgramName() + " store list " + plaintext.Quote(c.Store) + "\n"
	}
	_, err := io.WriteString(w, text)
	return err
}

// ParseAge parses a positive duration such as 30d, 2w or 12h.
func ParseAge(text string) (time.Duration, error) {
	for unit, hours := range map[string]int{"d": 24, "w": 7 * 24} {
		var n int
		if _, err := fmt.Sscanf(text, "%d"+unit, &n); err == nil && text == fmt.Sprint(n)+unit && n > 0 && n < 1<<15 {
			return time.Duration(n*hours) * time.Hour, nil
		}
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, errors.New("want a time with its unit, such as 30d, 2w or 12h")
	}
	return d, nil
}
