package builder

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"slipway/images"
	"slipway/images/sbom"
	"slipway/layers"
	"slipway/layers/localfile"
)

// The artifact of a build that changed nothing is that of the build before.
func TestArtifactOfTheBuildBefore(t *testing.T) {
	replayed(t)
	p, dir := tinyProject(t, standIn(t), "tiny-image")
	gitInit(t, p.Root)
	var built time.Time
	for _, tt := range []struct {
		name   string
		change func(*layers.Project)
		again  bool
	}{
		{"the first build", func(*layers.Project) {}, false},
		{"nothing changed", func(*layers.Project) {}, true},
		{"another variable", func(p *layers.Project) {
			p.LocalConf = map[string]string{"links": `IMAGE_LINK_NAME = "x"`}
		}, false},
		{"nothing changed again", func(*layers.Project) {}, true},
	} {
		tt.change(&p)
		a, err := buildProject(t.Context(), tiny, p, images.Options{Dir: filepath.Dir(dir)})
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		if again := a.Built.Equal(built); again != tt.again {
			t.Errorf("%s: the artifact is of %s, and the one before of %s", tt.name, a.Built, built)
		}
		built = a.Built
	}
}

func gitInit(t *testing.T, dir string) {
	t.Helper()
	runGit(t, dir, "init", "-q", "-b", "main")
	runGit(t, dir, "add", "-A")
	runGit(t, dir, "commit", "-q", "-m", "a layer")
}

// The names are those that bitbake says, which differ between configurations and layers.
func TestImagesOfTargets(t *testing.T) {
	replayed(t)
	p, dir := tinyProject(t, standIn(t), "mc:other:tiny-image")
	p.Targets = append(p.Targets, "no-image")
	deploy := deployFolder(filepath.Join(dir, "bitbake"))
	must(os.MkdirAll(deploy, 0o755))
	for _, name := range []string{
		"tiny-image-debian.wic", "tiny-image-debian.raucb", "tiny-image-debian.oci.tar", "tiny-image-qemuarm64.wic.gz", ".wic", "mc:other:tiny-image.wic",
		"tiny-image-debian.rootfs.spdx.json", "tiny-image-debian.rootfs.spdx.tar.zst", "tiny-image-debian.dpkg_status", "tiny-image-debian.rootfs.json", "tiny-image-debian.testdata.json",
	} {
		must(os.WriteFile(filepath.Join(deploy, name), []byte(name), 0o644))
	}
	a, err := buildProject(t.Context(), tiny, p, images.Options{Dir: filepath.Dir(dir)})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range a.Files {
		got = append(got, f.Kind+" "+f.Name)
	}
	want := []string{
		images.DiskImage + " tiny-image-debian.wic", images.Bundle + " tiny-image-debian.raucb", images.Container + " tiny-image-debian.oci.tar",
		images.SBOM + " tiny-image-debian.rootfs.spdx.tar.zst", images.CVEs + " tiny-image-debian.rootfs.json", images.Provenance + " provenance.json",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files (-want +got)\n%s", diff)
	}
}

// Isar deploys dpkg's list of packages, without their licences. A list that is not that of the
// image's files is collected as it is.
func TestLicencesOfIsarPackages(t *testing.T) {
	replayed(t)
	const status = "Package: a\nStatus: install ok installed\nVersion: 1\n\n"
	for name, of := range map[string]string{"of the image": status, "of other files": status + status} {
		p, dir := tinyProject(t, standIn(t), "mc:other:tiny-image")
		build := filepath.Join(dir, "bitbake")
		deploy, root := deployFolder(build), rootFolder(build)
		for path, content := range map[string]string{
			filepath.Join(deploy, "tiny-image-debian.wic"): "disk", filepath.Join(deploy, "tiny-image-debian.dpkg_status"): status,
			filepath.Join(root, dpkgStatus): of, filepath.Join(root, "usr/share/doc/a/copyright"): "Format: x\nLicense: Expat\n",
		} {
			must(os.MkdirAll(filepath.Dir(path), 0o755))
			must(os.WriteFile(path, []byte(content), 0o644))
		}
		a, err := buildProject(t.Context(), tiny, p, images.Options{Dir: filepath.Dir(dir)})
		must(err)
		list, err := a.File(images.SBOM)
		must(err)
		want := strings.Replace(status, "a\n", "a\n"+sbom.LicenceField+": MIT\n", 1)
		if of != status {
			want = status
		}
		got, err := os.ReadFile(a.Path(list))
		if diff := cmp.Diff(want, string(got)); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got)\n%s", name, err, diff)
		}
	}
}

