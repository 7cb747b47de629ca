package flash

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"slipway/flash/device"
	"slipway/flash/probe"
	"slipway/flash/sealed"
	"slipway/flash/write"
	"slipway/images"
	"slipway/images/bmap"
	"slipway/layers/progress"
)

// Prepared is a disk image that was verified and unpacked once, to write to many devices, each when
// it comes. Its file has no name, so that nobody else can change it, and a kill leaves nothing.
type Prepared struct {
	spec     images.Spec
	artifact images.Artifact
	options  Options
	image    provedImage
	receipt  Receipt // of the unpacked file
	parts    []probe.Partition
	sums     *write.Sums
}

// Prepare verifies the image of o, or else the artifact's, and unpacks it below the folder dir. It
// refuses options that only other devices than disks have. With DryRun it records no build for a
// policy.
func Prepare(ctx context.Context, spec images.Spec, artifact images.Artifact, dir string, o Options) (_ *Prepared, err error) {
	if err := o.checkKind(device.Block); err != nil {
		return nil, kindError{ErrRefused, err}
	}
	if dir, err = os.MkdirTemp(dir, ".unpacked-"); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	p := &Prepared{spec: spec, artifact: artifact, options: o, sums: write.NewSums()}
	path := filepath.Join(dir, "disk.img")
	blocks, err := p.unpack(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("prepare the image of %s: %w", spec.Board, err)
	}
	if blocks == nil {
		p.options.Holes = "" // its zeros are content, and a new map has holes in their places
		if blocks, err = createMap(ctx, path); err != nil {
			return nil, err
		}
	}
	f, err := sealed.Open(path)
	if err != nil {
		return nil, err
	}
	p.image = provedImage{
		path: path, name: p.receipt.Image, file: f, shared: true, blocks: blocks, mapSum: p.receipt.MapSHA256,
		proof: "its unpacking", origin: p.receipt.Origin, signedBy: p.receipt.SignedBy,
	}
	if p.image.info, err = f.Stat(); err != nil {
		return nil, err
	}
	disk, err := probe.Read(f, f.SizeBytes(), 512)
	if disk.Table != nil {
		p.parts = disk.Table.Partitions
	}
	return p, err
}

// unpack writes the image to the new file path, with all proofs of a flash, and sets p.receipt. It
// returns the image's block map, by which it was proved, or nil without one.
func (p *Prepared) unpack(ctx context.Context, path string) (*bmap.Map, error) {
	spec := p.spec
	spec.Flash.Kinds = append(slices.Clone(spec.Flash.Kinds), device.File)
	chosen, err := chooseDevices(spec, p.artifact, []string{device.FilePrefix + path})
	if err != nil {
		return nil, err
	}
	o := p.options
	o.DryRun, o.Blind, o.Grow, o.unpack = false, true, false, true // the page cache would be read back
	r := request{spec: p.spec, artifact: p.artifact, devices: chosen, options: o, other: &otherBoard{board: p.spec.Board, allowed: o.OtherBoard}}
	j, err := r.openJob(ctx)
	if err != nil {
		return nil, err
	}
	defer j.close()
	if err := j.prepare(ctx); err != nil {
		return nil, err
	}
	if !p.options.DryRun {
		if err := r.image.admitted.Record(); err != nil {
			return nil, err
		}
	}
	receipts, err := r.other.addTo(r.image.addOrigin(j.writeDevices(ctx)))
	if err != nil {
		return nil, err
	}
	p.receipt = receipts[0]
	return j.(*imageJob).blocks, nil // a file's job is one
}

// createMap returns the block map of the raw image at path.
func createMap(ctx context.Context, path string) (*bmap.Map, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var m bmap.Map
	err = progress.Run(ctx, "map the image", func(*progress.Step) (_ string, err error) {
		m, err = bmap.Create(ctx, f)
		return "", err
	})
	return &m, err
}

// Close frees the unpacked image.
func (p *Prepared) Close() error { return p.image.file.Close() }

// SizeBytes returns the size of the unpacked image.
func (p *Prepared) SizeBytes() int64 { return p.image.blocks.ImageSize }

// Receipt returns the image's name, digests, origin and signers.
func (p *Prepared) Receipt() Receipt { return p.receipt }

// Personal is the files of one partition that only one device gets.
type Personal struct {
	Files map[string][]byte // by their paths in the file system

	part images.Partition
	fat  bool
}

