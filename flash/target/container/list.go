package container

import (
	"context"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"

	"slipway/flash/target"
)

// maxListed is more containers than anybody leaves.
const maxListed = 1000

// List lists the containers that Run made and that are still there.
func (t *Containerd) List(ctx context.Context) (left []Leftover, err error) {
	err = t.ask(ctx, "list containers", func(ctx context.Context) error {
		left, err = t.listContainers(ctx)
		return err
	})
	return left, err
}

func (t *Containerd) listContainers(ctx context.Context) (left []Leftover, err error) {
	all, err := t.client.Containers(ctx, `labels."`+runLabel+`"`)
	if err != nil {
		return nil, err
	}
	for _, made := range all[:min(len(all), maxListed)] {
		info, err := made.Info(ctx, client.WithoutRefreshedMetadata)
		if err != nil {
			return nil, err
		}
		l := Leftover{Name: target.Printable(made.ID()), Image: target.Printable(info.Image), State: "created"}
		l.Started, _ = time.Parse(time.RFC3339, info.Labels[runLabel]) // shown only
		if task, err := made.Task(ctx, nil); err == nil {
			status, err := task.Status(ctx)
			if err != nil && !errdefs.IsNotFound(err) {
				return nil, err
			}
			l.State = target.Printable(string(status.Status))
		}
		left = append(left, l)
	}
	return left, nil
}

// Remove ends a container that Run made, and removes it.
func (t *Containerd) Remove(ctx context.Context, name string) error {
	r := t.newRun(name)
	ctx = t.withNamespace(ctx)
	if _, err := t.client.LoadContainer(ctx, name); err != nil {
		return t.describeError("remove container "+name, err)
	}
	if err := r.removeAll(ctx, true); err != nil {
		return t.describeError("remove container "+name, err)
	}
	return nil
}
