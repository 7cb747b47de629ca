package trust

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// signed is a folder with signed files, and keys outside of it.
type signed struct {
	t              *testing.T
	keys, folder   string
	signers        string // the file
	public, others string // keys, "TYPE BASE64"
}

func mustRun(t *testing.T, dir string, argv ...string) {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, out)
	}
}

// newKeys makes two keys, and a list of signers that names the first.
func newKeys(t *testing.T) signed {
	t.Helper()
	if _, err := exec.LookPath("ssh-keygen"); err != nil {
		t.Skip("ssh-keygen is not installed: apt-get install openssh-client")
	}
	s := signed{t: t, keys: t.TempDir()}
	s.signers = filepath.Join(s.keys, "allowed_signers")
	for _, key := range []string{"ann", "bob"} {
		mustRun(t, s.keys, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", key)
	}
	s.public, s.others = s.read(s.keys, "ann.pub"), s.read(s.keys, "bob.pub")
	s.allow("ann@example.com " + s.public)
	return s
}

func (s signed) read(dir, name string) string {
	s.t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		s.t.Fatal(err)
	}
	return strings.TrimSuffix(string(data), "\n")
}

func (s signed) put(name, text string) {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.folder, name), []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
}

func (s signed) allow(lines string) {
	s.t.Helper()
	if err := os.WriteFile(s.signers, []byte(lines+"\n"), 0o644); err != nil {
		s.t.Fatal(err)
	}
}

// list writes lines as the list, and has ssh-keygen sign it.
func (s signed) list(key, namespace, lines string) {
	s.t.Helper()
	s.put(SumsName, lines)
	_ = os.Remove(filepath.Join(s.folder, SumsName+".sig"))
	mustRun(s.t, s.folder, "ssh-keygen", "-q", "-Y", "sign", "-f", filepath.Join(s.keys, key), "-n", namespace, SumsName)
}

func digestLine(text, name string) string {
	return fmt.Sprintf("%x  %s\n", sha256.Sum256([]byte(text)), name)
}

var goodList = digestLine("first\n", "a.deb") + digestLine("second\n", "b.tar.gz")

// in returns s with a new folder of two signed files.
func (s signed) in(t *testing.T) signed {
	s.t, s.folder = t, t.TempDir()
	s.allow("ann@example.com " + s.public)
	s.put("a.deb", "first\n")
	s.put("b.tar.gz", "second\n")
	s.list("ann", "file", goodList)
	return s
}

// peers reports whether ssh-keygen and sha256sum accept the folder.
func (s signed) peers() bool {
	verify := exec.Command("ssh-keygen", "-Y", "verify", "-f", s.signers, "-I", "ann@example.com", "-n", "file", "-s", SumsName+".sig")
	verify.Dir, verify.Stdin = s.folder, strings.NewReader(s.read(s.folder, SumsName)+"\n")
	sums := exec.Command("sha256sum", "--strict", "-c", SumsName)
	sums.Dir = s.folder
	return verify.Run() == nil && sums.Run() == nil
}

const wholeFolder = "."

