package fetch

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"slipway/flash/oci"
	"slipway/layers/plaintext"
)

func TestParse(t *testing.T) {
	sum := "sha256:" + strings.Repeat("a", 64)
	tests := []struct {
		text    string
		want    string // kind, host, path, repo, tag, sum, title, name
		wantErr string
	}{
		{text: "disk.img", want: "path||disk.img|||||disk.img"},
		{text: "/a b/disk.wic.zst", want: "path||/a b/disk.wic.zst|||||disk.wic.zst"},
		{text: "./a:b", want: "path||./a:b|||||a:b"},
		{text: "dir/a:b", want: "path||dir/a:b|||||a:b"},
		{text: "file:///a%20b/disk.img", want: "path||/a b/disk.img|||||disk.img"},
		{text: "file://localhost/disk.img", want: "path||/disk.img|||||disk.img"},
		{text: "file://elsewhere/disk.img", wantErr: "want file:///path"},
		{text: "file:disk.img", want: "sftp|file|disk.img|||||disk.img"},
		{text: "https://h:8443/a/disk.img?x=1", want: "http|h:8443||||||disk.img"},
		{text: "HTTP://h/disk%2Ewic", want: "http|h||||||disk.wic"},
		{text: "https://h/", wantErr: "names no file"},
		{text: "https://h", wantErr: "names no file"},
		{text: "https:///disk.img", wantErr: "no host"},
		{text: "https://h/a%2Fb%2f..", wantErr: "names no file"},
		{text: "https://h/%00", wantErr: "names no file"},
		{text: "https://h/.hidden", wantErr: "names no file"},
		{text: "https://u:p@h:x/disk.img", wantErr: "not a web address"},
		{text: "ssh://u@h:22/srv/disk.img", want: "sftp|u@h:22|/srv/disk.img|||||disk.img"},
		{text: "sftp://h/~/disk.img", want: "sftp|h|disk.img|||||disk.img"},
		{text: "ssh://[::1]:22/disk.img", want: "sftp|[::1]:22|/disk.img|||||disk.img"},
		{text: "ssh://u:p@h/disk.img", wantErr: "a password"},
		{text: "ssh://u:p@h", wantErr: "a password"},
		{text: "ssh://u:p@h/%zz", wantErr: "a password"},
		{text: "sftp://u:p@h/dir/", wantErr: "a password"},
		{text: "ssh://h", wantErr: "want ssh://host/path"},
		{text: "ssh://h/dir/", wantErr: "want host:path"},
		{text: "h:disk.img", want: "sftp|h|disk.img|||||disk.img"},
		{text: "u@h:/srv/disk.img", want: "sftp|u@h|/srv/disk.img|||||disk.img"},
		{text: "u@h:~/disk.img", want: "sftp|u@h|disk.img|||||disk.img"},
		{text: "[::1]:disk.img", want: "sftp|[::1]|disk.img|||||disk.img"},
		{text: "h:", wantErr: "want host:path"},
		{text: "oci:lab/disk", wantErr: "write oci://"},
		{text: "oci://h/lab/disk", want: "oci|h||lab/disk|latest||"},
		{text: "oci://h:5000/lab/disk:v1", want: "oci|h:5000||lab/disk|v1||"},
		{text: "oci://h/lab/disk@" + sum, want: "oci|h||lab/disk||" + sum + "|"},
		{text: "oci://h/lab/disk:v1@" + sum + "#disk.wic", want: "oci|h||lab/disk|v1|" + sum + "|disk.wic"},
		{text: "oci://[::1]:5000/disk", want: "oci|[::1]:5000||disk|latest||"},
		{text: "oci://disk", wantErr: "no registry"},
		{text: "oci://h/UPPER", wantErr: "no name of a repository"},
		{text: "oci://h/a/../b", wantErr: "no name of a repository"},
		{text: "oci://h/lab/disk:v 1", wantErr: "neither a tag nor"},
		{text: "oci://h/lab/disk@sha512:ab", wantErr: "neither a tag nor"},
		{text: "oci://u:p@h/lab/disk", wantErr: "docker login"},
		{text: "oci://h/lab/disk#a/b", wantErr: "no name of a file"},
		{text: "oci-dir:out", want: "oci-dir||out||||"},
		{text: "oci-dir:/a:b/out:v1", want: "oci-dir||/a:b/out||v1||"},
		{text: "oci-dir:out@" + sum, want: "oci-dir||out|||" + sum + "|"},
		{text: "oci-dir:", wantErr: "want oci-dir:FOLDER"},
		{text: "ftp://h/disk.img", wantErr: "Slipway has no images from such addresses"},
		{text: "", wantErr: "no image named"},
		{text: "a\nb", wantErr: "control characters"},
		{text: "\xff", wantErr: "control characters"},
		{text: strings.Repeat("a", 5000), wantErr: "so long a name"},
	}
	for _, test := range tests {
		r, err := parseReference(test.text)
		if test.wantErr != "" {
			if err == nil || !strings.Contains(err.Error(), test.wantErr) {
				t.Errorf("parse(%q) = %+v, %v; want an error with %q", test.text, r, err, test.wantErr)
			}
			if err != nil && strings.Contains(err.Error(), "u:p@") {
				t.Errorf("parse(%q) = %v: the password is in it", test.text, err)
			}
			continue
		}
		name := ""
		if r.kind != kindOCI && r.kind != kindLayout {
			name = "|" + r.fileName()
		}
		got := strings.Join([]string{r.kind, r.host, r.path, r.repo, r.tag, r.sum, r.title}, "|") + name
		if err != nil || got != test.want {
			t.Errorf("parse(%q) = %q, %v; want %q", test.text, got, err, test.want)
		}
	}
}

