// Package verify proves files by a signed list of digests that lies beside them, as in a
// release of Slipway. It fetches nothing.
package verify

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"slipway/flash/sshsig"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// SumsName is the name of a list of digests, as "sha256sum -c" reads it.
const SumsName = "SHA256SUMS"

const (
	maxSignersBytes   = 1 << 20
	maxSumsBytes      = 1 << 20
	maxSignatureBytes = 64 << 10
	maxFileBytes      = 64 << 30 // more than any file of a release or any image has
)

// Report says what was verified.
type Report struct {
	Verified bool   `json:"verified"`
	Signers  string `json:"signers"` // the file that names who may sign
	Lists    []List `json:"lists"`
}

// List is a signed list of digests, and its files that were looked at.
type List struct {
	Path     string         `json:"path"`
	Signer   *sshsig.Signer `json:"signer,omitempty"`
	Error    string         `json:"error,omitempty"` // nothing in the folder is proved
	Files    []File         `json:"files"`
	folder   string
	names    []string // the files to verify
	complete bool     // all files of the list, and of the folder
}

// File is a file of a list.
type File struct {
	Name   string `json:"name"`
	SHA256 string `json:"sha256,omitempty"` // of its content
	Bytes  int64  `json:"bytes,omitempty"`
	Error  string `json:"error,omitempty"` // it is not proved
}

// Files verifies files and whole folders. The error says how many are not proved; the report
// has the reason for each.
func Files(ctx context.Context, paths []string, signersFile string) (Report, error) {
	none := Report{Lists: []List{}}
	lists, err := groupByFolder(paths)
	if err != nil {
		return none, err
	}
	var folders []string
	for _, l := range lists {
		folders = append(folders, l.folder)
	}
	signersFile, signers, err := ReadSigners(signersFile, folders...)
	if err != nil {
		return none, err
	}
	for i := range lists {
		if err := lists[i].prove(ctx, signers); ctx.Err() != nil {
			return none, context.Cause(ctx)
		} else if err != nil {
			lists[i].Error = err.Error()
		}
	}
	r := Report{Signers: signersFile, Lists: lists}
	err = r.firstError()
	r.Verified = err == nil
	return r, err
}

// groupByFolder returns a list for each folder. A folder stands for all files in it.
func groupByFolder(paths []string) ([]List, error) {
	var lists []List
	for _, p := range paths {
		info, err := os.Lstat(p)
		if err != nil {
			return nil, localfile.NotHere(p, err)
		}
		folder, whole := filepath.Dir(p), false
		if followed, err := os.Stat(p); err == nil && followed.IsDir() {
			folder, whole = filepath.Clean(p), true
		}
		at := slices.IndexFunc(lists, func(l List) bool { return l.folder == folder })
		if at < 0 {
			at = len(lists)
			lists = append(lists, List{Path: filepath.Join(folder, SumsName), folder: folder, Files: []File{}})
		}
		lists[at].complete = lists[at].complete || whole
		if !whole && !slices.Contains(lists[at].names, info.Name()) {
			lists[at].names = append(lists[at].names, info.Name())
		}
	}
	return lists, nil
}

// ReadSigners reads the list of signers: the file at path, or else that of the environment or
// the user's own. It refuses one from a folder of the files: who changed those could change
// it too.
func ReadSigners(path string, folders ...string) (string, sshsig.Signers, error) {
	path, err := findSigners(path)
	if err != nil {
		return path, sshsig.Signers{}, err
	}
	beside, _ := os.Stat(filepath.Dir(path))
	for _, name := range folders {
		if folder, err := os.Stat(name); err == nil && os.SameFile(folder, beside) {
			return path, sshsig.Signers{}, fmt.Errorf("trust %s: it lies beside the files that it should prove, and came with them\nnext: name a list from somebody whom you trust with --signers=FILE", path)
		}
	}
	data, err := localfile.Read(path, maxSignersBytes)
	if err != nil {
		return path, sshsig.Signers{}, fmt.Errorf("read the list of signers: %w", localfile.NotHere(path, err))
	}
	signers, err := sshsig.ParseSigners(path, data)
	return path, signers, err
}

// SignersVariable names the list of signers where --signers is not given.
const SignersVariable = "SLIPWAY_SIGNERS"

// findSigners returns the path of the list of signers.
func findSigners(path string) (string, error) {
	own := defaultSigners()
	if path = cmp.Or(path, os.Getenv(SignersVariable)); path != "" {
		return path, nil
	}
	if _, err := os.Stat(own); err != nil {
		return own, fmt.Errorf("find who may sign: neither --signers nor %s is given, and there is no %s\nnext: verify FILE --signers=FILE, a list from somebody whom you trust", SignersVariable, cmp.Or(own, "home folder"))
	}
	return own, nil
}

// defaultSigners returns the path of the user's own list, or "" without a home.
func defaultSigners() string {
	dir, err := os.UserConfigDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "slipway", "allowed_signers")
}

// prove verifies the list's signature, and then its files.
func (l *List) prove(ctx context.Context, signers sshsig.Signers) error {
	data, err := readRegular(l.Path, maxSumsBytes)
	if err != nil {
		return err
	}
	signer, err := ProveSignature(ctx, signers, l.Path, data)
	if err != nil {
		return err
	}
	sums, err := parseSums(data)
	if err != nil {
		return fmt.Errorf("%s:%w", l.Path, err)
	}
	l.Signer = &signer
	return l.proveFiles(ctx, sums, signers.Endings())
}

// readRegular reads a small file.
func readRegular(path string, most int64) ([]byte, error) {
	f, info, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info.Size() > most {
		return nil, fmt.Errorf("read %s: it has %d bytes, and %d are the most", path, info.Size(), most)
	}
	return localfile.ReadAll(f, path, most)
}

// ProveSignature proves that data, which is the content of the file at path, is what one of
// the signers signed. The signature lies beside the file.
func ProveSignature(ctx context.Context, signers sshsig.Signers, file string, data []byte) (sshsig.Signer, error) {
	for _, ending := range signers.Endings() {
		path := file + ending
		signature, err := readRegular(path, maxSignatureBytes)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return sshsig.Signer{}, err
		}
		signer, err := signers.Verify(ctx, signature, bytes.NewReader(data))
		if err != nil {
			err = fmt.Errorf("verify %s: %w", path, err)
		}
		return signer, err
	}
	return sshsig.Signer{}, fmt.Errorf("find the signature of %s: there is no %s\nnext: fetch it from where the files are from", file, file+signers.Endings()[0])
}

// firstError says how many files are not proved, and why the first is not.
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
