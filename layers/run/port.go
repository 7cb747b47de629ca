package run

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net"
	"syscall"
)

// FreePort and FreePortFor choose among these ports, below those that Linux itself assigns.
// Otherwise another program could get a port before the one that was told to use it.
const (
	lowest  = 20000
	highest = 32767
)

// FreePort returns a random TCP port of 127.0.0.1 on which nothing listens.
func FreePort() (int, error) { return firstFree(func() int { return rand.IntN(ports) }) }

// FreePortFor returns a port of 127.0.0.1 derived from a name, or another one if it is taken.
func FreePortFor(name string) (int, error) {
	hash := fnv.New64a()
	hash.Write([]byte(name)) // never fails
	names := rand.New(rand.NewPCG(hash.Sum64(), 0))
	return firstFree(func() int { return names.IntN(ports) })
}

const ports = highest - lowest + 1

// firstFree tries up to 200 ports lowest+next() of 127.0.0.1, and returns the first that is free.
func firstFree(next func() int) (int, error) {
	for range 200 {
		port := lowest + next()
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
