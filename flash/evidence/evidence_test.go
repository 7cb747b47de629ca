package evidence

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"slipway/flash/trust"
	"slipway/images"
	"slipway/layers/progress"
	"slipway/layers/progress/progresstest"
)

const check = `{"version":"1","package":[{"name":"openssl","version":"3.2.6","issue":[
 {"id":"CVE-2026-0001","scorev3":"7.5","status":"Unpatched"},
 {"id":"CVE-2026-0002","scorev3":"9.1","status":"Unpatched"},
 {"id":"CVE-2025-9230","scorev3":"9.9","status":"Patched"}]}]}`

// makeArtifact makes an artifact with a bill of material and the findings of a CVE check.
func makeArtifact(t *testing.T, cves string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "orin")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	bill, err := os.ReadFile("../../images/sbom/testdata/image.spdx2.tar.zst")
	if err != nil {
		t.Fatal(err)
	}
	a := images.NoArtifact(images.Spec{Board: "orin", Arch: "arm64"}, dir)
	a.Key, a.Built = strings.Repeat("0123456789abcdef", 4), time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	for _, f := range []struct{ kind, name, data string }{
		{images.DiskImage, "disk.img", "an image"}, {images.SBOM, "image.spdx.tar.zst", string(bill)}, {images.CVEs, "image.json", cves},
	} {
		write(t, filepath.Join(dir, f.name), f.data)
		one, err := a.Describe(t.Context(), f.kind, f.name)
		if err != nil {
			t.Fatal(err)
		}
		a.Files = append(a.Files, one)
	}
	if err := a.Publish(t.Context(), images.Spec{Board: "orin"}, nil); err != nil {
		t.Fatal(err)
	}
	return dir
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// makeKey makes a key, and a list that allows it to sign.
func makeKey(t *testing.T, options string) (key, signers string) {
	t.Helper()
	dir := t.TempDir()
	key, signers = filepath.Join(dir, "key"), filepath.Join(dir, "allowed_signers")
	if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", key).CombinedOutput(); err != nil {
		t.Fatalf("ssh-keygen: %v: %s", err, out)
	}
	write(t, signers, "release@example.com "+options+read(t, key+".pub"))
	return key, signers
}

// sign has ssh-keygen sign an artifact.
func sign(t *testing.T, dir, key string) {
	t.Helper()
	path := images.ArtifactPath(dir)
	_ = os.Remove(path + ".sig") // ssh-keygen would ask
	if out, err := exec.Command("ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", "file", path).CombinedOutput(); err != nil {
		t.Fatalf("ssh-keygen -Y sign: %v: %s", err, out)
	}
}

// A signed artifact is shown with all that it says.
func TestExamine(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	earlier := makeArtifact(t, strings.Replace(check, `"CVE-2026-0001","scorev3":"7.5","status":"Unpatched"`, `"CVE-2026-0001","status":"Unpatched"`, 1))
	write(t, filepath.Join(earlier, "image.json"), `{"version":"1","package":[{"name":"openssl","issue":[{"id":"CVE-2026-0001","status":"Unpatched"}]}]}`)
	dir := makeArtifact(t, check)
	key, signers := makeKey(t, "")
	r, err := Examine(t.Context(), dir, Options{})
	if err != nil || r.Err() != nil || r.Signature != Unsigned {
		t.Errorf("unsigned: %v, %v, %s", err, r.Err(), r.Signature)
	}
	for want, change := range map[string]func(*Report){
		"next: ssh-keygen -Y sign -f ~/.ssh/id_ed25519 -n file " + images.ArtifactPath(dir):                              func(r *Report) { r.Signature, r.mustSign = Unsigned, true },
		"next: build orin  # after changing":                                                                             func(r *Report) { r.Signature = Signed },
		"next: sha256sum " + dir + "/*  # compare with where the artifact comes from; then copy it again, or build orin": func(r *Report) { r.Wrong = []string{"a byte"} },
	} {
		refused := r
		refused.Verdicts = []Verdict{{Policy: "p.yml", Refused: []string{"old"}}}
		if change(&refused); refused.Err() == nil || !strings.Contains(refused.Err().Error(), want) {
			t.Errorf("Err = %v; want %q", refused.Err(), want)
		}
	}
	sign(t, dir, key)
	if r, err := Examine(t.Context(), dir, Options{}); err != nil || r.Signature != Unverified || !strings.Contains(r.Why, "find who may sign") {
		t.Errorf("without a list of signers: %v, %s: %s", err, r.Signature, r.Why)
	}
	if r, err = Examine(t.Context(), dir, Options{Signers: signers}); err != nil || r.Err() != nil {
		t.Fatalf("signed: %v, %v", err, r.Err())
	}
	var b bytes.Buffer
	r.Show(&b)
	for _, want := range []string{
		"artifact    orin for arm64, built 2026-11-27 12:00:00, key 0123456789ab\n",
		"\nfile        disk.img  disk, 8 bytes, sha256:",
		"\nsignature   by release@example.com (ssh-ed25519 SHA256:",
		"\nprovenance  built by urn:slipway:builder:local\n",
		"\npackages    3, by SPDX 2.2, Yocto's CVE check 1\n",
		"\nlicences    Apache-2.0 1, GPL-2.0-only 1, Zlib 1, bzip2-1.0.4 1\n",
		"\nflaws       2 open (the worst 9.1), 1 fixed, 0 ignored\n",
		"\nopen        CVE-2026-0002 in openssl 3.2.6, 9.1\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, b.String())
		}
	}
}

