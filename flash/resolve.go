package flash

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"slipway/flash/device"
	"slipway/flash/evidence"
	"slipway/flash/fetch"
	"slipway/flash/sealed"
	"slipway/flash/sshsig"
	"slipway/images"
	"slipway/images/bmap"
	"slipway/layers/localfile"
	"slipway/layers/progress"
)

// provedImage is the image that is written: a whole file of this machine, with what proves
// it. Nothing uses it before it is proved.
type provedImage struct {
	path     string       // "": the artifact's
	name     string       // as it is called where it comes from
	sha256   string       // "": nobody gave one
	file     *sealed.File // that at path; nil: not open yet
	mapPath  string       // "": there is none, or it is the artifact's
	mapFile  []byte       // the map's file
	mapText  []byte       // what a clearsigned map says; nil: the file itself
	info     fs.FileInfo  // of file, before it was proved
	proof    string       // what vouches for all of it; "": nothing does
	origin   string       // where it comes from, without passwords; "": the artifact
	signedBy []string
	note     string   // what a person should know of how it was found
	ignored  []string // signatures that lie beside it, and that nobody verified
	admitted evidence.Admitted
}

// imageResolver finds the image, and proves it before anything else happens.
type imageResolver struct {
	request
	lists  []signerList
	digest string      // what --digest gave
	sums   *fetch.Sums // or the list of digests that it named
	list   string      // where that is from, without passwords
	listed []string    // who signed that
	mapped []string    // who signed the block map
	proved []string    // the files of the signatures that were verified
	provedImage
}

// open opens the image at path, unless it is open.
func (p *provedImage) open(path string) (_ *sealed.File, err error) {
	if p.file == nil {
		p.file, err = sealed.Open(path)
	}
	return p.file, err
}

func (p *provedImage) close() {
	if p.file != nil {
		p.file.Close()
	}
}

// SignersVariable names the list of signers where --signers is not given.
const SignersVariable = "SLIPWAY_SIGNERS"

// signerList is one list of signers, each of which has to name who signed: the
// board's own, and the one that was given.
type signerList struct {
	sshsig.Signers
	from string
}

// resolveImage brings the image here and refuses it where its digest or its signature is
// not what it should be.
func resolveImage(ctx context.Context, r request) (provedImage, error) {
	p := &imageResolver{request: r}
	for _, step := range []func(context.Context) error{p.readSigners, p.readDigest, p.readImage} {
		if err := step(ctx); err != nil {
			p.close()
			return provedImage{}, err
		}
	}
	return p.provedImage, nil
}

func (p *imageResolver) fetchOptions() fetch.Options {
	dir := p.options.Cache
	if dir == "" {
		dir = images.ImageCacheBeside(p.artifact.Dir())
	}
	return fetch.Options{Dir: dir, Arch: p.spec.Arch}
}

// readSigners reads the lists of signers. The board's cannot be replaced: what it
// does not let through, no option does.
func (p *imageResolver) readSigners(context.Context) error {
	if name := p.spec.Flash.Signers; name != "" {
		data, err := p.spec.File(name)
		if err != nil {
			return fmt.Errorf("board.yml: flash.signers: %w", err)
		}
		if err := p.addList(name, "board.yml's flash.signers", data); err != nil {
			return err
		}
	}
	name, from := p.options.Signers, "--signers"
	if name == "" {
		name, from = os.Getenv(SignersVariable), SignersVariable
	}
	if name == "" {
		return nil
	}
	data, err := localfile.Read(name, mapLimit)
	if err != nil {
		return fmt.Errorf("%s: %w", from, localfile.NotHere(name, err))
	}
	return p.addList(name, from, data)
}

func (p *imageResolver) addList(name, from string, data []byte) error {
	list, err := sshsig.ParseSigners(name, data)
	if err != nil {
		return err
	}
	p.lists = append(p.lists, signerList{list, from})
	return nil
}

