package rshim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"slipway/layers/plaintext"
)

// dpuStatus is a DPU as Show prints it.
type dpuStatus struct {
	Device string `json:"device"`
	Misc
	Log []string `json:"log"` // the DPU's messages since its log was cleared
}

// Show prints status and messages of the named rshims, or of all on this machine. It leaves their
// settings as they were. If it cannot read one, it still prints the others.
func Show(ctx context.Context, w io.Writer, names []string, asJSON bool) error {
	if len(names) == 0 {
		if names = Names(); len(names) == 0 {
			return errors.New("this machine has no rshim: its driver is not installed (Debian's package rshim) or does not run, or a BMC holds the DPU's\nnext: systemctl start rshim")
		}
	}
	all, failed := []dpuStatus{}, []error(nil)
	for _, name := range names {
		s, err := readStatus(ctx, name)
		if err != nil {
			failed = append(failed, withName(name, err))
			continue
		}
		all = append(all, s)
	}
	if asJSON {
		return errors.Join(append(failed, plaintext.WriteJSON(w, all))...)
	}
	for _, s := range all {
		s.printText(w)
	}
	return errors.Join(failed...)
}

// withName prefixes err, never nil, with the rshim's name, unless it begins with that.
func withName(name string, err error) error {
	if strings.HasPrefix(err.Error(), name+":") || strings.HasPrefix(err.Error(), strings.TrimSuffix(name, "/")+"/") {
		return err
	}
	return fmt.Errorf("%s: %w", name, err)
}

// readStatus locks an rshim and reads its settings and messages. It raises DISPLAY_LEVEL meanwhile.
func readStatus(ctx context.Context, name string) (s dpuStatus, err error) {
	p, err := Open(ctx, name)
	if err != nil {
		return dpuStatus{}, err
	}
	defer p.Close()
	if err := p.Hold(); err != nil {
		return dpuStatus{}, err
	}
	before, err := p.Misc(ctx)
	if err != nil {
		return dpuStatus{}, err
	}
	s = dpuStatus{name, before, before.log}
	if before.level == "2" {
		return s, nil
	}
	if err := p.writeSetting(ctx, "DISPLAY_LEVEL", "2"); err != nil {
		return s, err
	}
	now, err := p.Misc(ctx)
	s.Log = now.log
	away, cancel := context.WithTimeout(context.WithoutCancel(ctx), restoreLimit)
	defer cancel()
	return s, errors.Join(err, p.writeSetting(away, "DISPLAY_LEVEL", before.level))
}

func (s dpuStatus) printText(w io.Writer) {
	fmt.Fprintln(w, s.Device)
	for _, f := range s.Fields {
		fmt.Fprintf(w, "  %-16s %s\n", f.Key, f.Value)
	}
	for _, line := range s.Log {
		fmt.Fprintln(w, "  | "+line)
	}
}
