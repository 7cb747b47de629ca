package boardssh

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
	"golang.org/x/sys/unix"

	"slipway/flash/boardssh/sshd"
	"slipway/flash/boardssh/sshtest"
	"slipway/layers/localfile"
	"slipway/layers/plaintext/terminaltest"
)

// person sits at a real terminal and answers each question that has words in it.
type person struct {
	t       *testing.T
	head    *os.File // what the person's hands and eyes are at
	mu      sync.Mutex
	seen    bytes.Buffer
	answers []answer
}

type answer struct{ to, text string }

func sitDown(t *testing.T, answers ...answer) *person {
	t.Helper()
	head, tail := terminaltest.Open(t)
	before := atTerminal
	t.Cleanup(func() { atTerminal = before })
	atTerminal = func() *terminal { return &terminal{tail, tail} }
	p := &person{t: t, head: head, answers: answers}
	go p.sit()
	return p
}

func (p *person) sit() {
	asked := 0 // how much of what was seen is answered
	for b := make([]byte, 4096); ; {
		n, err := p.head.Read(b)
		if err != nil {
			return
		}
		p.mu.Lock()
		p.seen.Write(b[:n])
		if len(p.answers) > 0 && strings.Contains(p.seen.String()[asked:], p.answers[0].to) {
			asked = p.seen.Len()
			io.WriteString(p.head, p.answers[0].text+"\n")
			p.answers = p.answers[1:]
		}
		p.mu.Unlock()
	}
}

func (p *person) saw() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen.String()
}

// satisfied fails where the person was not asked all that was expected.
func (p *person) satisfied() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.answers) > 0 {
		p.t.Errorf("not asked: %q; seen:\n%s", p.answers, p.seen.String())
	}
}

func nobody(t *testing.T) {
	before := atTerminal
	t.Cleanup(func() { atTerminal = before })
	atTerminal = func() *terminal { return nil }
}

// unknownServer returns the address of a server with an unknown host key, and its fingerprint.
func unknownServer(t *testing.T, s *sshd.Server) (a Address, print string) {
	t.Helper()
	a = addressOf(s)
	a.KnownHosts, a.PinFile = nil, filepath.Join(t.TempDir(), ".ssh", "known_hosts")
	return a, ssh.FingerprintSHA256(trustKey(t, pinnedKey(t, s)))
}

