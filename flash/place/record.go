package place

import (
	"cmp"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"slipway/flash"
	"slipway/flash/device"
	"slipway/flash/identity"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// Entry is what the record has of one card, stick or board.
type Entry struct {
	Verdict  string        `json:"verdict"`         // a State, or unfinished
	Taken    bool          `json:"taken,omitempty"` // it may be whole, so that no other one gets its row
	Cause    string        `json:"cause,omitempty"`
	Error    string        `json:"error,omitempty"`
	Port     string        `json:"port"`
	Label    string        `json:"label"`
	Serial   string        `json:"serial,omitempty"` // its own
	Stamp    string        `json:"stamp,omitempty"`
	Row      string        `json:"row,omitempty"`
	Seconds  float64       `json:"seconds"`
	Began    time.Time     `json:"began"`
	Finished time.Time     `json:"finished"`
	Device   device.Device `json:"device"`
	Receipt  flash.Receipt `json:"receipt"`

	Before  string `json:"before,omitempty"`  // that this place had made the card before
	HostKey string `json:"hostKey,omitempty"` // fingerprint of the one of its row
	Boot    string `json:"boot,omitempty"`    // of this machine, for a DPU
	Note    string `json:"note,omitempty"`    // of what else went wrong, such as the program of after

	path string
}

// madeText says when and where a card was made, or begun, and with which row.
func (e Entry) madeText() string {
	at, did := e.Finished, "written"
	if at.IsZero() {
		at, did = e.Began, "begun"
	}
	return fmt.Sprintf("%s %s at %s%s", did, at.Local().Format("2 January 15:04"), e.Label, plaintext.Either(e.Row != "", ", row "+e.Row, ""))
}

// card returns what tells the card from others.
func (e Entry) card() identity.Card {
	return identity.Card{Serial: e.Serial, Stamp: e.Stamp, Port: e.Port, Medium: fmt.Sprintf("%s %d", e.Device.Model, e.Device.SizeBytes)}
}

const (
	maxEntryBytes = 1 << 20
	leastFree     = 16 << 20 // of the record's file system, before each card
	unfinished    = "UNFINISHED"
	dayForm       = "2006-01-02"
)

// record is a folder with a file for each entry, in a folder for each day, and a CSV for each day.
type record struct {
	dir    string
	unlock func()

	mu    sync.Mutex
	known map[string]Entry // the last entry that is Taken, by serial, stamp, or boot and port
	today Totals           // of the entries of today, when the record was opened

	claims *identity.Claims // get the rows of these entries; nil: there are none
}

// openRecord makes the folder, locks it against a second place, proves that it has room, and reads
// its entries. claims, unless nil, get the rows of these and of later ones.
func openRecord(dir string, claims *identity.Claims) (*record, error) {
	if err := localfile.MkdirAll(dir); err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "place.lock")
	unlock, err := localfile.Hold(file)
	switch {
	case errors.Is(err, localfile.ErrHeld):
		return nil, fmt.Errorf("the record %s is %w, another place\nnext: repeat the line  # when that has ended, or name another folder in record", dir, err)
	case err != nil:
		return nil, localfile.ExplainUnreadable(file, err)
	}
	r := &record{dir: dir, unlock: unlock, known: map[string]Entry{}, claims: claims}
	if err = r.checkSpace(); err == nil {
		err = eachEntry(dir, func(e Entry) {
			if now := time.Now(); e.Began.Local().Format(dayForm) == now.Format(dayForm) {
				r.today.add(e)
			}
			r.note(e)
		})
	}
	if err != nil {
		unlock()
		return nil, fmt.Errorf("the record %s: %w", dir, err)
	}
	return r, nil
}

// note keeps an entry of a card that is whole, or may be, for find, and notes its row in r.claims.
func (r *record) note(e Entry) {
	if !e.Taken {
		return
	}
	if r.claims != nil && e.Row != "" {
		r.claims.Note(identity.Claim{Row: identity.Row{Key: e.Row}, Card: e.card(), Time: e.Began})
	}
	if c := e.card(); c.Serial != "" {
		r.known["serial "+c.Serial+" "+c.Medium] = e
	}
	if e.Stamp != "" {
		r.known["stamp "+e.Stamp] = e
	}
	if e.Boot != "" {
		r.known["boot "+e.Boot+" "+e.Port] = e
	}
}

// find returns the last entry by which this place made, or completed, a card with the stamp of now,
// or else with the serial and medium, or a DPU at the port since this machine started. The stamp is
// a copy's if the serial or medium is another one.
func (r *record) find(now Entry) (e Entry, found bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := now.card()
	e, found = r.known["stamp "+c.Stamp]
	if found && (c.Serial == "" || e.Serial == "" || e.Serial == c.Serial && e.card().Medium == c.Medium) {
		return e, true
	}
	if e, found = r.known["serial "+c.Serial+" "+c.Medium]; !found {
		e, found = r.known["boot "+now.Boot+" "+c.Port]
	}
	return e, found
}

