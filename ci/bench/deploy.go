package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/pkg/sftp"
	"github.com/skeema/knownhosts"
	"golang.org/x/crypto/ssh"

	"slipway/flash/target"
	"slipway/flash/target/sshd"
	"slipway/layers/engine"
	"slipway/layers/host"
)

const (
	deployFileBytes = 256 << 20
	deployRounds    = 5
)

// Deploy measures how long a file takes over loopback to an OpenSSH server of
// its own, from connecting to closing: ours with fsync and the digest checked on
// the other side, the others without.
func Deploy(ctx context.Context, w io.Writer) (err error) {
	if err := host.Ensure(ctx, w, "build/bench/apt.log", "openssh-server", "openssh-client"); err != nil {
		return err
	}
	b, err := newDeployBench(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	rows, err := Measure(
		ctx, deployRounds,
		Variant{Name: "ours, digest checked", Prepare: b.settle, Run: b.ours},
		Variant{Name: "sftp", Prepare: b.settle, Run: b.sftp},
		Variant{Name: "scp", Prepare: b.settle, Run: b.scp},
		Variant{Name: "pkg/sftp, defaults", Prepare: b.settle, Run: b.library},
	)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%d MiB to sshd on loopback, files in %s\n", deployFileBytes>>20, filepath.Dir(b.dir))
	return Print(w, rows,
		Over("sftp_over_ours", rows[1], rows[0]), Over("scp_over_ours", rows[2], rows[0]), Over("pkgsftp_over_ours", rows[3], rows[0]))
}

// deployBench is a folder with a file to send, and a server to send it to.
type deployBench struct {
	dir           string
	local, remote string
	server        *sshd.Server
}

// memory is a folder in which no disk is measured.
const memory = "/dev/shm"

func newDeployBench(ctx context.Context) (_ *deployBench, err error) {
	parent := memory
	if _, err := os.Stat(memory); err != nil {
		parent = ""
	}
	dir, err := os.MkdirTemp(parent, "slipway-bench-deploy-")
	if err != nil {
		return nil, err
	}
	b := &deployBench{dir: dir, local: filepath.Join(dir, "local"), remote: filepath.Join(dir, "remote")}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	if err := b.makeFile(); err != nil {
		return nil, err
	}
	keys := filepath.Join(dir, "server")
	if err := os.Mkdir(keys, 0o700); err != nil {
		return nil, err
	}
	// The server program that Debian's own configuration names.
	server, err := sshd.New(keys, "Subsystem sftp /usr/lib/openssh/sftp-server")
	if err != nil {
		return nil, err
	}
	if err := server.Start(ctx); err != nil {
		return nil, err
	}
	b.server = server
	return b, nil
}

func (b *deployBench) makeFile() error {
	f, err := os.Create(b.local)
	if err != nil {
		return err
	}
	defer f.Close()
	// Nothing on the way compresses, but a file of zeros is no file of a board.
	if _, err := io.CopyN(f, rand.NewChaCha8([32]byte{}), deployFileBytes); err != nil {
		return err
	}
	return f.Close()
}

func (b *deployBench) close() error {
	if b.server != nil {
		b.server.Stop()
	}
	return os.RemoveAll(b.dir)
}

// settle makes sure that the file of the last round was whole, and removes it.
func (b *deployBench) settle(context.Context) error {
	info, err := os.Stat(b.remote)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Size() != deployFileBytes {
		return fmt.Errorf("%s has %d bytes, not %d", b.remote, info.Size(), deployFileBytes)
	}
	return os.Remove(b.remote)
}

func (b *deployBench) address() target.Address {
	return target.Address{
		Host: "127.0.0.1", Port: b.server.Port,
		KnownHosts: []string{b.server.KnownHosts}, Identities: []string{b.server.Identity},
	}
}

func (b *deployBench) ours(ctx context.Context) error {
	c, err := target.Dial(ctx, b.address())
	if err != nil {
		return err
	}
	_, err = c.Put(ctx, b.local, b.remote, 0o644)
	return errors.Join(err, c.Close())
}

func (b *deployBench) options() []string {
	return []string{
		"-q", "-F", "none", "-P", strconv.Itoa(b.server.Port), "-i", b.server.Identity,
		"-o", "IdentitiesOnly=yes", "-o", "UserKnownHostsFile=" + b.server.KnownHosts, "-o", "BatchMode=yes",
	}
}

func (b *deployBench) sftp(ctx context.Context) error {
	return engine.Run(ctx, engine.Command{
		Argv:  append(append([]string{"sftp", "-b", "-"}, b.options()...), "127.0.0.1"),
		Stdin: strings.NewReader(fmt.Sprintf("put %s %s\n", b.local, b.remote)),
	})
}

func (b *deployBench) scp(ctx context.Context) error {
	return engine.Run(ctx, engine.Command{
		Argv: append(append([]string{"scp"}, b.options()...), b.local, "127.0.0.1:"+b.remote),
	})
}

// library is what a first program with pkg/sftp looks like.
func (b *deployBench) library(ctx context.Context) error {
	link, err := b.dial()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { link.Close() })
	defer stop()
	defer link.Close()
	files, err := sftp.NewClient(link)
	if err != nil {
		return err
	}
	in, err := os.Open(b.local)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := files.Create(b.remote)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		return err
	}
	return out.Close()
}

func (b *deployBench) dial() (*ssh.Client, error) {
	key, err := os.ReadFile(b.server.Identity)
	if err != nil {
		return nil, err
	}
	signer, err := ssh.ParsePrivateKey(key)
	if err != nil {
		return nil, err
	}
	pinned, err := knownhosts.NewDB(b.server.KnownHosts)
	if err != nil {
		return nil, err
	}
	who, err := user.Current()
	if err != nil {
		return nil, err
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(b.server.Port))
	return ssh.Dial("tcp", address, &ssh.ClientConfig{
		User: who.Username, Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)},
		HostKeyCallback: pinned.HostKeyCallback(), HostKeyAlgorithms: pinned.HostKeyAlgorithms(address),
	})
}
