package doctor

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"slipway/images/lint"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

const gib = 1 << 30

// nearestExisting returns the absolute path of dir, or of the nearest folder above that exists.
func nearestExisting(dir string) string {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "."
	}
	return localfile.NearestFolder(filepath.Join(abs, "x"))
}

// diskPart is a folder that a build fills, with the space that it needs.
type diskPart struct {
	name    string
	dir     string
	needGiB int
}

// diskParts returns the folders that a build fills: one for Debian packages, four for bitbake.
func (p boardBuild) diskParts() []diskPart {
	build := p.Build.Dir
	if p.spec.Debian != nil {
		return []diskPart{{"image", build, 4}}
	}
	d := p.spec.Build.Disk
	return []diskPart{
		{"layers", p.ws.Dir, d.LayersGiB},
		{"downloads", p.downloadsDir(), d.DownloadsGiB},
		{"sstate", p.variableFolder("SSTATE_DIR", p.Build.SstateDir()), d.SstateGiB},
		{"tmp", p.variableFolder("TMPDIR", filepath.Join(p.bitbakeDir(), "tmp")), d.TmpGiB},
	}
}

// variableFolder returns the folder that bitbake will use for a variable such as DL_DIR. The first
// value counts: of bitbake's configuration, but not by ?=; of this environment (TMPDIR only if the
// project passes it on); of the project's environment; by ?= (only TMPDIR); the argument otherwise.
func (p boardBuild) variableFolder(name, otherwise string) string {
	value, through := p.project.Env[name]
	given := plaintext.Either(name == "TMPDIR", "", otherwise)
	if value != nil && *value != "" {
		given = *value
	}
	if through || name != "TMPDIR" {
		given = cmp.Or(os.Getenv(name), given)
	}
	otherwise = cmp.Or(given, otherwise)
	dir, err := lint.Setting(p.project, p.bitbakeDir(), name, given)
	if err != nil || dir == "" {
		return otherwise // the finding "configuration" says why it cannot be read
	}
	if dir = p.expandPath(dir); !filepath.IsAbs(dir) && dir != otherwise {
		dir = filepath.Join(p.bitbakeDir(), dir)
	}
	return dir
}

// demand is the space that a build still needs on one file system.
type demand struct {
	dir        string
	need, free uint64
	inodes     uint64
	of         []string
	counted    bool // all files that exist were counted in time
}

// checkDisk compares what the build still needs on each file system with free space and inodes.
func checkDisk(ctx context.Context, p boardBuild) []Finding {
	var all []*demand
	byDevice := map[uint64]*demand{}
	for _, part := range p.diskParts() {
		dir := nearestExisting(part.dir)
		var st unix.Stat_t
		var fs unix.Statfs_t
		if err := cmp.Or(unix.Stat(dir, &st), unix.Statfs(dir, &fs)); err != nil {
			return []Finding{{"disk", Warning, dir + ": " + err.Error(), "it cannot be told whether the build fits", "look at the folder"}}
		}
		d := byDevice[st.Dev]
		if d == nil {
			d = newDemand(dir, fs)
			byDevice[st.Dev] = d
			all = append(all, d)
		}
		need := uint64(part.needGiB) * gib
		there, counted := usedBytes(ctx, part.dir)
		d.need += need - min(need, there)
		d.counted = d.counted && counted
		d.of = append(d.of, fmt.Sprintf("%s %d", part.name, part.needGiB))
	}
	var findings []Finding
	for _, d := range all {
		findings = append(findings, d.listFindings(p)...)
	}
	return findings
}

// newDemand returns an empty demand with a file system's free space and inodes (enoughInodes if it
// has no limit).
func newDemand(dir string, fs unix.Statfs_t) *demand {
	d := demand{dir: dir, free: fs.Bavail * uint64(fs.Frsize), inodes: fs.Ffree, counted: true}
	if fs.Files == 0 {
		d.inodes = enoughInodes // the file system makes them as it needs them
	}
	return &d
}

// listFindings returns the finding on space, and a warning of too few inodes for bitbake.
func (d demand) listFindings(p boardBuild) []Finding {
	all := []Finding{d.spaceFinding(p)}
	if d.inodes < enoughInodes && p.spec.Debian == nil {
		all = append(all, Finding{
			"disk", Warning, fmt.Sprintf("%s: %d files can still be made", d.dir, d.inodes),
			"a build makes millions, and stops as on a full disk", "build on a file system with more inodes (mkfs.ext4 -i 8192), or on btrfs or xfs",
		})
	}
	return all
}

const enoughInodes = 4_000_000

// spaceFinding compares the free space with what the build still needs. Too little is a warning.
// Less than half of it stops the build, unless the files were not all counted.
func (d demand) spaceFinding(p boardBuild) Finding {
	f := okFinding("disk", "%s: %d GiB free, %d GiB still to be written", d.dir, d.free/gib, d.need/gib)
	if d.free >= d.need {
		return f
	}
	f.State = Warning
	f.Why = fmt.Sprintf("a first build of %s takes, in GiB: %s", p.spec.Board, strings.Join(d.of, ", "))
	switch {
	case !d.counted:
		f.Why += "; more of it exists already than could be counted in a moment"
	case d.free < d.need/2:
		f.State = Stops
	}
	f.Fix = "make room, or run this in a folder on a larger disk"
	if p.spec.Debian == nil {
		f.Fix += "; DL_DIR and SSTATE_DIR may lie on another one, and INHERIT += \"rm_work\" in " + p.siteConf() + " removes what is built from tmp"
	}
	return f
}

// usedBytes returns the disk space of the files below dir, which may be a link, and whether it was
// done within 3 s. It skips unreadable ones. A file counts less the more hard links it has.
func usedBytes(ctx context.Context, dir string) (total uint64, counted bool) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return fs.SkipAll
		}
		if err != nil || d.IsDir() {
			return nil
		}
		if info, err := d.Info(); err == nil {
			if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Nlink > 0 {
				total += uint64(st.Blocks) * 512 / uint64(st.Nlink) // tmp is full of hard links
			}
		}
		return nil
	})
	return total, ctx.Err() == nil
}
