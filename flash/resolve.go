package flash

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"slipway/flash/device"
	"slipway/flash/evidence"
	"slipway/flash/fetch"
	"slipway/flash/sealed"
	"slipway/flash/trust"
	"slipway/images"
	"slipway/images/bmap"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// provedImage is the image file to write, whole on this machine, with its digests and signatures.
type provedImage struct {
	path     string       // "": the artifact's
	name     string       // its name at its origin
	sha256   string       // "": nobody gave one
	file     *sealed.File // that at path; nil: not open yet
	mapPath  string       // "": there is none, or it is the artifact's
	mapFile  []byte       // the map's file
	blocks   *bmap.Map    // of a prepared image; nil: by mapFile, or the artifact's
	mapSum   string       // the SHA-256 of the file of blocks
	shared   bool         // file stays open
	info     fs.FileInfo  // of file, before it was proved
	proof    string       // what vouches for all of it; "": nothing does
	origin   string       // its URL or path, without passwords; "": the artifact
	signedBy []string
	note     string // what a person should know of how it was found
	admitted evidence.Admitted
}

// imageResolver fetches and verifies the image and its block map, before anything else happens.
type imageResolver struct {
	request
	lists  trust.Lists
	digest string      // what --digest gave
	sums   *trust.Sums // or the list of digests that it named
	list   string      // the URL or path of the list, without passwords
	listed []string    // who signed that
	mapped []string    // who signed the block map
	provedImage
}

// open opens the image at path into p.file. If p.file is open already, open ignores path.
func (p *provedImage) open(path string) (_ *sealed.File, err error) {
	if p.file == nil {
		p.file, err = sealed.Open(path)
	}
	return p.file, err
}

// close closes p.file, if that is open and not shared.
func (p *provedImage) close() {
	if p.file != nil && !p.shared {
		p.file.Close()
	}
}

// resolveImage fetches and verifies the image of --image, or else, only for signers, a policy or
// --digest, verifies the artifact's. A missing signature is an error. The caller closes the result.
func resolveImage(ctx context.Context, r request) (provedImage, error) {
	p := &imageResolver{request: r}
	if err := runSteps(ctx, p.close, p.readSigners, p.readDigest, p.readImage); err != nil {
		return provedImage{}, err
	}
	return p.provedImage, nil
}

// fetchOptions returns the folder for fetched files and the board's architecture.
func (p *imageResolver) fetchOptions() fetch.Options {
	dir := cmp.Or(p.options.Cache, images.ImageCacheBeside(p.artifact.Dir()))
	return fetch.Options{Dir: dir, Arch: p.spec.Arch}
}

// readSigners appends to p.lists the board's list of signers (flash.signers) and that of --signers
// or SLIPWAY_SIGNERS. A signature must satisfy every list, so no option can replace the board's.
func (p *imageResolver) readSigners(context.Context) error {
	if name := p.spec.Flash.Signers; name != "" {
		data, err := p.spec.File(name)
		if err != nil {
			return fmt.Errorf("board.yml: flash.signers: %w", err)
		}
		path := name
		if !filepath.IsAbs(name) {
			path = filepath.Join(filepath.Dir(p.spec.BoardFile()), name)
		}
		list, err := trust.Parse("board.yml's flash.signers", path, data)
		if err != nil {
			return err
		}
		p.lists = append(p.lists, list)
	}
	named, err := trust.Named(p.options.Signers)
	p.lists = append(p.lists, named...)
	return err
}

// readDigest parses --digest into p.digest, or fetches the list of digests that it names into
// p.sums. The signers of the list go into p.listed, and an unsigned list is no error.
func (p *imageResolver) readDigest(ctx context.Context) error {
	text := p.options.Digest
	digest, is, err := trust.ParseDigest(text)
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
	sums, err := trust.ParseSums(file.Reference, data)
	if err != nil {
		return err
	}
	p.sums, p.list = &sums, file.Reference
	if len(p.lists) > 0 {
		p.listed, err = p.verifySigners(ctx, o, o.PathOf(file.Name), trust.Bytes(data))
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // the image itself may be signed
	}
	return err
}

