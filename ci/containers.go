package ci

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"path/filepath"

	"slipway/flash/fetch"
	"slipway/flash/oci"
	"slipway/flash/target"
	"slipway/images"
)

// ContainerOptions says how an image is brought to a board.
type ContainerOptions struct {
	Name      string // on the board; the image's own if not given
	Namespace string // of containerd
	Prune     bool   // remove images that came from here and that nothing uses
	JSON      bool
}

// DeployContainer brings a container's image to a board's engine.
func DeployContainer(ctx context.Context, w io.Writer, opt images.Options, spec images.Spec, host, image string, o ContainerOptions) error {
	if o.Name != "" {
		full, err := oci.FullName(o.Name)
		if err != nil {
			return err
		}
		o.Name = full
	}
	conn, err := Reach(ctx, opt, spec, host)
	if err != nil {
		return err
	}
	defer conn.Close()
	engine, err := target.OpenEngine(ctx, conn, o.Namespace)
	if err != nil {
		return err
	}
	defer engine.Close()
	pushed, err := pushImage(ctx, engine, opt, image, o)
	if err != nil {
		return err
	}
	if o.JSON {
		return writeJSON(w, pushed)
	}
	return showPushed(w, pushed)
}

func pushImage(ctx context.Context, engine target.Engine, opt images.Options, text string, o ContainerOptions) (target.Pushed, error) {
	source, err := fetch.OpenContainer(ctx, text, fetch.Options{Dir: filepath.Join(opt.Dir, "cache", "images")})
	if err != nil {
		return target.Pushed{}, err
	}
	defer source.Close()
	image, err := source.Image(ctx, engine.Platform())
	if err != nil {
		return target.Pushed{}, err
	}
	pushed, err := engine.Push(ctx, image, cmp.Or(o.Name, image.Name))
	if err == nil && o.Prune {
		pushed.Pruned, err = engine.Prune(ctx, pushed.Image)
	}
	return pushed, err
}

func showPushed(w io.Writer, p target.Pushed) error {
	fmt.Fprintf(w, "%s (%s) is in the board's %s: %d of %d layers sent, %.1f MiB\n",
		p.Image, p.Platform, p.Engine, p.SentLayers, p.Layers, float64(p.SentBytes)/(1<<20))
	if p.Replaced != "" {
		fmt.Fprintf(w, "it took the name from %s\n", p.Replaced)
	}
	for _, name := range p.Pruned {
		fmt.Fprintf(w, "removed %s, which nothing used\n", name)
	}
	return nil
}
