package fetch

import (
	"context"
	"crypto/x509"
	"errors"
	"net"
	"strings"
)

// HubAccess is how to reach a hub, which is a registry, too.
type HubAccess struct {
	Address string         // host:port
	Roots   *x509.CertPool // of its authority
	// DialTLS connects to one of several hubs, instead of Address. It may be nil.
	DialTLS func(ctx context.Context, network, address string) (net.Conn, error)
	// Login returns a password that is valid for minutes.
	Login func() (user, password string, err error)
}

// Hub returns the hub of places that begin with hub: and contacts no server. The commands set it,
// because this package must not know of hubs.
var Hub = func() (HubAccess, error) { return HubAccess{}, errors.New("this program knows no hub") }

// hubRepository is the repository of "hub:" without a name.
const hubRepository = "artifacts"

// parseHub parses rest: [name][:tag][@digest]. text is for errors.
func parseHub(text, rest string) (reference, error) {
	hub, err := Hub()
	if err != nil {
		return reference{}, err
	}
	if rest == "" || strings.ContainsAny(rest[:1], ":@") {
		rest = hubRepository + rest
	}
	ref, err := parseRepository(text, hub.Address+"/"+rest)
	ref.hub = &hub
	return ref, err
}

// hasPort reports whether what follows "hub:" is a port: a registry on a machine called hub.
func hasPort(rest string) bool {
	port, _, path := strings.Cut(rest, "/")
	return path && portPattern().MatchString(port)
}
