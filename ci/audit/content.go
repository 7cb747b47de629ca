package audit

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"slipway/layers/plaintext"
)

// buildMarks are parts of paths that only bitbake's build folders have.
var buildMarks = []string{"/recipe-sysroot", "/tmp/work/", "/tmp/work-shared/", "/tmp-glibc/work/", "/bitbake/tmp/"}

// buildFolder returns the first of opt.Built and buildMarks that a text contains; "" for none.
func (a *auditor) buildFolder(text string) string {
	for _, mark := range slices.Concat(a.opt.Built, buildMarks) {
		if strings.Contains(text, mark) {
			return mark
		}
	}
	return ""
}

// pages are folders of documents, which nothing runs.
var pages = []string{"usr/share/doc/", "usr/share/man/", "usr/share/info/", "usr/share/locale/", "usr/share/help/"}

const maxTextBytes = 1 << 20

// checkContent finds paths of the build machine, wrong bytecode, scripts without an interpreter,
// and secrets in a file. It skips documents, and looks for secrets only in text up to maxTextBytes.
func (a *auditor) checkContent(name string, data []byte) {
	if isBelow(name, pages) {
		return
	}
	for _, mark := range slices.Concat(a.opt.Built, buildMarks) {
		if i := bytes.Index(data, []byte(mark)); i >= 0 {
			a.addFinding("build path", name, "it names %s", around(data, i))
			break
		}
	}
	a.checkHome(name, data)
	if strings.HasSuffix(name, ".pyc") {
		a.checkBytecode(name, data)
	}
	if bytes.HasPrefix(data, []byte("#!")) {
		a.checkScript(name, data)
	}
	if len(data) <= maxTextBytes && !bytes.ContainsRune(data, 0) {
		a.checkSecrets(name, data)
	}
}

// homePath matches what follows /home/ in a path to a file in a user's home folder.
var homePath = plaintext.Regexp(`^([a-z_][a-z0-9_-]*)/[\w.+-]+/[\w.+-]+`)

// checkHome adds a finding for the first path such as /home/USER/X/Y whose USER has no home in the
// image. It skips usr/share and the metadata of Python packages, where such paths are examples.
func (a *auditor) checkHome(name string, data []byte) {
	if strings.HasPrefix(name, "usr/share/") || strings.Contains(name, ".dist-info/") {
		return
	}
	mark := []byte("/home/")
	for at := 0; ; {
		i := bytes.Index(data[at:], mark)
		if i < 0 {
			return
		}
		start := at + i
		at = start + len(mark)
		inPath := start > 0 && homePathPart().Match(data[start-1:start])
		if user := homePath().FindSubmatch(data[at:min(len(data), at+300)]); user != nil && !inPath && !a.tree.exists("home/"+string(user[1])) {
			a.addFinding("build path", name, "it names %s", around(data, start))
			return
		}
	}
}

var homePathPart = plaintext.Regexp(`[\w./-]`)

// around returns the word that surrounds the byte at index i, with at most 200 bytes on each side.
func around(data []byte, i int) string {
	isEnd := func(r rune) bool { return r < ' ' || r > '~' || strings.ContainsRune(" \"'<>=:;,", r) }
	from, to := max(0, i-200), min(len(data), i+200)
	start := from + bytes.LastIndexFunc(data[from:i], isEnd) + 1
	if end := bytes.IndexFunc(data[i:to], isEnd); end >= 0 {
		to = i + end
	}
	return plaintext.Clean(string(data[start:to]), 300)
}

// bytecodeMagics are the first two bytes of .pyc files, by the version of Python.
var bytecodeMagics = map[uint16]string{
	3379: "3.6", 3394: "3.7", 3413: "3.8", 3425: "3.9", 3439: "3.10", 3495: "3.11", 3531: "3.12", 3571: "3.13", 3627: "3.14",
}

