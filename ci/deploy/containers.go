package deploy

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/term"

	"slipway/ci/reach"
	"slipway/ci/report"
	"slipway/flash/boardssh"
	"slipway/flash/boardssh/container"
	"slipway/flash/fetch"
	"slipway/flash/oci"
	"slipway/images"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// ContainerOptions says which container engine of a board is used, and how images are sent.
type ContainerOptions struct {
	Engine    string // the first of container.Engines that answers if not given
	Namespace string // of containerd
	Name      string // on the board; the image's own if not given
	Prune     bool   // remove images that came from here and that nothing uses
	JSON      bool
}

// Container opens a container image, sends it to a board's engine, and writes what was sent.
func Container(ctx context.Context, w io.Writer, opt images.Options, spec images.Spec, host, image string, o ContainerOptions) error {
	if o.Name != "" {
		full, err := oci.FullName(o.Name)
		if err != nil {
			return err
		}
		o.Name = full
	}
	source, err := openImage(ctx, opt, image)
	if err != nil {
		return err
	}
	defer source.Close()
	return withEngine(ctx, opt, spec, host, o, func(ctx context.Context, e container.Engine) error {
		pushed, err := pushImage(ctx, e, source, o)
		if err != nil {
			return err
		}
		if o.JSON {
			return plaintext.WriteJSON(w, pushed)
		}
		showPushed(w, pushed)
		return nil
	})
}

// withEngine connects to a board, opens its container engine, calls work, and closes both.
func withEngine(ctx context.Context, opt images.Options, spec images.Spec, host string, o ContainerOptions,
	work func(context.Context, container.Engine) error,
) error {
	return reach.WithConnection(ctx, opt, spec, host, func(conn *boardssh.Conn) error {
		e, err := container.OpenEngine(ctx, conn, o.Engine, o.Namespace)
		if err != nil {
			return err
		}
		defer e.Close()
		return work(ctx, e)
	})
}

// RunContainer runs a container on a board and copies its output to stdout and stderr, or with
// c.Detach writes its name. It first warns of containers of earlier runs, and sends the image if
// that is a local file or in a registry. An exit status other than 0 is a report.ContainerFailed.
func RunContainer(ctx context.Context, stdout, stderr io.Writer, opt images.Options, spec images.Spec, host string, c container.Spec, o ContainerOptions) error {
	var source *fetch.Container
	if isImageSource(c.Image) {
		var err error
		if source, err = openImage(ctx, opt, c.Image); err != nil {
			return err
		}
		defer source.Close()
	}
	return withEngine(ctx, opt, spec, host, o, func(ctx context.Context, e container.Engine) error {
		if err := warnOfLeftovers(ctx, stderr, e, spec, host); err != nil {
			return err
		}
		if source != nil {
			pushed, err := pushImage(ctx, e, source, o)
			if err != nil {
				return err
			}
			c.Image = pushed.Image
		}
		c.Out = &container.Outputs{Stdout: forOutput(stdout), Stderr: forOutput(stderr)}
		defer progress.Release(ctx)()
		exit, err := e.Run(ctx, c)
		if err != nil {
			return err
		}
		if c.Detach {
			_, err = fmt.Fprintf(stdout, "%s\n", exit.Name)
			return err
		}
		if exit.Status != 0 {
			return report.ContainerFailed{Status: exit.Status}
		}
		return nil
	})
}

// isImageSource reports whether an image is an existing path or a URL (with ://, or oci-dir:PATH).
func isImageSource(image string) bool {
	file, _, _ := strings.Cut(image, "#")
	_, err := os.Stat(file)
	return err == nil || strings.Contains(image, "://") || strings.HasPrefix(image, "oci-dir:")
}

// warnOfLeftovers warns of earlier runs' containers, which may hold what this run needs, as a port.
func warnOfLeftovers(ctx context.Context, w io.Writer, e container.Engine, spec images.Spec, host string) error {
	left, err := e.List(ctx)
	for _, l := range left {
		fmt.Fprintf(w, "the board has %s of %s, %s since %s; deploy clean %s %s removes it\n",
			l.Name, l.Image, l.State, l.Started.Local().Format(time.DateTime), spec.Board, host)
	}
	return err
}

// CleanContainers removes containers that earlier runs left on a board, the named ones or all, and
// writes which. It removes none if a name is not that of such a container.
func CleanContainers(ctx context.Context, w io.Writer, opt images.Options, spec images.Spec, host string, names []string, o ContainerOptions) error {
	return withEngine(ctx, opt, spec, host, o, func(ctx context.Context, e container.Engine) error {
		left, err := e.List(ctx)
		if err != nil {
			return err
		}
		names := slices.Compact(slices.Sorted(slices.Values(names)))
		chosen := slices.DeleteFunc(slices.Clone(left), func(l container.Leftover) bool { return len(names) > 0 && !slices.Contains(names, l.Name) })
		if len(chosen) < len(names) {
			return fmt.Errorf("not all of %q are containers of deploy run; these are: %v", names, left)
		}
		for _, l := range chosen {
			if err := e.Remove(ctx, l.Name); err != nil {
				return err
			}
			fmt.Fprintf(w, "removed %s of %s\n", l.Name, l.Image)
		}
		if len(chosen) == 0 {
			fmt.Fprintln(w, "the board has no containers of deploy run")
		}
		return nil
	})
}

// forOutput returns w, or if w is a terminal, a writer that removes control characters and secrets.
func forOutput(w io.Writer) io.Writer {
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return printableWriter{w}
	}
	return w
}

type printableWriter struct{ io.Writer }

func (p printableWriter) Write(b []byte) (int, error) {
	_, err := io.WriteString(p.Writer, plaintext.Printable(string(b)))
	return len(b), err
}

// openImage opens an image by its path or URL. It needs no board.
func openImage(ctx context.Context, opt images.Options, text string) (*fetch.Container, error) {
	return fetch.OpenContainer(ctx, text, fetch.Options{Dir: opt.ImageCacheDir()})
}

// pushImage sends the image for the engine's platform, under o.Name or else the image's own name.
// If o.Prune is set, it then removes unused images.
func pushImage(ctx context.Context, e container.Engine, source *fetch.Container, o ContainerOptions) (container.Pushed, error) {
	image, err := source.Image(ctx, e.Platform())
	if err != nil {
		return container.Pushed{}, err
	}
	pushed, err := e.Push(ctx, image, cmp.Or(o.Name, image.Name))
	if err == nil && o.Prune {
		pushed.Pruned, err = e.Prune(ctx, pushed.Image)
	}
	return pushed, err
}

// showPushed writes as text what was sent, and which images were removed.
func showPushed(w io.Writer, p container.Pushed) {
	fmt.Fprintf(w, "%s (%s) is in the board's %s: %d of %d layers sent, %.1f MiB\n",
		p.Image, p.Platform, p.Engine, p.SentLayers, p.Layers, float64(p.SentBytes)/(1<<20))
	if p.Replaced != "" {
		fmt.Fprintf(w, "it took the name from %s\n", p.Replaced)
	}
	for _, name := range p.Pruned {
		fmt.Fprintf(w, "removed %s, which nothing used\n", name)
	}
}
