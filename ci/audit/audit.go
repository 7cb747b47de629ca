// Package audit looks through a root file system for what breaks on another machine, and for
// what should not be in an image. It reads folders and disk images, and mounts nothing.
package audit

import (
	"bytes"
	"cmp"
	"context"
	"debug/elf"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"slipway/layers/plaintext"
)

// Finding is one fault of a root file system.
type Finding struct {
	Rule string `json:"rule"`
	Path string `json:"path"` // from the root on
	Saw  string `json:"saw"`
	Next string `json:"next"`
}

// Report is what an audit saw.
type Report struct {
	System   string    `json:"system"` // which root file system
	Arch     string    `json:"arch"`   // as Debian calls it
	Files    int       `json:"files"`
	Programs int       `json:"programs"`         // ELF files
	Bytes    int64     `json:"bytes"`            // of the files that were read
	Unread   int       `json:"unread,omitempty"` // files and folders that only root may read
	Findings []Finding `json:"findings"`
}

// Options are what the caller knows of the board and its build.
type Options struct {
	Arch  string   // of the board; "": that of most programs
	SM    string   // of the board's GPU, such as 87; "": GPU code is not judged
	Built []string // folders of the build, which no file may name
	Allow []string // patterns "RULE PATH" of findings that are known and wanted
}

// Rules are what an audit looks for, with the next step.
var Rules = map[string]string{
	"damaged":          "build or copy the file again: the board may have lost power, or its disk may have been full",
	"architecture":     "build it for the board; a program that bitbake did not build may be the build machine's",
	"interpreter":      "link it with gcc of the board's toolchain (-Wl,--dynamic-linker names the loader), not with ld",
	"library":          "install the package that has the library, or add it to the recipe's RDEPENDS",
	"library version":  "build it against the board's own libraries; it was linked to newer ones",
	"search path":      "remove the RPATH (chrpath -d, patchelf --remove-rpath), or make it relative to $ORIGIN",
	"executable stack": "add the section .note.GNU-stack to its assembler files, or link it with -z noexecstack",
	"text relocations": "compile it with -fPIC",
	"python bytecode":  "compile the folder by the board's own Python (python3 -m compileall), or remove the .pyc files",
	"GPU code":         "build it for the board's GPU (CUDA_ARCHITECTURES, nvcc -gencode)",
	"build path":       "remove the path from the file, or compile with -ffile-prefix-map",
	"script":           "install the interpreter, or correct the first line",
	"kernel module":    "install the modules of the kernel that the image boots",
	"unit":             "install the program that the unit starts, or disable the unit",
	"link":             "install what the link leads to, or remove the link",
	"owner":            "install it as root or as an account of the image; this is the build machine's user",
	"private key":      "remove the key: every board of this image has it",
	"credentials":      "remove the file; give boards their own when they are installed",
	"host key":         "remove /etc/ssh/ssh_host_*: boards make their own at the first start",
	"machine id":       "make /etc/machine-id empty: boards make their own at the first start",
	"password":         "lock the account, or give each board a password of its own",
	"root login":       "set PermitRootLogin prohibit-password and PermitEmptyPasswords no",
	"access":           "remove the key or the account, if nobody in the field needs it",
	"setuid":           "remove the bit (chmod u-s,g-s), or allow it by name",
	"writable":         "remove the right to write for others (chmod o-w), or set the sticky bit of the folder",
	"readable":         "remove the right to read for others (chmod o-r)",
	"device":           "remove the device node; the kernel makes those of /dev",
	"capability":       "remove the capability, or allow it by name",
}

// auditor audits one root file system and collects findings.
type auditor struct {
	tree     *tree
	opt      Options
	report   *Report
	accounts accounts
	programs map[string]*program // ELF files, by path

	private   map[string][]*program // ELF files, by their last name
	libraries []string              // folders in which the loader looks
}

// Run reads every file of a root file system, checks them against all rules, and returns a report
// with the findings by rule and path. It refuses a tree without etc, or with neither usr nor bin.
func Run(ctx context.Context, t *tree, opt Options) (Report, error) {
	if !t.isRoot() {
		return Report{System: t.name}, fmt.Errorf("no root file system here: it lacks the folders etc and usr\nnext: ls %s  # name the folder or image of a whole system", plaintext.Quote(t.name))
	}
	a := &auditor{tree: t, opt: opt, report: &Report{System: t.name, Files: len(t.files), Findings: []Finding{}}, programs: map[string]*program{}}
	a.accounts = a.readAccounts()
	names := t.names()
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return *a.report, err
		}
		if err := a.readFile(name); err != nil {
			return *a.report, err
		}
	}
	a.report.Programs = len(a.programs)
	a.report.Arch = cmp.Or(opt.Arch, a.commonArch())
	for _, name := range names {
		a.checkEntry(name)
		if p := a.programs[name]; p != nil {
			a.checkProgram(name, p)
		}
	}
	a.checkUnits()
	a.checkSystem()
	slices.SortStableFunc(a.report.Findings, func(x, y Finding) int {
		return cmp.Or(cmp.Compare(x.Rule, y.Rule), cmp.Compare(x.Path, y.Path))
	})
	return *a.report, ctx.Err()
}

