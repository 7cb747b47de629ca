package files

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"

	"slipway/flash/boardssh"
)

// Plan holds the changes that PutDir is going to make in a folder on the board.
type Plan struct {
	Root    string // the folder on the board
	Changes []Change

	upload *folderUpload
}

// Transition is the state of one name below the root before and after a change.
type Transition struct {
	Path   string `json:"path"`
	Before State  `json:"before"`
	After  State  `json:"after"`
}

// State is the kind, mode, owner and digest of a name.
type State struct {
	Kind   string `json:"kind"` // none, file, folder or link
	Mode   string `json:"mode,omitempty"`
	Owner  string `json:"owner,omitempty"`  // by number
	SHA256 string `json:"sha256,omitempty"` // of a file; of a link's target
}

// Kinds of states.
const (
	None   = "none"
	File   = "file"
	Folder = "folder"
	Link   = "link"
)

// Transitions returns each changed name's state on the board now and afterwards, with digests.
func (p *Plan) Transitions(ctx context.Context) ([]Transition, error) {
	var all []Transition
	for _, change := range p.Changes {
		t, err := p.upload.transition(ctx, change)
		if err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	return all, AddDigests(ctx, p.upload.conn, p.Root, all)
}

// BytesBefore returns the size of the file that has this name on the board now.
func (p *Plan) BytesBefore(name string) int64 { return p.upload.have[name].size }

// transition returns the states before and after a change, without the board's present digest and
// the owner afterwards. A pipe or device on the board is an error.
func (d *folderUpload) transition(ctx context.Context, change Change) (Transition, error) {
	t := Transition{Path: change.Path, Before: State{Kind: None}, After: State{Kind: None}}
	if have, there := d.have[change.Path]; there {
		if have.kind&fs.ModeIrregular != 0 {
			return t, fmt.Errorf("%s on the board is neither a file, nor a folder, nor a link, and cannot be kept", boardssh.Printable(change.Path))
		}
		t.Before = stateOf(have)
	}
	want, wanted := d.want[change.Path]
	if !wanted {
		return t, nil
	}
	t.After = stateOf(want)
	t.After.Owner = ""
	var err error
	switch want.kind {
	case 0:
		t.After.SHA256, err = d.fileDigest(ctx, change.Path)
	case fs.ModeSymlink:
		t.After.SHA256, err = d.linkDigest(ctx, change.Path)
	}
	return t, err
}

func stateOf(e entry) State {
	kinds := map[fs.FileMode]string{0: File, fs.ModeDir: Folder, fs.ModeSymlink: Link}
	return State{Kind: cmp.Or(kinds[e.kind], "other"), Mode: fmt.Sprintf("%04o", uint32(e.mode)), Owner: e.owner[0] + ":" + e.owner[1]}
}

// AddDigests fills in the digests of files and links in all Before states, from the board.
func AddDigests(ctx context.Context, c *boardssh.Conn, root string, all []Transition) error {
	for kind, ask := range map[string]digester{File: fileDigests, Link: linkDigests} {
		var names []string
		var states []*State
		for i := range all {
			if s := &all[i].Before; s.Kind == kind {
				names, states = append(names, all[i].Path), append(states, s)
			}
		}
		if len(names) == 0 {
			continue
		}
		sums, err := ask(ctx, c, root, names)
		if err != nil {
			return err
		}
		for i := range sums {
			states[i].SHA256 = sums[i]
		}
	}
	return nil
}

// ListStates lists everything below a folder on the board, without digests; none if it is missing.
func ListStates(ctx context.Context, c *boardssh.Conn, root string) (map[string]State, error) {
	entries, err := listFolder(ctx, c, root)
	return statesOf(entries), err
}

// ListSomeStates lists only the given names, and part files that broken uploads of them left. With
// follow, a link to a folder counts as a folder.
func ListSomeStates(ctx context.Context, c *boardssh.Conn, root string, names []string, follow bool) (map[string]State, error) {
	entries, err := listNames(ctx, c, root, names, follow)
	return statesOf(entries), err
}

func statesOf(entries map[string]entry) map[string]State {
	states := make(map[string]State, len(entries))
	for name, e := range entries {
		states[name] = stateOf(e)
	}
	return states
}
