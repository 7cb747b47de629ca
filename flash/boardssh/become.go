package boardssh

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"
)

// BecomeVariable names the program that runs commands as root on the board, if the login user is
// not root: "sudo", or empty.
const BecomeVariable = "SLIPWAY_BECOME"

// ErrBecome is of a board whose sudo does not let us.
var ErrBecome = errors.New("sudo refuses")

var errPassword = errors.New("sudo did not take the password")

type becomeKey struct{}

// WithBecome says the same for the boards of one run, whatever the variable says.
func WithBecome(ctx context.Context, sudo bool) context.Context {
	return context.WithValue(ctx, becomeKey{}, sudo)
}

// BecomeUser is the user that programs on a board run as. It is empty for the user who logs
// in.
func BecomeUser(ctx context.Context) (user string, err error) {
	if sudo, given := ctx.Value(becomeKey{}).(bool); given {
		if sudo {
			user = "root"
		}
		return user, nil
	}
	switch by := os.Getenv(BecomeVariable); by {
	case "":
		return "", nil
	case "sudo":
		return "root", nil
	default:
		return "", fmt.Errorf("%s=%q: want sudo, or nothing", BecomeVariable, by)
	}
}

// sudo is how programs of a connection get their rights. The password goes to sudo's
// standard input when it asks, and nowhere else: not into an argument, and to no file.
type sudo struct{ user, password string }

// findSudoPassword finds out whether sudo asks for a password, and which one it takes.
func (c *Conn) findSudoPassword(ctx context.Context, attended bool) error {
	a := c.login.addr
	if a.Become == "" || a.Become == a.User {
		return nil
	}
	c.login.sudo = &sudo{user: a.Become}
	r, err := c.Ask(ctx, "true") // by sudo -n, which never asks
	for range maxAsked {
		if err == nil && r.Status == 0 || err != nil && !errors.Is(err, errPassword) && !errors.Is(err, ErrBecome) {
			return err
		}
		password, asked := sudoPasswords.askOnce(ctx, a, attended)
		if asked != nil || password == "" {
			return errors.Join(asked, c.sudoRefuses(string(r.Stderr)))
		}
		c.login.sudo = &sudo{a.Become, password}
		if r, err = c.Ask(ctx, "true"); errors.Is(err, errPassword) {
			sudoPasswords.forget(a)
		}
	}
	if err == nil && r.Status == 0 {
		return nil
	}
	return c.sudoRefuses(string(r.Stderr))
}

// sudoRefuses is the error of a sudo that did not start the program.
func (c *Conn) sudoRefuses(words string) error {
	a := c.login.addr
	if words = strings.TrimSpace(words); words == "" {
		words = "the password is not the one of " + a.User
	}
	return fmt.Errorf("%w to make %s of %s on %s: %s\nnext: repeat the line  # at a terminal, to type the password, or give %[3]s NOPASSWD in sudoers",
		ErrBecome, a.Become, a.User, a.Host, Printable(words))
}

// passwords were typed in this run. They are kept only in memory.
type passwords struct {
	mu  sync.Mutex
	all map[string]string
}

var sudoPasswords passwords

// sudoKey differs for boards that have the same address behind different jump hosts.
func sudoKey(a Address) string {
	return strings.Join(append([]string{a.String()}, a.jumpArgs()...), "\n")
}

// askOnce asks for the password of a board once.
func (p *passwords) askOnce(ctx context.Context, a Address, attended bool) (password string, err error) {
	p.mu.Lock()
	password = p.all[sudoKey(a)]
	p.mu.Unlock()
	if password != "" || !attended {
		return password, nil
	}
	q := &question{ask: func(ctx context.Context, t *terminal) (err error) {
		password, err = t.readAnswer(ctx, fmt.Sprintf("Password of %s for sudo on %s (empty: stop): ", Printable(a.User), Printable(a.Host)), true)
		return err
	}}
	_, err = q.askPerson(ctx)
	p.store(password, a)
	return password, err
}

func (p *passwords) store(password string, boards ...Address) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all == nil {
		p.all = map[string]string{}
	}
	for _, a := range boards {
		p.all[sudoKey(a)] = password
	}
}

func (p *passwords) forget(a Address) { p.store("", a) }

// askSudo asks for one password for all boards of which sudo may want one.
func askSudo(ctx context.Context, boards []Address) error {
	var some []Address
	for _, a := range boards {
		if a.Become != "" && a.Become != a.User {
			some = append(some, a)
		}
	}
	if len(some) == 0 {
		return nil
	}
	q := &question{ask: func(ctx context.Context, t *terminal) error {
		password, err := t.readAnswer(ctx, fmt.Sprintf("Password for sudo, sent to each of %d boards whose sudo asks for one (empty: none): ", len(some)), true)
		sudoPasswords.store(password, some...)
		return err
	}}
	_, err := q.askPerson(ctx)
	return err
}