const maxFindings = 10_000

// recommended are findings in Debian's own packages that are no faults: the file needs a package
// that its own package only recommends.
var recommended = []string{"library /usr/lib/*/tc/q_atm.so", "script /usr/bin/routel", "script /etc/sv/*/run"}

// addFinding adds a finding, unless a pattern in opt.Allow or recommended has its rule and path,
// or the report has maxFindings.
func (a *auditor) addFinding(rule, name, format string, args ...any) {
	where := "/" + name
	for _, pattern := range slices.Concat(a.opt.Allow, recommended) {
		if allowed, glob, _ := strings.Cut(pattern, " /"); allowed == rule && matchPath("/"+glob, where) {
			return
		}
	}
	if len(a.report.Findings) < maxFindings {
		a.report.Findings = append(a.report.Findings, Finding{Rule: rule, Path: where, Saw: fmt.Sprintf(format, args...), Next: Rules[rule]})
	}
}

// matchPath reports whether a path matches a pattern, in which * matches any text, also /.
func matchPath(pattern, where string) bool {
	first, rest, star := strings.Cut(pattern, "*")
	if !star {
		return pattern == where
	}
	where, ok := strings.CutPrefix(where, first)
	parts := strings.Split(rest, "*")
	for _, part := range parts[:len(parts)-1] {
		_, after, found := strings.Cut(where, part)
		where, ok = after, ok && found
	}
	return ok && strings.HasSuffix(where, parts[len(parts)-1])
}

// CheckAllowed returns an error for a pattern that is not "RULE /PATH" with a known rule.
func CheckAllowed(patterns []string) error {
	for _, pattern := range patterns {
		rule, _, found := strings.Cut(pattern, " /")
		names := slices.Sorted(maps.Keys(Rules))
		known := slices.ContainsFunc(names, func(name string) bool { return rule == name || !found && strings.HasPrefix(rule, name+" ") })
		switch {
		case !known:
			return fmt.Errorf("--allow=%q: no rule %q%s (have %s)", pattern, rule, plaintext.DidYouMean(rule, names), strings.Join(names, ", "))
		case !found:
			return fmt.Errorf("--allow=%q: want \"RULE /PATH\"", pattern)
		}
	}
	return nil
}

// readFile checks the first maxFileBytes of a regular file, and records an ELF file in programs. It
// ignores other kinds of file. Empty or truncated programs are findings.
func (a *auditor) readFile(name string) error {
	info := a.tree.files[name]
	if !info.mode.IsRegular() {
		return nil
	}
	if info.size == 0 {
		if isProgram(name, info) {
			a.addFinding("damaged", name, "it is empty")
		}
		return nil
	}
	data, err := a.tree.read(name)
	if err != nil {
		return fmt.Errorf("read /%s of %s: %w", name, a.tree.name, err)
	}
	a.report.Bytes += int64(len(data))
	switch p := readProgram(data); {
	case p != nil:
		a.programs[name] = p
	case bytes.HasPrefix(data, []byte(elf.ELFMAG)) && isProgram(name, info):
		a.addFinding("damaged", name, "it is cut off")
	default:
		a.checkGPU(name, readCubins(data))
	}
	a.checkContent(name, data)
	return nil
}

// isBelow reports whether a file lies below one of the folders, which end with a slash.
func isBelow(name string, folders []string) bool {
	return slices.ContainsFunc(folders, func(dir string) bool { return strings.HasPrefix(name, dir) })
}

// isProgram reports whether a file is executable in programFolders, or *.so* in libraryFolders.
func isProgram(name string, info entry) bool {
	dir := path.Dir(name)
	return slices.Contains(programFolders, dir) && info.mode.Perm()&0o111 != 0 || slices.Contains(libraryFolders, dir) && strings.Contains(path.Base(name), ".so")
}

