package container

import (
	"context"
	"fmt"
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

// DeployArtifact sends an artifact's description and container archive to a running board. Both
// become files in the folder deploy.dir of the board's spec, and the archive also an image in the
// board's containerd. It can be repeated.
func DeployArtifact(ctx context.Context, c *boardssh.Conn, spec images.Spec, a images.Artifact) (Deployed, error) {
	if spec.Deploy.Dir == "" {
		return Deployed{}, fmt.Errorf("%s: deploy.dir is not set", spec.BoardFile())
	}
	container, has := containerOf(a)
	list := []files.LocalFile{{Path: a.Path(images.File{Name: images.ArtifactName}), Name: images.ArtifactName}}
	if has {
		list = append(list, files.LocalFile{Path: a.Path(container), Name: container.Name, SHA256: container.SHA256})
	}
	sent, err := files.PutList(ctx, c, spec.Deploy.Dir, list)
	if err != nil || !has {
		return Deployed{Files: sent}, err
	}
	image, err := deployContainer(ctx, c, a.Path(container))
	return Deployed{Files: sent, Image: image}, err
}

func containerOf(a images.Artifact) (images.File, bool) {
	for _, f := range a.Files {
		if f.Kind == images.Container {
			return f, true
		}
	}
	return images.File{}, false
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

// waitUntilStarted waits until systemd on the board has started its units, because sshd is up
// before containerd. It ignores failed units, and boards without systemd.
func waitUntilStarted(ctx context.Context, c *boardssh.Conn) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	_, _ = c.Run(ctx, "systemctl", "is-system-running", "--wait")
}
