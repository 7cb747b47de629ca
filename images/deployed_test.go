package images

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"slipway/images/sbom"
	"slipway/layers"
)

// What bitbake says of the images is asked once for a configuration and its commits.
func TestImageNamesAreAskedOnce(t *testing.T) {
	replayed(t)
	p, dir := tinyProject(t, standIn(t), "tiny-image")
	gitInit(t, p.Root)
	var built time.Time
	for _, tt := range []struct {
		name   string
		change func(*layers.Project)
		asked  int  // in all
		again  bool // the artifact is that of the build before
	}{
		{"the first build", func(*layers.Project) {}, 1, false},
		{"nothing changed", func(*layers.Project) {}, 1, true},
		{"another variable", func(p *layers.Project) {
			p.LocalConf = map[string]string{"links": `IMAGE_LINK_NAME = "x"`}
		}, 2, false},
		{"nothing changed again", func(*layers.Project) {}, 2, true},
	} {
		tt.change(&p)
		a, err := buildProject(t.Context(), tiny, p, Options{Dir: filepath.Dir(dir)})
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		if again := a.Built.Equal(built); again != tt.again {
			t.Errorf("%s: the artifact is of %s, and the one before of %s", tt.name, a.Built, built)
		}
		built = a.Built
		if n := countAsked(t, dir); n != tt.asked {
			t.Errorf("%s: bitbake was asked %d times; want %d", tt.name, n, tt.asked)
		}
	}
}

// bitbake is asked each time where files may have changed while commits and configuration
// stay: edited ones, and those of a folder that git does not keep.
func TestImageNamesOfUnknownFiles(t *testing.T) {
	replayed(t)
	for name, change := range map[string]func(layer string){
		"an edited file": func(layer string) {
			must(os.WriteFile(filepath.Join(layer, "conf/layer.conf"), []byte("# mine\n"), 0o644))
		},
		"a folder without git": func(layer string) { must(os.RemoveAll(filepath.Join(layer, ".git"))) },
	} {
		p, dir := tinyProject(t, standIn(t), "tiny-image")
		layer := p.Root
		gitInit(t, layer)
		change(layer)
		for n := 1; n <= 2; n++ {
			if _, err := buildProject(t.Context(), tiny, p, Options{Dir: filepath.Dir(dir)}); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if got := countAsked(t, dir); got != n {
				t.Errorf("%s: bitbake was asked %d times in %d builds", name, got, n)
			}
		}
	}
}

// countAsked returns how often bitbake was asked for names.
func countAsked(t *testing.T, dir string) int {
	t.Helper()
	asked, err := os.ReadFile(filepath.Join(dir, "bitbake/asked-names"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(asked), "\n")
}

func gitInit(t *testing.T, dir string) {
	t.Helper()
	git(t, dir, "init", "-q", "-b", "main")
	git(t, dir, "add", "-A")
	git(t, dir, "commit", "-q", "-m", "a layer")
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
	a, err := buildProject(t.Context(), tiny, p, Options{Dir: filepath.Dir(dir)})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range a.Files {
		got = append(got, f.Kind+" "+f.Name)
	}
	want := []string{
		DiskImage + " tiny-image-debian.wic", Bundle + " tiny-image-debian.raucb", Container + " tiny-image-debian.oci.tar",
		SBOM + " tiny-image-debian.rootfs.spdx.tar.zst", CVEs + " tiny-image-debian.rootfs.json", Provenance + " provenance.json",
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
		a, err := buildProject(t.Context(), tiny, p, Options{Dir: filepath.Dir(dir)})
		must(err)
		list, err := a.File(SBOM)
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
	_, err := buildProject(t.Context(), tiny, p, Options{Dir: filepath.Dir(dir)})
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
	spec := Spec{Board: "tiny", Disk: &Disk{Partitions: []DiskPartition{{Name: "rootA", Use: useRoot}}}}
	got, err := readPartitions(t.Context(), spec, disk)
	if diff := cmp.Diff([]Partition{{Name: "rootA", Use: useRoot, OffsetBytes: 4 << 20, SizeBytes: 8 << 20}}, got); diff != "" || err != nil {
		t.Errorf("readPartitions: %v (-want +got)\n%s", err, diff)
	}
	spec.Disk.Partitions = append(spec.Disk.Partitions, DiskPartition{Name: "data", Use: useData})
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
		got, err := signingVariables(t.Context(), layers.Project{Env: tt.env}, Options{Dir: dir})
		if len(got) != tt.want || err != nil {
			t.Errorf("%s: signingVariables = %q, %v; want %d", tt.name, got, err, tt.want)
		}
		for _, v := range got {
			if _, file, _ := strings.Cut(v, "="); !onDisk(file) || !filepath.IsAbs(file) {
				t.Errorf("%s: %s is not a file's path", tt.name, v)
			}
		}
	}
}

func TestKeptNamesOfDamagedFile(t *testing.T) {
	k := keptNames{Path: filepath.Join(t.TempDir(), deployedFile), Key: "k", Targets: []string{"a"}, Names: []imageName{{Path: "/d/a"}}}
	must(k.write())
	whole, err := os.ReadFile(k.Path)
	must(err)
	for name, content := range map[string][]byte{"cut": whole[:len(whole)/2], "empty": nil, "another key": []byte(strings.Replace(string(whole), `"k"`, `"l"`, 1))} {
		must(os.WriteFile(k.Path, content, 0o644))
		if got := (&keptNames{Path: k.Path, Key: "k", Targets: []string{"a"}}); got.read() {
			t.Errorf("%s: read() = true, %v", name, got.Names)
		}
	}
}