// take sets e.Taken and writes e, as the card is about to become whole. It returns an error if that
// is not safely on the disk.
func (r *record) take(e *Entry) error {
	e.Verdict, e.Taken = unfinished, true
	if err := r.checkSpace(); err != nil {
		return err
	}
	return r.write(e)
}

// add writes the final entry of a card, in place of that of take, and its line of the day's CSV.
func (r *record) add(e *Entry) error {
	if err := r.write(e); err != nil {
		return err
	}
	return r.addLine(*e)
}

// write writes the entry's file, synced with its folder, sets e.path, and notes the entry.
func (r *record) write(e *Entry) error {
	day := filepath.Join(r.dir, e.Began.Format(dayForm))
	if err := os.MkdirAll(day, 0o755); err != nil {
		return err
	}
	name := strings.NewReplacer("/", "_", ":", "_").Replace(e.Port)
	e.path = filepath.Join(day, e.Began.Format("150405.000")+"-"+name[max(0, len(name)-60):]+".json")
	data, err := json.MarshalIndent(e, "", "  ")
	if err != nil {
		return err
	}
	if err := syncFile(e.path, append(data, '\n')); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.note(*e)
	return nil
}

// syncFile replaces a file. When it returns nil, a power cut does not lose the file.
func syncFile(path string, data []byte) error {
	if err := renameio.WriteFile(path, data, 0o644); err != nil {
		return err
	}
	for _, dir := range []string{filepath.Dir(path), filepath.Dir(filepath.Dir(path))} {
		f, err := os.Open(dir)
		if err != nil {
			return err
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// checkSpace returns an error if the record's file system is nearly full.
func (r *record) checkSpace() error {
	free, err := localfile.FreeBytes(r.dir)
	if err == nil && free < leastFree {
		err = fmt.Errorf("%s free, and a place wants %s: %w\nnext: df -h %s", plaintext.SizeText(free), plaintext.SizeText(leastFree), unix.ENOSPC, plaintext.Quote(r.dir))
	}
	return err
}

var csvHead = []string{"finished", "verdict", "cause", "port", "label", "serial", "stamp", "row", "image", "image sha256", "signed by", "seconds", "receipt"}

// addLine appends the entry to the day's CSV.
func (r *record) addLine(e Entry) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	f, err := os.OpenFile(filepath.Join(r.dir, e.Began.Format(dayForm)+".csv"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	w := csv.NewWriter(f)
	if info, err := f.Stat(); err != nil || info.Size() == 0 {
		_ = w.Write(csvHead) // w.Error has an error
	}
	line := []string{
		e.Finished.Format(time.RFC3339), e.Verdict, e.Cause, e.Port, e.Label, e.Serial, e.Stamp, e.Row, e.Receipt.Image, cmp.Or(e.Receipt.ImageSHA256, e.Receipt.UnpackedSHA256),
		strings.Join(e.Receipt.SignedBy, " "), strconv.FormatFloat(e.Seconds, 'f', 1, 64), filepath.Base(e.path),
	}
	for i, field := range line {
		line[i] = plaintext.OneLine(field)
		if strings.HasPrefix(field, "=") || strings.HasPrefix(field, "@") || strings.HasPrefix(field, "+") { // a spreadsheet would compute it
			line[i] = "'" + line[i]
		}
	}
	_ = w.Write(line)
	w.Flush()
	return errors.Join(w.Error(), f.Sync())
}

// ParseEntry parses the file of an entry.
func ParseEntry(data []byte) (e Entry, err error) {
	if len(data) > maxEntryBytes {
		return e, fmt.Errorf("an entry is longer than %d bytes", maxEntryBytes)
	}
	return e, plaintext.JSONError(json.Unmarshal(data, &e))
}

// eachEntry calls each with all entries of a record, the oldest first.
func eachEntry(dir string, each func(Entry)) error {
	names, _ := filepath.Glob(filepath.Join(localfile.QuoteGlob(dir), "[0-9]*", "*.json")) // the pattern is well-formed
	for _, name := range names {
		data, err := localfile.Read(name, maxEntryBytes)
		var e Entry
		if err == nil {
			e, err = ParseEntry(data)
		}
		if err != nil {
			return fmt.Errorf("%s: %w\nnext: mv %s %s", name, err, plaintext.Quote(name), plaintext.Quote(name+".bad"))
		}
		e.path = name
		each(e)
	}
	return nil
}
