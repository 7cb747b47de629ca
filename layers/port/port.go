// Package port finds TCP ports of loopback for programs that must be told one before they
// listen.
package port

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"syscall"
)

// The ports lie below those that Linux gives to connections and to listeners that name no
// port. Otherwise one of these could take a port before the program that was told it.
const (
	lowest  = 20000
	highest = 32767
)

// Free returns a port on which nothing listens.
func Free() (int, error) {
	for range 200 {
		port := lowest + rand.IntN(highest-lowest+1)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			return 0, err
		}
		return port, l.Close()
	}
	return 0, fmt.Errorf("no port of 127.0.0.1 from %d to %d is free", lowest, highest)
}
