package release

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"path"
	"slices"
	"time"
)

// file is a file of an archive, or a folder if the path ends with a slash.
type file struct {
	path string
	mode int64
	data []byte
}

func comparePaths(a, b file) int { return cmp.Compare(a.path, b.path) }

// addFolders returns the files and each folder above them once.
func addFolders(files []file) []file {
	all, known := slices.Clone(files), map[string]bool{".": true}
	for _, f := range files {
		known[path.Clean(f.path)] = true
	}
	for _, f := range files {
		for dir := path.Dir(path.Clean(f.path)); !known[dir]; dir = path.Dir(dir) {
			known[dir] = true
			all = append(all, file{path: dir + "/", mode: 0o755})
		}
	}
	return all
}

// compress returns data in gzip form without a name and a time: the same data give the same bytes.
func compress(data []byte) []byte {
	var b bytes.Buffer
	w, _ := gzip.NewWriterLevel(&b, gzip.BestCompression) // a known level
	_, _ = w.Write(data)                                  // a buffer takes all
	_ = w.Close()
	return b.Bytes()
}

// packTarGz returns files and the folders above, with prefix before their names, as a compressed
// tar, sorted and owned by root.
func packTarGz(prefix string, files []file, date time.Time) ([]byte, error) {
	var b bytes.Buffer
	t := tar.NewWriter(&b)
	for _, f := range slices.SortedFunc(slices.Values(addFolders(files)), comparePaths) {
		h := tar.Header{Name: prefix + f.path, Mode: f.mode, Size: int64(len(f.data)), ModTime: date, Uname: "root", Gname: "root", Format: tar.FormatGNU}
		if err := t.WriteHeader(&h); err != nil {
			return nil, err
		}
		if _, err := t.Write(f.data); err != nil {
			return nil, err
		}
	}
	if err := t.Close(); err != nil {
		return nil, err
	}
	return compress(b.Bytes()), nil
}

// packTar returns the .tar.gz of a release for one architecture: the program and its documents.
func (p product) packTar(folder, arch string) ([]byte, error) {
	files := []file{{path: "slipway", mode: 0o755, data: p.programs[arch].data}}
	for _, f := range p.docs {
		dir := "completions/"
		switch {
		case path.Dir(f.path) == docFolder:
			dir = ""
		case path.Base(f.path) == "slipway":
			f.path += ".bash"
		}
		files = append(files, file{path: dir + path.Base(f.path), mode: f.mode, data: f.data})
	}
	return packTarGz(folder+"/", files, p.date)
}
