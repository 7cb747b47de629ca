package commands

// exit is an exit status of a command, beside 0 and 1.
type exit struct {
	status int
	means  string
}

// The statuses that several commands have.
var (
	exitsOfAll    = []exit{{0, "all went well"}, {1, "any other failure"}, {2, "the line is wrong; nothing was started"}}
	exitBoardFile = exit{5, "board.yml is wrong, or nobody knows the board"}
	exitRefused   = exit{7, "the artifact is damaged, or a policy refuses it; no board was asked"}
	exitsOfBoard  = []exit{{3, "the board was not reached, lets nobody in, or was lost in the middle"}, exitBoardFile}
	exitsOfSmoke  = []exit{{3, "a board was not reached, lets nobody in, or was lost in the middle"}, {4, "a check failed"}, {5, "a suite or board.yml is wrong"}}
)
