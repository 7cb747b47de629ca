// Package sshd starts an OpenSSH server on loopback, with new keys, for tests, benchmarks and
// boards of namespaces, and relays to it that can be cut. It leaves the machine's own server alone.
package sshd

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"slipway/layers/run"
)

// Program is sshd's full path, which sshd needs to start itself again (package openssh-server).
const Program = "/usr/sbin/sshd"

const startLimit = time.Minute // more than a busy machine needs

// Server is a running server that lets this user in with one key.
type Server struct {
	Port       int
	KnownHosts string // file that pins the server's key
	Identity   string // file of the private key that the server accepts
	Log        string
	Apart      bool // as in run.Command: set if the thread that calls Start is in another pid namespace

	config string
	cmd    *exec.Cmd
	ended  chan struct{}
}

// New writes keys and a configuration into the existing folder dir, and chooses a free port. The
// settings are lines of sshd_config before New's own lines. New does not start the server.
func New(dir string, settings ...string) (*Server, error) {
	free, err := run.FreePort()
	if err != nil {
		return nil, err
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	s := &Server{Port: free, KnownHosts: file("known_hosts"), Identity: file("id"), Log: file("log"), config: file("config")}
	host, err := WriteKey(file("host"))
	if err != nil {
		return nil, err
	}
	user, err := WriteKey(s.Identity)
	if err != nil {
		return nil, err
	}
	lines := append(settings,
		fmt.Sprintf("ListenAddress 127.0.0.1:%d", free),
		"HostKey "+file("host"),
		"AuthorizedKeysFile "+file("authorized"),
		"StrictModes no", // the folder is a temporary one
		"PasswordAuthentication no",
		"KbdInteractiveAuthentication no",
		"PidFile none",
		"SetEnv HOME="+dir, // the user's own login scripts may take most of a second
	)
	if !slices.ContainsFunc(settings, func(line string) bool { return strings.HasPrefix(line, "Subsystem ") }) {
		lines = append(lines, "Subsystem sftp internal-sftp")
	}
	for name, text := range map[string]string{
		s.KnownHosts:       fmt.Sprintf("[127.0.0.1]:%d %s", free, ssh.MarshalAuthorizedKey(host)),
		file("authorized"): string(ssh.MarshalAuthorizedKey(user)),
		s.config:           strings.Join(lines, "\n") + "\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// WriteKey makes an Ed25519 key pair, writes the private key to file and returns the public key.
func WriteKey(file string) (ssh.PublicKey, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
		return nil, err
	}
	return ssh.NewPublicKey(public)
}

// Start starts the server, which ends with ctx, and waits until it accepts connections. As root it
// also creates /run/sshd.
func (s *Server) Start(ctx context.Context) error {
	if os.Geteuid() == 0 {
		// As root, sshd needs this folder, which Debian's unit creates.
		if err := os.MkdirAll("/run/sshd", 0o755); err != nil {
			return err
		}
	}
	log, err := os.Create(s.Log)
	if err != nil {
		return err
	}
	defer log.Close()
	s.cmd = run.Prepare(ctx, run.Command{Argv: []string{Program, "-D", "-e", "-f", s.config}, Apart: s.Apart})
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := s.cmd.Start(); err != nil {
		return err
	}
	s.ended = make(chan struct{})
	go func() {
		s.cmd.Wait()
		close(s.ended)
	}()
	return s.waitUntilReady(ctx)
}

// waitUntilReady waits, up to startLimit, until the server accepts, or kills it and quotes its log.
func (s *Server) waitUntilReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for {
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", s.Port))
		if err == nil {
			return conn.Close()
		}
		select {
		case <-time.After(20 * time.Millisecond):
			continue
		case <-s.ended:
		case <-ctx.Done():
			s.Stop()
		}
		said, _ := os.ReadFile(s.Log)
		return fmt.Errorf("sshd on port %d did not start: %s", s.Port, said)
	}
}

// Stop kills the server. Open sessions live on.
func (s *Server) Stop() {
	s.cmd.Process.Kill()
	<-s.ended
}
