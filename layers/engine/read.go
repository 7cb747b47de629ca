package engine

import (
	"fmt"
	"io"
	"os"
)

// ReadFile reads a file that has no reason to be larger than most bytes. It counts what
// it reads: files of /proc, pipes and devices have no size.
func ReadFile(name string, most int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ReadAll(f, name, most)
}

// ReadAll is ReadFile for a file that is open. name is for the error.
func ReadAll(r io.Reader, name string, most int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, most+1))
	switch {
	case err != nil:
		return nil, err
	case int64(len(data)) > most:
		return nil, fmt.Errorf("%s: larger than %d KiB; is it the right file?", name, most>>10)
	}
	return data, nil
}
