// Package place runs a flashing place: named ports of this machine, into which a worker plugs
// cards, sticks and boards. Each is proved, written, read back, recorded and ejected. It never
// writes to what is plugged into another port.
package place

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"slipway/flash"
	"slipway/flash/device"
	"slipway/flash/identity"
	"slipway/images"
	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// State is what a port shows.
type State string

// The states of a port.
const (
	Empty    State = "EMPTY"
	Check    State = "CHECK"
	Write    State = "WRITE"
	ReadBack State = "READ BACK"
	Pass     State = "PASS"
	Fail     State = "FAIL"
	Known    State = "KNOWN"   // it is whole already, by this place's record
	Refused  State = "REFUSED" // it is not to be written, and is as it was
	Stopped  State = "STOPPED" // the worker ended the run; it is not whole, and neither good nor bad
	Closed   State = "CLOSED"  // the port failed too often
	Unnamed  State = "UNNAMED" // of a port that place.yml does not name: something was plugged in there
)

// Port is what the screen shows of one port, and one line of --json.
type Port struct {
	Time    time.Time     `json:"time"`
	Port    string        `json:"port"`
	Label   string        `json:"label"`
	State   State         `json:"state"`
	Percent int           `json:"percent"`
	Left    time.Duration `json:"-"` // until the end of Write or ReadBack; 0: unknown
	Text    string        `json:"text,omitempty"`
	Device  string        `json:"device,omitempty"`
	Serial  string        `json:"serial,omitempty"`
	Row     string        `json:"row,omitempty"`
	Receipt string        `json:"receipt,omitempty"` // path of its record
	Note    string        `json:"note,omitempty"`    // of what else went wrong, such as the program of after

	other   bool      // place.yml does not name it
	board   bool      // a Jetson or a DPU was here, whose own disks may be at the port while it is flashed
	medium  string    // that this is about
	busy    bool      // a goroutine serves it
	served  time.Time // when that ended: a list of devices that is older says nothing of the port
	ejected bool      // the medium is
	failed  int       // in a row
	speed   float64   // bytes per second of the last card
}

// Options are the options of one run.
type Options struct {
	Count int                  // ends the run after so many good ones; 0: Ctrl-C does
	Show  func([]Port, Totals) // called after each change, from one goroutine at a time
	Now   <-chan struct{}      // ends what is being written too; ctx ends the run after that
	Flash flash.Options        // OtherBoard, Raw, Holes, Blind of each flash
	// Identity makes the SSH identity of each card; nil: as the image has it, or by place.yml.
	Identity func() (*flash.Identity, error)
	Tick     time.Duration // between two looks at the ports; 0: half a second
}

// Place is a flashing place that runs.
type Place struct {
	config   *Config
	spec     images.Spec
	artifact images.Artifact
	began    time.Time
	prepare  func() error    // makes image once; an error if the board takes no disk image
	image    *flash.Prepared // nil: no disk was here, of a board that is not always one
	record   *record
	claims   *identity.Claims // nil: all cards get the same content
	options  Options

	mu       sync.Mutex
	ports    []*Port
	before   map[string]bool // media that were plugged in before the start
	practice bool            // place.yml names loop devices, so that unnamed ones are shown, too
	totals   Totals
	running  sync.WaitGroup
	broken   error // ends the run
}

// Run serves the ports until ctx ends, o.Count good ones are made today, or the record fails. Then
// it waits for what is being written, unless o.Now ends that too, and returns the counts of today.
func Run(ctx context.Context, spec images.Spec, artifact images.Artifact, c *Config, o Options) (Totals, error) {
	p, err := open(ctx, spec, artifact, c, o)
	if err != nil {
		return Totals{}, err
	}
	p.update(p.ports[0], func() {})
	p.serve(ctx)
	return p.totals, errors.Join(p.broken, p.close())
}