// boardProgram starts one program on the board, by sudo if the address says so. It is the writer of
// the program's errors, and passes on everything that sudo did not write.
type boardProgram struct {
	sudo          *sudo // nil: there is none
	out           io.Writer
	prompt, ready string

	mu      sync.Mutex
	held    []byte
	words   []byte        // what sudo said that did not start the program
	prompts chan struct{} // sudo asks for the password
	in      chan struct{} // closed when the program has started
	over    chan struct{} // closed when its errors ended
	inside  bool          // the program has the rights; without this, sudo's status is not the program's
	ended   bool
}

func (l *login) newProgram(errs io.Writer) *boardProgram {
	e := &boardProgram{
		sudo: l.sudo, out: errs, prompt: "slipway-sudo-" + rand.Text(), ready: "slipway-in-" + rand.Text(),
		prompts: make(chan struct{}, maxAsked), in: make(chan struct{}), over: make(chan struct{}),
	}
	if e.sudo == nil {
		e.inside = true
		close(e.in)
	}
	return e
}

func (e *boardProgram) needsPassword() bool { return e.sudo != nil && e.sudo.password != "" }

// withSystemPath runs the program of its arguments. Many a user's PATH lacks these folders,
// and sudo keeps that PATH where its sudoers has no secure_path.
const withSystemPath = `export PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"; exec "$@"`

// commandLine is the shell's line that runs the program with its rights.
func (e *boardProgram) commandLine(argv []string) string {
	if e.sudo == nil {
		return quoteCommand(argv)
	}
	asking, script := []string{"sudo", "-n"}, withSystemPath
	if e.needsPassword() {
		asking = []string{"sudo", "-S", "-p", e.prompt}
	}
	if e.ready != "" {
		script = "echo " + e.ready + " >&2; " + script
	}
	return quoteCommand(slices.Concat(asking, []string{"-H", "-u", e.sudo.user, "--", "sh", "-c", script, "sh"}, argv))
}

// Write looks for sudo's questions until the program has started.
func (e *boardProgram) Write(b []byte) (int, error) {
	e.mu.Lock()
	if e.inside {
		e.mu.Unlock()
		return e.out.Write(b)
	}
	defer e.mu.Unlock()
	e.held = append(e.held, b...)
	if before, after, asked := bytes.Cut(e.held, []byte(e.prompt)); asked {
		e.held = append(bytes.Clone(before), after...)
		select {
		case e.prompts <- struct{}{}:
		default:
		}
	}
	if _, after, there := bytes.Cut(e.held, []byte(e.ready+"\n")); there {
		e.held = after // what sudo said before is about passwords
		e.inside = true
		close(e.in)
		e.passHeld(len(e.held))
	}
	if len(e.held) > maxHeldBytes {
		e.passHeld(len(e.held) - len(e.ready))
	}
	return len(b), nil
}

// ReadFrom is as that of LimitedBuffer.
func (e *boardProgram) ReadFrom(r io.Reader) (int64, error) {
	defer e.endErrors()
	return copyByHand(e, r)
}

func (e *boardProgram) passHeld(n int) {
	if !e.inside {
		e.words = bytes.Clone(e.held[:n])
	}
	e.out.Write(e.held[:n])
	e.held = bytes.Clone(e.held[n:])
}

// hasRights reports whether the program got them, and otherwise what sudo said.
func (e *boardProgram) hasRights() (words []byte, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.words, e.inside
}

// endErrors passes on why sudo did not start the program.
func (e *boardProgram) endErrors() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.ended {
		e.ended = true
		e.passHeld(len(e.held))
		close(e.over)
	}
}

// passSudo gives sudo the password and waits until the program runs. If sudo refuses, the
// program has ended, with sudo's message among its errors.
func (e *boardProgram) passSudo(in io.Writer) error {
	for told := false; ; told = true {
		select {
		case <-e.in:
			return nil
		case <-e.over:
			return nil
		case <-e.prompts:
		}
		if told {
			return errPassword
		}
		if _, err := io.WriteString(in, e.sudo.password+"\n"); err != nil {
			return err
		}
	}
}

// startProgram is the session's, for a program behind sudo: its input begins when the program has
// started.
func (e *boardProgram) startProgram(session *ssh.Session, stdin io.Reader, line string) error {
	if e.sudo == nil {
		session.Stdin = stdin
		return session.Run(line)
	}
	in, err := session.StdinPipe()
	if err != nil {
		return err
	}
	if err := session.Start(line); err != nil {
		return err
	}
	if err := e.passSudo(in); err != nil {
		return err
	}
	read := make(chan error, 1)
	go func() {
		var err error
		if stdin != nil {
			_, err = io.Copy(in, stdin)
		}
		read <- err
		in.Close()
	}()
	if err := session.Wait(); err != nil {
		return err
	}
	select {
	case err := <-read:
		if err != nil && !errors.Is(err, io.EOF) { // of a program that read no further
			return err
		}
	default: // the program ended before its input did
	}
	return nil
}
