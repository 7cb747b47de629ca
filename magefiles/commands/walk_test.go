package commands

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"slipway/flash/bfb"
	"slipway/flash/boardssh/sshd"
)

// The two walks are made of the command tree: each command gets each hostile value of its
// words and of its flags that name files. A word without values fails the test, so that a
// new command cannot be forgotten. Each line runs in a copy of a small world of its own.

// evil is what hostile files, boards and servers say: it moves the cursor, turns a line
// around, and forges a line of ours.
const evil = "\x1b]0;pwned\x07\x1b[2J\u202eevil\u2066\r\u0085FORGED\nFORGED: no findings\n\u009b31m"

// secrets are planted where tools print addresses and files.
var secrets = []string{"TOKENsecret", "PASSsecret", "QUERYsecret", "KEYsecret"}

// wordValues are what each word of a usage line stands for. Those of "deploy container IMAGE"
// come before those of "IMAGE".
var wordValues = map[string][]string{
	"BOARD":                  {"virt", "evil", "./dl", "./dl2", "kas.yml", "bare"},
	"BOARD of virt":          {"virt", "evil"},
	"TARGET":                 {"./dl", "./dl2", "evil.ext4", "rootfs", "evil.tar"},
	"ARTIFACT":               {"./dl", "./dl2", "virt"},
	"REFERENCE":              {"oci-dir:store:v1", "./store:v1"},
	"REPOSITORY":             {"./store"},
	"DIR":                    {"served"},
	"FOLDER":                 {"rootfs", "new"},
	"trends FOLDER":          {"reports"},
	"NAME":                   {"other"},
	"DEVICE":                 {"out.img", "evil.img", "usb:1-2.3", "/dev/rshim9", "HOST:/dev/rshim0"},
	"IMAGE":                  {"evil.img", "evil.img.gz", "evil.ext4", "evil.txt"},
	"deploy container IMAGE": {"store#v1", "oci-dir:store:v1", "evil.tar"},
	"deploy run IMAGE":       {"oci-dir:store:v1", "evil.tar", "name:tag"},
	"FILE":                   {"evil.txt", "evil.img"},
	"bfb list FILE":          {"evil.bfb", "evil.txt"},
	"bfb check FILE":         {"evil.bfb", "evil.txt"},
	"bfb extract FILE":       {"evil.bfb", "evil.txt"},
	"report FILE":            {"reports/report.json", "evil.txt"},
	"deploy config FILE":     {"config.yml", "evil.txt"},
	"FILES":                  {"unit", "rootfs"},
	"OUT":                    {"out.bfb"},
	"HOST":                   {"HOST", "HOST2", "root:PASSsecret@127.0.0.1:1", "HOST3", "HOST2", "HOST4"},
	"DEST":                   {"/nonexistent/slipway-walk"},
	"BUNDLE":                 {"evil.raucb", "evil.swu", "evil.img"},
	"INVENTORY":              {"hosts.yml", "hosts.ini", "evil.txt"},
	"WORKLOAD":               {"cuda-warp", "evil"},
	"SHELL":                  {"bash"},
	"COMMAND":                {"flash"},
	"JOB":                    {"06H2MGV7L1A7CN36", "evil.txt"},
	"ROLLOUT":                {"06H2MGV7L1A7CN36"},
	"STATION":                {"bench-3"},
	"ADDRESS":                {"127.0.0.1:1"},
	"TOKEN":                  {"secret.digest"},
}

// flagValues are values of flags, by the kind that help shows; others have none that comes
// from outside, or make the command work without an end.
var flagValues = map[string][]string{"FILE": {"evil.txt", "evil.yml"}, "FOLDER": {"rootfs"}, "DIGEST": {"SHA256SUMS"}, "NAMES": {"evil.yml"}, "KEY": {"brokenkey"}}

// flagNames are those that need a value of their own.
var flagNames = map[string]string{"key": "brokenkey", "suite": "evil.yml", "signers": "evil.txt", "policy": "evil.yml", "image": "evil.img"}

