package starter

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// needPrograms skips a test where programs are missing.
func needPrograms(t *testing.T, packages map[string]string) {
	t.Helper()
	for program, of := range packages {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is missing: install the Debian package %s", program, of)
		}
	}
}

// release is a folder with a signed release, and the project that fetches it.
type release struct {
	t                   *testing.T
	dir, project, files string
}

func (r release) run(dir string, argv ...string) {
	r.t.Helper()
	cmd := exec.CommandContext(r.t.Context(), argv[0], argv[1:]...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		r.t.Fatalf("%q: %v\n%s", argv, err, out)
	}
}

func (r release) write(path, text string) {
	r.t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		r.t.Fatal(err)
	}
}

func (r release) sign(key, namespace string) {
	r.t.Helper()
	_ = os.Remove(filepath.Join(r.files, "SHA256SUMS.sig")) // there may be none yet
	r.run(r.files, "ssh-keygen", "-q", "-Y", "sign", "-f", filepath.Join(r.dir, key), "-n", namespace, "SHA256SUMS")
}

func newRelease(t *testing.T) release {
	dir := t.TempDir()
	r := release{t, dir, filepath.Join(dir, "project"), filepath.Join(dir, "files")}
	if err := Write(t.Context(), r.project, planProject(t, "virt").Files); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"ours", "theirs"} {
		r.run(dir, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", key)
	}
	public, err := os.ReadFile(filepath.Join(dir, "ours.pub"))
	if err != nil {
		t.Fatal(err)
	}
	signers := filepath.Join(r.project, "ci/allowed_signers")
	text, err := os.ReadFile(signers)
	if err != nil {
		t.Fatal(err)
	}
	r.pin("1.0")
	filled := strings.Replace(string(text), "# slipway-release", "slipway-release", 1) // as the file says
	r.write(signers, strings.Replace(filled, "ssh-ed25519 AAAA...", strings.TrimSpace(string(public)), 1))
	r.write(filepath.Join(r.files, r.base(), "slipway"), "the program")
	r.run(r.files, "tar", "-czf", r.archive(), r.base())
	r.list("")
	r.sign("ours", "file")
	return r
}

// pin sets the version that the project takes, which no test program has.
func (r release) pin(version string) {
	r.t.Helper()
	r.edit("version='' # EDIT ME: the release of Slipway that you checked, such as 1.2.3", "version="+version)
}

func (r release) edit(line, want string) {
	r.t.Helper()
	script := filepath.Join(r.project, "ci/install.sh")
	text, err := os.ReadFile(script)
	if err != nil || !strings.Contains(string(text), line+"\n") && !strings.Contains(string(text), line+" ") {
		r.t.Fatalf("%s: %v, no line %q", script, err, line)
	}
	r.write(script, strings.Replace(string(text), line, want, 1))
}

func (r release) base() string { return "slipway_1.0_linux_" + runtime.GOARCH }

func (r release) archive() string { return filepath.Join(r.files, r.base()+".tar.gz") }

// list writes the list of digests, with more lines.
func (r release) list(more string) {
	data, err := os.ReadFile(r.archive())
	if err != nil {
		r.t.Fatal(err)
	}
	r.write(filepath.Join(r.files, "SHA256SUMS"), fmt.Sprintf("%x  other\n%x  %s\n%s", sha256.Sum256(nil), sha256.Sum256(data), filepath.Base(r.archive()), more))
}

// The script of the pipelines installs what the right key signed, and nothing else.
func TestInstallScript(t *testing.T) {
	needPrograms(t, map[string]string{"ssh-keygen": "openssh-client", "curl": "curl", "dpkg": "dpkg", "sha256sum": "coreutils"})
	for name, tt := range map[string]struct {
		spoil func(release)
		want  string // "" is success
	}{
		"a good release":  {func(release) {}, ""},
		"another program": {func(r release) { r.write(r.archive(), "the Program") }, "FAILED"},
		"another list":    {func(r release) { r.write(filepath.Join(r.files, "SHA256SUMS"), "") }, "Signature verification failed"},
		"another signer":  {func(r release) { r.sign("theirs", "file") }, "Could not verify signature"},
		"another purpose": {func(r release) { r.sign("ours", "git") }, "Could not verify signature"},
		"no signature":    {func(r release) { _ = os.Remove(filepath.Join(r.files, "SHA256SUMS.sig")) }, "curl: (37)"},
		"a list without it": {func(r release) {
			r.write(filepath.Join(r.files, "SHA256SUMS"), fmt.Sprintf("%x  other\n", sha256.Sum256(nil)))
			r.sign("ours", "file")
		}, "the release has no slipway_1.0_linux_"},
		"an older release":       {func(r release) { r.edit("version=1.0", "version=1.1") }, "takes version 1.1 only"},
		"a version as a pattern": {func(r release) { r.edit("version=1.0", "version=.*") }, "takes version .* only"},
		"dots of a version": {func(r release) {
			r.list("")
			data, _ := os.ReadFile(filepath.Join(r.files, "SHA256SUMS"))
			r.write(filepath.Join(r.files, "SHA256SUMS"), strings.Replace(string(data), "slipway_1.0", "slipway_1x0", 1))
			r.sign("ours", "file")
		}, "takes version 1.0 only"},
		"a longer name": {func(r release) {
			data, _ := os.ReadFile(filepath.Join(r.files, "SHA256SUMS"))
			r.write(filepath.Join(r.files, "SHA256SUMS"), strings.Replace(string(data), ".tar.gz", ".tar.gz.old", 1))
			r.sign("ours", "file")
		}, "takes version 1.0 only"},
		"no version": {func(r release) { r.edit("version=1.0", "version=''") }, "ci/install.sh names no version of Slipway"},
		"its list": {func(r release) {
			data, _ := os.ReadFile(filepath.Join(r.files, "SHA256SUMS"))
			r.edit("sums=''", fmt.Sprintf("sums=%x", sha256.Sum256(data)))
		}, ""},
		"another list than the named": {func(r release) { r.edit("sums=''", fmt.Sprintf("sums=%x", sha256.Sum256(nil))) }, "is not the list that ci/install.sh names"},
		"a line that is no sum":       {func(r release) { r.list("x\n"); r.sign("ours", "file") }, "improperly formatted"},
		"a newer program beside it": {func(r release) {
			r.list(fmt.Sprintf("%x  %s\n", sha256.Sum256(nil), strings.Replace(filepath.Base(r.archive()), "1.0", "1.1", 1)))
			r.sign("ours", "file")
		}, ""},
		"no key yet": {func(r release) { r.write(filepath.Join(r.project, "ci/allowed_signers"), "# slipway-release\n") }, "Could not verify signature"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRelease(t)
			tt.spoil(r)
			cmd := exec.CommandContext(t.Context(), "sh", "ci/install.sh", "build/bin")
			cmd.Dir, cmd.Env = r.project, append(os.Environ(), "SLIPWAY_URL=file://"+r.files, "LC_ALL=C", "TMPDIR="+t.TempDir())
			out, err := cmd.CombinedOutput()
			text, missing := os.ReadFile(filepath.Join(r.project, "build/bin/slipway"))
			if tt.want == "" && (err != nil || string(text) != "the program") {
				t.Errorf("install.sh: %v, installed %q\n%s", err, text, out)
			}
			if tt.want != "" && (err == nil || missing == nil || !strings.Contains(string(out), tt.want) || !strings.Contains(string(out), "\nnext: ")) {
				t.Errorf("install.sh: %v, installed %q; want %q, a next step and nothing installed\n%s", err, text, tt.want, out)
			}
		})
	}
}
