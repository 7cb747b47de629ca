package flash

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"slipway/flash/bfb"
	"slipway/flash/device"
	"slipway/flash/flashtest"
	"slipway/images"
	"slipway/images/bmap"
	"slipway/layers/progress"
)

// twoImages are two images of one size that differ in one place.
func twoImages() (good, evil []byte) {
	good = make([]byte, 2*mib)
	rand.NewChaCha8([32]byte{}).Read(good)
	good = tabled(good)
	evil = bytes.Clone(good)
	rand.NewChaCha8([32]byte{1}).Read(evil[mib+mib/2 : mib+mib/2+4096])
	return good, evil
}

// packings give two such images the same size again.
var packings = map[string]func(*testing.T, []byte) []byte{
	"disk.img": func(_ *testing.T, p []byte) []byte { return p },
	"disk.img.gz": func(t *testing.T, p []byte) []byte {
		return append(gzipped(t, p[:mib]), gzipped(t, p[mib:])...)
	},
	"disk.img.zst": func(t *testing.T, p []byte) []byte { // a frame without its size
		return through(t, p, "zstd", "-q", "-c")
	},
	"framed.img.zst": func(_ *testing.T, p []byte) []byte {
		w, _ := zstd.NewWriter(nil)
		return append(w.EncodeAll(p[:mib], nil), w.EncodeAll(p[mib:], nil)...)
	},
	"disk.img.xz": func(t *testing.T, p []byte) []byte {
		return through(t, p, "xz", "-0", "-T1", "--block-size=256KiB", "-c")
	},
}

func through(t *testing.T, p []byte, argv ...string) []byte {
	t.Helper()
	if _, err := exec.LookPath(argv[0]); err != nil {
		t.Skipf("%s is missing", argv[0])
	}
	c := exec.Command(argv[0], argv[1:]...)
	c.Stdin = bytes.NewReader(p)
	out, err := c.Output()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// attacks are what somebody can do who may write to the folder of a file.
var attacks = map[string]func(t *testing.T, path string, evil []byte){
	"rename": func(t *testing.T, path string, evil []byte) {
		fill(t, path+".new", string(evil))
		if err := os.Rename(path+".new", path); err != nil {
			t.Error(err)
		}
	},
	"link": func(t *testing.T, path string, evil []byte) {
		fill(t, path+".evil", string(evil))
		if err := os.Symlink(path+".evil", path+".link"); err != nil {
			t.Error(err)
		}
		if err := os.Rename(path+".link", path); err != nil {
			t.Error(err)
		}
	},
	"edit in place": func(t *testing.T, path string, evil []byte) {
		inPlace(t, path, func(f *os.File) error { _, err := f.WriteAt(evil, 0); return err })
	},
	"truncate and write": func(t *testing.T, path string, evil []byte) {
		inPlace(t, path, func(f *os.File) error {
			if err := f.Truncate(0); err != nil {
				return err
			}
			_, err := f.WriteAt(evil, 0)
			return err
		})
	},
	"punch": func(t *testing.T, path string, _ []byte) {
		inPlace(t, path, func(f *os.File) error {
			info, err := f.Stat()
			if err == nil {
				_, err = f.WriteAt(make([]byte, 4096), info.Size()/2)
			}
			return err
		})
	},
	"truncate": func(t *testing.T, path string, _ []byte) {
		inPlace(t, path, func(f *os.File) error {
			info, err := f.Stat()
			if err == nil {
				err = f.Truncate(info.Size() / 2)
			}
			return err
		})
	},
	"grow": func(t *testing.T, path string, evil []byte) {
		inPlace(t, path, func(f *os.File) error {
			info, err := f.Stat()
			if err == nil {
				_, err = f.WriteAt(evil, info.Size())
			}
			return err
		})
	},
}

// inPlace edits a file and puts its time back.
func inPlace(t *testing.T, path string, edit func(*os.File) error) {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Error(err)
		return
	}
	defer f.Close()
	info, _ := f.Stat()
	if err := edit(f); err != nil {
		t.Error(err)
	}
	if err := os.Chtimes(path, info.ModTime(), info.ModTime()); err != nil {
		t.Error(err)
	}
}

