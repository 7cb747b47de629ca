package images

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A folder with an artifact stands in the place of the board that it was built for.
func TestLoadBuilt(t *testing.T) {
	home := t.TempDir()
	t.Chdir(home)
	placeBoards(t, home, map[string]string{
		"usb/virt/artifact.json":   `{"board": "virt", "arch": "amd64"}`,
		"usb/lab/artifact.json":    `{"board": "my-lab", "project": "kas.yml", "arch": "arm64"}`,
		"usb/other/artifact.json":  `{"board": "virt-lap"}`,
		"usb/broken/artifact.json": `{"board": `,
		"usb/empty/notes.txt":      "",
		"virt/artifact.json":       `{"board": "virt-arm64"}`,
	})
	opt := Options{Dir: "build"}
	for name, tt := range map[string]struct{ board, dir, typed string }{
		"usb/virt":          {"virt", home + "/usb/virt", home + "/usb/virt"},
		home + "/usb/virt/": {"virt", home + "/usb/virt", home + "/usb/virt"},
		"usb/lab":           {"my-lab", home + "/usb/lab", home + "/usb/lab"},
		"virt":              {"virt", "build/virt", "virt"}, // the board, not the folder
		"./virt":            {"virt-arm64", home + "/virt", home + "/virt"},
	} {
		spec, err := LoadBuilt(name)
		if err != nil || spec.Board != tt.board || opt.BoardDir(spec) != tt.dir || spec.TypedName() != tt.typed || len(spec.Flash.Kinds) == 0 {
			t.Errorf("LoadBuilt(%s) = board %q in %s, typed %s, %v; want %+v", name, spec.Board, opt.BoardDir(spec), spec.TypedName(), err, tt)
		}
	}
	for name, want := range map[string]string{
		"usb/other":  home + `/usb/other/artifact.json: of board "virt-lap", which is not known here: did you mean virt-arm64?`,
		"usb/broken": home + "/usb/broken/artifact.json: ",
		"usb/empty":  home + "/usb/empty: neither artifact.json nor an image of bitbake's is in this folder\nnext: ls " + home + "/usb/empty",
		"usb/none/":  "neither artifact.json nor an image",
		"usb/none":   "unknown board \"usb/none\", and no folder of that name\nnext: ls usb",
	} {
		if spec, err := LoadBuilt(name); err == nil || !strings.Contains(err.Error(), strings.Split(want, ": did")[0]) {
			t.Errorf("LoadBuilt(%s) = board %q, %v; want %s", name, spec.Board, err, want)
		}
	}
	if _, err := Load("usb/virt"); err == nil || !strings.Contains(err.Error(), "usb/virt is a folder: want the name of a board or a project file\nnext: boards") {
		t.Errorf("Load of a folder: %v", err)
	}
}

// bitbake's folder of a machine's images stands in the place of a board, too.
func TestDeployedImage(t *testing.T) {
	const image = "core-image-minimal-"
	for name, tt := range map[string]struct {
		files, links []string
		kinds        []string
		want         string // of the image, or in the error
	}{
		"links to the newest":   {[]string{image + "x.rootfs-2.wic.zst", image + "x.rootfs-1.wic.zst", "z-old.wic.zst"}, []string{image + "x.rootfs.wic.zst"}, []string{DiskImage}, image + "x.rootfs.wic.zst"},
		"without links":         {[]string{image + "x.wic"}, nil, []string{DiskImage}, image + "x.wic"},
		"plain before packed":   {[]string{image + "x.wic.gz", image + "x.wic", image + "x.wic.bmap"}, nil, []string{DiskImage}, image + "x.wic"},
		"two images":            {[]string{"a-x.wic", "b-x.wic"}, nil, []string{DiskImage}, "2 images are in this folder: a-x.wic, b-x.wic\nnext: repeat the line with --image="},
		"two packed images":     {[]string{"a-x.wic.gz", "b-x.wic"}, nil, []string{DiskImage}, "2 images are in this folder: b-x.wic, a-x.wic.gz"},
		"two versions":          {[]string{"image-1.0.wic", "image-1.1.wic"}, nil, []string{DiskImage}, "2 images are in this folder: image-1.0.wic, image-1.1.wic"},
		"two versions, packed":  {[]string{"image-1.0.wic.gz", "image-1.1.wic", "image-1.1.wic.bmap"}, nil, []string{DiskImage}, "2 images are in this folder: image-1.1.wic, image-1.0.wic.gz"},
		"one version":           {[]string{"image-1.0.wic.gz", "image-1.0.wic.bmap", "image-1.0.wic.zst"}, nil, []string{DiskImage}, "image-1.0.wic.zst"},
		"two dated builds":      {[]string{"x.rootfs-20240102030405.wic", "x.rootfs-20250102030405.wic"}, nil, []string{DiskImage}, "2 images are in this folder: x.rootfs-20240102030405.wic, x.rootfs-20250102030405.wic"},
		"a copied link":         {[]string{"x.rootfs-20240102030405.wic", "x.rootfs-20250102030405.wic", "x.rootfs.wic"}, nil, []string{DiskImage}, "x.rootfs.wic"},
		"a copied link, 4.0":    {[]string{"x-20250102030405.rootfs.wic", "x-20250102030405.rootfs.wic.gz", "x.wic", "x.wic.gz"}, nil, []string{DiskImage}, "x.wic"},
		"a link and its target": {[]string{"x.rootfs-20250102030405.wic"}, []string{"x.rootfs.wic"}, []string{DiskImage}, "x.rootfs.wic"},
		"a card of a Jetson":    {[]string{"a-x.tegraflash.tar.gz"}, nil, []string{DiskImage, Tegraflash}, "a-x.tegraflash.tar.gz"},
		"another kind's device": {[]string{"a-x.wic"}, nil, []string{BFB}, "no image for this device: want bfb"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "qemux86-64")
			files := map[string]string{}
			for _, f := range tt.files {
				files[f] = "x"
			}
			placeBoards(t, dir, files)
			for _, l := range tt.links {
				if err := os.Symlink(tt.files[0], filepath.Join(dir, l)); err != nil {
					t.Fatal(err)
				}
			}
			spec, err := LoadBuilt(dir)
			if err != nil || spec.Board != "qemux86-64" || (Options{Dir: "b"}).BoardDir(spec) != "b/qemux86-64" {
				t.Fatalf("LoadBuilt = board %q, %v", spec.Board, err)
			}
			got, err := spec.DeployedImage(tt.kinds...)
			if refused := strings.Contains(tt.want, " "); refused != (err != nil) || err != nil && !strings.Contains(err.Error(), tt.want) || err == nil && got != filepath.Join(dir, tt.want) {
				t.Errorf("DeployedImage = %q, %v; want %s", got, err, tt.want)
			}
		})
	}
	dir := filepath.Join(t.TempDir(), "jetson-orin-nano-devkit")
	placeBoards(t, dir, map[string]string{"a.tegraflash.tar.gz": "x"})
	if spec, err := LoadBuilt(dir); err != nil || spec.Flash.Chip != "t234" {
		t.Errorf("a machine that is a board's name: chip %q, %v; want the board's", spec.Flash.Chip, err)
	}
}
