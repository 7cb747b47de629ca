package trust

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

const (
	maxReleaseSumsBytes = 1 << 20
	maxFileBytes        = 64 << 30 // more than any file of a release or any image has
)

// Report lists the verified files and folders.
type Report struct {
	Verified bool           `json:"verified"`
	Signers  string         `json:"signers"` // the file that names who may sign
	Lists    []FolderReport `json:"lists"`
}

// FolderReport is the result for one signed list of digests and the files in its folder.
type FolderReport struct {
	Path     string       `json:"path"`
	Signer   *Signer      `json:"signer,omitempty"`
	Error    string       `json:"error,omitempty"` // nothing in the folder is proved
	Files    []FileReport `json:"files"`
	folder   string
	names    []string // the files to verify
	complete bool     // all files of the list, and of the folder
}

// FileReport is the result for one file of a list.
type FileReport struct {
	Name   string `json:"name"`
	SHA256 string `json:"sha256,omitempty"` // of its content
	Bytes  int64  `json:"bytes,omitempty"`
	Error  string `json:"error,omitempty"` // it is not proved
}

// VerifyFiles verifies files, and all files of folders, against the signed SHA256SUMS in their
// folder. The error says how many are not verified; the report has the reason for each.
func VerifyFiles(ctx context.Context, paths []string, signersFile string) (Report, error) {
	none := Report{Lists: []FolderReport{}}
	lists, err := groupByFolder(paths)
	if err != nil {
		return none, err
	}
	signers, err := NamedOrOwn(signersFile)
	if err != nil {
		return none, err
	}
	for _, l := range lists {
		if err := RefuseBeside(l.folder, signers[0].File); err != nil {
			return none, err
		}
	}
	for i := range lists {
		if err := lists[i].prove(ctx, signers); ctx.Err() != nil {
			return none, context.Cause(ctx)
		} else if err != nil {
			lists[i].Error = err.Error()
		}
	}
	r := Report{Signers: signers[0].File, Lists: lists}
	err = r.firstError()
	r.Verified = err == nil
	return r, err
}

// groupByFolder returns a report for each folder of the paths. A folder itself means all its files.
func groupByFolder(paths []string) ([]FolderReport, error) {
	var lists []FolderReport
	for _, p := range paths {
		info, err := os.Lstat(p)
		if err != nil {
			return nil, localfile.ExplainUnreadable(p, err)
		}
		folder, whole := filepath.Dir(p), false
		if followed, err := os.Stat(p); err == nil && followed.IsDir() {
			folder, whole = filepath.Clean(p), true
		}
		at := slices.IndexFunc(lists, func(l FolderReport) bool { return l.folder == folder })
		if at < 0 {
			at = len(lists)
			lists = append(lists, FolderReport{Path: filepath.Join(folder, SumsName), folder: folder, Files: []FileReport{}})
		}
		lists[at].complete = lists[at].complete || whole
		if !whole && !slices.Contains(lists[at].names, info.Name()) {
			lists[at].names = append(lists[at].names, info.Name())
		}
	}
	return lists, nil
}

// prove verifies the signature of the folder's SHA256SUMS, and then the files.
func (l *FolderReport) prove(ctx context.Context, signers Lists) error {
	data, err := ReadRegular(l.Path, maxReleaseSumsBytes)
	if err != nil {
		return err
	}
	proofs, err := signers.Prove(ctx, Folder(l.folder), l.Path, Bytes(data))
	if err != nil {
		return err
	}
	sums, err := ParseSums(l.Path, data)
	if err := cmp.Or(sums.CheckRelease(), err); err != nil {
		return err
	}
	l.Signer = &proofs[0].Signer
	return l.proveFiles(ctx, sums, signers[0].Endings())
}

// firstError returns an error with the number of unverified files and the reason of the first.
func (r Report) firstError() error {
	var why string
	wrong, all := 0, 0
	for _, l := range r.Lists {
		if l.Error != "" {
			return fmt.Errorf("verify %s: %s", l.folder, l.Error)
		}
		for _, f := range l.Files {
			all++
			if f.Error != "" {
				wrong++
				why = cmp.Or(why, fmt.Sprintf("%s: %s", filepath.Join(l.folder, f.Name), f.Error))
			}
		}
	}
	if wrong > 0 {
		return fmt.Errorf("%d of %d files are not proved: %s", wrong, all, why)
	}
	return nil
}

// Show prints the report for a person.
func (r Report) Show(w io.Writer) {
	for _, l := range r.Lists {
		if l.Signer == nil {
			continue
		}
		fmt.Fprintf(w, "%s is signed by %s, whom %s names\n", l.Path, plaintext.OneLine(l.Signer.String()), r.Signers)
		for _, f := range l.Files {
			if f.Error != "" {
				fmt.Fprintf(w, "  WRONG  %s: %s\n", plaintext.OneLine(f.Name), plaintext.FirstLine(f.Error))
			} else {
				fmt.Fprintf(w, "  proved %s  sha256:%s, %d bytes\n", plaintext.OneLine(f.Name), f.SHA256, f.Bytes)
			}
		}
	}
}

// proveFiles compares the named files with the digests. For a whole folder it takes all files of
// the list and of the folder, so that missing and unlisted files are errors.
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

// listFolder returns the names in a folder, without SHA256SUMS and its signatures.
func listFolder(folder string, endings []string) ([]string, error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, localfile.ExplainUnreadable(folder, err)
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

// prove computes the file's SHA-256, keeps it in f, and returns an error unless the list has it.
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