// checkEntry checks the mode, owner and capabilities of one file or folder, not its content. Of a
// symbolic link it checks only the target, of a device node only the place.
func (a *auditor) checkEntry(name string) {
	info := a.tree.files[name]
	inDev := strings.HasPrefix(name, "dev/")
	switch mode := info.mode; {
	case mode&fs.ModeSymlink != 0:
		a.checkLink(name, info.link)
		return
	case mode&(fs.ModeDevice|fs.ModeCharDevice) != 0:
		if !inDev && !(info.major == 0 && info.minor == 0) { // overlayfs marks a removed file so
			a.addFinding("device", name, "device node %d:%d outside of /dev", info.major, info.minor)
		}
		return
	case mode.Perm()&0o002 != 0 && mode&fs.ModeSticky == 0 && !inDev && mode&fs.ModeSocket == 0:
		a.addFinding("writable", name, "%s, which every account may write", mode)
	}
	if info.mode&(fs.ModeSetuid|fs.ModeSetgid) != 0 && info.mode.IsRegular() {
		a.checkSetuid(name, info)
	}
	if info.capabilities && !slices.Contains(knownCapabilities, path.Base(name)) {
		a.addFinding("capability", name, "has capabilities of its own")
	}
	if !a.accounts.known(info) {
		a.addFinding("owner", name, "owner %d:%d is no account of the image", info.uid, info.gid)
	}
}

// knownCapabilities are programs of distributions that have capabilities.
var knownCapabilities = []string{"ping", "ping.iputils", "mtr-packet", "newuidmap", "newgidmap", "gst-ptp-helper", "dumpcap", "arping", "clockdiff"}

// knownSetuid are programs of distributions that run as another account.
var knownSetuid = []string{
	"su", "su.shadow", "su.util-linux", "sudo", "mount", "mount.util-linux", "umount", "umount.util-linux", "passwd", "passwd.shadow",
	"chsh", "chsh.shadow", "chfn", "chfn.shadow", "newgrp", "newgrp.shadow", "newgidmap", "newuidmap", "gpasswd", "chage", "expiry", "wall", "write", "write.ul", "ssh-agent", "ssh-keysign",
	"unix_chkpwd", "dbus-daemon-launch-helper", "polkit-agent-helper-1", "pkexec", "fusermount", "fusermount3", "crontab", "at",
	"ping", "ping6", "bsd-write", "mount.nfs", "mount.cifs", "ntfs-3g", "pppd", "exim4", "traceroute6.iputils", "utempter", "vlock", "vlock-main",
	"busybox.suid", "schroot", "bwrap", "locate", "mlocate", "plocate", "procmail", "dotlockfile", "Xorg.wrap", "snap-confine", "postdrop", "postqueue", "screen", "sg", "login", "login.shadow",
}

// systemFolders are those in which distributions have programs.
var systemFolders = []string{"bin/", "sbin/", "lib/", "usr/bin/", "usr/sbin/", "usr/lib/", "usr/libexec/"}

// checkSetuid adds a finding if a setuid or setgid file (the caller checks that) is a script, if
// group or others may write it, or if it is outside of systemFolders or not in knownSetuid.
func (a *auditor) checkSetuid(name string, info entry) {
	head, _ := a.tree.head(name, 2)
	switch {
	case string(head) == "#!":
		a.addFinding("setuid", name, "a script that runs as another account")
	case info.mode.Perm()&0o022 != 0:
		a.addFinding("setuid", name, "%s: others may write a program that runs as another account", info.mode)
	case !slices.Contains(knownSetuid, path.Base(name)) || !isBelow(name, systemFolders):
		a.addFinding("setuid", name, "%s of %d:%d: no distribution has this program so", info.mode, info.uid, info.gid)
	}
}

var libraryFolders = []string{"lib", "lib32", "lib64", "usr/lib", "usr/lib32", "usr/lib64", "usr/local/lib"}

// checkLink finds symbolic links into a build folder, and broken links of libraries and programs.
// Broken links named X.so are no findings: only compilers need them.
func (a *auditor) checkLink(name, target string) {
	if folder := a.buildFolder(target); folder != "" {
		a.addFinding("build path", name, "leads to %s", target)
		return
	}
	isLibrary := strings.Contains(path.Base(name), ".so") && slices.ContainsFunc(libraryFolders, func(dir string) bool { return strings.HasPrefix(name, dir+"/") })
	if !isLibrary && !slices.Contains(programFolders, path.Dir(name)) {
		return
	}
	if _, ok := a.tree.resolve(name); !ok && !strings.HasSuffix(name, ".so") { // X.so is only for compiling
		a.addFinding("link", name, "leads to %s, which is not there", target)
	}
}
