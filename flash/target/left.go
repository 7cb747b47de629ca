package target

import (
	"context"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"
)

// maxLeft is more containers than anybody leaves.
const maxLeft = 1000

// Left lists the containers that Run made and that are there still.
func (t *Containers) Left(ctx context.Context) ([]Left, error) {
	ctx = t.in(ctx)
	all, err := t.client.Containers(ctx, `labels."`+runLabel+`"`)
	if err != nil {
		return nil, t.said("list containers", err)
	}
	var left []Left
	for _, made := range all[:min(len(all), maxLeft)] {
		info, err := made.Info(ctx, client.WithoutRefreshedMetadata)
		if err != nil {
			return nil, t.said("list containers", err)
		}
		l := Left{Name: printable(made.ID()), Image: printable(info.Image), State: "created"}
		l.Started, _ = time.Parse(time.RFC3339, info.Labels[runLabel]) // shown only
		if task, err := made.Task(ctx, nil); err == nil {
			status, err := task.Status(ctx)
			if err != nil && !errdefs.IsNotFound(err) {
				return nil, t.said("list containers", err)
			}
			l.State = printable(string(status.Status))
		}
		left = append(left, l)
	}
	return left, nil
}

// Remove ends a container that Run made, and removes it.
func (t *Containers) Remove(ctx context.Context, name string) error {
	r := t.newRun(name)
	ctx = t.in(ctx)
	if _, err := t.client.LoadContainer(ctx, name); err != nil {
		return t.said("remove container "+name, err)
	}
	if err := r.tidy(ctx, true); err != nil {
		return t.said("remove container "+name, err)
	}
	return nil
}
