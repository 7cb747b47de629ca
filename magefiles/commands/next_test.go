package commands

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"slipway/flash/flashtest"
	"slipway/layers/host"
)

// systemPrograms are those that a next step may name, beside Slipway itself.
var systemPrograms = strings.Fields("umount losetup ls sed cat curl df ssh getent sha256sum systemctl head tar xz readlink ssh-keygen mv git unset export file fdisk find gpg")

// overriding is a flag that makes a command do what it refuses or asks about.
var overriding = regexp.MustCompile(`--(raw|yes|force|force-recovery|allow|other-board|downgrade|unsigned|unproved|blind|overwrite|replace|pin)\b`)

// TestNoOverridingSteps reads all next steps that are in the source. They are typed as they stand.
func TestNoOverridingSteps(t *testing.T) {
	step := regexp.MustCompile("(next: |repeat the line|Step: +.|refusedFinding\\(.)[^\"`\n]*")
	all := 0
	look := func(path string, entry fs.DirEntry, err error) error {
		switch {
		case entry != nil && entry.IsDir() && entry.Name() == "build":
			return fs.SkipDir
		case err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go"):
			return err
		}
		text, err := os.ReadFile(path)
		for _, s := range step.FindAllString(strings.ReplaceAll(string(text), `\nnext: `, "\nnext: "), -1) {
			if all++; overriding.MatchString(strings.ReplaceAll(s, "without --", "")) {
				t.Errorf("%s: %s", path, s)
			}
		}
		return err
	}
	var err error
	// Not the root and magefiles: each command of this repository changes these folders, and Go
	// would never take this test from its cache.
	for _, dir := range []string{".", "../targets.go", "../quality.go", "../slipway", "../../ci", "../../flash", "../../images", "../../layers", "../../recipes", "../../runtime-hook"} {
		err = errors.Join(err, filepath.WalkDir(dir, look))
	}
	if err != nil || all < 200 {
		t.Errorf("%d next steps, %v", all, err)
	}
}

// overridesIn returns the overriding flags of the next steps in a text that a line does not have.
func overridesIn(text string, line []string) (flags []string) {
	for said := range strings.Lines(text) {
		step, _ := strings.CutPrefix(strings.TrimSpace(said), "next: ")
		for _, flag := range overriding.FindAllString(step, -1) {
			if step != strings.TrimSpace(said) && !slices.ContainsFunc(line, func(word string) bool { return strings.HasPrefix(word, flag) }) {
				flags = append(flags, flag)
			}
		}
	}
	return flags
}

// listings are commands whose output is what a line lacks.
var listings = []string{"boards", "devices", "suites", "version", "rig", "help"}

// TestNextLines types the next step of every wrong line: it is a line, names what the user
// named, and leads on. It succeeds or fails differently, and no steps go in a circle.
func TestNextLines(t *testing.T) {
	n := &nextWalk{t: t}
	for line := range wrongLines {
		n.misspelt(strings.Fields(line))
	}
	pairs, err := os.ReadFile("testdata/lines.txt")
	if err != nil {
		t.Fatal(err)
	}
	for pair := range strings.Lines(string(pairs)) {
		if ours, _, found := strings.Cut(pair, " | "); found && !strings.HasPrefix(pair, "#") {
			n.misspelt(splitWordsOf(ours)[1:])
		}
	}
	misspelt := n.errors
	n.program = compileProgram(t)
	n.prepare()
	lines, err := os.ReadFile("testdata/failures.txt")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	slots := make(chan struct{}, 6)
	for line := range strings.Lines(n.places.Replace(string(lines))) {
		words := strings.Fields(line)
		if words[0] == "#" {
			continue
		}
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			n.follow(words)
		})
	}
	all.Wait()
	t.Logf("%d errors (%d of misspelt lines): %d next lines typed, %d lead on", n.errors, misspelt, n.typed, n.leads)
	if n.errors < 200 || n.typed != n.leads {
		t.Errorf("want 200 errors or more, and all next lines that were typed to lead on")
	}
}

type nextWalk struct {
	t                    *testing.T
	program, folder      string
	env                  []string
	places               *strings.Replacer
	mutex                sync.Mutex
	errors, typed, leads int
}

func (n *nextWalk) count(typed, leads int) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	n.errors, n.typed, n.leads = n.errors+1, n.typed+typed, n.leads+leads
}

