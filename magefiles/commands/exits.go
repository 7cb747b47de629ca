package commands

import "slices"

// exit is an exit status of a command, beside 0 and 1.
type exit struct {
	status int
	means  string
}

// The statuses that several commands have.
var (
	exitsOfAll    = []exit{{0, "all went well"}, {1, "any other failure"}, {2, "the line is wrong; nothing was started"}}
	exitBoardFile = exit{5, "board.yml or a project file is wrong or missing, or nobody knows the board"}
	exitNotBuilt  = exit{7, "there is no artifact of the board yet"}
	exitRefused   = exit{7, "the artifact is damaged, or a policy refuses it; no board was asked"}
	exitsOfBoard  = []exit{{3, "the board was not reached, lets nobody in, or was lost in the middle"}, exitBoardFile}
	exitsOfSmoke  = []exit{{3, "a board was not reached, lets nobody in, or was lost in the middle"}, {4, "a check failed"}, {5, "a suite or board.yml is wrong"}}
)

// exitsOfWords are the statuses that a word of a line adds.
var exitsOfWords = map[string][]exit{
	"BOARD": {exitBoardFile}, "TARGET": {exitBoardFile, exitNotBuilt}, "ARTIFACT": {exitBoardFile, exitNotBuilt},
}

// ownExits returns the statuses of a command beside those of all. deploy run has those of its
// container.
func (c *Command) ownExits() []exit {
	all := slices.Clone(c.exits)
	if c.Name() == "run" && c.Parent().Name() == "deploy" {
		return all
	}
	for _, w := range c.words {
		for _, e := range exitsOfWords[w.name] {
			if !slices.ContainsFunc(all, func(have exit) bool { return have.status == e.status }) {
				all = append(all, e)
			}
		}
	}
	return all
}
