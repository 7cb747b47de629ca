package flash

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"slipway/images"
	"slipway/layers/localfile"

	"github.com/google/renameio/v2"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
)

// Identity holds the SSH keys of a flash: the board's host key and the client key with which users
// log in. Each flash makes a new host key. Slipway stores its private half only on the board's disk
// (or a virtual disk), and in a temporary folder that it removes before the flash begins.
// The client key stays in dir and serves every board that is flashed from there.
type Identity struct {
	HostKey
	dir    string
	client ssh.PublicKey
}

// HostKey is an SSH host key that is made for one board.
type HostKey struct {
	PEM  []byte // the private half
	host ssh.PublicKey
}

// NewHostKey generates an Ed25519 key.
func NewHostKey() (k HostKey, err error) {
	k.PEM, k.host, err = newKey("board")
	return k, err
}

// Public is the public half as a line of authorized_keys.
func (k HostKey) Public() []byte { return ssh.MarshalAuthorizedKey(k.host) }

// Fingerprint is the host key's, as ssh-keygen -l prints it.
func (k HostKey) Fingerprint() string { return ssh.FingerprintSHA256(k.host) }

// Files returns the key pair and, unless it is empty, authorized_keys, as files of a data
// partition.
func (k HostKey) Files(authorized []byte) map[string][]byte {
	files := map[string][]byte{"ssh/ssh_host_ed25519_key": k.PEM, "ssh/ssh_host_ed25519_key.pub": k.Public()}
	if len(authorized) > 0 {
		files["ssh/authorized_keys"] = authorized
	}
	return files
}

// NewIdentity generates a host key, and reads the client key in dir or generates one. It makes the
// folder dir. That is the board's images.StateDir, because whoever made an artifact cannot have put
// a key there.
func NewIdentity(dir string) (id Identity, err error) {
	id.dir = dir
	if err = os.MkdirAll(dir, 0o700); err == nil {
		id.client, err = clientKey(images.ClientKeyPath(id.dir))
	}
	if err == nil {
		id.HostKey, err = NewHostKey()
	}
	if err != nil {
		return Identity{}, fmt.Errorf("make an SSH identity in %s: %w", dir, err)
	}
	return id, nil
}

// lockFolder waits for dir's lock file, so that only one flash at a time changes dir's key files.
func lockFolder(dir string) (*os.File, error) {
	return localfile.Lock(context.Background(), filepath.Join(dir, "keys.lock"), 0o600)
}

// clientKey reads the client's private key at path and returns its public key. If there is none,
// clientKey generates the pair and writes both files.
func clientKey(path string) (ssh.PublicKey, error) {
	if key, err := readClientKey(path); !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	lock, err := lockFolder(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	if key, err := readClientKey(path); !errors.Is(err, fs.ErrNotExist) {
		return key, err // another flash has made it
	}
	return newClientKey(path)
}

// readClientKey returns the public key of the private key at path. It sets the file's mode to 0600.
func readClientKey(path string) (ssh.PublicKey, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	signer, err := ssh.ParsePrivateKey(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; remove it to get a new one", path, err)
	}
	return signer.PublicKey(), os.Chmod(path, 0o600) // ssh takes no other mode
}

// newClientKey generates a key pair, writes it to path and path.pub, and returns the public key.
func newClientKey(path string) (ssh.PublicKey, error) {
	private, public, err := newKey("slipway")
	if err != nil {
		return nil, err
	}
	if err := renameio.WriteFile(path+".pub", ssh.MarshalAuthorizedKey(public), 0o644); err != nil {
		return nil, err
	}
	return public, renameio.WriteFile(path, private, 0o600, renameio.IgnoreUmask())
}

// newKey generates an Ed25519 key pair. It returns the private key as PEM, and the public key.
func newKey(comment string) ([]byte, ssh.PublicKey, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	block, err := ssh.MarshalPrivateKey(private, comment)
	if err != nil {
		return nil, nil, err
	}
	key, err := ssh.NewPublicKey(public)
	return pem.EncodeToMemory(block), key, err
}

// Admitted is the client key as a line of authorized_keys.
func (id Identity) Admitted() []byte { return ssh.MarshalAuthorizedKey(id.client) }

// seedFiles returns the files of the new data partition.
func (id Identity) seedFiles() map[string][]byte { return id.Files(id.Admitted()) }

// maxPins is how many host keys known_hosts keeps for a board: those of the last flashes. Each disk
// has its own host key, and the user may boot a disk that was flashed earlier.
const maxPins = 8

// Pin adds the host key to the board's known_hosts lines, and drops the oldest over maxPins.
func (id Identity) Pin(board string) error {
	lock, err := lockFolder(id.dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	old, err := os.ReadFile(images.KnownHostsPath(id.dir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	lines, pin := strings.Split(string(old), "\n"), knownhosts.Line([]string{board}, id.host)
	isPin := func(line string) bool { return strings.HasPrefix(line, board+" ") }
	others := slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return line == "" || isPin(line) })
	pins := append(slices.DeleteFunc(lines, func(line string) bool { return line == pin || !isPin(line) }), pin)
	lines = append(others, pins[max(0, len(pins)-maxPins):]...)
	return renameio.WriteFile(images.KnownHostsPath(id.dir), []byte(strings.Join(lines, "\n")+"\n"), 0o644)
}
