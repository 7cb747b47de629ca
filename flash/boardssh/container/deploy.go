package container

import (
	"context"
	"fmt"
	"path"
	"path/filepath"
	"time"

	"slipway/flash/boardssh"
	"slipway/flash/boardssh/files"
	"slipway/images"
	"slipway/layers/progress"
)

// Deployed lists what DeployArtifact sent to a board.
type Deployed struct {
	Files []files.Sent
	Image string // name of the container image in the board's containerd; "" if the artifact has none
}

// DeployArtifact sends an artifact's description and, if it has one, container archive to a running
// board. Both become files in the folder deploy.dir of the board's spec, and the archive also an
// image in the board's containerd. It can be repeated.
func DeployArtifact(ctx context.Context, c *boardssh.Conn, spec images.Spec, a images.Artifact) (Deployed, error) {
	if spec.Deploy.Dir == "" {
		return Deployed{}, fmt.Errorf("%s: deploy.dir is not set", spec.BoardFile())
	}
	var list []images.File
	archive, err := a.File(images.Container)
	has := err == nil
	if has {
		list = append(list, archive)
	}
	list = append(list, images.File{Name: images.ArtifactName}) // last: it describes the archive
	var done Deployed
	for _, f := range list {
		sent, err := sendFile(ctx, c, a.Path(f), path.Join(spec.Deploy.Dir, filepath.ToSlash(f.Name)), f.SHA256)
		if err != nil {
			return done, err
		}
		done.Files = append(done.Files, sent)
	}
	if has {
		done.Image, err = deployContainer(ctx, c, a.Path(archive))
		return done, err
	}
	return done, nil
}

// sendFile sends a local file to the board, mode 0644. It fails unless digest is "" or the file's.
func sendFile(ctx context.Context, c *boardssh.Conn, local, remote, digest string) (files.Sent, error) {
	s, err := files.OpenSource(ctx, local)
	if err != nil {
		return files.Sent{}, err
	}
	defer s.Close()
	if digest != "" && s.SHA256() != digest {
		return files.Sent{}, fmt.Errorf("%s changed since the build: its digest is %s, and %s has %s", local, s.SHA256(), images.ArtifactName, digest)
	}
	return files.Send(ctx, c, s, remote, files.Rights{Mode: 0o644})
}

// deployContainer waits until the board has started, and pushes the archive into its containerd.
func deployContainer(ctx context.Context, c *boardssh.Conn, archive string) (image string, err error) {
	err = progress.Run(ctx, "deploy container", func(s *progress.Step) (string, error) {
		s.Detail("waiting until the board has started")
		waitUntilStarted(ctx, c)
		s.Detail(filepath.Base(archive))
		t, err := OpenContainerd(ctx, c)
		if err != nil {
			return "", err
		}
		defer t.Close()
		image, err = t.PushFile(ctx, archive)
		return image, err
	})
	return image, err
}

// startLimit is how long waitUntilStarted waits.
const startLimit = 2 * time.Minute

// waitUntilStarted waits, up to startLimit, until systemd on the board has started its units,
// because sshd is up before containerd. It ignores failed units, and boards without systemd.
func waitUntilStarted(ctx context.Context, c *boardssh.Conn) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	_, _ = c.Run(ctx, "systemctl", "is-system-running", "--wait")
}