// open proves the configuration, the record, the image and its partition for identities, and
// unpacks the image. Call close at the end.
func open(ctx context.Context, spec images.Spec, artifact images.Artifact, c *Config, o Options) (_ *Place, err error) {
	p := &Place{config: c, spec: spec, artifact: artifact, options: o, began: time.Now(), before: map[string]bool{}}
	if c.noRows != nil {
		return nil, c.noRows
	}
	if c.plan != nil {
		p.claims = identity.NewClaims(c.plan)
	}
	plugged, err := device.Plugged()
	if err == nil {
		err = c.CheckDevices(plugged)
	}
	if err == nil {
		p.record, err = openRecord(c.Record, p.claims)
	}
	if err != nil {
		return nil, err
	}
	p.totals = p.record.today
	p.totals.last = nil // the pace is that of this run
	for _, d := range plugged {
		p.before[d.Medium()] = true
	}
	for _, name := range slices.Sorted(maps.Keys(c.Ports)) {
		p.practice = p.practice || strings.HasPrefix(name, "loop:")
		p.ports = append(p.ports, &Port{Port: name, Label: c.Ports[name], State: Empty, Time: time.Now().UTC()})
	}
	p.prepare = sync.OnceValue(func() (err error) {
		if !slices.Contains(spec.Flash.Kinds, device.Block) {
			return fmt.Errorf("board %s takes no disk image", spec.Board)
		}
		p.image, err = flash.Prepare(ctx, spec, artifact, c.Record, p.flashOptions())
		return err
	})
	if !slices.Contains(spec.Flash.Kinds, device.Tegra) && !slices.Contains(spec.Flash.Kinds, device.RShim) {
		err = p.prepare()
	}
	if err == nil {
		err = p.checkPartition(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

// close unlocks the record, and frees the unpacked image.
func (p *Place) close() error {
	p.record.unlock()
	if p.image == nil {
		return nil
	}
	return p.image.Close()
}

// checkPartition returns an error if the board or its image has no partition for identities. If
// rows go by serials, only a card shows that.
func (p *Place) checkPartition(ctx context.Context) error {
	switch {
	case p.claims == nil:
		return nil
	}
	if err := p.prepare(); err != nil {
		return p.config.errorAt("identity", "%w, and only disks get files of their own", err)
	}
	for _, port := range p.ports {
		if claim, err := p.claims.Reserve(identity.Card{Port: port.Port}); err == nil {
			defer p.claims.Release(claim)
			if _, _, err = p.ownFiles(ctx, claim.Row, nil); err != nil {
				return p.config.errorAt("identity", "%w", err)
			}
			return nil
		}
	}
	return nil
}

// flashOptions returns the options of each flash, with the image, digest and signers of place.yml.
func (p *Place) flashOptions() flash.Options {
	o := p.options.Flash
	o.Image, o.Digest, o.Signers, o.Out = p.config.Image, p.config.Digest, p.config.Signers, io.Discard
	return o
}

// DryRun proves what Run would prove, and prints what that would do now at each port. It makes the
// folder of the record, and writes to no card.
func DryRun(ctx context.Context, w io.Writer, spec images.Spec, artifact images.Artifact, c *Config, o Options) (err error) {
	o.Identity, o.Flash.DryRun = nil, true // it makes keys
	p, err := open(ctx, spec, artifact, c, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	plugged, err := device.Plugged()
	if err != nil {
		return err
	}
	for _, port := range p.ports {
		what := "nothing is plugged in"
		if i := slices.IndexFunc(plugged, port.has); i >= 0 {
			what = plugged[i].Path + " " + p.dryRunText(ctx, port, plugged[i])
		}
		fmt.Fprintf(w, "%s (%s): %s\n", port.Label, port.Port, plaintext.Printable(what))
	}
	_, err = fmt.Fprintln(w, "Dry run: no card was written.")
	return err
}

// dryRunText says what Run would do with what is at a port. The row that this names is reserved.
func (p *Place) dryRunText(ctx context.Context, port *Port, seen device.Device) string {
	e := Entry{Port: port.Port}
	_, _, err := p.proveCard(ctx, seen, &e)
	if err == nil && e.Device.Kind != device.Block {
		_, err = flash.Write(ctx, p.spec, p.artifact, seen.Path, p.flashOptions())
	}
	if err != nil {
		return "would not be written: " + plaintext.FirstLine(err.Error())
	}
	row := plaintext.Either(e.Row != "", ", row "+e.Row, "")
	if row != "" && e.Before == "" && !slices.Contains([]string{"serial", "port"}, p.config.Identity.By) {
		row += " if it comes first"
	}
	return "would be written" + row
}

// serve looks at the ports until the run ends, and then waits for what is being written.
func (p *Place) serve(ctx context.Context) {
	writing, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	go func() {
		select {
		case <-p.options.Now:
			stop(errors.New("stopped by the worker"))
		case <-writing.Done():
		}
	}()
	for ctx.Err() == nil && !p.isOver() {
		began := time.Now()
		plugged, err := device.Plugged()
		if err != nil {
			_ = p.endIf(err) // the run returns it
			break
		}
		p.addOthers(plugged)
		for _, port := range p.ports {
			p.look(writing, port, plugged, began)
		}
		_ = run.Sleep(ctx, cmp.Or(p.options.Tick, 500*time.Millisecond))
	}
	p.update(p.ports[0], func() { p.totals.ending = true })
	p.running.Wait()
}

// addOthers adds the ports without a name at which something was plugged in after the start.
func (p *Place) addOthers(plugged []device.Device) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, d := range plugged {
		known := slices.ContainsFunc(p.ports, func(port *Port) bool { return port.Port == d.Port })
		if !known && !p.before[d.Medium()] && d.HasMedium() && d.Port != "" && (d.Bus != "loop" || p.practice) {
			p.ports = append(p.ports, &Port{Port: d.Port, Label: d.Port, State: Empty, Time: time.Now().UTC(), other: true})
		}
	}
}

// isOver reports whether the count is reached, or the run is broken.
func (p *Place) isOver() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.broken != nil || p.options.Count > 0 && p.totals.Good >= p.options.Count
}

// errRecord marks an error of the record, not of a card. It has no text.
var errRecord = errors.New("")

// endIf ends the run with err, unless an earlier error does. It returns err as an errRecord, or nil.
func (p *Place) endIf(err error) error {
	if err == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.broken = cmp.Or(p.broken, err)
	return fmt.Errorf("%w%w", err, errRecord)
}

// look starts to serve what is newly plugged into an open port, if the count allows one more. plugged
// was read after began.
func (p *Place) look(ctx context.Context, port *Port, plugged []device.Device, began time.Time) {
	there := slices.ContainsFunc(plugged, func(d device.Device) bool { return d.Port == port.Port })
	i := slices.IndexFunc(plugged, port.has)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case port.busy || port.State == Closed || began.Before(port.served):
	case i < 0:
		switch {
		case port.State == Empty, there && port.ejected: // what is ejected may still be in the reader
		case port.board: // it resets itself, and the result stays
			port.medium = ""
		default:
			p.show(port, func() { port.reset(Empty, device.Device{}) })
		}
	case port.medium == plugged[i].Medium():
	case port.other:
		p.show(port, func() {
			port.reset(Unnamed, plugged[i])
			port.Text = fmt.Sprintf("not touched: what is at %s, a port that is not in %s", port.Port, filepath.Base(p.config.path))
		})
	case !p.isEnough():
		p.show(port, func() {
			port.reset(Check, plugged[i])
			port.busy = true
		})
		p.running.Go(func() { p.serveCard(ctx, port, plugged[i]) })
	}
}

// reset removes the port's last result. d is plugged in now; an empty Device: nothing is.
func (p *Port) reset(state State, d device.Device) {
	board := p.board || d.Kind == device.Tegra || d.Kind == device.RShim
	*p = Port{Port: p.Port, Label: p.Label, State: state, Device: d.Path, Serial: d.Serial, other: p.other, board: board, medium: d.Medium(), failed: p.failed, speed: p.speed}
}

// has reports whether d is plugged into the port, and no empty reader or disk of a board.
func (p *Port) has(d device.Device) bool {
	return d.Port == p.Port && d.HasMedium() && !(p.board && d.Kind == device.Block)
}

// isEnough reports whether the cards that are good or busy reach the count. The caller holds p.mu.
func (p *Place) isEnough() bool {
	n := p.totals.Good
	for _, port := range p.ports {
		if port.busy {
			n++
		}
	}
	return p.options.Count > 0 && n >= p.options.Count
}

// update changes a port by change and shows that.
func (p *Place) update(port *Port, change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.show(port, change)
}

// show is update for a caller that holds p.mu.
func (p *Place) show(port *Port, change func()) {
	change()
	port.Time = time.Now().UTC()
	if p.config.HubTable() != "" {
		p.totals.left = fmt.Sprintf(", %d rows left", p.claims.Left())
	}
	if p.options.Show == nil {
		return
	}
	all := make([]Port, len(p.ports))
	for i, port := range p.ports {
		all[i] = *port
	}
	p.options.Show(all, p.totals)
}

// Ports prints the ports at which something is plugged in, as lines of place.yml.
func Ports(w io.Writer) error {
	plugged, err := device.Plugged()
	if err != nil {
		return err
	}
	fmt.Fprintln(w, "ports:  # of place.yml: keep those that are yours, and give each a name")
	for _, d := range plugged {
		if !portName().MatchString(d.Port) {
			continue
		}
		full, err := device.Examine(d.Path)
		note := cmp.Or(full.Refused, d.Model, d.Chip)
		if err != nil {
			note = err.Error()
		}
		fmt.Fprintf(w, "  %s%s: %q  # %s, %s, %s\n", plaintext.Either(full.HoldsSystem(), "# ", ""), d.Port, d.Port, d.Path, plaintext.SizeText(d.SizeBytes), plaintext.OneLine(note))
	}
	return nil
}
