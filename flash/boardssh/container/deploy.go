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

// Deployed is what a board was given.
type Deployed struct {
	Files []files.Sent
	Image string // name of the container image in the board's containerd; "" if the artifact has none
}

// DeployArtifact brings a running board what belongs to an artifact beside its disk: its
// description and its container archive. They become files in the folder that the board's spec
// names, and an image in its containerd. It can be repeated.
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

// startLimit is how long a board that lets us in may still be starting.
const startLimit = 2 * time.Minute

// waitUntilStarted waits until the board's init system has started what it starts: sshd is
// up before containerd. It ignores whether
// that succeeded, and whether the board has systemd.
func waitUntilStarted(ctx context.Context, c *boardssh.Conn) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	_, _ = c.Run(ctx, "systemctl", "is-system-running", "--wait")
}
