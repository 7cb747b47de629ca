package fleet

import (
	"context"
	"errors"
	"net"
	"slices"
	"syscall"

	"slipway/ci/report"
	"slipway/flash/boardssh"
	"slipway/flash/boardssh/files"
)

// Kind says how an attempt on a board ended.
type Kind string

// The kinds, the most urgent first.
const (
	HostKey    Kind = "host key" // another key than the pinned one
	NewKey     Kind = "unknown host key"
	OtherBoard Kind = "another board"
	Unsure     Kind = "system unknown" // after the restart of an update
	OnTrial    Kind = "on trial"       // the new system runs, and nobody marked it good
	WentBack   Kind = "went back"      // to the old system
	NotTaken   Kind = "update refused"
	Checks     Kind = "checks failed"
	Program    Kind = "program failed" // its exit status is not 0
	Damaged    Kind = "digest wrong"
	Full       Kind = "disk full"
	Lost       Kind = "connection lost"
	Slow       Kind = "too slow"
	Noisy      Kind = "garbage on stdout"
	NoShell    Kind = "no shell"
	NotSSH     Kind = "garbage for SSH"
	Login      Kind = "login refused"
	Sudo       Kind = "sudo refused"
	Refused    Kind = "connection refused"
	NoRoute    Kind = "no route"
	NoName     Kind = "unknown name"
	Silent     Kind = "no answer"
	Wrong      Kind = "suite wrong"
	Other      Kind = "other"
	Changed    Kind = "file changed" // one of those that the boards get
	Busy       Kind = "in use"       // by another run on this machine
	Stopped    Kind = "stopped"
	NotBegun   Kind = "not begun"
	Already    Kind = "already has it" // from an earlier run
	Passed     Kind = "passed"
)

const seeReport = "; for the keys that were tried, see the board's report"

// kinds lists all kinds, the most urgent first: the error for the exit status (see ci.ExitStatus),
// whether another attempt can help, and what the user does next.
var kinds = []struct {
	kind  Kind
	err   error
	retry bool
	next  string
}{
	{HostKey, report.ErrUnreachable, false, "find out whether the board was flashed again or another machine answers; if it was flashed, this says how to forget the old key"},
	{NewKey, report.ErrUnreachable, false, "compare the key with the board's console, or with what its flash recorded; then give it as slipway_host_key, or pin those of all new boards at once"},
	{OtherBoard, report.ErrUnreachable, false, "another board answers at this address; fix slipway_serial or the address in the inventory"},
	{Unsure, report.ErrUnreachable, false, "switch the board off and on, then look which system runs: update --dry-run"},
	{OnTrial, report.ErrFailed, false, "prove it (smoke) and mark it good on the board, or switch it off and on, which may roll it back to the old system; see the board's report"},
	{WentBack, report.ErrFailed, false, "see the new system's logs in the board's report"},
	{NotTaken, nil, false, "nothing was written to it; for what to fix, see the board's report"},
	{Checks, report.ErrFailed, false, "see the board's report"},
	{Program, report.ErrFailed, false, "see what the program said on the board"},
	{Damaged, nil, true, "try again; if it stays, test the board's memory and storage"},
	{Full, nil, false, "make room on the board, then run with --failed"},
	{Lost, report.ErrUnreachable, true, "see whether the board restarted: its power, its journal of the boot before"},
	{Slow, nil, false, "give it more time (--board-limit, or slipway_limit in the inventory), or look at its line and its load"},
	{Noisy, report.ErrUnreachable, false, "its shell prints something at every login; look into ~/.bashrc, /etc/profile.d and /etc/ssh/sshrc on the board"},
	{NoShell, report.ErrUnreachable, false, "give the board's user a POSIX shell, and its key no command= in authorized_keys"},
	{NotSSH, report.ErrUnreachable, false, "something else than an SSH server answers; fix ansible_port or ansible_host"},
	{Login, report.ErrUnreachable, false, "put your key on the board, or fix ansible_user and ansible_ssh_private_key_file" + seeReport},
	{Sudo, report.ErrUnreachable, false, "run at a terminal, to type the password, or give the board's user NOPASSWD in sudoers"},
	{Refused, report.ErrUnreachable, true, "the board is up, but its SSH server is not, or listens on another port"},
	{NoRoute, report.ErrUnreachable, true, "see whether the board is on, its cable, and the route to it"},
	{NoName, report.ErrUnreachable, true, "fix ansible_host, or the name server"},
	{Silent, report.ErrUnreachable, true, "see whether the board is on and has started; a firewall may swallow what is sent to it"},
	{Wrong, report.ErrWrong, false, "fix the suite"},
	{Other, nil, false, "see the board's report"},
	{Changed, nil, false, "let nobody write to what is sent during a run; then run it without --failed"},
	{Busy, nil, true, "wait until the other run, or the installation on the board, has ended"},
	{Stopped, context.Canceled, false, "run again with --failed"},
	{NotBegun, nil, false, "run again with --failed"},
	{Already, nil, false, ""},
	{Passed, nil, false, ""},
}

