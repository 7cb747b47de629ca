package audit

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"slipway/flash/source"
	"slipway/images"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// Target is a root file system or an image to audit.
type Target struct {
	Folder string // a root file system; "": Image
	Image  string // a disk, or one ext4 file system
	Arch   string // of the board, if the artifact says it
	Built  string // the folder in which the artifact was built, if there is one
}

// Find resolves a name from the command line: a board with a build, the folder of an artifact or of
// a root file system, or an image. It refuses compressed images.
func Find(name, buildDir string) (Target, error) {
	dir := name
	if !strings.Contains(name, "/") {
		if built := filepath.Join(buildDir, name); isArtifact(built) {
			dir = built
		}
	}
	info, err := os.Stat(dir)
	switch {
	case err != nil:
		if strings.ContainsAny(name, "./") { // no board's name has these
			return Target{}, localfile.ExplainUnreadable(name, err)
		}
		if _, unknown := images.LoadBuilt(name); unknown != nil {
			return Target{}, fmt.Errorf("audit %s: no such file or folder: %w", name, unknown)
		}
		return Target{}, fmt.Errorf("audit %s: %w\nnext: build %[1]s", name, images.ErrNoArtifact)
	case isArtifact(dir):
		return findArtifact(dir)
	case info.IsDir():
		return Target{Folder: dir}, nil
	case source.IsPackedName(dir):
		unpack := map[string]string{".gz": "gunzip -k", ".tgz": "gunzip -k", ".bz2": "bunzip2 -k", ".zip": "unzip", ".xz": "unxz -k", ".txz": "unxz -k"}
		return Target{}, fmt.Errorf("audit %s: it is compressed\nnext: %s %s  # then audit the unpacked image", name, cmp.Or(unpack[strings.ToLower(filepath.Ext(name))], "unzstd"), plaintext.Quote(name))
	}
	return Target{Image: dir}, nil
}

func isArtifact(dir string) bool {
	return localfile.Exists(images.ArtifactPath(dir))
}

// findArtifact returns an artifact's uncompressed disk image, else root file system, else an error.
func findArtifact(dir string) (Target, error) {
	a, err := images.OpenArtifact(dir)
	if err != nil {
		return Target{}, err
	}
	t := Target{Arch: a.Arch}
	if built, err := filepath.Abs(filepath.Join(dir, "bitbake")); err == nil {
		if _, err := os.Stat(built); err == nil {
			t.Built = built
		}
	}
	for _, kind := range []string{"disk", "rootfs"} {
		if file, err := a.File(kind); err == nil && !source.IsPackedName(file.Name) {
			t.Image = filepath.Join(dir, file.Name)
			return t, nil
		}
	}
	return t, fmt.Errorf("audit %s: the artifact has no disk image\nnext: name the image in its archive for the NVIDIA tools", dir)
}

// Audit audits all root file systems of a target in this process, and returns a report for each. On
// an error it returns the reports before it.
func Audit(ctx context.Context, t Target, opt Options) (reports []Report, err error) {
	var trees []*tree
	if t.Folder != "" {
		one, err := openFolder(t.Folder)
		if err != nil {
			return nil, err
		}
		trees = []*tree{one}
	} else if trees, err = openImage(t.Image); err != nil {
		return nil, err
	}
	defer trees[0].Close()
	if opt.Arch == "" {
		opt.Arch = t.Arch
	}
	if t.Built != "" {
		opt.Built = append(opt.Built, t.Built)
	}
	for _, one := range trees {
		r, err := Run(ctx, one, opt)
		if err != nil {
			return reports, err
		}
		reports = append(reports, r)
	}
	return reports, nil
}

// Limits of the process that reads an image: a damaged one can make it allocate without end.
const (
	maxMemory = 8 << 30
	maxTime   = 15 * time.Minute
)

// answer is what the process that reads an image prints.
type answer struct {
	Reports []Report `json:"reports"`
	Error   string   `json:"error"`
}

// Answer audits a target in the process that Isolate starts. It writes reports and error as JSON,
// and returns only an error of the writing.
func Answer(ctx context.Context, w io.Writer, t Target, opt Options) error {
	var a answer
	reports, err := Audit(ctx, t, opt)
	if a.Reports = reports; err != nil {
		a.Error = err.Error()
	}
	return json.NewEncoder(w).Encode(a)
}

// Isolate runs argv, a command that calls Answer, in a process of limited memory and time, and
// returns what that wrote. A damaged file system can crash its reader, or make it take all memory.
func Isolate(ctx context.Context, argv, env []string) ([]Report, error) {
	ctx, cancel := context.WithTimeout(ctx, maxTime)
	defer cancel()
	out, err := run.Output(ctx, run.Command{Argv: append([]string{"prlimit", fmt.Sprintf("--as=%d", maxMemory), "--core=0"}, argv...), Env: env})
	var a answer
	switch jerr := json.Unmarshal(out, &a); {
	case jerr == nil && a.Error != "":
		return a.Reports, errors.New(a.Error)
	case jerr == nil:
		return a.Reports, nil
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return nil, fmt.Errorf("its file system is damaged: it was not read in %s", maxTime)
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	}
	return nil, fmt.Errorf("its file system is damaged, and ended the process that read it: %w", cmp.Or(err, io.ErrUnexpectedEOF))
}

// Write writes a report as text: a summary, each finding, and the next step once for each rule.
func (r Report) Write(w io.Writer) error {
	fmt.Fprintf(w, "%s: %s, %d files, %d programs, %.0f MiB read\n", plaintext.OneLine(r.System), r.Arch, r.Files, r.Programs, float64(r.Bytes)/(1<<20))
	if r.Unread > 0 {
		fmt.Fprintf(w, "%d files or folders were not read: log in as root, or add --become\n", r.Unread)
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for i, f := range r.Findings {
		fmt.Fprintf(tw, "%s\t%s\t%s\n", f.Rule, plaintext.OneLine(f.Path), plaintext.OneLine(f.Saw))
		if i+1 == len(r.Findings) || r.Findings[i+1].Rule != f.Rule {
			fmt.Fprintf(tw, "\tnext: %s\n", f.Next)
		}
	}
	return tw.Flush()
}