// at does something once at the moment when a step is in a state.
func at(ctx context.Context, step string, state progress.State, do func()) context.Context {
	done := false
	return progress.With(ctx, progress.New(sink(func(e progress.Event) {
		if !done && strings.HasPrefix(e.Step, step) && e.State == state {
			done = true
			do()
		}
	})))
}

// moments are when it is done. Each returns the context and the options of the flash.
var moments = map[string]func(context.Context, *Options, func()) context.Context{
	"before it is read": func(ctx context.Context, _ *Options, do func()) context.Context {
		return at(ctx, "prove", progress.Running, do)
	},
	"once proved": func(ctx context.Context, _ *Options, do func()) context.Context {
		return at(ctx, "prove", progress.Done, do)
	},
	"asked": func(ctx context.Context, o *Options, do func()) context.Context {
		o.Yes, o.Confirm = nil, func([]device.Device) error { do(); return nil }
		return ctx
	},
	"writing": func(ctx context.Context, _ *Options, do func()) context.Context {
		return at(ctx, "flash", progress.Running, do)
	},
}

// TestOnlyWhatWasProvedIsWritten has somebody write to the image's folder meanwhile.
func TestOnlyWhatWasProvedIsWritten(t *testing.T) {
	good, evil := twoImages()
	ann := newPerson(t, "ann")
	for name, pack := range packings {
		goodFile, evilFile := pack(t, good), pack(t, evil)
		if len(goodFile) != len(evilFile) {
			t.Errorf("%s: %d and %d bytes; want two files of one size", name, len(goodFile), len(evilFile))
		}
		proofs := []string{"digest"}
		if name == "disk.img" || name == "disk.img.zst" { // the others would tell no more
			proofs = append(proofs, "signers")
		}
		for _, proof := range proofs {
			for what, attack := range attacks {
				for when, moment := range moments {
					t.Run(strings.Join([]string{name, proof, what, when}, "/"), func(t *testing.T) {
						dir := t.TempDir()
						path, disk := filepath.Join(dir, name), filepath.Join(t.TempDir(), "disk.img")
						fill(t, path, string(goodFile))
						fill(t, disk, "old")
						o := Options{Image: path, Yes: []string{disk}}
						if proof == "digest" {
							o.Digest = "sha256:" + sumOf(goodFile)
						} else {
							ann.sign(t, path)
							o.Signers = ann.list
						}
						attacked := false
						ctx := moment(t.Context(), &o, func() { attacked = true; attack(t, path, evilFile) })
						_, err := Write(ctx, spec, images.NoArtifact(spec, t.TempDir()), disk, o)
						if !attacked {
							t.Error("there was no such moment")
						}
						wantWhole(t, disk, good, err, what == "rename" || what == "link")
					})
				}
			}
		}
	}
}

// wantWhole wants what was proved, or an error and the old disk.
func wantWhole(t *testing.T, disk string, good []byte, err error, must bool) {
	t.Helper()
	switch got := read(t, disk); {
	case err == nil && !bytes.Equal(got, good):
		t.Error("other bytes than those that were proved were written")
	case err != nil && must:
		t.Errorf("Write = %v; want the file that was opened", err)
	case err != nil && string(got) != "old":
		t.Errorf("after %v the disk has %d bytes", err, len(got))
	}
}