// A bundle alone is no image for a board.
func TestNothingToFlash(t *testing.T) {
	replayed(t)
	p, dir := tinyProject(t, standIn(t), "mc:other:tiny-image")
	deploy := deployFolder(filepath.Join(dir, "bitbake"))
	must(os.MkdirAll(deploy, 0o755))
	must(os.WriteFile(filepath.Join(deploy, "tiny-image-debian.raucb"), nil, 0o644))
	_, err := buildProject(t.Context(), tiny, p, images.Options{Dir: filepath.Dir(dir)})
	if want := "no image of mc:other:tiny-image that can be flashed"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("build = %v; want %q", err, want)
	}
}

func TestReadPartitions(t *testing.T) {
	disk := filepath.Join(t.TempDir(), "disk.wic")
	must(os.WriteFile(disk, nil, 0o644))
	must(os.Truncate(disk, 32<<20))
	table := exec.Command("sfdisk", "--quiet", disk)
	table.Stdin = strings.NewReader("label: gpt\nstart=2048, size=4096, name=loader\nstart=8192, size=16384, name=rootA\n")
	if out, err := table.CombinedOutput(); err != nil {
		t.Skipf("sfdisk (Debian package fdisk): %v %s", err, out)
	}
	spec := images.Spec{Board: "tiny", Disk: &images.Disk{Partitions: []images.DiskPartition{{Name: "rootA", Use: images.UseRoot}}}}
	got, err := readPartitions(t.Context(), spec, disk)
	if diff := cmp.Diff([]images.Partition{{Name: "rootA", Use: images.UseRoot, OffsetBytes: 4 << 20, SizeBytes: 8 << 20}}, got); diff != "" || err != nil {
		t.Errorf("readPartitions: %v (-want +got)\n%s", err, diff)
	}
	spec.Disk.Partitions = append(spec.Disk.Partitions, images.DiskPartition{Name: "data", Use: images.UseData})
	if _, err := readPartitions(t.Context(), spec, disk); err == nil || !strings.Contains(err.Error(), `has no partition "data"`) {
		t.Errorf("readPartitions of a disk without the partition data = %v", err)
	}
}

// Only a project that names all three variables without values gets the build folder's key.
func TestSigningVariables(t *testing.T) {
	value := "/keys/mine.pem"
	all := map[string]*string{keyringVariable: nil, keyVariable: nil, certVariable: nil}
	for _, tt := range []struct {
		name string
		env  map[string]*string
		set  bool // in the environment
		want int
	}{
		{"all three", all, false, 3},
		{"no project's", nil, false, 0},
		{"two of three", map[string]*string{keyringVariable: nil, keyVariable: nil}, false, 0},
		{"one has a value", map[string]*string{keyringVariable: &value, keyVariable: nil, certVariable: nil}, false, 0},
		{"the user's", all, true, 0},
	} {
		for name := range all {
			t.Setenv(name, "")
		}
		if tt.set {
			t.Setenv(keyVariable, value)
		}
		dir := t.TempDir()
		got, err := signingVariables(t.Context(), layers.Project{Env: tt.env}, images.Options{Dir: dir})
		if len(got) != tt.want || err != nil {
			t.Errorf("%s: signingVariables = %q, %v; want %d", tt.name, got, err, tt.want)
		}
		for _, v := range got {
			if _, file, _ := strings.Cut(v, "="); !localfile.Exists(file) || !filepath.IsAbs(file) {
				t.Errorf("%s: %s is not a file's path", tt.name, v)
			}
		}
	}
}
