package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"slipway/ci"
	"slipway/ci/report"
	"slipway/ci/suite"
	"slipway/flash"
	"slipway/flash/boardssh/files"
	boardupdate "slipway/flash/boardssh/update"
	"slipway/flash/evidence"
	"slipway/flash/sealed"
	"slipway/images"
	"slipway/layers/localfile"
	"slipway/layers/progress"
)

// Work describes the work on each board. --failed compares it with that of the last run, to decide
// whether boards that passed then already have what this run deploys.
type Work struct {
	Command    string   `json:"command"`
	To         string   `json:"to,omitempty"`    // of a file, or of an artifact's files
	Mode       string   `json:"mode,omitempty"`  // of a file
	Owner      string   `json:"owner,omitempty"` // of a file
	Program    string   `json:"program,omitempty"`
	Unproved   bool     `json:"unproved,omitempty"`
	Sent       []Sent   `json:"sent"`
	OtherBoard []string `json:"otherBoard,omitempty"` // what said that a bundle is another board's, and was allowed
}

// Sent is one input of the work: a file that boards get, or suites that they must pass.
type Sent struct {
	What   string `json:"what"`
	Name   string `json:"name"` // the same content under another name is the same
	SHA256 string `json:"sha256"`
}

// Difference describes the first difference between this work and the last one, or returns "".
func (w Work) Difference(last Work) string {
	for _, option := range []struct{ name, is, was string }{
		{"the command", w.Command, last.Command},
		{"--to", w.To, last.To},
		{"--mode", w.Mode, last.Mode},
		{"--owner", w.Owner, last.Owner},
		{"the program", w.Program, last.Program},
		{"--unproved", fmt.Sprint(w.Unproved), fmt.Sprint(last.Unproved)},
	} {
		if option.is != option.was {
			return fmt.Sprintf("%s is %q, and was %q", option.name, option.is, oneLine(option.was))
		}
	}
	for _, is := range w.Sent {
		i := slices.IndexFunc(last.Sent, func(s Sent) bool { return s.What == is.What })
		if i < 0 {
			return fmt.Sprintf("no %s was sent", is.What)
		}
		if was := last.Sent[i]; was.SHA256 != is.SHA256 {
			return fmt.Sprintf("the %s %s has the digest %.12s, and the last run's had %.12s", is.What, oneLine(is.Name), is.SHA256, oneLine(was.SHA256))
		}
	}
	if len(w.Sent) != len(last.Sent) {
		return "more was sent"
	}
	return ""
}

// fileStamp changes with each change of a file: no program can set its ctime back.
type fileStamp struct {
	dev, ino       uint64
	size           int64
	modified, last unix.Timespec
}

// stampOf returns a file's stamp, which changes with each change of the file. It follows links.
func stampOf(file string) (fileStamp, error) {
	var s unix.Stat_t
	if err := unix.Stat(file, &s); err != nil {
		return fileStamp{}, &os.PathError{Op: "stat", Path: file, Err: err}
	}
	return fileStamp{s.Dev, s.Ino, s.Size, s.Mtim, s.Ctim}, nil
}

// sentFile is a file that boards get. It must not change during a run.
type sentFile struct {
	Sent
	was fileStamp
}

var errChanged = errors.New("it changed during the run")

// recordDigest calls use to open the file called name, and records its digest and stamp as those of
// what, such as "bundle". If use returns no digest, it computes one. A change meanwhile fails.
func (p *plan) recordDigest(ctx context.Context, what, name string, use func() (digest string, err error)) error {
	was, err := stampOf(name)
	if err != nil {
		return localfile.ExplainUnreadable(name, err)
	}
	digest, err := use()
	if err == nil && digest == "" {
		digest, err = digestOf(ctx, name)
	}
	if err != nil {
		return err
	}
	if is, err := stampOf(name); err != nil || is != was {
		return fmt.Errorf("%s changed while it was read: %w", name, cmp.Or(err, errChanged))
	}
	sent := Sent{what, name, digest}
	p.work.Sent = append(p.work.Sent, sent)
	p.files = append(p.files, &sentFile{sent, was})
	return nil
}

// digestOf computes the SHA-256 of a file and shows its progress.
func digestOf(ctx context.Context, name string) (digest string, err error) {
	err = progress.Run(ctx, "digest of "+filepath.Base(name), func(step *progress.Step) (string, error) {
		f, err := sealed.Open(name)
		if err != nil {
			return "", err
		}
		defer f.Close()
		digest, err = f.Seal(ctx, step.Add)
		return digest, err
	})
	return digest, err
}

