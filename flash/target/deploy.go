package target

import (
	"context"
	"fmt"
	"path"
	"path/filepath"
	"time"

	"slipway/images"
	"slipway/layers/progress"
)

// Deployed is what a board was given.
type Deployed struct {
	Files []Sent
	Image string // name of the container image in the board's containerd; "" where the artifact has none
}

// Deploy gives a running board what belongs to an artifact beside its disk: its
// description and its container archive, as files in the folder that the board's
// spec names and as an image in its containerd. It can be repeated.
func Deploy(ctx context.Context, c *Conn, spec images.Spec, a images.Artifact) (Deployed, error) {
	if spec.Deploy.Dir == "" {
		return Deployed{}, fmt.Errorf("images/boards/%s/board.yml: deploy.dir is not set", spec.Board)
	}
	container, has := containerOf(a)
	names := []images.File{{Name: images.ArtifactName}}
	if has {
		names = append(names, container)
	}
	sent, err := c.deployFiles(ctx, spec.Deploy.Dir, a, names)
	if err != nil || !has {
		return Deployed{Files: sent}, err
	}
	image, err := c.deployContainer(ctx, a.Path(container))
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

func (c *Conn) deployFiles(ctx context.Context, dir string, a images.Artifact, files []images.File) (sent []Sent, err error) {
	sources := make([]source, len(files))
	var total int64
	for i, file := range files {
		f, src, err := openSource(a.Path(file))
		if err != nil {
			return nil, err
		}
		defer f.Close()
		src.sha256 = file.SHA256
		sources[i] = src
		total += src.size
	}
	step := progress.Start(ctx, "deploy files", total, progress.Bytes)
	defer func() { step.End(fmt.Sprintf("%d in %s%s", len(sent), dir, c.means()), err) }()
	for i, src := range sources {
		one, err := c.put(ctx, src, path.Join(dir, filepath.ToSlash(files[i].Name)), 0o644, step)
		if err != nil {
			return sent, err
		}
		sent = append(sent, one)
	}
	return sent, c.syncNames(ctx)
}

func (c *Conn) deployContainer(ctx context.Context, archive string) (image string, err error) {
	err = progress.Run(ctx, "deploy container", func(s *progress.Step) (string, error) {
		s.Detail("waiting until the board has started")
		c.started(ctx)
		s.Detail(filepath.Base(archive))
		t, err := OpenContainers(ctx, c)
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

// started waits until the board's init system has started what it starts: sshd is
// up before containerd. What became of that, and whether there is a systemd to
// ask, is not judged here.
func (c *Conn) started(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	_, _ = c.Run(ctx, "systemctl", "is-system-running", "--wait")
}
