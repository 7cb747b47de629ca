// Package cachetest plays bitbake's servers in tests.
package cachetest

import (
	"bufio"
	"io"
	"net"
	"testing"
)

// Replay is the address of a server that gives recorded answers to the lines that it
// knows, and hangs up on others, as bitbake's do.
func Replay(t testing.TB, answers map[string]string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go talk(conn, answers)
		}
	}()
	return l.Addr().String()
}

func talk(conn net.Conn, answers map[string]string) {
	defer conn.Close()
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		answer, known := answers[lines.Text()]
		if !known {
			return
		}
		if _, err := io.WriteString(conn, answer); err != nil {
			return
		}
	}
}

// Said are the answers of a dialogue after a greeting, which is not answered.
func Said(greeting string, pairs ...string) map[string]string {
	answers := map[string]string{greeting: "", "": ""}
	for i := 0; i < len(pairs); i += 2 {
		answers[pairs[i]] = pairs[i+1] + "\n"
	}
	return answers
}

// Hashserv is the address of what answers as bitbake 2.8's hash equivalence server was
// recorded to.
func Hashserv(t testing.TB) string {
	t.Helper()
	return Replay(t, Said("OEHASHEQUIV 1.1", `{"ping": {}}`, `{"alive": true}`, `{"exists-stream": null}`, `"ok"`))
}