func TestMapNames(t *testing.T) {
	for name, want := range map[string][]string{
		"disk.wic":     {"disk.wic.bmap", "disk.bmap"},
		"disk.wic.zst": {"disk.wic.zst.bmap", "disk.wic.bmap", "disk.bmap"},
		"disk":         {"disk.bmap"},
		"disk.gz":      {"disk.gz.bmap", "disk.bmap"},
		"a.b.c.d.e.f":  {"a.b.c.d.e.f.bmap", "a.b.c.d.e.bmap", "a.b.c.d.bmap", "a.b.c.bmap"},
	} {
		if got := MapNames(name); !slices.Equal(got, want) {
			t.Errorf("MapNames(%q) = %q; want %q", name, got, want)
		}
	}
}

func TestLocal(t *testing.T) {
	dir := t.TempDir()
	path, data := filepath.Join(dir, "disk.img"), []byte("image")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{path, "file://" + path} {
		file, err := fetchIt(t, filepath.Join(dir, "cache"), ref, sumOf(data))
		if err != nil {
			t.Fatal(err)
		}
		same(t, file, data)
		if file.Path != path {
			t.Errorf("%s was copied to %s", path, file.Path)
		}
	}
	for ref, want := range map[string]string{dir: "not a regular file", path + "x": "no such file", "~/nothing-here.img": "expanded by the shell"} {
		if _, err := fetchIt(t, dir, ref, ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Get(%q) = %v; want an error with %q", ref, err, want)
		} else if ref[0] == '~' && strings.Count(err.Error(), ref) > 1 {
			t.Errorf("Get(%q) = %v; want the path once", ref, err)
		}
	}
	t.Setenv("HOME", dir)
	if _, err := fetchIt(t, dir, "~/disk.img", ""); err == nil || !strings.HasSuffix(err.Error(), "next: repeat the line with "+path+" for "+plaintext.Quote("~/disk.img")) {
		t.Errorf("a ~ that the shell did not expand: %v", err)
	}
	if _, err := fetchIt(t, dir, path, sumOf([]byte("other"))); err == nil || !strings.Contains(err.Error(), "another file") {
		t.Errorf("a wrong digest: %v", err)
	}
}

func FuzzReference(f *testing.F) {
	for _, s := range []string{"disk.img", "https://u:p@h/a/b.img?q#f", "u@h:~/x", "ssh://[::1]:22/x", "oci://h:1/a/b:c@sha256:00#t", "oci-dir:/a:b", "file:///x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := parseReference(s)
		if err != nil {
			return
		}
		if strings.ContainsAny(r.text, "\x00\n\x1b") {
			t.Errorf("parse(%q).text = %q", s, r.text)
		}
		if r.login != nil && r.login.String() != "" && strings.Contains(r.text, r.login.String()+"@") {
			t.Errorf("parse(%q) shows the password in %q", s, r.text)
		}
		if r.kind == kindHTTP || r.kind == kindSFTP {
			if name := r.fileName(); name == "" || filepath.Base(name) != name || !filepath.IsLocal(name) {
				t.Errorf("parse(%q).name() = %q", s, name)
			}
			if name := r.besideFile("x.bmap").fileName(); name != "x.bmap" {
				t.Errorf("parse(%q).beside = %q", s, name)
			}
		}
		if again, err := parseReference(s); err != nil || again.cacheKey() != r.cacheKey() {
			t.Errorf("parse(%q) differs the second time: %v", s, err)
		}
	})
}

func FuzzManifest(f *testing.F) {
	f.Add([]byte(`{"mediaType":"application/vnd.oci.image.manifest.v1+json","layers":[{"mediaType":"x","digest":"sha256:0000000000000000000000000000000000000000000000000000000000000000","size":1,"annotations":{"org.opencontainers.image.title":"a"}}]}`))
	f.Add([]byte(`{"manifests":[{"digest":"sha256:00","size":1,"platform":{"architecture":"arm64"}}]}`))
	f.Add([]byte(`{"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"sha256:0000000000000000000000000000000000000000000000000000000000000000"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := oci.ParseDocument(data)
		if err != nil {
			return
		}
		if m, err := choosePlatform(d, "arm64"); err == nil && !sumPattern().MatchString(string(m.Digest)) {
			t.Errorf("choose = %v", m.Digest)
		}
		a, err := artifactOf(d, "")
		if err != nil {
			return
		}
		for _, b := range a.blobs {
			if !hexPattern().MatchString(b.sha256) || !filepath.IsLocal(b.name) || strings.Contains(b.name, "/") || b.sizeBytes < 0 {
				t.Errorf("blob %+v", b)
			}
		}
	})
}

// The files that usually lie beside an image are not taken for it.
func TestCompanionFiles(t *testing.T) {
	a := artifact{blobs: []blob{{name: "disk.wic"}}}
	for _, name := range []string{"disk.wic.bmap", "disk.wic.sig", "disk.wic.asc", "artifact.json", "notes.txt", "README.md", "disk.wic.sha256", "image.spdx", "sha256sums", "SHA256SUMS.gpg"} {
		a.blobs = append(a.blobs, blob{name: name})
	}
	if got, err := a.findFile(""); err != nil || got.name != "disk.wic" {
		t.Errorf("findFile = %+v, %v; want disk.wic", got, err)
	}
}
