package container

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"slipway/flash/boardssh"
	"slipway/flash/oci"
	"slipway/layers/progress"
)

const (
	leaseHours   = 24      // how long the board keeps the blobs of a broken push
	sendBytes    = 2 << 20 // containerd answers each piece before the next is sent
	blobsAtOnce  = 3
	lockPatience = 10 * time.Second // how long to wait for a lost connection that still locks a blob
	ownLabel     = "slipway/pushed" // label of images that Push sent
)

// Pushed is the result of a push.
type Pushed struct {
	Engine     string   `json:"engine"`
	Image      string   `json:"image"`
	Digest     string   `json:"digest"` // of the manifest; with docker and podman of the configuration
	Platform   string   `json:"platform"`
	Layers     int      `json:"layers"`
	SentLayers int      `json:"sentLayers"`
	SentBytes  int64    `json:"sentBytes"`
	Replaced   string   `json:"replaced,omitempty"` // digest of the image that had the name
	Pruned     []string `json:"pruned,omitempty"`
}

// Push sends an image to containerd, unpacks it, and then gives it the name. It sends only blobs
// that the board lacks. The board keeps the blobs of a broken push for a day, for the next one.
func (t *Containerd) Push(ctx context.Context, image *oci.Image, name string) (Pushed, error) {
	p := &imagePush{t: t, image: image, pushed: Pushed{
		Engine: t.String(), Image: name, Digest: string(image.Manifest.Digest),
		Platform: platforms.Format(image.Platform), Layers: len(image.Layers),
	}}
	if err := p.pushImage(t.withNamespace(ctx), name); err != nil {
		return p.pushed, t.describeError("push "+name, err)
	}
	return p.pushed, nil
}

// imagePush is one call of Push.
type imagePush struct {
	t      *Containerd
	image  *oci.Image
	pushed Pushed
}

// pushImage sends the missing blobs, unpacks the image and gives it the name. A lease protects the
// blobs until then, or for leaseHours if that fails.
func (p *imagePush) pushImage(ctx context.Context, name string) error {
	id := "slipway-push-" + p.image.Manifest.Digest.Encoded()[:16]
	manager := p.t.client.LeasesService()
	_, err := manager.Create(ctx, leases.WithID(id), leases.WithExpiration(leaseHours*time.Hour))
	if err != nil && !errdefs.IsAlreadyExists(err) {
		return err
	}
	ctx = leases.WithLease(ctx, id)
	missing, err := p.findMissing(ctx, id)
	if err != nil {
		return err
	}
	if err := p.sendBlobs(ctx, missing); err != nil {
		return err
	}
	if err := p.labelManifest(ctx); err != nil {
		return err
	}
	if err := p.unpackImage(ctx, name); err != nil {
		return err
	}
	return manager.Delete(ctx, leases.Lease{ID: id})
}

// missingBlob is a blob that the board lacks, or has only partly.
type missingBlob struct {
	v1.Descriptor
	layer bool
	have  int64
}

// findMissing returns the blobs that the board lacks, whole or in part, and leases the others.
func (p *imagePush) findMissing(ctx context.Context, lease string) ([]missingBlob, error) {
	store := p.t.client.ContentStore()
	var missing []missingBlob
	for _, d := range p.image.Blobs() {
		_, err := store.Info(ctx, d.Digest)
		if err == nil {
			err = p.t.client.LeasesService().AddResource(ctx, leases.Lease{ID: lease}, leases.Resource{ID: string(d.Digest), Type: "content"})
		}
		if err == nil {
			continue
		}
		if !errdefs.IsNotFound(err) {
			return nil, err
		}
		l := missingBlob{Descriptor: d, layer: d.Digest != p.image.Config.Digest && d.Digest != p.image.Manifest.Digest}
		if status, err := store.Status(ctx, ingestName(d)); err == nil {
			l.have = min(max(status.Offset, 0), d.Size)
		}
		missing = append(missing, l)
	}
	return missing, nil
}

func ingestName(d v1.Descriptor) string { return "slipway-" + string(d.Digest) }

