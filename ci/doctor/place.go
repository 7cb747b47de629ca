package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"slipway/images"
	"slipway/layers/host"
	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// longestTMPDIR is bitbake's limit. Names of recipes and of their sources are added to this path.
const longestTMPDIR = 400

// checkPath checks length and characters of the build folder's path: makefiles and scripts get it.
func checkPath(_ context.Context, p boardBuild) []Finding {
	tmp := filepath.Join(p.bitbakeDir(), "tmp")
	const fix = "move the clone to a folder with a short path of plain letters"
	if len(tmp) > longestTMPDIR {
		return []Finding{{"path", Stops, fmt.Sprintf("%s has %d bytes", tmp, len(tmp)), fmt.Sprintf("bitbake refuses more than %d", longestTMPDIR), fix}}
	}
	if i := strings.IndexFunc(tmp, func(r rune) bool { return r > '~' || strings.ContainsRune(" +@%\t", r) }); i >= 0 {
		return []Finding{{"path", Stops, fmt.Sprintf("%s has %q in it", tmp, []rune(tmp[i:])[0]), "what is built puts its path into makefiles and scripts, which stumble over it; bitbake refuses it", fix}}
	}
	return []Finding{okFinding("path", "%s", tmp)}
}

// fileSystems are file systems on which builds fail or are slow, by the kernel's magic numbers.
var fileSystems = map[int64]struct{ name, state, why string }{
	unix.NFS_SUPER_MAGIC:       {"NFS", Stops, "bitbake refuses it: locks and times of files are not reliable there"},
	unix.V9FS_MAGIC:            {"9p", Warning, "it is a folder of another machine (WSL, a virtual machine): very slow, and without all kinds of files"},
	unix.SMB_SUPER_MAGIC:       {"SMB", Stops, "it has no owners, links and rights of files"},
	unix.CIFS_SUPER_MAGIC:      {"CIFS", Stops, "it has no owners, links and rights of files"},
	unix.SMB2_SUPER_MAGIC:      {"SMB", Stops, "it has no owners, links and rights of files"},
	unix.MSDOS_SUPER_MAGIC:     {"FAT", Stops, "it has no owners, links and rights of files"},
	unix.EXFAT_SUPER_MAGIC:     {"exFAT", Stops, "it has no owners, links and rights of files"},
	unix.FUSE_SUPER_MAGIC:      {"FUSE", Warning, "it is slow, and the kinds of files it has depend on the program behind it"},
	unix.OVERLAYFS_SUPER_MAGIC: {"overlay", Warning, "it is a container's own layer: slow, and gone with the container"},
	unix.TMPFS_MAGIC:           {"tmpfs", Warning, "it lies in memory, which the build's compilers need too"},
}

const otherDisk = "build in a folder on a local disk with ext4, xfs or btrfs (in a container: on a volume)"

// checkFileSystem checks the type of the build folder's file system, tries links, modes and
// programs there, and checks that /tmp may have programs. Write permission is checkUser's task.
func checkFileSystem(ctx context.Context, p boardBuild) []Finding {
	dir := nearestExisting(p.Build.Dir)
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return []Finding{{"file system", Stops, dir + ": " + err.Error(), "the build writes there", otherDisk}}
	}
	var findings []Finding
	if kind, known := fileSystems[int64(st.Type)]; known {
		findings = append(findings, Finding{"file system", kind.state, dir + " is on " + kind.name, kind.why, otherDisk})
	}
	if err := tryFiles(ctx, dir); errors.Is(err, fs.ErrPermission) && unix.Access(dir, unix.W_OK) != nil {
		return findings // that is said of the user
	} else if err != nil {
		findings = append(findings, Finding{"file system", Stops, err.Error(), "a build makes files of all kinds and runs what it made", otherDisk})
	}
	var tmp unix.Statfs_t
	if err := unix.Statfs("/tmp", &tmp); err == nil && tmp.Flags&unix.ST_NOEXEC != 0 {
		findings = append(findings, Finding{"file system", Stops, "/tmp is mounted with noexec", "bitbake and the build's tools run scripts from it", "sudo mount -o remount,exec /tmp"})
	}
	if len(findings) == 0 {
		findings = append(findings, okFinding("file system", "tried in %s: case, links, rights, programs", dir))
	}
	return findings
}

// tryFiles returns an error unless the file system tells upper from lower case, and has links,
// modes and programs. It tries them in a temporary folder below dir, and removes that folder.
func tryFiles(ctx context.Context, dir string) (err error) {
	at, err := os.MkdirTemp(dir, ".Doctor-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(at)) }()
	script := filepath.Join(at, "Case")
	if err := run.WriteProgram(script, []byte("#!/bin/sh\n"), 0o600); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(at, "case")); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s does not tell upper from lower case", dir)
	}
	err = cmp.Or(os.Symlink("Case", filepath.Join(at, "link")), os.Link(script, filepath.Join(at, "hard")), os.Chmod(script, 0o750))
	if err != nil {
		return err // its text begins with symlink, link or chmod
	}
	if info, err := os.Stat(script); err != nil || info.Mode().Perm() != 0o750 {
		return fmt.Errorf("%s does not keep the rights of files", dir)
	}
	// env starts it, as Go would run nothing else while a slow file server has the program: see git.Command.
	if err := run.Run(ctx, run.Command{Argv: []string{"/usr/bin/env", script}}); err != nil {
		return fmt.Errorf("programs in %s cannot be run (mounted with noexec?): %w", dir, err)
	}
	return nil
}

// checkOtherBuilds checks whether another build, or a bitbake server, uses the same build folder.
func checkOtherBuilds(_ context.Context, p boardBuild) []Finding {
	lock := images.BuildLockOf(p.ws)
	if isLocked(lock) {
		return []Finding{{"running", Stops, "another slipway is building " + p.spec.Board + " here", "two builds in one folder spoil each other", "wait for it, or stop it; " + lock + " is its mark"}}
	}
	if isLocked(filepath.Join(p.bitbakeDir(), "bitbake.lock")) {
		return []Finding{{"running", Warning, "a bitbake server runs in " + p.bitbakeDir(), "the build uses it, with the settings of its start", "if nobody is using it: " + host.ProgramName() + " layers shell " + plaintext.Quote(p.spec.TypedName()) + " --command='bitbake -m'"}}
	}
	return []Finding{okFinding("running", "no other build in %s", filepath.Dir(lock))}
}

// isLocked reports whether another process has an exclusive lock on the file, if it can open it.
func isLocked(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}
