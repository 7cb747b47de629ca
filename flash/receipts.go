package flash

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"slipway/images"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

const (
	keepReceipts    = 64 // devices whose receipts the state folder keeps
	maxReceiptBytes = 16 << 20
)

// errNotEnded is in a device's receipt from start to end of its flash. After a crash it stays.
var errNotEnded = errors.New("this flash has not ended, or was killed")

// recordReceipts runs work, which writes devices, and returns its results. In the state folder it
// replaces the receipt of each device's last flash, except for a device that stays as it was. First
// it records that the flash did not end; if that fails, it does not run work.
func (r request) recordReceipts(work func() ([]Receipt, error)) ([]Receipt, error) {
	began := time.Now().UTC()
	var before, begun []Receipt
	for _, d := range r.devices {
		begun = append(begun, Receipt{Board: r.artifact.Board, Device: d, Finished: began}.withError(errNotEnded))
	}
	err := changeReceipts(r.state, func(all []Receipt) []Receipt {
		before = slices.Clone(all)
		copySaved(begun, before)
		return replaceReceipts(all, begun, len(all)+len(begun))
	})
	if err != nil {
		return nil, err
	}
	receipts, err := work()
	copySaved(receipts, before)
	ended := slices.Clone(receipts)
	if f := (&Failed{}); errors.As(err, &f) {
		ended = append(ended, slices.DeleteFunc(slices.Clone(f.Receipts), func(r Receipt) bool { return r.Untouched })...)
		copySaved(ended, before)
	}
	return receipts, errors.Join(err, changeReceipts(r.state, func(all []Receipt) []Receipt {
		isBegun := func(r Receipt) bool { return r.Error == errNotEnded.Error() && r.Finished.Equal(began) }
		for i, r := range all {
			if old := slices.IndexFunc(before, r.isOfSame); isBegun(r) && old >= 0 {
				all[i] = before[old]
			}
		}
		return replaceReceipts(slices.DeleteFunc(all, isBegun), ended, keepReceipts)
	}))
}

// copySaved copies saved paths from a device's failed receipt in before to its receipt without any.
func copySaved(receipts, before []Receipt) {
	for i, r := range receipts {
		if old := slices.IndexFunc(before, r.isOfSame); old >= 0 && len(r.Saved) == 0 && before[old].Error != "" {
			receipts[i].Saved = before[old].Saved
		}
	}
}

// isOfSame reports whether both receipts are of one device.
func (r Receipt) isOfSame(other Receipt) bool { return r.Device.Token() == other.Device.Token() }

// replaceReceipts returns all with fresh in place of the receipts of the same devices. It drops the
// oldest over keep, but none of fresh.
func replaceReceipts(all, fresh []Receipt, keep int) []Receipt {
	all = slices.DeleteFunc(all, func(r Receipt) bool { return slices.ContainsFunc(fresh, r.isOfSame) })
	all = append(all, fresh...)
	return all[max(0, len(all)-max(keep, len(fresh))):]
}

// changeReceipts replaces the receipts in the state folder dir by the result of change, under the
// folder's lock. Without receipts it removes their file.
func changeReceipts(dir string, change func([]Receipt) []Receipt) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	lock, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := localfile.WaitLock(context.Background(), lock); err != nil { // after Ctrl-C too
		return err
	}
	path := images.ReceiptPath(dir)
	data, err := localfile.Read(path, maxReceiptBytes)
	var all []Receipt
	switch {
	case err == nil:
		err = json.Unmarshal(data, &all)
	case errors.Is(err, fs.ErrNotExist):
		err = nil
	}
	if err != nil {
		return fmt.Errorf("read the receipts of earlier flashes, %s: %w\nnext: mv %s %s", path, err, plaintext.Quote(path), plaintext.Quote(path+".old"))
	}
	if all = change(all); len(all) == 0 {
		return localfile.Remove(path)
	}
	return localfile.WriteJSON(path, all, 0o644)
}
