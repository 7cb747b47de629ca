package job

// Line is one program of a job.
type Line struct {
	Step int      // index of its step, -1 for what goes before them
	Argv []string // after Slipway's name, or with Own the whole of a program of the station
	Own  bool
}

// Lines returns the programs of an order's steps. Its artifact has been pulled.
func Lines(o Order) ([]Line, error) { return nil, nil }