// The tracker's file adds flaws of Debian packages.
func TestTracker(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	status := "Package: base-files\nStatus: install ok installed\nVersion: 12.4\n\nPackage: libz\nSource: zlib (1:1.2-1)\nStatus: install ok installed\nVersion: 1:1.2-1+b1\n"
	dir := makeArtifact(t, status)
	tracker := filepath.Join(t.TempDir(), "tracker.json")
	write(t, tracker, `{"zlib": {"CVE-2026-1": {"releases": {"bookworm": {"status": "resolved", "fixed_version": "1:1.2-2"}}},
		"CVE-2026-2": {"releases": {"bookworm": {"status": "open", "nodsa": "Minor\nissue"}}}}}`)
	r, err := Examine(t.Context(), dir, Options{Tracker: tracker})
	if err != nil || r.Err() != nil {
		t.Fatalf("%v, %v", err, r.Err())
	}
	var b bytes.Buffer
	const want = "\nflaws       2 open, 0 fixed, 0 ignored\nopen        CVE-2026-1 in zlib 1:1.2-1, fixed in 1:1.2-2\nopen        CVE-2026-2 in zlib 1:1.2-1, Minor issue\n"
	if r.Show(&b); !strings.Contains(b.String(), want) {
		t.Errorf("it does not say %q:\n%s", want, b.String())
	}
	for path, want := range map[string]string{filepath.Join(dir, "none"): "no such file", images.ArtifactPath(dir): "nothing of Debian's release bookworm"} {
		if _, err := Examine(t.Context(), dir, Options{Tracker: path}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("--tracker=%s: %v; want %q", path, err, want)
		}
	}
}

