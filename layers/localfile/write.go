package localfile

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
)

// WriteJSON writes v as indented JSON. The file appears as a whole.
func WriteJSON(name string, v any, mode os.FileMode) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return renameio.WriteFile(name, append(data, '\n'), mode)
}

// Replace writes a file of mode 0644 beside path and renames it, so that path is never incomplete.
// The caller holds the workspace's lock. It does not sync, as that would wait for all checkouts.
func Replace(path string, content []byte) error {
	part := filepath.Join(filepath.Dir(path), ".new-"+filepath.Base(path))
	_ = os.Remove(part) // of a run that was killed
	f, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer os.Remove(part) // gone already if all went well
	_, err = f.Write(content)
	if err := errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(part, path)
}

// SyncFolder waits until the entries of a folder are on the disk.
func SyncFolder(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