// rank returns the index of a kind in kinds, or 0 for an unknown kind.
func (k Kind) rank() int {
	for i, known := range kinds {
		if known.kind == k {
			return i
		}
	}
	return 0
}

// Known reports whether k is one of the kinds above. A newer Slipway may have others.
func (k Kind) Known() bool { return kinds[k.rank()].kind == k }

// Done reports whether the board has what the run deploys.
func (k Kind) Done() bool { return k == Passed || k == Already }

// Failed reports whether an attempt began, and the board does not have what the run deploys.
func (k Kind) Failed() bool { return !k.Done() && k != NotBegun }

// Retry reports whether another attempt can help.
func (k Kind) Retry() bool { return kinds[k.rank()].retry }

// Next returns what the user does about a board of this kind, "" if it is Done.
func (k Kind) Next() string { return kinds[k.rank()].next }

// errSlow means that the time limit of an attempt is over.
var errSlow = errors.New("its time is up")

// phase is how far an attempt has come. It decides the kind of a board that does not answer.
type phase int

const (
	connecting phase = iota
	proving
	working
)

// kindOf returns the kind of an attempt's error: Passed for nil, Other for an unknown error. lost
// says that the connection ended, and limited is ctx with the board's time limit.
func kindOf(ctx, limited context.Context, err error, at phase, lost bool) Kind {
	var kind kindError
	var timeout net.Error
	switch {
	case err == nil:
		return Passed
	case errors.As(err, &kind):
		return kind.kind
	case errors.Is(err, boardssh.ErrHostKey):
		return HostKey
	case errors.Is(err, boardssh.ErrLogin):
		return Login
	case errors.Is(err, boardssh.ErrBecome):
		return Sudo
	case errors.Is(err, boardssh.ErrNotSSH):
		return NotSSH
	case errors.Is(err, boardssh.ErrShell):
		return NoShell
	case ctx.Err() != nil:
		return Stopped
	case limited.Err() != nil && at == connecting:
		return Silent
	case limited.Err() != nil:
		return Slow
	case errors.Is(err, report.ErrFailed) && !lost:
		return Checks
	case errors.Is(err, report.ErrWrong):
		return Wrong
	case errors.Is(err, files.ErrFull):
		return Full
	case errors.Is(err, files.ErrDamaged):
		return Damaged
	case at > connecting && (lost || errors.Is(err, report.ErrUnreachable)):
		return Lost
	case at == connecting:
		if kind := networkKind(err); kind != Other {
			return kind
		}
		if errors.As(err, &timeout) && timeout.Timeout() || errors.Is(err, context.DeadlineExceeded) {
			return Silent
		}
	}
	return Other
}

// networkKind returns Refused, NoName, NoRoute or Lost for an error of the network, or else Other.
func networkKind(err error) Kind {
	var name *net.DNSError
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return Refused
	case errors.As(err, &name), errors.Is(err, boardssh.ErrNoAddress):
		return NoName
	case slices.ContainsFunc([]error{syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.ENETDOWN, syscall.EHOSTDOWN}, func(e error) bool { return errors.Is(err, e) }):
		return NoRoute
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return Lost
	}
	return Other
}

// kindError is an error whose kind is already known.
type kindError struct {
	kind Kind
	error
}

func (k kindError) Unwrap() error { return k.error }
