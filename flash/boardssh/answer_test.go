package boardssh

import (
	"context"
	"errors"
	"strings"
	"testing"

	"slipway/flash/boardssh/sshtest"
)

// A question without an answer ends the others, also where its error is dropped.
func TestAsking(t *testing.T) {
	t.Setenv(SilenceVariable, "1s")
	asked := 0
	err := Asking(t.Context(), func(ctx context.Context) error {
		for _, what := range []string{"first", "second", "third"} {
			_ = Answer(ctx, 0, what, func(ctx context.Context) error {
				if asked++; what == "first" {
					return nil
				}
				<-ctx.Done()
				return ctx.Err()
			})
		}
		return nil
	})
	if !errors.Is(err, ErrSilent) || !strings.HasPrefix(err.Error(), "second: ") || asked != 2 {
		t.Errorf("Asking() = %v after %d questions; want %v of the second", err, asked, ErrSilent)
	}
}

// The limit holds for a question as a whole, but not for a long answer. A program that fails is an
// error, asked or not.
func TestAsk(t *testing.T) {
	s := sshtest.StartSSHD(t)
	c, err := Dial(t.Context(), addressOf(s))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for name, output := range map[string]func(context.Context, ...string) (string, error){"Output": c.Output, "AskOutput": c.AskOutput} {
		if said, err := output(t.Context(), "echo", " a "); err != nil || said != "a" {
			t.Errorf("%s = %q, %v; want a", name, said, err)
		}
		if said, err := output(t.Context(), "sh", "-c", "echo a; echo b >&2; exit 3"); err == nil || said != "" || !strings.HasSuffix(err.Error(), " ended with status 3: b") {
			t.Errorf("%s of a program that fails = %q, %v", name, said, err)
		}
	}
	t.Setenv(SilenceVariable, "1s")
	slow := []string{"sh", "-c", "sleep 3; echo done"}
	if r, err := c.AskUpTo(t.Context(), nil, MaxOutputBytes, slow...); err != nil || string(r.Stdout) != "done\n" {
		t.Errorf("AskUpTo = %q, %v; want done", r.Stdout, err)
	}
	if r, err := c.Ask(t.Context(), slow...); !errors.Is(err, ErrSilent) || !strings.Contains(err.Error(), "\nnext: ssh ") {
		t.Errorf("Ask = %q, %v; want %v and a next step", r.Stdout, err, ErrSilent)
	}
}
