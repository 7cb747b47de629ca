package builder

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"slipway/images"
	"slipway/layers/localfile"
	"slipway/layers/progress"
)

func noSigners(t *testing.T) {
	t.Helper()
	for _, name := range []string{keyringVariable, keyVariable, certVariable} {
		t.Setenv(name, "")
	}
}

// The development key is made once, nobody else can read it, and its certificate is one
// that OpenSSL takes for a signer's.
func TestDevelopmentKey(t *testing.T) {
	noSigners(t)
	opt := images.Options{Dir: t.TempDir()}
	s, err := signingOf(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(s.key)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%s: %v, %v; want mode 0600", s.key, info, err)
	}
	text, err := os.ReadFile(s.cert)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(cert)
	in20Years := time.Now().AddDate(20, 0, 0)
	if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: in20Years, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
		t.Errorf("the certificate against itself: %v", err)
	}
	again, err := signingOf(t.Context(), opt)
	if err != nil || again != s {
		t.Errorf("the second time: %+v, %v; want %+v", again, err, s)
	}
	if later, err := os.ReadFile(again.cert); err != nil || !bytes.Equal(text, later) {
		t.Errorf("the second time it is another certificate (%v)", err)
	}
}

func TestSignersOfEnvironment(t *testing.T) {
	for _, tt := range []struct{ name, keyring, key, cert, want, wantSigns string }{
		{"all", "/dev/null", "/dev/null", "/dev/null", "", ""},
		{"no such keyring", "/none", "/dev/null", "/dev/null", "", "RAUC_KEYRING_FILE: stat /none"},
		{"no such key", "/dev/null", "/none", "/dev/null", "", "RAUC_KEY_FILE: stat /none"},
		{"keyring alone", "ring", "", "", "", "RAUC_KEY_FILE and RAUC_CERT_FILE, which are not"},
		{"no keyring", "", "key", "cert", "RAUC_KEYRING_FILE is not", ""},
		{"no certificate", "ring", "key", "", "one of them is not set", ""},
		{"no key", "ring", "", "cert", "one of them is not set", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv(keyringVariable, tt.keyring)
			t.Setenv(keyVariable, tt.key)
			t.Setenv(certVariable, tt.cert)
			opt := images.Options{Dir: t.TempDir()}
			s, err := signingOf(t.Context(), opt)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Fatalf("signingOf = %v; want %q", err, tt.want)
			}
			if localfile.Exists(filepath.Join(opt.Dir, "keys")) {
				t.Error("a key was made beside those that were named")
			}
			if err != nil {
				return
			}
			err = s.checkSigner()
			if tt.wantSigns == "" && err != nil || tt.wantSigns != "" && (err == nil || !strings.Contains(err.Error(), tt.wantSigns)) {
				t.Errorf("signs = %v; want %q", err, tt.wantSigns)
			}
		})
	}
}

// A bundle that cannot be signed is an error before the image is built.
func TestSignerIsCheckedFirst(t *testing.T) {
	noSigners(t)
	t.Setenv(keyringVariable, "/dev/null")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := buildDebian(ctx, images.Spec{Board: "b", Debian: &images.Debian{}}, images.Options{Dir: t.TempDir(), Request: images.BuildRequest{Targets: []string{images.Bundle}}})
	if err == nil || !strings.Contains(err.Error(), "which are not") {
		t.Errorf("buildDebian = %v; want that there is no key", err)
	}
}

// A bundle is made again when its artifact or its signer is another one.
func TestBundleKey(t *testing.T) {
	noSigners(t)
	s, err := signingOf(t.Context(), images.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	other, err := signingOf(t.Context(), images.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string]string{}
	for name, of := range map[string]struct {
		key string
		by  signing
	}{"one": {"a", s}, "other artifact": {"b", s}, "other signer": {"a", other}} {
		key, err := bundleKey(images.Artifact{Key: of.key}, of.by)
		if err != nil {
			t.Fatal(err)
		}
		if keys[key] != "" {
			t.Errorf("%s and %s have the same key", name, keys[key])
		}
		keys[key] = name
	}
}

// What of an artifact goes into a bundle: the root file system of its disk, and the
// board's files with the version in them. The rest of the disk does not.
func TestBundleContent(t *testing.T) {
	dir := t.TempDir()
	disk := bytes.Join([][]byte{bytes.Repeat([]byte("-"), mib), bytes.Repeat([]byte("r"), mib), make([]byte, mib), []byte("end"), make([]byte, 100), bytes.Repeat([]byte("+"), mib)}, nil)
	if err := os.WriteFile(filepath.Join(dir, diskName), disk, 0o644); err != nil {
		t.Fatal(err)
	}
	spec := images.Spec{Board: "b"}.WithFile("bundle/manifest.raucm", "version=@VERSION@\n").WithFile("bundle/hook", "#!").WithFile("overlay/x", "")
	a := images.NewArtifact(spec, dir)
	a.Key, a.Built, a.Files = strings.Repeat("k", 64), time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), []images.File{{Kind: images.DiskImage, Name: diskName}}
	a.Partitions = []images.Partition{{Use: images.UseRoot, OffsetBytes: mib, SizeBytes: 2*mib + 103}}
	content := filepath.Join(dir, "content")
	if err := (bundle{spec: spec, artifact: a, step: progress.Start(t.Context(), "bundle", 0, "")}).fillContent(t.Context(), content); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"manifest.raucm": "version=20260102030405+kkkkkkkkkkkk\n", "hook": "#!", bundleImage: string(disk[mib : 3*mib+103]),
	} {
		if got, err := os.ReadFile(filepath.Join(content, name)); err != nil || string(got) != want {
			t.Errorf("%s has %d bytes, %v; want %d", name, len(got), err, len(want))
		}
	}
	if left, err := os.ReadDir(content); err != nil || len(left) != 3 {
		t.Errorf("the content is %v, %v; want three files", left, err)
	}
	spec = spec.WithFile("bundle/a/b", "")
	if err := (bundle{spec: spec, artifact: a, step: progress.Start(t.Context(), "bundle", 0, "")}).fillContent(t.Context(), filepath.Join(dir, "again")); err == nil || !strings.Contains(err.Error(), "images/boards/b/bundle/a/b") {
		t.Errorf("with a folder: %v; want it refused", err)
	}
}

// What a board of Debian packages cannot do is refused before anything is built.
func TestRequestOfDebian(t *testing.T) {
	for _, tt := range []struct {
		name, keyring string
		ask           images.BuildRequest
		want          string
	}{
		{"nothing", "", images.BuildRequest{}, ""},
		{"a bundle", "/k", images.BuildRequest{Targets: []string{images.Bundle}}, ""},
		{"a bundle of a board without a keyring", "", images.BuildRequest{Targets: []string{images.Bundle}}, "debian.keyring is not set"},
		{"another target", "/k", images.BuildRequest{Targets: []string{"image"}}, "no target but bundle"},
		{"a bundle, and more", "/k", images.BuildRequest{Targets: []string{images.Bundle, "image"}}, "no target but bundle"},
		{"a dry run of a bundle", "/k", images.BuildRequest{Targets: []string{images.Bundle}, DryRun: true}, "dry run"},
		{"a task", "/k", images.BuildRequest{Task: "fetch"}, "no target but bundle, and no task"},
	} {
		err := checkDebianRequest(tt.ask, images.Spec{Board: "b", Debian: &images.Debian{Keyring: tt.keyring}})
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v; want %q", tt.name, err, tt.want)
		}
	}
}