func TestFiles(t *testing.T) {
	keys := newKeys(t)
	tests := []struct {
		name, path string
		change     func(signed)
		wantErr    string // "" where all is proved
		lax        bool   // ssh-keygen and sha256sum accept it, or do not look
	}{
		{"a folder", wholeFolder, func(signed) {}, "", false},
		{"a file", "a.deb", func(signed) {}, "", false},
		{"binary lines", wholeFolder, func(s signed) { s.list("ann", "file", strings.ReplaceAll(goodList, "  ", " *")) }, "", false},
		{"a file, without the other", "a.deb", func(s signed) { s.remove("b.tar.gz") }, "", false},
		{"a file, beside a damaged one", "a.deb", func(s signed) { s.put("b.tar.gz", "x") }, "", false},
		{"flipped byte", wholeFolder, func(s signed) { s.put("a.deb", "girst\n") }, "1 of 2 files are not proved: DIR/a.deb: its SHA-256 is ", false},
		{"a byte more", "a.deb", func(s signed) { s.put("a.deb", "first\n\n") }, "it is changed or damaged\nnext: repeat the line  # after fetching it again", false},
		{"cut off", "a.deb", func(s signed) { s.put("a.deb", "") }, "it is changed or damaged", false},
		{"files swapped", wholeFolder, func(s signed) { s.put("a.deb", "second\n"); s.put("b.tar.gz", "first\n") }, "2 of 2 files are not proved", false},
		{"list changed", wholeFolder, func(s signed) { s.put(SumsName, digestLine("evil\n", "a.deb")); s.put("a.deb", "evil\n") }, "the signature is not of this file", false},
		{"a line more", wholeFolder, func(s signed) { s.put(SumsName, goodList+digestLine("x", "c")); s.put("c", "x") }, "the signature is not of this file", false},
		{"signature of another list", wholeFolder, func(s signed) {
			s.list("ann", "file", digestLine("first\n", "a.deb"))
			s.put(SumsName, goodList)
		}, "the signature is not of this file", false},
		{"wrong key", wholeFolder, func(s signed) { s.list("bob", "file", goodList) }, "whom SIGNERS does not name", false},
		{"wrong namespace", wholeFolder, func(s signed) { s.list("ann", "git", goodList) }, `signed for "git"`, false},
		{"no namespace for files", wholeFolder, func(s signed) { s.allow(`ann@example.com namespaces="git" ` + s.public) }, "may sign only for git", false},
		{"expired", wholeFolder, func(s signed) { s.allow(`ann@example.com valid-before="20200101" ` + s.public) }, "could sign until", false},
		{"not yet valid", wholeFolder, func(s signed) { s.allow(`ann@example.com valid-after="29990101" ` + s.public) }, "may sign from", false},
		{"in its time", wholeFolder, func(s signed) {
			s.allow(`ann@example.com valid-after="20200101",valid-before="29990101" ` + s.public)
		}, "", false},
		{"certificate authority", wholeFolder, func(s signed) { s.allow("ann@example.com cert-authority " + s.public) }, "is a certificate authority", false},
		{"no signers", wholeFolder, func(s signed) { s.allow("# nobody") }, "it names no signer", false},
		{"a signer's line is broken", wholeFolder, func(s signed) { s.allow("ann@example.com touch " + s.public) }, "unknown, or without a value", false},
		{"missing file", wholeFolder, func(s signed) { s.remove("a.deb") }, "no such file or directory", false},
		{"missing list", wholeFolder, func(s signed) { s.remove(SumsName) }, "no such file or directory", true},
		{"missing signature", wholeFolder, func(s signed) { s.remove(SumsName + ".sig") }, "there is no DIR/SHA256SUMS.sig\nnext: ssh-keygen -Y sign", false},
		{"empty signature", wholeFolder, func(s signed) { s.put(SumsName+".sig", "") }, "does not begin with", false},
		{"a web page for a signature", wholeFolder, func(s signed) { s.put(SumsName+".sig", "<html>") }, "does not begin with", false},
		{"long signature", wholeFolder, func(s signed) { s.put(SumsName+".sig", strings.Repeat("A", 1<<17)) }, "65536 are the most", false},
		{"long list", wholeFolder, func(s signed) { s.list("ann", "file", strings.Repeat(goodList, 1<<13)) }, "1048576 are the most", true},
		{"a file that nobody signed", wholeFolder, func(s signed) { s.put("c", "x") }, "DIR/c: SHA256SUMS does not name it: nobody signed it", true},
		{"a list with another ending", wholeFolder, func(s signed) { s.put(SumsName+".old", "x") }, "does not name it", true},
		{"named, and not signed", "c", func(s signed) { s.put("c", "x") }, "does not name it", true},
		{"the list itself", SumsName, func(signed) {}, "does not name it", true},
		{"a path up", wholeFolder, func(s signed) { s.list("ann", "file", goodList+digestLine("", "../a")) }, `SHA256SUMS:3: "../a" leads into another folder`, true},
		{"an absolute path", wholeFolder, func(s signed) { s.list("ann", "file", digestLine("", "/dev/null")) }, "leads into another folder", true},
		{"a folder below", wholeFolder, func(s signed) { s.list("ann", "file", digestLine("", "x/y")) }, "leads into another folder", true},
		{"a hidden file", wholeFolder, func(s signed) { s.list("ann", "file", digestLine("", ".profile")) }, "begins with a dot", true},
		{"an escaped name", wholeFolder, func(s signed) { s.list("ann", "file", `\`+digestLine("", `a\nb`)) }, "not a line of sha256sum", true},
		{"a name of control characters", wholeFolder, func(s signed) { s.list("ann", "file", digestLine("", "a\x1b[2Jb")) }, "that a person cannot see", true},
		{"a name that reads backwards", wholeFolder, func(s signed) { s.list("ann", "file", digestLine("", "a\u202ebed")) }, "that a person cannot see", true},
		{"a long name", wholeFolder, func(s signed) { s.list("ann", "file", digestLine("", strings.Repeat("a", 300))) }, "a name of 300 bytes", true},
		{"a name twice", wholeFolder, func(s signed) { s.list("ann", "file", goodList+digestLine("first\n", "a.deb")) }, `SHA256SUMS:3: "a.deb" is named twice`, true},
		{"a line without a digest", wholeFolder, func(s signed) { s.list("ann", "file", "# ours\n"+goodList) }, "SHA256SUMS:1: not a line of sha256sum", true},
		{"a digest in capitals", wholeFolder, func(s signed) { s.list("ann", "file", strings.ToUpper(goodList[:64])+goodList[64:]) }, "not a line of sha256sum", true},
		{"an empty line", wholeFolder, func(s signed) { s.list("ann", "file", goodList+"\n") }, "SHA256SUMS:3: not a line", true},
		{"an empty list", wholeFolder, func(s signed) { s.list("ann", "file", "") }, "it is empty or cut off", true},
		{"the last line cut off", wholeFolder, func(s signed) { s.list("ann", "file", strings.TrimSuffix(goodList, "\n")) }, "1: the list does not end", true},
		{"a link in a file's place", wholeFolder, func(s signed) { s.link("a.deb") }, "a.deb: it is a symbolic link\nnext: readlink -f", true},
		{"a link in the list's place", wholeFolder, func(s signed) { s.link(SumsName) }, "SHA256SUMS: it is a symbolic link", true},
		{"a link in the signature's place", wholeFolder, func(s signed) { s.link(SumsName + ".sig") }, "SHA256SUMS.sig: it is a symbolic link", true},
		{"a FIFO in a file's place", wholeFolder, func(s signed) { s.remove("a.deb"); s.fifo("a.deb") }, "a.deb: it is no regular file", true},
		{"a folder in a file's place", wholeFolder, func(s signed) { s.remove("a.deb"); s.mkdir("a.deb") }, "a.deb: it is no regular file", false},
		{"a huge file", "a.deb", func(s signed) { s.grow("a.deb", maxFileBytes+1) }, "68719476736 are the most", true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := keys.in(t)
			test.change(s)
			r, err := VerifyFiles(t.Context(), []string{filepath.Join(s.folder, test.path)}, s.signers)
			want := strings.NewReplacer("DIR", s.folder, "SIGNERS", s.signers).Replace(test.wantErr)
			if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("Files = %v; want an error with %q", err, want)
			}
			if r.Verified != (err == nil) {
				t.Errorf("Files = %v, Verified %v", err, r.Verified)
			}
			if !test.lax && test.path == wholeFolder && s.peers() != (err == nil) {
				t.Errorf("Files = %v; ssh-keygen and sha256sum accept it: %v", err, err != nil)
			}
		})
	}
}

func (s signed) remove(name string) {
	s.t.Helper()
	if err := os.Remove(filepath.Join(s.folder, name)); err != nil {
		s.t.Fatal(err)
	}
}

// link moves a file out of the folder, and leaves a link to it.
func (s signed) link(name string) {
	s.t.Helper()
	away := filepath.Join(s.t.TempDir(), name)
	if err := errors.Join(os.Rename(filepath.Join(s.folder, name), away), os.Symlink(away, filepath.Join(s.folder, name))); err != nil {
		s.t.Fatal(err)
	}
}

func (s signed) fifo(name string) {
	s.t.Helper()
	if err := unix.Mkfifo(filepath.Join(s.folder, name), 0o644); err != nil {
		s.t.Fatal(err)
	}
}

func (s signed) mkdir(name string) {
	s.t.Helper()
	if err := os.Mkdir(filepath.Join(s.folder, name), 0o755); err != nil {
		s.t.Fatal(err)
	}
}

// grow makes a file of holes.
func (s signed) grow(name string, size int64) {
	s.t.Helper()
	if err := os.Truncate(filepath.Join(s.folder, name), size); err != nil {
		s.t.Skip(err)
	}
}

// Any byte of a file, of the list and of its signature that changes is seen.
func TestEachByteMatters(t *testing.T) {
	s := newKeys(t).in(t)
	for _, name := range []string{SumsName, SumsName + ".sig", "a.deb"} {
		path := filepath.Join(s.folder, name)
		good, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for i := range bytes.TrimSpace(good) { // the last line's end may be any blank
			bad := bytes.Clone(good)
			bad[i] ^= 1
			s.put(name, string(bad))
			if r, err := VerifyFiles(t.Context(), []string{s.folder}, s.signers); err == nil || r.Verified {
				t.Errorf("byte %d of %s changed: Files = %v; want an error", i, name, err)
			}
		}
		s.put(name, string(good))
	}
}

// A list of signers that came with the files proves nothing.
func TestSignersBesideFiles(t *testing.T) {
	s := newKeys(t).in(t)
	s.put("allowed_signers", "mallory "+s.others+"\n")
	away := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(s.folder, away); err != nil {
		t.Fatal(err)
	}
	for _, list := range []string{filepath.Join(s.folder, "allowed_signers"), filepath.Join(away, "allowed_signers")} {
		if _, err := VerifyFiles(t.Context(), []string{filepath.Join(s.folder, "a.deb")}, list); err == nil || !strings.Contains(err.Error(), "it lies beside the files") {
			t.Errorf("Files with %s = %v; want it refused", list, err)
		}
	}
}

func TestDefaultSigners(t *testing.T) {
	s := newKeys(t).in(t)
	home := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", home)
	t.Setenv(SignersVariable, "")
	if _, err := VerifyFiles(t.Context(), []string{s.folder}, ""); err == nil || !strings.Contains(err.Error(), "there is no "+home+"/slipway/allowed_signers\nnext: ls -l ") {
		t.Errorf("Files without a list = %v; want the next step", err)
	}
	if err := errors.Join(os.Mkdir(home+"/slipway", 0o755), os.Rename(s.signers, home+"/slipway/allowed_signers")); err != nil {
		t.Fatal(err)
	}
	if r, err := VerifyFiles(t.Context(), []string{s.folder}, ""); err != nil || r.Signers != home+"/slipway/allowed_signers" {
		t.Errorf("Files = %q, %v; want the user's own list", r.Signers, err)
	}
	t.Setenv(SignersVariable, filepath.Join(home, "none"))
	if _, err := VerifyFiles(t.Context(), []string{s.folder}, ""); err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("Files = %v; want an error about %s", err, SignersVariable)
	}
}

// The report names each file, its digest, and who signed.
func TestReport(t *testing.T) {
	s := newKeys(t).in(t)
	s.put("b.tar.gz", "changed\n")
	second := newKeys(t).in(t)
	second.list("bob", "file", goodList)
	r, err := VerifyFiles(t.Context(), []string{s.folder, filepath.Join(s.folder, "a.deb"), second.folder}, s.signers)
	if err == nil || len(r.Lists) != 2 || len(r.Lists[0].Files) != 2 || r.Lists[1].Signer != nil || r.Lists[1].Error == "" {
		t.Fatalf("Files = %+v, %v; want two lists", r, err)
	}
	var out bytes.Buffer
	r.Show(&out)
	for _, want := range []string{
		"SHA256SUMS is signed by ann@example.com (ssh-ed25519 SHA256:", "whom " + s.signers + " names",
		"  proved a.deb  sha256:" + goodList[:64] + ", 6 bytes\n", "  WRONG  b.tar.gz: its SHA-256 is ",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("Show = %s; want %q", out.String(), want)
		}
	}
	data, err := json.Marshal(r)
	if err != nil || !strings.Contains(string(data), `"signer":{"name":"ann@example.com","keyType":"ssh-ed25519","fingerprint":"SHA256:`) {
		t.Errorf("JSON = %s, %v; want the signer", data, err)
	}
}

func TestFilesEnds(t *testing.T) {
	s := newKeys(t).in(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	stopped := errors.New("stopped")
	cancel(stopped)
	if _, err := VerifyFiles(ctx, []string{s.folder}, s.signers); !errors.Is(err, stopped) {
		t.Errorf("Files = %v; want %v", err, stopped)
	}
}
