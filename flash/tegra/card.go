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

// Slipway writes a card or drive in this machine's reader from an image that the scripts make in a
// file. The scripts' own writing verifies nothing and accepts any disk.

// cardScript returns the script that makes a card's image, or else an external drive's, and the
// name of its layout; an error if the package has neither.
func (p *Package) cardScript() (script, layout string, err error) {
	switch {
	case p.hasFile("dosdcard.sh"):
		return "dosdcard.sh", "flash.xml.in", nil
	case p.hasFile("doexternal.sh"):
		return "doexternal.sh", "external-flash.xml.in", nil
	}
	return "", "", errors.New("the package makes no image for a card or drive (it has neither dosdcard.sh nor doexternal.sh): this board is flashed in recovery mode, as usb:PORT")
}

// CardReady returns an error if the package makes no card image, or this machine lacks programs.
func (p *Package) CardReady(ctx context.Context) error {
	_, _, err := p.cardScript()
	return errors.Join(err, p.missingTools(ctx, card))
}

// Card runs the package's script, which makes a card image in the file out. The image is as large
// as the partitions of the package's layout. Only a whole file appears.
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
	err = r.makeImage(ctx, []string{"sh", "./" + script, "-s", strconv.FormatInt(size/512, 10), "-y", partial}, partial, size)
	if err == nil {
		err = os.Rename(partial, out)
	}
	r.step.End(fmt.Sprintf("%d MiB by %s", size>>20, script), err)
	if err != nil {
		return errors.Join(fmt.Errorf("make the image of a card: %w", err), os.RemoveAll(partial))
	}
	return nil
}

// cardBytes returns a disk's size in bytes for the layout called name, of whole MiB; 0 if unknown.
func (p *Package) cardBytes(name string) int64 {
	for _, l := range p.layouts {
		if l.name == name {
			return l.diskBytes() &^ (1<<20 - 1)
		}
	}
	return 0
}

// makeImage runs argv, which makes an image in the file partial, with a time limit for each stage.
// It returns an error unless the image then has size bytes.
func (r *flashRun) makeImage(ctx context.Context, argv []string, partial string, size int64) error {
	err := r.runStages(ctx, run.Command{Argv: argv, Log: filepath.Join(r.board.Logs, "card.log")})
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
