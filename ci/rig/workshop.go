package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"slipway/images"
	"slipway/layers/progress"
)

// Workshop is the folder in which a part of a rig was built from source. It is kept, so
// that a changed part builds quickly.
type Workshop struct {
	build build
	work  string
}

// OpenWorkshop builds a part of a rig on the layers of Build, unless it is already
// built.
func OpenWorkshop(ctx context.Context, spec images.Spec, opt images.Options, layers []string, part string) (*Workshop, error) {
	i := slices.IndexFunc(spec.Rig.Source, func(s images.RigSource) bool { return s.Name == part })
	if i < 0 || len(layers) < i+1 {
		return nil, fmt.Errorf("the rig %s has no part %s", spec.Board, part)
	}
	dir, err := filepath.Abs(opt.BoardDir(spec))
	if err != nil {
		return nil, err
	}
	b := build{spec: spec, source: spec.Rig.Source[i], dir: dir, below: slices.Clone(layers[:i+1])}
	key, err := b.layerKey()
	if err != nil {
		return nil, err
	}
	w := &Workshop{build: b, work: filepath.Join(dir, "workshop-"+part+"-"+key)}
	if _, err := os.Stat(w.work); err == nil {
		return w, nil
	}
	return w, progress.Run(ctx, part+", to be changed", func(step *progress.Step) (string, error) {
		return "built from source", w.buildPart(ctx, step)
	})
}

func (w *Workshop) buildPart(ctx context.Context, step *progress.Step) error {
	made, work := w.work+".made", w.work+".part"
	defer os.RemoveAll(made)
	for _, dir := range []string{made, work} {
		if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o755)); err != nil {
			return err
		}
	}
	if err := w.build.runScript(ctx, step, made, work); err != nil {
		return err
	}
	return os.Rename(work, w.work)
}

// Change runs a script where the part was built, with a file /build/change. It returns
// the folder with the script's results, which the next change replaces.
func (w *Workshop) Change(ctx context.Context, script string, change []byte) (made string, err error) {
	made = w.work + ".changed"
	if err := errors.Join(os.RemoveAll(made), os.Mkdir(made, 0o755), os.WriteFile(filepath.Join(w.work, "change"), change, 0o644)); err != nil {
		return "", err
	}
	step := progress.Start(ctx, w.build.source.Name, 0, "")
	err = w.build.runStep(ctx, step, []byte(script), made, w.work)
	step.End("built with the change", err)
	return made, err
}