// checkBytecode checks that a .pyc file's header and first code byte are of the Python in its name
// or folder, and that the image has that version. It skips versions that bytecodeMagics lacks.
func (a *auditor) checkBytecode(name string, data []byte) {
	if len(data) < 17 || data[2] != '\r' || data[3] != '\n' {
		a.addFinding("python bytecode", name, "it is cut off, or no bytecode")
		return
	}
	magic := binary.LittleEndian.Uint16(data)
	is := bytecodeMagics[magic]
	want := ""
	if _, tag, ok := strings.Cut(path.Base(name), ".cpython-3"); ok {
		tag, _, _ = strings.Cut(tag, ".")
		want = "3." + tag
	} else if found := pythonFolder().FindStringSubmatch(name); found != nil {
		want = found[1]
	}
	want = cmp.Or(want, is)
	switch {
	case is == "" && slices.Contains(slices.Collect(maps.Values(bytecodeMagics)), want):
		a.addFinding("python bytecode", name, "bad magic number: %d is not of Python %s", magic, want)
	case is == "": // of a Python that this program does not know
	case is != want:
		a.addFinding("python bytecode", name, "it is of Python %s; its place is of Python %s", is, want)
	case data[16]&0x7f != 'c': // marshal's sign of a code object
		a.addFinding("python bytecode", name, "bad marshal data: it holds no code object")
	case !a.tree.exists("usr/bin/python"+want) && !a.tree.exists("usr/local/bin/python"+want):
		a.addFinding("python bytecode", name, "it is of Python %s, which the image does not have", is)
	}
}

var pythonFolder = plaintext.Regexp(`/python(3\.[0-9]+)/`)

var programFolders = []string{"bin", "sbin", "usr/bin", "usr/sbin", "usr/local/bin", "usr/local/sbin", "etc/init.d"}

// ownFolders are those of programs that no distribution brings along.
var ownFolders = []string{"opt/", "srv/", "home/", "root/", "usr/local/", "etc/"}

// checkScript finds executable scripts whose interpreter is not in the image, or whose first line
// ends with CR LF, only in programFolders and below ownFolders. data begins with "#!".
func (a *auditor) checkScript(name string, data []byte) {
	if a.tree.files[name].mode.Perm()&0o111 == 0 || !slices.Contains(programFolders, path.Dir(name)) && !isBelow(name, ownFolders) {
		return
	}
	line, _, _ := bytes.Cut(data[2:min(len(data), 300)], []byte("\n"))
	if bytes.HasSuffix(line, []byte("\r")) {
		a.addFinding("script", name, "its first line ends as on Windows, so the kernel finds no interpreter")
		return
	}
	words := strings.Fields(string(line))
	if len(words) == 0 {
		return
	}
	if !a.tree.exists(words[0]) {
		a.addFinding("script", name, "it wants %s, which is not there", plaintext.Clean(words[0], 200))
		return
	}
	if path.Base(words[0]) == "env" && len(words) > 1 && !strings.HasPrefix(words[1], "-") && !slices.ContainsFunc(programFolders[:6], func(dir string) bool { return a.tree.exists(path.Join(dir, words[1])) }) {
		a.addFinding("script", name, "it wants %s, which is in no folder of programs", plaintext.Clean(words[1], 200))
	}
}

// secret describes a kind of secret that no image should hold, and how to recognise it.
type secret struct {
	rule, what string
	name       func() *regexp.Regexp // of the file; nil: any
	hint       string                // a fixed part of text, which is searched first; "": none
	text       func() *regexp.Regexp // in the file; nil: any
}

