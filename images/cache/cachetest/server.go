// Package cachetest simulates bitbake's servers in tests.
package cachetest

import (
	"bufio"
	"io"
	"net"
	"testing"
)

// Replay returns the address of a server that sends recorded answers to known lines. It
// closes the connection at others, as bitbake's servers do.
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
			go sendAnswers(conn, answers)
		}
	}()
	return l.Addr().String()
}

func sendAnswers(conn net.Conn, answers map[string]string) {
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

// Dialogue returns the answers of a conversation after a greeting, which gets no
// answer.
func Dialogue(greeting string, pairs ...string) map[string]string {
	answers := map[string]string{greeting: "", "": ""}
	for i := 0; i < len(pairs); i += 2 {
		answers[pairs[i]] = pairs[i+1] + "\n"
	}
	return answers
}

// Hashserv returns the address of a server that answers as bitbake 2.8's hash
// equivalence server did when it was recorded.
func Hashserv(t testing.TB) string {
	t.Helper()
	return Replay(t, Dialogue("OEHASHEQUIV 1.1", `{"ping": {}}`, `{"alive": true}`, `{"exists-stream": null}`, `"ok"`))
}
