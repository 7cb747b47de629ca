package tegra

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"slipway/layers/progress"
	"slipway/layers/run"
)

// A card or a drive in this machine's reader is written from an image that the
// package's scripts make in a file: what they do to devices themselves proves nothing
// and takes any disk.

// cardScript is the package's script for a card, or else for an external drive, and
// the layout that it follows.
func (p *Package) cardScript() (script, layout string, err error) {
	switch {
	case p.has("dosdcard.sh"):
		return "dosdcard.sh", "flash.xml.in", nil
	case p.has("doexternal.sh"):
		return "doexternal.sh", "external-flash.xml.in", nil
	}
	return "", "", errors.New("the package makes no image for a card or drive (it has neither dosdcard.sh nor doexternal.sh): this board is flashed in recovery mode, as usb:PORT")
}

// CardReady says why no image of a card can be made of the package here.
func (p *Package) CardReady(ctx context.Context) error {
	_, _, err := p.cardScript()
	return errors.Join(err, p.lacks(ctx, card))
}

// Card makes the image of a card in a file. Its partitions have the sizes of the
// layout, and the one that fills to the end ends with the file. It is there only when it is whole.
func (p *Package) Card(ctx context.Context, out string, b Board) error {
	script, name, err := p.cardScript()
	if err != nil {
		return err
	}
	size := p.cardBytes(name)
	if size == 0 {
		return fmt.Errorf("%s: no device for a root file system", name)
	}
	out, err = filepath.Abs(out)
	if err != nil {
		return err
	}
	partial := out + ".partial"
	if err := os.RemoveAll(partial); err != nil {
		return err
	}
	r := &flashRun{pkg: p, host: Here, board: b, transcript: newTranscript(flows[card]), began: time.Now()}
	r.step = progress.Start(ctx, "card image", int64(len(r.transcript.flow.stages)), progress.Tasks)
	err = r.make(ctx, []string{"sh", "./" + script, "-s", strconv.FormatInt(size/512, 10), "-y", partial}, partial, size)
	if err == nil {
		err = os.Rename(partial, out)
	}
	r.step.End(fmt.Sprintf("%d MiB by %s", size>>20, script), err)
	if err != nil {
		return errors.Join(fmt.Errorf("make the image of a card: %w", err), os.RemoveAll(partial))
	}
	return nil
}

func (p *Package) cardBytes(name string) int64 {
	for _, l := range p.layouts {
		if l.name == name {
			return l.needed() &^ (1<<20 - 1)
		}
	}
	return 0
}

func (r *flashRun) make(ctx context.Context, argv []string, partial string, size int64) error {
	env, err := r.environment()
	if err != nil {
		return err
	}
	limited, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	r.stop = stop
	r.enter()
	err = run.Run(limited, run.Command{
		Argv: argv, Dir: r.board.Dir, Env: env, Unset: private, Log: filepath.Join(r.board.Logs, "card.log"), Line: r.line,
	})
	r.leave()
	if ctx.Err() != nil {
		return err
	}
	if err := r.explainEnd(err); err != nil {
		return err
	}
	info, err := os.Stat(partial)
	if err == nil && info.Size() != size {
		err = fmt.Errorf("the image has %d bytes, %d were asked for", info.Size(), size)
	}
	return err
}