// wantedDigest returns the digest that the user gave for the file called name; "" if the user gave
// none. It returns an error if the user's list does not have the file.
func (p *imageResolver) wantedDigest(name string) (string, error) {
	if p.sums == nil {
		return p.digest, nil
	}
	return p.sums.DigestOf(name)
}

// readImage fetches the image of --image, verifies its digest and signatures, and reads its block
// map. First it refuses an image for a board with a policy, one beside the list of its signers, one
// of another board, and one without a required signature. Without --image it runs proveArtifact.
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
	for _, l := range p.lists {
		if err := trust.RefuseBeside(o.Folder(), l.File); err != nil {
			return err
		}
	}
	digest, err := p.wantedDigest(o.Name())
	if err != nil {
		return err
	}
	if err := p.checkBeside(ctx, o); err != nil {
		return err
	}
	proved := len(p.lists) == 0 || p.sums != nil && len(p.listed) > 0
	byMap := false
	if !proved && p.options.Image == fetch.Stdin {
		return errors.New("no signature comes with standard input: one of a list of digests that names - can prove it, by --digest=LIST\nnext: repeat the line with --image=FILE for --image=-")
	}
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
		if p.signedBy, err = p.verifySigners(ctx, o, o.PathOf(o.Name()), p.file); err != nil {
			return err
		}
	}
	if len(p.signedBy) > 0 {
		p.proof = "its signature"
	}
	if !p.writesDisk() {
		p.mapPath = p.options.BlockMap // only disks have maps; what has none refuses one
		return nil
	}
	if byMap {
		return nil
	}
	return p.readMap(ctx, o)
}

// refuseLooseImage refuses --image if there is a policy of the board or of SLIPWAY_POLICY, because
// that judges only artifacts.
func (p *imageResolver) refuseLooseImage() error {
	policies, err := evidence.PoliciesOf(p.spec)
	if err != nil || len(policies) == 0 {
		return err
	}
	return fmt.Errorf("the policy of %s judges artifacts, and %s is only an image; nothing was written\nnext: repeat the line without --image  # with the folder of its artifact as BOARD", policies[0].From, p.options.Image)
}

func (p *imageResolver) writesDisk() bool {
	kind := p.devices[0].Kind
	return kind == device.File || kind == device.Block
}

// findSigned looks for a signature of the image, which it does not verify. Without one, for a disk,
// it reads the block map and verifies its signature. byMap is true if only the map is signed: its
// digests then verify all of the image that is written. It is an error if neither is signed.
func (p *imageResolver) findSigned(ctx context.Context, o *fetch.Origin) (byMap bool, err error) {
	_, _, unsigned := p.lists.Find(ctx, o, o.PathOf(o.Name()))
	if unsigned == nil || !errors.Is(unsigned, fs.ErrNotExist) || !p.writesDisk() {
		return false, unsigned
	}
	if err := p.readMap(ctx, o); err != nil || len(p.mapped) == 0 {
		return false, cmp.Or(err, p.signedFolder(ctx, o), unsigned)
	}
	_, _, err = parseMap(p.mapPath, p.mapFile)
	return true, err
}

// signedFolder returns an error with the line that flashes the image's folder, if the artifact.json
// in that folder lists the image and is signed; else nil.
func (p *imageResolver) signedFolder(ctx context.Context, o *fetch.Origin) error {
	folder := filepath.Dir(o.PathOf(o.Name()))
	a, err := images.ReadArtifact(o.Folder())
	if err != nil || !slices.ContainsFunc(a.Files, func(f images.File) bool { return f.Name == o.Name() }) {
		return nil
	}
	if _, _, err := p.lists.Find(ctx, o, images.ArtifactName); err != nil {
		return nil
	}
	step := "flash " + plaintext.Quote(folder) + " " + plaintext.Quote(strings.Join(p.devicePaths(), ","))
	if p.options.Signers != "" {
		step += " --signers=" + plaintext.Quote(p.options.Signers)
	}
	return fmt.Errorf("%s is not signed, only the artifact.json beside it, which lists it\nnext: %s", o.PathOf(o.Name()), step)
}