func TestFirstContact(t *testing.T) {
	s := sshtest.StartSSHD(t)
	const question = "fingerprint that it shows: "
	_, fp := unknownServer(t, s)
	other := "SHA256:" + strings.Repeat("A", 43)
	tests := []struct {
		name    string
		answers []string
		want    string // "": it is pinned
	}{
		{"yes", []string{"yes"}, ""},
		{"the fingerprint", []string{fp}, ""},
		{"unclear at first", []string{"y", "", "yes"}, ""},
		{"no", []string{"no"}, "was not confirmed"},
		{"unclear", []string{"y", "Yes!", "ok"}, "was not confirmed"},
		{"another fingerprint", []string{other}, "another machine answers there"},
	}
	for i, tt := range tests {
		hashed := i%2 == 1
		t.Run(tt.name, func(t *testing.T) {
			var answers []answer
			for _, a := range tt.answers {
				answers = append(answers, answer{question, a})
			}
			p := sitDown(t, answers...)
			a, _ := unknownServer(t, s)
			a.HashNames = hashed
			c, err := WaitDial(t.Context(), a, sshtest.LongEnough)
			p.satisfied()
			if !strings.Contains(p.saw(), fp) {
				t.Errorf("the fingerprint was not shown:\n%s", p.saw())
			}
			if tt.want != "" {
				if !errors.Is(err, ErrHostKey) || !strings.Contains(err.Error(), tt.want) || localfile.Exists(a.PinFile) {
					t.Errorf("WaitDial = %v; want %v with %q, and nothing written", err, ErrHostKey, tt.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			again, err := c.login.openLink(t.Context()) // without a question
			if err != nil {
				t.Fatal(err)
			}
			again.Close()
			c.Close()
			a.KnownHosts = []string{a.PinFile}
			dialBoard(t, a)
			sshFinds(t, a, hashed)
		})
	}
}

// sshFinds lets the real one look for what was pinned.
func sshFinds(t *testing.T, a Address, hashed bool) {
	t.Helper()
	name, _ := a.hostNames()
	out, err := exec.Command("ssh-keygen", "-F", name, "-f", a.PinFile).Output()
	if err != nil || !strings.Contains(string(out), "ssh-ed25519") {
		t.Errorf("ssh-keygen -F %s: %v, %q", name, err, out)
	}
	text, err := os.ReadFile(a.PinFile)
	if err != nil || strings.Contains(string(text), name) == hashed {
		t.Errorf("%s holds %q, %v; hashed is %v", a.PinFile, text, err, hashed)
	}
	if info, err := os.Stat(a.PinFile); err != nil || info.Mode() != 0o600 {
		t.Errorf("%s: %v, %v; want mode 0600", a.PinFile, info.Mode(), err)
	}
}

func TestFirstContactWithNobodyThere(t *testing.T) {
	nobody(t)
	s := sshtest.StartSSHD(t)
	a, fp := unknownServer(t, s)
	if _, err := Dial(t.Context(), a); !errors.Is(err, ErrHostKey) || !strings.Contains(err.Error(), "of Slipway's commands, deploy BOARD HOST, smoke and audit take --pin="+fp+"\nnext: ssh ") {
		t.Errorf("Dial = %v; want %v with the fingerprint", err, ErrHostKey)
	}
	a.Pins = []string{"SHA256:" + strings.Repeat("A", 43)}
	if _, err := Dial(t.Context(), a); !errors.Is(err, ErrHostKey) || localfile.Exists(a.PinFile) {
		t.Errorf("Dial with another pin = %v; want %v, and nothing written", err, ErrHostKey)
	}
	a.Pins = append(a.Pins, fp)
	dialBoard(t, a)
	a.KnownHosts, a.Pins = []string{a.PinFile}, nil
	dialBoard(t, a)
	a.Pins = []string{"SHA256:" + strings.Repeat("A", 43)}
	if _, err := Dial(t.Context(), a); !errors.Is(err, ErrHostKey) {
		t.Errorf("Dial to a known board with the pin of another = %v; want %v", err, ErrHostKey)
	}
}

// Nothing that a person says makes a changed key good.
func TestChangedKeyIsNotAskedAbout(t *testing.T) {
	s := sshtest.StartSSHD(t)
	p := sitDown(t)
	a, fp := unknownServer(t, s)
	_, _, other := sshtest.NewKey(t)
	a.KnownHosts = []string{filepath.Join(t.TempDir(), "known_hosts")}
	name, _ := a.hostNames()
	if err := os.WriteFile(a.KnownHosts[0], []byte(name+" "+other+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, pins := range [][]string{nil, {fp}} {
		a.Pins = pins
		if _, err := Dial(t.Context(), a); !errors.Is(err, ErrHostKey) || !strings.Contains(err.Error(), "ssh-keygen -R") {
			t.Errorf("Dial with the pins %q = %v; want %v", pins, err, ErrHostKey)
		}
	}
	if p.saw() != "" || localfile.Exists(a.PinFile) {
		t.Errorf("a person was asked: %s", p.saw())
	}
}

func TestPinLeavesOtherLinesAlone(t *testing.T) {
	_, key, text := sshtest.NewKey(t)
	for _, before := range []string{"", "one\n", "one\ntwo without its end", "\n\n"} {
		dir := t.TempDir()
		file := filepath.Join(dir, "known_hosts")
		if err := os.WriteFile(filepath.Join(dir, "real"), []byte(before), 0o640); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("real", file); err != nil {
			t.Fatal(err)
		}
		if err := appendPin(file, "board", false, key); err != nil {
			t.Fatal(err)
		}
		want := before + "board " + text + "\n"
		if before != "" && !strings.HasSuffix(before, "\n") {
			want = before + "\nboard " + text + "\n"
		}
		if got, err := os.ReadFile(filepath.Join(dir, "real")); err != nil || string(got) != want {
			t.Errorf("after %q: %q, %v; want %q", before, got, err, want)
		}
	}
}

// locked is the address of a server that takes one locked key, and does not take another key.
func locked(t *testing.T, s *sshd.Server) Address {
	t.Helper()
	unlocked.byPublic.Clear()
	t.Cleanup(unlocked.byPublic.Clear)
	a := addressOf(s)
	file := filepath.Join(t.TempDir(), "locked")
	lockKey(t, s.Identity, file)
	wrong, _, _ := sshtest.NewKey(t)
	a.Identities = []string{file, wrong}
	return a
}

func TestPassphrase(t *testing.T) {
	s := sshtest.StartSSHD(t)
	tests := []struct {
		name    string
		answers []string
		want    string // "": it logs in
	}{
		{"right", []string{"secret"}, ""},
		{"right at last", []string{"wrong", "wrong too", "secret"}, ""},
		{"wrong", []string{"a", "b", "c"}, "ssh-add "},
		{"none", []string{""}, "ssh-add "},
		{"Ctrl-D", []string{"\x04"}, "\nnext: ssh-add "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := locked(t, s)
			var answers []answer
			for _, text := range tt.answers {
				answers = append(answers, answer{"Passphrase for " + a.Identities[0], text})
			}
			p := sitDown(t, answers...)
			c, err := Dial(t.Context(), a)
			p.satisfied()
			if strings.Contains(p.saw(), "secret") {
				t.Errorf("the passphrase was shown:\n%s", p.saw())
			}
			if tt.want != "" {
				if !errors.Is(err, ErrLogin) || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("Dial = %v; want %v with %q", err, ErrLogin, tt.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			c.Close()
			dialBoard(t, a) // without another question
		})
	}
}

func TestPassphraseWithoutTerminal(t *testing.T) {
	a := locked(t, sshtest.StartSSHD(t))
	if _, err := Dial(t.Context(), a); !errors.Is(err, ErrLogin) || !strings.HasSuffix(err.Error(), "\nnext: ssh-add "+a.Identities[0]) {
		t.Errorf("Dial = %v; want %v with ssh-add as the next step", err, ErrLogin)
	}
}

// One person answers for all boards that take the same key.
func TestPassphraseIsAskedOnce(t *testing.T) {
	s := sshtest.StartSSHD(t)
	a := locked(t, s)
	p := sitDown(t, answer{"Passphrase for", "secret"})
	var boards sync.WaitGroup
	for range 5 {
		boards.Go(func() {
			c, err := WaitDial(t.Context(), a, sshtest.LongEnough)
			if err != nil {
				t.Error(err)
				return
			}
			c.Close()
		})
	}
	boards.Wait()
	if n := strings.Count(p.saw(), "Passphrase for"); n != 1 {
		t.Errorf("asked %d times; want once", n)
	}
}

func TestPassphraseIsNotAskedInVain(t *testing.T) {
	s := sshtest.StartSSHD(t)
	p := sitDown(t)
	a := locked(t, s)
	a.Identities = append(a.Identities, s.Identity) // open, and after it
	dialBoard(t, a)
	a = locked(t, s)
	a.Agent = startAgent(t, s.Identity) // it has the same key
	dialBoard(t, a)
	a = locked(t, sshtest.StartSSHD(t)) // another server, which takes none of this
	a.Port, a.KnownHosts = s.Port, []string{s.KnownHosts}
	if _, err := Dial(t.Context(), a); !errors.Is(err, ErrLogin) {
		t.Errorf("Dial = %v; want %v", err, ErrLogin)
	}
	if p.saw() != "" {
		t.Errorf("a person was asked:\n%s", p.saw())
	}
}

func TestWhoeverIsAskedMayLeave(t *testing.T) {
	s := sshtest.StartSSHD(t)
	a := locked(t, s)
	sitDown(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	before := atTerminal
	var seat *terminal
	atTerminal = func() *terminal { // Ctrl-C comes with the question
		seat = before()
		cancel(errors.New("enough"))
		return seat
	}
	if _, err := Dial(ctx, a); err == nil || err.Error() != "enough" {
		t.Errorf("Dial = %v; want the context's end", err)
	}
	termios, err := unix.IoctlGetTermios(int(seat.in.Fd()), unix.TCGETS)
	if err != nil || termios.Lflag&unix.ECHO == 0 {
		t.Errorf("the terminal shows nothing any more: %v", err)
	}
}

func TestWhichKeysAreOffered(t *testing.T) {
	s := sshtest.StartSSHD(t, "MaxAuthTries 6")
	var files []string
	for range 8 {
		file, _, _ := sshtest.NewKey(t)
		files = append(files, file)
	}
	right := s.Identity
	many, one := startAgent(t, files...), startAgent(t, right)
	tests := []struct {
		name       string
		identities []string
		agent      string
		only       bool
		want       string // "": it logs in
	}{
		{"the fifth file", append(files[:4:4], right), "", false, ""},
		{"the sixth file", append(files[:5:5], right), "", false, "not used: " + right + ": servers hang up"},
		{"a file besides a full agent", []string{right}, many, false, ""},
		{"a full agent", nil, many, false, "not used: the agent's key: servers hang up"},
		{"the agent's", files[:3], one, false, ""},
		{"not the agent's", files[:3], one, true, "unable to authenticate"},
		{"only the named one of the agent's", []string{right}, startAgent(t, append(files, right)...), true, ""},
		{"no agent", nil, "none", false, "no key to log in with"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("SSH_AUTH_SOCK", one)
			a := addressOf(s)
			a.Identities, a.Agent, a.IdentitiesOnly = tt.identities, tt.agent, tt.only
			if tt.agent == "" {
				a.Agent = "none"
			}
			c, err := Dial(t.Context(), a)
			if err == nil {
				c.Close()
			}
			if tt.want == "" && err != nil || tt.want != "" && (!errors.Is(err, ErrLogin) || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("Dial = %v; want %q", err, tt.want)
			}
		})
	}
	t.Setenv("SSH_AUTH_SOCK", "/nowhere")
	t.Setenv("MY_AGENT", one)
	for _, socket := range []string{"$MY_AGENT", one} {
		a := addressOf(s)
		a.Identities, a.Agent = nil, socket
		dialBoard(t, a)
	}
}

// refuses is an agent that lists its keys and signs with none, as if a person had refused.
type refuses struct{ agent.Agent }

func (refuses) Sign(ssh.PublicKey, []byte) (*ssh.Signature, error) { return nil, errors.New("no") }

func (refuses) SignWithFlags(ssh.PublicKey, []byte, agent.SignatureFlags) (*ssh.Signature, error) {
	return nil, errors.New("no")
}

func TestKeyThatDoesNotSign(t *testing.T) {
	s := sshtest.StartSSHD(t)
	data, err := os.ReadFile(s.Identity)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ssh.ParseRawPrivateKey(data)
	if err != nil {
		t.Fatal(err)
	}
	ring := agent.NewKeyring()
	if err := ring.Add(agent.AddedKey{PrivateKey: key, Comment: "token"}); err != nil {
		t.Fatal(err)
	}
	a := addressOf(s)
	a.Identities, a.Agent = nil, serveAgent(t, refuses{ring})
	if _, err := WaitDial(t.Context(), a, sshtest.LongEnough); !errors.Is(err, ErrLogin) || !strings.Contains(err.Error(), "the agent's token did not sign") {
		t.Errorf("WaitDial = %v; want %v that names the key", err, ErrLogin)
	}
}

func TestHardwareKey(t *testing.T) {
	nobody(t)
	s := sshtest.StartSSHD(t)
	file := filepath.Join(t.TempDir(), "id_ed25519_sk")
	// As ssh-keygen -t ed25519-sk writes it, of a token that is no more.
	const public = "sk-ssh-ed25519@openssh.com AAAAGnNrLXNzaC1lZDI1NTE5QG9wZW5zc2guY29tAAAAIBkkaSYe4b0UbCyv5jbGqvPTvuLhCEk1OpqZV1O6S5rhAAAABHNzaDo= token\n"
	for name, text := range map[string]string{file: "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n", file + ".pub": public} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a := addressOf(s)
	a.Identities = []string{file}
	if _, err := Dial(t.Context(), a); !errors.Is(err, ErrLogin) || !strings.Contains(err.Error(), "a key of a hardware token") {
		t.Errorf("Dial = %v; want %v that names the token", err, ErrLogin)
	}
}

func TestKeysWithPassphraseComeLast(t *testing.T) {
	_, one, _ := sshtest.NewKey(t)
	_, two, _ := sshtest.NewKey(t)
	got := new(login).chooseKeys([]candidate{{Signer: lockedKey{"one", one}, locked: true}, {Signer: lockedKey{"two", two}}})
	if len(got) != 2 || !sameKey(got[0].PublicKey(), two) || !sameKey(got[1].PublicKey(), one) {
		t.Errorf("chooseKeys = %v; want the key without a passphrase first", got)
	}
}

// A named public key selects the agent's key. A private key that cannot be read is an error.
func TestReadIdentityOfPublicKey(t *testing.T) {
	_, key, text := sshtest.NewKey(t)
	public := sshtest.WriteFile(t, []byte(text))
	if id, err := readIdentity(public); err != nil || !sameKey(id.public, key) {
		t.Errorf("readIdentity of a public key = %v, %v", id, err)
	}
	broken := sshtest.WriteFile(t, []byte("no key"))
	sshtest.PlaceFile(t, broken+".pub", text, 0o644)
	if id, err := readIdentity(broken); err == nil {
		t.Errorf("readIdentity of a damaged private key = %v; want an error", id)
	}
}
