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

// BecomeVariable names the program that makes a login user root on the board: "sudo", or empty.
const BecomeVariable = "SLIPWAY_BECOME"

// ErrBecome means that the board's sudo refuses to run programs for the login user.
var ErrBecome = errors.New("sudo refuses")

var errPassword = errors.New("sudo did not take the password")

type becomeKey struct{}

// WithBecome sets whether programs on the boards of ctx run by sudo. It overrides BecomeVariable.
func WithBecome(ctx context.Context, sudo bool) context.Context {
	return context.WithValue(ctx, becomeKey{}, sudo)
}

// BecomeUser returns "root" if WithBecome or BecomeVariable chose sudo, and "" for the login user.
// WithBecome comes first. An unknown value of BecomeVariable is an error.
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

// sudo holds the user that sudo runs programs as, and sudo's password. The password goes to sudo's
// standard input when it asks, and nowhere else: not into an argument, and to no file.
type sudo struct{ user, password string }

// findSudoPassword makes c run programs by sudo, and finds the password for that. It runs "true",
// first without a password, then up to maxAsked times with the stored or, if attended, typed one.
// If none works, it returns ErrBecome. It does nothing if Become is "" or the login user.
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
		password, asked := sudoPasswords.storedOrTyped(ctx, a, attended)
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

// sudoRefuses returns the ErrBecome for a sudo that did not start the program, with sudo's own
// words. Without words, the error says that the password is wrong.
func (c *Conn) sudoRefuses(words string) error {
	a := c.login.addr
	if words = strings.TrimSpace(words); words == "" {
		words = "the password is not the one of " + a.User
	}
	return fmt.Errorf("%w to make %s of %s on %s: %s\nnext: repeat the line  # at a terminal, to type the password, or give %[3]s NOPASSWD in sudoers",
		ErrBecome, a.Become, a.User, a.Host, Printable(words))
}

// passwords holds the sudo passwords that were typed in this run, by board. They stay in memory.
type passwords struct{ byBoard sync.Map }

var sudoPasswords passwords

// sudoKey returns the key of a board in passwords. It contains the jump hosts, because boards
// behind different jump hosts may have the same address.
func sudoKey(a Address) string {
	return strings.Join(append([]string{a.String()}, a.jumpArgs()...), "\n")
}

// storedOrTyped returns a board's stored password, or, if attended, asks for one and stores it.
// Without either, or after an empty answer, it returns "" and no error.
func (p *passwords) storedOrTyped(ctx context.Context, a Address, attended bool) (password string, err error) {
	stored, _ := p.byBoard.Load(sudoKey(a))
	if password, _ = stored.(string); password != "" || !attended {
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

// store sets the sudo password of all these boards. "" forgets it.
func (p *passwords) store(password string, boards ...Address) {
	for _, a := range boards {
		p.byBoard.Store(sudoKey(a), password)
	}
}

func (p *passwords) forget(a Address) { p.store("", a) }

// askSudoPassword asks the person for one password and stores it for all boards that use sudo. It
// does nothing without such a board or a terminal.
func askSudoPassword(ctx context.Context, boards []Address) error {
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

// boardProgram starts one program on the board, by sudo if the address says so. It is also the
// writer for the program's standard error, without sudo's prompt and the ready mark.
type boardProgram struct {
	sudo          *sudo // nil: the program runs as the login user
	out           io.Writer
	prompt, ready string

	mu      sync.Mutex
	held    []byte
	words   []byte        // what sudo said if it did not start the program
	prompts chan struct{} // sudo asks for the password
	in      chan struct{} // closed when the program has started
	over    chan struct{} // closed when the program's standard error has ended
	inside  bool          // sudo has started the program; otherwise the exit status is sudo's
	ended   bool
}

// newProgram returns a boardProgram that passes the program's standard error on to errs. It starts
// nothing. Without sudo, hasStarted is true at once.
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

// withSystemPath is a shell script that runs its arguments. Many users' PATH lacks these folders,
// and sudo keeps that PATH if its sudoers has no secure_path.
const withSystemPath = `export PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"; exec "$@"`

// commandLine returns the shell line that runs argv on the board. Through sudo, the line also
// prints the ready mark and adds the system folders to PATH.
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

// Write passes standard error on to e.out. Before the program starts, it holds up to maxHeldBytes,
// removes sudo's prompts, signals each on e.prompts, and drops what precedes the ready mark.
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
		e.passHeld(len(e.held) - max(len(e.ready), len(e.prompt)))
	}
	return len(b), nil
}

// ReadFrom copies r to Write with a small buffer, and calls endErrors at the end.
func (e *boardProgram) ReadFrom(r io.Reader) (int64, error) {
	defer e.endErrors()
	return copyByHand(e, r)
}

// passHeld moves the first n held bytes to e.out and, before the program starts, to e.words too.
func (e *boardProgram) passHeld(n int) {
	if !e.inside {
		e.words = bytes.Clone(e.held[:n])
	}
	e.out.Write(e.held[:n])
	e.held = bytes.Clone(e.held[n:])
}

// hasStarted reports whether sudo has started the program. words are what sudo said if it did not.
func (e *boardProgram) hasStarted() (words []byte, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.words, e.inside
}

// endErrors passes all held bytes on when standard error has ended, and closes e.over, once.
func (e *boardProgram) endErrors() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.ended {
		e.ended = true
		e.passHeld(len(e.held))
		close(e.over)
	}
}

// passSudo writes the password to sudo's input when sudo asks, and waits until the program runs or
// its standard error ends. A second prompt means that the password was wrong: errPassword.
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

// runProgram runs line in the session to its end. Behind sudo it passes the password first, and
// stdin once the program has started. It ignores errors of stdin after the program's end.
func (e *boardProgram) runProgram(session *ssh.Session, stdin io.Reader, line string) error {
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