// openInputs replaces p.work by one of the request. Unless that runs a program on the boards, it
// opens what they get and records the digests.
func (p *plan) openInputs(ctx context.Context) error {
	p.work = Work{Command: p.request.commandName(), Program: suite.ShellLine(p.request.Program), Unproved: p.request.Unproved}
	if len(p.request.Program) > 0 {
		return nil
	}
	steps := []func(context.Context) error{p.openArtifact, p.openFile, p.openBundle, p.recordSuites}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// openArtifact reads the board's artifact.json, which only a deploy must have. For a deploy or
// smoke it records the artifact's digest. For a deploy it also sets p.work.To, checks the policy
// and records the container's digest. During other requests a build may replace the artifact.
func (p *plan) openArtifact(ctx context.Context) error {
	dir := p.opt.BoardDir(p.spec)
	p.artifact = images.NoArtifact(p.spec, dir)
	name := images.ArtifactPath(dir)
	if _, err := os.Stat(name); errors.Is(err, os.ErrNotExist) && !p.request.Deploy {
		return nil
	}
	if p.request.File != "" || p.request.Update != "" {
		a, err := images.ArtifactOf(p.spec, dir)
		p.artifact = a
		return err
	}
	err := p.recordDigest(ctx, "artifact", name, func() (_ string, err error) {
		p.artifact, err = images.ArtifactOf(p.spec, dir)
		return "", err
	})
	if !p.request.Deploy {
		return err
	}
	if errors.Is(err, os.ErrNotExist) {
		_, err = images.ReadArtifact(dir) // says which command makes it
	}
	p.work.To = p.spec.Deploy.Dir
	if err != nil {
		return err
	}
	if p.admitted, err = evidence.Admit(ctx, p.spec, p.artifact); err != nil {
		return report.Because(ctx, flash.ErrImage, err)
	}
	f, none := p.artifact.File(images.Container)
	if none != nil {
		return nil
	}
	return p.recordDigest(ctx, "container", p.artifact.Path(f), func() (string, error) {
		digest, err := digestOf(ctx, p.artifact.Path(f))
		if err == nil && digest != f.SHA256 {
			err = fmt.Errorf("%s has the digest %.12s, and artifact.json says %.12s; build again", p.artifact.Path(f), digest, f.SHA256)
		}
		return digest, err
	})
}

// openFile opens the file of the request, if any, and records its digest, destination and rights.
func (p *plan) openFile(ctx context.Context) error {
	if p.request.File == "" {
		return nil
	}
	p.work.To, p.work.Mode, p.work.Owner = p.request.To, fmt.Sprintf("%04o", p.request.Rights.Mode), p.request.Rights.Owner
	return p.recordDigest(ctx, "file", p.request.File, func() (digest string, err error) {
		if p.source, err = files.OpenSource(ctx, p.request.File); err == nil {
			digest = p.source.SHA256()
		}
		return digest, err
	})
}

// openBundle opens the bundle of an update and records its digest. It checks that the bundle is for
// this board, unless request.OtherBoard is set, and that the board's policy allows it. Other
// requests have no bundle.
func (p *plan) openBundle(ctx context.Context) error {
	if p.request.Update == "" {
		return nil
	}
	err := p.recordDigest(ctx, "bundle", p.request.Update, func() (_ string, err error) {
		if p.bundle, err = boardupdate.OpenBundle(ctx, p.request.Update); err != nil {
			return "", err
		}
		return p.bundle.SHA256, nil
	})
	if err == nil {
		p.work.OtherBoard, err = flash.RefuseOther(p.spec, p.request.Update, p.request.OtherBoard)
	}
	if err == nil {
		p.admitted, err = ci.AdmitBundle(ctx, p.opt, p.spec, p.bundle)
	}
	return err
}

// recordSuites puts the suites' digest into p.suites and p.work, unless request.Unproved is set.
func (p *plan) recordSuites(ctx context.Context) (err error) {
	if !p.request.Unproved {
		if p.suites, err = suite.Digest(p.spec); err != nil {
			return report.Because(ctx, report.ErrWrong, err)
		}
		p.work.Sent = append(p.work.Sent, Sent{"suites", fmt.Sprint(p.spec.Suites), p.suites})
	}
	return err
}

// checkUnchanged returns an error if a sent file or a suite changed since its digest was computed.
func (p *plan) checkUnchanged(ctx context.Context) error {
	if err := p.checkFilesUnchanged(ctx); err != nil || p.request.Unproved {
		return err
	}
	digest, err := suite.Digest(p.spec)
	if err == nil && digest != p.suites {
		err = errChanged
	}
	if err != nil {
		return fmt.Errorf("suites of %s: %w", p.spec.Board, err)
	}
	return nil
}

func (p *plan) checkFilesUnchanged(ctx context.Context) error {
	p.filesMu.Lock()
	defer p.filesMu.Unlock()
	for _, f := range p.files {
		if err := f.checkUnchanged(ctx); err != nil {
			return fmt.Errorf("%s %s: %w", f.What, f.Name, err)
		}
	}
	return nil
}

// checkUnchanged returns an error if the file changed. It computes the digest only if the stamp is
// new, and keeps a new stamp of the same content.
func (f *sentFile) checkUnchanged(ctx context.Context) error {
	is, err := stampOf(f.Name)
	if err != nil || is == f.was {
		return err
	}
	digest, err := digestOf(ctx, f.Name)
	if err != nil {
		return err
	}
	if after, err := stampOf(f.Name); err != nil || digest != f.SHA256 || after != is {
		return cmp.Or(err, errChanged)
	}
	f.was = is
	return nil
}