// world is a user's home and folder, with files of an attacker in it.
type world struct {
	template, program, tools string
	pairs                    []string // words of lines, and what they stand for
	hosts                    *strings.Replacer
}

func (w *world) values(cmd *cobra.Command, name string) []string {
	path := strings.Join(pathOf(cmd), " ")
	for _, key := range []string{path + " " + name, name + " of " + pathOf(cmd)[0], name} {
		if v, ok := wordValues[key]; ok {
			return v
		}
	}
	return nil
}

// lines are the command's lines: the k-th takes the k-th value of each word.
func (w *world) lines(t *testing.T, cmd *cobra.Command) (all [][]string) {
	t.Helper()
	most := 1
	var words [][]string
	for _, field := range strings.Fields(cmd.Use)[1:] {
		if field == "[--" {
			break
		}
		name := strings.Trim(strings.TrimSuffix(strings.Split(field, "[,")[0], "..."), "[].")
		values := w.values(cmd, name)
		if len(values) == 0 {
			t.Errorf("%s: no hostile value for the word %s: add it to wordValues", strings.Join(pathOf(cmd), " "), name)
			return nil
		}
		words, most = append(words, values), max(most, len(values))
	}
	line := func(k int) []string {
		out := slices.Clone(pathOf(cmd))
		for i, values := range words {
			out = append(out, values[(k+i*(k/len(values)))%len(values)])
		}
		return out
	}
	for k := range most {
		all = append(all, line(k))
	}
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		values := flagValues[f.Value.Type()]
		if own, ok := flagNames[f.Name]; ok {
			values = []string{own}
		}
		for _, v := range values {
			all = append(all, append(line(0), "--"+f.Name+"="+v))
		}
	})
	if cmd.LocalFlags().Lookup("json") != nil {
		all = append(all, append(line(0), "--json"))
	}
	return all
}

// result is what one line did.
type result struct {
	line    []string
	status  int
	out     string
	changed []string // files of the world that are new, other or gone
	logs    map[string]string
	ran     string // the stand-ins that it ran
	late    bool
	took    time.Duration
}

// run runs a line in a copy of the world with more files, for a few seconds.
func (w *world) run(t *testing.T, line []string, files map[string]string) (r result) {
	t.Helper()
	dir, err := os.MkdirTemp(filepath.Dir(w.template), "run-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if out, err := exec.Command("cp", "-a", w.template+"/.", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for name, text := range files {
		place(t, filepath.Join(dir, "work"), map[string]string{name: w.hosts.Replace(text)})
	}
	before := snapshot(t, dir)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	r.line = line
	var argv []string
	for _, word := range line {
		argv = append(argv, w.hosts.Replace(word))
	}
	record := dir + ".record"
	defer os.Remove(record)
	cmd := exec.CommandContext(ctx, w.program, argv...)
	home := filepath.Join(dir, "home")
	cmd.Dir = filepath.Join(dir, "work")
	cmd.Env = []string{
		"HOME=" + home, "PATH=" + w.tools, "TMPDIR=" + filepath.Join(dir, "tmp"), "XDG_STATE_HOME=" + home + "/state", "XDG_CACHE_HOME=" + home + "/cache",
		"XDG_CONFIG_HOME=" + home + "/config", "RECORD=" + record, "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0",
	}
	began := time.Now()
	var both bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &both, &both, 2*time.Second
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) && ctx.Err() == nil {
		t.Errorf("%q: %v", line, err)
	}
	r.took = time.Since(began)
	r.late = ctx.Err() != nil
	r.status, r.out = cmd.ProcessState.ExitCode(), strings.ReplaceAll(both.String(), dir, "W")
	after := snapshot(t, dir)
	r.logs = map[string]string{}
	for name := range maps.Keys(after) {
		if before[name] != after[name] {
			r.changed = append(r.changed, name)
			if text, err := os.ReadFile(filepath.Join(dir, name)); err == nil && isLog(name) {
				r.logs[name] = string(text)
			}
		}
	}
	for name := range before {
		if _, ok := after[name]; !ok {
			r.changed = append(r.changed, name+" (gone)")
		}
	}
	slices.Sort(r.changed)
	ran, _ := os.ReadFile(record)
	r.ran = string(ran)
	return r
}

