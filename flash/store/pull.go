package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/google/renameio/v2"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"slipway/flash/fetch"
	"slipway/images"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// partName is the folder for unfinished files of a pull, inside the artifact's folder.
const partName = ".slipway-pull"

// PullOptions says which folder Pull writes to.
type PullOptions struct {
	Into string // "": Below, in a folder with the board's name
	// Below is the build folder. An artifact there that is another one stays.
	Below string
}

// Pulled is the result of Pull.
type Pulled struct {
	Store        string   `json:"store"`
	Digest       string   `json:"digest"`
	Folder       string   `json:"folder"`
	Board        string   `json:"board"`
	Files        int      `json:"files"`
	SizeBytes    int64    `json:"sizeBytes"`
	Fetched      []string `json:"fetched"` // files that were not there
	FetchedBytes int64    `json:"fetchedBytes"`
}

// Pull copies an artifact without its report from a store into a folder. It keeps files that are
// right already. It writes artifact.json last, so that no reader mistakes a part for all of it.
func Pull(ctx context.Context, reference string, opt PullOptions) (Pulled, error) {
	s, place, err := openFor(reference, toPull)
	if err != nil {
		return Pulled{}, err
	}
	defer s.close()
	p := pull{store: s, Pulled: Pulled{Store: place.String(), Fetched: []string{}}}
	if err := p.resolve(ctx, place); err != nil {
		return p.Pulled, pullError(place, err)
	}
	if p.Folder, err = p.chooseFolder(opt); err != nil {
		return p.Pulled, err
	}
	if err := p.fetchInto(ctx); err != nil {
		return p.Pulled, pullError(place, err)
	}
	return p.Pulled, nil
}

// pullError adds the store's name and the next step to an error of Pull.
func pullError(place fetch.Place, err error) error {
	if fetch.StatusOf(err) == 404 {
		return fmt.Errorf("%s: %w\nnext: store list %[1]s", place, err)
	}
	return explainStoreError(place, fmt.Errorf("%s: %w", place, err))
}

// pull is the state of one Pull.
type pull struct {
	Pulled
	store       Store
	manifest    v1.Manifest
	description []byte                   // artifact.json
	described   bool                     // the folder has it
	packed      map[string]v1.Descriptor // the layers of files that are packed, by the files' names

	root *os.Root // of the folder: what is written stays in it
	mu   sync.Mutex
}

// resolve sets p's fields from the checked manifest and artifact.json, without the report's layer.
func (p *pull) resolve(ctx context.Context, place fetch.Place) error {
	name := cmp.Or(place.Digest, place.Tag)
	if name == "" {
		return fmt.Errorf("no tag, and a store has many artifacts\nnext: store list %s", place)
	}
	data, err := p.store.manifest(ctx, name)
	if err != nil {
		return err
	}
	p.Digest = string(digest.FromBytes(data))
	if p.manifest, err = parseManifest(data); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	described, _ := layerNamed(p.manifest, images.ArtifactName)
	if p.description, err = p.store.read(ctx, described); err != nil {
		return fmt.Errorf("%s: %w", images.ArtifactName, err)
	}
	a, err := parseArtifact(p.description, p.manifest)
	p.Board = a.Board
	if err == nil {
		p.unpackLayers(a)
	}
	p.manifest.Layers = slices.DeleteFunc(p.manifest.Layers, func(l v1.Descriptor) bool { return nameOf(l) == reportName }) // store reports copies it
	for _, l := range p.manifest.Layers {
		p.SizeBytes += l.Size
	}
	p.Files = len(p.manifest.Layers)
	return err
}

// chooseFolder returns opt.Into, or else the board's folder below opt.Below. It refuses the latter
// if it has another artifact.
func (p *pull) chooseFolder(opt PullOptions) (string, error) {
	if opt.Into != "" {
		return opt.Into, nil
	}
	if p.Board == "" {
		return "", fmt.Errorf("%s names no board\nnext: repeat the line with --into=artifact", images.ArtifactName)
	}
	dir := filepath.Join(opt.Below, p.Board)
	here, err := localfile.Read(images.ArtifactPath(dir), maxDescription)
	if errors.Is(err, fs.ErrNotExist) {
		return dir, nil
	}
	if err == nil && string(here) != string(p.description) {
		err = fmt.Errorf("%s has another artifact, which only --into=%[2]s replaces\nnext: repeat the line with --into=%[2]s.new", dir, plaintext.Quote(dir))
	}
	return dir, err
}

