package bitbake

import (
	"regexp"
	"slices"
	"strings"

	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// knownFailure is a failure that bitbake or a compiler describes in fixed words.
type knownFailure struct {
	words     func() *regexp.Regexp
	why, next string
}

// The failures that people meet, the particular before the general: the first that
// fits is told. In next, $1 is what the first group of the words found.
var knownFailures = []knownFailure{
	{
		plaintext.Regexp(`Killed signal terminated program (\S+)`),
		"the kernel ended the compiler ($1), most often because memory ran out",
		"build with fewer jobs: BB_NUMBER_THREADS=2 PARALLEL_MAKE=-j2 in the environment; dmesg shows whether memory was it",
	},
	{
		plaintext.Regexp(`(?i)virtual memory exhausted|Cannot allocate memory|MemoryError`),
		"memory ran out",
		"build with fewer jobs: BB_NUMBER_THREADS=2 PARALLEL_MAKE=-j2 in the environment",
	},
	{
		plaintext.Regexp(`No more inodes|inotify watch limit|\[Errno 28\] inotify|exceeds fs\.inotify\.max_user_watches|WatchManagerError`),
		"the machine has too few inodes or inotify watches",
		"sudo sysctl fs.inotify.max_user_watches=524288, or more inodes on the disk",
	},
	{
		plaintext.Regexp(`No space left on device|Immediately (?:halt|abort) since the disk space monitor|No new tasks can be executed since the disk space monitor`),
		"the disk is full, or nearly so: bitbake stops before it is",
		"free some space and build again, which resumes; tmp/ of boards that are done can be deleted, the folders downloads and sstate-cache are worth keeping",
	},
	{
		plaintext.Regexp(`(?i)checksum mismatch|has (?:sha256|md5) checksum \S+ when \S+ was expected|Checksum failure`),
		"what was downloaded is not what the recipe expects",
		"if the address was changed or a proxy answered with a page of its own, delete the file from the folder downloads and build again; never change the checksum unless upstream says why it moved",
	},
	{
		plaintext.Regexp(`Fetcher failure: Unable to find revision ([0-9a-f]{7,64})`),
		"a recipe wants the commit $1, which its server does not have (any more)",
		"a branch may have been rewritten or deleted: look at SRCREV and branch of the recipe's SRC_URI, or use a layer that is newer",
	},
	{
		plaintext.Regexp(`Fetcher failure for URL: '([^']+)'\. URL doesn't work`),
		"bitbake's check of the network cannot reach $1",
		`BB_NO_NETWORK=1 in the environment, where all sources are here; where mirrors have them, CONNECTIVITY_CHECK_URIS = "" in conf/site.conf of the build folder`,
	},
	{
		plaintext.Regexp(`layer directories do not exist:\s+(?:ERROR: +)?((\S+)/[^/\s]+)`),
		"the project file names a layer that is not there: $1",
		"ls $2, then correct layers: in the project file",
	},
	{
		plaintext.Regexp(`ImportError: cannot import name '\w+' from 'collections'|ModuleNotFoundError: No module named '(?:imp|asyncore|asynchat|smtpd|distutils)'`),
		"this bitbake is too old for the Python of this machine",
		"python3 --version, then name a newer bitbake in the project file, or build in a container whose Python is older",
	},
	{
		plaintext.Regexp(`(?i)network access disabled.*BB_NO_NETWORK|BB_NO_NETWORK is set`),
		"something must be downloaded, and BB_NO_NETWORK forbids it",
		"build once with the network (build BOARD --task=fetch), or fill DL_DIR from another machine",
	},
	{
		plaintext.Regexp(`Temporary failure in name resolution|unable to resolve host address|Could not resolve host:? ?(\S*)`),
		"a server's name could not be looked up",
		"look at this machine's DNS and at http_proxy, https_proxy and no_proxy",
	},
	{
		plaintext.Regexp(`(?i)bb\.fetch2\.\w+|Fetcher failure|Unable to fetch URL from any source|do_fetch: .*failed`),
		"a download failed",
		"the log has each address that was tried: try one with wget; for servers that are gone, put the file into DL_DIR yourself, or set a mirror (PREMIRRORS, the cache: setting)",
	},
	{
		plaintext.Regexp(`Layer (\S+) is not compatible with the core layer which only supports these series`),
		"the layer $1 is for other releases than the one being built",
		"check out the layer's branch for this release, or leave the layer out of the project file",
	},
	{
		plaintext.Regexp(`Layer '(\S+)' depends on (?:layer '(\S+)'|version)`),
		"the layer $1 needs a layer that the project lacks",
		"add it to repos in the project file; layers.openembedded.org finds it by name",
	},
	{
		plaintext.Regexp(`Nothing (?:R?PROVIDES|RPROVIDES) '([^']+)'`),
		"no recipe of the project's layers provides $1",
		"add the layer that has it, or fix the name: doctor BOARD knows those that moved",
	},
	{
		plaintext.Regexp(`The following required tools .* appear to be unavailable in PATH`),
		"programs are missing that a build needs",
		"doctor BOARD shows the line that installs them",
	},
	{
		plaintext.Regexp(`Please use a locale setting which supports UTF-8|locale 'en_US\.UTF-8' is available|support the en_US\.UTF-8 locale`),
		"the locale en_US.UTF-8 is missing",
		"sudo localedef -i en_US -f UTF-8 en_US.UTF-8",
	},
	{
		plaintext.Regexp(`Do not use Bitbake as root`),
		"bitbake does not build as root",
		"run the build as a normal user who owns the build folder",
	},
	{
		plaintext.Regexp(`Unable to connect to bitbake server|Unable to start bitbake server`),
		"bitbake's server did not start, or another bitbake uses this folder",
		"bitbake-cookerdaemon.log in the build folder says which; end the programs that still run in it and build again",
	},
	{
		plaintext.Regexp(`bwrap: Can't mount on symlink destination`),
		"this machine's bubblewrap is newer than this Isar knows: it mounts over no symbolic link",
		"build on Debian 12, or add the patch in images/releases/isar.yml of Slipway's clone to the project file",
	},
	{
		plaintext.Regexp(`User namespaces are not usable by BitBake`),
		"this machine forbids user namespaces, with which bitbake keeps tasks off the network",
		"sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile for bitbake",
	},
	{
		plaintext.Regexp(`unable to hard ?link|Too many levels of symbolic links|File name too long`),
		"the build folder's file system or its path is not fit for a build",
		"build in a folder with a short path, on a local file system such as ext4",
	},
}

// explainKnownFailure returns cause and next step of the first known failure in the text, or "".
func explainKnownFailure(text string) (why, next string) {
	for _, k := range knownFailures {
		if m := k.words().FindStringSubmatchIndex(text); m != nil {
			why := string(k.words().ExpandString(nil, k.why, text, m))
			next := string(k.words().ExpandString(nil, k.next, text, m))
			return truncateText(why, maxText), truncateText(next, maxText)
		}
	}
	return "", ""
}

const tailLines = 15

// logTail returns the last 15 lines of a log that bitbake names, printable, "" if it is unreadable.
func logTail(path string) string {
	text := string(localfile.Tail(path, maxTail))
	lines := strings.Split(strings.TrimRight(plaintext.Printable(plaintext.WithoutEscapes(strings.ToValidUTF8(text, "\uFFFD"))), "\n"), "\n")
	lines = cutSummary(lines)
	return strings.Join(lines[max(0, len(lines)-tailLines):], "\n")
}

// cutSummary drops sbuild's hundred lines of statistics after dpkg-buildpackage's last error.
func cutSummary(lines []string) []string {
	for i, line := range slices.Backward(lines) {
		if strings.HasPrefix(line, "dpkg-buildpackage: error:") {
			return lines[:i+1]
		}
	}
	return lines
}
