package commands

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"slipway/ci/report"
	"slipway/flash"
	"slipway/images"
	"slipway/images/bitbake"
	"slipway/layers/git"
)

const (
	builderURL = "https://ci.example.com/acme/images"
	findings   = `{"version":"1","package":[{"name":"openssl","version":"3.2.6","issue":[{"id":"CVE-2026-0001","scorev3":"7.5","status":"Unpatched"}]}]}`
	bill       = `{"spdxVersion":"SPDX-2.3","packages":[{"name":"openssl","versionInfo":"3.2.6","licenseConcluded":"Apache-2.0"}]}`
)

// policyWorld is a folder with an artifact, its policy, and an address at which no board may
// be asked.
type policyWorld struct {
	dir      string // the artifact
	folder   string // of the policy and the keys
	key      string
	stranger string
	bundle   string // of RAUC
	address  string
	asked    *atomic.Int32
}

func newPolicyWorld(t *testing.T) *policyWorld {
	t.Helper()
	message, err := base64.StdEncoding.DecodeString(strings.ReplaceAll(readText(t, "../../flash/boardssh/update/testdata/verity.cms"), "\n", ""))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"XDG_CONFIG_HOME", "XDG_STATE_HOME"} {
		t.Setenv(name, t.TempDir())
	}
	t.Setenv("SLIPWAY_SIGNERS", "")
	t.Setenv("CI_PROJECT_URL", builderURL)
	t.Setenv("GITHUB_SERVER_URL", "")
	work := t.TempDir()
	t.Chdir(work)
	w := &policyWorld{dir: filepath.Join(work, "built"), folder: t.TempDir(), asked: new(atomic.Int32)}
	w.bundle = string(binary.BigEndian.AppendUint64(append([]byte("hsqs squashfs"), message...), uint64(len(message))))
	w.key, w.stranger = filepath.Join(w.folder, "key"), filepath.Join(w.folder, "stranger")
	for _, key := range []string{w.key, w.stranger} {
		if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", key).CombinedOutput(); err != nil {
			t.Fatalf("ssh-keygen: %v: %s", err, out)
		}
	}
	w.put(t, "allowed_signers", "release@example.com "+readText(t, w.key+".pub"))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			w.asked.Add(1)
			conn.Close()
		}
	}()
	w.address = l.Addr().String()
	_, port, _ := net.SplitHostPort(w.address)
	w.put(t, "hosts.yml", "all: {hosts: {a: {ansible_host: 127.0.0.1, ansible_port: "+port+", ansible_user: root}}}\n")
	return w
}