// TestMapThatWasProvedIsUsed has somebody replace the map, and the image with it.
func TestMapThatWasProvedIsUsed(t *testing.T) {
	good, evil := twoImages()
	for what, attack := range attacks {
		for when, moment := range moments {
			t.Run(what+"/"+when, func(t *testing.T) {
				dir, disk := t.TempDir(), filepath.Join(t.TempDir(), "disk.img")
				path, blocks := filepath.Join(dir, "disk.img"), filepath.Join(dir, "disk.img.bmap")
				fill(t, path, string(good))
				fill(t, disk, "old")
				fill(t, blocks, mapText(t, good))
				fill(t, filepath.Join(dir, "SHA256SUMS"), fmt.Sprintf("%s  disk.img\n%s  disk.img.bmap\n", sumOf(good), sumOf([]byte(mapText(t, good)))))
				o := Options{Image: path, Yes: []string{disk}, Digest: filepath.Join(dir, "SHA256SUMS")}
				ctx := moment(t.Context(), &o, func() {
					attack(t, blocks, []byte(mapText(t, evil)))
					attack(t, path, evil)
				})
				_, err := Write(ctx, spec, images.NoArtifact(spec, t.TempDir()), disk, o)
				wantWhole(t, disk, good, err, false)
			})
		}
	}
}