// What does not belong together is said.
func TestWrongArtifacts(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	key, signers := makeKey(t, "")
	stranger, _ := makeKey(t, "")
	_, expired := makeKey(t, `valid-before="20200101" `)
	_, forGit := makeKey(t, `namespaces="git" `)
	pub := read(t, key+".pub")
	write(t, expired, `release@example.com valid-before="20200101" `+pub)
	write(t, forGit, `release@example.com namespaces="git" `+pub)
	other := makeArtifact(t, strings.Replace(check, "7.5", "7.6", 1))
	sign(t, other, key)
	flip := func(name string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			text := []byte(read(t, filepath.Join(dir, name)))
			text[len(text)/2] ^= 1
			write(t, filepath.Join(dir, name), string(text))
		}
	}
	copyFrom := func(names ...string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			for _, name := range names {
				write(t, filepath.Join(dir, name), read(t, filepath.Join(other, name)))
			}
		}
	}
	edit := func(old, new string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			text := read(t, images.ArtifactPath(dir))
			if !strings.Contains(text, old) {
				t.Fatalf("artifact.json does not hold %q", old)
			}
			write(t, images.ArtifactPath(dir), strings.Replace(text, old, new, 1))
		}
	}
	remove := func(name string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, tt := range []struct {
		name    string
		change  func(t *testing.T, dir string)
		signers string
		want    string
		files   bool // not only the signature is wrong
	}{
		{"a flipped byte of the image", flip("disk.img"), signers, "disk.img has the digest", true},
		{"a flipped byte of the bill", flip("image.spdx.tar.zst"), signers, "image.spdx.tar.zst has the digest", true},
		{"a flipped byte of the findings", flip("image.json"), signers, "image.json has the digest", true},
		{"a flipped byte of the provenance", flip("provenance.json"), signers, "provenance.json has the digest", true},
		{"a cut image", func(t *testing.T, dir string) { write(t, filepath.Join(dir, "disk.img"), "an") }, signers, "disk.img has 2 bytes, and artifact.json says 8", true},
		{"no image", remove("disk.img"), signers, "disk.img is missing", true},
		{"no provenance", remove("provenance.json"), signers, "provenance.json is missing", true},
		{"another build's findings", copyFrom("image.json"), signers, "image.json has the digest", true},
		{"another build's provenance", copyFrom("provenance.json"), signers, "provenance.json has the digest", true},
		{"another build's signature", copyFrom("artifact.json.sig"), signers, "artifact.json.sig", false},
		{"another build's description", copyFrom("artifact.json"), signers, "image.json has the digest", true},
		{"another board", edit(`"board": "orin"`, `"board": "nano"`), signers, "of another build", true},
		{"another key", edit(`"key": "0`, `"key": "1`), signers, "of another build", true},
		{"another date", edit(`"built": "2026`, `"built": "2027`), signers, "artifact.json.sig", false},
		{"a stranger's key", func(t *testing.T, dir string) {
			sign(t, dir, stranger)
		}, signers, "does not name", false},
		{"an expired key", nil, expired, "could sign until", false},
		{"a key for another purpose", nil, forGit, "may sign only for git", false},
		{"a cut signature", func(t *testing.T, dir string) {
			path := images.ArtifactPath(dir) + ".sig"
			write(t, path, read(t, path)[:100])
		}, signers, "artifact.json.sig", false},
		{"a flipped byte of the signature", flip("artifact.json.sig"), signers, "artifact.json.sig", false},
		{"an empty signature", func(t *testing.T, dir string) { write(t, images.ArtifactPath(dir)+".sig", "") }, signers, "artifact.json.sig", false},
	} {
		dir := makeArtifact(t, check)
		sign(t, dir, key)
		if tt.change != nil {
			tt.change(t, dir)
		}
		r, err := Examine(t.Context(), dir, Options{Signers: tt.signers})
		if err != nil || r.Err() == nil || !strings.Contains(strings.Join(r.Wrong, "\n"), tt.want) {
			t.Errorf("%s: %v: %q; want %q", tt.name, err, r.Wrong, tt.want)
		}
		if !tt.files && (r.Signature != Bad || r.Signer != nil) {
			t.Errorf("%s: its signature is %s, by %v", tt.name, r.Signature, r.Signer)
		}
		var shown strings.Builder
		if r.Show(&shown); !tt.files && strings.Count(shown.String(), r.Why) != 1 {
			t.Errorf("%s: shown is\n%s\nwant what is wrong once", tt.name, shown.String())
		}
	}
}

// A list of signers that was named and cannot be used is an error, not an unverified signature.
func TestNamedSigners(t *testing.T) {
	dir := makeArtifact(t, check)
	key, signers := makeKey(t, "")
	sign(t, dir, key)
	beside := filepath.Join(dir, "allowed_signers")
	write(t, beside, read(t, signers))
	for path, want := range map[string]string{beside: "it lies beside the files", filepath.Join(t.TempDir(), "none"): "no such file"} {
		if _, err := Examine(t.Context(), dir, Options{Signers: path}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("--signers=%s: %v; want %q", path, err, want)
		}
	}
}