// isLog knows what Slipway writes for people to read.
func isLog(name string) bool {
	return (strings.HasPrefix(name, "work/build/") || strings.HasPrefix(name, "home/state/")) && slices.Contains([]string{".log", ".txt", ".html", ".xml", ".md", ".json"}, filepath.Ext(name)) && !strings.HasPrefix(name, "work/build/cache/")
}

// snapshot has mode, owner, size and times of everything below dir.
func snapshot(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		text := info.Mode().String()
		if stat, ok := info.Sys().(*syscall.Stat_t); ok && !d.IsDir() { // the kernel changes the last of these with each write
			text += fmt.Sprint(info.Size(), stat.Ino, stat.Uid, stat.Mtim, stat.Ctim)
		}
		all[name] = text
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// offence says what is wrong with a text that Slipway wrote; "" if nothing is.
func offence(text string) string {
	for _, secret := range secrets {
		if i := strings.Index(text, secret); i >= 0 {
			return fmt.Sprintf("the secret %q in %q", secret, text[max(0, i-60):min(len(text), i+30)])
		}
	}
	for i, r := range text {
		if unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.Is(unicode.Bidi_Control, r) || r == unicode.ReplacementChar && text[i] != 0xef {
			return fmt.Sprintf("%q in %q", r, text[max(0, i-60):min(len(text), i+40)])
		}
	}
	return ""
}

// forgedLine finds a line that begins as a hostile text wants it.
func forgedLine(text string) string {
	i := strings.Index("\n"+text, "\nFORGED")
	if i < 0 {
		return ""
	}
	return fmt.Sprintf("the forged line in %q", text[max(0, i-80):min(len(text), i+30)])
}

// runAll runs lines side by side: many of them wait.
func (w *world) runAll(t *testing.T, lines [][]string) []result {
	t.Helper()
	results := make([]result, len(lines))
	var all sync.WaitGroup
	slots := make(chan struct{}, 8)
	for i, line := range lines {
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			results[i] = w.run(t, line, nil)
		})
	}
	all.Wait()
	return results
}

// waits is true for commands that serve until somebody ends them.
func waits(line []string) bool {
	return line[0] == "cache" && line[1] == "serve" || len(line) == 1 && line[0] == "hub"
}

// ownOutput is where a command that is refused may still leave its reports and caches.
var ownOutput = regexp.MustCompile(`^(work/build(/(cache|reports|logs|fleet\.locks)(/.*)?|/[^/]+|/[^/]+/layers(/.slipway.lock)?|/[^/]+/fleet(/.*)?)?|home/(state|cache)(/slipway(/.*)?)?|tmp|\.)$`)

// TestWalks runs every command on hostile files and boards, and every dry run.
func TestWalks(t *testing.T) {
	w := newWorld(t)
	var lines [][]string
	dry := 0
	for _, cmd := range allCommands() {
		own := w.lines(t, cmd)
		lines = append(lines, own...)
		if cmd.LocalFlags().Lookup("dry-run") == nil {
			continue
		}
		dry++
		for _, line := range own {
			lines = append(lines, append(slices.Clone(line), "--dry-run"))
		}
	}
	if dry < 8 || len(lines) < 300 {
		t.Errorf("%d lines, and %d commands with --dry-run; want 300 and 8 or more", len(lines), dry)
	}
	results := w.runAll(t, lines)
	slices.SortFunc(results, func(a, b result) int { return int(b.took - a.took) })
	t.Logf("%d lines, the slowest in %s: %q", len(lines), results[0].took, results[0].line)
	t.Run("hostile", func(t *testing.T) { judgeHostile(t, results) })
	t.Run("unchanged", func(t *testing.T) { judgeUnchanged(t, results) })
}