// readDigest takes a digest, or fetches a list of them. A list that is signed proves
// what it names.
func (p *imageResolver) readDigest(ctx context.Context) error {
	text := p.options.Digest
	digest, is, err := fetch.ParseDigest(text)
	if err != nil || is || text == "" {
		p.digest = digest
		return err
	}
	o, err := fetch.Open(ctx, text, p.fetchOptions())
	if err != nil {
		return fmt.Errorf("digest: %w", err)
	}
	defer o.Close()
	file, err := o.Get(ctx, "")
	if err != nil {
		return fmt.Errorf("digest: neither sha256:HEX nor a list of digests: %w", err)
	}
	data, err := file.ReadAll(ctx, mapLimit)
	if err != nil {
		return err
	}
	sums, err := fetch.ParseSums(file.Reference, data)
	if err != nil {
		return err
	}
	p.sums, p.list = &sums, file.Reference
	p.listed, err = p.proveSigners(ctx, o, file.Name, memory(data), p.lists)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // the image itself may be signed
	}
	return err
}

// wantedDigest returns the digest that was given for a file; "" where none was.
func (p *imageResolver) wantedDigest(name string) (string, error) {
	if p.sums == nil {
		return p.digest, nil
	}
	digest, ok := p.sums.Of(name)
	if !ok {
		return "", fmt.Errorf("%s names no digest of %s", p.list, name)
	}
	return digest, nil
}

func (p *imageResolver) readImage(ctx context.Context) error {
	if p.options.Image == "" {
		return p.proveArtifact(ctx)
	}
	if err := p.refuseLooseImage(); err != nil {
		return err
	}
	o, err := fetch.Open(ctx, p.options.Image, p.fetchOptions())
	if err != nil {
		return err
	}
	defer o.Close()
	digest, err := p.wantedDigest(o.Name())
	if err != nil {
		return err
	}
	if err := p.checkBeside(ctx, o); err != nil {
		return err
	}
	proved := len(p.lists) == 0 || p.sums != nil && len(p.listed) > 0
	byMap := false
	if !proved { // gigabytes are not fetched for an image that nobody signed
		if byMap, err = p.findSigned(ctx, o); err != nil {
			return err
		}
	}
	file, err := o.Get(ctx, digest)
	if err != nil {
		return err
	}
	p.path, p.name, p.sha256, p.origin, p.signedBy = file.Path, file.Name, file.SHA256, file.Reference, p.listed
	p.file = file.Content
	if p.info, err = p.file.Stat(); err != nil { // before it is read for its signature
		return err
	}
	if file.Listed {
		p.proof = "its digest"
	}
	switch {
	case byMap:
		p.signedBy = p.mapped
	case !proved:
		if p.signedBy, err = p.proveSigners(ctx, o, o.Name(), p.file, p.lists); err != nil {
			return err
		}
	}
	if len(p.signedBy) > 0 {
		p.proof = "its signature"
	}
	p.findIgnored(ctx, o, o.Name())
	if !p.writesDisk() {
		p.mapPath = p.options.BlockMap // only disks have maps; what has none refuses one
		return nil
	}
	if byMap {
		return nil
	}
	return p.readMap(ctx, o)
}

// refuseLooseImage refuses an image that is of no artifact where a policy asks for evidence.
func (p *imageResolver) refuseLooseImage() error {
	policies, err := evidence.PoliciesOf(p.spec)
	if err != nil || len(policies) == 0 {
		return err
	}
	return fmt.Errorf("the policy of %s judges artifacts, and %s is only an image; nothing was written\nnext: flash the folder of its artifact, without --image", policies[0].From, p.options.Image)
}

func (p *imageResolver) writesDisk() bool {
	kind := p.devices[0].Kind
	return kind == device.File || kind == device.Block
}

// findSigned looks for what is signed: the image, or else its block map, whose digests
// prove all of the image that is written.
func (p *imageResolver) findSigned(ctx context.Context, o *fetch.Origin) (byMap bool, err error) {
	_, unsigned := findSignatures(ctx, o, o.Name(), p.lists)
	if unsigned == nil || !errors.Is(unsigned, fs.ErrNotExist) || !p.writesDisk() {
		return false, unsigned
	}
	if err := p.readMap(ctx, o); err != nil || len(p.mapped) == 0 {
		return false, cmp.Or(err, unsigned)
	}
	m, _, err := parseMap(p.mapPath, p.mapFile, p.mapText)
	if err == nil && m.Algorithm != bmap.SHA256 {
		err = fmt.Errorf("%s is signed, but its digests are of kind %s, which can be forged: %w", p.mapPath, m.Algorithm, unsigned)
	}
	return true, err
}

