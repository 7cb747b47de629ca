package job

import (
	"context"
	"errors"
)

// ErrHeld means that another process works on the job.
var ErrHeld = errors.New("the job is held")

// Exec does the job of a folder.
func Exec(ctx context.Context, f Folder, program string) error { return ErrHeld }

// Start starts "program job exec FOLDER".
func Start(ctx context.Context, f Folder, program string) error { return ErrHeld }