// Nothing that a terminal obeys, no forged line and no secret reaches stdout, stderr or a
// file that people read.
func judgeHostile(t *testing.T, results []result) {
	for _, r := range results {
		if said := cmp.Or(offence(r.out), forgedLine(r.out)); said != "" {
			t.Errorf("%q (status %d): %s", r.line, r.status, said)
		}
		for name, text := range r.logs {
			if said := offence(text); said != "" {
				t.Errorf("%q (status %d): in %s %s", r.line, r.status, name, said)
			}
		}
		if r.late && !waits(r.line) {
			t.Errorf("%q did not end in time\n%s", r.line, r.out)
		}
		if strings.Contains(r.out, "goroutine ") || strings.Contains(r.out, "panic:") {
			t.Errorf("%q panicked\n%s", r.line, r.out)
		}
	}
}

// Where a line is refused, or is a dry run, nothing is installed, and nothing changes but
// caches and reports. A dry run writes no report either.
func judgeUnchanged(t *testing.T, results []result) {
	for _, r := range results {
		isDry := slices.Contains(r.line, "--dry-run")
		if r.status == 0 && !isDry {
			continue
		}
		for _, name := range r.changed {
			if slices.Contains(r.line, "--code-quality="+filepath.Base(name)) {
				continue // what the flag names is written also where something is found
			}
			if !ownOutput.MatchString(name) || isDry && strings.Contains(name, "/reports/") {
				t.Errorf("%q (status %d) changed %s\n%s", r.line, r.status, name, r.out)
			}
		}
		if isDry && r.ran != "" {
			t.Errorf("%q ran %s", r.line, r.ran)
		}
	}
}

func place(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
}

func mustRun(t *testing.T, dir string, argv ...string) {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_AUTHOR_NAME=x", "GIT_AUTHOR_EMAIL=x@x", "GIT_COMMITTER_NAME=x", "GIT_COMMITTER_EMAIL=x@x", "GIT_CONFIG_GLOBAL=/dev/null")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%q: %v\n%s", argv, err, out)
	}
}

// jsonText is a text for JSON and YAML, in ASCII: YAML takes no control characters.
func jsonText(text string) string {
	data, _ := json.Marshal(text)
	var b strings.Builder
	for _, r := range string(data) {
		if r < 0x7f {
			b.WriteRune(r)
		} else {
			fmt.Fprintf(&b, "\\u%04x", r)
		}
	}
	return b.String()
}

// memoryDir is a temporary folder in memory, where small files are made ten times as fast as
// on most disks.
func memoryDir(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "slipway-test-")
	if err != nil {
		dir = t.TempDir()
		if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil { // the simulated boards' users pass
			t.Fatal(err)
		}
		return dir
	}
	t.Cleanup(func() {
		err := os.RemoveAll(dir)
		for i := 0; err != nil && i < 100; i++ { // a program that ends may still write
			time.Sleep(100 * time.Millisecond)
			err = os.RemoveAll(dir)
		}
		if err != nil {
			t.Error(err)
		}
	})
	return dir
}

func newWorld(t *testing.T) *world {
	t.Helper()
	for _, tool := range []string{"git", "mkfs.ext4", "tar", "gzip", "cp", sshd.Program} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is missing (Debian packages git, e2fsprogs, tar, gzip, openssh-server)", tool)
		}
	}
	base := memoryDir(t)
	w := &world{template: filepath.Join(base, "world"), tools: filepath.Join(base, "tools"), program: compileProgram(t)}
	home, work := filepath.Join(w.template, "home"), filepath.Join(w.template, "work")
	for _, dir := range []string{home, work, filepath.Join(w.template, "tmp"), w.tools} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	w.placeTools(t)
	w.placeFiles(t, work)
	w.placeBoards(t, base, home)
	return w
}