// fetchInto locks the folder, fetches the files that the folder lacks, and writes artifact.json.
func (p *pull) fetchInto(ctx context.Context) (err error) {
	if err := localfile.MkdirAll(p.Folder); err != nil {
		return err
	}
	if p.root, err = os.OpenRoot(p.Folder); err != nil {
		return err
	}
	defer p.root.Close()
	unlock, err := p.lockParts(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	defer p.root.Remove(partName) // fails if the folder holds a part
	missing, err := p.findMissing(ctx)
	if err != nil {
		return err
	}
	if err := p.prepareFolder(missing); err != nil {
		return err
	}
	if err := p.fetch(ctx, missing); err != nil {
		return err
	}
	if err := p.finish(); err != nil {
		return err
	}
	return p.root.RemoveAll(partName)
}

// lockParts makes the folder for unfinished files, and waits for its lock, which other pulls take.
func (p *pull) lockParts(ctx context.Context) (unlock func(), err error) {
	if err := p.root.Mkdir(partName, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	if info, err := p.root.Lstat(partName); err != nil || !info.IsDir() {
		return nil, cmp.Or(err, fmt.Errorf("%s is no folder\nnext: rm %[1]s", filepath.Join(p.Folder, partName)))
	}
	f, err := p.root.Open(partName)
	if err != nil {
		return nil, err
	}
	if err := localfile.WaitLock(ctx, f); err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}

// findMissing returns the files that the folder lacks. For artifact.json it only sets p.described.
func (p *pull) findMissing(ctx context.Context) (missing []v1.Descriptor, err error) {
	for _, l := range p.manifest.Layers {
		there, err := p.isThere(ctx, l)
		if err != nil {
			return nil, err
		}
		switch {
		case nameOf(l) == images.ArtifactName:
			p.described = there
		case !there:
			missing = append(missing, l)
		}
	}
	return missing, nil
}

func nameOf(l v1.Descriptor) string { return l.Annotations[v1.AnnotationTitle] }

// isThere reports whether the folder has the layer's file with its digest. A folder is an error.
func (p *pull) isThere(ctx context.Context, l v1.Descriptor) (bool, error) {
	name := nameOf(l)
	info, err := p.root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case info.IsDir():
		return false, fmt.Errorf("%s is a folder, and the artifact has a file of that name", filepath.Join(p.Folder, name))
	case !info.Mode().IsRegular() || info.Size() != l.Size:
		return false, nil
	}
	step := progress.Start(ctx, "prove "+name, l.Size, progress.Bytes)
	sum, err := p.digest(ctx, name, step.Add)
	if err == nil && sum == l.Digest.Encoded() {
		step.Reuse("the folder has it")
		return true, nil
	}
	step.End("replaces another version", err)
	return false, err
}

// digest returns the SHA-256, in hex, of the folder's file with a name.
func (p *pull) digest(ctx context.Context, name string, count func(int64)) (string, error) {
	f, err := p.root.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return localfile.Digest(ctx, f, count)
}

// prepareFolder removes artifact.json if files will change. Too little free space is an error.
func (p *pull) prepareFolder(missing []v1.Descriptor) error {
	if !p.described || len(missing) > 0 {
		if err := p.root.Remove(images.ArtifactName); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	var need int64
	for _, l := range missing {
		if packed, ok := p.packed[nameOf(l)]; ok {
			l = packed // what it unpacks to is mostly holes
		}
		need += l.Size
	}
	free, err := localfile.FreeBytes(p.Folder)
	if err == nil && need > free {
		err = fmt.Errorf("%s: %s are needed, and %s are free: %w", p.Folder, plaintext.SizeText(need), plaintext.SizeText(free), unix.ENOSPC)
	}
	return err
}

// fetch fetches and unpacks missing files into the folder, several at once, and adds to p.Fetched.
func (p *pull) fetch(ctx context.Context, missing []v1.Descriptor) error {
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for _, l := range missing {
		group.Go(func() error {
			from, packed := p.packed[nameOf(l)]
			if !packed {
				from = l
			}
			path, err := p.store.get(inner, from, nameOf(from), filepath.Join(p.Folder, partName))
			if err == nil && packed {
				path, err = p.unpack(inner, path, l)
			}
			if err == nil {
				path, err = filepath.Rel(p.Folder, path)
			}
			if err == nil {
				err = p.root.Rename(path, nameOf(l))
			}
			if err != nil {
				return fmt.Errorf("%s: %w", nameOf(l), err)
			}
			p.mu.Lock()
			defer p.mu.Unlock()
			p.Fetched, p.FetchedBytes = append(p.Fetched, nameOf(l)), p.FetchedBytes+l.Size
			return nil
		})
	}
	err := group.Wait()
	slices.Sort(p.Fetched)
	return err
}

// finish removes signatures of another artifact, writes artifact.json, and checks the folder by it.
func (p *pull) finish() error {
	for _, ending := range images.SignatureEndings {
		name := images.ArtifactName + ending
		if _, ok := layerNamed(p.manifest, name); ok {
			continue
		}
		if err := p.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := renameio.WriteFile(images.ArtifactPath(p.Folder), p.description, 0o644); err != nil {
		return err
	}
	_, err := images.OpenArtifact(p.Folder)
	return err
}

// Show prints the result for a person.
func (p Pulled) Show(w io.Writer) error {
	fmt.Fprintf(w, "pulled: %s, %d of %d files, %s of %s\n", p.Folder, len(p.Fetched), p.Files-1, plaintext.SizeText(p.FetchedBytes), plaintext.SizeText(p.SizeBytes))
	_, err := fmt.Fprintf(w, "%s@%s\n", p.Store, p.Digest)
	return err
}