func readText(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// put writes a file of the policy's folder, or one with an absolute path.
func (w *policyWorld) put(t *testing.T, name, text string) {
	t.Helper()
	if !filepath.IsAbs(name) {
		name = filepath.Join(w.folder, name)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// build makes an artifact of the board virt with all evidence, and signs it.
func (w *policyWorld) build(t *testing.T, change func(*images.Artifact)) {
	t.Helper()
	if err := errors.Join(os.RemoveAll(w.dir), os.Mkdir(w.dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	spec := images.Spec{Board: "virt", Arch: "amd64"}
	a := images.NoArtifact(spec, w.dir)
	a.Key, a.Built = strings.Repeat("0123456789abcdef", 4), time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	a.Layers = []bitbake.Commit{{Repo: "poky", URL: "https://example.com/poky", Commit: strings.Repeat("a", 40)}}
	for _, f := range []struct{ kind, name, data string }{
		{images.DiskImage, "disk.img", strings.Repeat("an image", 1<<12)},
		{images.Container, "probe.tar", "a container"},
		{images.Bundle, "new.raucb", w.bundle},
		{images.SBOM, "image.spdx.json", bill},
		{images.CVEs, "image.json", findings},
	} {
		w.put(t, filepath.Join(w.dir, f.name), f.data)
		one, err := a.Describe(t.Context(), f.kind, f.name)
		if err != nil {
			t.Fatal(err)
		}
		a.Files = append(a.Files, one)
	}
	if change != nil {
		change(&a)
	}
	source := a.Source
	if err := a.Publish(t.Context(), spec, nil); err != nil {
		t.Fatal(err)
	}
	if source != nil { // Publish looks for itself
		a.Source = source
		if err := a.Save(w.dir); err != nil {
			t.Fatal(err)
		}
	}
	w.sign(t, w.key)
}

// sign signs as a release does, with ssh-keygen: what Slipway would refuse to sign is signed too.
func (w *policyWorld) sign(t *testing.T, key string) {
	t.Helper()
	path := images.ArtifactPath(w.dir)
	_ = os.Remove(path + ".sig")
	if out, err := exec.Command("ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", "file", path).CombinedOutput(); err != nil {
		t.Fatalf("ssh-keygen: %v: %s", err, out)
	}
}

// writers are the commands that write an artifact or a file of it, to a disk or to boards.
func (w *policyWorld) writers() map[string]string {
	host := "root@" + w.address
	return map[string]string{
		"flash":        "flash " + w.dir + " disk.img --yes=disk.img",
		"deploy":       "deploy " + w.dir + " " + host,
		"update":       "update " + w.dir + " " + host + " " + w.dir + "/new.raucb --yes",
		"fleet deploy": "fleet deploy " + w.dir + " " + w.folder + "/hosts.yml",
		"fleet update": "fleet update " + w.dir + " " + w.folder + "/hosts.yml " + w.dir + "/new.raucb --yes",
	}
}

// What a policy refuses is not written by any command, and no board is even asked.
func TestPolicyRefuses(t *testing.T) {
	w := newPolicyWorld(t)
	all := "signers: allowed_signers\nbuilders: ['https://ci.example.com/acme/*']\ncommitted: true\nsince: 2026-11-01\nnewest: true\npackages: true\nlicences: {refuse: [AGPL-3.0*]}\nflaws: {below: 9}\n"
	flip := func(name string) func(t *testing.T) {
		return func(t *testing.T) {
			text := []byte(readText(t, filepath.Join(w.dir, name)))
			text[len(text)/2] ^= 1
			w.put(t, filepath.Join(w.dir, name), string(text))
		}
	}
	again := func(change func(*images.Artifact)) func(t *testing.T) {
		return func(t *testing.T) { w.build(t, change) }
	}
	withFile := func(kind, name, data string) func(t *testing.T) {
		return again(func(a *images.Artifact) {
			w.put(t, filepath.Join(w.dir, name), data)
			one, err := a.Describe(t.Context(), kind, name)
			if err != nil {
				t.Fatal(err)
			}
			for i := range a.Files {
				if a.Files[i].Name == name {
					a.Files[i] = one
				}
			}
		})
	}
	without := func(kind string) func(t *testing.T) {
		return again(func(a *images.Artifact) {
			var kept []images.File
			for _, f := range a.Files {
				if f.Kind != kind {
					kept = append(kept, f)
				}
			}
			a.Files = kept
		})
	}
	otherBuild := func(name string) func(t *testing.T) {
		return func(t *testing.T) {
			w.build(t, func(a *images.Artifact) { a.Key = strings.Repeat("f", 64) })
			other := readText(t, filepath.Join(w.dir, name))
			w.build(t, nil)
			w.put(t, filepath.Join(w.dir, name), other)
		}
	}
	for _, tt := range []struct {
		name   string
		policy string
		change func(t *testing.T)
		want   string
	}{
		{"an unsigned artifact", all, func(t *testing.T) { _ = os.Remove(images.ArtifactPath(w.dir) + ".sig") }, "there is no "},
		{"a stranger's signature", all, func(t *testing.T) { w.sign(t, w.stranger) }, "does not name"},
		{"an expired key", all, func(t *testing.T) {
			w.put(t, "allowed_signers", `release@example.com valid-before="20200101" `+readText(t, w.key+".pub"))
		}, "could sign until"},
		{"another build's signature", all, otherBuild("artifact.json.sig"), "is not of this file"},
		{"another build's description", all, otherBuild("artifact.json"), "is not of this file"},
		{"another build's provenance", all, otherBuild("provenance.json"), "provenance.json has the digest"},
		{"a flipped byte of the description", all, func(t *testing.T) {
			path := images.ArtifactPath(w.dir)
			w.put(t, path, strings.Replace(readText(t, path), `"built": "2026`, `"built": "2027`, 1))
		}, "is not of this file"},
		{"a flipped byte of the signature", all, flip("artifact.json.sig"), "artifact.json.sig"},
		{"a flipped byte of the image", all, flip("disk.img"), "disk.img has the digest"},
		{"a flipped byte of the container", all, flip("probe.tar"), "probe.tar has the digest"},
		{"a flipped byte of the bundle", all, flip("new.raucb"), "new.raucb"},
		{"a flipped byte of the bill", all, flip("image.spdx.json"), "image.spdx.json has the digest"},
		{"a flipped byte of the findings", all, flip("image.json"), "image.json has the digest"},
		{"a flipped byte of the provenance", all, flip("provenance.json"), "provenance.json has the digest"},
		{"a missing file", all, func(t *testing.T) { _ = os.Remove(filepath.Join(w.dir, "image.json")) }, "image.json"},
		{"another builder", all, func(t *testing.T) {
			t.Setenv("CI_PROJECT_URL", "https://ci.example.com/else/images")
			w.build(t, nil)
		}, "built by https://ci.example.com/else/images, whom the policy does not name"},
		{"a laptop's build", all, func(t *testing.T) {
			t.Setenv("CI_PROJECT_URL", "")
			w.build(t, nil)
		}, "built by urn:slipway:builder:local, whom"},
		{"an edited layer", all, again(func(a *images.Artifact) { a.Layers[0].Edited = true }), "repository poky had changes"},
		{"a local layer", all, again(func(a *images.Artifact) { a.Layers[0].Local = "/home/me/poky" }), "repository poky had changes"},
		{"an edited project", all, again(func(a *images.Artifact) {
			a.Source = &git.FolderCommit{Commit: strings.Repeat("b", 40), Edited: true}
		}), "the project had changes"},
		{"an old build", all, again(func(a *images.Artifact) { a.Built = a.Built.AddDate(0, -2, 0) }), "it was built 2026-09-27 12:00:00, before 2026-11-01"},
		{"no bill", all, func(t *testing.T) {
			again(func(a *images.Artifact) { a.Files = a.Files[:3] })(t)
		}, "it has no bill of material"},
		{"an empty bill", all, withFile(images.SBOM, "image.spdx.json", `{"spdxVersion":"SPDX-2.3","packages":[]}`), "names no package"},
		{"a refused licence", all, withFile(images.SBOM, "image.spdx.json", strings.Replace(bill, "Apache-2.0", "MIT OR AGPL-3.0-only", 1)), "1 refused licences: openssl (AGPL-3.0-only)"},
		{"an unknown licence", all, withFile(images.SBOM, "image.spdx.json", strings.Replace(bill, "Apache-2.0", "NOASSERTION", 1)), "openssl (no licence is said)"},
		{"no findings", all, without(images.CVEs), "does not say which flaws"},
		{"an open flaw", all, withFile(images.CVEs, "image.json", strings.Replace(findings, "7.5", "9.0", 1)), "CVE-2026-0001 in openssl (9.0)"},
		{"a flaw without a score", all, withFile(images.CVEs, "image.json", strings.Replace(findings, `"scorev3":"7.5",`, "", 1)), "CVE-2026-0001 in openssl (0.0)"},
		{"an older build than the last", all, func(t *testing.T) {
			path := filepath.Join(os.Getenv("XDG_STATE_HOME"), "slipway/newest/virt.json")
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			w.put(t, path, `{"built":"2026-11-27T12:00:01Z"}`)
			t.Cleanup(func() { _ = os.Remove(path) })
		}, "this machine has written a build of 2026-11-27 12:00:01"},
		{"a damaged record of the last build", all, func(t *testing.T) {
			path := filepath.Join(os.Getenv("XDG_STATE_HOME"), "slipway/newest/virt.json")
			w.put(t, path, "{")
			t.Cleanup(func() { _ = os.Remove(path) })
		}, "read the record of the newest build"},
		{"no policy at that place", "", nil, "SLIPWAY_POLICY"},
		{"a policy that asks for nothing", "{}", nil, "asks for nothing"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w.put(t, "allowed_signers", "release@example.com "+readText(t, w.key+".pub"))
			w.put(t, "policy.yml", tt.policy)
			t.Setenv("SLIPWAY_POLICY", filepath.Join(w.folder, "policy.yml"))
			if tt.policy == "" {
				t.Setenv("SLIPWAY_POLICY", filepath.Join(w.folder, "none.yml"))
			}
			w.build(t, nil)
			if tt.change != nil {
				tt.change(t)
			}
			for name, line := range w.writers() {
				err := Run(t.Context(), Root(), strings.Fields(line))
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("%s: %v; want %q", name, err, tt.want)
				}
				if tt.policy == all && !errors.Is(err, flash.ErrImage) {
					t.Errorf("%s: status %d, want 7, of an image that is not what it should be", name, report.ExitStatus(err))
				}
			}
			if _, err := os.Lstat("disk.img"); err == nil {
				t.Error("a disk was written")
			}
		})
	}
	if n := w.asked.Load(); n > 0 {
		t.Errorf("a board was asked %d times", n)
	}
	t.Run("admitted", func(t *testing.T) { admitsGood(t, w, all) })
}

// Where the environment names signers, nothing that they did not sign reaches a board. A list or
// a policy from the artifact's own folder counts for nothing.
func TestSignersVariableRefuses(t *testing.T) {
	w := newPolicyWorld(t)
	good := filepath.Join(w.folder, "allowed_signers")
	w.put(t, "allowed_signers", "release@example.com "+readText(t, w.key+".pub"))
	w.put(t, "other", "other@example.com "+readText(t, w.stranger+".pub"))
	w.put(t, "empty", "")
	w.build(t, nil)
	beside := filepath.Join(w.dir, "allowed_signers")
	w.put(t, beside, readText(t, good))
	w.put(t, filepath.Join(w.dir, "policy.yml"), "signers: "+good+"\n")
	signature := images.ArtifactPath(w.dir) + ".sig"
	for _, tt := range []struct{ name, signers, policy, want string }{
		{"another", filepath.Join(w.folder, "other"), "", "does not name"},
		{"an empty list", filepath.Join(w.folder, "empty"), "", "it names no signer"},
		{"a list beside", beside, "", "it lies beside the files"},
		{"a policy beside", "", filepath.Join(w.dir, "policy.yml"), "it lies beside the files"},
		{"no signature", good, "", "is not signed, and SLIPWAY_SIGNERS wants that"},
	} {
		if tt.name == "no signature" {
			if err := os.Remove(signature); err != nil {
				t.Fatal(err)
			}
		}
		t.Setenv("SLIPWAY_SIGNERS", tt.signers)
		t.Setenv("SLIPWAY_POLICY", tt.policy)
		for name, line := range w.writers() {
			if err := Run(t.Context(), Root(), strings.Fields(line)); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s, %s: %v; want %q", tt.name, name, err, tt.want)
			}
		}
		if err := Run(t.Context(), Root(), []string{"evidence", w.dir}); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s, evidence: %v; want %q", tt.name, err, tt.want)
		}
	}
	if n := w.asked.Load(); n > 0 {
		t.Errorf("a board was asked %d times", n)
	}
}

// admitsGood shows that nothing but the policy stopped the commands.
func admitsGood(t *testing.T, w *policyWorld, policy string) {
	w.put(t, "allowed_signers", "release@example.com "+readText(t, w.key+".pub"))
	w.put(t, "policy.yml", policy)
	t.Setenv("SLIPWAY_POLICY", filepath.Join(w.folder, "policy.yml"))
	w.build(t, nil)
	lines := w.writers()
	own := filepath.Join(os.Getenv("XDG_CONFIG_HOME"), "slipway/allowed_signers") // of the user, for releases of Slipway
	if err := os.MkdirAll(filepath.Dir(own), 0o755); err != nil {
		t.Fatal(err)
	}
	w.put(t, own, "stranger@example.com "+readText(t, w.stranger+".pub"))
	if err := Run(t.Context(), Root(), []string{"evidence", w.dir, "--signers=" + w.folder + "/allowed_signers"}); err != nil {
		t.Errorf("evidence: %v", err)
	}
	for _, name := range []string{"deploy", "update", "fleet deploy", "fleet update"} {
		before := w.asked.Load()
		if err := Run(t.Context(), Root(), strings.Fields(lines[name])); err == nil || w.asked.Load() == before {
			t.Errorf("%s: %v, without a word to the board", name, err)
		}
	}
	w.put(t, "new.raucb", strings.Replace(w.bundle, "squashfs", "squashfS", 1))
	foreign := strings.Replace(lines["update"], w.dir+"/new.raucb", w.folder+"/new.raucb", 1)
	before := w.asked.Load()
	for _, line := range []string{foreign, strings.Replace(lines["fleet update"], w.dir+"/new.raucb", w.folder+"/new.raucb", 1), lines["flash"] + " --image=" + w.dir + "/disk.img"} {
		if err := Run(t.Context(), Root(), strings.Fields(line)); !errors.Is(err, flash.ErrImage) || w.asked.Load() != before {
			t.Errorf("%s: %v; want what is of no artifact refused", line, err)
		}
	}
}