// sendBlobs sends the missing blobs, blobsAtOnce at a time, and the manifest last. It counts in
// p.pushed what it sent.
func (p *imagePush) sendBlobs(ctx context.Context, missing []missingBlob) (err error) {
	var total int64
	for _, l := range missing {
		total += l.Size - l.have
		if l.layer {
			p.pushed.SentLayers++
		}
	}
	if len(missing) == 0 {
		return nil
	}
	step := progress.Start(ctx, "push "+p.image.Name, total, progress.Bytes)
	step.Detail(fmt.Sprintf("%d of %d layers, %.1f MiB", p.pushed.SentLayers, p.pushed.Layers, float64(total)/(1<<20)))
	var sent atomic.Int64
	count := func(n int64) { sent.Add(n); step.Add(n) }
	defer func() {
		p.pushed.SentBytes = sent.Load()
		step.End(fmt.Sprintf("%d of %d layers, %.1f MiB sent", p.pushed.SentLayers, p.pushed.Layers, float64(p.pushed.SentBytes)/(1<<20)), err)
	}()
	group, one := errgroup.WithContext(ctx)
	group.SetLimit(blobsAtOnce)
	for _, l := range missing {
		if l.Digest == p.image.Manifest.Digest {
			continue
		}
		group.Go(func() error { return p.sendBlob(one, l.Descriptor, count) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return p.sendBlob(ctx, p.image.Manifest, count)
}

// sendBlob sends one blob, or the rest of it if the board has a part. If that part turns out to be
// wrong, sendBlob discards it and sends the whole blob once.
func (p *imagePush) sendBlob(ctx context.Context, d v1.Descriptor, count func(int64)) error {
	for again := false; ; again = true {
		resumed, err := p.tryBlob(ctx, d, count)
		if err == nil || errdefs.IsAlreadyExists(err) {
			return nil
		}
		if !resumed || again || !errdefs.IsFailedPrecondition(err) {
			return fmt.Errorf("blob %s: %w", d.Digest, err)
		}
		if err := p.t.client.ContentStore().Abort(ctx, ingestName(d)); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
}

// tryBlob sends what the board lacks of a blob and commits it. resumed: the board had a part.
func (p *imagePush) tryBlob(ctx context.Context, d v1.Descriptor, count func(int64)) (resumed bool, err error) {
	w, err := p.openWriter(ctx, d)
	if err != nil {
		return false, err
	}
	defer w.Close()
	status, err := w.Status()
	if err != nil {
		return false, err
	}
	resumed = status.Offset > 0
	if status.Offset > d.Size {
		return resumed, fmt.Errorf("the board has %d bytes of %d: %w", status.Offset, d.Size, errdefs.ErrFailedPrecondition)
	}
	if status.Offset < d.Size {
		if err := p.copyBlob(ctx, w, d, status.Offset, count); err != nil {
			return resumed, err
		}
	}
	return resumed, w.Commit(ctx, d.Size, d.Digest)
}

// openWriter opens a blob on the board for writing. If a lost connection still locks the blob after
// lockPatience, it opens the blob under another ingest name.
func (p *imagePush) openWriter(ctx context.Context, d v1.Descriptor) (content.Writer, error) {
	store := p.t.client.ContentStore()
	patient, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	for {
		w, err := store.Writer(ctx, content.WithRef(ingestName(d)), content.WithDescriptor(d))
		if !errdefs.IsUnavailable(err) {
			return w, err
		}
		select {
		case <-time.After(watchEvery):
			continue
		case <-patient.Done():
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return store.Writer(ctx, content.WithRef(ingestName(d)+"-"+rand.Text()), content.WithDescriptor(d))
	}
}

// copyBlob writes the blob to w, beginning at the offset from, in pieces of sendBytes.
func (p *imagePush) copyBlob(ctx context.Context, w io.Writer, d v1.Descriptor, from int64, count func(int64)) error {
	blob, err := p.image.Store.Open(ctx, d)
	if err != nil {
		return err
	}
	defer blob.Close()
	in := io.NewSectionReader(blob, from, d.Size-from)
	buf := make([]byte, min(sendBytes, d.Size-from))
	for left := d.Size - from; left > 0; {
		n, err := io.ReadFull(in, buf[:min(int64(len(buf)), left)])
		if err != nil {
			return fmt.Errorf("read it here: %w", err)
		}
		if _, err := w.Write(buf[:n]); err != nil {
			return err
		}
		count(int64(n))
		left -= int64(n)
	}
	return nil
}

// labelManifest labels the manifest with its blobs, so that garbage collection keeps them.
func (p *imagePush) labelManifest(ctx context.Context) error {
	info := content.Info{Digest: p.image.Manifest.Digest, Labels: map[string]string{
		"containerd.io/gc.ref.content.config": string(p.image.Config.Digest),
	}}
	fields := []string{"labels.containerd.io/gc.ref.content.config"}
	for i, l := range p.image.Layers {
		key := fmt.Sprintf("containerd.io/gc.ref.content.l.%d", i)
		info.Labels[key] = string(l.Digest)
		fields = append(fields, "labels."+key)
	}
	_, err := p.t.client.ContentStore().Update(ctx, info, fields...)
	return err
}

// unpackImage unpacks the image's layers, gives the name to the image, and sets p.pushed.Replaced.
func (p *imagePush) unpackImage(ctx context.Context, name string) error {
	image := images.Image{Name: name, Target: p.image.Manifest, Labels: map[string]string{ownLabel: "1"}}
	err := progress.Run(ctx, "unpack "+name, func(*progress.Step) (string, error) {
		return "", client.NewImage(p.t.client, image).Unpack(ctx, snapshotter)
	})
	if err != nil {
		return fmt.Errorf("unpack: %w", err)
	}
	service := p.t.client.ImageService()
	old, err := service.Get(ctx, name)
	if errdefs.IsNotFound(err) {
		_, err = service.Create(ctx, image)
		return err
	}
	if err != nil {
		return err
	}
	if old.Target.Digest != image.Target.Digest {
		p.pushed.Replaced = boardssh.Printable(string(old.Target.Digest))
	}
	_, err = service.Update(ctx, image, "target", "labels."+ownLabel)
	return err
}

// Prune removes images that Slipway pushed and that no container uses, except the one named keep,
// and returns their names. containerd then collects the blobs that only they used.
func (t *Containerd) Prune(ctx context.Context, keep string) ([]string, error) {
	ctx = t.withNamespace(ctx)
	pruned, err := t.pruneImages(ctx, keep)
	if err != nil {
		return pruned, t.describeError("remove old images", err)
	}
	return pruned, nil
}

// pruneImages deletes the pushed images that no container uses, except keep, and returns the names.
func (t *Containerd) pruneImages(ctx context.Context, keep string) (pruned []string, err error) {
	used := map[string]bool{keep: true}
	containers, err := t.client.ContainerService().List(ctx)
	if err != nil {
		return nil, err
	}
	for _, c := range containers {
		used[c.Image] = true
	}
	all, err := t.client.ImageService().List(ctx, fmt.Sprintf(`labels.%q==1`, ownLabel))
	if err != nil {
		return nil, err
	}
	for _, image := range all {
		if used[image.Name] {
			continue
		}
		if err := t.client.ImageService().Delete(ctx, image.Name); err != nil && !errdefs.IsNotFound(err) {
			return pruned, err
		}
		pruned = append(pruned, boardssh.Printable(image.Name))
	}
	return pruned, nil
}