// Who names signers gets an artifact that one of them signed, or a refusal.
func TestNamedSignersRefuseUnsigned(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	key, signers := makeKey(t, "")
	_, other := makeKey(t, "")
	empty, comments := filepath.Join(t.TempDir(), "empty"), filepath.Join(t.TempDir(), "comments")
	write(t, empty, "")
	write(t, comments, "# builds ssh-ed25519 AAAA...\n\n")
	policy := filepath.Join(t.TempDir(), "policy.yml")
	write(t, policy, "signers: "+signers+"\n")
	lax := filepath.Join(t.TempDir(), "lax.yml")
	write(t, lax, "since: 2020-01-01\n")
	for _, tt := range []struct {
		name, signers, policy string
		signed                bool
		state, want           string // of an error, of Examine or of what it reports; "" is that there is none
		shows                 string
	}{
		{"no signers are named", "", "", false, Unsigned, "", "signature   none\n"},
		{"unsigned", signers, "", false, Unsigned, "is not signed, and HOW wants that: there is no DIR/artifact.json.sig\nnext: ssh-keygen -Y sign -f ~/.ssh/id_ed25519 -n file DIR/artifact.json", "WRONG       DIR/artifact.json is not signed, and HOW wants that"},
		{"an empty list", empty, "", false, "", "it names no signer", ""},
		{"a list of comments", comments, "", false, "", "it names no signer", ""},
		{"no list", filepath.Join(t.TempDir(), "none"), "", false, "", "no such file", ""},
		{"an empty list, signed", empty, "", true, "", "it names no signer", ""},
		{"by another", other, "", true, Bad, "does not name", "WRONG"},
		{"signed", signers, "", true, Signed, "", "signature   by release@example.com"},
		{"a policy, unsigned", "", policy, false, Unsigned, "there is no DIR/artifact.json.sig", "REFUSED"},
		{"a policy, signed", "", policy, true, Signed, "", "signature   by release@example.com"},
		{"a policy, and another is named", other, policy, true, Bad, "does not name", "WRONG"},
		{"a policy without signers", "", lax, true, Unverified, "", "names no signers, so it does not check the signature"},
	} {
		for _, how := range []string{"--signers", trust.SignersVariable} {
			t.Setenv(trust.SignersVariable, "")
			opt := Options{Signers: tt.signers}
			if how == trust.SignersVariable {
				opt.Signers = ""
				t.Setenv(how, tt.signers)
			}
			dir := makeArtifact(t, check)
			if tt.signed {
				sign(t, dir, key)
			}
			if tt.policy != "" {
				p, err := ReadPolicy(tt.policy)
				if err != nil {
					t.Fatal(err)
				}
				opt.Policies = []Policy{p}
			}
			r, err := Examine(t.Context(), dir, opt)
			if err == nil {
				err = r.Err()
			}
			words := strings.NewReplacer("HOW", how, "DIR", dir)
			want, shows := words.Replace(tt.want), words.Replace(tt.shows)
			if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s by %s: %v; want %q", tt.name, how, err, want)
			}
			var b bytes.Buffer
			r.Show(&b)
			if tt.state != "" && (r.Signature != tt.state || !strings.Contains(b.String(), shows)) {
				t.Errorf("%s by %s: %s, want %s with %q:\n%s", tt.name, how, r.Signature, tt.state, shows, b.String())
			}
			if strings.Contains(b.String(), "unverified") {
				t.Errorf("%s by %s: it says unverified:\n%s", tt.name, how, b.String())
			}
		}
	}
}

// Each rule about packages refuses an artifact without a bill of material.
func TestPolicyWithoutBill(t *testing.T) {
	for name, policy := range map[string]images.Policy{
		"packages": {Packages: true},
		"licences": {Licences: images.Licences{Refuse: []string{"GPL-3.0*"}}},
		"flaws":    {Flaws: images.Flaws{Below: 7}},
		"none":     {},
	} {
		v := Policy{Policy: policy}.judge(t.Context(), &Report{Folder: t.TempDir()}, nil, nil)
		if refused := strings.Join(v.Refused, ""); strings.Contains(refused, "no bill of material") != (name != "none") {
			t.Errorf("%s: refused for %q", name, refused)
		}
	}
}

// The bar of the files moves inside of a large file.
func TestProgress(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "disk.img"), strings.Repeat("x", 5<<20))
	a := images.NoArtifact(images.Spec{Board: "orin"}, dir)
	f, err := a.Describe(t.Context(), images.DiskImage, "disk.img")
	if err != nil {
		t.Fatal(err)
	}
	var reads []int64
	if err := a.VerifyFile(t.Context(), f, func(n int64) { reads = append(reads, n) }); err != nil || len(reads) < 5 {
		t.Errorf("VerifyFile = %v after %d reads; want 5 or more", err, len(reads))
	}
	a.Files = []images.File{f}
	if err := a.Publish(t.Context(), images.Spec{Board: "orin"}, nil); err != nil {
		t.Fatal(err)
	}
	var steps progresstest.Recorder
	reporter := progress.New(&steps)
	if _, err := Examine(progress.With(t.Context(), reporter), dir, Options{}); err != nil {
		t.Fatal(err)
	}
	reporter.Close()
	if last := steps.Last("verify files"); last.Count != last.Total || last.Total < 5<<20 {
		t.Errorf("the step ends at %d of %d bytes", last.Count, last.Total)
	}
}
