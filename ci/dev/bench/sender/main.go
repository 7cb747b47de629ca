// Sender sends one file or folder to a server, as Slipway does or as a simple program with
// pkg/sftp would. It serves only the bench, which starts it at one end of a link, like the
// other tools.
//
// Its arguments are the mode (file, folder or library), the server's address, the files
// with the server's key and with the client's, and the local and the remote path.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/user"
	"strconv"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"slipway/flash/target"
	"slipway/flash/target/files"
)

func main() {
	if err := sendPath(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "sender:", err)
		os.Exit(1)
	}
}

func sendPath(args []string) error {
	if len(args) != 6 {
		return errors.New("six arguments are needed")
	}
	what, server, pinned, key, local, remote := args[0], args[1], args[2], args[3], args[4], args[5]
	if what == "library" {
		return sendByLibrary(server, pinned, key, local, remote)
	}
	c, err := dialTarget(server, pinned, key)
	if err != nil {
		return err
	}
	if what == "folder" {
		_, err = files.PutDir(context.Background(), c, local, remote, files.DirOptions{Delete: true})
	} else {
		_, err = files.Put(context.Background(), c, local, remote, 0o644)
	}
	return errors.Join(err, c.Close())
}

func dialTarget(server, pinned, key string) (*target.Conn, error) {
	host, port, err := net.SplitHostPort(server)
	if err != nil {
		return nil, err
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		return nil, err
	}
	return target.Dial(context.Background(), target.Address{Host: host, Port: number, KnownHosts: []string{pinned}, Identities: []string{key}})
}

// sendByLibrary does what a simple program with pkg/sftp does.
func sendByLibrary(server, pinned, key, local, remote string) error {
	link, err := dialPlain(server, pinned, key)
	if err != nil {
		return err
	}
	defer link.Close()
	files, err := sftp.NewClient(link)
	if err != nil {
		return err
	}
	in, err := os.Open(local)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := files.Create(remote)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		return err
	}
	return out.Close()
}

func dialPlain(server, pinned, key string) (*ssh.Client, error) {
	data, err := os.ReadFile(key)
	if err != nil {
		return nil, err
	}
	signer, err := ssh.ParsePrivateKey(data)
	if err != nil {
		return nil, err
	}
	known, err := knownhosts.New(pinned)
	if err != nil {
		return nil, err
	}
	who, err := user.Current()
	if err != nil {
		return nil, err
	}
	return ssh.Dial("tcp", server, &ssh.ClientConfig{
		User: who.Username, Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)},
		HostKeyCallback: known, // the server has one key
	})
}
