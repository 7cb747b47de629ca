package hubtest

import (
	"time"
	_ "unsafe" // for go:linkname

	_ "github.com/nats-io/nats-server/v2/server"
)

// A cluster waits 4 to 9 seconds until it elects another leader, and the server has no option for it.
// The hubs of a test wait a fifth of that, with heartbeats in proportion.

//go:linkname minElectionTimeout github.com/nats-io/nats-server/v2/server.minElectionTimeout
var minElectionTimeout time.Duration

//go:linkname maxElectionTimeout github.com/nats-io/nats-server/v2/server.maxElectionTimeout
var maxElectionTimeout time.Duration

//go:linkname hbInterval github.com/nats-io/nats-server/v2/server.hbInterval
var hbInterval time.Duration

func hurryElections() {
	for _, t := range []*time.Duration{&minElectionTimeout, &maxElectionTimeout, &hbInterval} {
		*t /= 5
	}
}