// placeTools makes the only folder of PATH: a few real programs, and stand-ins that record
// that something would have been installed.
func (w *world) placeTools(t *testing.T) {
	t.Helper()
	for _, tool := range []string{"sh", "git", "tar", "gzip", "gpgv", "ssh-keygen", "prlimit", "env", "cat", "true", "cp", "xz", "unshare", "uname"} {
		if path, err := exec.LookPath(tool); err == nil {
			if err := os.Symlink(path, filepath.Join(w.tools, tool)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, tool := range []string{"apt-get", "sudo", "localedef", "dpkg", "useradd"} {
		script := "#!/bin/sh\necho \"$0 $*\" >> \"$RECORD\"\nexit 1\n"
		if err := os.WriteFile(filepath.Join(w.tools, tool), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

func (w *world) placeFiles(t *testing.T, work string) {
	t.Helper()
	image := make([]byte, 2<<20)
	image[510], image[511], image[450], image[454] = 0x55, 0xaa, 0x83, 1
	copy(image[458:], "\xff\x0f")
	copy(image[4096:], evil)
	sum := sha256.Sum256(image)
	name := "ev\x1b[2Jil\u202e.img"
	// describe says of an artifact what is hostile in all fields but the names of its files.
	describe := func(board, name, kind string) string {
		return fmt.Sprintf(`{"board":%[1]s,"project":%[2]s,"arch":%[3]s,"key":%[2]s,"built":"2020-01-01T00:00:00Z","slipway":{"version":%[2]s,"commit":%[2]s},
"files":[{"kind":%[7]s,"name":%[4]s,"sizeBytes":%[5]d,"sha256":"%[6]x","key":%[2]s}],"source":{"url":"https://TOKENsecret@127.0.0.1/x.git","commit":%[2]s},
"layers":[{"name":%[2]s,"commit":%[2]s,"branch":%[2]s,"url":"https://TOKENsecret@127.0.0.1/x.git"}],"tools":{%[2]s:%[2]s},"partitions":[{"name":%[2]s,"use":%[2]s,"offsetBytes":1,"sizeBytes":2}]}`,
			jsonText(board), jsonText(evil), jsonText("amd64"), jsonText(name), len(image), sum, jsonText(kind))
	}
	report := fmt.Sprintf(`{"board":%[1]s,"started":"2020-01-01T00:00:00Z","stages":[{"name":%[1]s,"status":"failed","saw":%[1]s,"next":%[1]s}],"suites":[{"name":%[1]s,"checks":[{"name":%[1]s,"status":"failed","saw":%[1]s}]}]}`, jsonText(evil))
	key := "-----BEGIN OPENSSH PRIVATE KEY-----\nKEYsecret\n-----END OPENSSH PRIVATE KEY-----\n"
	place(t, work, map[string]string{
		"boards/evil/board.yml": "extends: virt\ndescription: " + jsonText(evil) + "\nnosuch" + jsonText(evil) + ": 1\n",
		"boards/lab/board.yml":  "extends: virt\ndescription: " + jsonText(evil) + "\n",
		"boards/bare/board.yml": "extends: qemux86-64\ndescription: bare\n",
		"boards/bare/kas.yml":   "header: {version: 14}\nmachine: qemux86-64\nrepos:\n  one: {url: \"HTTP://user:PASSsecret@127.0.0.1:1/x.git\", commit: " + strings.Repeat("1", 40) + "}\n",
		"kas.yml": "header: {version: 14}\nmachine: " + jsonText(evil) + "\nrepos:\n  " + jsonText(evil) + ":\n    url: \"https://TOKENsecret@127.0.0.1:1/x.git\"\n    commit: " + strings.Repeat("1", 40) +
			"\n  b:\n    url: \"http://127.0.0.1:1/x.git?private_token=QUERYsecret\"\n    commit: " + strings.Repeat("2", 40) + "\n",
		"dl/artifact.json": describe("virt", name, evil), "dl/" + name: string(image), "dl/disk.sig": evil, "dl2/artifact.json": describe("virt", "disk.img", "disk"), "dl2/disk.img": string(image),
		"build/virt/artifact.json": describe("virt", "disk.img", "disk"), "build/virt/disk.img": string(image),
		"evil.img": string(image), "evil.txt": key + evil, "brokenkey": key, "evil.raucb": "hsqs" + evil, "evil.swu": "070701" + strings.Repeat("0", 104) + "sw-description\x00" + evil,
		"evil.yml":   "file:\n  " + jsonText(evil) + ": {exists: true, contents: [" + jsonText(evil) + "]}\ncommand:\n  " + jsonText("cat /etc/passwd"+evil) + ": {exit-status: 0, stdout: [" + jsonText(evil) + "], meta: {next: " + jsonText(evil) + "}}\nprocess: {" + jsonText(evil) + ": {running: true}}\n",
		"config.yml": "files:\n  " + jsonText(evil) + ": {content: " + jsonText(evil) + "}\nsysctl: {" + jsonText(evil) + ": " + jsonText(evil) + "}\n",
		"hosts.yml":  "all:\n  hosts:\n    " + jsonText("host"+evil) + ": {ansible_host: 127.0.0.1, ansible_port: 1}\n    b: {ansible_host: \"127.0.0.1\", ansible_user: \"root:PASSsecret\", ansible_port: 1, slipway_serial: " + jsonText(evil) + "}\n    c: {ansible_host: 127.0.0.1, ansible_port: PORT, ansible_user: USER}\n",
		"hosts.ini":  "[g" + evil + "]\na ansible_host=127.0.0.1 ansible_port=1 ansible_password=PASSsecret\nb\x1b[2J ansible_host=root:PASSsecret@127.0.0.1\n",
		"SHA256SUMS": strings.Repeat("a", 64) + "  " + evil + "\n", "reports/report.json": report, "reports/v1/report.json": report,
		"rootfs/etc/os-release": "ID=" + evil, "rootfs/etc/passwd": "root:x:0:0:" + evil + ":/:/bin/sh\n", "rootfs/usr/bin/ev\x1b[2Jil\nFORGED: no findings": "\x7fELF\x02\x01\x01" + evil, "rootfs/etc/shadow": "root::" + evil,
		"unit/evil.service": "[Service]\nExecStart=/" + evil, "served/x": "x",
		"store/oci-layout": `{"imageLayoutVersion":"1.0.0"}`,
		"store/index.json": fmt.Sprintf(`{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:%x","size":%d,"annotations":{"org.opencontainers.image.ref.name":"v1","x":%s},"artifactType":%[3]s}]}`, sha256.Sum256([]byte(evil)), len(evil), jsonText(evil)),
	})
	place(t, work, map[string]string{fmt.Sprintf("store/blobs/sha256/%x", sha256.Sum256([]byte(evil))): evil})
	mustRun(t, work, "gzip", "-k", "evil.img")
	mustRun(t, work, "mkfs.ext4", "-q", "-d", "rootfs", "-L", "ev\x1b[2Jil", "evil.ext4", "4M")
	mustRun(t, work, "tar", "-cf", "evil.tar", "rootfs", "store")
	parts, err := bfb.ParseParts("boot-args==quiet " + strings.ReplaceAll(evil, ",", ";") + ",info==" + evil)
	if err == nil {
		_, err = bfb.Make(context.Background(), filepath.Join(work, "evil.bfb"), bfb.Recipe{Parts: parts})
	}
	if err != nil {
		t.Fatal(err)
	}
	mustRun(t, work, "git", "init", "-q", "-b", "main", "--template=")
	mustRun(t, work, "git", "add", "-f", "boards", "kas.yml")
	mustRun(t, work, "git", "commit", "-q", "-m", evil)
}

// placeBoards starts four boards. All programs of HOST only print what is hostile, those of
// HOST2 add that to what the real ones say, HOST3 runs nothing, and nobody knows HOST4's key.
func (w *world) placeBoards(t *testing.T, base, home string) {
	t.Helper()
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	banner := filepath.Join(base, "banner")
	said := filepath.Join(base, "said")
	if err := errors.Join(os.WriteFile(banner, []byte(evil), 0o644), os.WriteFile(said, []byte(evil+"\nhttps://TOKENsecret@127.0.0.1/\n"), 0o644), os.Chmod(base, 0o755)); err != nil {
		t.Fatal(err)
	}
	var known, pairs []string
	var first *sshd.Server
	for i, name := range []string{"HOST2", "HOST3", "HOST4", "HOST"} {
		bin := filepath.Join(base, fmt.Sprint("bin", i))
		script := "#!/bin/sh\n"
		if i == 0 {
			script += "PATH=/usr/sbin:/usr/bin:/sbin:/bin \"${0##*/}\" \"$@\"; status=$?\n"
		}
		script += "/bin/cat " + said + "\n/bin/cat " + said + " >&2\nexit ${status:-0}\n"
		place(t, bin, map[string]string{"program": script})
		if err := errors.Join(os.Chmod(filepath.Join(bin, "program"), 0o755), os.Chmod(bin, 0o755)); err != nil {
			t.Fatal(err)
		}
		for _, tool := range strings.Fields("uname id cat ls stat mkdir mv cp rm ln chmod chown df mount umount dmesg journalctl systemctl ip ss grep sed awk find hostname sha256sum md5sum tar head tail sort wc " +
			"rauc swupdate docker podman nerdctl ctr containerd runc lsmod modinfo modprobe sysctl dpkg dpkg-query rpm opkg getent ps pgrep readlink realpath date sync reboot shutdown sleep tegrastats nvidia-smi nvpmodel frr vtysh systemd-analyze timedatectl test dd blkid lsblk findmnt touch mktemp od base64 tee tr cut sudo env setsid nohup timeout kill true false") {
			_ = os.Symlink("program", filepath.Join(bin, tool))
		}
		dir := filepath.Join(base, fmt.Sprint("sshd", i))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		// Nothing that Slipway runs there can change this machine: it is nobody who runs it.
		force := filepath.Join(base, fmt.Sprint("force", i))
		drop := ""
		if os.Geteuid() == 0 {
			drop = "/usr/bin/setpriv --reuid=65534 --regid=65534 --clear-groups "
		}
		if err := os.WriteFile(force, []byte("#!/bin/sh\nexec "+drop+"/usr/bin/env -i PATH="+bin+" HOME=/nonexistent /bin/sh -c \"$SSH_ORIGINAL_COMMAND\"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		if name == "HOST3" { // a login that runs nothing, and says that all is well
			force = "/bin/true"
		}
		server, err := sshd.New(dir, "ForceCommand "+force, "Banner "+banner, "Subsystem sftp /usr/lib/openssh/sftp-server", "MaxStartups 200", "MaxSessions 100")
		if err != nil {
			t.Fatal(err)
		}
		if err := server.Start(context.Background()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(server.Stop)
		if first == nil {
			first = server
		}
		key, err1 := os.ReadFile(first.Identity)
		lets, err2 := os.ReadFile(filepath.Join(filepath.Dir(first.Identity), "authorized"))
		pin, err3 := os.ReadFile(server.KnownHosts)
		if err := errors.Join(err1, err2, err3, os.WriteFile(filepath.Join(dir, "authorized"), lets, 0o600)); err != nil {
			t.Fatal(err)
		}
		address := fmt.Sprintf("%s@127.0.0.1:%d", me.Username, server.Port)
		if name == "HOST4" { // nothing is known of its key
			pairs = append(pairs, "KEY4", strings.Join(strings.Fields(string(pin))[1:], " "))
		} else {
			known = append(known, string(pin))
		}
		pairs = append(pairs, name, address)
		place(t, home, map[string]string{".ssh/id_ed25519": string(key)})
	}
	place(t, home, map[string]string{
		".ssh/known_hosts": strings.Join(known, ""),
	})
	w.pairs, w.hosts = pairs, strings.NewReplacer(pairs...)
	hosts := filepath.Join(filepath.Dir(home), "work", "hosts.yml")
	text, err := os.ReadFile(hosts)
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := strings.Cut(pairs[len(pairs)-1], ":")
	if err := os.WriteFile(hosts, []byte(strings.NewReplacer("PORT", port, "USER", me.Username).Replace(string(text))), 0o600); err != nil {
		t.Fatal(err)
	}
}