var secrets = []secret{
	{"private key", "a private key", nil, "PRIVATE KEY", plaintext.Regexp(`-----BEGIN ([A-Z0-9]+ )*PRIVATE KEY( BLOCK)?-----(\\n|\\r|\s)+([A-Za-z0-9+/=]{16}|[A-Z][A-Za-z-]+: \S)`)},
	{"private key", "a private key", nil, "PuTTY-User-Key-File-", plaintext.Regexp(`^PuTTY-User-Key-File-[0-9]`)},
	{"private key", "a private key of WireGuard", nil, "PrivateKey", plaintext.Regexp(`(?m)^\s*PrivateKey *= *[A-Za-z0-9+/]{43}=`)},
	{"credentials", "a login of servers", plaintext.Regexp(`(^|/)\.(netrc|git-credentials|pgpass)$`), "", nil},
	{"credentials", "a login of a registry", plaintext.Regexp(`(^|/)(\.docker/config\.json|\.dockercfg|containers/auth\.json)$`), "auth", plaintext.Regexp(`"auth" *: *"[^"]+"`)},
	{"credentials", "a login of a registry", plaintext.Regexp(`(^|/)\.(npmrc|pypirc)$`), "", plaintext.Regexp(`(_authToken|password) *[=:]`)},
	{"credentials", "a login of a cluster", plaintext.Regexp(`(^|/)(\.kube/config|kubeconfig[^/]*|k3s\.yaml|[^/]*\.kubeconfig)$`), "", plaintext.Regexp(`(?m)^\s*(- )?(token|password|client-key-data): *\S`)},
	{"credentials", "a key of a cloud", nil, "AKIA", plaintext.Regexp(`\bAKIA[0-9A-Z]{16}\b`)},
	{"credentials", "a key of a cloud", nil, "ASIA", plaintext.Regexp(`\bASIA[0-9A-Z]{16}\b`)},
	{"credentials", "a key of a cloud", nil, "AIza", plaintext.Regexp(`\bAIza[0-9A-Za-z_-]{35}\b`)},
	{"credentials", "a key of a cloud", nil, "aws_secret_access_key", plaintext.Regexp(`aws_secret_access_key"?\s*[=:]\s*"?[A-Za-z0-9+/=]{40}`)},
	{"credentials", "a token of a chat", nil, "xox", plaintext.Regexp(`\bxox[abprs]-[0-9]{8,}-[0-9A-Za-z-]{10,}`)},
	{"credentials", "a token of a forge", nil, "gh", plaintext.Regexp(`\bgh[pousr]_[A-Za-z0-9]{36}`)},
	{"credentials", "a token of a forge", nil, "github_pat_", plaintext.Regexp(`\bgithub_pat_[A-Za-z0-9_]{60,}`)},
	{"credentials", "a token of a forge", nil, "glpat-", plaintext.Regexp(`\bglpat-[A-Za-z0-9_-]{20}`)},
	{"credentials", "the password of a network", plaintext.Regexp(`(wpa_supplicant[^/]*\.conf|hostapd[^/]*\.conf|\.nmconnection|iwd/[^/]*\.psk)$`), "", plaintext.Regexp(`(?mi)^\s*(psk|password|wep-key0|wpa_passphrase|wpa_psk|passphrase)=.+`)},
	{"credentials", "a password in an address", plaintext.Regexp(`^etc/`), "://", plaintext.Regexp(`(?m)^[^#\n]*https?://[^/\s:@$]+:[^/\s:@$]+@`)},
	{"access", "a console logs in by itself", plaintext.Regexp(`^(etc|usr/lib|lib)/(systemd/system/.*\.(service|conf)|inittab)$`), "getty", plaintext.Regexp(`(?m)^[^#\n]*(--autologin|getty .*\s-a) +\S`)},
	{"credentials", "what somebody typed", plaintext.Regexp(`(^|/)\.(bash|ash|zsh|python|mysql|psql)_history$`), "", nil},
}

// checkSecrets adds a finding for the first kind of secret, or login without password, in a file. A
// secret in a file named as an SSH host key is a finding of the rule "host key".
func (a *auditor) checkSecrets(name string, data []byte) {
	for _, s := range secrets {
		if s.name != nil && !s.name().MatchString(name) {
			continue
		}
		if !bytes.Contains(data, []byte(s.hint)) || s.text != nil && !s.text().Match(data) {
			continue
		}
		if hostKey().MatchString(name) {
			a.addFinding("host key", name, "the key by which each board of this image would prove that it is itself")
			return
		}
		a.addFinding(s.rule, name, "%s", s.what)
		return
	}
}

var hostKey = plaintext.Regexp(`^etc/(ssh|dropbear)/[^/]*host[^/]*key$`)

// checkUnits finds enabled systemd units that do not exist, or whose ExecStart does not. It skips
// missing templates, and programs of masked units and of units with a condition or assertion.
func (a *auditor) checkUnits() {
	for _, name := range a.tree.names() {
		dir := path.Base(path.Dir(name))
		if !strings.Contains(name, "systemd/system/") || !strings.HasSuffix(dir, ".wants") && !strings.HasSuffix(dir, ".requires") || a.tree.files[name].mode&fs.ModeSymlink == 0 {
			continue
		}
		file, ok := a.tree.resolve(name)
		if !ok {
			if target := a.tree.files[name].link; !strings.HasPrefix(target, "/dev/") && !strings.Contains(path.Base(name), "@") {
				a.addFinding("unit", name, "leads to %s, which is not there", target)
			}
			continue
		}
		text := a.tree.readText(file)
		if strings.Contains(text, "\nCondition") || strings.Contains(text, "\nAssert") {
			continue // it may be meant for boards that have the program
		}
		for line := range strings.Lines(text) {
			command, ok := strings.CutPrefix(line, "ExecStart=")
			if words := strings.Fields(strings.TrimLeft(command, "@:+!|")); ok && len(words) > 0 && strings.HasPrefix(words[0], "/") && !a.tree.exists(words[0]) {
				a.addFinding("unit", name, "it starts %s, which is not there", plaintext.Clean(words[0], 200))
			}
		}
	}
}
