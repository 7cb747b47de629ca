package trust

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"slipway/layers/localfile"
	"slipway/layers/progress"
)

// proveFiles compares files with the list: all of both where a folder was named.
func (l *FolderReport) proveFiles(ctx context.Context, all Sums, endings []string) error {
	names := l.names
	if l.complete {
		inFolder, err := listFolder(l.folder, endings)
		if err != nil {
			return err
		}
		names = slices.Clone(all.Names)
		for _, name := range slices.Concat(inFolder, l.names) {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	for _, name := range names {
		f := FileReport{Name: name}
		if err := f.prove(ctx, l.folder, all); err != nil {
			f.Error = err.Error()
		}
		l.Files = append(l.Files, f)
	}
	return ctx.Err()
}

// listFolder returns what lies in a folder beside the list and its signatures.
func listFolder(folder string, endings []string) ([]string, error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, localfile.NotHere(folder, err)
	}
	var names []string
	for _, e := range entries {
		ending, beside := strings.CutPrefix(e.Name(), SumsName)
		if !beside || ending != "" && !slices.Contains(endings, ending) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// prove reads the file and compares its digest with the list's.
func (f *FileReport) prove(ctx context.Context, folder string, all Sums) error {
	want, ok := all.Named(f.Name)
	if !ok {
		return fmt.Errorf("%s does not name it: nobody signed it", SumsName)
	}
	in, info, err := OpenRegular(filepath.Join(folder, f.Name))
	if err != nil {
		return err
	}
	defer in.Close()
	if info.Size() > maxFileBytes {
		return fmt.Errorf("it has %d bytes, and %d are the most", info.Size(), int64(maxFileBytes))
	}
	step := progress.Start(ctx, "verify "+f.Name, info.Size(), progress.Bytes)
	// A file that grows during that is refused by its digest.
	f.SHA256, err = localfile.Digest(ctx, io.LimitReader(in, info.Size()+1), func(n int64) {
		f.Bytes += n
		step.Add(n)
	})
	step.End("", err)
	if err != nil {
		return err
	}
	if f.SHA256 != want {
		return fmt.Errorf("its SHA-256 is %s, and %s says %s: it is changed or damaged\nnext: repeat the line  # after fetching it again", f.SHA256, SumsName, want)
	}
	return nil
}