// TestMapIsNotReadAgain has somebody replace the map by one that fits the image and leaves a
// part of it out, between the proof and the first look at the image.
func TestMapIsNotReadAgain(t *testing.T) {
	good, _ := twoImages()
	dir, disk := t.TempDir(), filepath.Join(t.TempDir(), "disk.img")
	path, blocks := filepath.Join(dir, "disk.img"), filepath.Join(dir, "disk.img.bmap")
	fill(t, path, string(good))
	fill(t, blocks, mapText(t, good))
	fill(t, filepath.Join(dir, "SHA256SUMS"), fmt.Sprintf("%s  disk.img\n%s  disk.img.bmap\n", sumOf(good), sumOf(read(t, blocks))))
	a := images.NoArtifact(spec, t.TempDir())
	r := request{spec: spec, artifact: a, options: Options{Image: path, Digest: filepath.Join(dir, "SHA256SUMS")}, other: &otherBoard{}}
	var err error
	if r.devices, err = chooseDevices(spec, a, []string{disk}); err == nil {
		r.image, err = resolveImage(t.Context(), r)
	}
	if err != nil {
		t.Fatal(err)
	}
	part := filepath.Join(t.TempDir(), "part")
	fill(t, part, string(good[:mib]))
	inPlace(t, part, func(f *os.File) error { _, err := f.WriteAt(good[mib+mib/2:], mib+mib/2); return err })
	f, err := os.Open(part)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m := mapOf(t, f)
	var text bytes.Buffer
	if _, err := m.WriteTo(&text); err != nil || m.Mapped() == int64(len(good)) {
		t.Fatalf("a map of %d bytes, %v; want one with a hole", m.Mapped(), err)
	}
	fill(t, blocks, text.String())
	j, err := newImageJob(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	defer j.close()
	if got := j.(*imageJob).blocks.Mapped(); got != int64(len(good)) {
		t.Errorf("the map has %d bytes; want %d, as the one that was proved", got, len(good))
	}
}

func mapText(t *testing.T, image []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image")
	fill(t, path, string(image))
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m := mapOf(t, f)
	var b bytes.Buffer
	if _, err := m.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestArtifactThatWasProvedIsWritten has somebody supply the artifact too. A person knows
// the image's digest, and no map fits another image then.
func TestArtifactThatWasProvedIsWritten(t *testing.T) {
	good, evil := twoImages()
	for what, attack := range attacks {
		for when, moment := range moments {
			t.Run(what+"/"+when, func(t *testing.T) {
				dir, disk := t.TempDir(), filepath.Join(t.TempDir(), "disk.img")
				fill(t, disk, "old")
				fill(t, filepath.Join(dir, "disk.img"), string(evil))
				f, err := os.Open(filepath.Join(dir, "disk.img"))
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				m := mapOf(t, f)
				fill(t, filepath.Join(dir, "disk.img"), string(good))
				a := describe(t, dir, m) // whose map is of the other image
				o := Options{Yes: []string{disk}, Digest: "sha256:" + sumOf(good)}
				ctx := moment(t.Context(), &o, func() { attack(t, filepath.Join(dir, "disk.img"), evil) })
				_, err = Write(ctx, spec, a, disk, o)
				wantWhole(t, disk, good, err, false)
			})
		}
	}
}

// TestPackedArtifactThatWasProvedIsWritten is of an artifact's own digests.
func TestPackedArtifactThatWasProvedIsWritten(t *testing.T) {
	good, evil := twoImages()
	pack := packings["disk.img.gz"]
	for what, attack := range attacks {
		for when, moment := range moments {
			t.Run(what+"/"+when, func(t *testing.T) {
				dir, disk := t.TempDir(), filepath.Join(t.TempDir(), "disk.img")
				fill(t, disk, "old")
				fill(t, filepath.Join(dir, "disk.img"), string(pack(t, good)))
				a := describe(t, dir, bmap.Map{BlockSize: 4096, ImageSize: 4096})
				a.Files = a.Files[:1]
				o := Options{Yes: []string{disk}}
				ctx := moment(t.Context(), &o, func() { attack(t, filepath.Join(dir, "disk.img"), pack(t, evil)) })
				_, err := Write(ctx, spec, a, disk, o)
				wantWhole(t, disk, good, err, false)
			})
		}
	}
}

// TestArtifactOfAnotherDigest is of files of the right size that artifact.json does not describe.
func TestArtifactOfAnotherDigest(t *testing.T) {
	good, evil := twoImages()
	for name, pack := range packings {
		t.Run(name, func(t *testing.T) {
			dir, disk := t.TempDir(), filepath.Join(t.TempDir(), "disk.img")
			fill(t, disk, "old")
			fill(t, filepath.Join(dir, "disk.img"), string(pack(t, good)))
			a := describe(t, dir, bmap.Map{BlockSize: 4096, ImageSize: 4096})
			a.Files = a.Files[:1]
			fill(t, filepath.Join(dir, "disk.img"), string(pack(t, evil)))
			_, err := Write(t.Context(), spec, a, disk, Options{Yes: []string{disk}})
			if err == nil || !strings.Contains(err.Error(), "the artifact says "+sumOf(pack(t, good))) {
				t.Errorf("Write = %v; want the digest refused", err)
			}
			wantWhole(t, disk, good, err, false)
		})
	}
}

// A device of which another image was begun has no partition table, and the error says so.
func TestDeviceOfAChangedImage(t *testing.T) {
	good, evil := twoImages()
	for name, pack := range packings {
		t.Run(name, func(t *testing.T) {
			dev, _ := flashtest.Loop(t, 4*mib)
			path := filepath.Join(t.TempDir(), name)
			file := pack(t, good)
			fill(t, path, string(file))
			o := Options{Image: path, Yes: []string{dev}, Digest: "sha256:" + sumOf(file)}
			ctx := at(t.Context(), "flash", progress.Running, func() { attacks["edit in place"](t, path, pack(t, evil)) })
			_, err := Write(ctx, spec, images.NoArtifact(spec, t.TempDir()), dev, o)
			if err == nil || !strings.Contains(err.Error(), "changed after Slipway proved it") || strings.Contains(err.Error(), "damaged") {
				t.Fatalf("Write = %v; want to hear that the image changed", err)
			}
			if strings.Contains(err.Error(), "is not whole") {
				unusable(t, dev)
			} else if !strings.Contains(err.Error(), "is as it was") {
				t.Errorf("Write = %v; want it to say how the device was left", err)
			}
		})
	}
}

// TestStreamThatWasProvedIsPushed has somebody write to a boot stream's folder.
func TestStreamThatWasProvedIsPushed(t *testing.T) {
	ann := newPerson(t, "ann")
	for _, proof := range []string{"digest", "signers", "artifact"} {
		for what, attack := range attacks {
			for when, moment := range moments {
				if when == "writing" {
					continue // there is no step of that name
				}
				t.Run(strings.Join([]string{proof, what, when}, "/"), func(t *testing.T) {
					d := &flashtest.DPU{Says: flashtest.Boots}
					names := dpus(t, d)
					a, good := streamArtifact(t)
					path := filepath.Join(a.Dir(), "toy.bfb")
					evil := otherStream(t, len(good))
					o := Options{Yes: names}
					switch proof {
					case "digest":
						o.Image, o.Digest = path, "sha256:"+sumOf(good)
					case "signers":
						ann.sign(t, path)
						o.Image, o.Signers = path, ann.list
					}
					ctx := moment(t.Context(), &o, func() { attack(t, path, evil) })
					_, err := WriteAll(ctx, dpuSpec, a, names, o)
					pushed, _ := d.Pushed()
					if !bytes.HasPrefix(good, pushed) || err == nil && !bytes.Equal(good, pushed) {
						t.Errorf("WriteAll = %v; other bytes than those that were proved were pushed", err)
					}
					if err != nil && (what == "rename" || what == "link") {
						t.Errorf("WriteAll = %v; want the file that was opened", err)
					}
				})
			}
		}
	}
}

// otherStream is a boot stream of a size.
func otherStream(t *testing.T, size int) []byte {
	t.Helper()
	parts, err := bfb.ParseParts("boot-args==" + strings.Repeat("evil! ", 30_000) + ",boot-timeout==3")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "evil.bfb")
	if _, err := bfb.Make(t.Context(), path, bfb.Recipe{Parts: parts}); err != nil {
		t.Fatal(err)
	}
	if data := read(t, path); len(data) == size {
		return data
	}
	t.Fatal("the other stream has another size")
	return nil
}

// TestPackageThatWasProvedRuns has somebody write to a package's folder. Its scripts run here.
func TestPackageThatWasProvedRuns(t *testing.T) {
	ann := newPerson(t, "ann")
	for _, proof := range []string{"digest", "signers", "artifact"} {
		for _, what := range []string{"rename", "edit in place", "truncate and write"} {
			attack := attacks[what]
			for _, when := range []string{"before it is read", "once proved", "unpacking", "unpacked", "asked"} {
				t.Run(strings.Join([]string{proof, what, when}, "/"), func(t *testing.T) {
					j := newJetsons(t, map[string]string{"1-2": "SUCCESS"})
					ran := filepath.Join(t.TempDir(), "ran")
					good := read(t, j.artifact.Path(j.artifact.Files[0]))
					evil := repacked(t, good, "initrd-flash", "#!/bin/sh\ntouch "+ran+"\n")
					good = repacked(t, good, "", "")
					dir := t.TempDir()
					path := filepath.Join(dir, "toy.tegraflash.tar.gz")
					fill(t, path, string(good))
					a := images.Artifact{Board: "toy", Key: "0123456789abcdef", Files: []images.File{{
						Kind: images.Tegraflash, Name: filepath.Base(path), SizeBytes: int64(len(good)), SHA256: sumOf(good),
					}}}
					if err := a.Save(dir); err != nil {
						t.Fatal(err)
					}
					var err error
					if j.artifact, err = images.OpenArtifact(dir); err != nil {
						t.Fatal(err)
					}
					o := Options{Yes: []string{"usb:1-2"}}
					switch proof {
					case "digest":
						o.Image, o.Digest = path, "sha256:"+sumOf(good)
					case "signers":
						ann.sign(t, path)
						o.Image, o.Signers = path, ann.list
					}
					do := func() { attack(t, path, evil) }
					ctx := t.Context()
					switch when {
					case "unpacking":
						ctx = at(ctx, "unpack", progress.Running, do)
					case "unpacked":
						ctx = at(ctx, "unpack", progress.Done, do)
					default:
						ctx = moments[when](ctx, &o, do)
					}
					receipts, _, err := j.flash(ctx, o, "usb:1-2")
					if _, left := os.Stat(ran); left == nil {
						t.Errorf("WriteAll = %v, %v; a script ran that nobody proved", receipts, err)
					}
				})
			}
		}
	}
}

// repacked is a tar.gz as Go packs it, in which one file may have another content.
func repacked(t *testing.T, archive []byte, name, text string) []byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		data, err2 := io.ReadAll(r)
		if h.Name == name {
			data = []byte(text)
		}
		h.Size = int64(len(data))
		if err := errors.Join(err, err2, w.WriteHeader(h)); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return gzipped(t, b.Bytes())
}