// signatureEndings are those of what gpg, ssh-keygen and minisign write.
var signatureEndings = []string{".asc", ".sig", ".minisig"}

// findIgnored looks for signatures of a file that were not verified, so that the user is
// told so.
func (p *imageResolver) findIgnored(ctx context.Context, at signatureFolder, name string) {
	for _, ending := range signatureEndings {
		if slices.Contains(p.proved, name+ending) {
			continue
		}
		if file, err := at.Beside(ctx, name+ending); err == nil {
			file.Content.Close()
			p.ignored = append(p.ignored, name+ending)
		}
	}
}

// signatureFolder holds a file and its signature.
type signatureFolder interface {
	Beside(ctx context.Context, name string) (fetch.File, error)
}

// artifactFolder is an artifact's folder.
type artifactFolder string

func (f artifactFolder) Beside(_ context.Context, name string) (fetch.File, error) {
	content, err := sealed.Open(filepath.Join(string(f), name))
	return fetch.File{Content: content, Path: filepath.Join(string(f), name), Name: name}, err
}

// signature is a file of one.
type signature struct {
	name string
	data []byte
}

// findSignatures finds a signature of a file for each list of signers. The error is
// fs.ErrNotExist where there is none, and says how to sign.
func findSignatures(ctx context.Context, at signatureFolder, name string, lists []signerList) ([]signature, error) {
	var all []signature
	for _, list := range lists {
		s, err := list.findSignature(ctx, at, name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s is not signed, and %s wants that: %w\n  %s", name, list.from, err, list.Hint(name))
		}
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

// findSignature tries each ending, and reads the first signature that exists.
func (l signerList) findSignature(ctx context.Context, at signatureFolder, name string) (s signature, err error) {
	for _, ending := range l.Endings() {
		var file fetch.File
		if file, err = at.Beside(ctx, name+ending); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			s.data, err = file.ReadAll(ctx, mapLimit)
		}
		s.name = name + ending
		break
	}
	return s, err
}

// content is what a signature is of.
type content interface {
	SizeBytes() int64
	Reader(ctx context.Context, count func(int64)) io.Reader
}

// memory is the content of a small file.
type memory []byte

func (m memory) SizeBytes() int64                              { return int64(len(m)) }
func (m memory) Reader(context.Context, func(int64)) io.Reader { return bytes.NewReader(m) }

// proveSigners proves that a file is signed, for each list, and says by whom.
func (p *imageResolver) proveSigners(ctx context.Context, at signatureFolder, name string, of content, lists []signerList) ([]string, error) {
	all, err := findSignatures(ctx, at, name, lists)
	if err != nil {
		return nil, err
	}
	var found []string
	for i, list := range lists {
		who, err := proveSigned(ctx, list, all[i].data, of, name)
		if err != nil {
			return nil, fmt.Errorf("%s (%s): %w", all[i].name, list.from, err)
		}
		found, p.proved = append(found, who), append(p.proved, all[i].name)
	}
	return found, nil
}

func proveSigned(ctx context.Context, list signerList, signature []byte, of content, name string) (string, error) {
	step := progress.Start(ctx, "prove who signed "+name, of.SizeBytes(), progress.Bytes)
	read := of.Reader(ctx, step.Add)
	who, err := list.Verify(ctx, signature, read)
	if err == nil {
		_, err = io.Copy(io.Discard, read) // to its end, which seals it
	}
	step.End(who.String(), err)
	return who.String(), err
}

// readMap finds the block map. It says which parts of the image are written, and
// could leave out any: where somebody vouches for the image, somebody has to for it.
func (p *imageResolver) readMap(ctx context.Context, o *fetch.Origin) error {
	if p.options.BlockMap != "" {
		return p.readNamedMap(ctx)
	}
	for _, name := range fetch.MapNames(o.Name()) {
		file, err := o.Beside(ctx, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := p.proveMap(ctx, o, file); errors.Is(err, fs.ErrNotExist) {
			p.note = name + p.leftOutReason()
			return nil
		} else if err != nil {
			return err
		}
		p.mapPath = file.Path
		p.findIgnored(ctx, o, name)
		return nil
	}
	return nil
}

func (p *imageResolver) readNamedMap(ctx context.Context) error {
	o, err := fetch.Open(ctx, p.options.BlockMap, p.fetchOptions())
	if err != nil {
		return err
	}
	defer o.Close()
	file, err := o.Get(ctx, "")
	if err != nil {
		return err
	}
	if err := p.proveMap(ctx, o, file); err != nil && !errors.Is(err, errMapNotListed) {
		return err
	}
	p.mapPath = file.Path
	p.findIgnored(ctx, o, o.Name())
	return nil
}

// errAlone is of a map that was found beside an image whose digest was given. A
// person who names the map vouches for it.
var errMapNotListed = fmt.Errorf("the digest is of the image alone: %w", fs.ErrNotExist)

func (p *imageResolver) leftOutReason() string {
	if len(p.lists) > 0 {
		return " is left out: it is not signed, as the image is."
	}
	return " is left out: --digest is of the image alone. A list that names both, or --block-map, takes it."
}

// proveMap reads a map, once. It returns fs.ErrNotExist for a map that nobody vouches for,
// but somebody has to.
func (p *imageResolver) proveMap(ctx context.Context, at signatureFolder, file fetch.File) (err error) {
	if p.mapFile, err = file.ReadAll(ctx, mapLimit); err != nil {
		return err
	}
	named := false
	if p.sums != nil {
		var want string
		if want, named = p.sums.Named(file.Name); named {
			if got := fmt.Sprintf("%x", sha256.Sum256(p.mapFile)); got != want {
				return fmt.Errorf("%s: sha256 %s, %s says %s", file.Reference, got, p.list, want)
			}
			if len(p.listed) > 0 {
				return nil
			}
		}
	}
	if len(p.lists) > 0 {
		p.mapped, err = p.proveMapSigners(ctx, at, file)
		return err
	}
	if p.options.Digest != "" && !named {
		return errMapNotListed
	}
	return nil
}

// proveMapSigners proves who signed a map, beside it or inside of it.
func (p *imageResolver) proveMapSigners(ctx context.Context, at signatureFolder, file fetch.File) ([]string, error) {
	var found []string
	var beside []signerList
	for _, list := range p.lists {
		if !list.Clear() || !sshsig.Clearsigned(p.mapFile) {
			beside = append(beside, list)
			continue
		}
		text, who, err := list.VerifyClear(ctx, p.mapFile)
		if err != nil {
			return nil, fmt.Errorf("%s (%s): %w", file.Name, list.from, err)
		}
		p.mapText, found = text, append(found, who)
	}
	others, err := p.proveSigners(ctx, at, file.Name, memory(p.mapFile), beside)
	return append(found, others...), err
}

// proveArtifact proves the build's own files, where somebody wants that. Otherwise
// they are proved by their digests while they are written.
func (p *imageResolver) proveArtifact(ctx context.Context) error {
	var err error
	if p.admitted, err = evidence.Admit(ctx, p.spec, p.artifact); err != nil {
		return err
	}
	p.signedBy = append(p.signedBy, p.admitted.SignedBy...)
	if len(p.lists) > 0 {
		if err := p.proveDescription(ctx); err != nil {
			return err
		}
		if len(p.admitted.Policies) == 0 { // else Admit has proved all files
			for _, f := range p.artifact.Files {
				if err := p.proveFile(ctx, f, f.SHA256); err != nil {
					return err
				}
			}
		}
	}
	if p.options.Digest != "" {
		image, err := p.builtFile()
		if err != nil {
			return fmt.Errorf("%w; --digest is of that, or of what --image names", err)
		}
		want, err := p.wantedDigest(filepath.Base(image.Name))
		if err != nil {
			return err
		}
		if err := p.proveFile(ctx, image, want); err != nil {
			return err
		}
	}
	for _, f := range p.artifact.Files {
		p.findIgnored(ctx, artifactFolder(p.artifact.Dir()), f.Name)
	}
	if p.options.BlockMap != "" {
		return p.readNamedMap(ctx)
	}
	return nil
}

// builtFile returns the artifact's file for devices of this kind.
func (p *imageResolver) builtFile() (images.File, error) {
	switch p.devices[0].Kind {
	case device.Tegra:
		return p.artifact.File(images.Tegraflash)
	case device.RShim:
		return p.artifact.File(images.BFB)
	}
	image, err := p.artifact.File(images.DiskImage)
	if err != nil { // a card, of which the package's own script makes the image
		if f, err := p.artifact.File(images.Tegraflash); err == nil {
			return f, nil
		}
	}
	return image, err
}

// proveFile proves a file of the artifact. The one that will be written stays open.
func (p *imageResolver) proveFile(ctx context.Context, f images.File, want string) error {
	built, _ := p.builtFile()
	file, err := p.file, error(nil)
	if file == nil || f.Name != built.Name {
		if file, err = sealed.Open(p.artifact.Path(f)); err != nil {
			return err
		}
	}
	if f.Name == built.Name {
		p.file = file
	} else {
		defer file.Close()
	}
	step := progress.Start(ctx, "prove "+f.Name, f.SizeBytes, progress.Bytes)
	got, err := file.Seal(ctx, step.Add)
	if err == nil && got != want {
		err = fmt.Errorf("%s: sha256 %s, want %s; nothing was written\nnext: build the image again, or compare with where the digest is from", p.artifact.Path(f), got, want)
	}
	step.End("sha256 "+got, err)
	return err
}

// proveDescription proves who signed artifact.json, which has the digests of all
// files, and that it still is the one that was read.
func (p *imageResolver) proveDescription(ctx context.Context) error {
	path := images.ArtifactPath(p.artifact.Dir())
	data, err := localfile.Read(path, mapLimit)
	if err != nil {
		return err
	}
	all, err := findSignatures(ctx, artifactFolder(p.artifact.Dir()), images.ArtifactName, p.lists)
	if err != nil {
		return err
	}
	for i, list := range p.lists {
		who, err := list.Verify(ctx, all[i].data, bytes.NewReader(data))
		if err != nil {
			return fmt.Errorf("%s (%s): %w", filepath.Join(p.artifact.Dir(), all[i].name), list.from, err)
		}
		p.signedBy, p.proved = append(p.signedBy, who.String()), append(p.proved, all[i].name)
	}
	return evidence.CheckSame(path, data, p.artifact)
}

// addOrigin adds to receipts where the image is from and who signed it.
func (p provedImage) addOrigin(receipts []Receipt, err error) ([]Receipt, error) {
	for i := range receipts {
		receipts[i].Origin, receipts[i].SignedBy, receipts[i].Ignored = p.origin, p.signedBy, p.ignored
	}
	return receipts, err
}

// showOrigin says where the image comes from and who vouches for it.
func (p provedImage) showOrigin(w io.Writer) {
	if p.origin != "" {
		fmt.Fprintf(w, "Image from %s.\n", p.origin)
	}
	if p.sha256 != "" {
		fmt.Fprintf(w, "Its digest is sha256:%s.\n", p.sha256)
	}
	for _, who := range p.signedBy {
		fmt.Fprintf(w, "Signed by %s.\n", who)
	}
	for _, from := range p.admitted.Policies {
		fmt.Fprintf(w, "The policy of %s admits it.\n", from)
	}
	for _, name := range p.ignored {
		fmt.Fprintf(w, "%s is ignored: Slipway did not verify it. To verify it: --signers=FILE, with a keyring of GPG, allowed signers of ssh-keygen, or a public key of minisign.\n", name)
	}
	if p.note != "" {
		fmt.Fprintln(w, p.note)
	}
}