// nextOf returns the words of the last next step of an error, without what explains it.
func nextOf(text string) []string {
	_, step, _ := cutLast(strings.TrimSpace(text), "\nnext: ")
	step, _, _ = strings.Cut(step, "  # ")
	step, _, _ = strings.Cut(step, " > ")
	step, _, _ = strings.Cut(step, " | ")
	return shellWords(step)
}

// shellWords splits a line as a shell does.
func shellWords(line string) []string {
	out, err := exec.Command("sh", "-c", `printf '%s\0' `+line).Output()
	if err != nil || line == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
}

// misspelt follows a line that is wrong as it stands: its next step is understood.
func (n *nextWalk) misspelt(line []string) {
	err := parse(line...)
	if err == nil {
		return
	}
	next := nextOf(err.Error())
	name := shellWords(host.ProgramName())
	if len(next) < len(name) || !slices.Equal(next[:len(name)], name) || slices.Equal(next[len(name):], line) {
		n.t.Errorf("%q: next: %q", line, next)
		return
	}
	if err := parse(next[len(name):]...); err != nil {
		n.t.Errorf("%q: next: %q, which is wrong too: %v", line, next, err)
		n.count(1, 0)
		return
	}
	n.count(1, 1)
}

// prepare makes a folder, devices and servers that lines can fail on.
func (n *nextWalk) prepare() {
	t := n.t
	if os.Geteuid() != 0 {
		t.Skip("needs root, for devices and mounts")
	}
	image := make([]byte, 2<<20)
	image[510], image[511], image[450], image[454] = 0x55, 0xaa, 0x83, 1
	copy(image[458:], "\xff\x0f")
	n.folder = t.TempDir()
	place(t, n.folder, map[string]string{
		"junk": "x\n", "my.yml": "file: {/etc/passwd: {exists: false}}\n", "app/x": "hi\n", "good.img": string(image), "packed.img": "\x5d\x00\x00....", "cut.img": string(image[:1<<20]), "program.img": "\x7fELF" + strings.Repeat("x", 1<<10), "empty.img": "", "SUMS": strings.Repeat("0", 64) + "  other\n",
		"hosts.yml": "all: {hosts: {a: {ansible_host: 127.0.0.1, ansible_port: 1}}}\n", "badhosts.yml": "all: {hots: {a: {}}}\n",
		"art/artifact.json":   `{"board": "virt", "files": [{"kind": "disk", "name": "disk.img", "sizeBytes": 1}]}`,
		"whole/artifact.json": fmt.Sprintf(`{"board": "virt", "files": [{"kind": "disk", "name": "disk.img", "sizeBytes": %d, "sha256": "%x"}]}`, len(image), sha256.Sum256(image)),
		"whole/disk.img":      string(image), "art/disk.img": "x",
		"kas.yml": "header: {version: 14}\nmachine: qemux86-64\nrepos: {one: {layers: {../meta-x: }}}\n",
	})
	key := filepath.Join(t.TempDir(), "key")
	mustRun(t, "", "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "me", "-f", key)
	public, err := os.ReadFile(key + ".pub")
	signers := filepath.Join(t.TempDir(), "signers")
	if err := errors.Join(err, os.WriteFile(signers, append([]byte("me "), public...), 0o644)); err != nil {
		t.Fatal(err)
	}
	for name, file := range map[string]string{"junk": "other.img", "good.img": "spaced.img"} {
		namespace := map[string]string{"junk": "file", "good.img": "image"}[name]
		mustRun(t, n.folder, "ssh-keygen", "-q", "-Y", "sign", "-n", namespace, "-f", key, name)
		mustRun(t, n.folder, "mv", name+".sig", file+".sig")
		mustRun(t, n.folder, "cp", "good.img", file)
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "good.img") {
			_, _ = w.Write(image)
			return
		}
		http.NotFound(w, r)
	})
	web, tls := httptest.NewServer(handler), httptest.NewTLSServer(handler)
	t.Cleanup(web.Close)
	t.Cleanup(tls.Close)
	mounted, _ := flashtest.Loop(t, 16<<20)
	mustRun(t, "", "mkfs.ext4", "-qF", mounted)
	at := t.TempDir()
	mustRun(t, "", "mount", mounted, at)
	t.Cleanup(func() { _ = exec.Command("umount", at).Run() })
	full := t.TempDir()
	mustRun(t, "", "mount", "-t", "tmpfs", "-o", "size=1M", "none", full)
	t.Cleanup(func() { _ = exec.Command("umount", full).Run() })
	disk, _ := flashtest.Loop(t, 16<<20)
	parted, _ := flashtest.Loop(t, 16<<20)
	below, _ := flashtest.Loop(t, 16<<20)
	n.places = strings.NewReplacer("MOUNTED", mounted, "FULL", full, "PARTITION", flashtest.Partition(t, parted), "OVER", flashtest.Attach(t, below),
		"DISK", disk, "WEBHOST", strings.TrimPrefix(web.URL, "http://"), "WEB", web.URL, "TLS", tls.URL, "SIGNERS", signers, "ZEROS", strings.Repeat("0", 64))
	n.env = []string{"HOME=" + t.TempDir(), "PATH=" + os.Getenv("PATH"), "GIT_TERMINAL_PROMPT=0"}
}

