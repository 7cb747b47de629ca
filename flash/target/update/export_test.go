package update

import "time"

// MaxAsking is how many connections the server takes at once.
const MaxAsking = maxAsking

// LimitHeader sets how long a client may take to say what it wants.
func LimitHeader(limit time.Duration) (undo func()) {
	before := headerLimit
	headerLimit = limit
	return func() { headerLimit = before }
}