// Personal returns p's files for the partition with a name: of the artifact, the partition table, or
// the file system's label, that of FAT in capitals or not. The partition has FAT, which keeps its
// files, or is ext4 for data, which then has only these files.
func (p *Prepared) Personal(name string, files map[string][]byte) (Personal, error) {
	i := slices.IndexFunc(p.parts, func(part probe.Partition) bool {
		same := part.Content.Label == name || part.Content.Type == "vfat" && strings.EqualFold(part.Content.Label, name)
		return name != "" && (part.Name == name || same)
	})
	if known, err := p.artifact.Partition(name); err == nil && i < 0 {
		i = slices.IndexFunc(p.parts, func(part probe.Partition) bool { return part.OffsetBytes == known.OffsetBytes })
	}
	if i < 0 {
		return Personal{}, kindError{ErrImage, fmt.Errorf("the image has no partition %s%s", name, p.partitionNames())}
	}
	part := p.parts[i]
	own := Personal{Files: files, part: images.Partition{Name: name, OffsetBytes: part.OffsetBytes, SizeBytes: part.SizeBytes}}
	switch own.fat = part.Content.Type == "vfat"; {
	case own.fat, name == "data" && (part.Content.Type == "ext4" || part.Content.Type == ""):
		return own, nil
	}
	return Personal{}, kindError{ErrImage, fmt.Errorf("partition %s of the image holds %s, and files are put only into FAT, or into a new ext4 of data", name, part.Content.Type)}
}

// partitionNames returns the names that Personal takes, as the end of a sentence.
func (p *Prepared) partitionNames() string {
	var b bytes.Buffer
	for _, part := range p.parts {
		for _, name := range []string{part.Name, part.Content.Label} {
			if name != "" {
				fmt.Fprintf(&b, " %q", name)
			}
		}
	}
	if b.Len() == 0 {
		return "; its partitions have no names"
	}
	return "; it has" + b.String()
}

// PreparedOptions are the options of one flash of a prepared image.
type PreparedOptions struct {
	Meant    func(device.Device) error // confirms the device: an error if another one is meant
	Identity *Identity                 // nil: the image's data partition, or Personal's
	Personal []Personal
	Stamp    string       // 32 hexadecimal digits that ReadStamp finds on the device
	Complete func() error // called once all else is written and read back; an error leaves the device incomplete
}

// Write writes the image to one device and reads it back, as flash.Write does.
func (p *Prepared) Write(ctx context.Context, name string, w PreparedOptions) (Receipt, error) {
	o := Options{
		Identity: w.Identity, Holes: p.options.Holes, Blind: p.options.Blind, Raw: p.options.Raw, OtherBoard: p.options.OtherBoard, Grow: p.options.Grow,
		prepared: p, meant: w.Meant, personal: w.Personal, stamp: w.Stamp, complete: w.Complete,
	}
	return Write(ctx, p.spec, p.artifact, name, o)
}

// WriteMeant writes the artifact to one device as Write does. w.Meant confirms the device, and
// w.Complete is called before the first write. Only disks take w.Personal and w.Stamp.
func WriteMeant(ctx context.Context, spec images.Spec, artifact images.Artifact, name string, o Options, w PreparedOptions) (Receipt, error) {
	if len(w.Personal) > 0 {
		return Receipt{}, kindError{ErrRefused, fmt.Errorf("%s gets no files of its own: only disks do", name)}
	}
	o.meant = func(d device.Device) error {
		if err := w.Meant(d); err != nil {
			return err
		}
		return w.Complete()
	}
	return Write(ctx, spec, artifact, name, o)
}

// OtherContent returns what d holds that is not of p's product; "" if d has no file system and no
// partition, or the image's partitions with their types and labels. The last one may be larger.
func (p *Prepared) OtherContent(d device.Device) string {
	other := d.Content.Type != "" || len(d.Partitions) > 0 && len(d.Partitions) != len(p.parts)
	for i, part := range d.Partitions {
		if other {
			break
		}
		own := p.parts[i]
		grown := i == len(p.parts)-1 && part.SizeBytes > own.SizeBytes
		other = part.OffsetBytes != own.OffsetBytes || part.SizeBytes != own.SizeBytes && !grown ||
			own.Content.Type != "" && (part.Content.Type != own.Content.Type || part.Content.Label != own.Content.Label)
	}
	if !other {
		return ""
	}
	return cmp.Or(d.ContentSummary(), fmt.Sprintf("%d partitions", len(d.Partitions)))
}