// run types a line in a folder, for half a minute at most.
func (n *nextWalk) run(dir string, argv []string) (status int, out string) {
	ctx, cancel := context.WithTimeout(n.t.Context(), 30*time.Second)
	defer cancel()
	if argv[0] == "unset" || argv[0] == "export" {
		return 0, ""
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var both bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = dir, n.env, &both, &both, time.Second
	if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		return -1, err.Error()
	}
	return cmd.ProcessState.ExitCode(), both.String()
}

// errorIn returns what a line says was wrong.
func errorIn(out string) string {
	_, said, _ := strings.Cut(out, "Error: ")
	said, _, _ = strings.Cut(said, "\nnext: ")
	return said
}

// follow types a line, and then the next steps, up to a line that succeeds or is another program's.
func (n *nextWalk) follow(line []string) {
	dir := n.t.TempDir()
	if out, err := exec.CommandContext(n.t.Context(), "cp", "-a", n.folder+"/.", dir).CombinedOutput(); err != nil {
		n.t.Errorf("%v: %s", err, out)
		return
	}
	seen := map[string][]string{}
	argv := append([]string{n.program}, line...)
	status, out := n.run(dir, argv)
	if status == 0 {
		n.t.Errorf("%q succeeds\n%s", line, out)
	}
	for status != 0 && argv[0] == n.program {
		seen[errorIn(out)] = argv
		next := nextOf(out)
		if said := n.judge(out, argv[1:], next, status); said != "" {
			n.t.Errorf("%q (status %d): %s: %q\n%s", argv[1:], status, said, next, out)
			n.count(0, 0)
			return
		}
		if waits := strings.Contains(out, "  # after ") || strings.Contains(out, "  # when "); waits || next[1] == "rig" {
			n.count(0, 0) // to be typed when the world has changed
			return
		}
		argv = next
		if status, out = n.run(dir, argv); status == -1 || status != 0 && argv[0] == n.program && seen[errorIn(out)] != nil {
			n.t.Errorf("%q: %q fails with status %d as before\n%s", slices.Collect(maps.Values(seen)), argv, status, out)
			n.count(1, 0)
			return
		}
		n.count(1, 1)
	}
}

// judge says what is wrong with a next step; "" if nothing is.
func (n *nextWalk) judge(out string, line, next []string, status int) string {
	switch {
	case len(overridesIn(out, line)) > 0:
		return "the next step overrides a refusal"
	case len(next) == 0:
		return "no next step"
	case next[0] == n.program:
		if err := parse(next[1:]...); err != nil {
			return "the next step is wrong: " + err.Error()
		}
		if next[len(next)-1] == "--help" && status != 2 {
			return "help is no step in a state of the world"
		}
		if slices.Contains(listings, next[1]) {
			return ""
		}
	case status == 7 && slices.ContainsFunc(next, func(word string) bool { return strings.HasPrefix(word, "/dev/") }):
		return "the next step names the device, and the image is at fault"
	case !slices.Contains(systemPrograms, next[0]):
		return "the next step is no program"
	}
	text, said := strings.Join(next, " "), errorIn(out)
	if status == 2 || slices.ContainsFunc(next[1:], func(word string) bool { return len(word) > 3 && strings.Contains(said, word) }) {
		return ""
	}
	for _, word := range line {
		_, value, _ := strings.Cut(word, "=")
		for _, name := range []string{word, value, filepath.Base(word), filepath.Dir(word)} {
			if len(name) > 0 && strings.Contains(text, name) {
				return ""
			}
		}
	}
	return "the next step names nothing of the line"
}