// verifySigners verifies signatures of the file called name for every list and returns the signers.
func (p *imageResolver) verifySigners(ctx context.Context, at trust.Place, name string, of trust.Content) ([]string, error) {
	signers, err := p.lists.Verify(ctx, at, name, of)
	return namesOf(signers), err
}

// namesOf returns the signers as text.
func namesOf(signers []trust.Signer) (names []string) {
	for _, s := range signers {
		names = append(names, s.String())
	}
	return names
}

// readMap reads and verifies the block map that --block-map names, else one beside the image, if
// any. A map could leave out any range of the image. So if the image needs a digest or signature,
// a map beside it needs one too: readMap skips one without, and says so in p.note.
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
		return nil
	}
	return nil
}

// readNamedMap fetches and verifies the map of --block-map. It needs no digest: the user named it.
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
	return nil
}

// errMapNotListed is for maps beside images whose digest was given. A named map needs no digest.
var errMapNotListed = fmt.Errorf("the digest is only of the image: %w", fs.ErrNotExist)

// leftOutReason returns the end of a sentence on why the map beside the image is not used.
func (p *imageResolver) leftOutReason() string {
	if len(p.lists) > 0 {
		return " is left out: it is not signed, as the image is."
	}
	return " is left out: --digest is only of the image. A list that names both, or --block-map, takes it."
}

// proveMap reads the block map into p.mapFile, and verifies its digest and signature. It returns
// fs.ErrNotExist if a required one is missing. A digest in a signed list is enough. It refuses a
// clearsigned map.
func (p *imageResolver) proveMap(ctx context.Context, o *fetch.Origin, file fetch.File) (err error) {
	if p.mapFile, err = file.ReadAll(ctx, mapLimit); err != nil {
		return err
	}
	if trust.Clearsigned(p.mapFile) {
		return fmt.Errorf("%s is clearsigned by GPG, and Slipway takes a detached signature; nothing was written\nnext: gpg -d %s >map.bmap  # it verifies the signature; then give --block-map=map.bmap", file.Reference, plaintext.Quote(file.Path))
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
		p.mapped, err = p.verifySigners(ctx, o, o.PathOf(file.Name), trust.Bytes(p.mapFile))
		return err
	}
	if p.options.Digest != "" && !named {
		return errMapNotListed
	}
	return nil
}

// proveArtifact verifies the artifact's files if a policy or signers demand that, and the image if
// --digest does. It reads the map of --block-map. Other digests are verified during the write.
func (p *imageResolver) proveArtifact(ctx context.Context) error {
	var err error
	if p.admitted, err = evidence.AdmitSigned(ctx, p.spec, p.artifact, p.lists); err != nil {
		return err
	}
	p.signedBy = namesOf(p.admitted.SignedBy)
	if len(p.lists) > 0 && len(p.admitted.Policies) == 0 { // else it has proved all files
		for _, f := range p.artifact.Files {
			if err := p.proveFile(ctx, f, f.SHA256); err != nil {
				return err
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
	if p.options.BlockMap != "" {
		return p.readNamedMap(ctx)
	}
	return nil
}

// builtFile returns the artifact's file for the kind of the chosen devices. For a disk without a
// disk image, it returns the tegraflash package.
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

// proveFile computes f's SHA-256 and compares it with want. builtFile's file stays open as p.file.
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
		err = fmt.Errorf("%s: sha256 %s, want %s; nothing was written\nnext: sha256sum %[1]s  # compare it with the digest's source, or build the image again", p.artifact.Path(f), got, want)
	}
	step.End("sha256 "+got, err)
	return err
}

// addOrigin adds the image's origin and its signers to receipts. It returns err unchanged.
func (p provedImage) addOrigin(receipts []Receipt, err error) ([]Receipt, error) {
	for i := range receipts {
		receipts[i].Origin, receipts[i].SignedBy = p.origin, p.signedBy
	}
	return receipts, err
}

// showOrigin prints the image's origin, digest, signers, policies and note, as far as it has them.
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
	if p.note != "" {
		fmt.Fprintln(w, p.note)
	}
}
