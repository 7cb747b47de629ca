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
)

const gib = 1 << 30

// existing is dir, or the nearest folder above it that is there.
func existing(dir string) string {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "."
	}
	for at := abs; ; at = filepath.Dir(at) {
		if info, err := os.Stat(at); err == nil && info.IsDir() || at == filepath.Dir(at) {
			return at
		}
	}
}

// part is one kind of what a build leaves on the disk.
type part struct {
	name    string
	dir     string
	needGiB int
}

func (p patient) parts() []part {
	build := p.Build.Dir
	if p.spec.Debian != nil {
		return []part{{"image", build, 4}}
	}
	d := p.spec.Build.Disk
	return []part{
		{"layers", p.ws.Dir, d.LayersGiB},
		{"downloads", p.downloads(), d.DownloadsGiB},
		{"sstate", p.folder("SSTATE_DIR", p.Build.SstateDir()), d.SstateGiB},
		{"tmp", p.folder("TMPDIR", filepath.Join(p.bitbake(), "tmp")), d.TmpGiB},
	}
}

// folder is the one that bitbake will use as a variable says. Build sets those that
// boards share in the environment, which only a firm assignment overrules. A shell's
// TMPDIR reaches bitbake only where the project lets it through.
func (p patient) folder(name, otherwise string) string {
	value, through := p.project.Env[name]
	if value != nil && *value != "" {
		otherwise = *value
	}
	if through || name != "TMPDIR" {
		otherwise = cmp.Or(os.Getenv(name), otherwise)
	}
	dir, err := lint.Setting(p.project, p.bitbake(), name, otherwise)
	if err != nil {
		return otherwise // configuration says why it cannot be read
	}
	if dir = p.expanded(dir); !filepath.IsAbs(dir) && dir != otherwise {
		dir = filepath.Join(p.bitbake(), dir)
	}
	return dir
}

// demand is what a build will still write on one file system.
type demand struct {
	dir        string
	need, free uint64
	inodes     uint64
	of         []string
	counted    bool // all that is there already
}

// disk adds up what the build will still write on each file system.
func disk(ctx context.Context, p patient) []Finding {
	var all []*demand
	byDevice := map[uint64]*demand{}
	for _, part := range p.parts() {
		dir := existing(part.dir)
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
		there, counted := used(ctx, part.dir)
		d.need += need - min(need, there)
		d.counted = d.counted && counted
		d.of = append(d.of, fmt.Sprintf("%s %d", part.name, part.needGiB))
	}
	var findings []Finding
	for _, d := range all {
		findings = append(findings, d.findings(p)...)
	}
	return findings
}

func newDemand(dir string, fs unix.Statfs_t) *demand {
	d := demand{dir: dir, free: fs.Bavail * uint64(fs.Bsize), inodes: fs.Ffree, counted: true}
	if fs.Files == 0 {
		d.inodes = enoughInodes // the file system makes them as it needs them
	}
	return &d
}

func (d demand) findings(p patient) []Finding {
	all := []Finding{d.space(p)}
	if d.inodes < enoughInodes && p.spec.Debian == nil {
		all = append(all, Finding{
			"disk", Warning, fmt.Sprintf("%s: %d files can still be made", d.dir, d.inodes),
			"a build makes millions, and stops as on a full disk", "build on a file system with more inodes (mkfs.ext4 -i 8192), or on btrfs or xfs",
		})
	}
	return all
}

const enoughInodes = 4_000_000

// space is generous: a build that runs full loses hours. At less than half it will.
func (d demand) space(p patient) Finding {
	f := ok("disk", "%s: %d GiB free, %d GiB still to be written", d.dir, d.free/gib, d.need/gib)
	if d.free >= d.need {
		return f
	}
	f.State = Warning
	f.Why = fmt.Sprintf("a first build of %s takes, in GiB: %s", p.spec.Board, strings.Join(d.of, ", "))
	switch {
	case !d.counted:
		f.Why += "; more of it is there already than could be counted in a moment"
	case d.free < d.need/2:
		f.State = Stops
	}
	f.Fix = "make room, or run this in a folder on a larger disk"
	if p.spec.Debian == nil {
		f.Fix += "; DL_DIR and SSTATE_DIR may lie on another one, and INHERIT += \"rm_work\" in " + p.siteConf() + " removes what is built from tmp"
	}
	return f
}

// used is what lies in a folder already, and whether all of it could be counted in a
// moment. The folder may be a link to another disk.
func used(ctx context.Context, dir string) (total uint64, counted bool) {
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
