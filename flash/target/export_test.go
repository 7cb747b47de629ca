package target

// For the tests outside of the package.
var (
	DialImpatient = impatient
	HostileBoard  = hostileBoard
	StartRelay    = startRelay
	AddressOf     = addressOf
)
