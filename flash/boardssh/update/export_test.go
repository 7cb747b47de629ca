package update

import "time"

// MaxConnections is how many connections the server accepts at a time.
const MaxConnections = maxConnections

// SetHeaderLimit sets how long a client may need to send its request.
func SetHeaderLimit(limit time.Duration) (undo func()) {
	before := headerLimit
	headerLimit = limit
	return func() { headerLimit = before }
}
